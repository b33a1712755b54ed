"""The outbox: every notice from its decision until its receiver accepted it, through crash and restart.

It belongs to the journal thread. `update` decides for the incidents that it gets; `next_batch` returns what is due for
one receiver as one message, marked as being sent; `mark_sent` and `mark_failed` record the outcome. Each step is in the
journal before the next one starts, so that a restart continues from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from watchkeeper.errors import StoreError
from watchkeeper.incidents.incident_labels import IncidentLabels
from watchkeeper.kit import backoff, durations, wire
from watchkeeper.model.incidents import Incident, IncidentId
from watchkeeper.model.notices import Notice, NoticeState, Occasion
from watchkeeper.notify.decisions import FLAP, decide_notices, give_up, relevant_notices
from watchkeeper.notify.routing import Routing
from watchkeeper.notify.silence_store import SilenceStore
from watchkeeper.store.journal import journal as journals

# A message is read on a phone; the rest of an alert storm goes into the next one.
MOST_PER_MESSAGE = 50
RETRY_BACKOFF = backoff.Backoff(5.0, 600.0)
# After this time the operator of the receiver knows about the failure.
GIVE_UP_AFTER = timedelta(days=3)
MINUTE = timedelta(minutes=1)
# How late a repetition, an escalation or the end of a silence may be detected.
DECIDE_AGAIN = timedelta(seconds=5)
NOT_CONFIGURED = "the receiver is no longer configured"


@dataclass(frozen=True, slots=True)
class NoticeBatch:
    """One message to one receiver: its notices, each with the current state of its incident."""

    receiver: str
    notices: tuple[Notice, ...]
    incidents: tuple[Incident, ...]
    at: datetime
    # How many more are due for this receiver.
    more: int = 0

    @property
    def key(self) -> str:
        """The same for every attempt, also after a restart."""
        return self.notices[0].batch


@dataclass(slots=True)
class _ReceiverQueue:
    """Pending notices of one receiver, and the limits of its delivery."""

    queue: dict[str, Notice]
    sent: list[datetime]
    failures: int = 0
    not_before: datetime | None = None


@dataclass(frozen=True, slots=True)
class _LastDecision:
    """State of an incident and of the silences at the last decision; settled means resolved and reported as such."""

    version: int
    silences: int
    at: datetime
    is_settled: bool


class Outbox:
    """Not thread-safe."""

    def __init__(
        self,
        journal: journals.Journal,
        routing: Routing,
        *,
        subject: Callable[[Incident], IncidentLabels],
        silences: SilenceStore,
        now: datetime,
    ) -> None:
        self._journal = journal
        self._routing = routing
        self._subject = subject
        self._silences = silences
        self._lines = {receiver.name: _ReceiverQueue({}, []) for receiver in routing.receivers}
        self._notices: dict[IncidentId, list[Notice]] = {}
        self._decisions: dict[IncidentId, _LastDecision] = {}
        self._unrouted: set[IncidentId] = set()
        # Decided, but not final: decided again even if `update` no longer gets them.
        self._unsettled: dict[IncidentId, Incident] = {}
        for notice in journal.undelivered_notices():
            self._restore(notice, now)
        self._find_unsettled(now)

    def update(self, incidents: Iterable[Incident], now: datetime) -> None:
        """Decide notices for incidents: open, recently resolved, and those whose end is not reported yet."""
        shown = {incident.id: incident for incident in incidents}
        for incident in [incident for id, incident in self._unsettled.items() if id not in shown]:
            # While the hub was suspended, it may have ended and been pruned without appearing here.
            stored = self._journal.incident(incident.id) if incident.is_open else incident
            if stored is not None:
                shown[stored.id] = stored
        # One transaction, because an alert storm opens hundreds of incidents at once.
        decided: list[Notice] = []
        for incident in shown.values():
            if self._needs_decision(incident, now):
                decided += self._decide(incident, now)
        self._unsettled = {id: incident for id, incident in shown.items() if not self._decisions[id].is_settled}
        self._keep(decided, now)
        for id in [id for id in self._decisions if id not in shown]:
            del self._decisions[id]
            self._unrouted.discard(id)
        for id in [id for id in self._notices if id not in shown]:
            if not any(notice.is_pending for notice in self._notices[id]):
                del self._notices[id]

    @property
    def unrouted_count(self) -> int:
        """Open incidents without a matching route: no receiver is notified."""
        return len(self._unrouted)

    def set_routing(self, routing: Routing, now: datetime) -> None:
        """Apply new receivers and routes; pending notices of removed receivers are withdrawn."""
        self._routing = routing
        names = [receiver.name for receiver in routing.receivers]
        orphaned = [notice for name, line in self._lines.items() if name not in names for notice in line.queue.values()]
        self._lines = {name: self._lines.get(name) or _ReceiverQueue({}, []) for name in names}
        self._decisions.clear()
        self._keep([give_up(notice, NOT_CONFIGURED) for notice in orphaned], now)

    def next_batch(
        self, receiver: str, now: datetime, *, incident: Callable[[str], Incident | None]
    ) -> NoticeBatch | None:
        """Due notices of a receiver, marked as being sent; None if nothing is due or its limits forbid a message."""
        line = self._lines[receiver]
        # Times in the future come from a clock that was set back since; they delay nothing.
        line.sent = [at for at in line.sent if abs(now - at) < MINUTE]
        limit = next(entry.per_minute for entry in self._routing.receivers if entry.name == receiver)
        longest = timedelta(seconds=RETRY_BACKOFF.longest_seconds)
        has_pause = line.not_before is not None and now < line.not_before <= now + longest
        if has_pause or len(line.sent) >= limit:
            return None
        all_due = [notice for notice in line.queue.values() if notice.due_at <= now or notice.made_at > now + MINUTE]
        due = _next_message(all_due)
        due_incidents = [(notice, incident(notice.incident)) for notice in due]
        key = next(
            (notice.batch for notice in due if notice.batch), f"{due[0].id}@{wire.format_time(now)}" if due else ""
        )
        sending = [
            (replace(notice, state=NoticeState.SENDING, tries=notice.tries + 1, batch=key), notice_incident)
            for notice, notice_incident in due_incidents
            if notice_incident is not None
        ]
        pruned = [
            give_up(notice, "its incident was pruned")
            for notice, notice_incident in due_incidents
            if notice_incident is None
        ]
        self._keep([*pruned, *(notice for notice, _ in sending)], now)
        if not sending:
            return None
        sent, incidents = zip(*sending, strict=True)
        return NoticeBatch(receiver, sent, incidents, now, more=len(all_due) - len(due))

    def mark_sent(self, batch: NoticeBatch, answer: str, now: datetime) -> None:
        line = self._lines.get(batch.receiver)
        if line is not None:
            line.failures, line.not_before = 0, None
            line.sent.append(now)
        self._keep(
            [replace(notice, state=NoticeState.SENT, sent_at=now, answer=answer) for notice in batch.notices], now
        )

    def mark_failed(self, batch: NoticeBatch, problem: str, now: datetime, *, may_retry: bool = True) -> None:
        """Retry later, or give up."""
        line = self._lines.get(batch.receiver)
        if line is not None:
            line.failures += 1
            line.not_before = now + timedelta(seconds=RETRY_BACKOFF.delay_seconds(line.failures))
        kept = []
        for notice in batch.notices:
            is_last = line is None or not may_retry or now - notice.made_at > GIVE_UP_AFTER
            state = NoticeState.GIVEN_UP if is_last else NoticeState.WAITING
            kept.append(replace(notice, state=state, answer=problem))
        self._keep(kept, now)

    def pending_counts(self) -> dict[str, int]:
        """Pending notices by receiver."""
        return {name: len(line.queue) for name, line in self._lines.items()}

    def _needs_decision(self, incident: Incident, now: datetime) -> bool:
        """After a change of the incident or a silence; otherwise periodically, for repetition, escalation and hours."""
        last = self._decisions.get(incident.id)
        if last is None or last.version != incident.version:
            return True
        if last.is_settled:
            return False
        return last.silences != self._silences.version or not last.at <= now < last.at + DECIDE_AGAIN

    def _decide(self, incident: Incident, now: datetime) -> list[Notice]:
        notices = self._notices.get(incident.id)
        if notices is None:
            notices = self._notices[incident.id] = relevant_notices(self._journal.notices_of(incident.id))
        subject = self._subject(incident)
        routes = list(self._routing.routes_for(subject, now))
        is_silenced = self._silences.find_match(subject, now) is not None
        made = decide_notices(incident, notices, routes, is_silenced=is_silenced, now=now)
        is_settled = not made and not incident.is_open and _is_settled(incident, notices, now)
        self._decisions[incident.id] = _LastDecision(incident.version, self._silences.version, now, is_settled)
        if incident.is_open and not routes:
            self._unrouted.add(incident.id)
        else:
            self._unrouted.discard(incident.id)
        return made

    def _keep(self, notices: Sequence[Notice], now: datetime) -> None:
        """Write to the journal, then change memory: if the write fails, the notices are decided again."""
        if not notices:
            return
        try:
            with self._journal.transaction():
                for notice in notices:
                    self._journal.save_notice(notice, at=now, text=_timeline_text(notice))
        except StoreError:
            self._decisions.clear()
            raise
        for notice in notices:
            incident_notices = self._notices.setdefault(IncidentId(notice.incident), [])
            # Each keeps its position: a first notice that is sent late is still the first.
            incident_notices[:] = relevant_notices(
                list({**{kept.id: kept for kept in incident_notices}, notice.id: notice}.values())
            )
            self._queue(notice)

    def _find_unsettled(self, now: datetime) -> None:
        """Incidents that ended before a stop of the hub, and whose end was not sent to every receiver."""
        for incident in self._journal.incidents() if self._lines else ():
            if incident.resolved_at is None or now - incident.resolved_at > GIVE_UP_AFTER:
                continue
            if not all(_is_final(notice) for notice in _last_per_receiver(self._journal.notices_of(incident.id))):
                self._unsettled[incident.id] = incident

    def _queue(self, notice: Notice) -> None:
        line = self._lines.get(notice.receiver)
        if line is None:
            return
        if notice.state is NoticeState.WAITING:
            line.queue[notice.id] = notice
        else:
            line.queue.pop(notice.id, None)

    def _restore(self, notice: Notice, now: datetime) -> None:
        """After a restart: a notice that was being sent may have arrived or not, and is sent again under its id."""
        if notice.receiver not in self._lines:
            self._keep([give_up(notice, NOT_CONFIGURED)], now)
            return
        if notice.state is NoticeState.SENDING:
            notice = replace(notice, state=NoticeState.WAITING)
        id = IncidentId(notice.incident)
        if id not in self._notices:
            self._notices[id] = relevant_notices(self._journal.notices_of(id))
        self._queue(notice)


def _next_message(due: Sequence[Notice]) -> list[Notice]:
    """The notices of the next message: a failed message again, or the new notices, the most severe first.

    The fewest attempts come first, so that a message that always fails blocks no other. But a receiver never gets
    the end of an incident before its start.
    """
    tried = {notice.incident for notice in due if notice.batch}
    eligible = [notice for notice in due if notice.batch or notice.incident not in tried]
    ordered = sorted(eligible, key=lambda notice: (notice.tries, -notice.severity.rank, notice.due_at))
    if not ordered or not ordered[0].batch:
        return [notice for notice in ordered if not notice.batch][:MOST_PER_MESSAGE]
    return [notice for notice in ordered if notice.batch == ordered[0].batch]


def _last_per_receiver(notices: Sequence[Notice]) -> list[Notice]:
    return list({notice.receiver: notice for notice in notices}.values())


def _is_settled(incident: Incident, notices: Sequence[Notice], now: datetime) -> bool:
    """No receiver needs the end any more; after the flap hold, an incident without pending notices stays settled."""
    if all(_is_final(notice) for notice in _last_per_receiver(notices)):
        return True
    is_in_hold = incident.resolved_at is None or now < incident.resolved_at + FLAP
    return not is_in_hold and not any(notice.is_pending for notice in notices)


def _is_final(notice: Notice) -> bool:
    """No further notice follows: the end was sent, or the notice was withdrawn or given up."""
    return notice.state is NoticeState.GIVEN_UP or (
        notice.occasion is Occasion.RESOLVED and notice.state is NoticeState.SENT
    )


def _timeline_text(notice: Notice) -> str:
    what = f"{notice.receiver} ({notice.occasion})"
    if notice.state is NoticeState.SENT:
        return f"Notified {what}: {notice.answer}" if notice.answer else f"Notified {what}"
    if notice.state is NoticeState.GIVEN_UP:
        return f"Not notified {what}: {notice.answer}"
    if notice.state is NoticeState.SENDING:
        return f"Notifying {what}, attempt {notice.tries}"
    if notice.tries:
        return f"Notification failed {what}, attempt {notice.tries}: {notice.answer}"
    wait = (notice.due_at - notice.made_at).total_seconds()
    return f"Notification pending {what}" + (f", due in {durations.format_seconds(round(wait))}" if wait >= 1 else "")
