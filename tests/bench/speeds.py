"""Speeds relative to a reference on the same machine.

Work and reference are measured in turn in CPU time, and the minimum of each counts, because other work on the machine
only adds time. If a speed is below the one in speeds.toml, it is measured more often, because the minimum of more turns
is more exact; a real loss remains. Store 1000 as the speed of a test to see the measured value.
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
        stored_speed: float = tomllib.load(file)[name]
    return stored_speed


def check(name: str, work: Work, reference: Work) -> None:
    """Fail if the work, relative to the reference, takes more than 1.4 times as long as when its speed was stored."""
    compare(name, lambda: cpu_seconds(work), lambda: cpu_seconds(reference), turns=range(LEAST_TURNS, MOST_TURNS))


def compare(name: str, taken: Taken, reference: Taken, *, turns: range) -> None:
    """The same for functions that return their own time; `turns` has the minimum and maximum number of turns."""
    usual = stored(name)
    min_speed, speed = KEPT_SHARE * usual, 0.0
    best_taken = best_reference = math.inf
    for turn in range(turns.stop):
        best_reference, best_taken = min(best_reference, reference()), min(best_taken, taken())
        speed = best_reference / best_taken
        if turn + 1 >= turns.start and speed >= min_speed:
            break
    assert speed >= min_speed, f"{name} = {speed:.3g} relative to the reference, {usual:.3g} is stored"


def cpu_seconds(work: Work) -> float:
    before = time.thread_time()
    work()
    return time.thread_time() - before


def cpu_seconds_of(command: Sequence[str]) -> float:
    """CPU seconds of a command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
