"""`python -m tests.faults [--long] [--json] [--seed N] [--only NAME …]`: real faults, and what they cost."""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.faults.plan import FAULTS, Fault
from tests.faults.world import Outcome


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


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--long", action="store_true", help="hundreds of rounds instead of dozens")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="repeat a run")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="some faults: " + ", ".join(f.name for f in FAULTS))
    parser.add_argument("--rounds", type=int, help="so many of each instead")
    asked = parser.parse_args()
    chosen = [fault for fault in FAULTS if asked.only is None or fault.name in asked.only]
    if asked.rounds:
        chosen = [dataclasses.replace(fault, short=asked.rounds, long=asked.rounds) for fault in chosen]
    found = []
    for fault in chosen:
        with tempfile.TemporaryDirectory(prefix="faults-") as folder:
            outcome = run(fault, Path(folder), seed=asked.seed, is_long=asked.long)
        found.append(outcome)
        if not asked.json:
            counted = ", ".join(f"{count} {name}" for name, count in outcome.counts.items())
            verdict = "nothing lost" if not outcome.problems else "\n  ".join(["LOST", *outcome.problems])
            sys.stdout.write(f"{outcome.name}: {outcome.rounds} rounds, {outcome.seconds} s, {counted}: {verdict}\n")
            sys.stdout.flush()
    if asked.json:
        sys.stdout.write(json.dumps([dataclasses.asdict(one) for one in found], indent=2) + "\n")
    else:
        sys.stdout.write(f"seed {asked.seed}\n")
    return int(any(one.problems for one in found))


if __name__ == "__main__":
    sys.exit(main())
