"""Two recordings of what should be the same workload: what is better or worse beyond their own noise.

`report` calls it with the main segment of each. A number differs when its means lie further apart than their standard
errors allow (Welch, three of them) and by more than a hundredth of its scale; blocks of rows, not rows, are compared,
because neighbouring rows are alike.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from watchkeeper.probe.profile.recording import GpuTrack, present_values

BLOCKS = 8
LEAST_ROWS = 2 * BLOCKS
ERRORS_APART = 3.0
LEAST_CHANGE = 0.01


class Difference(StrEnum):
    BETTER = "better"
    WORSE = "worse"
    DIFFERENT = "different"
    SAME = "same"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ComparedNumber:
    """One number then and now; `noise` is how far apart the means could lie by chance."""

    column: str
    unit: str
    before: float | None
    now: float | None
    noise: float | None
    change: Difference


# Column, unit, what counts as one whole, and whether more is better: None where it depends.
LOOKED_AT: tuple[tuple[str, str, float, bool | None], ...] = (
    ("graphics_util", "%", 100, True),
    ("sm_util", "%", 100, True),
    ("any_tensor_util", "%", 100, True),
    ("dram_bw_util", "%", 100, None),
    ("gpu_util", "%", 100, True),
    ("power_w", "W", 700, None),
    ("sm_clock", "MHz", 1980, True),
    ("temp", "°C", 90, None),
    ("fb_used_mib", "MiB", 100_000, None),
    ("pcie_rx_per_sec", "MiB/s", 50_000, None),
    ("cpu_cores", "cores", 8, None),
)


def compare(before: GpuTrack, now: GpuTrack) -> tuple[ComparedNumber, ...]:
    """Each number that both recordings have."""
    found = []
    for column, unit, whole, is_more_better in LOOKED_AT:
        old, new = present_values(before.numbers.get(column, ())), present_values(now.numbers.get(column, ()))
        if old and new:
            found.append(_compared(column, unit, old=old, new=new, whole=whole, is_more_better=is_more_better))
    return tuple(found)


def _compared(
    column: str, unit: str, *, old: Sequence[float], new: Sequence[float], whole: float, is_more_better: bool | None
) -> ComparedNumber:
    before, now = statistics.fmean(old), statistics.fmean(new)
    if min(len(old), len(new)) < LEAST_ROWS:
        return ComparedNumber(column, unit, before, now, None, Difference.UNKNOWN)
    noise = ERRORS_APART * math.sqrt(_error(old) ** 2 + _error(new) ** 2)
    difference = now - before
    if abs(difference) <= max(noise, LEAST_CHANGE * whole):
        return ComparedNumber(column, unit, before, now, noise, Difference.SAME)
    if is_more_better is None:
        return ComparedNumber(column, unit, before, now, noise, Difference.DIFFERENT)
    is_better = (difference > 0) == is_more_better
    return ComparedNumber(column, unit, before, now, noise, Difference.BETTER if is_better else Difference.WORSE)


def _error(values: Sequence[float]) -> float:
    """The standard error of a mean, from blocks of neighbours."""
    size = len(values) // BLOCKS
    means = [statistics.fmean(values[at * size : (at + 1) * size]) for at in range(BLOCKS)]
    return statistics.stdev(means) / math.sqrt(BLOCKS)
