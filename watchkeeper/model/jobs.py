"""Jobs as users see them: allocation, use, progress, what each is blocked on, and its ranks.

`workloads` makes these values, `web/jobs_api` serves them unchanged, and `watchkeeper jobs` and the console's Jobs page
show them. Times are UTC, shares are 0 to 1, and None is unknown: an unknown share is not an idle GPU.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from statistics import median

from watchkeeper.kit import wire

# A GPU that waits in a collective has a higher utilisation and a lower SM activity, as in packs/rules/training.yaml.
WAIT_PERCENT, WAIT_SM = 95.0, 0.3
# Without SM activity: it draws less than these shares of the power limit, or of the job's maximum of one day.
WAIT_POWER, WAIT_OWN_POWER = 0.35, 0.4
IDLE_PERCENT, IDLE_SM = 5.0, 0.05
# Traffic that no link reaches while a collective waits; packs/rules/jobs.yaml.
ACTIVE_LINK_BYTES = 1e8
# Nodes of one job behave alike. An outlier has three times the median or a third of it, and more than a small
# amount: a program that spins keeps one or two of a hundred cores busy, and an unused link carries some kilobytes.
OUTLIER_FACTOR, OUTLIER_CPU_SHARE, OUTLIER_LINK_BYTES, MIN_NODES = 3.0, 0.05, 1e7, 3
# On a node with busy CPUs the ranks wait for CPU time, while CPUs of the other nodes are partly free.
BUSY_CPU_SHARE, FREE_CPU_SHARE = 0.9, 0.7
TOP_CPU_COMMAND = "ps -eo pcpu,pid,user,args --sort=-pcpu | head"
# Suffixes that controllers append to a job's name to name its pods; packs/rules/jobs.yaml uses the same two patterns.
# Kubernetes' random suffixes have no vowels and none of 0, 1 and 3 (k8s.io/apimachinery/pkg/util/rand).
SUFFIX = "[bcdf-hj-np-tv-xz2-9]"
HASHED = f"(.+?)(?:-{SUFFIX}{{8,10}})?-{SUFFIX}{{5}}"
NUMBERED = (
    "(.+?)(?:-(?:worker|workers|master|launcher|chief|leader|node|rank|replica|ps)(?:-[0-9]{1,5})?)?"
    f"-[0-9]{{1,5}}(?:-{SUFFIX}{{5}})?"
)


class JobKind(StrEnum):
    """The scheduler that started it. `PLAIN`: no scheduler, or only the job's own series name it."""

    SLURM = "slurm"
    KUBERNETES = "kubernetes"
    PLAIN = "plain"


class JobState(StrEnum):
    """A job's state, the most severe first; `UNKNOWN` if no source reports it and its GPUs have no samples."""

    HUNG = "hung"
    STALLED = "stalled"
    DIVERGED = "diverged"
    SLOW = "slow"
    IDLE = "idle"
    UNKNOWN = "unknown"
    PAUSED = "paused"
    PENDING = "pending"
    RUNNING = "running"


class BoundBy(StrEnum):
    """The resource that limits a job's speed; `UNKNOWN` where too little is measured."""

    COMPUTE = "compute"
    MEMORY_BANDWIDTH = "memory_bandwidth"
    INPUT = "input"
    COMMUNICATION = "communication"
    STRAGGLER = "straggler"
    POWER_OR_HEAT = "power_or_heat"
    NOTHING = "nothing"
    UNKNOWN = "unknown"


class LostReason(StrEnum):
    """Why time made no progress: `PAUSE` is a checkpoint or another regular stop, `INPUT` a wait for data."""

    STALL = "stall"
    RESTART = "restart"
    FAILURE = "failure"
    QUEUE = "queue"
    PAUSE = "pause"
    INPUT = "input"
    UNKNOWN = "unknown"


class VerdictStatus(StrEnum):
    """Whether something is wrong with a job; `UNKNOWN`: what is measured does not show it."""

    WRONG = "wrong"
    FINE = "fine"
    UNKNOWN = "unknown"


