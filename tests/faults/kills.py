"""kill -9 of the hub at random moments, while everything writes and repairs are under way."""

from __future__ import annotations

import contextlib
import random
import subprocess
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from tests.faults.world import KEPT_HOURS, NODES, REPORTED_CAUSE, Away, Ledger, Outcome, World, ask, until, world
from tests.support.running_product import WATCHKEEPER

AT_ONCE = 2


def hub_kills(folder: Path, outcome: Outcome, rng: random.Random, *, rounds: int) -> None:
    with world(folder) as made:
        ledger, broken = Ledger(made, rng), Counter[str]()
        made.start()
        for outcome.rounds in range(1, rounds + 1):
            # While hundreds of hubs die, there is always something under repair.
            if all_over(made):
                break_some(made, broken)
            write_until_killed(made, ledger, rng.uniform(0.05, 1.5))
            # Some die while they read what the one before has left.
            if rng.random() < 0.3:
                made.spawn()
                threading.Event().wait(rng.uniform(0.1, 2.0))
                made.kill()
                outcome.counts["kills"] = outcome.counts.get("kills", 0) + 1
            made.start()
            ledger.check(outcome)
            outcome.counts["kills"] = outcome.counts.get("kills", 0) + 1
        finish(made, ledger, outcome, broken=broken)


def write_until_killed(made: World, ledger: Ledger, seconds: float) -> None:
    timer = threading.Timer(seconds, made.kill)
    timer.start()
    with contextlib.suppress(Away):
        while True:
            ledger.write_something()
    timer.join()


def break_some(made: World, broken: Counter[str]) -> None:
    """Those nodes that were broken least; return when their repairs wait for a yes.

    Only nodes that are well: a fault of one under repair is a part of that repair, and reboots are counted against
    faults. Alerts do not end in the first half minute of a hub, nor incidents in the first after them, so some hubs
    have to live for that long.
    """
    free_nodes = until(lambda: well(made), f"{AT_ONCE} nodes are well")
    nodes = sorted(free_nodes, key=lambda node: broken[node])[:AT_ONCE]
    for node in nodes:
        made.inject("xid-79", node)
        broken[node] += 1
    planned = lambda: {repair["node"]["node"] for repair in made.get("/api/repairs")["repairs"]}  # noqa: E731
    until(lambda: planned().issuperset(nodes), f"the faults of {nodes} wait for a yes")


def well(made: World) -> list[str]:
    """Nodes that have no open incident but those of the ledger's own events; none where these are too few to break."""
    opened = made.get("/api/incidents?limit=1000")["incidents"]
    ill = {incident["place"].get("node") for incident in opened if incident["cause"] != REPORTED_CAUSE}
    free = sorted({f"gpu-r01-{number:02}" for number in range(1, NODES + 1)} - ill)
    return free if len(free) >= AT_ONCE else []


def finish(made: World, ledger: Ledger, outcome: Outcome, *, broken: Counter[str]) -> None:
    """Let the repairs end, then count what was done to the machines, and verify the files."""
    try:
        until(lambda: ledger._approve() or all_over(made), "every repair is over", within_seconds=300)
    except AssertionError as error:
        raise AssertionError(f"{error}; these are not: {under_way(made)}") from error
    texts = [entry["body"].get("text", "") for entry in made.get("/api/repairs/log?limit=10000")["entries"]]
    reboots = Counter(node for node in broken for text in texts if f"rebooting {node}" in text)
    outcome.check(reboots <= broken, f"a machine was rebooted twice for one fault: {reboots} for {broken}")
    left = [fault["place"] for fault in ask(f"{made.simulator}/faults")]
    outcome.check(not left, f"repairs are over, and faults are left: {left}")
    ledger.check_samples(outcome, hours=KEPT_HOURS)
    ledger.check_storm(outcome, broken)
    made.stop()
    line = [*WATCHKEEPER, "store", "verify", "--data", str(made.data)]
    result = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    outcome.check(result.returncode == 0, f"store verify: {result.stdout}{result.stderr}")
    outcome.counts |= {"acknowledged": ledger.acknowledged, "repairs": len(ledger.approved), "reboots": reboots.total()}


def all_over(made: World) -> bool:
    return not under_way(made)


def under_way(made: World) -> list[dict[str, Any]]:
    repairs: list[dict[str, Any]] = made.get("/api/repairs?all=1")["repairs"]
    return [repair for repair in repairs if repair["state"] not in ("done", "failed", "rolled_back", "rejected")]
