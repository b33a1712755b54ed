"""`python -m tests.faults [--long] [--json] [--seed N] [--only NAME …]`: real faults, and what they cost.

While it runs it says on standard error how far it is; at its end it prints a table for docs/reference/reliability.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import random
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

from tests.faults.plan import FAULTS, Fault
from tests.faults.world import Outcome

PROGRESS_SECONDS = 30.0


def run(fault: Fault, folder: Path, *, seed: int, is_long: bool) -> Outcome:
    """One fault from start to end; what goes wrong on the way is a problem of the outcome."""
    outcome = Outcome(fault.name, seed)
    begun = time.monotonic()
    try:
        fault.run(folder, outcome, random.Random(seed), rounds=fault.long if is_long else fault.short)
    # Deliberately everything: a test's own way of failing is no Exception.
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        outcome.problems.append(f"round {outcome.rounds}: {type(error).__name__}: {error}")
    outcome.seconds = round(time.monotonic() - begun, 1)
    return outcome


class Progress:
    """Says every half minute how far a fault is."""

    def __init__(self, fault: Fault, rounds: int) -> None:
        self._fault, self._rounds, self._over = fault, rounds, threading.Event()
        self._begun = time.monotonic()
        self._thread = threading.Thread(target=self._say, daemon=True)

    def __enter__(self) -> None:
        Outcome.newest = None
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _say(self) -> None:
        while not self._over.wait(PROGRESS_SECONDS):
            outcome = Outcome.newest
            if outcome is not None:
                at, problems = outcome.rounds, f"; {'; '.join(outcome.problems)}" if outcome.problems else ""
                passed = time.monotonic() - self._begun
                sys.stderr.write(f"{self._fault.name}: round {at} of {self._rounds} after {passed:.0f} s{problems}\n")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--long", action="store_true", help="hundreds of rounds instead of dozens")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="repeat a run")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="some faults: " + ", ".join(f.name for f in FAULTS))
    parser.add_argument("--rounds", type=int, help="so many of each instead")
    options = parser.parse_args()
    if unknown := set(options.only or ()) - {fault.name for fault in FAULTS}:
        parser.error(f"there is no fault {', '.join(sorted(unknown))}; there are {', '.join(f.name for f in FAULTS)}")
    chosen = [fault for fault in FAULTS if options.only is None or fault.name in options.only]
    if options.rounds:
        chosen = [dataclasses.replace(fault, short=options.rounds, long=options.rounds) for fault in chosen]
    outcomes = []
    for fault in chosen:
        with tempfile.TemporaryDirectory(prefix="faults-") as folder, Progress(fault, _rounds(fault, options.long)):
            outcomes.append(run(fault, Path(folder), seed=options.seed, is_long=options.long))
        for problem in outcomes[-1].problems:
            sys.stderr.write(f"{fault.name}: {problem}\n")
    if options.json:
        sys.stdout.write(json.dumps([dataclasses.asdict(outcome) for outcome in outcomes], indent=2) + "\n")
    else:
        sys.stdout.write(table(outcomes))
    return int(any(outcome.problems for outcome in outcomes))


def _rounds(fault: Fault, is_long: bool) -> int:
    return fault.long if is_long else fault.short


def table(outcomes: list[Outcome]) -> str:
    """What came of a run, as the page about reliability has it."""
    rows = ["| Fault | Seed | Rounds | Seconds | What happened | Found |", "|---|---|---|---|---|---|"]
    for outcome in outcomes:
        happened = ", ".join(f"{count:,} {name}" for name, count in outcome.counts.items())
        verdict = "nothing lost" if not outcome.problems else f"{len(outcome.problems)} problems"
        rows.append(
            f"| {outcome.name} | {outcome.seed} | {outcome.rounds} | {outcome.seconds:,.0f} | {happened} | {verdict} |"
        )
    machine = f"{os.cpu_count()} cores, load {os.getloadavg()[1]:.0f}, Python {platform.python_version()}"
    return "\n".join(rows) + f"\n\n{datetime.now(UTC):%Y-%m-%d}, {machine}\n"


if __name__ == "__main__":
    sys.exit(main())
