"""The placement of a rank from the variables of each launcher."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.fake_nvml import driver
from watchkeeper.instrument import placement
from watchkeeper.instrument.placement import Placement

UUID = "GPU-8a11c1f0-0000-1111-2222-333344445555"


@pytest.mark.parametrize(
    ("environment", "rank", "world_size", "local_rank"),
    [
        ({"RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1"}, 9, 16, 1),
        ({"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1"}, 5, 8, 1),
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "3"}, 3, 4, 3),
        ({"RANK": "1", "WORLD_SIZE": "2", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, 1, 2, 0),
        ({"RANK": "none", "WORLD_SIZE": "-1"}, 0, 1, 0),
        ({}, 0, 1, 0),
    ],
)
def test_the_variables_of_each_launcher_are_read(
    environment: dict[str, str], rank: int, world_size: int, local_rank: int
) -> None:
    place = placement.from_environment(environment)
    assert (place.rank, place.world_size, place.local_rank) == (rank, world_size, local_rank)


def test_restarts_of_torchrun_and_of_slurm_are_added() -> None:
    assert placement.from_environment({"TORCHELASTIC_RESTART_COUNT": "2", "SLURM_RESTART_COUNT": "1"}).restarts == 3


def test_the_node_name_of_the_scheduler_takes_precedence_over_the_pods() -> None:
    assert placement.from_environment({"NODE_NAME": "gpu-7", "SLURMD_NODENAME": "x"}).node == "gpu-7"
    assert placement.from_environment({}).node


@pytest.mark.parametrize(
    ("visible", "local_rank", "gpu", "uuid"),
    [
        ("4,5,6,7", "1", "5", ""),
        # A launcher that shows each rank its own GPU only.
        ("6", "3", "6", ""),
        (UUID, "0", "", UUID),
        ("GPU-8a11", "0", "", ""),
        ("0,1", "5", "", ""),
        ("", "0", "", ""),
        ("MIG-8a1b", "0", "", ""),
        (None, "2", "", ""),
    ],
)
def test_the_gpu_is_the_ranks_device_in_cuda_visible_devices(
    visible: str | None, local_rank: str, gpu: str, uuid: str
) -> None:
    given = {"LOCAL_RANK": local_rank} | ({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    place = placement.from_environment(given)
    assert (place.gpu, place.uuid) == (gpu, uuid)


def test_the_uuid_comes_from_the_driver(fake: driver.FakeNvml) -> None:
    place = placement.with_uuid(placement.from_environment({"LOCAL_RANK": "1"}), fake.environment)
    assert place.gpu == "1"
    assert place.uuid.startswith("GPU-")
    named = placement.from_environment({"CUDA_VISIBLE_DEVICES": place.uuid})
    assert placement.with_uuid(named, fake.environment).gpu == "1"
    beginning = placement.from_environment({"CUDA_VISIBLE_DEVICES": "GPU-0000"})
    assert placement.with_uuid(beginning, fake.environment).gpu == "0"


def test_without_a_driver_the_gpu_stays_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = placement.from_environment({})
    assert placement.with_uuid(place, {"LD_LIBRARY_PATH": str(tmp_path)}) == place
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert placement.with_uuid(place) == place


@pytest.mark.slow
def test_the_call_of_a_hung_driver_times_out(fake: driver.FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "DRIVER_TIMEOUT_SECONDS", 1.0)
    fake.tell(driver.EVERY, Init=driver.HANG, UUID=driver.HANG, HandleByIndex=driver.HANG, Count=driver.HANG)
    place = placement.from_environment({})
    assert placement.with_uuid(place, fake.environment).uuid == ""


def test_a_job_is_named_by_hand_or_by_slurm() -> None:
    assert placement.job_name({"SLURM_JOB_ID": "4711"}) == "4711"
    assert placement.job_name({"SLURM_JOB_ID": "4711", "WATCHKEEPER_JOB_NAME": "llama"}) == "llama"
    assert placement.job_name({}) == "training"


def test_a_placement_is_written_to_and_read_from_the_store() -> None:
    place = Placement(3, 8, node="gpu-7", gpu="3", uuid=UUID)
    assert placement.from_json(place.as_json()) == place
    assert str(place) == f"rank 3 on gpu-7 GPU 3 {UUID}"
    assert str(Placement(3)) == "rank 3 on an unknown node"
