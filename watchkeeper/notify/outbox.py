"""The outbox: every notice from the moment it is decided until its receiver has taken it, through crash and restart.

It belongs to the thread of the incidents. `look` decides for the incidents it is shown; `take` hands out what is due
for one receiver as one message, marked as being sent; `taken` and `failed` say what became of it. Each step is in
the journal before the next one is made, so that a restart goes on exactly there.
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

# A message is read by a person on a phone; the rest of a storm is told in the next one.
MOST_TOLD_TOGETHER = 50
PAUSES = backoff.Backoff(5.0, 600.0)
# A receiver that has been away for so long has an operator who knows.
GIVE_UP_AFTER = timedelta(days=3)
MINUTE = timedelta(minutes=1)
# How late a repetition, an escalation or the end of a silence may be noticed.
LOOK_AGAIN = timedelta(seconds=5)
NOT_CONFIGURED = "the receiver is no longer configured"


@dataclass(frozen=True, slots=True)
class NoticeBatch:
    """One message to one receiver: the notices in it, each with its incident as it is now."""

    receiver: str
    notices: tuple[Notice, ...]
    incidents: tuple[Incident, ...]
    at: datetime
    # How many more are due for this receiver.
    more: int = 0

    @property
    def key(self) -> str:
        """The same for every try, also after a restart."""
        return self.notices[0].batch


@dataclass(slots=True)
class _ReceiverQueue:
    """What one receiver gets, and when it may get it."""

    queue: dict[str, Notice]
    sent: list[datetime]
    failures: int = 0
    not_before: datetime | None = None


@dataclass(frozen=True, slots=True)
class _LastDecision:
    """What an incident and the silences were when it was last decided about; settled is over and told to be so."""

    version: int
    silences: int
    at: datetime
    is_settled: bool


class Outbox:
    """Not for several threads at once."""

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
        self._known: dict[IncidentId, list[Notice]] = {}
        self._looked: dict[IncidentId, _LastDecision] = {}
        self._unrouted: set[IncidentId] = set()
        # Looked at, and something may still come of it, also when `look` is shown it no more.
        self._unsettled: dict[IncidentId, Incident] = {}
        for notice in journal.undelivered_notices():
            self._restore(notice, now)
        self._find_unsettled(now)

    def update(self, incidents: Iterable[Incident], now: datetime) -> None:
        """Decide about incidents: the open ones, those resolved of late, and those whose end is still to be told."""
        shown = {incident.id: incident for incident in incidents}
        for incident in [one for id, one in self._unsettled.items() if id not in shown]:
            # When the hub stood still, it may have ended and been forgotten without being shown here.
            newest = self._journal.incident(incident.id) if incident.is_open else incident
            if newest is not None:
                shown[newest.id] = newest
        # One transaction, because a storm opens hundreds at once.
        made: list[Notice] = []
        for incident in shown.values():
            if self._is_to_look_at(incident, now):
                made += self._look_at(incident, now)
        self._unsettled = {id: one for id, one in shown.items() if not self._looked[id].is_settled}
        self._keep(made, now)
        for id in [id for id in self._looked if id not in shown]:
            del self._looked[id]
            self._unrouted.discard(id)
        for id in [id for id in self._known if id not in shown]:
            if not any(notice.is_pending for notice in self._known[id]):
                del self._known[id]

    @property
    def unrouted_count(self) -> int:
        """How many open incidents no route takes: nobody will be told of them."""
        return len(self._unrouted)

    def set_routing(self, routing: Routing, now: datetime) -> None:
        """Put other receivers and routes in force; what waits for a receiver that is gone is given up."""
        self._routing = routing
        names = [receiver.name for receiver in routing.receivers]
        gone = [one for name, line in self._lines.items() if name not in names for one in line.queue.values()]
        self._lines = {name: self._lines.get(name) or _ReceiverQueue({}, []) for name in names}
        self._looked.clear()
        self._keep([give_up(notice, NOT_CONFIGURED) for notice in gone], now)

    def next_batch(
        self, receiver: str, now: datetime, *, incident: Callable[[str], Incident | None]
    ) -> NoticeBatch | None:
        """What is due for a receiver, marked as being sent; None while nothing is due or it must not be asked yet."""
        line = self._lines[receiver]
        # Times ahead of now are of a clock that was put back since; nothing waits for it.
        line.sent = [at for at in line.sent if abs(now - at) < MINUTE]
        limit = next(one.per_minute for one in self._routing.receivers if one.name == receiver)
        longest = timedelta(seconds=PAUSES.longest_seconds)
        has_pause = line.not_before is not None and now < line.not_before <= now + longest
        if has_pause or len(line.sent) >= limit:
            return None
        all_due = [one for one in line.queue.values() if one.due_at <= now or one.made_at > now + MINUTE]
        due = _together(all_due)
        about = [(notice, incident(notice.incident)) for notice in due]
        key = next(
            (notice.batch for notice in due if notice.batch), f"{due[0].id}@{wire.format_time(now)}" if due else ""
        )
        told = [
            (replace(one, state=NoticeState.SENDING, tries=one.tries + 1, batch=key), found)
            for one, found in about
            if found is not None
        ]
        forgotten = [give_up(notice, "its incident is forgotten") for notice, found in about if found is None]
        self._keep([*forgotten, *(notice for notice, _ in told)], now)
        if not told:
            return None
        sent, known = zip(*told, strict=True)
        return NoticeBatch(receiver, sent, known, now, more=len(all_due) - len(due))

    def mark_sent(self, batch: NoticeBatch, answer: str, now: datetime) -> None:
        """The receiver has it."""
        line = self._lines.get(batch.receiver)
        if line is not None:
            line.failures, line.not_before = 0, None
            line.sent.append(now)
        self._keep(
            [replace(notice, state=NoticeState.SENT, sent_at=now, answer=answer) for notice in batch.notices], now
        )

    def mark_failed(self, batch: NoticeBatch, problem: str, now: datetime, *, may_retry: bool = True) -> None:
        """The receiver did not take it: later again, or not at all."""
        line = self._lines.get(batch.receiver)
        if line is not None:
            line.failures += 1
            line.not_before = now + timedelta(seconds=PAUSES.seconds(line.failures))
        kept = []
        for notice in batch.notices:
            is_last = line is None or not may_retry or now - notice.made_at > GIVE_UP_AFTER
            state = NoticeState.GIVEN_UP if is_last else NoticeState.WAITING
            kept.append(replace(notice, state=state, answer=problem))
        self._keep(kept, now)

    def pending_counts(self) -> dict[str, int]:
        """How many notices wait for each receiver."""
        return {name: len(line.queue) for name, line in self._lines.items()}

    def _is_to_look_at(self, incident: Incident, now: datetime) -> bool:
        """One that changed, or a silence did; otherwise now and then, for repetition, escalation and hours."""
        last = self._looked.get(incident.id)
        if last is None or last.version != incident.version:
            return True
        if last.is_settled:
            return False
        return last.silences != self._silences.version or not last.at <= now < last.at + LOOK_AGAIN

    def _look_at(self, incident: Incident, now: datetime) -> list[Notice]:
        known = self._known.get(incident.id)
        if known is None:
            known = self._known[incident.id] = relevant_notices(self._journal.notices_of(incident.id))
        subject = self._subject(incident)
        routes = list(self._routing.routes_for(subject, now))
        is_silenced = self._silences.find_match(subject, now) is not None
        made = decide_notices(incident, known, routes, is_silenced=is_silenced, now=now)
        is_settled = not made and not incident.is_open and _is_settled(incident, known, now)
        self._looked[incident.id] = _LastDecision(incident.version, self._silences.version, now, is_settled)
        if incident.is_open and not routes:
            self._unrouted.add(incident.id)
        else:
            self._unrouted.discard(incident.id)
        return made

    def _keep(self, notices: Sequence[Notice], now: datetime) -> None:
        """Write them down, then change memory: what the disk did not take is decided again."""
        if not notices:
            return
        try:
            with self._journal.transaction():
                for notice in notices:
                    self._journal.save_notice(notice, at=now, text=_words(notice))
        except StoreError:
            self._looked.clear()
            raise
        for notice in notices:
            known = self._known.setdefault(IncidentId(notice.incident), [])
            # Each keeps its place: the beginning that is told late is still the beginning.
            known[:] = relevant_notices(list({**{one.id: one for one in known}, notice.id: notice}.values()))
            self._queue(notice)

    def _find_unsettled(self, now: datetime) -> None:
        """Incidents that ended before a stop of the hub, of which a receiver heard the beginning and not the end."""
        for incident in self._journal.incidents() if self._lines else ():
            if incident.resolved_at is None or now - incident.resolved_at > GIVE_UP_AFTER:
                continue
            if not all(_is_final(notice) for notice in _last_of_each(self._journal.notices_of(incident.id))):
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
        """After a restart: what was being sent may have arrived or not, and is sent again under its id."""
        if notice.receiver not in self._lines:
            self._keep([give_up(notice, NOT_CONFIGURED)], now)
            return
        if notice.state is NoticeState.SENDING:
            notice = replace(notice, state=NoticeState.WAITING)
        id = IncidentId(notice.incident)
        if id not in self._known:
            self._known[id] = relevant_notices(self._journal.notices_of(id))
        self._queue(notice)


def _together(due: Sequence[Notice]) -> list[Notice]:
    """What makes the next message: one that was tried before as it was, or what is new, the gravest first.

    The one with the fewest tries comes first, so that a message that is always refused holds up no other. But of one
    incident nobody hears the end before the beginning.
    """
    tried = {one.incident for one in due if one.batch}
    in_turn = [one for one in due if one.batch or one.incident not in tried]
    ordered = sorted(in_turn, key=lambda one: (one.tries, -one.severity.rank, one.due_at))
    if not ordered or not ordered[0].batch:
        return [notice for notice in ordered if not notice.batch][:MOST_TOLD_TOGETHER]
    return [notice for notice in ordered if notice.batch == ordered[0].batch]


def _last_of_each(known: Sequence[Notice]) -> list[Notice]:
    return list({notice.receiver: notice for notice in known}.values())


def _is_settled(incident: Incident, known: Sequence[Notice], now: datetime) -> bool:
    """Nobody is to be told of its end any more; one that `decide` leaves alone after its hold never will be."""
    if all(_is_final(notice) for notice in _last_of_each(known)):
        return True
    is_held = incident.resolved_at is None or now < incident.resolved_at + FLAP
    return not is_held and not any(notice.is_pending for notice in known)


def _is_final(notice: Notice) -> bool:
    """Nothing more will come of it: told to be over, or never told at all."""
    return notice.state is NoticeState.GIVEN_UP or (
        notice.occasion is Occasion.RESOLVED and notice.state is NoticeState.SENT
    )


def _words(notice: Notice) -> str:
    what = f"{notice.receiver} ({notice.occasion})"
    if notice.state is NoticeState.SENT:
        return f"Told {what}: {notice.answer}" if notice.answer else f"Told {what}"
    if notice.state is NoticeState.GIVEN_UP:
        return f"Not told {what}: {notice.answer}"
    if notice.state is NoticeState.SENDING:
        return f"Telling {what}, try {notice.tries}"
    if notice.tries:
        return f"{what} did not take it, try {notice.tries}: {notice.answer}"
    wait = (notice.due_at - notice.made_at).total_seconds()
    return f"To be told {what}" + (f" in {durations.format_seconds(round(wait))}" if wait >= 1 else "")
