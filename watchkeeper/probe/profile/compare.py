"""Compare two recordings of the same workload: what is better or worse beyond noise.

A column differs if its means differ by more than three standard errors (Welch) and by more than a hundredth of its
scale. The standard error is that of blocks of rows, because neighbouring rows are correlated.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from watchkeeper.probe.profile.recording import GpuTrack, present_values

BLOCKS = 8
MIN_ROWS = 2 * BLOCKS
NOISE_FACTOR = 3.0
MIN_CHANGE = 0.01


class Difference(StrEnum):
    BETTER = "better"
    WORSE = "worse"
    DIFFERENT = "different"
    SAME = "same"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ComparedColumn:
    """The means of one column, before and now; `noise` is a difference that can be chance."""

    column: str
    unit: str
    before: float | None
    now: float | None
    noise: float | None
    change: Difference


# Column, unit, scale, and whether more is better (None if it depends).
COMPARED_COLUMNS: tuple[tuple[str, str, float, bool | None], ...] = (
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


def compare(before: GpuTrack, now: GpuTrack) -> tuple[ComparedColumn, ...]:
    compared = []
    for column, unit, scale, is_more_better in COMPARED_COLUMNS:
        old, new = present_values(before.numbers.get(column, ())), present_values(now.numbers.get(column, ()))
        if not old or not new:
            continue
        old_mean, new_mean = statistics.fmean(old), statistics.fmean(new)
        noise, change = None, Difference.UNKNOWN
        if min(len(old), len(new)) >= MIN_ROWS:
            noise = NOISE_FACTOR * math.sqrt(_standard_error(old) ** 2 + _standard_error(new) ** 2)
            if abs(new_mean - old_mean) <= max(noise, MIN_CHANGE * scale):
                change = Difference.SAME
            elif is_more_better is None:
                change = Difference.DIFFERENT
            else:
                change = Difference.BETTER if (new_mean > old_mean) == is_more_better else Difference.WORSE
        compared.append(ComparedColumn(column, unit, old_mean, new_mean, noise, change))
    return tuple(compared)


def _standard_error(values: Sequence[float]) -> float:
    """The standard error of a mean, from blocks of neighbouring rows."""
    size = len(values) // BLOCKS
    means = [statistics.fmean(values[at * size : (at + 1) * size]) for at in range(BLOCKS)]
    return statistics.stdev(means) / math.sqrt(BLOCKS)
