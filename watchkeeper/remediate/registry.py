"""Keep active repairs, availability counts and the halt switch in memory, in step with the journal.

`Repairs` extends this class with decisions and calls. Every change is written to the journal and to memory in one
transaction (`transaction`, `save`); if it fails, memory is loaded from the journal again. A caller that changes a node
takes `lock_node` before the lock.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from watchkeeper.errors import ActionFailed, ActionRefused
from watchkeeper.kit.logs import fields
from watchkeeper.model import actions, events, fleet, incidents, trust
from watchkeeper.model.repairs import Repair, RepairId, RepairSwitch
from watchkeeper.remediate import guards, validation
from watchkeeper.remediate.driver import Driver, NodeObservation
from watchkeeper.remediate.proposal import RepairProposal, build_request, named_workloads
from watchkeeper.remediate.transitions import read_marked_incident
from watchkeeper.remediate.trust_rules import ModeDecision
from watchkeeper.store.journal.journal import HUB, REPAIR_STEP, Journal

log = logging.getLogger(__name__)

# Kinds of journal entries: on the timeline of the incident, or only in the audit log.
TIMELINE_ENTRY, AUDIT_ENTRY = "repair", REPAIR_STEP
# Counts of availability may be this old; our own changes are counted at once.
AVAILABILITY_MAX_AGE = timedelta(seconds=5)
# The sweep counts the inventory this often; a request for a new node counts it at once.
INVENTORY_MAX_AGE = timedelta(seconds=30)
MAX_STARTS = 10_000
# A call that timed out may take effect after its repair has ended: its node is observed for this time, this often.
REMEMBERED_FOR, CHECK_INTERVAL = timedelta(hours=1), timedelta(minutes=5)


class StrayCordons:
    """The nodes of recently ended repairs. Not thread-safe."""

    def __init__(self, past: Iterable[Repair], now: datetime) -> None:
        self._ended = {
            repair.node: (repair.id, repair.ended_at)
            for repair in past
            if repair.ended_at and now - repair.ended_at < REMEMBERED_FOR and not repair.is_of_domain
        }
        self._checked_at: datetime | None = None

    def ended_at(self) -> dict[fleet.Place, datetime]:
        return {node: ended_at for node, (_, ended_at) in self._ended.copy().items()}

    def remember(self, ended: Repair, now: datetime) -> None:
        # The repair of a rack ends only after it has undone each of its cordons.
        if ended.is_of_domain:
            return
        self._ended[ended.node] = (ended.id, ended.ended_at or now)

    def check_nodes(
        self,
        observe: Callable[[fleet.Place], NodeObservation | None],
        is_busy: Callable[[fleet.Place], bool],
        now: datetime,
    ) -> list[tuple[RepairId, NodeObservation]]:
        """Observe the nodes without an active repair, each with the repair that ended there; empty between checks."""
        if self._checked_at is not None and timedelta() <= now - self._checked_at < CHECK_INTERVAL:
            return []
        self._checked_at = now
        observations: list[tuple[RepairId, NodeObservation]] = []
        for node, (id, ended_at) in list(self._ended.items()):
            if is_busy(node):
                continue
            observed = observe(node)
            if observed is None:
                # A timeout takes long: the remaining nodes are observed at the next check.
                return observations
            observations.append((id, observed))
            if not now - ended_at < REMEMBERED_FOR:
                self._ended.pop(node, None)
        return observations


def skip_idle_check(action: actions.Action, since: datetime, now: datetime) -> validation.CheckResult:  # noqa: ARG001
    return validation.CheckResult("idle", validation.CheckState.UNKNOWN, "no idle check is configured")


@dataclass(frozen=True, slots=True)
class RepairDependencies:
    """What repairs read and call. `list_nodes` is the inventory; `out_of_service` has nodes that others cordoned."""

    journal: Journal
    driver: Driver
    limits: guards.GuardLimits = field(default_factory=guards.GuardLimits)
    validators: Mapping[str, validation.Validator] = field(default_factory=dict)
    list_nodes: Callable[[], Iterable[fleet.Node]] = tuple
    out_of_service: Callable[[], Mapping[fleet.Place, str]] = dict
    # Why `out_of_service` may be incomplete; empty if it is complete.
    unreadable_schedulers: Callable[[], Sequence[str]] = tuple
    count_faulty_gpus: Callable[[], Mapping[fleet.Place, int]] = dict
    # Opens an incident for a node that stays out of service without one.
    report_event: Callable[[events.Event], None] = lambda _: None
    on_change: Callable[[], None] = lambda: None
    # Whether a node has booted since a time; None: no source reports its boots.
    check_boot: Callable[[fleet.Place, datetime, datetime], validation.CheckResult | None] = lambda *_: None
    # The mode under the current settings; None: the mode of the plan is still valid.
    current_mode: Callable[[Repair], ModeDecision | None] = lambda _: None
    # Whether the workloads of an action were idle from the first time to the second.
    check_idle: Callable[[actions.Action, datetime, datetime], validation.CheckResult] = skip_idle_check


class RepairRegistry:
    """Every method may be called from any thread."""

    def __init__(self, dependencies: RepairDependencies, *, now: datetime) -> None:
        self._dependencies = dependencies
        self._lock = threading.RLock()
        self._node_locks: dict[fleet.Place, threading.Lock] = {}
        # A halt that is not in the journal yet; it is in force already.
        self._unsaved_switch: RepairSwitch | None = None
        # Nodes whose last observation failed.
        self._unreachable_nodes: set[fleet.Place] = set()
        self._has_swept = False
        self._hub_started_at = now
        self._load(now)

    def _load(self, now: datetime) -> None:
        journal = self._dependencies.journal
        self._active: dict[RepairId, Repair] = {repair.id: repair for repair in journal.active_repairs()}
        self._ids_by_node: dict[fleet.Place, set[RepairId]] = {}
        for repair in self._active.values():
            self._ids_by_node.setdefault(repair.node, set()).add(repair.id)
        # Racks and other domains that have, or had, a repair.
        self._domains = {repair.node for repair in self._active.values() if repair.is_of_domain}
        self._acting_incidents: dict[fleet.Place, frozenset[incidents.IncidentId]] = {}
        self._by_incident = {
            id: repair for repair in self._active.values() if repair.has_node for id in repair.openings
        }
        for node in self._ids_by_node:
            self._update_acting_incidents(node)
        self.switch = self._unsaved_switch or journal.switch()
        past = journal.latest_repairs(limit=MAX_STARTS)
        self._starts = [
            guards.RepairStart(repair.started_at, repair.node, repair.cause, repair.gpu, repair.is_reclaim)
            for repair in reversed(past)
            if repair.started_at is not None
        ]
        counted = [repair for repair in past if repair.mode is not trust.Mode.SUGGEST and not repair.is_reclaim]
        self._requested_at = {repair.node: repair.made_at for repair in reversed(counted)}
        self._stray_cordons = StrayCordons(reversed(past), now)
        self._checked_at: dict[RepairId, datetime] = {}
        # Started by this process, first call not made yet.
        self._uncalled: set[RepairId] = set()
        self._availability: tuple[datetime, guards.FleetAvailability] | None = None
        self._inventory_counts: tuple[datetime, guards.InventoryCounts] | None = None
        self._open_incidents: set[str] = journal.open_incident_ids(with_recovering=False)
        # True while memory may differ from the journal: a transaction failed, and the journal could not be read.
        self._is_inconsistent = False

    def active_repairs(self) -> list[Repair]:
        with self._lock:
            return sorted(self._active.values(), key=lambda repair: repair.made_at)

    def find(self, id: str) -> Repair | None:
        """Return a repair by its id, or the newest repair of an incident."""
        with self._lock:
            repair = self._active.get(RepairId(id))
            waiting = [other for other in self._active.values() if id in other.openings]
        if repair is not None or waiting:
            return repair or max(waiting, key=lambda other: (not other.is_ended, other.made_at))
        return next(iter(self._dependencies.journal.repairs_of(id, limit=1)), None)

    def fleet_availability(self, now: datetime, node_place: fleet.Place | None = None) -> guards.FleetAvailability:
        with self._lock:
            is_new = node_place is not None and node_place not in self._count_inventory(now).nodes
            # Finding one node takes a tenth of the time of counting all.
            if is_new and any(node.place == node_place for node in self._dependencies.list_nodes()):
                self._count_inventory(now, timedelta())
            if self._availability is None or not timedelta() <= now - self._availability[0] < AVAILABILITY_MAX_AGE:
                out_of_service = {
                    **self._dependencies.out_of_service(),
                    **{node: repair.id for repair in self._active.values() for node in repair.nodes_out},
                }
                limits = self._dependencies.limits
                since = now - max(limits.starts_window, limits.attempts_window)
                availability = guards.count_availability(
                    self._count_inventory(now),
                    out_of_service,
                    starts=[start for start in self._starts if start.at > since],
                    switch=self.switch,
                    faulty_gpus=self._dependencies.count_faulty_gpus(),
                    unreadable=self._dependencies.unreadable_schedulers(),
                    domain_repairs={
                        repair.node: repair
                        for repair in self._domain_repairs()
                        if repair.is_running or repair.keeps_cordon
                    },
                )
                self._availability = (now, availability)
            return self._availability[1]

    def _count_inventory(self, now: datetime, max_age: timedelta = 2 * INVENTORY_MAX_AGE) -> guards.InventoryCounts:
        if self._inventory_counts is None or not timedelta() <= now - self._inventory_counts[0] < max_age:
            self._inventory_counts = (now, guards.count_inventory(self._dependencies.list_nodes()))
            self._availability = None
        return self._inventory_counts[1]

    def refusals(self, repair: Repair, now: datetime) -> Iterator[guards.GuardRefusal]:
        availability = self.fleet_availability(now, repair.node)
        inputs = guards.GuardInputs(build_request(repair), availability, self._dependencies.limits, now)
        yield from guards.find_refusals(inputs)
        if (text := self._describe_incomplete(repair)) is not None:
            yield guards.GuardRefusal("nodes", text)

    def _describe_incomplete(self, repair: Repair) -> str | None:
        """Return why a repair of a rack cannot reach each of its nodes, with both numbers."""
        caps = [step for step in repair.actions if step.kind is actions.ActionKind.LOWER_POWER and repair.is_of_domain]
        problems = []
        for step in caps:
            try:
                self._dependencies.driver.describe(step)
            except (ActionFailed, ActionRefused) as error:
                problems.append(f"{step.place.node}: {error}")
        if not problems:
            return None
        able = f"{len(caps) - len(problems)} of {len(caps)} nodes of {repair.node_name} can lower their power limit"
        return f"{able}, all {len(caps)} are needed: {problems[0]}"

    def drain_refusal(self, repair: Repair, node: fleet.Place, now: datetime) -> str | None:
        """Return which budget does not allow one more node of a rack to be drained."""
        request = guards.RepairRequest(node, repair.cause, repair.mode, domain=repair.node)
        availability = self.fleet_availability(now, node)
        inputs = guards.GuardInputs(request, availability, self._dependencies.limits, now)
        budgets = (refusal for refusal in guards.find_refusals(inputs) if refusal.guard in guards.CAPACITY_GUARDS)
        return next((f"{refusal.guard}: {refusal.text}" for refusal in budgets), None)

    def incidents_under_repair(self, node: fleet.Place) -> frozenset[incidents.IncidentId]:
        """Return the incidents with a running repair that has changed the machine.

        Takes no lock, because the incident service calls it inside its own transaction.
        """
        return self._acting_incidents.get(node, frozenset())

    def active_repair(self, incident: incidents.IncidentId) -> Repair | None:
        """Return the repair that runs for an incident or keeps its node cordoned; takes no lock, as above."""
        return self._by_incident.get(incident)

    def repairs_with_nodes(self) -> list[Repair]:
        """Return the repairs that run or keep a node cordoned; takes no lock, as above."""
        return list({repair.id: repair for repair in list(self._by_incident.values())}.values())

    def ended_at(self) -> dict[fleet.Place, datetime]:
        """Return when the last repair of each node ended, if that is not long ago."""
        return self._stray_cordons.ended_at()

    def _update_incidents(self, repair: Repair) -> None:
        for id in repair.openings:
            if repair.has_node:
                self._by_incident[id] = repair
            elif (current := self._by_incident.get(id)) is not None and current.id == repair.id:
                # An earlier repair may still keep the cordon.
                others = (other for other in self._active.values() if other.has_node and id in other.openings)
                if (other := next(others, None)) is None:
                    del self._by_incident[id]
                else:
                    self._by_incident[id] = other

    def _update_acting_incidents(self, node: fleet.Place) -> None:
        acting = [repair for repair in self._repairs_on(node) if repair.is_running and repair.has_acted]
        if acting:
            self._acting_incidents[node] = frozenset(id for repair in acting for id in repair.openings)
        else:
            self._acting_incidents.pop(node, None)

    def _repairs_on(self, node: fleet.Place) -> list[Repair]:
        return [self._active[id] for id in self._ids_by_node.get(node, ())]

    def _domain_repairs(self) -> list[Repair]:
        return [repair for domain in self._domains for repair in self._repairs_on(domain)]

    def _find_kept_cordon(self, node: fleet.Place) -> Repair | None:
        return next((repair for repair in self._repairs_on(node) if repair.keeps_cordon), None)

    def _find_conflict(self, proposal: RepairProposal) -> Repair | None:
        """Return the waiting or running repair of the node that stands in for the proposal.

        A proposal that takes the node out of service does not wait for one that restarts a workload, and reclaims of
        different workloads are separate repairs.
        """
        for repair in self._repairs_on(proposal.node):
            if repair.keeps_cordon or (proposal.takes_node_out and not repair.takes_node_out):
                continue
            if repair.takes_node_out or repair.is_reclaim == proposal.is_reclaim:
                has_other_workloads = proposal.is_reclaim and named_workloads(repair.actions) != proposal.workloads
                if repair.takes_node_out or not has_other_workloads:
                    return repair
        return None

    def _is_resolved(self, repair: Repair) -> bool:
        """Whether the faults of a repair have ended: its incidents are resolved, or recovering until it ends."""
        return not self._open_incidents.intersection(repair.openings)

    @contextmanager
    def lock_node(self, node: fleet.Place) -> Iterator[None]:
        """Prevent a second call for the same node. Take it before the lock, never after."""
        with self._lock:
            node_lock = self._node_locks.setdefault(node, threading.Lock())
        with node_lock:
            yield

    @contextmanager
    def transaction(self, now: datetime) -> Iterator[None]:
        """Run one journal transaction under the lock; if it fails, load memory from the journal again."""
        with self._lock:
            if self._is_inconsistent:
                self._load(now)
            try:
                with self._dependencies.journal.transaction():
                    yield
            # Deliberately everything: a repair that is only in memory would act without a record.
            except BaseException:
                self._is_inconsistent = True
                self._load(now)
                raise

    def save(self, repair: Repair, now: datetime, *, text: str, kind: str = TIMELINE_ENTRY, actor: str = HUB) -> Repair:
        previous = self._active.get(repair.id)
        self._dependencies.journal.save_repair(repair, at=now, actor=actor, text=text, kind=kind)
        repair_ids = self._ids_by_node.setdefault(repair.node, set())
        if repair.is_of_domain:
            self._domains.add(repair.node)
        if repair.is_alive:
            self._active[repair.id] = repair
            repair_ids.add(repair.id)
        else:
            self._active.pop(repair.id, None)
            repair_ids.discard(repair.id)
            self._stray_cordons.remember(repair, now)
            self._checked_at.pop(repair.id, None)
            self._uncalled.discard(repair.id)
        self._update_acting_incidents(repair.node)
        self._update_incidents(repair)
        if (frozenset() if previous is None else previous.nodes_out) != repair.nodes_out or repair.is_of_domain:
            self._availability = None
        if kind == TIMELINE_ENTRY:
            details = fields(repair=repair.id, node=repair.node_name, state=repair.state, text=text)
            log.info("repair changed", extra=details)
        self._dependencies.on_change()
        return repair

    def note_unchanged_cause(self, repair: Repair, incident: incidents.IncidentId, now: datetime) -> None:
        """Note on the timeline why signals of a node under repair do not change the cause."""
        note = f"new signals of the node do not change the cause, {repair.cause}"
        self._add_timeline_entry(incident, f"{repair.id} is running on {repair.node_name}: {note}", now)

    def _add_timeline_entry(self, incident: incidents.IncidentId, text: str, now: datetime) -> None:
        self._dependencies.journal.record(TIMELINE_ENTRY, incident, at=now, actor=HUB, body={"text": text})

    def halt_immediately(self, switch: RepairSwitch) -> None:
        """Halt all calls before the journal has the halt, or even if the journal cannot be written."""
        self._unsaved_switch = self.switch = switch

    def save_switch(self, switch: RepairSwitch, now: datetime, *, actor: str, text: str) -> RepairSwitch:
        self._dependencies.journal.save_switch(switch, at=now, actor=actor, text=text)
        self.switch, self._availability, self._unsaved_switch = switch, None, None
        self._dependencies.on_change()
        return switch

    def _find_own_mark(self, observed: NodeObservation) -> incidents.IncidentId | None:
        """Return the incident of our mark on a node; None for a mark that is not in our journal."""
        marked_incident = read_marked_incident(observed.cordoned_by)
        if marked_incident is None:
            return None
        with self._lock:
            candidates = (*self._repairs_on(observed.place), *self._domain_repairs())
            covering = (repair for repair in candidates if repair.covers(observed.place))
            is_known = any(marked_incident in repair.openings for repair in covering)
        # Another hub numbers its incidents in the same way: a mark is ours only with the same node.
        past = () if is_known else self._dependencies.journal.repairs_of(marked_incident)
        return marked_incident if is_known or any(repair.covers(observed.place) for repair in past) else None
