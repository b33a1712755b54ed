"""Damaged files: whatever a bad disk did to one file while no hub ran, the next hub and `store verify` say so.

Damage without an effect may go unnoticed; what was acknowledged and is gone may not.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tests.faults.world import Ledger, Outcome, World, until, world
from tests.support.running_product import WATCHKEEPER

# Enough for a block at the speed of this world.
WRITE_SECONDS, LONG_WRITE_SECONDS, LONG_ROUNDS = 10.0, 150.0, 50
# Files that say nothing about what is stored.
IGNORED = {"lock", "journal.sqlite-shm"}


def files_damaged(folder: Path, outcome: Outcome, rng: random.Random, *, rounds: int) -> None:
    with world(folder) as made:
        ledger = Ledger(made, rng)
        made.start()
        deadline = time.monotonic() + (LONG_WRITE_SECONDS if rounds >= LONG_ROUNDS else WRITE_SECONDS)
        while time.monotonic() < deadline or not ledger.samples:
            ledger.write_something()
        until(lambda: not made.get("/api/status")["degraded"], "nothing is degraded")
        ledger.look()
        made.kill()
        intact = folder / "intact"
        shutil.copytree(made.data, intact)
        outcome.counts["acknowledged"] = ledger.acknowledged
        for outcome.rounds in range(1, rounds + 1):
            damage_one(made, replace(ledger, incidents=set(ledger.incidents)), outcome, rng)
            shutil.rmtree(made.data)
            shutil.copytree(intact, made.data)


def damage_one(made: World, ledger: Ledger, outcome: Outcome, rng: random.Random) -> None:
    path = rng.choice(sorted(path for path in made.data.rglob("*") if path.is_file() and path.name not in IGNORED))
    what = rng.choice(DAMAGES)(path, rng)
    kind = f"{path.suffix.removeprefix('.') or path.name} {what}"
    verified = verify(made)
    if not starts(made):
        has_reason = any(name in made.tail() for name in ("StartRefused", "StoreError"))
        outcome.check(has_reason, f"{kind}: the hub does not start: {made.tail()}")
        outcome.counts["refused"] = outcome.counts.get("refused", 0) + 1
        return
    degraded = made.get("/api/status")["degraded"]
    lost = Outcome("lost", outcome.seed)
    ledger.check(lost)
    made.kill()
    Outcome.newest = outcome
    is_reported = verified == 1
    outcome.check(is_reported or not lost.problems, f"{kind}: {lost.problems} and {verified=}, {degraded=}")
    # The hub reads old blocks and entries when somebody asks for them; `store verify` reads everything.
    outcome.check(is_reported or not degraded, f"{kind}: verify exits {verified}, and the hub says {degraded}")
    result = "lost and reported" if lost.problems else "reported" if is_reported else "without effect"
    outcome.counts[result] = outcome.counts.get(result, 0) + 1


def verify(made: World) -> int:
    line = [*WATCHKEEPER, "store", "verify", "--data", str(made.data)]
    return subprocess.run(line, capture_output=True, timeout=120, check=False).returncode


def starts(made: World) -> bool:
    """Whether a hub becomes ready; otherwise it has ended with a reason."""
    hub = made.spawn()

    def answer() -> str | None:
        if hub.poll() is not None:
            return "ended"
        return "ready" if made.is_up("/-/ready") else None

    return bool(until(answer, "the hub is ready or has ended") == "ready")


def flip_bit(path: Path, rng: random.Random) -> str:
    content = bytearray(path.read_bytes())
    if not content:
        return "kept"
    offset = rng.randrange(len(content))
    content[offset] ^= 1 << rng.randrange(8)
    path.write_bytes(content)
    return f"with a flipped bit at {offset} of {len(content)}"


def zero_range(path: Path, rng: random.Random) -> str:
    content = bytearray(path.read_bytes())
    start = rng.randrange(len(content) + 1)
    length = min(rng.choice((16, 512, 4096)), len(content) - start)
    content[start : start + length] = bytes(length)
    path.write_bytes(content)
    return f"with {length} zeros at {start} of {len(content)}"


def truncate(path: Path, rng: random.Random) -> str:
    content = path.read_bytes()
    size = rng.randrange(len(content) + 1)
    path.write_bytes(content[:size])
    return f"cut to {size} of {len(content)}"


def remove(path: Path, _: random.Random) -> str:
    path.unlink()
    return "removed"


def replace_by_another(path: Path, rng: random.Random) -> str:
    others = [other for other in sorted(path.parent.glob(f"*{path.suffix}")) if other.is_file() and other != path]
    if not others:
        return remove(path, rng)
    shutil.copyfile(rng.choice(others), path)
    return "replaced by another"


DAMAGES: tuple[Callable[[Path, random.Random], str], ...] = (
    flip_bit,
    flip_bit,
    zero_range,
    truncate,
    remove,
    replace_by_another,
)
