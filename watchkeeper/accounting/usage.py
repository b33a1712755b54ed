"""Usage: GPU-hours by who held them and by what became of them, in words that are defined here and nowhere else.

Each hour of each GPU in service falls into exactly one of allocated, idle, lost and unknown, so these four sum to the
total; what was allocated falls into used, wasted, unmeasured and spare. `accounting` fills the tables, the command
line, the API and the statements print `WORDS` beside their numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from watchkeeper.model import fleet

Amounts = npt.NDArray[np.float64]

# What a GPU-hour can be asked by; a job is a pod, a Slurm job or a program.
DIMENSIONS = ("cluster", "pool", "model", "node", "team", "project", "namespace", "user", "kind", "job")
# One value for each dimension; an empty one is what nobody has said, and is shown as `unmapped`.
Key = tuple[str, ...]
# The columns of a table. Energy is in kWh at the GPU, everything else in GPU-hours.
PARTS = ("allocated", "used", "wasted", "unmeasured", "idle", "lost", "unknown", "used_by_util", "kwh")
STATES = ("allocated", "idle", "lost", "unknown")
ALLOCATED, USED, WASTED, UNMEASURED, IDLE, LOST, UNKNOWN, USED_BY_UTIL, KWH = range(len(PARTS))
# Owners of hours that no job had: they are lines of their own, and the cost split says who pays for them.
NOBODY = "(nobody)"

# A held GPU whose SMs were active for less than this over the time before is not worth holding; packs/rules/usage.yaml
# alerts at the same share.
WASTE_FLOOR = 0.05
WASTE_MINUTES = 15
WORDS: Mapping[str, str] = {
    "total": "allocated + idle + lost + unknown: the hours of every GPU that the inventory expects or that reported",
    "allocated": "held by a workload; a MIG slice counts as its part of the GPU, one of n time-sliced holders as 1/n",
    "used": "the integral of SM activity while held; of GPU_UTIL where there is no profiling field (used_by_util)",
    "wasted": f"allocated and not used, on GPUs whose activity was below {WASTE_FLOOR:.0%} for {WASTE_MINUTES} minutes",
    "unmeasured": "allocated, but no field says how active the GPU was; neither used nor wasted",
    "spare": "the rest of allocated: not used, on GPUs that are at work",
    "idle": "reporting, healthy, in service, and held by nobody",
    "lost": "expected, held by nobody, and faulty (a critical alert), cordoned or missing",
    "unknown": "nobody could say: no samples, a node that is silent, or no source that knows holders; never idle",
    "kwh": "energy at the GPU, from its own counter; without fans, power supplies and cooling (PUE)",
}


@dataclass(frozen=True, slots=True, eq=False)
class UsageTable:
    """GPU-hours of a time: `amounts[k, p]` belongs to `keys[k]` and `PARTS[p]`.

    `notes` say what is excluded or stands in for something else; a number is never read without them. `first` is when
    records begin, where that is known.
    """

    since: float
    until: float
    keys: Sequence[Key] = ()
    amounts: Amounts = field(default_factory=lambda: np.zeros((0, len(PARTS))))
    notes: tuple[str, ...] = ()
    first: float | None = None

    def __post_init__(self) -> None:
        if self.amounts.shape != (len(self.keys), len(PARTS)):
            raise ValueError(f"{len(self.keys)} keys have amounts of shape {self.amounts.shape}")

    @property
    def hours(self) -> float:
        return (self.until - self.since) / 3600

    @property
    def recorded_hours(self) -> float:
        """The part of the window since records begin."""
        return (self.until - max(self.since, self.first or self.since)) / 3600


def join_tables(pieces: Sequence[UsageTable]) -> UsageTable:
    """Pieces of a time one after the other as one table, whose keys may stand there several times."""
    if len(pieces) == 1:
        return pieces[0]
    told = [piece for piece in pieces if len(piece.keys)] or pieces
    return UsageTable(
        pieces[0].since,
        pieces[-1].until,
        [key for piece in pieces for key in piece.keys],
        np.concatenate([piece.amounts for piece in pieces]),
        tuple(dict.fromkeys(note for piece in told for note in piece.notes)),
        min((piece.first for piece in pieces if piece.first is not None), default=None),
    )


def total(amounts: Amounts) -> float:
    """The hours in service: the four states together."""
    return float(amounts[ALLOCATED] + amounts[IDLE] + amounts[LOST] + amounts[UNKNOWN])


def spare(amounts: Amounts) -> float:
    rest = amounts[ALLOCATED] - amounts[USED] - amounts[WASTED] - amounts[UNMEASURED]
    return max(float(rest), 0.0)


def shown(value: str) -> str:
    """A value of a dimension for people: what nobody has said has its own line."""
    return value or fleet.UNMAPPED


def key(**named: str) -> Key:
    return tuple(named.get(name, "") for name in DIMENSIONS)
