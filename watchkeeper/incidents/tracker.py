"""Track incidents: apply signals, actions of people and the passing of time to them.

Each change is written to the journal first and then to memory. A restart rebuilds memory from the journal, so it
changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice

from watchkeeper.catalogue import causes
from watchkeeper.errors import InvalidTransition
from watchkeeper.incidents import correlate, job_effects
from watchkeeper.incidents.conditions import EVENT_RETENTION, Conditions
from watchkeeper.incidents.correlate import FLAP_TIME, CorrelationContext, Decision, IncidentStep
from watchkeeper.incidents.domains import Domains, domain_failure_signal
from watchkeeper.incidents.footprint import is_workload
from watchkeeper.incidents.incident_index import EARLIEST, IncidentIndex
from watchkeeper.incidents.recovery import BrokenGpu
from watchkeeper.incidents.signals import Signal, from_alert, from_event
from watchkeeper.kit import wire
from watchkeeper.kit.logs import fields
from watchkeeper.model import alerts, events, fleet
from watchkeeper.model.incidents import Incident, IncidentId, IncidentState, Member, MemberKind, age_key, move
from watchkeeper.model.repairs import Repair
from watchkeeper.store.journal import journal as journals

log = logging.getLogger(__name__)

# An incident resolves this long after its last signal ended, because a flapping fault has not ended.
HOLD_SECONDS = 60.0
# The time doubles with each reopening, up to this.
MAX_HOLD_SECONDS = 600.0
# A job that restarts after a repair loads its checkpoint for minutes; if it stalls longer, it has another fault.
JOB_RESTART = timedelta(minutes=5)
# A hub that was down for longer than MAX_ABSENCE has missed events. Agents send them within a minute of its return, and
# rules need their hold. During CATCH_UP the lack of signals does not end anything.
MAX_ABSENCE, CATCH_UP = timedelta(seconds=60), timedelta(minutes=3)
# An alert that still fires this long after a person resolved its incident reopens the incident.
UNSOLVED_SECONDS = 600.0
# Resolved incidents stay in memory until neither a returning fault nor a firing alert can reopen them.
RETENTION = max(FLAP_TIME, timedelta(seconds=2 * UNSOLVED_SECONDS))
# An event time outside these limits is wrong, and the time of arrival is used instead. A wrong time in the future would
# keep an incident open until then.
MAX_LATE, MAX_AHEAD = timedelta(days=30), timedelta(minutes=10)
CLAIMED_AT = "claimed_at"
# Each open incident is checked at least this often, to end quiet signals and resolve it.
CHECK_INTERVAL = timedelta(seconds=30)
CLEANUP_INTERVAL = timedelta(seconds=10)
# A fleet with more open incidents has one common fault that is not recognised; each takes some kB of memory.
MAX_OPEN = 20_000
# Alerts that were dropped at a limit and are retried.
MAX_WAITING_ALERTS = 20_000
# Up to so many open incidents get their root at once, others at the next cleanup.
MAX_LINKED = 1_000
# How many of them are retried at each cleanup.
MAX_RETRIES = 500
LOST_GPU_FAMILY = "gpu_lost"


@dataclass(frozen=True, slots=True)
class EventsApplied:
    events: tuple[events.Event, ...]
    changed_incidents: tuple[Incident, ...]


class IncidentTracker:
    """Not thread-safe: the hub calls it from one thread."""

    def __init__(
        self,
        journal: journals.Journal,
        *,
        now: datetime,
        names: Callable[[fleet.Place], str] = str,
        workloads: Callable[[fleet.Place], Sequence[str]] = lambda _: (),
        domains: Domains | None = None,
        under_repair: Callable[[fleet.Place], Collection[str]] = lambda _: (),
        active_repair: Callable[[IncidentId], Repair | None] = lambda _: None,
        last_alive: datetime | None = None,
    ) -> None:
        """`last_alive` is when the previous hub process was last running; None if unknown."""
        self._journal, self._active_repair = journal, active_repair
        self._domains = domains or Domains()
        self._context = CorrelationContext(names, workloads, journal.next_incident_id, self._domains, under_repair)
        self._index = IncidentIndex(self._domains, retention=RETENTION)
        self._conditions = Conditions()
        self._cleaned_at = EARLIEST
        was_away = last_alive is not None and now - last_alive > MAX_ABSENCE
        self._catch_up_period = (now, now + CATCH_UP) if was_away else (EARLIEST, EARLIEST)
        # Refs of alerts that were dropped at a limit, and the total of dropped signals.
        self._waiting_alerts: dict[str, None] = {}
        self.dropped_signals = 0
        self._needs_restore, self._are_roots_old = False, True
        self._restore(now)

    def open_incidents(self) -> list[Incident]:
        return self._index.open()

    def apply_events(self, batch: Sequence[events.Event], now: datetime) -> EventsApplied:
        with self._transaction(now):
            fresh = self._journal.save_events([_with_plausible_time(event, now) for event in batch], now)
            changed: list[Incident] = []
            for event in fresh:
                changed += self._with_domains(self.apply_event(event, now), now)
            changed += self._apply_domain_failures(changed, now)
        return EventsApplied(tuple(fresh), tuple(_newest_versions(changed)))

    def apply_event(self, event: events.Event, now: datetime) -> list[Incident]:
        """Apply one new event, which is already in the journal."""
        self._conditions.remember(event, now)
        signal = from_event(event)
        if signal is None:
            return _newest_versions(self._end_events(self._index.incidents_near(event.place), now))
        key = events.condition_key(event)
        condition = self._conditions.fold_condition(key, signal.cause, now=now)
        if condition is not None and not condition.is_open:
            signal = replace(signal, member=replace(signal.member, until=condition.cleared_at))
        before = self._conditions.member_of(key)
        near = self._index.incidents_near(event.place) if before is not None else ()
        live = (member.ref for incident in near if incident.is_open for member in incident.members if not member.until)
        if before is not None and before in live:
            return []
        return self._apply_signal(replace(signal, replaces=before), now, key=key)

    def apply_alerts(self, changed: Sequence[alerts.Alert], now: datetime) -> list[Incident]:
        with self._transaction(now):
            self._journal.save_alerts(changed, at=now)
            changed_incidents: list[Incident] = []
            for alert in changed:
                changed_incidents += self._with_domains(self.apply_alert(alert, now), now)
            return _newest_versions([*changed_incidents, *self._apply_domain_failures(changed_incidents, now)])

    def apply_alert(self, alert: alerts.Alert, now: datetime) -> list[Incident]:
        """Apply a firing or resolved alert; a repetition changes nothing."""
        signal = from_alert(alert)
        if signal is None:
            return []
        if alert.state is alerts.AlertState.RESOLVED and signal.member.until is None:
            signal = replace(signal, member=replace(signal.member, until=now))
        return self._apply_signal(signal, now)

    def tick(self, now: datetime, firing: Iterable[alerts.Alert] = ()) -> list[Incident]:
        """End quiet signals, resolve incidents whose signals ended, update titles and remove old incidents.

        `firing` are all alerts that fire now: an alert whose incident a person resolved can reopen it.
        """
        if self._needs_restore:
            self._restore(now)
        is_cleanup_due = not self._cleaned_at <= now < self._cleaned_at + CLEANUP_INTERVAL
        changed = self._reapply_alerts(firing, now, with_waiting=is_cleanup_due)
        # If the clock was set back, checks that are due later than this are due now.
        latest_check = now + CHECK_INTERVAL + timedelta(seconds=MAX_HOLD_SECONDS)
        is_catching_up = self._catch_up_period[0] <= now < self._catch_up_period[1]
        for incident in () if is_catching_up else self._index.due_incidents(now, latest_check):
            changed += self._check(incident, now)
        if is_cleanup_due:
            self._cleaned_at = now
            # A page may report the GPU index meanwhile, which replaces the UUID in the title.
            for incident in self.open_incidents():
                renamed = correlate.update_title(incident, self._context.names)
                if renamed is not incident:
                    changed.append(self._save(renamed, IncidentStep.RENAMED, text=f"Renamed: {renamed.title}", at=now))
            removed = self._index.remove_expired(now)
            self._conditions.forget((member for incident in removed for member in incident.members), now)
        # With very many incidents the roots wait for the next cleanup.
        if self._are_roots_old and (is_cleanup_due or self._index.open_count <= MAX_LINKED):
            changed += self._link_roots(now)
            self._are_roots_old = False
        return _newest_versions(changed)

    def _link_roots(self, now: datetime) -> list[Incident]:
        """Name the incident that stops the job at a place in the other incidents there."""
        roots, changed = job_effects.find_roots(self.open_incidents()), []
        for incident in self.open_incidents():
            root = roots.get(incident.id)
            if root != incident.root:
                linked, text = correlate.link_root(incident, root)
                changed.append(self._save(linked, IncidentStep.LINKED, text=text, at=now))
        return changed

    def _check(self, incident: Incident, now: datetime) -> list[Incident]:
        """End quiet signals, resolve the incident if all signals ended, otherwise schedule its next check."""
        changed = self._end_events([incident], now)
        incident = self._index.get(incident.id) or incident
        own, job_signals = _own_members(incident), job_effects.ongoing_job_signals(incident)
        ends = [member.until for member in own if member.until is not None]
        if len(ends) < len(own):
            self._index.schedule_check(incident.id, min([now + CHECK_INTERVAL, *self._conditions.expiry_times(own)]))
            return changed
        hold = timedelta(seconds=min(HOLD_SECONDS * 2 ** min(incident.reopened, 10), MAX_HOLD_SECONDS))
        resolves_at = max(ends, default=now) + max(hold, JOB_RESTART if job_signals else timedelta())
        # Of a recovering incident the hold has passed, or a person resolved it.
        if now < resolves_at and incident.recovering_since is None:
            next_check = min(resolves_at, now + CHECK_INTERVAL) if job_signals else resolves_at
            self._index.schedule_check(incident.id, next_check)
            return changed
        text = "The signal ended and did not return" if len(ends) == 1 else f"All {len(ends)} signals ended"
        with self._transaction(now):
            # In a transaction: a repair starts in one too, and only while its incident is open.
            if (repair := self._active_repair(incident.id)) is not None:
                return changed + self._keep_recovering(incident, repair, text=text, now=now)
            resolved = move(_with_members_ended(incident, now), IncidentState.RESOLVED, at=now)
            changed.append(self._save(resolved, IncidentStep.RESOLVED, text=text, at=now))
            for signal in job_signals:
                changed += self._reassign(signal, now)
        return changed

    def _keep_recovering(
        self, incident: Incident, repair: Repair, *, text: str, now: datetime, actor: str = journals.HUB
    ) -> list[Incident]:
        """Keep the incident open until its repair has ended; the next tick checks again."""
        if incident.recovering_since is not None:
            return []
        text = f"{text}; it resolves when {repair.id} has ended, which is {repair.activity}"
        recovering = replace(incident, recovering_since=now, version=incident.version + 1)
        return [self._save(recovering, IncidentStep.RECOVERING, text=text, at=now, actor=actor)]

    def _reassign(self, signal: Signal, now: datetime) -> list[Incident]:
        """Move a signal that is still true out of its ended incident; at a limit `tick` retries."""
        decision = correlate.correlate_lasting(self._candidates(signal), signal, now=now, context=self._context)
        has_capacity = decision.step is not IncidentStep.OPENED or self._index.open_count < MAX_OPEN
        if decision.incident is not None and has_capacity:
            return self._write(decision, now)
        if not has_capacity:
            self._drop_signal(signal.member, _limit_text(self._index.open_count))
        return []

    def _candidates(self, signal: Signal) -> list[Incident]:
        """The incidents that a signal may belong to; for a job also the faults under its ranks."""
        place = signal.place
        may_concern_job = causes.is_job_effect(signal.cause) or causes.is_effect_of_jobs(signal.family)
        if is_workload(place) and not signal.has_ended and may_concern_job:
            return self._index.incidents_under_job(place, signal.job)
        return self._index.incidents_near(place, signal.job, signal.member.own_family)

    def acknowledge(self, id: str, actor: str, now: datetime) -> Incident:
        incident = self._find(id)
        if incident.state is IncidentState.ACKNOWLEDGED:
            by = f" by {incident.assignee}" if incident.assignee else ""
            raise InvalidTransition(f"already acknowledged{by}", where=id, remedy="Assign it to yourself to take over")
        incident = replace(move(incident, IncidentState.ACKNOWLEDGED, at=now), assignee=actor)
        return self._save(incident, IncidentStep.ACKNOWLEDGED, text=f"{actor} is working on it", at=now, actor=actor)

    def assign(self, id: str, actor: str, *, to: str, now: datetime) -> Incident:
        """Assign an incident to a person, which also acknowledges it."""
        incident = self._find(id)
        if incident.state is IncidentState.OPEN:
            incident = move(incident, IncidentState.ACKNOWLEDGED, at=now)
        elif incident.is_open:
            incident = replace(incident, version=incident.version + 1)
        else:
            raise InvalidTransition("a resolved incident cannot be assigned", where=id, remedy="Assign an open one")
        incident = replace(incident, assignee=to)
        return self._save(incident, IncidentStep.ASSIGNED, text=f"Assigned to {to}", at=now, actor=actor)

    def recent(self) -> list[Incident]:
        return self._index.all()

    def resolve(self, id: str, actor: str, *, why: str, now: datetime) -> Incident:
        """Resolve an incident; while its repair has the node, it is recovering, and resolves when the repair ends."""
        with self._transaction(now):
            ended = _with_members_ended(self._find(id), now)
            repair = self._active_repair(ended.id) if ended.is_open else None
            if repair is None:
                resolved = move(ended, IncidentState.RESOLVED, at=now)
                return self._save(resolved, IncidentStep.RESOLVED, text=why, at=now, actor=actor)
            if ended.recovering_since is not None:
                problem = f"it is recovering already: {repair.id} is {repair.activity}"
                raise InvalidTransition(problem, where=id, remedy=f"It resolves when {repair.id} has ended")
            return self._keep_recovering(ended, repair, text=why, now=now, actor=actor)[0]

    def add_note(self, id: str, actor: str, *, text: str, now: datetime) -> None:
        self._journal.record(IncidentStep.NOTED, self._find(id).id, at=now, actor=actor, body={"text": text})

    def record_correction(self, id: str, actor: str, *, body: Mapping[str, str], now: datetime) -> Incident:
        """Store a person's correction of the cause for the diagnosis; the incident itself follows its signals."""
        incident = self._find(id)
        self._journal.record("cause", incident.id, at=now, actor=actor, body=body)
        return incident

    def explain(self, id: str, cause: str, now: datetime) -> list[Incident]:
        """Apply the result of a diagnosis: another fault caused this incident."""
        incident = self._find(id)
        if not incident.is_open or incident.cause == cause:
            return []
        near = [other for other in self._index.incidents_near(incident.place) if other.id != incident.id]
        return self._write(correlate.explain(near, incident, cause=cause, context=self._context), now)

    def broken_gpus(self) -> list[BrokenGpu]:
        """GPUs of open incidents with a hardware fault that only a reset ends, each with its newest fault."""
        gpus: dict[fleet.Place, BrokenGpu] = {}
        members = [(incident, member) for incident in self.open_incidents() for member in incident.members]
        for incident, member in members:
            is_open_on_gpu = member.until is None and member.place.gpu is not None
            last = self._conditions.last_fault(member) if is_open_on_gpu else None
            if last is None:
                continue
            place, (since, received_at) = replace(member.place, slice=None), last
            previous = gpus.get(place, BrokenGpu(place, since, False, received_at))
            is_lost = previous.is_lost or incident.family == LOST_GPU_FAMILY
            gpus[place] = BrokenGpu(place, max(since, previous.since), is_lost, max(received_at, previous.received_at))
        return list(gpus.values())

    def _apply_signal(self, signal: Signal, now: datetime, *, key: events.ConditionKey | None = None) -> list[Incident]:
        decision = correlate.correlate(self._candidates(signal), signal, now=now, context=self._context)
        if decision.step is IncidentStep.OPENED and self._index.open_count >= MAX_OPEN:
            decision = Decision(IncidentStep.NOTHING, text=_limit_text(self._index.open_count))
        if decision.incident is None:
            if decision.text:
                self._drop_signal(signal.member, decision.text)
            return []
        changed = self._write(decision, now)
        if key is not None:
            self._conditions.link_member(key, signal.member.ref)
        return changed

    def _drop_signal(self, member: Member, reason: str) -> None:
        """Drop a signal at a limit, logged once; an alert waits until `tick` retries it."""
        if member.until is not None:
            self._waiting_alerts.pop(member.ref, None)
            return
        if member.ref in self._waiting_alerts:
            return
        self.dropped_signals += 1
        log.warning("incident signal dropped", extra=fields(ref=member.ref[:200], reason=reason))
        if member.kind is MemberKind.ALERT and len(self._waiting_alerts) < MAX_WAITING_ALERTS:
            self._waiting_alerts[member.ref] = None

    def _with_domains(self, changed: list[Incident], now: datetime) -> list[Incident]:
        """Apply domain failures of changed nodes immediately, so that the other nodes of a rack join them."""
        of_nodes = [incident for incident in changed if incident.place.domain is None]
        return [*changed, *self._apply_domain_failures(of_nodes, now)]

    def _apply_domain_failures(self, changed: Iterable[Incident], now: datetime) -> list[Incident]:
        """Merge the incidents of nodes into one if their rack or leaf switch has failed."""
        domain_incidents: list[Incident] = []
        for changed_incident in _newest_versions(changed):
            newest = self._index.get(changed_incident.id) or changed_incident
            signal = domain_failure_signal(newest, self._domains, near=self._index.incidents_near)
            domain_incidents += self._apply_signal(signal, now) if signal is not None else ()
        return domain_incidents

    def _write(self, decision: Decision, now: datetime) -> list[Incident]:
        assert decision.incident is not None
        changed = []
        with self._transaction(now):
            for absorbed in decision.absorbed:
                resolved, text = correlate.absorb(absorbed, decision.incident.id, at=now)
                changed.append(self._save(resolved, IncidentStep.ABSORBED, text=text, at=now))
            changed.append(self._save(decision.incident, decision.step, text=decision.text, at=now))
        return changed

    @contextmanager
    def _transaction(self, now: datetime) -> Iterator[None]:
        """One transaction of the journal; if it fails, memory is rebuilt from the journal."""
        if self._needs_restore:
            self._restore(now)
        try:
            with self._journal.transaction():
                yield
        # Deliberately everything: an incident that is only in memory would absorb its signals and never be stored.
        except BaseException:
            self._restore(now)
            raise

    def _reapply_alerts(self, firing: Iterable[alerts.Alert], now: datetime, *, with_waiting: bool) -> list[Incident]:
        unsolved = {
            member.ref
            for incident in self._index.all()
            if incident.resolved_at is not None and now - incident.resolved_at >= timedelta(seconds=UNSOLVED_SECONDS)
            for member in incident.members
            if member.kind is MemberKind.ALERT
        }
        retried = set(islice(self._waiting_alerts, MAX_RETRIES)) if with_waiting else set()
        unsolved |= retried
        # Usually no person has resolved anything: then the scan of all incidents is skipped.
        if unsolved:
            members = (member for incident in self.open_incidents() for member in incident.members)
            unsolved -= {member.ref for member in members if member.until is None}
        changed: list[Incident] = []
        still_waiting: dict[str, None] = {}
        for alert in firing if unsolved else ():
            is_unsolved = alert.state is alerts.AlertState.FIRING and str(alert.labels) in unsolved
            signal = from_alert(alert) if is_unsolved else None
            if signal is None:
                continue
            reassigned = self._reassign(signal, now)
            changed += reassigned
            if not reassigned and signal.member.ref in self._waiting_alerts:
                still_waiting[signal.member.ref] = None
        # Those that are refused again wait behind the others.
        waiting = dict.fromkeys(ref for ref in self._waiting_alerts if ref not in retried)
        self._waiting_alerts = {**waiting, **still_waiting}
        return changed

    def _save(
        self, incident: Incident, step: IncidentStep, *, text: str, at: datetime, actor: str = journals.HUB
    ) -> Incident:
        if incident.recovering_since is not None and any(member.until is None for member in _own_members(incident)):
            incident = replace(incident, recovering_since=None)
        self._journal.save_incident(incident, kind=step, text=text, at=at, actor=actor)
        self._index.put(incident)
        self._are_roots_old = True
        log.info("incident changed", extra=fields(incident=incident.id, step=step, title=incident.title, text=text))
        return incident

    def _end_events(self, incidents: Iterable[Incident], now: datetime) -> list[Incident]:
        changed = []
        for incident in incidents:
            for member in [member for member in incident.members if member.until is None and incident.is_open]:
                condition = self._conditions.cleared_condition(member, now=now)
                if condition is None or condition.cleared_at is None:
                    continue
                incident = correlate.end_member(incident, member.ref, until=condition.cleared_at)
                text = f"Ended ({condition.cleared_why}): {member.text}"
                changed.append(self._save(incident, IncidentStep.ENDED, text=text, at=now))
        return changed

    def _find(self, id: str) -> Incident:
        incident = self._index.get(IncidentId(id)) or self._journal.incident(id)
        if incident is None:
            remedy = "List incidents with `watchkeeper incidents`"
            raise InvalidTransition("there is no such incident", where=id, remedy=remedy)
        return incident

    def _restore(self, now: datetime) -> None:
        """Rebuild memory from the journal; if that fails, the next call tries again."""
        self._needs_restore = True
        self._index.clear()
        self._conditions.clear()
        stored = [*self._journal.incidents(open_only=True, limit=journals.MAX_ROWS), *self._journal.incidents()]
        for incident in sorted(stored, key=age_key):
            if incident.id not in self._index and self._index.is_retained(incident, now):
                self._index.put(incident)
        recall = now - EVENT_RETENTION
        for recent in self._journal.latest_events(None, recall):
            self._conditions.remember(recent, now)
        for place, incidents in self._index.by_place():
            members = [member for incident in incidents for member in incident.members]
            for member in members:
                event = self._journal.event(member.ref) if member.kind is MemberKind.EVENT else None
                if event is not None:
                    self._conditions.link_member(events.condition_key(event), member.ref)
            oldest = min(member.since for member in members)
            for recent in self._journal.latest_events(place, oldest) if oldest < recall else ():
                self._conditions.remember(recent, now)
        self._needs_restore = False


def _with_plausible_time(event: events.Event, now: datetime) -> events.Event:
    """The event; if its time is not plausible, with the time of arrival, and its own time in `claimed_at`."""
    if now - MAX_LATE <= event.at <= now + MAX_AHEAD:
        return event
    return replace(event, at=now, fields={**event.fields, CLAIMED_AT: wire.format_time(event.at)})


def _limit_text(count: int) -> str:
    return f"{count:,} incidents are open, the limit is {MAX_OPEN:,}"


def _own_members(incident: Incident) -> list[Member]:
    """The signals of the fault itself, without those of its domain and of jobs that it stopped."""
    excluded = [signal.member for signal in job_effects.ongoing_job_signals(incident)]
    return [member for member in incident.members if member.kind is not MemberKind.DOMAIN and member not in excluded]


def _with_members_ended(incident: Incident, now: datetime) -> Incident:
    return replace(incident, members=tuple(replace(member, until=member.until or now) for member in incident.members))


def _newest_versions(changed: Iterable[Incident]) -> list[Incident]:
    return list({incident.id: incident for incident in changed}.values())
