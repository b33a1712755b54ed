"""A hub that is killed and started again answers over what it saw before, and its copies hold as much."""

from __future__ import annotations

import time
from pathlib import Path
from urllib.parse import quote

from tests.product.running import Product, await_that, command, up
from watchkeeper.store import backup


def readings(product: Product, at: float) -> int:
    """How many temperatures the hub has of the ten minutes before a time."""
    expr = quote("sum(count_over_time(DCGM_FI_DEV_GPU_TEMP[10m]))")
    result = product.get(f"/api/v1/query?query={expr}&time={at:.3f}")["data"]["result"]
    return int(result[0]["value"][1]) if result else 0


def await_write(kept: Path) -> None:
    """Until the log of samples is written once more."""
    before = last_write(kept)
    await_that(lambda: last_write(kept) > before)


def last_write(kept: Path) -> int:
    return max((log.stat().st_mtime_ns for log in kept.glob("samples/wal/*.wal")), default=0)


def test_a_killed_hub_still_knows_what_it_saw_and_can_be_backed_up_while_it_runs(tmp_path: Path) -> None:
    kept, copy = tmp_path / "kept", tmp_path / "copy"
    with up(tmp_path) as product:
        await_that(product.scraped)
        seen_at = time.time()
        seen = readings(product, seen_at)
        # A write that was under way may end after the reading without its samples; the next one has all of them.
        for _ in range(2):
            await_write(kept)
        product.server.kill()
        product.server.wait()
    with up(tmp_path) as product:
        assert readings(product, seen_at) >= seen > 0
        said = command("store", "backup", str(copy), "--data", str(kept))
        assert (said.returncode, "MiB copied" in said.stdout) == (0, True), said.stderr
    assert command("store", "verify", "--data", str(kept)).stdout == "no damage found\n"
    restored = tmp_path / "restored"
    assert command("store", "restore", str(copy), "--data", str(restored)).returncode == 0
    again = command("store", "restore", str(copy), "--data", str(restored))
    assert (again.returncode, "there is something here already" in again.stderr) == (1, True)
    assert list(backup.damages(backup.Holdings(restored, restored / "samples", restored / "journal.sqlite"))) == []
