"""What events have reported and is still so: the newest event of each condition, and the member that stands for it.

`core.Incidents` remembers every event here and asks whether what a member reported is over. Nothing here is kept: it
is rebuilt from the journal, and what is so follows from the events alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

from watchkeeper.incidents.signals import CLEARING_KINDS, clear_rule
from watchkeeper.model import events, fleet
from watchkeeper.model.incidents import Member

# A spool may deliver late; a reset is remembered this long, so that what came before it stays over.
RECALL = timedelta(hours=1)


class Conditions:
    def __init__(self) -> None:
        self._latest: dict[fleet.Place, dict[events.ConditionKey, events.Event]] = {}
        self._refs: dict[events.ConditionKey, str] = {}
        self._keys: dict[str, events.ConditionKey] = {}
        # When the newest event of each was heard, by the hub's own clock.
        self._heard: dict[events.ConditionKey, datetime] = {}

    def clear(self) -> None:
        self._latest.clear()
        self._heard.clear()
        self._refs.clear()
        self._keys.clear()

    def remember(self, event: events.Event, heard_at: datetime) -> None:
        latest = self._latest.setdefault(event.place.whole_node, {})
        known = latest.get(events.condition_key(event))
        if known is None or (known.at, known.id) < (event.at, event.id):
            latest[events.condition_key(event)] = event
            self._heard[events.condition_key(event)] = heard_at

    def link_member(self, key: events.ConditionKey, ref: str) -> None:
        """From now on the member `ref` speaks for this condition."""
        self._refs[key] = ref
        self._keys[ref] = key

    def member_of(self, key: events.ConditionKey) -> str | None:
        return self._refs.get(key)

    def fold_condition(self, key: events.ConditionKey, cause: str, *, now: datetime) -> events.Condition | None:
        """Whether what such events reported is still so, by the last of them and the resets since."""
        latest = self._latest.get(key[0].whole_node, {})
        if key not in latest:
            return None
        clearing = [event for event in latest.values() if event.kind in CLEARING_KINDS]
        # A source's clock may run ahead of ours; what it reported is not in the future for that.
        at = max(now, latest[key].at)
        return events.fold_conditions([latest[key], *clearing], clear_rule(cause, latest[key]), at)[key]

    def cleared(self, member: Member, *, now: datetime) -> events.Condition | None:
        """The condition of an event member, if it is over."""
        key = self._keys.get(member.ref)
        condition = None if key is None else self.fold_condition(key, member.cause, now=now)
        return condition if condition is not None and condition.cleared_at is not None else None

    def quiet_times(self, members: Iterable[Member]) -> Iterator[datetime]:
        """When each event that lasts will be over, if it is not repeated and is of the kind that quiet ends."""
        for member in members:
            key = self._keys.get(member.ref) if member.until is None else None
            latest = None if key is None else self._latest.get(key[0].whole_node, {}).get(key)
            quiet = None if latest is None else clear_rule(member.cause, latest).quiet_seconds
            if latest is not None and quiet is not None:
                yield latest.at + timedelta(seconds=quiet)

    def last_fault(self, member: Member) -> tuple[datetime, datetime] | None:
        """When a hardware fault that only a reset ends last happened, and when it was heard; None for other members."""
        key = self._keys.get(member.ref)
        if key is None:
            return None
        latest = self._latest[key[0].whole_node][key]
        if clear_rule(member.cause, latest).quiet_seconds is not None:
            return None
        return max(member.since, latest.at), self._heard[key]

    def forget(self, gone: Iterable[Member], now: datetime) -> None:
        """Let go of members, and of events that no member is about any more."""
        for member in gone:
            key = self._keys.pop(member.ref, None)
            if key is not None and self._refs.get(key) == member.ref:
                del self._refs[key]
        for node, latest in list(self._latest.items()):
            kept = {key: event for key, event in latest.items() if key in self._refs or now - event.at <= RECALL}
            self._latest[node] = kept
            for key in latest.keys() - kept.keys():
                del self._heard[key]
            if not kept:
                del self._latest[node]
