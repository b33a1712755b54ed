"""The outbox: every notice from the moment it is decided until its receiver has taken it, through crash and restart.

It belongs to the thread of the incidents. `look` decides for the incidents it is shown; `take` hands out what is due
for one receiver as one message, marked as being sent; `taken` and `failed` say what became of it. Each step is in
the journal before the next one is made, so that a restart goes on exactly there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from watchkeeper.incidents.notify import decide
from watchkeeper.incidents.routing import Routing
from watchkeeper.incidents.silencing import Silences
from watchkeeper.incidents.subject import Subject
from watchkeeper.kit import durations
from watchkeeper.model.incidents import Incident, IncidentId
from watchkeeper.model.notices import Notice, NoticeState, Occasion
from watchkeeper.store import journal as journals

# A message is read by a person on a phone; the rest of a storm is told in the next one.
MOST_TOLD_TOGETHER = 50
FIRST_PAUSE = timedelta(seconds=5)
LONGEST_PAUSE = timedelta(minutes=10)
# A receiver that has been away for so long has an operator who knows.
GIVE_UP_AFTER = timedelta(days=3)
MINUTE = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Batch:
    """One message to one receiver: the notices in it, each with its incident as it is now."""

    receiver: str
    notices: tuple[Notice, ...]
    incidents: tuple[Incident, ...]


@dataclass(slots=True)
class _Line:
    """What one receiver gets, and when it may get it."""

    queue: dict[str, Notice]
    sent: list[datetime]
    failures: int = 0
    not_before: datetime | None = None


class Outbox:
    """Not for several threads at once."""

    def __init__(
        self,
        journal: journals.Journal,
        routing: Routing,
        *,
        subject: Callable[[Incident], Subject],
        silences: Silences,
        now: datetime,
    ) -> None:
        self._journal = journal
        self._routing = routing
        self._subject = subject
        self._silences = silences
        self._lines = {receiver.name: _Line({}, []) for receiver in routing.receivers}
        self._known: dict[IncidentId, list[Notice]] = {}
        # Incidents that are over and told to be so; they are not looked at again until they come back.
        self._settled: dict[IncidentId, int] = {}
        for notice in journal.notices_on_the_way():
            self._restore(notice, now)

    def look(self, incidents: Iterable[Incident], now: datetime) -> None:
        """Decide about incidents: the open ones and those resolved of late."""
        shown: set[IncidentId] = set()
        # One transaction, because a storm opens hundreds at once.
        with self._journal.together():
            for incident in incidents:
                shown.add(incident.id)
                if self._settled.get(incident.id) != incident.version:
                    self._look_at(incident, now)
        for id in [id for id in self._known if id not in shown]:
            if not any(notice.is_on_the_way for notice in self._known[id]):
                del self._known[id]
                self._settled.pop(id, None)

    def unrouted(self, incidents: Iterable[Incident], now: datetime) -> int:
        """How many open incidents no route takes: nobody will be told of them."""
        return sum(
            1
            for incident in incidents
            if incident.is_open and not any(self._routing.routes_for(self._subject(incident), now))
        )

    def take(self, receiver: str, now: datetime, *, incident: Callable[[str], Incident | None]) -> Batch | None:
        """What is due for a receiver, marked as being sent; None while nothing is due or it must not be asked yet."""
        line = self._lines[receiver]
        line.sent = [at for at in line.sent if now - at < MINUTE]
        limit = next(one.per_minute for one in self._routing.receivers if one.name == receiver)
        if (line.not_before is not None and now < line.not_before) or len(line.sent) >= limit:
            return None
        due = [notice for notice in line.queue.values() if notice.due_at <= now][:MOST_TOLD_TOGETHER]
        about = [(notice, incident(notice.incident)) for notice in due]
        told = [(replace(n, state=NoticeState.SENDING, tries=n.tries + 1), i) for n, i in about if i is not None]
        for notice, found in about:
            if found is None:
                self._keep(replace(notice, state=NoticeState.GIVEN_UP, answer="its incident is forgotten"), now)
        if not told:
            return None
        with self._journal.together():
            for notice, _ in told:
                self._keep(notice, now)
        return Batch(receiver, tuple(notice for notice, _ in told), tuple(found for _, found in told))

    def taken(self, batch: Batch, answer: str, now: datetime) -> None:
        """The receiver has it."""
        line = self._lines[batch.receiver]
        line.failures, line.not_before = 0, None
        line.sent.append(now)
        with self._journal.together():
            for notice in batch.notices:
                self._keep(replace(notice, state=NoticeState.SENT, sent_at=now, answer=answer), now)

    def failed(self, batch: Batch, problem: str, now: datetime, *, may_retry: bool = True) -> None:
        """The receiver did not take it: later again, or not at all."""
        line = self._lines[batch.receiver]
        line.failures += 1
        line.not_before = now + min(FIRST_PAUSE * 2 ** min(line.failures - 1, 10), LONGEST_PAUSE)
        with self._journal.together():
            for notice in batch.notices:
                is_last = not may_retry or now - notice.made_at > GIVE_UP_AFTER
                state = NoticeState.GIVEN_UP if is_last else NoticeState.WAITING
                self._keep(replace(notice, state=state, answer=problem), now)

    def waiting(self) -> dict[str, int]:
        """How many notices wait for each receiver."""
        return {name: len(line.queue) for name, line in self._lines.items()}

    def _look_at(self, incident: Incident, now: datetime) -> None:
        known = self._known.get(incident.id)
        if known is None:
            known = self._known[incident.id] = self._journal.notices_of(incident.id)
        subject = self._subject(incident)
        routes = list(self._routing.routes_for(subject, now))
        is_silenced = self._silences.over(subject, now) is not None
        made = decide(incident, known, routes, is_silenced=is_silenced, now=now)
        for notice in made:
            self._keep(notice, now)
        if not made and not incident.is_open and all(_is_final(notice) for notice in _last_of_each(known)):
            self._settled[incident.id] = incident.version

    def _keep(self, notice: Notice, now: datetime) -> None:
        self._journal.save_notice(notice, at=now, text=_words(notice))
        known = self._known.setdefault(IncidentId(notice.incident), [])
        known[:] = [*(one for one in known if one.id != notice.id), notice]
        self._queue(notice)

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
            self._keep(replace(notice, state=NoticeState.GIVEN_UP, answer="the receiver is no longer configured"), now)
            return
        if notice.state is NoticeState.SENDING:
            notice = replace(notice, state=NoticeState.WAITING)
        self._known.setdefault(IncidentId(notice.incident), self._journal.notices_of(notice.incident))
        self._queue(notice)


def _last_of_each(known: Sequence[Notice]) -> list[Notice]:
    return list({notice.receiver: notice for notice in known}.values())


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
