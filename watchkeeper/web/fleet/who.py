"""Who holds this, and what does this hold: one question, asked with whatever name a person has at hand.

A name may be a GPU (UUID, its beginning, or `node/3`), a node, a pod (`namespace/name` or the name alone), a Slurm job
(`4711`, `17_3`), or a user, team or namespace. Several things may answer to one name, and then all of them are given.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from watchkeeper.clusters import inventory
from watchkeeper.hub.services import FleetProtocol, GpuView
from watchkeeper.incidents import signals
from watchkeeper.kit import clock
from watchkeeper.model import cluster, incidents, workloads
from watchkeeper.model.node_list import NodeLine
from watchkeeper.web.fleet import holders
from watchkeeper.web.fleet.fleet_layout import natural

# `GPU-3f2a` is what people paste; less would find half the fleet.
SHORTEST_UUID = 8
# A team may hold the whole fleet; the list says how many more there are.
MAX_WORKLOADS = 200


@dataclass(frozen=True, slots=True)
class IncidentSummary:
    """An open incident, as much as one line needs."""

    id: str
    severity: str
    title: str


@dataclass(frozen=True, slots=True)
class GpuAndHolders:
    """One GPU and its holders; `reason` is why there are none."""

    uuid: str
    index: int | None
    model: str | None
    cluster: str
    node: str
    is_gone: bool
    holders: tuple[holders.GpuHolder, ...]
    reason: str
    incidents: tuple[IncidentSummary, ...]


@dataclass(frozen=True, slots=True)
class WorkloadAndGpus:
    """One workload and what it holds; a waiting one holds nothing and says why it waits."""

    kind: str
    name: str
    namespace: str
    cluster: str
    state: str
    user: str
    team: str
    project: str
    account: str
    queue: str
    gpus_asked: int | None
    nodes: tuple[str, ...]
    gpus: tuple[GpuAndHolders, ...]
    reason: str
    since: datetime | None
    incidents: tuple[IncidentSummary, ...]


@dataclass(frozen=True, slots=True)
class NodeAndGpus:
    node: NodeLine
    gpus: tuple[GpuAndHolders, ...]


@dataclass(frozen=True, slots=True)
class HolderMatches:
    gpus: tuple[GpuAndHolders, ...] = ()
    nodes: tuple[NodeAndGpus, ...] = ()
    workloads: tuple[WorkloadAndGpus, ...] = ()
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class HolderSources:
    """What is looked through."""

    fleet: FleetProtocol
    lines: Sequence[NodeLine]
    held: holders.GpuHolders
    views: Sequence[cluster.ClusterView]
    open_incidents: Sequence[incidents.Incident]
    # Whose a workload is that holds nothing yet; None: nobody can say.
    mapping: inventory.NodeInventory | None = None

    def owner(self, known: workloads.ScheduledWorkload | None, held: Sequence[holders.GpuHolder]) -> inventory.Owner:
        if held:
            return inventory.Owner(held[0].team, held[0].project)
        if known is None or self.mapping is None:
            return inventory.Owner("")
        return self.mapping.owner(known)


def find_holders(asked: str, facts: HolderSources) -> HolderMatches:
    """Everything that answers to a name; nothing found is an empty answer."""
    gpus = [gpu for gpu in facts.fleet.gpus() if _is_gpu(asked, gpu)]
    if gpus:
        return HolderMatches(gpus=tuple(_gpu(gpu, facts) for gpu in gpus))
    aliases = {(node.cluster, node.name) for node in facts.fleet.nodes() if asked == node.name or asked in node.aliases}
    lines = [line for line in facts.lines if line.name == asked or (line.cluster, line.name) in aliases]
    if lines:
        return HolderMatches(nodes=tuple(_node(line, facts) for line in lines))
    found = sorted(_workloads(asked, facts), key=lambda one: (natural(one.namespace), natural(one.name), one.cluster))
    return HolderMatches(workloads=tuple(found[:MAX_WORKLOADS]), left_out=max(0, len(found) - MAX_WORKLOADS))


def _is_gpu(asked: str, seen: GpuView) -> bool:
    uuid = seen.gpu.uuid
    if asked == uuid or (len(asked) >= SHORTEST_UUID and asked.startswith("GPU-") and uuid.startswith(asked)):
        return True
    node, slash, index = asked.rpartition("/")
    return bool(slash) and index.isdigit() and node == seen.node and seen.gpu.index == int(index)


def _gpu(seen: GpuView, facts: HolderSources) -> GpuAndHolders:
    uuid = seen.gpu.uuid
    held = facts.held.by_gpu.get(uuid, ())
    reason = "" if held else facts.held.problem or facts.held.reasons.get(uuid) or "no holder is named by its exporter"
    about = [one for one in facts.open_incidents if _is_about(one, seen)]
    return GpuAndHolders(
        uuid,
        seen.gpu.index,
        seen.gpu.model,
        seen.cluster,
        seen.node,
        is_gone=seen.gone_since_ms is not None,
        holders=held,
        reason=reason,
        incidents=_briefs(about),
    )


def _node(line: NodeLine, facts: HolderSources) -> NodeAndGpus:
    here = [gpu for gpu in facts.fleet.gpus() if (gpu.cluster, gpu.node) == (line.cluster, line.name)]
    here.sort(key=lambda gpu: (gpu.gpu.index is None, gpu.gpu.index or 0, gpu.gpu.uuid))
    return NodeAndGpus(line, tuple(_gpu(gpu, facts) for gpu in here))


WorkloadKey = tuple[str, str, str, str]


def _workloads(asked: str, facts: HolderSources) -> list[WorkloadAndGpus]:
    """Workloads that the schedulers know, and those that only the GPUs tell of."""
    on_gpus: dict[WorkloadKey, list[holders.GpuHolder]] = {}
    for held in facts.held.by_gpu.values():
        for one in held:
            on_gpus.setdefault((one.cluster, one.kind, one.namespace, one.name), []).append(one)
    scheduled: dict[WorkloadKey, workloads.ScheduledWorkload] = {
        (one.cluster, one.workload.kind.value, one.workload.namespace, one.workload.name): one
        for view in facts.views
        for one in view.workloads
    }
    seen = {gpu.gpu.uuid: gpu for gpu in facts.fleet.gpus()}
    return [
        _workload(identity, scheduled.get(identity), on_gpus.get(identity, []), seen=seen, facts=facts)
        for identity in dict.fromkeys([*scheduled, *on_gpus])
        if _is_meant(asked, scheduled.get(identity), on_gpus.get(identity, []), identity=identity, facts=facts)
    ]


def _is_meant(
    asked: str,
    known: workloads.ScheduledWorkload | None,
    held: Sequence[holders.GpuHolder],
    *,
    identity: WorkloadKey,
    facts: HolderSources,
) -> bool:
    _, _, namespace, name = identity
    names = {name, f"{namespace}/{name}", namespace, f"slurm/{name}"}
    if known is not None:
        names |= {known.account, known.owner, known.workload.user, known.labels.get("array_job", "")}
    owner = facts.owner(known, held)
    names |= {owner.team, owner.project, *(one.user for one in held)}
    return asked in names - {""}


def _workload(
    identity: WorkloadKey,
    known: workloads.ScheduledWorkload | None,
    held: Sequence[holders.GpuHolder],
    *,
    seen: dict[str, GpuView],
    facts: HolderSources,
) -> WorkloadAndGpus:
    cluster_name, kind, namespace, name = identity
    gpus = [_gpu(seen[uuid], facts) for uuid in dict.fromkeys(one.uuid for one in held) if uuid in seen]
    gpus.sort(key=lambda gpu: (gpu.node, gpu.index or 0))
    first = held[0] if held else None
    owner = facts.owner(known, held)
    nodes = dict.fromkeys([*(known.nodes if known is not None else ()), *(gpu.node for gpu in gpus)])
    called = workloads.workload_name(namespace, name)
    briefs = {brief: None for gpu in gpus for brief in gpu.incidents}
    briefs |= dict.fromkeys(_briefs(one for one in facts.open_incidents if called in one.workloads))
    started = None if known is None else known.started_at or known.requested_at
    return WorkloadAndGpus(
        kind,
        name,
        namespace,
        cluster_name,
        state=known.state.value if known is not None else workloads.WorkloadState.RUNNING.value,
        user=(known.workload.user or known.owner if known is not None else "") or (first.user if first else ""),
        team=owner.team,
        project=owner.project,
        account=known.account if known is not None else "",
        queue=known.queue if known is not None else "",
        gpus_asked=known.gpus if known is not None else None,
        nodes=tuple(nodes),
        gpus=tuple(gpus),
        reason=": ".join(part for part in (known.reason, known.detail) if part) if known is not None else "",
        since=None if started is None else clock.from_ms(started * 1000),
        incidents=tuple(briefs),
    )


def _is_about(incident: incidents.Incident, seen: GpuView) -> bool:
    place, uuid = incident.place, seen.gpu.uuid
    is_here = place.gpu is None and place.node == seen.node and place.cluster in (seen.cluster, signals.UNNAMED_CLUSTER)
    return is_here or any(member.place.gpu == uuid for member in incident.members)


def _briefs(found: Iterable[incidents.Incident]) -> tuple[IncidentSummary, ...]:
    return tuple(IncidentSummary(one.id, one.severity.value, one.title) for one in found)
