"""The classes of workloads, the limits between them, the verdict, and the GPU model of a recording.

`features` converts readings into shares of what the model can do, and `classify` compares the shares with the limits of
packs/bottleneck_limits.csv, which has a reason for each number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from watchkeeper.catalogue import pack
from watchkeeper.catalogue.gpu_models import GpuModel, gpu_models

MIB_PER_GB = 1e9 / 2**20


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


@cache
def limits() -> Mapping[str, float]:
    rows = pack.load("bottleneck_limits.csv", lambda cells: (cells["name"], float(cells["value"]), cells["why"]))
    return {name: value for name, value, _ in rows}


def find_model(name: str) -> GpuModel | None:
    return next((model for model in gpu_models().values() if model.name.lower() == name.lower()), None)


def guess_model(memory_mhz: float) -> GpuModel | None:
    """The model with this memory clock, which is almost constant under load and differs between models."""
    return next((model for model in gpu_models().values() if model.memory_mhz == memory_mhz), None)


def default_model() -> GpuModel:
    """The model to assume if it is unknown: the first of the table."""
    return next(iter(gpu_models().values()))
