"""A Slurm cluster as the hub knows it: nodes, jobs, limits and switches, asked for on an interval.

One of the `Scheduler`s of `collect/clusters`, which runs it, merges `found` into discovery and appends `series`. A
slurmctld that does not answer, or answers rubbish, leaves the last good view in force with a `problem` that says since
when; a part that a version or a site does not have (topology, accounting) is simply not there.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from watchkeeper.catalogue import mig
from watchkeeper.clusters.slurm import slurm_reader
from watchkeeper.config import settings as config
from watchkeeper.errors import CollectError
from watchkeeper.kit import clock, own_metrics
from watchkeeper.model.cluster import ClusterView, Quota, ScheduledNode
from watchkeeper.model.labels import METRIC_NAME, Labels
from watchkeeper.model.workloads import ScheduledWorkload, Workload, WorkloadKind, WorkloadState
from watchkeeper.readers.clusters import slurm_records as records
from watchkeeper.readers.clusters import tres
from watchkeeper.scrape import discovery, status_series
from watchkeeper.scrape.fleet import ScrapedInventory

T = TypeVar("T")

SOURCE = "slurm"
NODE_STATE = "watchkeeper_scheduler_node_state"
GPU_RESOURCE = "gres/gpu"
LEAF = "leaf"
# Switches and limits change when somebody changes them; asking each time would only load slurmctld.
RARE_SECONDS = 300.0
# A hub that starts waits this long for the first answer, so that its first picture is whole.
FIRST_LOOK_SECONDS = 10.0


def of_settings(
    settings: config.FleetSettings, *, time: clock.Clock, metrics: own_metrics.Registry
) -> SlurmWatch | None:
    """The cluster that the settings name, or None."""
    if not settings.slurm and settings.slurm_rest_url is None:
        return None
    asked: slurm_reader.SlurmReader = slurm_reader.SlurmCommandReader()
    if settings.slurm_rest_url is not None:
        token = settings.slurm_token_file
        asked = slurm_reader.SlurmRestReader(
            settings.slurm_rest_url, None if token is None else Path(token), settings.slurm_user
        )
    return SlurmWatch(
        asked,
        cluster=settings.cluster,
        agent_port=settings.slurm_agent_port or None,
        time=time,
        metrics=metrics,
        interval_seconds=settings.slurm_interval_seconds,
    )


@dataclass(frozen=True, slots=True)
class _Answers:
    """What slurmctld said in one round."""

    nodes: Sequence[records.NodeRecord] = ()
    jobs: Sequence[records.JobRecord] = ()


class SlurmWatch:
    """One cluster. `agent_port` None: its nodes are expected, and read only if somebody else says where."""

    def __init__(
        self,
        asked: slurm_reader.SlurmReader,
        *,
        cluster: str,
        agent_port: int | None,
        time: clock.Clock,
        metrics: own_metrics.Registry,
        interval_seconds: float = 15.0,
    ) -> None:
        self.cluster = cluster
        self._asked = asked
        self._agent_port = agent_port
        self._time = time
        self._interval_seconds = interval_seconds
        self._failures = metrics.counter(
            "watchkeeper_slurm_failures_total", "Questions that slurmctld did not answer, by question"
        )
        self._answers = _Answers()
        self._leaves: Mapping[str, str] = {}
        self._limits: Sequence[records.AccountLimit] = ()
        self._rare_at: float | None = None
        self._view = ClusterView(SOURCE)
        self._has_tried = asyncio.Event()

    def view(self) -> ClusterView:
        return self._view

    def problems(self) -> list[str]:
        return [f"slurm: {self._view.problem}"] if self._view.problem else []

    @property
    def required_query(self) -> str | None:
        return None

    async def run(self) -> None:
        """Ask for ever."""
        while True:
            await self.refresh()
            await self._time.sleep(self._interval_seconds)

    async def wait_for_first_read(self) -> None:
        """Wait until Slurm has been asked once, or for as long as a hub's start may take."""
        try:
            async with asyncio.timeout(FIRST_LOOK_SECONDS):
                await self._has_tried.wait()
        except TimeoutError:
            return

    async def refresh(self) -> None:
        """Ask once; what fails keeps its last answer and is said in the view."""
        now = self._time.now()
        problems: list[str] = []
        nodes = await self._ask("nodes", self._asked.nodes, problems)
        jobs = await self._ask("jobs", self._asked.jobs, problems)
        if nodes is not None and (self._rare_at is None or now.timestamp() - self._rare_at >= RARE_SECONDS):
            self._leaves = await self._ask("topology", self._asked.leaves, problems) or self._leaves
            self._limits = await self._ask("limits", self._asked.limits, problems) or self._limits
            self._rare_at = now.timestamp()
        before = self._answers
        self._answers = _Answers(before.nodes if nodes is None else nodes, before.jobs if jobs is None else jobs)
        at_ms = clock.to_ms(now) if nodes is not None and jobs is not None else self._view.at_ms
        self._view = replace(
            view_of(self._answers.nodes, self._answers.jobs, cluster=self.cluster, limits=self._limits),
            at_ms=at_ms,
            problem=_said("; ".join(problems), at_ms),
        )
        self._has_tried.set()

    async def _ask(self, name: str, question: Callable[[], Awaitable[T]], problems: list[str]) -> T | None:
        try:
            return await question()
        except CollectError as error:
            self._failures.add(question=name)
            problems.append(f"{name}: {error}")
            return None

    def discover(self, listed: discovery.DiscoveredTargets) -> discovery.DiscoveredTargets:
        """The nodes with GPUs as expected ones, and where their agents are read unless a list says so already."""
        has_target = {target.node for target in listed.targets if target.cluster == self.cluster}
        aliases = _aliases(self._answers.nodes)
        groups = [
            self._group(node, aliases[node.name], is_read=node.name not in has_target)
            for node in self._answers.nodes
            if node.gpus
        ]
        return discovery.read_groups(groups, SOURCE, defaults=discovery.DiscoveryDefaults(cluster=self.cluster))

    def _group(self, node: records.NodeRecord, aliases: frozenset[str], *, is_read: bool) -> dict[str, object]:
        meta, leaf = discovery.META, self._leaves.get(node.name, "")
        labels = {
            f"{meta}cluster": self.cluster,
            f"{meta}node": node.name,
            f"{meta}pool": node.partitions[0] if node.partitions else "",
            f"{meta}aliases": ",".join(sorted(aliases)),
            # How many GPUs are cut into the slices that it counts, Slurm does not say.
            f"{meta}expected_gpus": str(node.gpus) if _gpu_part(node) == 1 else "",
            **({f"{discovery.DOMAIN_META}{LEAF}": leaf} if leaf else {}),
        }
        address = node.address or node.name
        host = f"[{address}]" if ":" in address else address
        is_target = is_read and self._agent_port is not None
        return {"targets": [f"{host}:{self._agent_port}"] if is_target else [], "labels": labels}

    def series(self, answer: Iterable[Mapping[str, str]]) -> dict[Labels, float]:  # noqa: ARG002
        """The state of each node with GPUs in Slurm's own word, so that a drained node is not taken for a dead one."""
        where = {METRIC_NAME: NODE_STATE, "cluster": self.cluster, "source": SOURCE}
        return {
            Labels({**where, "Hostname": node.name, "state": node.state}): 1.0 for node in self._view.nodes if node.gpus
        }

    def workload_series(self, fleet: ScrapedInventory, known: Iterable[Labels]) -> dict[Labels, float]:
        """Jobs on GPUs that neither an agent nor an exporter's labels attribute, by the indexes that Slurm tells."""
        told = {labels.get("UUID") for labels in known}
        made: dict[Labels, float] = {}
        for job in self._answers.jobs:
            for name, indexes in job.gpus_by_node.items() if job.is_running else ():
                node = fleet.node(name, self.cluster)
                for seen in fleet.gpus_of(node) if node is not None else ():
                    if seen.gpu.index in indexes and seen.gone_since_ms is None and seen.gpu.uuid not in told:
                        about = {"cluster": seen.cluster, "Hostname": seen.node, "UUID": seen.gpu.uuid}
                        held = {"gpu": str(seen.gpu.index), "workload_kind": "slurm_job", "workload": job.id}
                        made[Labels({METRIC_NAME: status_series.WORKLOAD_INFO, **about, **held, "user": job.user})] = (
                            1.0
                        )
        return made


