"""The classes of workloads, the verdict, and the format of its numbers.

`classify` and `classify_basic` create verdicts.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Bound(StrEnum):
    """What a workload is bound by; the values are those of the JSON output."""

    IDLE = "idle"
    UNDERUTILIZED = "underutilized"
    DATA_STARVED = "data_starved"
    STALLS = "stalls_input_or_io"
    LAUNCH = "launch_bound"
    MEMORY = "memory_bound"
    PCIE = "pcie_bound"
    COMPUTE = "compute_bound"
    COMPUTE_NO_TENSOR = "compute_bound_no_tensor"
    COMM = "comm_bound"
    MIXED = "mixed"


@dataclass(frozen=True, slots=True)
class WorkloadVerdict:
    """A class with confidence; `why` has the deciding numbers, `doubts` what lowers the confidence."""

    bound: Bound
    confidence: float
    why: str
    doubts: tuple[str, ...] = ()


def confidence_beyond(value: float, limit: float) -> float:
    """Confidence by the distance of a value from its limit: 0.6 at the limit, 0.95 at twice the limit."""
    return min(0.95, 0.6 + 0.35 * max(0.0, value / limit - 1.0)) if limit > 0 else 0.95


def percent(share: float | None) -> str:
    """A rounded percentage; values above 0 do not round to 0, because little work is thousandths of a percent."""
    if share is None:
        return "unknown"
    digits = 0 if share >= 0.095 else 1 if share >= 0.0005 or share == 0 else 3
    return f"{100 * share:.{digits}f} %"
