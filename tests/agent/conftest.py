"""A machine with fake GPUs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fake_nvml import driver

MakeFake = Callable[[int], driver.FakeNvml]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not driver.has_compiler():
        pytest.skip("gcc is needed to build the fake NVML")
    return driver.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def machine(library: Path, tmp_path: Path) -> MakeFake:
    return lambda gpus: driver.FakeNvml(library, tmp_path / "control", gpus=gpus)
