"""Jobs as people see them: what one holds and uses, how it gets on, what held it up, and its ranks side by side.

`workloads` makes these values, `web/jobs_api` serves them as they stand here, and `watchkeeper jobs` and the console's
Jobs page show them. Times are UTC, shares are 0 to 1, and None is unknown: an unknown share is not an idle GPU.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from statistics import median

# As in packs/rules/training.yaml and jobs.yaml.
SPINS_PERCENT, SPINS_SM = 95.0, 0.3
# Shares of the power limit, and of the most that the job itself has drawn within a day, for those without SM activity.
SPINS_POWER, SPINS_OWN_POWER = 0.35, 0.4
IDLE_PERCENT, IDLE_SM = 5.0, 0.05
# What no link carries while a collective waits; packs/rules/jobs.yaml.
MOVES_BYTES = 1e8
# Nodes of one job do alike. One is odd that has three times what the others have, or a third of it, and more than a
# little: a program that spins keeps a core or two of a hundred, and a link that nobody uses carries some kilobytes.
ODD_FACTOR, ODD_CPU_SHARE, ODD_LINK_BYTES, LEAST_NODES = 3.0, 0.05, 1e7, 3
# A node whose CPUs are taken lets its ranks wait for their turn, where the others' have a good part of theirs free.
TAKEN_CPU_SHARE, ROOMY_CPU_SHARE = 0.9, 0.7
WHO_TAKES_CPUS = "ps -eo pcpu,pid,user,args --sort=-pcpu | head"
# What controllers append to the name of a job to name its pods; packs/rules/jobs.yaml cuts by the same two patterns.
# Kubernetes' random suffixes have no vowels and none of 0, 1 and 3 (k8s.io/apimachinery/pkg/util/rand).
SUFFIX = "[bcdf-hj-np-tv-xz2-9]"
HASHED = f"(.+?)(?:-{SUFFIX}{{8,10}})?-{SUFFIX}{{5}}"
NUMBERED = (
    "(.+?)(?:-(?:worker|workers|master|launcher|chief|leader|node|rank|replica|ps)(?:-[0-9]{1,5})?)?"
    f"-[0-9]{{1,5}}(?:-{SUFFIX}{{5}})?"
)


class JobKind(StrEnum):
    """Who started it. `PLAIN` is a program that no scheduler names, or one that only its own series name."""

    SLURM = "slurm"
    KUBERNETES = "kubernetes"
    PLAIN = "plain"


class JobState(StrEnum):
    """How a job gets on, the gravest first; `UNKNOWN` where nobody says and its GPUs are not seen."""

    HUNG = "hung"
    STALLED = "stalled"
    DIVERGED = "diverged"
    SLOW = "slow"
    IDLE = "idle"
    PAUSED = "paused"
    PENDING = "pending"
    RUNNING = "running"
    UNKNOWN = "unknown"


class BoundBy(StrEnum):
    """What a job would need more of to be faster; `UNKNOWN` where too little is measured."""

    COMPUTE = "compute"
    MEMORY_BANDWIDTH = "memory_bandwidth"
    INPUT = "input"
    COMMUNICATION = "communication"
    STRAGGLER = "straggler"
    POWER_OR_HEAT = "power_or_heat"
    NOTHING = "nothing"
    UNKNOWN = "unknown"


class LostReason(StrEnum):
    """Why wall time brought no step; `PAUSE` is a checkpoint, validation or another stop that is usual for the job."""

    STALL = "stall"
    RESTART = "restart"
    FAILURE = "failure"
    QUEUE = "queue"
    PAUSE = "pause"
    UNKNOWN = "unknown"


class RankState(StrEnum):
    """What a rank does beside the others: `WAITS` spins in a collective, `MISSING` says nothing any more."""

    WORKS = "works"
    WAITS = "waits"
    SLOW = "slow"
    IDLE = "idle"
    MISSING = "missing"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Straggler:
    """The rank that the others wait for. `score` is its share above the others: 0.1 is a tenth longer; None: for ever.

    `rank` None: only the GPU is known, because the job says nothing about its ranks. `is_short_of_cpu`: its node's CPUs
    are taken, those of the other nodes are not. `is_gone`: neither it nor its GPU says anything any more.
    """

    rank: int | None
    node: str
    gpu: str
    uuid: str
    score: float | None
    why: str
    is_short_of_cpu: bool = False
    is_gone: bool = False


@dataclass(frozen=True, slots=True)
class Money:
    """What the held GPUs cost so far; `amount` None: a GPU of it has no price."""

    amount: float | None
    currency: str


@dataclass(frozen=True, slots=True)
class JobLine:
    """One job in a list.

    `id` is what `GET /api/jobs/{id}` takes: a Slurm id, `namespace/name`, or the name. `used` is the share of the held
    GPU time of the last hour in which SMs were active, `memory_used` the share of its GPUs' memory that is taken.
    `gpu_hours` and `cost` are so far, from `counted_since` on: its start, or when the hub first saw it.
    """

    id: str
    kind: JobKind
    cluster: str
    name: str
    namespace: str
    user: str
    team: str
    state: JobState
    nodes: int
    gpus: int
    started_at: datetime | None
    gpu_hours: float | None
    used: float | None
    memory_used: float | None
    bound_by: BoundBy
    goodput: float | None
    stalled_since: datetime | None
    straggler: Straggler | None
    cost: Money | None
    incidents: tuple[str, ...] = ()
    counted_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class ResourceUse:
    """Used against held: `unit` is GPUs, bytes or cores; `share` None: not measured."""

    what: str
    held: float | None
    used: float | None
    unit: str
    share: float | None


@dataclass(frozen=True, slots=True)
class Fix:
    """One change that would help, the first the most: what to do, what it would give, and the setting to type."""

    do: str
    why: str
    command: str = ""


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Used against held, what the job is bound by and why, and what to change; `unseen` is what was not measured."""

    window_seconds: float
    uses: tuple[ResourceUse, ...]
    bound_by: BoundBy
    why: str
    fixes: tuple[Fix, ...]
    unseen: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LostTime:
    reason: LostReason
    seconds: float


