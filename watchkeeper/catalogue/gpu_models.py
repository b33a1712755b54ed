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

    name: str = pack.cell(pack.required, "model")
    memory_mib: int = pack.cell(int)
    tdp_watts: float = pack.cell(float)
    idle_watts: float = pack.cell(float)
    max_sm_mhz: int = pack.cell(int)
    idle_sm_mhz: int = pack.cell(int)
    memory_mhz: int = pack.cell(int)
    max_operating_celsius: int = pack.cell(int)
    slowdown_celsius: int = pack.cell(int)
    shutdown_celsius: int = pack.cell(int)
    memory_max_celsius: int | None = pack.cell(pack.optional(int))
    nvlink_gb_per_second: float | None = pack.cell(pack.optional(float))
    pcie_gb_per_second: float = pack.cell(float)
    pcie_generation: int = pack.cell(int)


@cache
def gpu_models() -> Mapping[str, GpuModel]:
    """All models by the driver's name for them, in the order of the table."""
    return {model.name: model for model in pack.load("gpu_models.csv", pack.row_reader(GpuModel))}
