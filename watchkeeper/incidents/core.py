"""The open incidents: what signals, people and time do to them.

The hub owns one `Incidents` and gives it every event, every alert that changed, and a tick now and
then; each call returns the incidents that changed. Everything is written through the journal before
memory changes, and memory is rebuilt from the journal, so a restart changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from watchkeeper.errors import IllegalMove
from watchkeeper.incidents.correlate import (
    FLAP_SECONDS,
    Decision,
    Step,
    Surroundings,
    absorb,
    correlate,
    end_member,
    explain,
    go_on,
)
from watchkeeper.incidents.domains import Domains, shared_by_domain
from watchkeeper.incidents.recovery import Broken
from watchkeeper.incidents.signals import CLEARING_KINDS, Signal, clear_rule, from_alert, from_event
from watchkeeper.kit import wire
from watchkeeper.kit.logs import fields
from watchkeeper.model import alerts, events, fleet
from watchkeeper.model.incidents import Incident, IncidentId, IncidentState, Member, MemberKind, move
from watchkeeper.store import journal as journals

log = logging.getLogger(__name__)

# After the last signal has ended, wait this long: a fault that blinks is not over.
HOLD_SECONDS = 60.0
# One that keeps coming back waits twice as long each time, up to this: flapping is damped.
LONGEST_HOLD_SECONDS = 600.0
# A spool may deliver late; a reset is remembered this long, so that what came before it stays over.
RECALL = timedelta(hours=1)
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
AT_ONCE = datetime.min.replace(tzinfo=UTC)
LOST = "gpu_lost"


@dataclass(frozen=True, slots=True)
class Taken:
    """What became of a push: the events that were new, and the incidents that changed."""

    events: tuple[events.Event, ...]
    changed: tuple[Incident, ...]


class Incidents:
    """Not for several threads at once: the hub calls it from one."""

    def __init__(
        self,
        journal: journals.Journal,
        *,
        now: datetime,
        names: Callable[[fleet.Place], str] = str,
        workloads: Callable[[fleet.Place], Sequence[str]] = lambda _: (),
        domains: Domains | None = None,
    ) -> None:
        self._journal = journal
        self._domains = domains or Domains()
        self._around = Surroundings(names, workloads, journal.next_incident_id, self._domains.of)
        self._kept: dict[IncidentId, Incident] = {}
        self._by_node: dict[fleet.Place, dict[IncidentId, None]] = {}
        # The newest event of each condition, by node; and which condition each event member stands for.
        self._latest: dict[fleet.Place, dict[events.ConditionKey, events.Event]] = {}
        self._refs: dict[events.ConditionKey, str] = {}
        self._keys: dict[str, events.ConditionKey] = {}
        # When each open incident is to be looked at next, and when all were last.
        self._due: dict[IncidentId, datetime] = {}
        self._tidied = AT_ONCE
        # Alerts that found no room in an incident, by their refs, and how many signals ever did not.
        self._left_out: dict[str, None] = {}
        self.left_out = 0
        self._is_doubtful = False
        self._restore(now)

    def open(self) -> list[Incident]:
        """Open and acknowledged ones, oldest first."""
        return [incident for incident in self._kept.values() if incident.is_open]

    def take_events(self, batch: Sequence[events.Event], now: datetime) -> Taken:
        """Keep a push and what follows from it in one transaction: after a crash both are there or neither."""
        with self._together(now):
            fresh = self._journal.take_events([_plausible(event, now) for event in batch], now)
            changed: list[Incident] = []
            for event in fresh:
                changed += self._widened(self.take_event(event, now), now)
            changed += self._widen(changed, now)
        return Taken(tuple(fresh), tuple(_newest(changed)))

    def take_event(self, event: events.Event, now: datetime) -> list[Incident]:
        """What one event, which the journal has as a new one, does to the incidents."""
        self._remember(event)
        signal = from_event(event)
        if signal is None:
            return _newest(self._end_events(self._near(event.place), now))
        key = _key(event)
        condition = self._condition(key, signal.cause, now=now)
        if condition is not None and not condition.is_open:
            signal = replace(signal, member=replace(signal.member, until=condition.cleared_at))
        before = self._refs.get(key)
        if before is not None and self._is_live(before, event.place):
            return []
        return self._take(replace(signal, replaces=before), now, key=key)

    def take_alerts(self, changed: Sequence[alerts.Alert], now: datetime) -> list[Incident]:
        """Keep alerts that changed and what follows from them in one transaction."""
        with self._together(now):
            self._journal.save_alerts(changed, at=now)
            moved: list[Incident] = []
            for alert in changed:
                moved += self._widened(self.take_alert(alert, now), now)
            return _newest([*moved, *self._widen(moved, now)])

    def take_alert(self, alert: alerts.Alert, now: datetime) -> list[Incident]:
        """What an alert that fires, or has resolved, does to the incidents; the same news twice does nothing."""
        signal = from_alert(alert)
        if signal is None:
            return []
        if alert.state is alerts.AlertState.RESOLVED and signal.member.until is None:
            signal = replace(signal, member=replace(signal.member, until=now))
        return self._take(signal, now)

    def tick(self, now: datetime, firing: Iterable[alerts.Alert] = ()) -> list[Incident]:
        """End what has been quiet for long enough, resolve what has ended, forget what is long over.

        `firing` are all alerts of the moment: one whose incident a person resolved brings it back.
        """
        if self._is_doubtful:
            self._restore(now)
        is_untidy = not self._tidied <= now < self._tidied + TIDY
        changed = self._bring_back(firing, now, with_left_out=is_untidy)
        # A clock that was put back must not make anything wait for the time it showed before.
        soon = now + LOOK_AGAIN + timedelta(seconds=LONGEST_HOLD_SECONDS)
        for id in [id for id, at in self._due.items() if not now < at <= soon]:
            changed += self._look_at(self._kept[id], now)
        if is_untidy:
            self._tidied = now
            self._forget(now)
        return _newest(changed)

    def _look_at(self, incident: Incident, now: datetime) -> list[Incident]:
        """End what was quiet for long enough, resolve it when all has ended, and say when to look again."""
        changed = self._end_events([incident], now)
        incident = self._kept[incident.id]
        own = [member for member in incident.members if member.kind is not MemberKind.DOMAIN]
        ends = [member.until for member in own if member.until is not None]
        if len(ends) < len(own):
            self._due[incident.id] = min([now + LOOK_AGAIN, *self._quiet_at(own)])
            return changed
        over_at = max(ends, default=now) + _hold(incident)
        if now < over_at:
            self._due[incident.id] = over_at
            return changed
        what = "The signal" if len(ends) == 1 else f"All {len(ends)} signals"
        done = move(_ended(incident, now), IncidentState.RESOLVED, at=now)
        return [*changed, self._save(done, Step.RESOLVED, text=f"{what} ended, and none returned", at=now)]

    def _quiet_at(self, members: Iterable[Member]) -> Iterator[datetime]:
        """When each event that lasts will be over, if it is not repeated and is of the kind that quiet ends."""
        for member in members:
            key = self._keys.get(member.ref) if member.until is None else None
            latest = None if key is None else self._latest.get(_node_of(key[0]), {}).get(key)
            quiet = None if key is None else clear_rule(member.cause, key[1]).quiet_seconds
            if latest is not None and quiet is not None:
                yield latest.at + timedelta(seconds=quiet)

    def acknowledge(self, id: str, actor: str, now: datetime) -> Incident:
        mine = replace(move(self._find(id), IncidentState.ACKNOWLEDGED, at=now), assignee=actor)
        return self._save(mine, Step.ACKNOWLEDGED, text=f"{actor} is working on it", at=now, actor=actor)

    def assign(self, id: str, actor: str, *, to: str, now: datetime) -> Incident:
        """Give it to somebody; it counts as acknowledged, because somebody has it."""
        incident = self._find(id)
        if incident.state is IncidentState.OPEN:
            incident = move(incident, IncidentState.ACKNOWLEDGED, at=now)
        elif incident.is_open:
            incident = replace(incident, version=incident.version + 1)
        else:
            raise IllegalMove("a resolved incident is nobody's", where=id, remedy="Assign one that is open")
        return self._save(replace(incident, assignee=to), Step.ASSIGNED, text=f"{to} has it", at=now, actor=actor)

    def recent(self) -> list[Incident]:
        """Everything that is open or was until moments ago."""
        return list(self._kept.values())

    def resolve(self, id: str, actor: str, *, why: str, now: datetime) -> Incident:
        done = move(_ended(self._find(id), now), IncidentState.RESOLVED, at=now)
        return self._save(done, Step.RESOLVED, text=why, at=now, actor=actor)

    def note(self, id: str, actor: str, *, text: str, now: datetime) -> None:
        """A remark for the timeline; the incident itself stays as it is."""
        incident = self._find(id)
        self._journal.record(Step.NOTED, incident.id, at=now, actor=actor, body={"text": text})

    def correct(self, id: str, actor: str, *, body: Mapping[str, str], now: datetime) -> Incident:
        """A person says what it was; the incident itself follows its signals, the word is kept for its diagnosis."""
        incident = self._find(id)
        self._journal.record("cause", incident.id, at=now, actor=actor, body=body)
        return incident

    def explain(self, id: str, cause: str, now: datetime) -> list[Incident]:
        """A diagnosis found the fault that brought this incident about."""
        incident = self._find(id)
        if not incident.is_open or incident.cause == cause:
            return []
        near = [one for one in self._near(incident.place) if one.id != incident.id]
        return self._write(explain(near, incident, cause=cause, around=self._around), now)

    def broken_gpus(self) -> list[Broken]:
        """GPUs of open incidents with a hardware fault that only a reset ends."""
        found: dict[fleet.Place, Broken] = {}
        lasting = ((one, member) for one in self.open() for member in one.members if member.until is None)
        for incident, member in lasting:
            key = self._keys.get(member.ref)
            if key is None or member.place.gpu is None or clear_rule(member.cause, key[1]).quiet_seconds is not None:
                continue
            place = replace(member.place, slice=None)
            since = max(member.since, self._latest.get(_node_of(place), {})[key].at)
            before = found.get(place, Broken(place, since, False))
            is_lost = before.is_lost or incident.family == LOST
            found[place] = Broken(place, max(since, before.since), is_lost)
        return list(found.values())

    def _take(self, signal: Signal, now: datetime, *, key: events.ConditionKey | None = None) -> list[Incident]:
        decision = correlate(self._near(signal.place), signal, now=now, around=self._around)
        if decision.step is Step.OPENED and len(self._due) >= MOST_OPEN:
            decision = Decision(Step.NOTHING, text=f"{len(self._due):,} incidents are open, the limit is {MOST_OPEN:,}")
        if decision.incident is None:
            if decision.text:
                self._leave_out(signal.member, decision.text)
            return []
        changed = self._write(decision, now)
        if key is not None:
            self._refs[key] = signal.member.ref
            self._keys[signal.member.ref] = key
        return changed

    def _leave_out(self, member: Member, why: str) -> None:
        """Remember an alert that found no room; `tick` brings it back when there is some. Said once for each."""
        if member.ref in self._left_out:
            return
        self.left_out += 1
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
            signal = shared_by_domain(self._kept.get(incident.id, incident), self._domains, near=self._near)
            wider += self._take(signal, now) if signal is not None else ()
        return wider

    def _write(self, decision: Decision, now: datetime) -> list[Incident]:
        assert decision.incident is not None
        changed = []
        with self._together(now):
            for part in decision.absorbed:
                done, text = absorb(part, decision.incident.id, at=now)
                changed.append(self._save(done, Step.ABSORBED, text=text, at=now))
            changed.append(self._save(decision.incident, decision.step, text=decision.text, at=now))
        return changed

    @contextmanager
    def _together(self, now: datetime) -> Iterator[None]:
        """One transaction; whatever breaks it, memory goes back to what the journal has."""
        if self._is_doubtful:
            self._restore(now)
        try:
            with self._journal.together():
                yield
        # Deliberately everything: an incident that only memory has would swallow its own signals for ever.
        except BaseException:
            self._restore(now)
            raise

    def _bring_back(self, firing: Iterable[alerts.Alert], now: datetime, *, with_left_out: bool) -> list[Incident]:
        unsolved = {
            member.ref
            for incident in self._kept.values()
            if incident.resolved_at is not None and now - incident.resolved_at >= timedelta(seconds=UNSOLVED_SECONDS)
            for member in incident.members
            if member.kind is MemberKind.ALERT
        }
        unsolved |= self._left_out.keys() if with_left_out else set()
        # Looking at all alerts costs something, and mostly nobody has resolved anything by hand.
        if unsolved:
            unsolved -= {member.ref for incident in self.open() for member in incident.members if member.until is None}
        changed: list[Incident] = []
        still_out: dict[str, None] = {}
        for alert in firing if unsolved else ():
            signal = from_alert(alert) if alert.state is alerts.AlertState.FIRING else None
            if signal is None or signal.member.ref not in unsolved:
                continue
            decision = go_on(self._near(signal.place), signal, now=now, around=self._around)
            has_room = decision.step is not Step.OPENED or len(self._due) < MOST_OPEN
            if decision.incident is not None and has_room:
                changed += self._write(decision, now)
            elif signal.member.ref in self._left_out:
                still_out[signal.member.ref] = None
        if with_left_out:
            self._left_out = still_out
        return changed

    def _save(self, incident: Incident, step: Step, *, text: str, at: datetime, actor: str = journals.HUB) -> Incident:
        self._journal.save_incident(incident, kind=step, text=text, at=at, actor=actor)
        self._keep(incident)
        log.info("Incident changed", extra=fields(incident=incident.id, step=step, title=incident.title, text=text))
        return incident

    def _keep(self, incident: Incident) -> None:
        before = self._kept.get(incident.id)
        if before is not None and _node_of(before.place) != _node_of(incident.place):
            self._by_node[_node_of(before.place)].pop(incident.id, None)
        self._kept[incident.id] = incident
        if incident.is_open:
            self._due[incident.id] = AT_ONCE
        else:
            self._due.pop(incident.id, None)
        self._by_node.setdefault(_node_of(incident.place), {})[incident.id] = None

    def _near(self, place: fleet.Place) -> list[Incident]:
        """Open and just resolved incidents of the same node and of the domains around it, or inside the same domain."""
        ids = {id for one in self._domains.around(_node_of(place)) for id in self._by_node.get(one, ())}
        return sorted((self._kept[id] for id in ids), key=_age)

    def _is_live(self, ref: str, place: fleet.Place) -> bool:
        members = (member for incident in self._near(place) if incident.is_open for member in incident.members)
        return any(member.ref == ref and member.until is None for member in members)

    def _condition(self, key: events.ConditionKey, cause: str, *, now: datetime) -> events.Condition | None:
        """Whether what such events reported is still so, by the last of them and the resets since."""
        latest = self._latest.get(_node_of(key[0]), {})
        if key not in latest:
            return None
        clearing = [event for event in latest.values() if event.kind in CLEARING_KINDS]
        # A source's clock may run ahead of ours; what it reported is not in the future for that.
        at = max(now, latest[key].at)
        return events.fold([latest[key], *clearing], clear_rule(cause, key[1]), at)[key]

    def _end_events(self, among: Iterable[Incident], now: datetime) -> list[Incident]:
        changed = []
        for incident in among:
            live = [member for member in incident.members if member.until is None and incident.is_open]
            for member in live:
                key = self._keys.get(member.ref)
                condition = None if key is None else self._condition(key, member.cause, now=now)
                if condition is None or condition.cleared_at is None:
                    continue
                incident = end_member(incident, member.ref, until=condition.cleared_at)
                text = f"Over ({condition.cleared_why}): {member.text}"
                changed.append(self._save(incident, Step.ENDED, text=text, at=now))
        return changed

    def _forget(self, now: datetime) -> None:
        """Let go of incidents that can no longer return, and of events that no kept incident is about."""
        for incident in list(self._kept.values()):
            if incident.resolved_at is not None and now - incident.resolved_at > REMEMBERED:
                del self._kept[incident.id]
                self._by_node[_node_of(incident.place)].pop(incident.id)
                for member in incident.members:
                    key = self._keys.pop(member.ref, None)
                    if key is not None and self._refs.get(key) == member.ref:
                        del self._refs[key]
        for node, latest in list(self._latest.items()):
            kept = {key: event for key, event in latest.items() if key in self._refs or now - event.at <= RECALL}
            self._latest[node] = kept
            if not kept:
                del self._latest[node]
        self._by_node = {node: ids for node, ids in self._by_node.items() if ids}

    def _find(self, id: str) -> Incident:
        incident = self._kept.get(IncidentId(id)) or self._journal.incident(id)
        if incident is None:
            raise IllegalMove("there is no such incident", where=id, remedy="List them with `watchkeeper incidents`")
        return incident

    def _restore(self, now: datetime) -> None:
        """Rebuild memory from the journal; until that has succeeded, memory is not to be relied on."""
        self._is_doubtful = True
        self._kept.clear()
        self._due.clear()
        self._by_node.clear()
        self._latest.clear()
        self._refs.clear()
        self._keys.clear()
        kept = [*self._journal.incidents(open_only=True, limit=journals.MOST_ROWS), *self._journal.incidents()]
        for incident in sorted(kept, key=_age):
            if incident.id not in self._kept and (
                incident.resolved_at is None or now - incident.resolved_at <= REMEMBERED
            ):
                self._keep(incident)
        recall = now - RECALL
        for event in self._journal.latest_events(None, recall):
            self._remember(event)
        for node, ids in self._by_node.items():
            members = [member for id in ids for member in self._kept[id].members]
            self._restore_members(members)
            first = min(member.since for member in members)
            for event in self._journal.latest_events(node, first) if first < recall else ():
                self._remember(event)
        self._is_doubtful = False

    def _restore_members(self, members: Sequence[Member]) -> None:
        """Which condition each event member stands for."""
        for member in members:
            event = self._journal.event(member.ref) if member.kind is MemberKind.EVENT else None
            if event is not None:
                self._refs[_key(event)] = member.ref
                self._keys[member.ref] = _key(event)

    def _remember(self, event: events.Event) -> None:
        latest = self._latest.setdefault(_node_of(event.place), {})
        known = latest.get(_key(event))
        if known is None or (known.at, known.id) < (event.at, event.id):
            latest[_key(event)] = event


def _plausible(event: events.Event, now: datetime) -> events.Event:
    """The event with the time of arrival where its own cannot be right, which is then kept beside it."""
    if now - MOST_LATE <= event.at <= now + MOST_AHEAD:
        return event
    return replace(event, at=now, fields={**event.fields, CLAIMED_AT: wire.format_time(event.at)})


def _hold(incident: Incident) -> timedelta:
    return timedelta(seconds=min(HOLD_SECONDS * 2 ** min(incident.reopened, 10), LONGEST_HOLD_SECONDS))


def _ended(incident: Incident, now: datetime) -> Incident:
    return replace(incident, members=tuple(replace(member, until=member.until or now) for member in incident.members))


def _key(event: events.Event) -> events.ConditionKey:
    return (event.place, event.kind, event.code)


def _node_of(place: fleet.Place) -> fleet.Place:
    """The node of a place, or the rack or cluster that it is."""
    return fleet.Place(place.cluster, node=place.node, domain=place.domain)


def _age(incident: Incident) -> tuple[datetime, int, str]:
    """Oldest first; of those opened at once, the lower number."""
    return incident.opened_at, len(incident.id), incident.id


def _newest(changed: Iterable[Incident]) -> list[Incident]:
    """Each incident once, as it was last written."""
    return list({incident.id: incident for incident in changed}.values())