class RankState(StrEnum):
    """A rank compared with the others: `WAITS` spins in a collective, `MISSING` no longer reports."""

    WORKS = "works"
    WAITS = "waits"
    SLOW = "slow"
    IDLE = "idle"
    MISSING = "missing"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Straggler:
    """The rank that the others wait for. `score` 0.1: it takes 10 % longer than the others; None: it never finishes.

    `rank` None: only the GPU is known, because the job does not report its ranks. `is_short_of_cpu`: the CPUs of its
    node are busy, those of the other nodes are not. `is_gone`: neither the rank nor its GPU reports any more.
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
    """The cost of the allocated GPUs so far; `amount` None: one of them has no price."""

    amount: float | None
    currency: str


@dataclass(frozen=True, slots=True)
class JobLine:
    """One job in a list.

    `id` is what `GET /api/jobs/{id}` takes: a Slurm id, `namespace/name`, or the name. `used` is the share of the
    allocated GPU time of the last hour in which SMs were active, `memory_used` the used share of its GPUs' memory.
    `gpu_hours` and `cost` count from `counted_since`: the job's start, or when the hub first saw the job.
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
    # When its problem began: `stalled_since`, or when the condition of its alert, firing or pending, became true.
    problem_since: datetime | None = None
    # Of its `gpus`, those without a current sample.
    gpus_not_reporting: int = 0


@dataclass(frozen=True, slots=True)
class ResourceUse:
    """Used and allocated amount of one resource: `unit` is GPUs, bytes or cores; `share` None: not measured."""

    what: str
    held: float | None
    used: float | None
    unit: str
    share: float | None


@dataclass(frozen=True, slots=True)
class Fix:
    """One recommended change, most effective first: what to do, the expected gain, and the setting."""

    do: str
    why: str
    command: str = ""


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Resource use, the bottleneck, and recommended changes; `unmeasured` lists what was not measured."""

    window_seconds: float
    uses: tuple[ResourceUse, ...]
    bound_by: BoundBy
    why: str
    fixes: tuple[Fix, ...]
    unmeasured: tuple[str, ...] = wire.json_key("unseen", default=())


@dataclass(frozen=True, slots=True)
class LostTime:
    reason: LostReason
    seconds: float


@dataclass(frozen=True, slots=True)
class Goodput:
    """Productive step time over wall time; `share` and `productive_seconds` None: the job reports no steps.

    `lost` sums to wall minus productive; `step_seconds` is the usual length of a step, learned from the job, and
    `longest_pause_seconds` the longest time without a step, stalls and failures included.
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
    """One rank; `score` as in `Straggler`. `rank` None: only its GPU is known."""

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
    # NVLink or PCIe traffic, sent and received, whichever is larger.
    link_bytes_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class HardwareEvent:
    """An event on a node of the job while the job ran; `rank` if the GPU belongs to a rank."""

    at: datetime
    place: str
    kind: str
    code: str
    cause: str | None
    text: str
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class LossEvent:
    """A bad loss or gradient, and hardware events of the ranks' GPUs near that time, if any."""

    at: datetime
    what: str
    value: float | None
    hardware: tuple[HardwareEvent, ...]


@dataclass(frozen=True, slots=True)
class JobVerdict:
    """The first answer about a job: what is wrong, since when, because of what, and the id of its incident.

    The page of the job, `explain job` and `jobs ID` show the same. `cause` is an id of packs/causes.csv.
    """

    status: VerdictStatus
    text: str
    since: datetime | None = None
    because: str = ""
    cause: str | None = None
    incident: str | None = None

    @property
    def sentence(self) -> str:
        since = f" since {self.since:%H:%M:%S} UTC" if self.since else ""
        because = f": {self.because}" if self.because else ""
        return f"{self.text}{since}{because}" + (f" ({self.incident})" if self.incident else "")


