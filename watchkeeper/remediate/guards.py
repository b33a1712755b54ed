"""Guards decide whether a repair may start now. Each is one pure function that refuses with both numbers.

`Repairs` starts a repair only if no guard of `GUARDS` refuses it; `act explain` shows all refusals. Guards read
`FleetAvailability`, which is counted once for many requests. A budget is at least one node: 20 % of four nodes is one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from watchkeeper.kit import durations
from watchkeeper.kit.quiet_hours import QuietHours
from watchkeeper.model import fleet, repairs, trust


@dataclass(frozen=True, slots=True)
class Quorum:
    """The number of healthy GPUs that a class of jobs needs in a pool."""

    job_class: str
    pool: str
    gpus: int


@dataclass(frozen=True, slots=True)
class GuardLimits:
    """The limits of [remediate]; config/settings.py explains each."""

    pool_percent: int = 20
    fleet_percent: int = 10
    starts: int = 10
    starts_window: timedelta = timedelta(hours=1)
    attempts: int = 2
    attempts_window: timedelta = timedelta(days=7)
    breaker_nodes: int = 5
    breaker_window: timedelta = timedelta(minutes=10)
    domains: tuple[str, ...] = ("rack", "leaf", "power")
    quiet_hours: tuple[QuietHours, ...] = ()
    quorums: tuple[Quorum, ...] = ()
    # Reclaims within `starts_window`; they do not count as `starts`.
    reclaims: int = 10
    # The cluster of the driver's scheduler; None if the driver reaches nodes of every cluster.
    cluster: str | None = None


@dataclass(frozen=True, slots=True)
class RepairRequest:
    """A repair that asks the guards to start."""

    node: fleet.Place
    cause: str
    mode: trust.Mode
    gpu: str | None = None
    # It takes the node out of service, so that the budgets apply.
    takes_node_out: bool = True
    # It reclaims an idle GPU; no hardware has failed, so attempts do not count.
    is_reclaim: bool = False
    # The failed rack that the node is drained for: its nodes fail together anyway.
    domain: fleet.Place | None = None

    @property
    def name(self) -> str:
        return self.node.node or (self.node.domain or "").replace("=", " ", 1)


@dataclass(frozen=True, slots=True)
class RepairStart:
    at: datetime
    node: fleet.Place
    cause: str
    gpu: str | None = None
    is_reclaim: bool = False


@dataclass(frozen=True, slots=True)
class FleetAvailability:
    """Nodes in and out of service, counted for the guards."""

    nodes: Mapping[fleet.Place, fleet.Node]
    # Unschedulable nodes, with the user or repair that cordoned them.
    out_of_service: Mapping[fleet.Place, str]
    starts: Sequence[RepairStart] = ()
    switch: repairs.RepairSwitch = field(default_factory=repairs.RepairSwitch)
    # Schedulers whose cordoned nodes are unknown, with the reason.
    unreadable: Sequence[str] = ()
    # The number of faulty GPUs by node.
    faulty_gpus: Mapping[fleet.Place, int] = field(default_factory=dict)
    nodes_by_pool: Mapping[str, int] = field(default_factory=dict)
    out_by_pool: Mapping[str, int] = field(default_factory=dict)
    out_by_domain: Mapping[tuple[str, str], tuple[fleet.Place, ...]] = field(default_factory=dict)
    # By kind of failure domain: nodes that are out of service and whose domain is unknown.
    out_without_domain: Mapping[str, tuple[fleet.Place, ...]] = field(default_factory=dict)
    healthy_gpus: Mapping[str, int] = field(default_factory=dict)
    # Running repairs of whole racks, and the nodes that each has taken out of service.
    domain_repairs: Mapping[fleet.Place, repairs.Repair] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GuardInputs:
    """What a guard reads."""

    request: RepairRequest
    availability: FleetAvailability
    limits: GuardLimits
    now: datetime

    @property
    def place(self) -> fleet.Place:
        return self.request.node

    @property
    def node(self) -> fleet.Node | None:
        """The node in the inventory."""
        return self.availability.nodes.get(self.request.node)


@dataclass(frozen=True, slots=True)
class GuardRefusal:
    guard: str
    text: str


@dataclass(frozen=True, slots=True)
class InventoryCounts:
    """The inventory, counted. This takes 0.1 s for ten thousand nodes, too long for each start."""

    nodes: Mapping[fleet.Place, fleet.Node]
    nodes_by_pool: Mapping[str, int]
    gpus_by_pool: Mapping[str, int]
    # The kinds of failure domains that this fleet has.
    domain_kinds: frozenset[str]


def count_inventory(nodes: Iterable[fleet.Node]) -> InventoryCounts:
    nodes_by_place = {node.place: node for node in nodes}
    gpus: Counter[str] = Counter()
    for node in nodes_by_place.values():
        gpus[node.pool] += node.expected_gpus or 0
    kinds = frozenset(kind for node in nodes_by_place.values() for kind in node.domains)
    return InventoryCounts(nodes_by_place, Counter(node.pool for node in nodes_by_place.values()), gpus, kinds)


def count_availability(
    nodes: Iterable[fleet.Node] | InventoryCounts,
    out_of_service: Mapping[fleet.Place, str],
    *,
    starts: Sequence[RepairStart] = (),
    switch: repairs.RepairSwitch | None = None,
    faulty_gpus: Mapping[fleet.Place, int] | None = None,
    unreadable: Sequence[str] = (),
    domain_repairs: Mapping[fleet.Place, repairs.Repair] | None = None,
) -> FleetAvailability:
    counts = nodes if isinstance(nodes, InventoryCounts) else count_inventory(nodes)
    inventory, faulty = counts.nodes, faulty_gpus or {}
    domains: dict[tuple[str, str], tuple[fleet.Place, ...]] = {}
    for place in out_of_service:
        for pair in inventory[place].domains.items() if place in inventory else ():
            domains[pair] = (*domains.get(pair, ()), place)
    healthy = Counter(counts.gpus_by_pool)
    for place in {*out_of_service, *faulty} & inventory.keys():
        expected = inventory[place].expected_gpus or 0
        healthy[inventory[place].pool] -= expected if place in out_of_service else min(expected, faulty[place])
    return FleetAvailability(
        nodes=inventory,
        out_of_service=out_of_service,
        starts=starts,
        switch=switch or repairs.RepairSwitch(),
        unreadable=unreadable,
        faulty_gpus=faulty,
        nodes_by_pool=counts.nodes_by_pool,
        out_by_pool=Counter(inventory[place].pool for place in out_of_service if place in inventory),
        out_by_domain=domains,
        out_without_domain={
            kind: tuple(
                place for place in out_of_service if place in inventory and kind not in inventory[place].domains
            )
            for kind in counts.domain_kinds
        },
        healthy_gpus=healthy,
        domain_repairs=domain_repairs or {},
    )


def find_refusals(inputs: GuardInputs) -> Iterator[GuardRefusal]:
    """Yield the refusal of each guard that refuses; nothing if the repair may start."""
    skipped = frozenset[str]() if inputs.request.takes_node_out else CAPACITY_GUARDS
    skipped |= REPAIR_GUARDS if inputs.request.is_reclaim else frozenset()
    for name, guard in GUARDS.items():
        if name not in skipped and (text := guard(inputs)) is not None:
            yield GuardRefusal(name, text)


def guard_halt(inputs: GuardInputs) -> str | None:
    switch = inputs.availability.switch
    if switch.stopped_at is None:
        return None
    since = f"{switch.stopped_at:%Y-%m-%d %H:%M}Z"
    return f"{switch.stopped_by} halted all repairs at {since} ({switch.stopped_why}); `watchkeeper act resume` resumes"


def guard_circuit_breaker(inputs: GuardInputs) -> str | None:
    switch = inputs.availability.switch
    if switch.tripped_at is None:
        return None
    since = f"{switch.tripped_at:%Y-%m-%d %H:%M}Z"
    return f"the circuit breaker tripped at {since}: {switch.tripped_why}; `watchkeeper act reset` closes it"


def guard_inventory(inputs: GuardInputs) -> str | None:
    if inputs.node is not None or inputs.place.domain is not None:
        return None
    nodes = len(inputs.availability.nodes)
    return f"{inputs.place.node} is not in the inventory of {nodes:,} nodes, so no budget covers it"


def guard_cluster(inputs: GuardInputs) -> str | None:
    """Node names repeat across clusters: `gpu-01` of another cluster is another machine."""
    cluster = inputs.limits.cluster
    if cluster is None or inputs.place.cluster == cluster:
        return None
    mismatch = f"{inputs.place.node} is in cluster {inputs.place.cluster}, but this hub repairs {cluster}"
    return f"{mismatch} (fleet.cluster); a node with the same name there is another machine"


def guard_attempts(inputs: GuardInputs) -> str | None:
    request, limits = inputs.request, inputs.limits
    attempts = sum(
        start.node == request.node
        and (start.cause == request.cause or (request.gpu is not None and start.gpu == request.gpu))
        for start in inputs.availability.starts
        if start.at > inputs.now - limits.attempts_window
    )
    if attempts < limits.attempts:
        return None
    summary = f"{attempts} repairs of {request.name} within {_format_span(limits.attempts_window)}"
    remedy = "hand it over to the vendor" if request.node.node else "repair its power or cooling first"
    return f"{summary}, the limit is {limits.attempts}: {remedy}"


def guard_domain_repairs(inputs: GuardInputs) -> str | None:
    """One rack at a time; and a node that is drained for its rack is repaired afterwards."""
    running = inputs.availability.domain_repairs
    if inputs.place.domain is not None:
        other = next((repair for place, repair in running.items() if place != inputs.place), None)
        if other is None:
            return None
        return f"{other.id} of {other.node_name} is running: {len(running)} repair of a rack, the limit is 1"
    if inputs.request.domain is not None:
        return None
    holding = next((repair for repair in running.values() if inputs.place in repair.nodes_out), None)
    return None if holding is None else f"{inputs.request.name} is drained by {holding.id} for {holding.node_name}"


def guard_schedulers(inputs: GuardInputs) -> str | None:
    """Refuse while it is unknown how much of a budget is in use."""
    unreadable, nodes = inputs.availability.unreadable, len(inputs.availability.nodes)
    return f"unknown which of the {nodes:,} nodes others have cordoned: {unreadable[0]}" if unreadable else None


def guard_domain(inputs: GuardInputs) -> str | None:
    node = inputs.node
    for kind in inputs.limits.domains if node is not None else ():
        name = node.domains.get(kind) if node is not None else None
        out = inputs.availability.out_by_domain.get((kind, name or ""), ())
        others = [place for place in out if place != inputs.place and not _fails_together(inputs, place)]
        if name and others:
            return f"{others[0].node} in {kind} {name} is out of service: {len(others)} in that {kind}, the limit is 1"
        if (text := _unknown_domain_refusal(inputs, kind, is_known=name is not None)) is not None:
            return text
    return None


def _fails_together(inputs: GuardInputs, other: fleet.Place) -> bool:
    """Whether both nodes are in the rack that is drained: then `other` is no second failure of their leaf, either."""
    domain = inputs.request.domain
    return domain is not None and domain in inputs.availability.nodes[other].failure_domains()


def _unknown_domain_refusal(inputs: GuardInputs, kind: str, *, is_known: bool) -> str | None:
    """Refuse if the two nodes may share a domain: if the fleet has racks, a node without a rack may be in any."""
    availability = inputs.availability
    without_domain = availability.out_without_domain.get(kind)
    if without_domain is None:
        return None
    candidates = without_domain if is_known else availability.out_of_service
    other = next((place.node for place in candidates if place in availability.nodes and place != inputs.place), None)
    if other is None:
        return None
    unknown_node = other if is_known else inputs.place.node
    return f"the {kind} of {unknown_node} is unknown, and {other} is out of service: the limit is 1 node per {kind}"


def guard_pool_share(inputs: GuardInputs) -> str | None:
    node, availability = inputs.node, inputs.availability
    if node is None:
        return None
    out = availability.out_by_pool.get(node.pool, 0) - (inputs.place in availability.out_of_service)
    name = f"pool {node.pool}" if node.pool else "the unnamed pool"
    return _share_refusal(name, out, total=availability.nodes_by_pool[node.pool], percent=inputs.limits.pool_percent)


def guard_fleet_share(inputs: GuardInputs) -> str | None:
    nodes = inputs.availability.nodes
    out = sum(1 for place in inputs.availability.out_of_service if place in nodes and place != inputs.place)
    return _share_refusal("the fleet", out, total=len(nodes), percent=inputs.limits.fleet_percent)


def _share_refusal(name: str, out: int, *, total: int, percent: int) -> str | None:
    budget = out_of_service_budget(total, percent)
    if out + 1 <= budget:
        return None
    usage = f"{out} of {total} nodes of {name} are out of service"
    return f"{usage}, one more is {out + 1}, the limit is {budget} ({percent} %)"


def out_of_service_budget(nodes: int, percent: int) -> int:
    """Return how many of `nodes` may be out of service at once."""
    return max(1, nodes * percent // 100) if percent else 0


def guard_quorum(inputs: GuardInputs) -> str | None:
    node, availability = inputs.node, inputs.availability
    for quorum in inputs.limits.quorums:
        if node is None or node.pool != quorum.pool:
            continue
        if node.expected_gpus is None:
            return f"the number of GPUs of {node.name} is unknown, and jobs of {quorum.job_class} need {quorum.gpus}"
        is_out = inputs.place in availability.out_of_service
        own_healthy = 0 if is_out else node.expected_gpus - availability.faulty_gpus.get(inputs.place, 0)
        remaining = availability.healthy_gpus.get(quorum.pool, 0) - max(0, own_healthy)
        if remaining < quorum.gpus:
            shortage = f"pool {quorum.pool} would have {remaining} healthy GPUs left"
            return f"{shortage}, jobs of {quorum.job_class} need {quorum.gpus}"
    return None


def guard_rate(inputs: GuardInputs) -> str | None:
    limits, is_reclaim = inputs.limits, inputs.request.is_reclaim
    since, limit = inputs.now - limits.starts_window, limits.reclaims if is_reclaim else limits.starts
    recent = sum(start.at > since and start.is_reclaim == is_reclaim for start in inputs.availability.starts)
    if recent < limit:
        return None
    kind = "reclaims" if is_reclaim else "repairs"
    return f"{recent} {kind} started within {_format_span(limits.starts_window)}, the limit is {limit}"


def guard_quiet_hours(inputs: GuardInputs) -> str | None:
    """Refuse automatic starts only: the person who approves is present."""
    if inputs.request.mode is not trust.Mode.ACT:
        return None
    hours = next((hours for hours in inputs.limits.quiet_hours if hours.contains(inputs.now)), None)
    return None if hours is None else f"it is {inputs.now:%a %H:%M} UTC, within the quiet hours {hours}"


def breaker_trip_reason(
    requested_at: Mapping[fleet.Place, datetime], limits: GuardLimits, *, since: datetime | None, now: datetime
) -> str | None:
    """Return why the circuit breaker opens, or None; `since` is when it was last reset."""
    begin = max(now - limits.breaker_window, since) if since is not None else now - limits.breaker_window
    nodes = sum(1 for at in requested_at.values() if at > begin)
    if nodes <= limits.breaker_nodes:
        return None
    window = _format_span(limits.breaker_window)
    return f"{nodes} nodes requested a repair within {window}, the limit is {limits.breaker_nodes}"


def _format_span(span: timedelta) -> str:
    return durations.format_seconds(span.total_seconds())


Guard = Callable[[GuardInputs], str | None]
# In the order in which they are checked: first those that only a person can clear.
GUARDS: Mapping[str, Guard] = {
    "stop": guard_halt,
    "breaker": guard_circuit_breaker,
    "inventory": guard_inventory,
    "cluster": guard_cluster,
    "attempts": guard_attempts,
    "rack": guard_domain_repairs,
    "schedulers": guard_schedulers,
    "domain": guard_domain,
    "pool share": guard_pool_share,
    "fleet share": guard_fleet_share,
    "quorum": guard_quorum,
    "rate": guard_rate,
    "quiet hours": guard_quiet_hours,
}
# Guards that count nodes out of service.
CAPACITY_GUARDS = frozenset({"schedulers", "domain", "pool share", "fleet share", "quorum"})
# Guards that count failed repairs.
REPAIR_GUARDS = frozenset({"attempts"})
