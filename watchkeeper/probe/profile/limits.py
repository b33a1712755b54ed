"""Limits of the classifier (packs/bottleneck_limits.csv), and the GPU model of a recording.

`features` converts readings into shares of what the model can do, and `classify` compares the shares with the limits.
The table has a reason for each number.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from watchkeeper.catalogue import pack
from watchkeeper.catalogue.gpu_models import GpuModel, gpu_models

MIB_PER_GB = 1e9 / 2**20


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
