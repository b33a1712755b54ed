"""Finds where a rank runs, from the environment variables of launchers: rank, node, GPU, restarts.

torchrun, Slurm, Open MPI and Kubernetes each have their own names. The GPU's UUID comes from CUDA_VISIBLE_DEVICES, or
from NVML in a separate process, because a driver that hangs must not block the program.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from watchkeeper.instrument import gpu_reader
from watchkeeper.instrument.log_context import parse_visible_devices

RANK = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
WORLD_SIZE = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
LOCAL_RANK = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
# Manifests set NODE_NAME to `spec.nodeName`; in a pod, the host name is the pod's.
NODE = ("NODE_NAME", "SLURMD_NODENAME")
# torchrun may restart a rank inside a job that Slurm has restarted: both count.
RESTARTS = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
# Slurm's id, because exporters add it to the series of the job's GPUs (`hpc_job`).
JOB_NAME = ("WATCHKEEPER_JOB_NAME", "SLURM_JOB_ID")
# A driver without persistence mode needs seconds to initialise a GPU.
DRIVER_TIMEOUT_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Placement:
    """The place of a rank; `gpu` and `uuid` are empty if unknown, `visible_gpu` is its device in CUDA's variable."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    node: str = ""
    gpu: str = ""
    uuid: str = ""
    restarts: int = 0
    visible_gpu: str | None = None

    def __str__(self) -> str:
        parts = [f"rank {self.rank}"]
        parts += [f"on {self.node}"] if self.node else ["on an unknown node"]
        parts += [f"GPU {self.gpu}" if self.gpu else "", self.uuid]
        return " ".join(part for part in parts if part)

    def as_json(self) -> str:
        return json.dumps(asdict(self))


def from_json(text: str | bytes) -> Placement:
    return Placement(**json.loads(text))


def from_environment(environment: Mapping[str, str] | None = None) -> Placement:
    """The placement in environment variables; `with_uuid` adds what the driver reports."""
    variables = os.environ if environment is None else environment
    local_rank = _read_number(variables, LOCAL_RANK, 0)
    device = _select_device(variables.get("CUDA_VISIBLE_DEVICES"), local_rank)
    return Placement(
        rank=_read_number(variables, RANK, 0),
        world_size=max(1, _read_number(variables, WORLD_SIZE, 1)),
        local_rank=local_rank,
        node=next((variables[name] for name in NODE if variables.get(name)), "") or socket.gethostname(),
        # CUDA accepts the start of a UUID too; only a complete UUID is reported.
        uuid=device if device is not None and len(device) == len("GPU-") + 36 else "",
        # Without the variable, the index is a guess until the driver confirms it.
        gpu=device if device is not None and device.isdigit() and "CUDA_VISIBLE_DEVICES" in variables else "",
        restarts=sum(_read_number(variables, (name,), 0) for name in RESTARTS),
        visible_gpu=device,
    )


def job_name(environment: Mapping[str, str] | None = None) -> str:
    variables = os.environ if environment is None else environment
    return next((variables[name] for name in JOB_NAME if variables.get(name)), "training")


def with_uuid(place: Placement, environment: Mapping[str, str] | None = None) -> Placement:
    """Add the driver's index and UUID of the GPU, if the driver answers; not for the program's thread: it may wait."""
    device = place.visible_gpu
    if device is None:
        return place
    # If the process cannot start, times out or prints no JSON, the GPU stays unknown.
    with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError):
        output = subprocess.run(
            [sys.executable, gpu_reader.__file__, "list"],
            capture_output=True,
            timeout=DRIVER_TIMEOUT_SECONDS,
            check=True,
            env=None if environment is None else dict(environment),
        ).stdout
        for index, uuid in json.loads(output):
            if device == str(index) or (device.startswith("GPU-") and str(uuid).startswith(device)):
                return replace(place, gpu=str(index), uuid=str(uuid))
    return place


def _select_device(text: str | None, local_rank: int) -> str | None:
    """This rank's device: launchers show a rank all GPUs of the node or only its own. None if it is unknown."""
    devices = parse_visible_devices(text)
    if devices is None:
        # All GPUs are visible, or a MIG instance is, whose UUID does not show its GPU.
        return str(local_rank) if text is None else None
    if len(devices) == 1:
        return devices[0]
    return devices[local_rank] if local_rank < len(devices) else None


def _read_number(variables: Mapping[str, str], names: tuple[str, ...], default: int) -> int:
    for name in names:
        text = variables.get(name, "")
        if text.isascii() and text.isdigit() and len(text) < 9:
            return int(text)
    return default
