"""A clock that is put forward, put back and stopped while the hub runs: nothing is lost, nobody is told nonsense."""

from __future__ import annotations

import contextlib
import random
import time
from pathlib import Path

from tests.faults.shim import Shim
from tests.faults.world import Ledger, Outcome, World, until, world

HOUR = 3600.0
SCRAPES = "count(count_over_time(DCGM_FI_DEV_GPU_TEMP[30s]))"


def clock_jumps(folder: Path, outcome: Outcome, rng: random.Random, *, rounds: int) -> None:
    shim = Shim(folder, folder / "kept")
    with contextlib.closing(shim), world(folder, speed=1.0, environment=shim.environment) as made:
        ledger = Ledger(made, rng, kinds=("_events", "_silence", "_note"))
        made.start()
        until(lambda: reads(made), "the fleet is read")
        for outcome.rounds in range(1, rounds + 1):
            ledger.look()
            before = len(ledger.incidents)
            shim.shift_clock(rng.uniform(0.5, 3) * HOUR)
            until(lambda: reads(made), "the fleet is read when the clock is ahead", within_seconds=45)
            ledger.write_something()
            shim.shift_clock(0.0)
            ledger.write_something()
            until(lambda: "restart the hub" in str(made.get("/api/status")["degraded"]), "it says that it is blind")
            made.kill()
            made.start()
            until(lambda: reads(made), "the fleet is read after a restart", within_seconds=45)
            shim.stop_clock(True)
            time.sleep(3)
            ledger.write_something()
            shim.stop_clock(False)
            until(lambda: reads(made), "the fleet is read after the clock stood")
            ledger.check(outcome)
            nodes = len({event["place"]["node"] for event in ledger.events})
            outcome.check(len(ledger.incidents) <= before + nodes, f"{len(ledger.incidents)} incidents: a storm")
        outcome.counts |= {"jumps": 2 * outcome.rounds, "stops": outcome.rounds, "acknowledged": ledger.acknowledged}


def reads(made: World) -> bool:
    """Whether all GPUs have samples of the last half minute, by the hub's own clock."""
    result = made.get(f"/api/v1/query?query={SCRAPES}")["data"]["result"]
    return bool(result) and result[0]["value"][1] == "64"
