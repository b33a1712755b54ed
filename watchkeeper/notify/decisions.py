"""Who is to be told what, and when: decided from an incident, its routes, and what its receivers were told before.

Pure: `decide` returns new notices to keep, and waiting ones that are no longer wanted. `outbox` keeps them and hands
them out. The laws: everyone is told once; nobody is told of what was over before the wait ended; an incident that
flaps is told once and called over only when it has been quiet; acknowledged means no more repetition.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from watchkeeper.incidents.correlate import FLAP_SECONDS
from watchkeeper.model.incidents import Incident, IncidentState
from watchkeeper.model.notices import Notice, NoticeState, Occasion
from watchkeeper.notify.routing import Route

FLAP = timedelta(seconds=FLAP_SECONDS)
# What was done further in the future was done by a clock that was put back since.
CLOCK_SLACK = timedelta(minutes=1)


def decide_notices(
    incident: Incident, known: Sequence[Notice], routes: Sequence[Route], *, is_silenced: bool, now: datetime
) -> list[Notice]:
    """New notices, and waiting ones withdrawn; `known` are notices about the incident, oldest first: those worth it."""
    if not incident.is_open:
        return list(_when_over(incident, known, routes, now=now))
    if is_silenced:
        return [give_up(notice, "silenced") for notice in known if _is_untold(notice)]
    return list(_when_open(incident, known, routes, now=now))


def _when_open(
    incident: Incident, known: Sequence[Notice], routes: Sequence[Route], *, now: datetime
) -> Iterator[Notice]:
    served: set[str] = set()
    for route in routes:
        for receiver in route.receivers:
            if receiver not in served:
                served.add(receiver)
                yield from _for_receiver(incident, _of(receiver, known), route, receiver=receiver, now=now)
        if incident.state is IncidentState.OPEN:
            yield from _escalations(incident, known, route, now=now)


def _for_receiver(
    incident: Incident, mine: Sequence[Notice], route: Route, *, receiver: str, now: datetime
) -> Iterator[Notice]:
    episode = _episode(mine)
    if not episode:
        since = min(incident.opened_at, now) if not mine else now
        # Not before now, where a silence or the hours of a route kept it back: escalation counts from here.
        due_at = max(since + _seconds(route.wait_seconds), now)
        yield _notice(incident, mine, receiver, Occasion.OPENED, now=now, due_at=due_at)
        return
    last, worst = episode[-1], max(notice.severity.rank for notice in episode)
    if incident.severity.rank > worst:
        yield _notice(incident, mine, receiver, Occasion.WORSE, now=now, due_at=now)
    elif _is_wider(incident, episode):
        yield _notice(incident, mine, receiver, Occasion.WIDER, now=now, due_at=now)
    elif not last.is_pending and incident.state is IncidentState.OPEN:
        told_at = last.sent_at or last.due_at
        # How long ago a notice from the future was told is unknown, so it is repeated.
        if now >= told_at + _seconds(route.repeat_seconds) or told_at > now + CLOCK_SLACK:
            yield _notice(incident, mine, receiver, Occasion.REPEATED, now=now, due_at=now)


def _escalations(incident: Incident, known: Sequence[Notice], route: Route, *, now: datetime) -> Iterator[Notice]:
    """Nobody has acknowledged for so long since the first was to be told; a receiver that is down counts as well."""
    after = route.escalate_seconds
    episodes = [_episode(_of(receiver, known)) for receiver in route.receivers]
    told = (one.due_at for episode in episodes for one in episode)
    first = min((at for at in told if at <= now), default=None)
    if after is None or first is None or now < first + _seconds(after):
        return
    for receiver in route.escalate_to:
        mine = _of(receiver, known)
        if not any(notice.occasion is Occasion.ESCALATED for notice in _episode(mine)):
            yield _notice(incident, mine, receiver, Occasion.ESCALATED, now=now, due_at=now)


def _when_over(
    incident: Incident, known: Sequence[Notice], routes: Sequence[Route], *, now: datetime
) -> Iterator[Notice]:
    keep_quiet = {receiver for route in routes if not route.tells_resolved for receiver in route.receivers}
    for receiver in dict.fromkeys(notice.receiver for notice in known):
        mine = _of(receiver, known)
        yield from (give_up(notice, "over before anybody was told") for notice in mine if _is_untold(notice))
        was_told = [one for one in _episode(mine) if not _is_untold(one) and one.state is not NoticeState.GIVEN_UP]
        if not was_told or receiver in keep_quiet or incident.resolved_at is None:
            continue
        # One that has come back before is called over when it has stayed away.
        is_flapping = sum(notice.occasion is Occasion.OPENED for notice in mine) > 1 or incident.reopened > 0
        due_at = incident.resolved_at + (FLAP if is_flapping else timedelta())
        if now >= due_at or incident.resolved_at > now + CLOCK_SLACK:
            yield _notice(incident, mine, receiver, Occasion.RESOLVED, now=now, due_at=min(due_at, now))


def _of(receiver: str, known: Sequence[Notice]) -> list[Notice]:
    return [notice for notice in known if notice.receiver == receiver]


def _episode(mine: Sequence[Notice]) -> list[Notice]:
    """What a receiver was told, or is about to be, or would not take, since it last heard that all was over."""
    valid = [notice for notice in mine if notice.state is not NoticeState.GIVEN_UP or notice.tries]
    ends = [at for at, notice in enumerate(valid) if notice.occasion is Occasion.RESOLVED]
    return valid[ends[-1] + 1 :] if ends else valid


def _is_untold(notice: Notice) -> bool:
    return notice.state is NoticeState.WAITING and notice.tries == 0 and notice.occasion is not Occasion.RESOLVED


def give_up(notice: Notice, why: str) -> Notice:
    return replace(notice, state=NoticeState.GIVEN_UP, answer=why)


def _notice(
    incident: Incident, mine: Sequence[Notice], receiver: str, occasion: Occasion, *, now: datetime, due_at: datetime
) -> Notice:
    # Not how many there are: of repetitions only the newest is known.
    number = max((_number(notice) for notice in mine if notice.occasion is occasion), default=0) + 1
    return Notice(
        id=f"{incident.id}/{receiver}/{occasion}/{number}",
        incident=incident.id,
        receiver=receiver,
        occasion=occasion,
        severity=incident.severity,
        state=NoticeState.WAITING,
        made_at=now,
        due_at=due_at,
        place=str(incident.place),
    )


def _number(notice: Notice) -> int:
    return int(notice.id.rpartition("/")[2])


def relevant_notices(known: Sequence[Notice]) -> list[Notice]:
    """All that `decide` needs: of what was repeated to a receiver, and is not on the way, the newest is enough."""
    repeated = [one for one in known if one.occasion is Occasion.REPEATED and not one.is_pending]
    newest = {one.receiver: one.id for one in repeated}
    old = {one.id for one in repeated if newest[one.receiver] != one.id}
    return [one for one in known if one.id not in old]


def _is_wider(incident: Incident, episode: Sequence[Notice]) -> bool:
    """People were told of a node, and now it is its rack; one that has not gone out yet will say so itself."""
    if incident.place.domain is None or any(_is_untold(notice) for notice in episode):
        return False
    return all(notice.place not in ("", str(incident.place)) for notice in episode)


def _seconds(count: float) -> timedelta:
    return timedelta(seconds=count)
