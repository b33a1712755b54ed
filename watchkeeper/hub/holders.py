"""Load the current holders of all GPUs, from the hub's own series or from the labels of exporters.

The hub writes a series with all holders, their teams and projects. Until it is written for the first time, the labels
of exporters are used. Agents report why a GPU has no holder.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from watchkeeper.errors import WatchkeeperError
from watchkeeper.hub.samples import Queries
from watchkeeper.kit import wire
from watchkeeper.model import fleet, workloads
from watchkeeper.model.labels import Labels
from watchkeeper.query.engine import QueryResult
from watchkeeper.scrape import status_series

HOLDER_EXPR = f"{status_series.WORKLOAD_INFO} or on (UUID) {status_series.WORKLOAD_SOURCES}"
SHARE_EXPR = "watchkeeper_gpu_workload_share"
REASON_EXPR = "watchkeeper_gpu_attribution"
FREE = workloads.UnattributedReason.FREE.value


@dataclass(frozen=True, slots=True)
class GpuHolder:
    """A workload that holds a GPU or a MIG instance."""

    uuid: str
    node: str
    cluster: str
    kind: str
    name: str
    namespace: str = ""
    container: str = ""
    user: str = ""
    team: str = ""
    project: str = ""
    mig_instance: str | None = wire.json_key("slice", default=None)
    share: float | None = None

    @property
    def workload_name(self) -> str:
        return workloads.workload_name(self.namespace, self.name)


@dataclass(frozen=True, slots=True)
class GpuHolders:
    """All holders by GPU, and the reasons why a GPU has none; `problem` is the error if the queries failed."""

    by_gpu: Mapping[str, tuple[GpuHolder, ...]] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    problem: str | None = None

    def no_holder_reason(self, uuid: str, cluster: str) -> str:
        """Why a reporting GPU has no holder: it is free where exporters of its cluster name holders of other GPUs."""
        names_holders = any(holders[0].cluster == cluster for holders in self.by_gpu.values())
        return self.problem or self.reasons.get(uuid) or (FREE if names_holders else "exporter reports no holder")


async def load_holders(queries: Queries) -> GpuHolders:
    at_ms = queries.now_ms
    try:
        holder_info = await queries.instant(HOLDER_EXPR, at_ms)
        shares = await queries.instant(SHARE_EXPR, at_ms)
        reasons = await queries.instant(REASON_EXPR, at_ms)
    except WatchkeeperError as error:
        return GpuHolders(problem=str(error))
    # In a thread: 10,000 GPUs take 0.1 s, which would block the event loop.
    return await asyncio.to_thread(_build_holders, holder_info, shares, reasons)


def _build_holders(holder_info: QueryResult, shares: QueryResult, reasons: QueryResult) -> GpuHolders:
    shares_by_key = {_key(labels): value for labels, value in shares.latest().items()}
    by_gpu: dict[str, dict[GpuHolder, None]] = {}
    for labels in holder_info.latest():
        holder = holder_from_labels(labels, shares_by_key.get(_key(labels)))
        if holder is not None:
            by_gpu.setdefault(holder.uuid, {})[holder] = None
    reasons_by_uuid = {labels.get("UUID", ""): labels.get("reason", "") for labels in reasons.latest()}
    return GpuHolders({uuid: tuple(gpu_holders) for uuid, gpu_holders in by_gpu.items()}, reasons_by_uuid)


def holder_from_labels(labels: Labels, share: float | None = None) -> GpuHolder | None:
    """The holder in the labels of the hub's or an exporter's series; None without a holder."""
    workload_name = fleet.holder_from_labels(labels)
    if workload_name is None or not labels.get("UUID"):
        return None
    namespace, _, name = workload_name.rpartition("/")
    kind = labels.get("workload_kind") or ("pod" if namespace else "slurm_job")
    return GpuHolder(
        labels["UUID"],
        labels.get("Hostname", ""),
        labels.get("cluster", ""),
        kind,
        name,
        namespace=namespace,
        container=labels.get("container", ""),
        user=labels.get("user", ""),
        team=labels.get("team", ""),
        project=labels.get("project", ""),
        mig_instance=labels.get("GPU_I_ID"),
        share=share,
    )


def _key(labels: Labels) -> tuple[str, ...]:
    return tuple(labels.get(name, "") for name in ("UUID", "workload", "namespace", "container", "GPU_I_ID", "user"))