@dataclass(frozen=True, slots=True)
class JobReport:
    """All about one job: `GET /api/jobs/{id}`. `ranks` has at most 4,096 rows; `omitted_ranks` counts the others."""

    job: JobLine
    why: str
    efficiency: Efficiency
    goodput: Goodput
    ranks: tuple[Rank, ...]
    omitted_ranks: int = field(metadata={"json_key": "left_out"})
    hardware: tuple[HardwareEvent, ...]
    losses: tuple[LossEvent, ...]
    run_url: str | None
    notes: tuple[str, ...] = ()
    last_step_at: datetime | None = None
    # The rank that the others seem to wait for now, also before an alert says so.
    straggler: Straggler | None = None
    # None until the web API has compared the report with the diagnosis and the open incidents.
    verdict: JobVerdict | None = None


def job_of_holder(holder: str) -> str:
    """The job of a holder: `ml/llm-worker-0` belongs to `ml/llm`, a Slurm id is the job itself."""
    namespace, is_pod, name = holder.rpartition("/")
    return f"{namespace}/{job_name(name)}" if is_pod else name


def job_name(pod: str) -> str:
    match = re.fullmatch(NUMBERED, pod) or re.fullmatch(HASHED, pod)
    return pod if match is None else match[1]


@dataclass(frozen=True, slots=True)
class GpuActivity:
    """Measured activity of a GPU; None: not measured. `usual_watts` is the job's maximum power of the last day."""

    utilisation_percent: float | None = None
    sm_active: float | None = None
    watts: float | None = None
    limit_watts: float | None = None
    usual_watts: float | None = None

    @property
    def state(self) -> RankState:
        """A GPU that waits in a collective runs one small kernel: full utilisation, low SM activity and power."""
        percent, is_quiet = self.utilisation_percent, self._has_low_activity
        if percent is None:
            return RankState.UNKNOWN
        if percent < IDLE_PERCENT and (self.sm_active is None or self.sm_active < IDLE_SM):
            return RankState.IDLE
        if is_quiet is None:
            return RankState.UNKNOWN
        return RankState.WAITS if percent >= WAIT_PERCENT and is_quiet else RankState.WORKS

    @property
    def _has_low_activity(self) -> bool | None:
        """Whether activity is low, by SM activity, else by power; None where neither is measured."""
        if self.sm_active is not None:
            return self.sm_active < WAIT_SM
        if self.watts is not None and self.limit_watts:
            return self.watts < WAIT_POWER * self.limit_watts
        if self.watts is not None and self.usual_watts:
            return self.watts < WAIT_OWN_POWER * self.usual_watts
        return None


def find_outlier_node(by_node: Mapping[str, float], *, min_difference: float) -> str | None:
    """The only node whose value differs from the median by a factor and at least `least`; None for none or several."""
    if len(by_node) < MIN_NODES:
        return None
    typical = median(by_node.values())
    different = {node: value for node, value in by_node.items() if abs(value - typical) >= min_difference}
    low, high = typical / OUTLIER_FACTOR, OUTLIER_FACTOR * typical
    outliers = [node for node, value in different.items() if value > high or value < low]
    return outliers[0] if len(outliers) == 1 else None


def is_short_of_cpu(node: str, by_node: Mapping[str, float]) -> bool:
    """Whether a node's CPUs are busy while those of the job's other nodes are partly free; False if unknown."""
    others = [share for name, share in by_node.items() if name != node]
    return bool(others) and by_node.get(node, 0.0) >= BUSY_CPU_SHARE and median(others) <= FREE_CPU_SHARE


def straggler_name(straggler: Straggler) -> str:
    """`rank 3 on n1`, `GPU 5 on n1`, or `n1` if only the node is known."""
    if straggler.rank is not None:
        return f"rank {straggler.rank} on {straggler.node or 'an unknown node'}"
    return f"GPU {straggler.gpu} on {straggler.node or 'an unknown node'}" if straggler.gpu else straggler.node


def rank_sort_key(pod: str, node: str, gpu: str) -> tuple[int, str, str, int]:
    """Sort GPUs in the likely order of ranks: by worker number, node, and GPU index.

    A guess, for jobs that do not report where their ranks run; true for torchrun, Slurm's block
    distribution and Kubeflow.
    """
    return _number(pod.rpartition("-")[2]), pod, node, _number(gpu)


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 9 else 0
