"""The GPU models of packs/gpu_models.csv, with the limits of their data sheets.

The simulator and the classifier of `profile` read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from watchkeeper.catalogue import pack


@dataclass(frozen=True, slots=True)
class GpuModel:
    """One row of the table; None if the model lacks the part."""

    name: str
    memory_mib: int
    tdp_watts: float
    idle_watts: float
    max_sm_mhz: int
    idle_sm_mhz: int
    memory_mhz: int
    max_operating_celsius: int
    slowdown_celsius: int
    shutdown_celsius: int
    memory_max_celsius: int | None
    nvlink_gb_per_second: float | None
    pcie_gb_per_second: float
    pcie_generation: int


@cache
def gpu_models() -> Mapping[str, GpuModel]:
    """All models by the driver's name for them, in the order of the table."""
    return {model.name: model for model in pack.load("gpu_models.csv", _parse_model)}


def _parse_model(cells: Mapping[str, str]) -> GpuModel:
    return GpuModel(
        name=pack.required(cells["model"]),
        memory_mib=int(cells["memory_mib"]),
        tdp_watts=float(cells["tdp_watts"]),
        idle_watts=float(cells["idle_watts"]),
        max_sm_mhz=int(cells["max_sm_mhz"]),
        idle_sm_mhz=int(cells["idle_sm_mhz"]),
        memory_mhz=int(cells["memory_mhz"]),
        max_operating_celsius=int(cells["max_operating_celsius"]),
        slowdown_celsius=int(cells["slowdown_celsius"]),
        shutdown_celsius=int(cells["shutdown_celsius"]),
        memory_max_celsius=int(cells["memory_max_celsius"]) if cells["memory_max_celsius"] else None,
        nvlink_gb_per_second=float(cells["nvlink_gb_per_second"]) if cells["nvlink_gb_per_second"] else None,
        pcie_gb_per_second=float(cells["pcie_gb_per_second"]),
        pcie_generation=int(cells["pcie_generation"]),
    )
