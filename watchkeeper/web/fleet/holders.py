"""Who holds which GPU now, as one list: what `nodes` and `who` show, whatever told it.

The series that the hub keeps for joins has every holder, with team and project; an exporter's labels stand in for it
until the hub has written it once. A source's word for why a GPU has no holder comes from the agents.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from watchkeeper.errors import WatchkeeperError
from watchkeeper.hub.samples import Queries
from watchkeeper.model import fleet, workloads
from watchkeeper.model.labels import Labels
from watchkeeper.query.engine import QueryResult
from watchkeeper.scrape import status_series

HOLDER_EXPR = f"{status_series.WORKLOAD_INFO} or on (UUID) {status_series.WORKLOAD_SOURCES}"
SHARE_EXPR = "watchkeeper_gpu_workload_share"
REASON_EXPR = "watchkeeper_gpu_attribution"


@dataclass(frozen=True, slots=True)
class GpuHolder:
    """One workload on one GPU."""

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
    slice: str | None = None
    share: float | None = None

    @property
    def called(self) -> str:
        return workloads.workload_name(self.namespace, self.name)


@dataclass(frozen=True, slots=True)
class GpuHolders:
    """All holders by GPU; `problem` says why there are none, where the samples could not be asked."""

    by_gpu: Mapping[str, tuple[GpuHolder, ...]] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    problem: str | None = None


async def load_holders(queries: Queries) -> GpuHolders:
    at_ms = queries.now_ms
    try:
        held = await queries.instant(HOLDER_EXPR, at_ms)
        shares = await queries.instant(SHARE_EXPR, at_ms)
        reasons = await queries.instant(REASON_EXPR, at_ms)
    except WatchkeeperError as error:
        return GpuHolders(problem=str(error))
    # 10,000 GPUs take a tenth of a second, for which nobody else should wait.
    return await asyncio.to_thread(_told, held, shares, reasons)


def _told(held: QueryResult, shares: QueryResult, reasons: QueryResult) -> GpuHolders:
    share_of = {_key(labels): value for labels, value in shares.latest().items()}
    by_gpu: dict[str, dict[GpuHolder, None]] = {}
    for labels in held.latest():
        holder = holder_from_labels(labels, share_of.get(_key(labels)))
        if holder is not None:
            by_gpu.setdefault(holder.uuid, {})[holder] = None
    why = {labels.get("UUID", ""): labels.get("reason", "") for labels in reasons.latest()}
    return GpuHolders({uuid: tuple(those) for uuid, those in by_gpu.items()}, why)


def holder_from_labels(labels: Labels, share: float | None = None) -> GpuHolder | None:
    """The holder that labels name, ours or an exporter's; None for a GPU that nobody holds."""
    called = fleet.holder_from_labels(labels)
    if called is None or not labels.get("UUID"):
        return None
    namespace, _, name = called.rpartition("/")
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
        slice=labels.get("GPU_I_ID"),
        share=share,
    )


def _key(labels: Labels) -> tuple[str, ...]:
    return tuple(labels.get(name, "") for name in ("UUID", "workload", "namespace", "container", "GPU_I_ID", "user"))
