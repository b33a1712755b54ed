"""A clock that is put forward, put back and stopped while the hub runs: nothing is lost, nobody is told nonsense."""

from __future__ import annotations

import contextlib
import random
import time
from pathlib import Path

from tests.faults.shim import Shim
from tests.faults.world import NODES, Ledger, Outcome, World, until, world
from watchkeeper.store import clock_check

HOUR = 3600.0
SCRAPES = "count(count_over_time(DCGM_FI_DEV_GPU_TEMP[30s]))"
RULES = "count(count_over_time(watchkeeper:node_exporters_up:min[30s]))"
# Twenty seconds until the hub believes that the clock was put back, a scrape, a rule, and a machine that is busy.
SEES_AGAIN_SECONDS = 180.0


def clock_jumps(folder: Path, outcome: Outcome, rng: random.Random, *, rounds: int) -> None:
    shim = Shim(folder, folder / "kept")
    with contextlib.closing(shim), world(folder, speed=1.0, environment=shim.environment) as made:
        ledger = Ledger(made, rng, kinds=("_events", "_silence", "_note"))
        made.start()
        until(lambda: reads(made), "the fleet is read")
        for outcome.rounds in range(1, rounds + 1):
            ledger.look()
            incident_count = len(ledger.incidents)
            put_forward_and_back(made, shim, ledger, outcome=outcome, rng=rng)
            put_back_for_a_moment(made, shim)
            stop(made, shim, ledger)
            ledger.check(outcome)
            nodes = len({event["place"]["node"] for event in ledger.events})
            outcome.check(
                len(ledger.incidents) <= incident_count + nodes, f"{len(ledger.incidents)} incidents: a storm"
            )
        outcome.counts |= {"jumps": 4 * outcome.rounds, "stops": outcome.rounds, "acknowledged": ledger.acknowledged}


def put_forward_and_back(made: World, shim: Shim, ledger: Ledger, *, outcome: Outcome, rng: random.Random) -> None:
    """Minutes to days ahead, as a wrong clock is until NTP corrects it; in each third round the hub is killed, too."""
    at = time.time()
    before = held(made, at)
    shim.shift_clock(rng.choice((rng.uniform(0.05, 0.5), rng.uniform(0.5, 3), 48)) * HOUR)
    until(lambda: reads(made), "the fleet is read when the clock is ahead", within_seconds=SEES_AGAIN_SECONDS)
    ledger.write_something()
    shim.shift_clock(0.0)
    ledger.write_something()
    until(lambda: "ahead of the clock" in str(made.get("/api/status")["degraded"]), "it says that it is blind")
    if outcome.rounds % 3 == 0:
        made.kill()
        made.start()
    else:
        says = lambda: "ahead of it were moved to" in str(made.get("/api/status")["degraded"])  # noqa: E731
        until(says, "it reports the quarantine", within_seconds=SEES_AGAIN_SECONDS)
    until(lambda: reads(made), "the fleet is read when the clock is right", within_seconds=SEES_AGAIN_SECONDS)
    until(lambda: reads(made, RULES, 1), "rules are evaluated", within_seconds=SEES_AGAIN_SECONDS)
    opens_incident(made, ledger)
    after = held(made, at)
    # What was read before the jump may have been written after the first count.
    outcome.check(after >= before, f"{before} samples of before the jump are {after}")


def put_back_for_a_moment(made: World, shim: Shim) -> None:
    """Shorter than the hub takes to believe it: nothing is set aside."""
    at, begun = time.time(), time.monotonic()
    before = held(made, at)
    shim.shift_clock(-HOUR)
    until(lambda: "ahead of the clock" in str(made.get("/api/status")["degraded"]), "it says that it is blind")
    shim.shift_clock(0.0)
    # On a machine where others have the cores it may have been more than a moment.
    was_a_moment = time.monotonic() - begun < clock_check.QUARANTINE_AFTER_SECONDS - 2
    until(lambda: reads(made), "the fleet is read when the clock is right", within_seconds=SEES_AGAIN_SECONDS)
    after = held(made, at)
    assert after >= before or not was_a_moment, f"{before} samples are {after}: some were set aside for a moment's sake"


def stop(made: World, shim: Shim, ledger: Ledger) -> None:
    shim.stop_clock(True)
    time.sleep(3)
    ledger.write_something()
    shim.stop_clock(False)
    until(lambda: reads(made), "the fleet is read after the clock stood")


def opens_incident(made: World, ledger: Ledger) -> None:
    """An event of a node without an incident opens one at once."""
    ledger.look()
    busy = {incident["place"]["node"] for incident in made.get("/api/incidents?open=1&limit=1000")["incidents"]}
    free = [f"gpu-r01-{number:02}" for number in range(1, NODES + 1) if f"gpu-r01-{number:02}" not in busy]
    if free:
        ledger.report(free[0])
        is_open = lambda: any(  # noqa: E731
            incident["place"]["node"] == free[0]
            for incident in made.get("/api/incidents?open=1&limit=1000")["incidents"]
        )
        until(is_open, "an incident opens", within_seconds=SEES_AGAIN_SECONDS)


def held(made: World, at: float) -> int:
    """How many samples of the fleet lie in the five minutes before a moment."""
    path = f"/api/v1/query?query=sum(count_over_time(DCGM_FI_DEV_GPU_TEMP[5m]))&time={at:.3f}"
    result = made.get(path)["data"]["result"]
    return int(float(result[0]["value"][1])) if result else 0


def reads(made: World, query: str = SCRAPES, count: int = 8 * NODES) -> bool:
    """Whether all GPUs have samples of the last half minute, by the hub's own clock."""
    result = made.get(f"/api/v1/query?query={query}")["data"]["result"]
    return bool(result) and int(result[0]["value"][1]) >= count