def view_of(
    nodes: Iterable[records.NodeRecord],
    jobs: Sequence[records.JobRecord],
    *,
    cluster: str,
    limits: Iterable[records.AccountLimit] = (),
) -> ClusterView:
    """Slurm's records in the words that all schedulers share."""
    scheduled = tuple(_workload(job, cluster) for job in jobs if job.is_running or job.is_pending)
    used: Counter[str] = Counter()
    for job in jobs:
        used[job.account] += job.gpus if job.is_running else 0
    quotas = tuple(Quota(cluster, limit.account, GPU_RESOURCE, limit.gpus, used[limit.account]) for limit in limits)
    return ClusterView(SOURCE, nodes=tuple(_node(node, cluster) for node in nodes), workloads=scheduled, quotas=quotas)


def _node(node: records.NodeRecord, cluster: str) -> ScheduledNode:
    return ScheduledNode(
        cluster,
        node.name,
        SOURCE,
        state=node.state_name,
        is_ready=node.is_ready,
        is_schedulable=node.is_schedulable,
        gpus=node.gpus,
        allocatable_gpus=node.gpus,
        addresses=tuple(dict.fromkeys(text for text in (node.address, node.hostname) if text)),
        reason=node.reason,
        unschedulable_by=node.reason_user,
        labels={"partition": ",".join(node.partitions), "features": ",".join(node.features)},
        gpu_part=_gpu_part(node),
    )


