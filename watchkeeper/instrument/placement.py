"""Where a rank runs, from what launchers put into its environment: rank, node, GPU, restarts.

torchrun, Slurm, Open MPI and Kubernetes each have their own names. The GPU's UUID comes out of CUDA_VISIBLE_DEVICES,
or from NVML in a process of its own, because a driver that hangs must not hold up the program.
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
from watchkeeper.instrument.log_context import visible

RANK = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
WORLD_SIZE = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
LOCAL_RANK = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
# NODE_NAME is what manifests call `spec.nodeName`; in a pod the host name is the pod's.
NODE = ("NODE_NAME", "SLURMD_NODENAME")
# A rank may be started again by torchrun inside a job that Slurm started again: both count.
RESTARTS = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
# The id, because exporters write it onto the series of the job's GPUs (`hpc_job`).
JOB_NAME = ("WATCHKEEPER_JOB_NAME", "SLURM_JOB_ID")
# A driver without persistence mode takes seconds to wake up a GPU.
DRIVER_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Placement:
    """One rank; `gpu` and `uuid` are empty where nobody knows them, `visible_gpu` is its word for CUDA."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    node: str = ""
    gpu: str = ""
    uuid: str = ""
    restarts: int = 0
    visible_gpu: str | None = None

    def __str__(self) -> str:
        where = [f"rank {self.rank}"]
        where += [f"on {self.node}"] if self.node else ["on an unknown node"]
        where += [f"GPU {self.gpu}" if self.gpu else "", self.uuid]
        return " ".join(part for part in where if part)

    def as_json(self) -> str:
        return json.dumps(asdict(self))


def from_json(text: str | bytes) -> Placement:
    return Placement(**json.loads(text))


def from_environment(environment: Mapping[str, str] | None = None) -> Placement:
    """Without asking the driver: `with_uuid` does that."""
    given = os.environ if environment is None else environment
    local_rank = _number(given, LOCAL_RANK, 0)
    word = _visible_gpu(given.get("CUDA_VISIBLE_DEVICES"), local_rank)
    return Placement(
        rank=_number(given, RANK, 0),
        world_size=max(1, _number(given, WORLD_SIZE, 1)),
        local_rank=local_rank,
        node=next((given[name] for name in NODE if given.get(name)), "") or socket.gethostname(),
        # CUDA takes the beginning of a UUID as well: only a whole one is told.
        uuid=word if word is not None and len(word) == len("GPU-") + 36 else "",
        # Without the variable it is only a guess until the driver has said that there is such a GPU.
        gpu=word if word is not None and word.isdigit() and "CUDA_VISIBLE_DEVICES" in given else "",
        restarts=sum(_number(given, (name,), 0) for name in RESTARTS),
        visible_gpu=word,
    )


def job_name(environment: Mapping[str, str] | None = None) -> str:
    given = os.environ if environment is None else environment
    return next((given[name] for name in JOB_NAME if given.get(name)), "training")


def with_uuid(place: Placement, environment: Mapping[str, str] | None = None) -> Placement:
    """The same place with index and UUID of its GPU as the driver gives them; unchanged where it does not answer.

    It may take `DRIVER_SECONDS`, so it is not for the program's own thread.
    """
    wanted = place.visible_gpu
    if wanted is None:
        return place
    command = [sys.executable, gpu_reader.__file__, "list"]
    # A missing interpreter, a driver that hangs, an answer that is none: then it stays unknown.
    with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError):
        said = subprocess.run(
            command,
            capture_output=True,
            timeout=DRIVER_SECONDS,
            check=True,
            env=None if environment is None else dict(environment),
        ).stdout
        for index, uuid in json.loads(said):
            if wanted == str(index) or (wanted.startswith("GPU-") and str(uuid).startswith(wanted)):
                return replace(place, gpu=str(index), uuid=str(uuid))
    return place


def _visible_gpu(text: str | None, local_rank: int) -> str | None:
    """This rank's word; launchers show a rank all GPUs of the node or only its own. None where there is none."""
    words = visible(text)
    if words is None:
        # Every GPU is visible, or a MIG slice is, which does not say on which GPU it lies.
        return str(local_rank) if text is None else None
    if len(words) == 1:
        return words[0]
    return words[local_rank] if local_rank < len(words) else None


def _number(given: Mapping[str, str], names: tuple[str, ...], otherwise: int) -> int:
    for name in names:
        text = given.get(name, "")
        if text.isascii() and text.isdigit() and len(text) < 9:
            return int(text)
    return otherwise
