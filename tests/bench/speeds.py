"""Speeds without a second machine: what a piece of work takes in units of a reference that runs beside it.

Both are measured in turn in CPU time, and the least of each counts: whatever else the machine does only adds. A
speed that does not reach what is stored in speeds.toml is measured on, because minima of more turns are nearer to the
truth; one that was lost stays lost. A test whose stored speed is 1000 says what it found.
"""

from __future__ import annotations

import math
import resource
import subprocess
import time
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path

Work = Callable[[], object]
Taken = Callable[[], float]

STORED = Path(__file__).with_name("speeds.toml")
# A loss of more than 30 % fails.
KEPT_SHARE = 0.7
LEAST_TURNS, MOST_TURNS = 5, 60


def stored(name: str) -> float:
    with STORED.open("rb") as file:
        found: float = tomllib.load(file)[name]
    return found


def check(name: str, work: Work, reference: Work) -> None:
    """Fail if the work takes more than 1.4 times as long as when its speed was stored, in units of the reference."""
    compare(name, lambda: cpu_seconds(work), lambda: cpu_seconds(reference), turns=range(LEAST_TURNS, MOST_TURNS))


def compare(name: str, taken: Taken, reference: Taken, *, turns: range) -> None:
    """The same for work that says itself what it took, measured at least and at most so often."""
    usual = stored(name)
    enough, found = KEPT_SHARE * usual, 0.0
    best_taken = best_reference = math.inf
    for turn in range(turns.stop):
        best_reference, best_taken = min(best_reference, reference()), min(best_taken, taken())
        found = best_reference / best_taken
        if turn + 1 >= turns.start and found >= enough:
            break
    assert found >= enough, f"{name} = {found:.3g} in the time of the reference, {usual:.3g} is stored"


def cpu_seconds(work: Work) -> float:
    before = time.thread_time()
    work()
    return time.thread_time() - before


def cpu_seconds_of(command: Sequence[str]) -> float:
    """What a command took as a process of its own."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