@dataclass(frozen=True, slots=True)
class Goodput:
    """Productive step time over wall time; `share`, `productive_seconds` None where the job tells of no steps.

    `lost` sums to wall minus productive; `step_seconds` is the usual length of a step, learned from the job itself.
    """

    wall_seconds: float
    productive_seconds: float | None
    share: float | None
    steps: float | None
    step_seconds: float | None
    longest_pause_seconds: float | None
    lost: tuple[LostTime, ...]


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank beside the others; `score` as a straggler's. `rank` None where only its GPU is known."""

    rank: int | None
    node: str
    gpu: str
    uuid: str
    sm_active: float | None
    utilisation_percent: float | None
    power_watts: float | None
    step_seconds: float | None
    score: float | None
    state: RankState
    # What it sends and receives over NVLink and PCIe, the larger of them.
    link_bytes_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class HardwareEvent:
    """Something that happened to a node of the job in its time; `rank` where the GPU is one of its ranks'."""

    at: datetime
    place: str
    kind: str
    code: str
    cause: str | None
    text: str
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class LossEvent:
    """A loss or gradient that went wrong, and what its ranks' GPUs did around then; none is an answer too."""

    at: datetime
    what: str
    value: float | None
    hardware: tuple[HardwareEvent, ...]


@dataclass(frozen=True, slots=True)
class JobReport:
    """All about one job: `GET /api/jobs/{id}`. `ranks` has at most 4,096 rows; `left_out` counts the others."""

    job: JobLine
    why: str
    efficiency: Efficiency
    goodput: Goodput
    ranks: tuple[Rank, ...]
    left_out: int
    hardware: tuple[HardwareEvent, ...]
    losses: tuple[LossEvent, ...]
    run_url: str | None
    notes: tuple[str, ...] = ()


def job_of_holder(holder: str) -> str:
    """The job of a workload as `fleet.holder` calls it: `ml/llm-worker-0` is one of `ml/llm`, a Slurm id is itself."""
    namespace, is_pod, name = holder.rpartition("/")
    return f"{namespace}/{job_name(name)}" if is_pod else name


def job_name(pod: str) -> str:
    """The job that a pod belongs to, by its name."""
    for pattern in (NUMBERED, HASHED):
        match = re.fullmatch(pattern, pod)
        if match is not None:
            return match[1]
    return pod


@dataclass(frozen=True, slots=True)
class GpuActivity:
    """What a GPU shows from outside; None is not measured. `usual_watts` is the most that the job drew within a day."""

    utilisation_percent: float | None = None
    sm_active: float | None = None
    watts: float | None = None
    limit_watts: float | None = None
    usual_watts: float | None = None

    @property
    def state(self) -> RankState:
        """Waiting in a collective is one small kernel that never ends: full utilisation, and little of all else."""
        percent, is_quiet = self.utilisation_percent, self._is_quiet
        if percent is None:
            return RankState.UNKNOWN
        if percent < IDLE_PERCENT and (self.sm_active is None or self.sm_active < IDLE_SM):
            return RankState.IDLE
        if is_quiet is None:
            return RankState.UNKNOWN
        return RankState.WAITS if percent >= SPINS_PERCENT and is_quiet else RankState.WORKS

    @property
    def _is_quiet(self) -> bool | None:
        """Whether it does next to nothing, by its SMs, else by its watts; None where neither can be judged."""
        if self.sm_active is not None:
            return self.sm_active < SPINS_SM
        if self.watts is not None and self.limit_watts:
            return self.watts < SPINS_POWER * self.limit_watts
        if self.watts is not None and self.usual_watts:
            return self.watts < SPINS_OWN_POWER * self.usual_watts
        return None


def find_outlier_node(by_node: Mapping[str, float], *, least: float) -> str | None:
    """The one node whose number is far from what the others have, by at least so much; None for none or several."""
    if len(by_node) < LEAST_NODES:
        return None
    middle = median(by_node.values())
    odd = [
        node
        for node, value in by_node.items()
        if abs(value - middle) >= least and (value > ODD_FACTOR * middle or value < middle / ODD_FACTOR)
    ]
    return odd[0] if len(odd) == 1 else None


def is_short_of_cpu(node: str, by_node: Mapping[str, float]) -> bool:
    """Whether the CPUs of a node are taken and those of the job's other nodes have room; False where it is unknown."""
    others = [share for name, share in by_node.items() if name != node]
    return bool(others) and by_node.get(node, 0.0) >= TAKEN_CPU_SHARE and median(others) <= ROOMY_CPU_SHARE


def straggler_name(one: Straggler) -> str:
    """`rank 3 on n1`, `GPU 5 on n1`, or only `n1` where its node alone is known to be odd."""
    if one.rank is not None:
        return f"rank {one.rank} on {one.node or 'an unknown node'}"
    return f"GPU {one.gpu} on {one.node or 'an unknown node'}" if one.gpu else one.node


def rank_sort_key(pod: str, node: str, gpu: str) -> tuple[int, str, str, int]:
    """Sorts GPUs as ranks count through them: by the worker's number, its node, and the index of the GPU.

    A guess, for jobs that do not say where their ranks run: torchrun, Slurm's block distribution and Kubeflow do so.
    """
    return _number(pod.rpartition("-")[2]), pod, node, _number(gpu)


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 9 else 0
