"""Usage tables: GPU-hours by owner and by state, with the definition of each state.

Each hour of each GPU is exactly one of allocated, idle, lost and unknown, so these four add up to the total. Allocated
hours are used, wasted, unmeasured or spare. The CLI, the API and the statements show `DEFINITIONS` beside the numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from watchkeeper.model import fleet

Amounts = npt.NDArray[np.float64]

# The dimensions of a GPU-hour; a job is a pod, a Slurm job or a process.
DIMENSIONS = ("cluster", "pool", "model", "node", "team", "project", "namespace", "user", "kind", "job")
# One value for each dimension; an empty value is unknown, and is shown as `unmapped`.
Key = tuple[str, ...]
# The columns of a table. Energy is in kWh at the GPU, everything else in GPU-hours.
PARTS = ("allocated", "used", "wasted", "unmeasured", "idle", "lost", "unknown", "used_by_util", "kwh")
STATES = ("allocated", "idle", "lost", "unknown")
ALLOCATED, USED, WASTED, UNMEASURED, IDLE, LOST, UNKNOWN, USED_BY_UTIL, KWH = range(len(PARTS))
# The owner of unallocated hours. They have separate lines, and the cost policy decides who pays for them.
UNOWNED = "(nobody)"

# An allocated GPU with less SM activity than this over `WASTE_MINUTES` counts as wasted; packs/rules/usage.yaml alerts
# at the same share.
WASTE_FLOOR = 0.05
WASTE_MINUTES = 15
DEFINITIONS: Mapping[str, str] = {
    "total": "allocated + idle + lost + unknown: the hours of every GPU that the inventory lists or that reported",
    "allocated": "assigned to a workload; a MIG instance counts as its part of the GPU, a time-slicing holder as 1/n",
    "used": "SM activity summed over allocated time; GPU_UTIL where no profiling metric exists (used_by_util)",
    "wasted": f"allocated and not used, on GPUs whose activity was below {WASTE_FLOOR:.0%} for {WASTE_MINUTES} minutes",
    "unmeasured": "allocated, but no metric shows the activity of the GPU; neither used nor wasted",
    "spare": "the rest of allocated: not used, on GPUs with activity",
    "idle": "reporting, healthy, in service, and not allocated",
    "lost": "expected, not allocated, and faulty (a critical alert), cordoned or missing",
    "unknown": "no samples, an unreachable node, or no source of holders; never counted as idle",
    "kwh": "energy of the GPU, from its energy counter; without fans, power supplies and cooling (PUE)",
}


@dataclass(frozen=True, slots=True, eq=False)
class UsageTable:
    """GPU-hours of a time range: `amounts[k, p]` belongs to `keys[k]` and `PARTS[p]`."""

    since: float
    until: float
    keys: Sequence[Key] = ()
    amounts: Amounts = field(default_factory=lambda: np.zeros((0, len(PARTS))))
    # What is excluded or estimated; every report shows it.
    notes: tuple[str, ...] = ()
    # When records start, None if unknown.
    first: float | None = None

    def __post_init__(self) -> None:
        if self.amounts.shape != (len(self.keys), len(PARTS)):
            raise ValueError(f"{len(self.keys)} keys have amounts of shape {self.amounts.shape}")

    @property
    def recorded_hours(self) -> float:
        """Hours of the window since records start."""
        return (self.until - max(self.since, self.first or self.since)) / 3600


def join_tables(tables: Sequence[UsageTable]) -> UsageTable:
    """Join tables that follow each other in time; the result can have duplicate keys."""
    if len(tables) == 1:
        return tables[0]
    non_empty = [piece for piece in tables if len(piece.keys)] or tables
    return UsageTable(
        tables[0].since,
        tables[-1].until,
        [key for piece in tables for key in piece.keys],
        np.concatenate([piece.amounts for piece in tables]),
        tuple(dict.fromkeys(note for piece in non_empty for note in piece.notes)),
        min((piece.first for piece in tables if piece.first is not None), default=None),
    )


def total(amounts: Amounts) -> float:
    return float(amounts[ALLOCATED] + amounts[IDLE] + amounts[LOST] + amounts[UNKNOWN])


def spare(amounts: Amounts) -> float:
    rest = amounts[ALLOCATED] - amounts[USED] - amounts[WASTED] - amounts[UNMEASURED]
    return max(float(rest), 0.0)


def display_value(value: str) -> str:
    return value or fleet.UNMAPPED


def make_key(**dimensions: str) -> Key:
    return tuple(dimensions.get(name, "") for name in DIMENSIONS)
