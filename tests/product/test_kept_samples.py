"""A hub that is killed and started again answers over what it saw before, and its copies hold as much."""

from __future__ import annotations

import time
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.support.running_product import Product, await_that, command, up
from watchkeeper.query import embedded
from watchkeeper.store import backup
from watchkeeper.store.head import head
from watchkeeper.store.wal import wal_reader, wal_replay

# How many temperatures there are of the ten minutes before a time.
READINGS = "sum(count_over_time(DCGM_FI_DEV_GPU_TEMP[10m]))"


def readings(product: Product, at: float) -> int:
    result = product.get(f"/api/v1/query?query={quote(READINGS)}&time={at:.3f}")["data"]["result"]
    return int(result[0]["value"][1]) if result else 0


def logged(kept: Path, at: float) -> int:
    """The same of the log as it is on the disk, whose writer is always a little behind."""
    kept_head = head.Head()
    wal_replay.replay(wal_reader.read(kept / "samples" / "wal", since_ms=0), kept_head)
    return int(sum(embedded.EmbeddedEngine(kept_head).instant(READINGS, round(at * 1000)).latest().values()))


@pytest.mark.slow
def test_a_killed_hub_still_knows_what_it_saw_and_can_be_backed_up_while_it_runs(tmp_path: Path) -> None:
    kept, copy = tmp_path / "kept", tmp_path / "copy"
    with up(tmp_path) as product:
        await_that(product.scraped)
        seen_at = time.time()
        kept_readings = readings(product, seen_at)
        await_that(lambda: logged(kept, seen_at) >= kept_readings)
        product.server.kill()
        product.server.wait()
    with up(tmp_path) as product:
        assert readings(product, seen_at) >= kept_readings > 0
        result = command("store", "backup", str(copy), "--data", str(kept))
        assert (result.returncode, "MiB copied" in result.stdout) == (0, True), result.stderr
    assert command("store", "verify", "--data", str(kept)).stdout == "no damage found\n"
    restored = tmp_path / "restored"
    assert command("store", "restore", str(copy), "--data", str(restored)).returncode == 0
    again = command("store", "restore", str(copy), "--data", str(restored))
    assert (again.returncode, "the directory is not empty" in again.stderr) == (1, True)
    assert (
        list(
            backup.find_corruptions(backup.StoreLocations(restored, restored / "samples", restored / "journal.sqlite"))
        )
        == []
    )
