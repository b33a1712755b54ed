"""A machine with fake GPUs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.fake_nvml import driver

MakeFake = Callable[[int], driver.FakeNvml]


@pytest.fixture
def machine(library: Path, tmp_path: Path) -> MakeFake:
    return lambda gpus: driver.FakeNvml(library, tmp_path / "control", gpus=gpus)
