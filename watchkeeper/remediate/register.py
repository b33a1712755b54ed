"""What the journal has of repairs, in memory: those that wait, run or hold a node, what is counted, and the switch.

`Repairs` is a register that also decides and calls. Everything is written into the journal first and changed here in
the same transaction (`changing`, `keep`); one that breaks takes memory back to what the journal has. Whoever calls a
cluster about a node takes its `turn` before the lock.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

from watchkeeper.kit.logs import fields
from watchkeeper.model import fleet, incidents, trust
from watchkeeper.model.repairs import Repair, RepairId, RepairSwitch
from watchkeeper.remediate import guards
from watchkeeper.remediate.dependencies import RepairDependencies
from watchkeeper.remediate.driver import NodeObservation
from watchkeeper.remediate.moves import mark_incident
from watchkeeper.remediate.proposal import RepairProposal, workloads_of
from watchkeeper.remediate.stray_cordons import StrayCordons
from watchkeeper.store.journal.journal import HUB, REPAIR_STEP

log = logging.getLogger(__name__)

# On the timeline of the incident, or only in the audit.
STORY, STEP = "repair", REPAIR_STEP
# What is counted may be this old; a change of our own is counted at once.
COUNTED = timedelta(seconds=5)
# The inventory is counted this often by the sweep, and at once for a node that it did not have.
COUNTED_NODES = timedelta(seconds=30)
MOST_STARTS = 10_000


class RepairRegister:
    """Every method may be called from any thread."""

    def __init__(self, around: RepairDependencies, *, now: datetime) -> None:
        self._around = around
        self._lock = threading.RLock()
        self._turns: dict[fleet.Place, threading.Lock] = {}
        # A stop that the journal does not have yet: it holds all the same.
        self._unwritten: RepairSwitch | None = None
        # Nodes that could not be looked at the last time.
        self._unseen: set[fleet.Place] = set()
        self._has_swept = False
        self._watched_since = now
        self._restore(now)

    def _restore(self, now: datetime) -> None:
        shelf = self._around.journal
        self._alive: dict[RepairId, Repair] = {one.id: one for one in shelf.active_repairs()}
        self._by_node: dict[fleet.Place, set[RepairId]] = {}
        for one in self._alive.values():
            self._by_node.setdefault(one.node, set()).add(one.id)
        self._acting: dict[fleet.Place, frozenset[incidents.IncidentId]] = {}
        for node in self._by_node:
            self._note_acting(node)
        self.switch = self._unwritten or shelf.switch()
        past = shelf.latest_repairs(limit=MOST_STARTS)
        self._starts = [
            guards.RepairStart(one.started_at, one.node, one.cause, one.gpu, one.is_reclaim)
            for one in reversed(past)
            if one.started_at is not None
        ]
        self._wanted = {
            one.node: one.made_at for one in reversed(past) if one.mode is not trust.Mode.SUGGEST and not one.is_reclaim
        }
        self._late = StrayCordons(reversed(past), now)
        self._looked: dict[RepairId, datetime] = {}
        # Begun by this process and not called yet.
        self._fresh: set[RepairId] = set()
        self._counted: tuple[datetime, guards.FleetAvailability] | None = None
        self._inventory: tuple[datetime, guards.InventoryCounts] | None = None
        self._open: set[str] = shelf.open_incident_ids()
        # True while memory may have what the journal does not: a transaction broke, and the journal cannot be read.
        self._is_torn = False

    def active_repairs(self) -> list[Repair]:
        """Those that wait, run, or hold a node; oldest first."""
        with self._lock:
            return sorted(self._alive.values(), key=lambda one: one.made_at)

    def find(self, id: str) -> Repair | None:
        """By its own id, or the newest one that an incident waits for."""
        with self._lock:
            known = self._alive.get(RepairId(id))
            waiting = [one for one in self._alive.values() if id in one.openings]
        if known is not None or waiting:
            return known or max(waiting, key=lambda one: (not one.is_ended, one.made_at))
        return next(iter(self._around.journal.repairs_of(id, limit=1)), None)

    def fleet_availability(self, now: datetime, about: fleet.Place | None = None) -> guards.FleetAvailability:
        with self._lock:
            is_new = about is not None and about not in self._census(now).nodes
            # To look for one node is a tenth of the work of counting all of them.
            if is_new and any(node.place == about for node in self._around.list_nodes()):
                self._census(now, timedelta())
            if self._counted is None or not timedelta() <= now - self._counted[0] < COUNTED:
                out = {
                    **self._around.out_of_service(),
                    **{one.node: one.id for one in self._alive.values() if one.is_out_of_service},
                }
                limits = self._around.limits
                since = now - max(limits.starts_window, limits.attempts_window)
                found = guards.count_availability(
                    self._census(now),
                    out,
                    starts=[start for start in self._starts if start.at > since],
                    switch=self.switch,
                    sick_gpus=self._around.count_sick_gpus(),
                    blind=self._around.unreadable_schedulers(),
                )
                self._counted = (now, found)
            return self._counted[1]

    def _census(self, now: datetime, most_old: timedelta = 2 * COUNTED_NODES) -> guards.InventoryCounts:
        if self._inventory is None or not timedelta() <= now - self._inventory[0] < most_old:
            self._inventory = (now, guards.count_inventory(self._around.list_nodes()))
            self._counted = None
        return self._inventory[1]

    def refusals(self, repair: Repair, now: datetime) -> list[guards.GuardRefusal]:
        """What every guard that objects would say now."""
        return guards.find_refusals(
            request_of(repair), self.fleet_availability(now, repair.node), self._around.limits, now=now
        )

    def incidents_under_repair(self, node: fleet.Place) -> frozenset[incidents.IncidentId]:
        """The incidents whose repair has changed the machine and is not over.

        Without the lock: the incidents ask in the middle of a transaction of their own.
        """
        return self._acting.get(node, frozenset())

    def _note_acting(self, node: fleet.Place) -> None:
        acting = [one for one in self._at(node) if one.is_running and one.has_acted]
        if acting:
            self._acting[node] = frozenset(id for one in acting for id in one.openings)
        else:
            self._acting.pop(node, None)

    def _at(self, node: fleet.Place) -> list[Repair]:
        return [self._alive[id] for id in self._by_node.get(node, ())]

    def _holding(self, node: fleet.Place) -> Repair | None:
        """A failed repair that holds the node."""
        return next((one for one in self._at(node) if one.keeps_cordon), None)

    def _in_the_way(self, want: RepairProposal) -> Repair | None:
        """The repair that waits or runs for what a plan wants.

        Who wants the node out of service does not wait for somebody who restarts a program on it, and of several who
        hold its GPUs without use each is asked alone.
        """
        for one in self._at(want.node):
            if one.keeps_cordon or (want.takes_node_out and not one.takes_node_out):
                continue
            if one.takes_node_out or one.is_reclaim == want.is_reclaim:
                is_another = want.is_reclaim and workloads_of(one.actions) != want.workloads
                if one.takes_node_out or not is_another:
                    return one
        return None

    @contextmanager
    def lock_node(self, node: fleet.Place) -> Iterator[None]:
        """Two calls about one node are never made at once. To be taken before the lock, never after."""
        with self._lock:
            turn = self._turns.setdefault(node, threading.Lock())
        with turn:
            yield

    @contextmanager
    def transaction(self, now: datetime) -> Iterator[None]:
        """One transaction under the lock; whatever breaks it, memory goes back to what the journal has."""
        with self._lock:
            if self._is_torn:
                self._restore(now)
            try:
                with self._around.journal.transaction():
                    yield
            # Deliberately everything: a repair that only memory has would act on nobody's word.
            except BaseException:
                self._is_torn = True
                self._restore(now)
                raise

    def save(self, repair: Repair, now: datetime, *, text: str, kind: str = STORY, actor: str = HUB) -> Repair:
        before = self._alive.get(repair.id)
        self._around.journal.save_repair(repair, at=now, actor=actor, text=text, kind=kind)
        there = self._by_node.setdefault(repair.node, set())
        if repair.is_alive:
            self._alive[repair.id] = repair
            there.add(repair.id)
        else:
            self._alive.pop(repair.id, None)
            there.discard(repair.id)
            self._late.remember(repair, now)
            self._looked.pop(repair.id, None)
            self._fresh.discard(repair.id)
        self._note_acting(repair.node)
        if (before is not None and before.is_out_of_service) != repair.is_out_of_service:
            self._counted = None
        if kind == STORY:
            log.info(
                "Repair changed", extra=fields(repair=repair.id, node=repair.node.node, state=repair.state, text=text)
            )
        self._around.on_change()
        return repair

    def note_unchanged_cause(self, repair: Repair, incident: incidents.IncidentId, now: datetime) -> None:
        """For people who read why a node that does not answer is not an incident of its own."""
        what = f"{repair.id} is at work on {repair.node.node}"
        self._tell(incident, f"{what}: what is seen of it meanwhile does not change the cause, {repair.cause}", now)

    def _tell(self, incident: incidents.IncidentId, text: str, now: datetime) -> None:
        self._around.journal.record(STORY, incident, at=now, actor=HUB, body={"text": text})

    def stop_immediately(self, switch: RepairSwitch) -> None:
        """Before the journal has it, and also where the journal cannot take it: nothing is called any more."""
        self._unwritten = self.switch = switch

    def save_switch(self, switch: RepairSwitch, now: datetime, *, actor: str, text: str) -> RepairSwitch:
        self._around.journal.save_switch(switch, at=now, actor=actor, text=text)
        self.switch, self._counted, self._unwritten = switch, None, None
        self._around.on_change()
        return switch

    def _own_mark(self, observed: NodeObservation) -> incidents.IncidentId | None:
        """The incident of our mark on a node; a mark that our journal does not know is of another hub."""
        found = mark_incident(observed.cordoned_by)
        if found is None:
            return None
        with self._lock:
            is_known = any(found in self._alive[id].openings for id in self._by_node.get(observed.place, ()))
        # Another hub counts its incidents as we do: the number alone does not make a mark ours, the node does.
        past = () if is_known else self._around.journal.repairs_of(found)
        return found if is_known or any(one.node == observed.place for one in past) else None


def request_of(repair: Repair) -> guards.RepairRequest:
    return guards.RepairRequest(
        repair.node,
        repair.cause,
        repair.mode,
        repair.gpu,
        takes_node_out=repair.takes_node_out,
        is_reclaim=repair.is_reclaim,
    )
