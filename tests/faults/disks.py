"""A disk that is full or broken, and comes back: what is not written is not acknowledged, and the hub lives on."""

from __future__ import annotations

import contextlib
import errno
import random
import time
from pathlib import Path

from tests.faults.shim import Shim
from tests.faults.world import Away, Ledger, Outcome, World, until, world

REFUSED_SECONDS = 3.0


def disk_refuses(folder: Path, outcome: Outcome, rng: random.Random, *, rounds: int) -> None:
    shim = Shim(folder, folder / "kept")
    with contextlib.closing(shim), world(folder, environment=shim.environment) as made:
        ledger = Ledger(made, rng)
        made.start()
        for outcome.rounds in range(1, rounds + 1):
            write(ledger, 0.5)
            ledger.look()
            shim.refuse_writes(rng.choice((errno.ENOSPC, errno.EIO)))
            refused = until(lambda: write(ledger, REFUSED_SECONDS), "a write is refused")
            until(lambda: made.get("/api/status")["degraded"], "the status says so")
            outcome.check(made.is_up("/-/healthy"), "the hub is not healthy while its disk refuses")
            shim.refuse_writes(0)
            until(lambda: ledger.write_something() or True, "writes are taken again")
            until(lambda: not made.get("/api/status")["degraded"], "nothing is degraded any more")
            ledger.check(outcome)
            lose_power(made)
            ledger.check(outcome)
            outcome.counts["refused"] = outcome.counts.get("refused", 0) + refused
        outcome.counts |= {"acknowledged": ledger.acknowledged, "writes failed": shim.failed}


def write(ledger: Ledger, seconds: float) -> int:
    """Write for a while; how many writes were refused."""
    refused, deadline = 0, time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            ledger.write_something()
        except Away:
            refused += 1
    return refused


def lose_power(made: World) -> None:
    made.kill()
    made.start()
