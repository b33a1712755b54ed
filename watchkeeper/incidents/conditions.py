"""The newest event of each condition, and the incident member that represents the condition.

`IncidentTracker` records every event here and reads whether the condition of a member has ended. Nothing is stored
on disk: a restart rebuilds it from the events in the journal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

from watchkeeper.incidents.signals import CLEARING_KINDS, clear_rule
from watchkeeper.model import events, fleet
from watchkeeper.model.incidents import Member

# A spool may deliver late: for this long a reset also ends older faults that arrive after it.
EVENT_RETENTION = timedelta(hours=1)


class Conditions:
    def __init__(self) -> None:
        self._latest: dict[fleet.Place, dict[events.ConditionKey, events.Event]] = {}
        self._ref_of_key: dict[events.ConditionKey, str] = {}
        self._key_of_ref: dict[str, events.ConditionKey] = {}
        # When the newest event of each condition arrived, by the hub's clock.
        self._received_at: dict[events.ConditionKey, datetime] = {}

    def clear(self) -> None:
        self._latest.clear()
        self._received_at.clear()
        self._ref_of_key.clear()
        self._key_of_ref.clear()

    def remember(self, event: events.Event, received_at: datetime) -> None:
        latest = self._latest.setdefault(event.place.whole_node, {})
        previous = latest.get(events.condition_key(event))
        if previous is None or (previous.at, previous.id) < (event.at, event.id):
            latest[events.condition_key(event)] = event
            self._received_at[events.condition_key(event)] = received_at

    def link_member(self, key: events.ConditionKey, ref: str) -> None:
        """Let the member `ref` represent this condition from now on."""
        self._ref_of_key[key] = ref
        self._key_of_ref[ref] = key

    def member_of(self, key: events.ConditionKey) -> str | None:
        return self._ref_of_key.get(key)

    def fold_condition(self, key: events.ConditionKey, cause: str, *, now: datetime) -> events.Condition | None:
        """The condition after its newest event and all clearing events since; None without an event."""
        latest = self._latest.get(key[0].whole_node, {})
        if key not in latest:
            return None
        clearing = [event for event in latest.values() if event.kind in CLEARING_KINDS]
        # The clock of a source may be ahead of the hub's; its event is not in the future.
        at = max(now, latest[key].at)
        return events.fold_conditions([latest[key], *clearing], clear_rule(cause, latest[key]), at)[key]

    def cleared_condition(self, member: Member, *, now: datetime) -> events.Condition | None:
        """The condition of an event member if it has ended, otherwise None."""
        key = self._key_of_ref.get(member.ref)
        condition = None if key is None else self.fold_condition(key, member.cause, now=now)
        return condition if condition is not None and condition.cleared_at is not None else None

    def expiry_times(self, members: Iterable[Member]) -> Iterator[datetime]:
        """When each open event member will end if its event is not repeated; only for kinds that end by quiet."""
        for member in members:
            key = self._key_of_ref.get(member.ref) if member.until is None else None
            latest = None if key is None else self._latest.get(key[0].whole_node, {}).get(key)
            quiet_seconds = None if latest is None else clear_rule(member.cause, latest).quiet_seconds
            if latest is not None and quiet_seconds is not None:
                yield latest.at + timedelta(seconds=quiet_seconds)

    def last_fault(self, member: Member) -> tuple[datetime, datetime] | None:
        """Time of the last event of a fault that only a reset ends, and of its arrival; None for other members."""
        key = self._key_of_ref.get(member.ref)
        if key is None:
            return None
        latest = self._latest[key[0].whole_node][key]
        if clear_rule(member.cause, latest).quiet_seconds is not None:
            return None
        return max(member.since, latest.at), self._received_at[key]

    def forget(self, removed: Iterable[Member], now: datetime) -> None:
        """Remove members, and old events that no member refers to."""
        for member in removed:
            key = self._key_of_ref.pop(member.ref, None)
            if key is not None and self._ref_of_key.get(key) == member.ref:
                del self._ref_of_key[key]
        for node, latest in list(self._latest.items()):
            retained = {
                key: event
                for key, event in latest.items()
                if key in self._ref_of_key or now - event.at <= EVENT_RETENTION
            }
            self._latest[node] = retained
            for key in latest.keys() - retained.keys():
                del self._received_at[key]
            if not retained:
                del self._latest[node]
