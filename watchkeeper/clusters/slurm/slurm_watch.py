"""Poll a Slurm cluster on an interval: nodes, jobs, limits and topology.

If slurmctld does not answer, or its output is invalid, the last good view stays in force with a `problem` that says
since when. Parts that a version or site does not have (topology, accounting) are empty.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from watchkeeper.catalogue import mig
from watchkeeper.clusters.cluster_series import NODE_STATE
from watchkeeper.clusters.slurm import slurm_reader
from watchkeeper.config import settings as config
from watchkeeper.errors import CollectError
from watchkeeper.kit import clock, own_metrics
from watchkeeper.model.cluster import ClusterView, Quota, ScheduledNode
from watchkeeper.model.labels import METRIC_NAME, Labels
from watchkeeper.model.workloads import ScheduledWorkload, Workload, WorkloadKind, WorkloadState
from watchkeeper.net import addresses
from watchkeeper.readers.clusters import slurm_records as records
from watchkeeper.readers.clusters import tres
from watchkeeper.scrape import discovery, status_series
from watchkeeper.scrape.fleet import ScrapedInventory

T = TypeVar("T")

SOURCE = "slurm"
GPU_RESOURCE = "gres/gpu"
LEAF = "leaf"
# Topology and limits rarely change; reading them every time would only load slurmctld.
RARE_QUERY_SECONDS = 300.0
# A hub that starts waits this long for the first read, so that its first view is complete.
FIRST_READ_SECONDS = 10.0


def from_settings(
    settings: config.FleetSettings, *, time: clock.Clock, metrics: own_metrics.Registry
) -> SlurmWatch | None:
    reader: slurm_reader.SlurmReader = slurm_reader.SlurmCommandReader()
    if settings.slurm_rest_url is not None:
        token = settings.slurm_token_file
        token_path = None if token is None else Path(token)
        reader = slurm_reader.SlurmRestReader(settings.slurm_rest_url, token_path, settings.slurm_user)
    elif not settings.slurm:
        return None
    return SlurmWatch(
        reader,
        cluster=settings.cluster,
        agent_port=settings.slurm_agent_port or None,
        time=time,
        metrics=metrics,
        interval_seconds=settings.slurm_interval_seconds,
    )


class SlurmWatch:
    """One cluster. `agent_port` None: its nodes are expected, but get no target from Slurm."""

    def __init__(
        self,
        reader: slurm_reader.SlurmReader,
        *,
        cluster: str,
        agent_port: int | None,
        time: clock.Clock,
        metrics: own_metrics.Registry,
        interval_seconds: float = 15.0,
    ) -> None:
        self.cluster = cluster
        self._reader = reader
        self._agent_port = agent_port
        self._time = time
        self._interval_seconds = interval_seconds
        self._failures = metrics.counter(
            "watchkeeper_slurm_failures_total",
            "Failed queries of slurmctld, by `question` (nodes, jobs, topology or limits)",
        )
        # The records of the last successful reads.
        self._nodes: Sequence[records.NodeRecord] = ()
        self._jobs: Sequence[records.JobRecord] = ()
        self._leaves: Mapping[str, str] = {}
        self._limits: Sequence[records.AccountLimit] = ()
        self._rare_query_at: float | None = None
        self._view = ClusterView(SOURCE)
        self._has_read = asyncio.Event()

    def view(self) -> ClusterView:
        return self._view

    def problems(self) -> list[str]:
        return [f"slurm: {self._view.problem}"] if self._view.problem else []

    @property
    def required_query(self) -> str | None:
        return None

    async def run(self) -> None:
        while True:
            await self.refresh()
            await self._time.sleep(self._interval_seconds)

    async def wait_for_first_read(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_READ_SECONDS):
                await self._has_read.wait()

    async def refresh(self) -> None:
        """Read Slurm once; a query that fails keeps its last result and is a problem of the view."""
        now = self._time.now()
        problems: list[str] = []
        nodes = await self._query("nodes", self._reader.nodes, problems)
        jobs = await self._query("jobs", self._reader.jobs, problems)
        if nodes is not None and (
            self._rare_query_at is None or now.timestamp() - self._rare_query_at >= RARE_QUERY_SECONDS
        ):
            self._leaves = await self._query("topology", self._reader.leaves, problems) or self._leaves
            self._limits = await self._query("limits", self._reader.limits, problems) or self._limits
            self._rare_query_at = now.timestamp()
        self._nodes = self._nodes if nodes is None else nodes
        self._jobs = self._jobs if jobs is None else jobs
        at_ms = clock.to_ms(now) if nodes is not None and jobs is not None else self._view.at_ms
        age = "no answer yet" if at_ms is None else f"last good data is from {clock.from_ms(at_ms):%H:%M:%S} UTC"
        view = build_view(self._nodes, self._jobs, cluster=self.cluster, limits=self._limits)
        self._view = replace(view, at_ms=at_ms, problem=f"{'; '.join(problems)} ({age})" if problems else "")
        self._has_read.set()

    async def _query(self, name: str, read: Callable[[], Awaitable[T]], problems: list[str]) -> T | None:
        try:
            return await read()
        except CollectError as error:
            self._failures.add(question=name)
            problems.append(f"{name}: {error}")
            return None

    def discover(self, listed: discovery.DiscoveredTargets) -> discovery.DiscoveredTargets:
        """The nodes with GPUs as expected nodes; a node without a target in `listed` gets its agent's port."""
        target_nodes = {target.node for target in listed.targets if target.cluster == self.cluster}
        aliases = _aliases(self._nodes)
        groups = [
            self._group(node, aliases[node.name], is_read=node.name not in target_nodes)
            for node in self._nodes
            if node.gpus
        ]
        return discovery.read_groups(groups, SOURCE, cluster=self.cluster)

    def _group(self, node: records.NodeRecord, aliases: frozenset[str], *, is_read: bool) -> dict[str, object]:
        meta, leaf = discovery.META, self._leaves.get(node.name, "")
        labels = {
            f"{meta}cluster": self.cluster,
            f"{meta}node": node.name,
            f"{meta}pool": node.partitions[0] if node.partitions else "",
            f"{meta}aliases": ",".join(sorted(aliases)),
            # Slurm counts MIG instances here, and does not report how many GPUs they are on.
            f"{meta}expected_gpus": str(node.gpus) if _gpu_part(node) == 1 else "",
            **({f"{discovery.DOMAIN_META}{LEAF}": leaf} if leaf else {}),
        }
        port = self._agent_port if is_read else None
        targets = [] if port is None else [addresses.join_port(node.address or node.name, port)]
        return {"targets": targets, "labels": labels}

    def series(self, query_result: Iterable[Mapping[str, str]]) -> dict[Labels, float]:  # noqa: ARG002
        """The Slurm state of each node with GPUs, so that a drained node does not look like a failed one."""
        state_labels = {METRIC_NAME: NODE_STATE, "cluster": self.cluster, "source": SOURCE}
        return {
            Labels({**state_labels, "Hostname": node.name, "state": node.state}): 1.0
            for node in self._view.nodes
            if node.gpus
        }

    def workload_series(self, fleet: ScrapedInventory, attributed: Iterable[Labels]) -> dict[Labels, float]:
        """The jobs on GPUs that are not in `attributed`, by the GPU indexes that Slurm reports."""
        attributed_uuids = {labels.get("UUID") for labels in attributed}
        series: dict[Labels, float] = {}
        for job in self._jobs:
            holder_labels = {"workload_kind": "slurm_job", "workload": job.id, "user": job.user}
            for name, indexes in job.gpus_by_node.items() if job.is_running else ():
                for gpu in fleet.present_gpus(name, self.cluster):
                    if gpu.gpu.index in indexes and gpu.gpu.uuid not in attributed_uuids:
                        series[Labels({METRIC_NAME: status_series.WORKLOAD_INFO, **gpu.labels, **holder_labels})] = 1.0
        return series


