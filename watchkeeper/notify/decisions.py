"""Decide which receiver gets which notice, and when, from an incident, its routes, and earlier notices.

Pure: `decide_notices` returns new notices, and pending ones that are withdrawn. A receiver gets each notice once; an
incident that ends before the wait ends is not reported; a flapping incident is reported once, and as resolved only
after the flap hold; an acknowledged incident is not repeated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from watchkeeper.incidents.correlate import FLAP_TIME
from watchkeeper.model.incidents import Incident, IncidentState
from watchkeeper.model.notices import Notice, NoticeState, Occasion
from watchkeeper.notify.routing import Route

# A time further in the future comes from a clock that was set back since.
CLOCK_SLACK = timedelta(minutes=1)


def decide_notices(
    incident: Incident, notices: Sequence[Notice], routes: Sequence[Route], *, is_silenced: bool, now: datetime
) -> list[Notice]:
    """New notices, and pending ones withdrawn; `notices` are the relevant ones of the incident, oldest first."""
    if not incident.is_open:
        return list(_resolved_notices(incident, notices, routes, now=now))
    if is_silenced:
        return [give_up(notice, "silenced") for notice in notices if _is_unsent(notice)]
    return list(_open_notices(incident, notices, routes, now=now))


def _open_notices(
    incident: Incident, notices: Sequence[Notice], routes: Sequence[Route], *, now: datetime
) -> Iterator[Notice]:
    served: set[str] = set()
    for route in routes:
        for receiver in route.receivers:
            if receiver not in served:
                served.add(receiver)
                earlier = _notices_to(receiver, notices)
                yield from _receiver_notices(incident, earlier, route, receiver=receiver, now=now)
        if incident.state is IncidentState.OPEN:
            yield from _escalations(incident, notices, route, now=now)


def _receiver_notices(
    incident: Incident, receiver_notices: Sequence[Notice], route: Route, *, receiver: str, now: datetime
) -> Iterator[Notice]:
    episode = _episode(receiver_notices)
    if not episode:
        since = min(incident.opened_at, now) if not receiver_notices else now
        # Not in the past, if a silence or the hours of the route delayed it: escalation is counted from here.
        due_at = max(since + _seconds(route.wait_seconds), now)
        yield _new_notice(incident, receiver_notices, receiver, Occasion.OPENED, now=now, due_at=due_at)
        return
    last, worst_rank = episode[-1], max(notice.severity.rank for notice in episode)
    if incident.severity.rank > worst_rank:
        yield _new_notice(incident, receiver_notices, receiver, Occasion.WORSE, now=now, due_at=now)
    elif _is_wider(incident, episode):
        yield _new_notice(incident, receiver_notices, receiver, Occasion.WIDER, now=now, due_at=now)
    elif not last.is_pending and incident.state is IncidentState.OPEN:
        notified_at = last.sent_at or last.due_at
        # The age of a notice with a time in the future is unknown, so it is repeated.
        if now >= notified_at + _seconds(route.repeat_seconds) or notified_at > now + CLOCK_SLACK:
            yield _new_notice(incident, receiver_notices, receiver, Occasion.REPEATED, now=now, due_at=now)


def _escalations(incident: Incident, notices: Sequence[Notice], route: Route, *, now: datetime) -> Iterator[Notice]:
    """Escalate an unacknowledged incident some time after its first notice was due, delivered or not."""
    after = route.escalate_seconds
    episodes = [_episode(_notices_to(receiver, notices)) for receiver in route.receivers]
    due_times = (notice.due_at for episode in episodes for notice in episode)
    first_due_at = min((at for at in due_times if at <= now), default=None)
    if after is None or first_due_at is None or now < first_due_at + _seconds(after):
        return
    for receiver in route.escalate_to:
        receiver_notices = _notices_to(receiver, notices)
        if not any(notice.occasion is Occasion.ESCALATED for notice in _episode(receiver_notices)):
            yield _new_notice(incident, receiver_notices, receiver, Occasion.ESCALATED, now=now, due_at=now)


def _resolved_notices(
    incident: Incident, notices: Sequence[Notice], routes: Sequence[Route], *, now: datetime
) -> Iterator[Notice]:
    skip_resolved = {receiver for route in routes if not route.notifies_resolved for receiver in route.receivers}
    for receiver in dict.fromkeys(notice.receiver for notice in notices):
        receiver_notices = _notices_to(receiver, notices)
        yield from (give_up(notice, "resolved before it was sent") for notice in receiver_notices if _is_unsent(notice))
        tried = (notice for notice in _episode(receiver_notices) if not _is_unsent(notice))
        is_delivered = any(notice.state is not NoticeState.GIVEN_UP for notice in tried)
        if not is_delivered or receiver in skip_resolved or incident.resolved_at is None:
            continue
        # An incident that reopened is reported as resolved only after the flap hold.
        openings = sum(notice.occasion is Occasion.OPENED for notice in receiver_notices)
        due_at = incident.resolved_at + (FLAP_TIME if openings > 1 or incident.reopened > 0 else timedelta())
        if now >= due_at or incident.resolved_at > now + CLOCK_SLACK:
            yield _new_notice(incident, receiver_notices, receiver, Occasion.RESOLVED, now=now, due_at=min(due_at, now))


def _notices_to(receiver: str, notices: Sequence[Notice]) -> list[Notice]:
    return [notice for notice in notices if notice.receiver == receiver]


def _episode(receiver_notices: Sequence[Notice]) -> list[Notice]:
    """Notices to a receiver since its last `resolved`: sent, pending, or tried and failed."""
    counted = [notice for notice in receiver_notices if notice.state is not NoticeState.GIVEN_UP or notice.tries]
    ends = [at for at, notice in enumerate(counted) if notice.occasion is Occasion.RESOLVED]
    return counted[ends[-1] + 1 :] if ends else counted


def _is_unsent(notice: Notice) -> bool:
    return notice.state is NoticeState.WAITING and notice.tries == 0 and notice.occasion is not Occasion.RESOLVED


def give_up(notice: Notice, why: str) -> Notice:
    return replace(notice, state=NoticeState.GIVEN_UP, answer=why)


def _new_notice(
    incident: Incident,
    receiver_notices: Sequence[Notice],
    receiver: str,
    occasion: Occasion,
    *,
    now: datetime,
    due_at: datetime,
) -> Notice:
    # Deliberately not the count: of repetitions only the newest is kept.
    numbers = (int(notice.id.rpartition("/")[2]) for notice in receiver_notices if notice.occasion is occasion)
    return Notice(
        id=f"{incident.id}/{receiver}/{occasion}/{max(numbers, default=0) + 1}",
        incident=incident.id,
        receiver=receiver,
        occasion=occasion,
        severity=incident.severity,
        state=NoticeState.WAITING,
        made_at=now,
        due_at=due_at,
        place=str(incident.place),
    )


def relevant_notices(notices: Sequence[Notice]) -> list[Notice]:
    """The notices that `decide_notices` needs: of delivered repetitions to a receiver, only the newest."""
    repeated = [notice for notice in notices if notice.occasion is Occasion.REPEATED and not notice.is_pending]
    newest_ids = {notice.receiver: notice.id for notice in repeated}
    superseded_ids = {notice.id for notice in repeated if newest_ids[notice.receiver] != notice.id}
    return [notice for notice in notices if notice.id not in superseded_ids]


def _is_wider(incident: Incident, episode: Sequence[Notice]) -> bool:
    """Whether the incident now has a larger place than all notices named; an unsent notice gets the new place."""
    if incident.place.domain is None or any(_is_unsent(notice) for notice in episode):
        return False
    return all(notice.place not in ("", str(incident.place)) for notice in episode)


def _seconds(count: float) -> timedelta:
    return timedelta(seconds=count)
