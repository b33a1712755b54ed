"""PyTorch's allocator: its statistics are exported where PyTorch uses a GPU, and are unknown elsewhere."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.instrument import pages
from tests.support import torch_python
from watchkeeper.instrument.exports import Exports
from watchkeeper.instrument.placement import Placement
from watchkeeper.instrument.training import TrainingMonitor

# Statistics of one H200 after a few steps (torch 2.11, 2026-11): the keys are those of torch.cuda.memory_stats.
STATS = {
    "allocated_bytes.all.current": 700,
    "reserved_bytes.all.current": 1000,
    "inactive_split_bytes.all.current": 50,
    "num_alloc_retries": 2,
    "num_ooms": 1,
}


class Cuda:
    """torch.cuda of a process that sees two GPUs and uses the second one."""

    def __init__(self, backend: str) -> None:
        self.backend = backend

    def is_initialized(self) -> bool:
        return True

    def device_count(self) -> int:
        return 2

    def memory_stats(self, device: int) -> dict[str, int]:
        return STATS if device else dict.fromkeys(STATS, 0)

    def get_allocator_backend(self) -> str:
        return self.backend


def exported() -> dict[str, float]:
    monitor = TrainingMonitor("llama", Exports(), place=Placement(1, 2))
    series = {str(labels["__name__"]): value for labels, value in pages.series(monitor).items()}
    return {name: value for name, value in series.items() if "alloc" in name or "ooms" in name}


def use_gpu(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=Cuda(backend)))


def test_the_memory_of_a_rank_is_that_of_its_gpu_and_not_of_the_first_one(monkeypatch: pytest.MonkeyPatch) -> None:
    use_gpu(monkeypatch, "native")
    assert exported() == {
        "training_allocator_allocated_bytes": 700,
        "training_allocator_reserved_bytes": 1000,
        "training_allocator_fragmented_bytes": 50,
        "training_allocator_retries_total": 2,
        "training_cuda_ooms_total": 1,
    }


def test_what_an_allocator_does_not_count_is_absent_and_not_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    use_gpu(monkeypatch, "cudaMallocAsync")
    assert set(exported()) == {
        "training_allocator_allocated_bytes",
        "training_allocator_reserved_bytes",
    }


def test_a_program_without_pytorch_has_no_allocator() -> None:
    assert "torch" not in sys.modules
    assert not exported()


@pytest.mark.servers
@pytest.mark.slow
def test_pytorch_has_the_keys_and_without_a_gpu_nothing_is_exported(tmp_path: Path) -> None:
    program = f"""
import inspect, torch
from watchkeeper.instrument import allocator
documented = inspect.getdoc(torch.cuda.memory_stats)
for key in {[key.split(".")[0] for key in STATS]}:
    assert key in documented, key
torch.cuda.get_allocator_backend
assert allocator.list_rows() == []
print("done")
"""
    assert torch_python.run(program, folder=tmp_path).strip() == "done"
