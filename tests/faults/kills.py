"""kill -9 of the hub at random moments, while everything writes and repairs are under way."""

from __future__ import annotations

import contextlib
import random
import subprocess
import threading
from collections import Counter
from pathlib import Path

from tests.faults.world import NODES, Away, Ledger, Outcome, World, until, world
from tests.product.running import WATCHKEEPER

BROKEN = ("gpu-r01-02", "gpu-r01-05")


def hub_kills(folder: Path, outcome: Outcome, rng: random.Random, *, rounds: int) -> None:
    with world(folder) as made:
        ledger = Ledger(made, rng)
        made.start()
        for node in BROKEN:
            made.inject("xid-79", node)
        until(lambda: len(made.get("/api/repairs")["repairs"]) == len(BROKEN), "the faults wait for a yes")
        ledger.look()
        for outcome.rounds in range(1, rounds + 1):
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
        finish(made, ledger, outcome)


def write_until_killed(made: World, ledger: Ledger, seconds: float) -> None:
    timer = threading.Timer(seconds, made.kill)
    timer.start()
    with contextlib.suppress(Away):
        while True:
            ledger.write_something()
    timer.join()


def finish(made: World, ledger: Ledger, outcome: Outcome) -> None:
    """Let the repairs end, then count what was done to the machines, and verify the files."""
    until(lambda: ledger._approve() or all_over(made), "every repair is over", within_seconds=300)
    texts = [entry["body"].get("text", "") for entry in made.get("/api/repairs/log?limit=10000")["entries"]]
    reboots = Counter(node for node in BROKEN for text in texts if f"rebooting {node}" in text)
    outcome.check(all(count <= 1 for count in reboots.values()), f"a machine was rebooted twice: {reboots}")
    known = made.get("/api/incidents?open=0&limit=1000")["incidents"]
    outcome.check(
        len(known) <= NODES + len(BROKEN),
        f"{len(known)} incidents: {[(one.get('cause'), one.get('place')) for one in known]}",
    )
    made.stop()
    line = [*WATCHKEEPER, "store", "verify", "--data", str(made.data)]
    said = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    outcome.check(said.returncode == 0, f"store verify: {said.stdout}{said.stderr}")
    outcome.counts |= {"acknowledged": ledger.acknowledged, "repairs": len(ledger.approved)}


def all_over(made: World) -> bool:
    found = made.get("/api/repairs?all=1")["repairs"]
    return all(one["state"] in ("done", "failed", "rolled_back", "rejected") for one in found)
