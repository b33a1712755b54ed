"""The states of a GPU in service, and how many GPUs of a fleet are in each.

`hub.fleet_gpus` decides the state of every GPU; pages, the API and `watchkeeper_hub_gpus` show these counts, and
docs/reference/definitions.md explains them. Each GPU is in exactly one state: a missing GPU is never free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class GpuState(StrEnum):
    """`ALLOCATED`: reports, and a workload holds it or a part of it. `FREE`: reports, in service, and has no holder.

    Of the GPUs without a holder, `CORDONED` is on a node that takes no workloads, and `UNHEALTHY` has a critical
    incident or is refused by its scheduler. `DOWN` and `NOT_REPORTING` have no current sample; an incident explains
    `DOWN`. `UNKNOWN` reports, but no source knows its holder.
    """

    ALLOCATED = "allocated"
    FREE = "free"
    CORDONED = "cordoned"
    UNHEALTHY = "unhealthy"
    DOWN = "down"
    NOT_REPORTING = "not_reporting"
    UNKNOWN = "unknown"


# Its samples are missing, so nothing is known about its work.
MISSING = frozenset({GpuState.DOWN, GpuState.NOT_REPORTING})


@dataclass(frozen=True, slots=True)
class GpuCounts:
    """GPUs by state; the states add up to `gpus`."""

    gpus: int = 0
    allocated: int = 0
    free: int = 0
    cordoned: int = 0
    unhealthy: int = 0
    down: int = 0
    not_reporting: int = 0
    unknown: int = 0

    @property
    def reporting(self) -> int:
        return self.gpus - self.down - self.not_reporting

    @property
    def in_service(self) -> int:
        """GPUs that workloads hold or can get."""
        return self.allocated + self.free

    @property
    def allocated_share(self) -> float | None:
        """The allocated share of the GPUs in service; None without any."""
        return self.allocated / self.in_service if self.in_service else None

    def describe(self) -> str:
        """`256 GPUs: 164 allocated, 28 free, 64 not reporting`; states without a GPU are omitted."""
        counts = [(state, getattr(self, state.value)) for state in GpuState]
        text = ", ".join(f"{count:,} {state.replace('_', ' ')}" for state, count in counts if count)
        return f"{self.gpus:,} GPUs" + (f": {text}" if text else "")


def count_states(states: Iterable[GpuState]) -> GpuCounts:
    counted = Counter(states)
    return GpuCounts(counted.total(), **{state.value: count for state, count in counted.items()})