def _gpu_part(node: records.NodeRecord) -> float:
    """What one of the node's Gres is of a GPU, in the mean; a slice that GPUs have in several sizes is the smallest."""
    try:
        whole = sum(tres.gpus_by_type(node.gres).values())
    except ValueError:
        return 1 / mig.MAX_SLICES
    return whole / node.gpus if whole and node.gpus else 1.0


def _workload(job: records.JobRecord, cluster: str) -> ScheduledWorkload:
    counts = {node: len(indexes) for node, indexes in job.gpus_by_node.items() if indexes}
    if job.is_running and job.gpus and not counts and job.nodes:
        # A version that tells no indexes: the GPUs are spread evenly, as Slurm does by default.
        counts = dict.fromkeys(job.nodes, max(1, job.gpus // len(job.nodes)))
    named = {"job_name": job.name, "array_job": job.array}
    return ScheduledWorkload(
        cluster,
        Workload(WorkloadKind.SLURM_JOB, job.id, user=job.user),
        WorkloadState.RUNNING if job.is_running else WorkloadState.PENDING,
        gpus=job.gpus,
        nodes=counts,
        queue=job.partition,
        account=job.account,
        owner=job.user,
        reason=job.reason,
        detail=job.detail,
        requested_at=job.submitted_at,
        started_at=job.started_at,
        labels={name: value for name, value in named.items() if value},
    )


def _aliases(nodes: Sequence[records.NodeRecord]) -> dict[str, frozenset[str]]:
    """Other names of each node; one that several nodes share, as slurmd on one machine do, names none of them."""
    count = Counter(name for node in nodes for name in {node.address, node.hostname})
    return {
        node.name: frozenset(name for name in (node.address, node.hostname) if name and count[name] == 1) - {node.name}
        for node in nodes
    }


def _said(problem: str, at_ms: int | None) -> str:
    if not problem:
        return ""
    since = (
        "it has never answered" if at_ms is None else f"shown is what it said at {clock.from_ms(at_ms):%H:%M:%S} UTC"
    )
    return f"{problem} ({since})"
