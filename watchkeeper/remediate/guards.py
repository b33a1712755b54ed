"""The guards: whether a repair may begin now. Each is one pure function that says no with both numbers.

`refusals` asks all of them in the order of `GUARDS`; `repairs` starts nothing while one says no, and `act explain`
shows what each would say. What they count stands in `Standing`, which is made once and used for many questions. A
budget is never less than one node: of four nodes nobody means none when saying a fifth.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from watchkeeper.kit.quiet_hours import QuietHours
from watchkeeper.model import fleet, repairs, trust


@dataclass(frozen=True, slots=True)
class Quorum:
    """So many healthy GPUs must stay in a pool for jobs of a class."""

    job_class: str
    pool: str
    gpus: int


@dataclass(frozen=True, slots=True)
class GuardLimits:
    """From [remediate]; see config/settings.py for what each means."""

    pool_percent: int = 20
    fleet_percent: int = 10
    starts: int = 10
    starts_window: timedelta = timedelta(hours=1)
    attempts: int = 2
    attempts_window: timedelta = timedelta(days=7)
    breaker_nodes: int = 5
    breaker_window: timedelta = timedelta(minutes=10)
    domains: tuple[str, ...] = ("rack", "leaf", "power")
    quiet: tuple[QuietHours, ...] = ()
    quorums: tuple[Quorum, ...] = ()
    # What is taken back from owners within `starts_window`: it uses none of the `starts` of repairs.
    reclaims: int = 10
    # The one whose scheduler is asked; None where nodes of every cluster can be reached.
    cluster: str | None = None


@dataclass(frozen=True, slots=True)
class RepairRequest:
    """A repair that would like to begin."""

    node: fleet.Place
    cause: str
    mode: trust.Mode
    gpu: str | None = None
    # It would take the node out of service; what does not needs no share of a pool.
    takes_node_out: bool = True
    # It takes back what is held without use: nothing is broken, so nothing was repaired in vain.
    is_reclaim: bool = False


@dataclass(frozen=True, slots=True)
class RepairStart:
    at: datetime
    node: fleet.Place
    cause: str
    gpu: str | None = None
    is_reclaim: bool = False


@dataclass(frozen=True, slots=True)
class FleetAvailability:
    """The fleet and what is out of it, counted."""

    nodes: Mapping[fleet.Place, fleet.Node]
    # Nodes that nothing may be scheduled on, with who took them out.
    out_of_service: Mapping[fleet.Place, str]
    starts: Sequence[RepairStart] = ()
    switch: repairs.RepairSwitch = field(default_factory=repairs.RepairSwitch)
    # Why it is not known which nodes others have taken out; empty where it is.
    unreadable: Sequence[str] = ()
    # GPUs that are sick on nodes that are not out.
    sick_gpus: Mapping[fleet.Place, int] = field(default_factory=dict)
    nodes_by_pool: Mapping[str, int] = field(default_factory=dict)
    out_by_pool: Mapping[str, int] = field(default_factory=dict)
    out_by_domain: Mapping[tuple[str, str], tuple[fleet.Place, ...]] = field(default_factory=dict)
    # For each kind of domain that this fleet has: nodes that are out, of which nobody knows the domain.
    out_without_domain: Mapping[str, tuple[fleet.Place, ...]] = field(default_factory=dict)
    healthy_gpus: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GuardRefusal:
    guard: str
    text: str


@dataclass(frozen=True, slots=True)
class InventoryCounts:
    """The inventory, counted. Of ten thousand nodes that takes a tenth of a second: not to be done for each start."""

    nodes: Mapping[fleet.Place, fleet.Node]
    nodes_by_pool: Mapping[str, int]
    gpus_by_pool: Mapping[str, int]
    # The kinds of failure domains that this fleet has.
    domain_kinds: frozenset[str]


def count_inventory(nodes: Iterable[fleet.Node]) -> InventoryCounts:
    known = {node.place: node for node in nodes}
    gpus: Counter[str] = Counter()
    for node in known.values():
        gpus[node.pool] += node.expected_gpus or 0
    kinds = frozenset(kind for node in known.values() for kind in node.domains)
    return InventoryCounts(known, Counter(node.pool for node in known.values()), gpus, kinds)


def count_availability(
    nodes: Iterable[fleet.Node] | InventoryCounts,
    out: Mapping[fleet.Place, str],
    *,
    starts: Sequence[RepairStart] = (),
    switch: repairs.RepairSwitch | None = None,
    sick_gpus: Mapping[fleet.Place, int] | None = None,
    blind: Sequence[str] = (),
) -> FleetAvailability:
    counted = nodes if isinstance(nodes, InventoryCounts) else count_inventory(nodes)
    known, sick = counted.nodes, sick_gpus or {}
    domains: dict[tuple[str, str], tuple[fleet.Place, ...]] = {}
    for place in out:
        for pair in known[place].domains.items() if place in known else ():
            domains[pair] = (*domains.get(pair, ()), place)
    healthy = Counter(counted.gpus_by_pool)
    for place in {*out, *sick} & known.keys():
        expected = known[place].expected_gpus or 0
        healthy[known[place].pool] -= expected if place in out else min(expected, sick[place])
    return FleetAvailability(
        nodes=known,
        out_of_service=out,
        starts=starts,
        switch=switch or repairs.RepairSwitch(),
        unreadable=blind,
        sick_gpus=sick,
        nodes_by_pool=counted.nodes_by_pool,
        out_by_pool=Counter(known[place].pool for place in out if place in known),
        out_by_domain=domains,
        out_without_domain={
            kind: tuple(place for place in out if place in known and kind not in known[place].domains)
            for kind in counted.domain_kinds
        },
        healthy_gpus=healthy,
    )


def find_refusals(
    wish: RepairRequest, standing: FleetAvailability, limits: GuardLimits, *, now: datetime
) -> list[GuardRefusal]:
    """What each guard that says no says; nothing means that the repair may begin."""
    said = ((name, guard(wish, standing, limits, now)) for name, guard in _asked(wish))
    return [GuardRefusal(name, text) for name, text in said if text is not None]


def find_first_refusal(
    wish: RepairRequest, standing: FleetAvailability, limits: GuardLimits, *, now: datetime
) -> GuardRefusal | None:
    for name, guard in _asked(wish):
        if (text := guard(wish, standing, limits, now)) is not None:
            return GuardRefusal(name, text)
    return None


def _asked(wish: RepairRequest) -> Iterable[tuple[str, Guard]]:
    passed_over = (frozenset() if wish.takes_node_out else OF_CAPACITY) | (
        OF_REPAIR if wish.is_reclaim else frozenset()
    )
    return ((name, guard) for name, guard in GUARDS.items() if name not in passed_over)


def guard_halt(_: RepairRequest, standing: FleetAvailability, __: GuardLimits, ___: datetime) -> str | None:
    switch = standing.switch
    if switch.stopped_at is None:
        return None
    since = f"{switch.stopped_at:%Y-%m-%d %H:%M}Z"
    return f"{switch.stopped_by} stopped everything at {since} ({switch.stopped_why}); `watchkeeper act resume` goes on"


def guard_circuit_breaker(_: RepairRequest, standing: FleetAvailability, __: GuardLimits, ___: datetime) -> str | None:
    switch = standing.switch
    if switch.tripped_at is None:
        return None
    since = f"{switch.tripped_at:%Y-%m-%d %H:%M}Z"
    return f"the circuit breaker tripped at {since}: {switch.tripped_why}; `watchkeeper act reset` closes it"


def guard_inventory(wish: RepairRequest, standing: FleetAvailability, _: GuardLimits, __: datetime) -> str | None:
    if wish.node in standing.nodes:
        return None
    return f"{wish.node.node} is not among the {len(standing.nodes):,} nodes of the inventory, so no budget covers it"


def guard_cluster(wish: RepairRequest, _: FleetAvailability, limits: GuardLimits, __: datetime) -> str | None:
    """Names of nodes repeat from cluster to cluster: `gpu-01` of another one is another machine."""
    if limits.cluster is None or wish.node.cluster == limits.cluster:
        return None
    where = f"{wish.node.node} is of cluster {wish.node.cluster}, and this hub repairs nodes of {limits.cluster}"
    return f"{where} (fleet.cluster); a node of that name there is another machine"


def guard_attempts(wish: RepairRequest, standing: FleetAvailability, limits: GuardLimits, now: datetime) -> str | None:
    since = now - limits.attempts_window
    tried = [
        start
        for start in standing.starts
        if start.at > since
        and start.node == wish.node
        and (start.cause == wish.cause or (wish.gpu is not None and start.gpu == wish.gpu))
    ]
    if len(tried) < limits.attempts:
        return None
    about = f"{len(tried)} repairs of {wish.node.node} within {_words(limits.attempts_window)}"
    return f"{about}, the limit is {limits.attempts}: hand it over to the vendor"


def guard_schedulers(_: RepairRequest, standing: FleetAvailability, __: GuardLimits, ___: datetime) -> str | None:
    """A budget of which nobody knows how much is used has no room."""
    if not standing.unreadable:
        return None
    return f"nobody knows which of the {len(standing.nodes):,} nodes others have taken out: {standing.unreadable[0]}"


def guard_domain(wish: RepairRequest, standing: FleetAvailability, limits: GuardLimits, _: datetime) -> str | None:
    node = standing.nodes.get(wish.node)
    for kind in limits.domains if node is not None else ():
        name = node.domains.get(kind) if node is not None else None
        others = [place for place in standing.out_by_domain.get((kind, name or ""), ()) if place != wish.node]
        if name and others:
            return f"{others[0].node} of {kind} {name} is out already: {len(others)} nodes of a {kind}, the limit is 1"
        if (text := _perhaps_shared(wish, standing, kind, is_known=name is not None)) is not None:
            return text
    return None


def _perhaps_shared(wish: RepairRequest, standing: FleetAvailability, kind: str, *, is_known: bool) -> str | None:
    """In a fleet that has racks, a node without one may be in any of them."""
    unknown = standing.out_without_domain.get(kind)
    if unknown is None:
        return None
    others = [place for place in (unknown if is_known else standing.out_of_service) if place in standing.nodes]
    other = next((place.node for place in others if place != wish.node), None)
    if other is None:
        return None
    whose = other if is_known else wish.node.node
    return f"nobody knows the {kind} of {whose}, and {other} is out: two nodes of a {kind} may be, the limit is 1"


def guard_pool_share(wish: RepairRequest, standing: FleetAvailability, limits: GuardLimits, _: datetime) -> str | None:
    node = standing.nodes.get(wish.node)
    if node is None:
        return None
    total, out = (
        standing.nodes_by_pool[node.pool],
        standing.out_by_pool.get(node.pool, 0) - (wish.node in standing.out_of_service),
    )
    name = f"pool {node.pool}" if node.pool else "the pool without a name"
    return _share(name, out, total=total, percent=limits.pool_percent)


def guard_fleet_share(wish: RepairRequest, standing: FleetAvailability, limits: GuardLimits, _: datetime) -> str | None:
    out = sum(1 for place in standing.out_of_service if place in standing.nodes and place != wish.node)
    return _share("the fleet", out, total=len(standing.nodes), percent=limits.fleet_percent)


def _share(name: str, out: int, *, total: int, percent: int) -> str | None:
    budget = out_of_service_budget(total, percent)
    if out + 1 <= budget:
        return None
    return f"{out} of {total} nodes of {name} are out, one more would be {out + 1}, the limit is {budget} ({percent} %)"


def out_of_service_budget(nodes: int, percent: int) -> int:
    """How many of so many nodes may be out at once."""
    return max(1, nodes * percent // 100) if percent else 0


def guard_quorum(wish: RepairRequest, standing: FleetAvailability, limits: GuardLimits, _: datetime) -> str | None:
    node = standing.nodes.get(wish.node)
    for quorum in limits.quorums:
        if node is None or node.pool != quorum.pool:
            continue
        if node.expected_gpus is None:
            return f"nobody knows how many GPUs {node.name} has, and jobs of {quorum.job_class} need {quorum.gpus}"
        own = 0 if wish.node in standing.out_of_service else node.expected_gpus - standing.sick_gpus.get(wish.node, 0)
        left = standing.healthy_gpus.get(quorum.pool, 0) - max(0, own)
        if left < quorum.gpus:
            where = f"pool {quorum.pool} would have {left} healthy GPUs left"
            return f"{where}, jobs of {quorum.job_class} need {quorum.gpus}"
    return None


def guard_rate(wish: RepairRequest, standing: FleetAvailability, limits: GuardLimits, now: datetime) -> str | None:
    since, most = now - limits.starts_window, limits.reclaims if wish.is_reclaim else limits.starts
    recent = sum(1 for start in standing.starts if start.at > since and start.is_reclaim == wish.is_reclaim)
    if recent < most:
        return None
    what = "reclaims" if wish.is_reclaim else "repairs"
    return f"{recent} {what} began within {_words(limits.starts_window)}, the limit is {most}"


def guard_quiet_hours(wish: RepairRequest, _: FleetAvailability, limits: GuardLimits, now: datetime) -> str | None:
    """A person who says yes is awake."""
    if wish.mode is not trust.Mode.ACT:
        return None
    hours = next((hours for hours in limits.quiet if hours.contains(now)), None)
    return None if hours is None else f"it is {now:%a %H:%M} UTC, and {hours} are quiet hours"


def breaker_trip_reason(
    wanted: Mapping[fleet.Place, datetime], limits: GuardLimits, *, since: datetime | None, now: datetime
) -> str | None:
    """Why the circuit breaker opens; `wanted` is when each node last wanted a repair, `since` when it was reset."""
    begin = max(now - limits.breaker_window, since) if since is not None else now - limits.breaker_window
    nodes = sum(1 for at in wanted.values() if at > begin)
    if nodes <= limits.breaker_nodes:
        return None
    return f"{nodes} nodes wanted a repair within {_words(limits.breaker_window)}, the limit is {limits.breaker_nodes}"


def _words(span: timedelta) -> str:
    hours, seconds = divmod(int(span.total_seconds()), 3600)
    if hours and not seconds:
        return f"{hours // 24} d" if hours % 24 == 0 else f"{hours} h"
    return f"{int(span.total_seconds()) // 60} min" if not seconds % 60 else f"{span.total_seconds():g} s"


Guard = Callable[[RepairRequest, FleetAvailability, GuardLimits, datetime], str | None]
# The ones that end in a person's hands first: what waits for them need not know about budgets.
GUARDS: Mapping[str, Guard] = {
    "stop": guard_halt,
    "breaker": guard_circuit_breaker,
    "inventory": guard_inventory,
    "cluster": guard_cluster,
    "attempts": guard_attempts,
    "schedulers": guard_schedulers,
    "domain": guard_domain,
    "pool share": guard_pool_share,
    "fleet share": guard_fleet_share,
    "quorum": guard_quorum,
    "rate": guard_rate,
    "quiet hours": guard_quiet_hours,
}
# They count nodes that are out of service.
OF_CAPACITY = frozenset({"schedulers", "domain", "pool share", "fleet share", "quorum"})
# They count what was repaired in vain.
OF_REPAIR = frozenset({"attempts"})
