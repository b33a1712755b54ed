"""Limits of the classifier (packs/bottleneck_limits.csv) and ceilings of GPU models (packs/gpu_models.csv).

`features` converts readings into shares of ceilings, and `classify` compares the shares with the limits. The tables
have a reason for each number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from watchkeeper.catalogue import pack

MIB_PER_GB = 1e9 / 2**20


@dataclass(frozen=True, slots=True)
class GpuCeilings:
    """The maximum rates of a GPU model; None if it lacks the part."""

    name: str
    memory_mib: float
    power_watts: float
    idle_watts: float
    max_sm_mhz: float
    memory_mhz: float
    pcie_gb_per_second: float
    nvlink_gb_per_second: float | None


@cache
def limits() -> Mapping[str, float]:
    rows = pack.load("bottleneck_limits.csv", lambda cells: (cells["name"], float(cells["value"]), cells["why"]))
    return {name: value for name, value, _ in rows}


@cache
def gpu_models() -> tuple[GpuCeilings, ...]:
    return pack.load("gpu_models.csv", _parse_model)


def find_model(name: str) -> GpuCeilings | None:
    return next((model for model in gpu_models() if model.name.lower() == name.lower()), None)


def guess_model(memory_mhz: float | None) -> GpuCeilings | None:
    """The model with this memory clock, which is almost constant under load and differs between models."""
    return next((model for model in gpu_models() if memory_mhz is not None and model.memory_mhz == memory_mhz), None)


def default_model() -> GpuCeilings:
    """The model to assume if it is unknown: the first of the table."""
    return gpu_models()[0]


def _parse_model(cells: Mapping[str, str]) -> GpuCeilings:
    return GpuCeilings(
        cells["model"],
        float(cells["memory_mib"]),
        float(cells["tdp_watts"]),
        float(cells["idle_watts"]),
        float(cells["max_sm_mhz"]),
        float(cells["memory_mhz"]),
        float(cells["pcie_gb_per_second"]),
        float(cells["nvlink_gb_per_second"]) if cells["nvlink_gb_per_second"] else None,
    )