def build_view(
    nodes: Iterable[records.NodeRecord],
    jobs: Sequence[records.JobRecord],
    *,
    cluster: str,
    limits: Iterable[records.AccountLimit] = (),
) -> ClusterView:
    """Convert Slurm's records to the view that all schedulers share."""
    scheduled = tuple(_scheduled_workload(job, cluster) for job in jobs if job.is_running or job.is_pending)
    used: Counter[str] = Counter()
    for job in jobs:
        used[job.account] += job.gpus if job.is_running else 0
    quotas = tuple(Quota(cluster, limit.account, GPU_RESOURCE, limit.gpus, used[limit.account]) for limit in limits)
    return ClusterView(
        SOURCE, nodes=tuple(_scheduled_node(node, cluster) for node in nodes), workloads=scheduled, quotas=quotas
    )


def _scheduled_node(node: records.NodeRecord, cluster: str) -> ScheduledNode:
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
    """The mean part of a GPU that one Gres of the node stands for; an ambiguous MIG profile counts as the smallest."""
    try:
        whole_gpus = sum(tres.gpus_by_type(node.gres).values())
    except ValueError:
        return 1 / mig.MAX_SLICES
    return whole_gpus / node.gpus if whole_gpus and node.gpus else 1.0


def _scheduled_workload(job: records.JobRecord, cluster: str) -> ScheduledWorkload:
    counts = {node: len(indexes) for node, indexes in job.gpus_by_node.items() if indexes}
    if job.is_running and job.gpus and not counts and job.nodes:
        # This version reports no indexes: assume that the GPUs are spread evenly, which is Slurm's default.
        counts = dict.fromkeys(job.nodes, max(1, job.gpus // len(job.nodes)))
    labels = {"job_name": job.name, "array_job": job.array}
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
        labels={name: value for name, value in labels.items() if value},
    )


def _aliases(nodes: Sequence[records.NodeRecord]) -> dict[str, frozenset[str]]:
    """Other names of each node; a name that several nodes share, such as several slurmd on one host, is excluded."""
    counts = Counter(name for node in nodes for name in {node.address, node.hostname})
    return {
        node.name: frozenset(name for name in (node.address, node.hostname) if name and counts[name] == 1) - {node.name}
        for node in nodes
    }
