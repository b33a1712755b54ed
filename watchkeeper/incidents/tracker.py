"""The open incidents: what signals, people and time do to them.

The hub owns one `Incidents` and gives it every event, every alert that changed, and a tick now and
then; each call returns the incidents that changed. Everything is written through the journal before
memory changes, and memory is rebuilt from the journal, so a restart changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from watchkeeper.catalogue import effects
from watchkeeper.errors import InvalidTransition
from watchkeeper.incidents import job_effects
from watchkeeper.incidents.conditions import RECALL, Conditions
from watchkeeper.incidents.correlate import (
    FLAP_SECONDS,
    CorrelationContext,
    Decision,
    IncidentStep,
    absorb,
    correlate,
    correlate_lasting,
    end_member,
    explain,
    rename,
)
from watchkeeper.incidents.domains import Domains, shared_by_domain
from watchkeeper.incidents.footprint import is_workload
from watchkeeper.incidents.incident_index import AT_ONCE, IncidentIndex, age_key
from watchkeeper.incidents.recovery import BrokenGpu
from watchkeeper.incidents.signals import Signal, from_alert, from_event
from watchkeeper.kit import wire
from watchkeeper.kit.logs import fields
from watchkeeper.model import alerts, events, fleet
from watchkeeper.model.incidents import Incident, IncidentId, IncidentState, Member, MemberKind, move
from watchkeeper.store.journal import journal as journals

log = logging.getLogger(__name__)

# After the last signal has ended, wait this long: a fault that blinks is not over.
HOLD_SECONDS = 60.0
# One that keeps coming back waits twice as long each time, up to this: flapping is damped.
LONGEST_HOLD_SECONDS = 600.0
# A job that is restarted after a repair loads its checkpoint for minutes; one that stands longer is on its own.
RESTART = timedelta(minutes=5)
# A hub that was away for longer than this has missed something; agents hand it over within a minute of its return, and
# rules need their hold. Until then silence means nothing: what was not heard is not quiet.
AWAY, CATCH_UP = timedelta(seconds=60), timedelta(minutes=3)
# An alert that still fires this long after a person resolved its incident says that it is not solved.
UNSOLVED_SECONDS = 600.0
# Resolved incidents are remembered until neither a fault that returns nor an alert that goes on belongs to them.
REMEMBERED = timedelta(seconds=max(FLAP_SECONDS, 2 * UNSOLVED_SECONDS))
# No spool is as late and no clock as far ahead as this: such a time is wrong, and the time of arrival counts. A wrong
# time ahead would keep an incident open until then.
MOST_LATE, MOST_AHEAD = timedelta(days=30), timedelta(minutes=10)
CLAIMED_AT = "claimed_at"
# Time changes an incident when a signal was quiet or over for long enough; each is looked at this often anyway.
LOOK_AGAIN = timedelta(seconds=30)
TIDY = timedelta(seconds=10)
# A fleet with more open incidents has one fault that we do not see; each takes some kB of memory and a row on a page.
MOST_OPEN = 20_000
# Signals that found no room and may find it later.
MOST_LEFT_OUT = 20_000
LOST = "gpu_lost"


@dataclass(frozen=True, slots=True)
class EventsApplied:
    """What became of a push: the events that were new, and the incidents that changed."""

    events: tuple[events.Event, ...]
    changed_incidents: tuple[Incident, ...]


class IncidentTracker:
    """Not for several threads at once: the hub calls it from one."""

    def __init__(
        self,
        journal: journals.Journal,
        *,
        now: datetime,
        names: Callable[[fleet.Place], str] = str,
        workloads: Callable[[fleet.Place], Sequence[str]] = lambda _: (),
        domains: Domains | None = None,
        under_repair: Callable[[fleet.Place], Collection[str]] = lambda _: (),
        last_alive: datetime | None = None,
    ) -> None:
        """`last_alive` is when the hub before this one was last at work; None where nobody knows."""
        self._journal = journal
        self._domains = domains or Domains()
        self._around = CorrelationContext(
            names,
            workloads,
            journal.next_incident_id,
            self._domains.domains_of,
            under_repair,
            self._domains.job_runs_at,
            self._domains.job_holds,
            self._domains.pool_of,
        )
        self._shelf = IncidentIndex(self._domains, remembered=REMEMBERED)
        self._conditions = Conditions()
        self._tidied = AT_ONCE
        was_away = last_alive is not None and now - last_alive > AWAY
        self._deaf = (now, now + CATCH_UP) if was_away else (AT_ONCE, AT_ONCE)
        # Alerts that found no room in an incident, by their refs, and how many signals ever did not.
        self._left_out: dict[str, None] = {}
        self.dropped_signals = 0
        self._is_doubtful = False
        self._restore(now)

    def open_incidents(self) -> list[Incident]:
        """Open and acknowledged ones, oldest first."""
        return self._shelf.open()

    def apply_events(self, batch: Sequence[events.Event], now: datetime) -> EventsApplied:
        """Keep a push and what follows from it in one transaction: after a crash both are there or neither."""
        with self._together(now):
            fresh = self._journal.save_events([_plausible(event, now) for event in batch], now)
            changed: list[Incident] = []
            for event in fresh:
                changed += self._widened(self.apply_event(event, now), now)
            changed += self._widen(changed, now)
        return EventsApplied(tuple(fresh), tuple(_newest(changed)))

    def apply_event(self, event: events.Event, now: datetime) -> list[Incident]:
        """What one event, which the journal has as a new one, does to the incidents."""
        self._conditions.remember(event, now)
        signal = from_event(event)
        if signal is None:
            return _newest(self._end_events(self._shelf.incidents_near(event.place), now))
        key = events.condition_key(event)
        condition = self._conditions.fold_condition(key, signal.cause, now=now)
        if condition is not None and not condition.is_open:
            signal = replace(signal, member=replace(signal.member, until=condition.cleared_at))
        before = self._conditions.member_of(key)
        if before is not None and self._is_live(before, event.place):
            return []
        return self._take(replace(signal, replaces=before), now, key=key)

    def apply_alerts(self, changed: Sequence[alerts.Alert], now: datetime) -> list[Incident]:
        """Keep alerts that changed and what follows from them in one transaction."""
        with self._together(now):
            self._journal.save_alerts(changed, at=now)
            moved: list[Incident] = []
            for alert in changed:
                moved += self._widened(self.apply_alert(alert, now), now)
            return _newest([*moved, *self._widen(moved, now)])

    def apply_alert(self, alert: alerts.Alert, now: datetime) -> list[Incident]:
        """What an alert that fires, or has resolved, does to the incidents; the same news twice does nothing."""
        signal = from_alert(alert)
        if signal is None:
            return []
        if alert.state is alerts.AlertState.RESOLVED and signal.member.until is None:
            signal = replace(signal, member=replace(signal.member, until=now))
        return self._take(signal, now)

    def tick(self, now: datetime, firing: Iterable[alerts.Alert] = ()) -> list[Incident]:
        """End what has been quiet for long enough, resolve what has ended, rename and forget where it is time.

        `firing` are all alerts of the moment: one whose incident a person resolved brings it back.
        """
        if self._is_doubtful:
            self._restore(now)
        is_untidy = not self._tidied <= now < self._tidied + TIDY
        changed = self._bring_back(firing, now, with_left_out=is_untidy)
        # A clock that was put back must not make anything wait for the time it showed before.
        soon = now + LOOK_AGAIN + timedelta(seconds=LONGEST_HOLD_SECONDS)
        is_deaf = self._deaf[0] <= now < self._deaf[1]
        for incident in () if is_deaf else self._shelf.due_incidents(now, soon):
            changed += self._look_at(incident, now)
        if is_untidy:
            self._tidied = now
            changed += self._rename(now)
            gone = self._shelf.forget(now)
            self._conditions.forget((member for incident in gone for member in incident.members), now)
        return _newest(changed)

    def _rename(self, now: datetime) -> list[Incident]:
        """A GPU that broke before it was ever read is called by its number as soon as a page has told it."""
        named = [(incident, rename(incident, self._around.names)) for incident in self.open_incidents()]
        return [
            self._save(after, IncidentStep.RENAMED, text=f"By its name: {after.title}", at=now)
            for before, after in named
            if after is not before
        ]

    def _look_at(self, incident: Incident, now: datetime) -> list[Incident]:
        """End what was quiet for long enough, resolve it when all has ended, and say when to look again."""
        changed = self._end_events([incident], now)
        incident = self._shelf.get(incident.id) or incident
        suffering = job_effects.lasting(incident)
        jobs = [signal.member for signal in suffering]
        own = [one for one in incident.members if one.kind is not MemberKind.DOMAIN and one not in jobs]
        ends = [member.until for member in own if member.until is not None]
        if len(ends) < len(own):
            self._shelf.schedule_check(incident.id, min([now + LOOK_AGAIN, *self._conditions.quiet_times(own)]))
            return changed
        over_at = max(ends, default=now) + max(_hold(incident), RESTART if jobs else timedelta())
        if now < over_at:
            self._shelf.schedule_check(incident.id, min(over_at, now + LOOK_AGAIN) if jobs else over_at)
            return changed
        what = "The signal" if len(ends) == 1 else f"All {len(ends)} signals"
        done = move(_ended(incident, now), IncidentState.RESOLVED, at=now)
        with self._together(now):
            changed.append(self._save(done, IncidentStep.RESOLVED, text=f"{what} ended, and none returned", at=now))
            return [*changed, *(one for signal in suffering for one in self._go_on(signal, now))]

    def _go_on(self, signal: Signal, now: datetime) -> list[Incident]:
        """What lasts although its incident is over; where there is no room, `tick` tries again."""
        decision = correlate_lasting(self._near(signal), signal, now=now, around=self._around)
        has_room = decision.step is not IncidentStep.OPENED or self._shelf.open_count < MOST_OPEN
        if decision.incident is not None and has_room:
            return self._write(decision, now)
        if not has_room:
            self._leave_out(signal.member, _full(self._shelf.open_count))
        return []

    def _near(self, signal: Signal) -> list[Incident]:
        """What a signal may belong to: of a job also what broke under one of its ranks, of a pod its job's trouble."""
        place = signal.place
        is_of_jobs = effects.is_job_effect(signal.cause) or effects.is_effect_of_jobs(signal.family)
        if is_workload(place) and not signal.has_ended and is_of_jobs:
            return self._shelf.incidents_under_job(place)
        return self._shelf.incidents_near(place, signal.job)

    def acknowledge(self, id: str, actor: str, now: datetime) -> Incident:
        known = self._find(id)
        if known.state is IncidentState.ACKNOWLEDGED:
            remedy = "Assign it to yourself if you take it over"
            raise InvalidTransition(f"{known.assignee or 'somebody'} has it already", where=id, remedy=remedy)
        mine = replace(move(known, IncidentState.ACKNOWLEDGED, at=now), assignee=actor)
        return self._save(mine, IncidentStep.ACKNOWLEDGED, text=f"{actor} is working on it", at=now, actor=actor)

    def assign(self, id: str, actor: str, *, to: str, now: datetime) -> Incident:
        """Give it to somebody; it counts as acknowledged, because somebody has it."""
        incident = self._find(id)
        if incident.state is IncidentState.OPEN:
            incident = move(incident, IncidentState.ACKNOWLEDGED, at=now)
        elif incident.is_open:
            incident = replace(incident, version=incident.version + 1)
        else:
            raise InvalidTransition("a resolved incident is nobody's", where=id, remedy="Assign one that is open")
        return self._save(
            replace(incident, assignee=to), IncidentStep.ASSIGNED, text=f"{to} has it", at=now, actor=actor
        )

    def recent(self) -> list[Incident]:
        """Everything that is open or was until moments ago."""
        return self._shelf.all()

    def resolve(self, id: str, actor: str, *, why: str, now: datetime) -> Incident:
        done = move(_ended(self._find(id), now), IncidentState.RESOLVED, at=now)
        return self._save(done, IncidentStep.RESOLVED, text=why, at=now, actor=actor)

    def add_note(self, id: str, actor: str, *, text: str, now: datetime) -> None:
        """A remark for the timeline; the incident itself stays as it is."""
        incident = self._find(id)
        self._journal.record(IncidentStep.NOTED, incident.id, at=now, actor=actor, body={"text": text})

    def record_correction(self, id: str, actor: str, *, body: Mapping[str, str], now: datetime) -> Incident:
        """A person says what it was; the incident itself follows its signals, the word is kept for its diagnosis."""
        incident = self._find(id)
        self._journal.record("cause", incident.id, at=now, actor=actor, body=body)
        return incident

    def explain(self, id: str, cause: str, now: datetime) -> list[Incident]:
        """A diagnosis found the fault that brought this incident about."""
        incident = self._find(id)
        if not incident.is_open or incident.cause == cause:
            return []
        near = [one for one in self._shelf.incidents_near(incident.place) if one.id != incident.id]
        return self._write(explain(near, incident, cause=cause, around=self._around), now)

    def broken_gpus(self) -> list[BrokenGpu]:
        """GPUs of open incidents with a hardware fault that only a reset ends."""
        found: dict[fleet.Place, BrokenGpu] = {}
        lasting = ((one, member) for one in self.open_incidents() for member in one.members if member.until is None)
        for incident, member in lasting:
            last = self._conditions.last_fault(member) if member.place.gpu is not None else None
            if last is None:
                continue
            place, (since, heard_at) = replace(member.place, slice=None), last
            before = found.get(place, BrokenGpu(place, since, False, heard_at))
            is_lost = before.is_lost or incident.family == LOST
            found[place] = BrokenGpu(place, max(since, before.since), is_lost, max(heard_at, before.received_at))
        return list(found.values())

    def _take(self, signal: Signal, now: datetime, *, key: events.ConditionKey | None = None) -> list[Incident]:
        decision = correlate(self._near(signal), signal, now=now, around=self._around)
        if decision.step is IncidentStep.OPENED and self._shelf.open_count >= MOST_OPEN:
            decision = Decision(IncidentStep.NOTHING, text=_full(self._shelf.open_count))
        if decision.incident is None:
            if decision.text:
                self._leave_out(signal.member, decision.text)
            return []
        changed = self._write(decision, now)
        if key is not None:
            self._conditions.link_member(key, signal.member.ref)
        return changed

    def _leave_out(self, member: Member, why: str) -> None:
        """Remember an alert that found no room; `tick` brings it back when there is some. Said once for each."""
        if member.ref in self._left_out:
            return
        self.dropped_signals += 1
        log.warning("A signal was left out of the incidents", extra=fields(ref=member.ref[:200], why=why))
        if member.kind is MemberKind.ALERT and len(self._left_out) < MOST_LEFT_OUT:
            self._left_out[member.ref] = None

    def _widened(self, changed: list[Incident], now: datetime) -> list[Incident]:
        """With the domain at once, so that the rest of a rack joins it; how much of it failed is said at the end."""
        return [*changed, *self._widen([one for one in changed if one.place.domain is None], now)]

    def _widen(self, changed: Iterable[Incident], now: datetime) -> list[Incident]:
        """Incidents of nodes that turn out to be one of their rack or leaf switch."""
        wider: list[Incident] = []
        for incident in _newest(changed):
            newest = self._shelf.get(incident.id) or incident
            signal = shared_by_domain(newest, self._domains, near=self._shelf.incidents_near)
            wider += self._take(signal, now) if signal is not None else ()
        return wider

    def _write(self, decision: Decision, now: datetime) -> list[Incident]:
        assert decision.incident is not None
        changed = []
        with self._together(now):
            for part in decision.absorbed:
                done, text = absorb(part, decision.incident.id, at=now)
                changed.append(self._save(done, IncidentStep.ABSORBED, text=text, at=now))
            changed.append(self._save(decision.incident, decision.step, text=decision.text, at=now))
        return changed

    @contextmanager
    def _together(self, now: datetime) -> Iterator[None]:
        """One transaction; whatever breaks it, memory goes back to what the journal has."""
        if self._is_doubtful:
            self._restore(now)
        try:
            with self._journal.transaction():
                yield
        # Deliberately everything: an incident that only memory has would swallow its own signals for ever.
        except BaseException:
            self._restore(now)
            raise

    def _bring_back(self, firing: Iterable[alerts.Alert], now: datetime, *, with_left_out: bool) -> list[Incident]:
        unsolved = {
            member.ref
            for incident in self._shelf.all()
            if incident.resolved_at is not None and now - incident.resolved_at >= timedelta(seconds=UNSOLVED_SECONDS)
            for member in incident.members
            if member.kind is MemberKind.ALERT
        }
        unsolved |= self._left_out.keys() if with_left_out else set()
        # Looking at all alerts costs something, and mostly nobody has resolved anything by hand.
        if unsolved:
            unsolved -= {
                member.ref for incident in self.open_incidents() for member in incident.members if member.until is None
            }
        changed: list[Incident] = []
        still_out: dict[str, None] = {}
        for alert in firing if unsolved else ():
            signal = from_alert(alert) if alert.state is alerts.AlertState.FIRING else None
            if signal is None or signal.member.ref not in unsolved:
                continue
            went_on = self._go_on(signal, now)
            changed += went_on
            if not went_on and signal.member.ref in self._left_out:
                still_out[signal.member.ref] = None
        if with_left_out:
            self._left_out = still_out
        return changed

    def _save(
        self, incident: Incident, step: IncidentStep, *, text: str, at: datetime, actor: str = journals.HUB
    ) -> Incident:
        self._journal.save_incident(incident, kind=step, text=text, at=at, actor=actor)
        self._shelf.put(incident)
        log.info("Incident changed", extra=fields(incident=incident.id, step=step, title=incident.title, text=text))
        return incident

    def _is_live(self, ref: str, place: fleet.Place) -> bool:
        members = (
            member for incident in self._shelf.incidents_near(place) if incident.is_open for member in incident.members
        )
        return any(member.ref == ref and member.until is None for member in members)

    def _end_events(self, among: Iterable[Incident], now: datetime) -> list[Incident]:
        changed = []
        for incident in among:
            live = [member for member in incident.members if member.until is None and incident.is_open]
            for member in live:
                condition = self._conditions.cleared(member, now=now)
                if condition is None or condition.cleared_at is None:
                    continue
                incident = end_member(incident, member.ref, until=condition.cleared_at)
                text = f"Over ({condition.cleared_why}): {member.text}"
                changed.append(self._save(incident, IncidentStep.ENDED, text=text, at=now))
        return changed

    def _find(self, id: str) -> Incident:
        incident = self._shelf.get(IncidentId(id)) or self._journal.incident(id)
        if incident is None:
            raise InvalidTransition(
                "there is no such incident", where=id, remedy="List them with `watchkeeper incidents`"
            )
        return incident

    def _restore(self, now: datetime) -> None:
        """Rebuild memory from the journal; until that has succeeded, memory is not to be relied on."""
        self._is_doubtful = True
        self._shelf.clear()
        self._conditions.clear()
        kept = [*self._journal.incidents(open_only=True, limit=journals.MOST_ROWS), *self._journal.incidents()]
        for incident in sorted(kept, key=age_key):
            if incident.id not in self._shelf and self._shelf.is_retained(incident, now):
                self._shelf.put(incident)
        recall = now - RECALL
        for event in self._journal.latest_events(None, recall):
            self._conditions.remember(event, now)
        for place, found in self._shelf.by_place():
            members = [member for incident in found for member in incident.members]
            self._restore_members(members)
            first = min(member.since for member in members)
            for event in self._journal.latest_events(place, first) if first < recall else ():
                self._conditions.remember(event, now)
        self._is_doubtful = False

    def _restore_members(self, members: Sequence[Member]) -> None:
        """Which condition each event member stands for."""
        for member in members:
            event = self._journal.event(member.ref) if member.kind is MemberKind.EVENT else None
            if event is not None:
                self._conditions.link_member(events.condition_key(event), member.ref)


def _plausible(event: events.Event, now: datetime) -> events.Event:
    """The event with the time of arrival where its own cannot be right, which is then kept beside it."""
    if now - MOST_LATE <= event.at <= now + MOST_AHEAD:
        return event
    return replace(event, at=now, fields={**event.fields, CLAIMED_AT: wire.format_time(event.at)})


def _full(count: int) -> str:
    return f"{count:,} incidents are open, the limit is {MOST_OPEN:,}"


def _hold(incident: Incident) -> timedelta:
    return timedelta(seconds=min(HOLD_SECONDS * 2 ** min(incident.reopened, 10), LONGEST_HOLD_SECONDS))


def _ended(incident: Incident, now: datetime) -> Incident:
    return replace(incident, members=tuple(replace(member, until=member.until or now) for member in incident.members))


def _newest(changed: Iterable[Incident]) -> list[Incident]:
    """Each incident once, as it was last written."""
    return list({incident.id: incident for incident in changed}.values())
