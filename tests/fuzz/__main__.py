"""`python -m tests.fuzz [--seconds N] [--seed N] [--only NAME …] [--json]`: broken input by the ten thousand."""

from __future__ import annotations

import argparse
import json
import random
import sys
import time

from tests.fuzz.targets import TARGETS, Target, feed, mutate

SLOW_SECONDS = 5.0


def run(target: Target, *, seconds: float, seed: int) -> dict[str, object]:
    rng, tried, slowest = random.Random(seed), 0, 0.0
    defects: dict[str, str] = {}
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        content, begun = mutate(rng.choice(target.seeds), rng), time.process_time()
        problem = feed(target, content)
        taken = time.process_time() - begun
        slowest = max(slowest, taken)
        if taken > SLOW_SECONDS:
            problem = problem or f"{taken:.1f} s for {len(content)} bytes"
        if problem and len(defects) < 20:
            defects.setdefault(problem[:80], content[:4000].hex())
        tried += 1
    return {"target": target.name, "inputs": tried, "slowest_seconds": round(slowest, 3), "defects": defects}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="for each target")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--only", nargs="+", metavar="NAME", help=", ".join(target.name for target in TARGETS))
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    chosen = [target for target in TARGETS if asked.only is None or target.name in asked.only]
    found = [run(target, seconds=asked.seconds, seed=asked.seed) for target in chosen]
    if asked.json:
        sys.stdout.write(json.dumps({"seed": asked.seed, "targets": found}, indent=2) + "\n")
    else:
        for one in found:
            defects = one["defects"]
            sys.stdout.write(f"{one['target']}: {one['inputs']} inputs, {one['slowest_seconds']} s at most, ")
            sys.stdout.write(f"{len(defects) or 'no'} defects {[*defects]}\n")  # type: ignore[arg-type]
        sys.stdout.write(f"seed {asked.seed}\n")
    return int(any(one["defects"] for one in found))


if __name__ == "__main__":
    sys.exit(main())
