"""Store notices from their decision until delivery, through crashes and restarts.

`update` decides notices for incidents; `next_batch` returns the due notices of a receiver as one message, marked as
being sent. Each step is in the journal before the next one starts, so that a restart continues from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from watchkeeper.errors import StoreError
from watchkeeper.incidents.correlate import FLAP_TIME
from watchkeeper.incidents.incident_labels import IncidentLabels
from watchkeeper.kit import backoff, durations, wire
from watchkeeper.model.incidents import Incident, IncidentId
from watchkeeper.model.notices import Notice, NoticeState, Occasion
from watchkeeper.notify.decisions import decide_notices, give_up, relevant_notices
from watchkeeper.notify.routing import Routing
from watchkeeper.notify.silence_store import SilenceStore
from watchkeeper.store.journal import journal as journals

# Messages are read on a phone; the rest of an alert storm goes into the next message.
MAX_PER_MESSAGE = 50
RETRY_BACKOFF = backoff.Backoff(5.0, 600.0)
# After this time, the operator of the receiver should know of the failure.
GIVE_UP_AFTER = timedelta(days=3)
MINUTE = timedelta(minutes=1)
# The longest delay of a repetition, an escalation, or a notice after a silence.
DECISION_INTERVAL = timedelta(seconds=5)
FindIncident = Callable[[str], Incident | None]
NOT_CONFIGURED = "the receiver is no longer configured"


@dataclass(frozen=True, slots=True)
class NoticeBatch:
    """A message to a receiver: its notices, each with the current state of its incident."""

    receiver: str
    notices: tuple[Notice, ...]
    incidents: tuple[Incident, ...]
    at: datetime
    # The number of further due notices of this receiver.
    more: int = 0

    @property
    def key(self) -> str:
        """A key that is the same for every attempt, also after a restart."""
        return self.notices[0].batch


@dataclass(slots=True)
class _ReceiverQueue:
    notices: dict[str, Notice]
    sent_times: list[datetime]
    failures: int = 0
    not_before: datetime | None = None


@dataclass(frozen=True, slots=True)
class _LastDecision:
    """The versions of an incident and of the silences at a decision; settled: resolved, and reported as resolved."""

    version: int
    silences: int
    at: datetime
    is_settled: bool


class Outbox:
    """The notices of all receivers; not thread-safe."""

    def __init__(
        self,
        journal: journals.Journal,
        routing: Routing,
        *,
        subject: Callable[[Incident], IncidentLabels],
        silences: SilenceStore,
        now: datetime,
    ) -> None:
        self._journal, self._routing, self._subject, self._silences = journal, routing, subject, silences
        self._queues = {receiver.name: _ReceiverQueue({}, []) for receiver in routing.receivers}
        self._notices: dict[IncidentId, list[Notice]] = {}
        self._decisions: dict[IncidentId, _LastDecision] = {}
        self._unrouted: set[IncidentId] = set()
        # Incidents that need another decision even if `update` no longer gets them.
        self._unsettled: dict[IncidentId, Incident] = {}
        for notice in journal.undelivered_notices():
            self._restore(notice, now)
        # Incidents that ended before a stop of the hub, and whose end was not sent to every receiver.
        for incident in journal.incidents() if self._queues else ():
            if incident.resolved_at is None or now - incident.resolved_at > GIVE_UP_AFTER:
                continue
            if not all(_is_final(notice) for notice in _last_per_receiver(journal.notices_of(incident.id))):
                self._unsettled[incident.id] = incident

    def update(self, incidents: Iterable[Incident], now: datetime) -> None:
        """Decide notices for these incidents, and for those whose end is not reported yet."""
        considered = {incident.id: incident for incident in incidents}
        for incident in [incident for id, incident in self._unsettled.items() if id not in considered]:
            # While the hub was suspended, the incident may have ended and been pruned.
            stored = self._journal.incident(incident.id) if incident.is_open else incident
            if stored is not None:
                considered[stored.id] = stored
        # One transaction, because an alert storm opens hundreds of incidents at once.
        decided: list[Notice] = []
        for incident in considered.values():
            if self._needs_decision(incident, now):
                decided += self._decide(incident, now)
        self._unsettled = {id: incident for id, incident in considered.items() if not self._decisions[id].is_settled}
        self._store(decided, now)
        for id in [id for id in self._decisions if id not in considered]:
            del self._decisions[id]
            self._unrouted.discard(id)
        for id in [id for id in self._notices if id not in considered]:
            if not any(notice.is_pending for notice in self._notices[id]):
                del self._notices[id]

    @property
    def unrouted_count(self) -> int:
        """The number of open incidents without a matching route, which notify no receiver."""
        return len(self._unrouted)

    def set_routing(self, routing: Routing, now: datetime) -> None:
        """Apply new receivers and routes; withdraw pending notices of removed receivers."""
        self._routing = routing
        names = [receiver.name for receiver in routing.receivers]
        removed = [queue for name, queue in self._queues.items() if name not in names]
        orphaned = [notice for queue in removed for notice in queue.notices.values()]
        self._queues = {name: self._queues.get(name) or _ReceiverQueue({}, []) for name in names}
        self._decisions.clear()
        self._store([give_up(notice, NOT_CONFIGURED) for notice in orphaned], now)

    def next_batch(self, receiver: str, now: datetime, *, incident: FindIncident) -> NoticeBatch | None:
        """The due notices of a receiver, marked as being sent; None if none is due or a limit is reached."""
        queue = self._queues[receiver]
        # Ignore times in the future: the clock was set back since.
        queue.sent_times = [at for at in queue.sent_times if abs(now - at) < MINUTE]
        limit = next(entry.per_minute for entry in self._routing.receivers if entry.name == receiver)
        longest_pause = timedelta(seconds=RETRY_BACKOFF.longest_seconds)
        has_pause = queue.not_before is not None and now < queue.not_before <= now + longest_pause
        if has_pause or len(queue.sent_times) >= limit:
            return None
        all_due = [notice for notice in queue.notices.values() if notice.due_at <= now or notice.made_at > now + MINUTE]
        due = _next_message(all_due)
        new_key = f"{due[0].id}@{wire.format_time(now)}" if due else ""
        key = next((notice.batch for notice in due if notice.batch), new_key)
        sending, pruned = list[tuple[Notice, Incident]](), list[Notice]()
        for notice in due:
            if (notice_incident := incident(notice.incident)) is None:
                pruned.append(give_up(notice, "its incident was pruned"))
            else:
                sent_notice = replace(notice, state=NoticeState.SENDING, tries=notice.tries + 1, batch=key)
                sending.append((sent_notice, notice_incident))
        self._store([*pruned, *(notice for notice, _ in sending)], now)
        if not sending:
            return None
        sent, incidents = zip(*sending, strict=True)
        return NoticeBatch(receiver, sent, incidents, now, more=len(all_due) - len(due))

    def mark_sent(self, batch: NoticeBatch, answer: str, now: datetime) -> None:
        queue = self._queues.get(batch.receiver)
        if queue is not None:
            queue.failures, queue.not_before = 0, None
            queue.sent_times.append(now)
        sent = [replace(notice, state=NoticeState.SENT, sent_at=now, answer=answer) for notice in batch.notices]
        self._store(sent, now)

    def mark_failed(self, batch: NoticeBatch, problem: str, now: datetime, *, may_retry: bool = True) -> None:
        queue = self._queues.get(batch.receiver)
        if queue is not None:
            queue.failures += 1
            queue.not_before = now + timedelta(seconds=RETRY_BACKOFF.delay_seconds(queue.failures))
        updated = []
        for notice in batch.notices:
            is_last = queue is None or not may_retry or now - notice.made_at > GIVE_UP_AFTER
            state = NoticeState.GIVEN_UP if is_last else NoticeState.WAITING
            updated.append(replace(notice, state=state, answer=problem))
        self._store(updated, now)

    def pending_counts(self) -> dict[str, int]:
        return {name: len(queue.notices) for name, queue in self._queues.items()}

    def _needs_decision(self, incident: Incident, now: datetime) -> bool:
        """Whether the incident or a silence changed, or a periodic decision is due."""
        last = self._decisions.get(incident.id)
        if last is None or last.version != incident.version:
            return True
        if last.is_settled:
            return False
        return last.silences != self._silences.version or not last.at <= now < last.at + DECISION_INTERVAL

    def _decide(self, incident: Incident, now: datetime) -> list[Notice]:
        notices = self._notices.get(incident.id)
        if notices is None:
            notices = self._notices[incident.id] = relevant_notices(self._journal.notices_of(incident.id))
        subject = self._subject(incident)
        routes = list(self._routing.routes_for(subject, now))
        is_silenced = self._silences.find_match(subject, now) is not None
        new_notices = decide_notices(incident, notices, routes, is_silenced=is_silenced, now=now)
        is_settled = not new_notices and not incident.is_open and _is_settled(incident, notices, now)
        self._decisions[incident.id] = _LastDecision(incident.version, self._silences.version, now, is_settled)
        if incident.is_open and not routes:
            self._unrouted.add(incident.id)
        else:
            self._unrouted.discard(incident.id)
        return new_notices

    def _store(self, notices: Sequence[Notice], now: datetime) -> None:
        """Write notices to the journal, then to memory; if the write fails, they are decided again."""
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
            # Keep the order of decisions, also for notices that are sent late.
            incident_notices[:] = relevant_notices(
                list({**{stored.id: stored for stored in incident_notices}, notice.id: notice}.values())
            )
            self._update_queue(notice)

    def _update_queue(self, notice: Notice) -> None:
        queue = self._queues.get(notice.receiver)
        if queue is None:
            return
        if notice.state is NoticeState.WAITING:
            queue.notices[notice.id] = notice
        else:
            queue.notices.pop(notice.id, None)

    def _restore(self, notice: Notice, now: datetime) -> None:
        """Restore a notice after a restart; one that was being sent may have arrived, and is sent again with its id."""
        if notice.receiver not in self._queues:
            self._store([give_up(notice, NOT_CONFIGURED)], now)
            return
        if notice.state is NoticeState.SENDING:
            notice = replace(notice, state=NoticeState.WAITING)
        id = IncidentId(notice.incident)
        if id not in self._notices:
            self._notices[id] = relevant_notices(self._journal.notices_of(id))
        self._update_queue(notice)


def _next_message(due: Sequence[Notice]) -> list[Notice]:
    """The notices of the next message: new ones, most severe first, or those of a failed message again.

    Notices with the fewest attempts come first, so that a failing message blocks no other. But a receiver never gets
    the end of an incident before its start.
    """
    tried = {notice.incident for notice in due if notice.batch}
    eligible = [notice for notice in due if notice.batch or notice.incident not in tried]
    ordered = sorted(eligible, key=lambda notice: (notice.tries, -notice.severity.rank, notice.due_at))
    if not ordered or not ordered[0].batch:
        return [notice for notice in ordered if not notice.batch][:MAX_PER_MESSAGE]
    return [notice for notice in ordered if notice.batch == ordered[0].batch]


def _last_per_receiver(notices: Sequence[Notice]) -> list[Notice]:
    return list({notice.receiver: notice for notice in notices}.values())


def _is_settled(incident: Incident, notices: Sequence[Notice], now: datetime) -> bool:
    """Whether no receiver needs the end any more, or the flap hold has passed without pending notices."""
    if all(_is_final(notice) for notice in _last_per_receiver(notices)):
        return True
    is_in_hold = incident.resolved_at is None or now < incident.resolved_at + FLAP_TIME
    return not is_in_hold and not any(notice.is_pending for notice in notices)


def _is_final(notice: Notice) -> bool:
    """Whether no further notice follows: the end was sent, or the notice was withdrawn or given up."""
    is_end_sent = notice.occasion is Occasion.RESOLVED and notice.state is NoticeState.SENT
    return is_end_sent or notice.state is NoticeState.GIVEN_UP


def _timeline_text(notice: Notice) -> str:
    receiver_and_occasion = f"{notice.receiver} ({notice.occasion})"
    if notice.state is NoticeState.SENT:
        return f"Notified {receiver_and_occasion}" + (f": {notice.answer}" if notice.answer else "")
    if notice.state is NoticeState.GIVEN_UP:
        return f"Not notified {receiver_and_occasion}: {notice.answer}"
    if notice.state is NoticeState.SENDING:
        return f"Notifying {receiver_and_occasion}, attempt {notice.tries}"
    if notice.tries:
        return f"Notification failed {receiver_and_occasion}, attempt {notice.tries}: {notice.answer}"
    wait = (notice.due_at - notice.made_at).total_seconds()
    due_in = f", due in {durations.format_seconds(round(wait))}" if wait >= 1 else ""
    return f"Notification pending {receiver_and_occasion}{due_in}"
