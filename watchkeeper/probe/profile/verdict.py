"""The classes that a workload can be of, a verdict, and how its numbers are written.

`classify` and `classify_basic` make verdicts; everything that prints or compares them takes the names from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Bound(StrEnum):
    """What a workload is bound by; the names are those of the command's JSON."""

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
    """`why` holds the numbers that decided; `unsure` says what lowers the confidence."""

    bound: Bound
    confidence: float
    why: str
    unsure: tuple[str, ...] = ()


def confidence_beyond(value: float, limit: float) -> float:
    """Confidence from how far a value is beyond its limit: 0.6 at the limit, 0.95 at twice it."""
    return min(0.95, 0.6 + 0.35 * max(0.0, value / limit - 1.0)) if limit > 0 else 0.95


def percent(share: float) -> str:
    """Rounded, but never to 0 what is not: the least work of a GPU is some thousandths of a percent."""
    digits = 0 if share >= 0.095 else 1 if share >= 0.0005 or share == 0 else 3
    return f"{100 * share:.{digits}f} %"


def known(share: float | None) -> str:
    return "unknown" if share is None else percent(share)
