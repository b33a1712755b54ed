"""The hub's silences: created and ended by users, stored in the journal, checked before a notification.

The hub's one `SilenceStore` is changed in the journal thread only; pages read it too. Where Alertmanager routes,
silences belong to Alertmanager, and this store stays empty.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from watchkeeper.errors import InvalidTransition
from watchkeeper.incidents.incident_labels import IncidentLabels, check_matcher, matches_labels
from watchkeeper.kit import durations
from watchkeeper.model.silences import Matcher, Silence
from watchkeeper.store.journal import journal as journals

# Each is compared with each incident; if you need more, change a rule instead.
MOST_ACTIVE = 1000
# Something that never ends is a rule to change, not a silence.
LONGEST = timedelta(days=365)
# Ended silences are listed for a day: "who silenced this last night?"
SHOWN_AFTER = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class SilenceRequest:
    """A silence that a user wants to create."""

    matchers: tuple[Matcher, ...]
    author: str
    reason: str
    starts_at: datetime
    ends_at: datetime
    is_maintenance: bool = False


class SilenceStore:
    """Each change replaces the whole table, so that any thread may read."""

    def __init__(self, journal: journals.Journal, *, now: datetime) -> None:
        self._journal = journal
        self._kept = {silence.id: silence for silence in journal.silences(now - SHOWN_AFTER)}
        # Rises with each change, so that callers need not compare silences.
        self.version = 0

    def listed(self, now: datetime) -> list[Silence]:
        """Silences that are active, pending, or ended within the last day."""
        return [silence for silence in self._kept.values() if silence.ends_at > now - SHOWN_AFTER]

    def add(self, request: SilenceRequest, now: datetime) -> Silence:
        """Create one; raise InvalidTransition with the problem."""
        lasting = [silence for silence in self._kept.values() if silence.ends_at > now]
        if len(lasting) >= MOST_ACTIVE:
            raise InvalidTransition(
                f"{len(lasting)} active silences, the limit is {MOST_ACTIVE}",
                remedy="End some, or change the rules that need so many",
            )
        if not now < request.ends_at <= now + LONGEST:
            raise InvalidTransition(
                f"a silence must end after now and within {durations.format_seconds(LONGEST.total_seconds())}",
                now=f"It would end at {request.ends_at:%Y-%m-%d %H:%M}Z",
            )
        try:
            for matcher in request.matchers:
                check_matcher(matcher)
            made = Silence(
                f"S-{secrets.token_hex(4)}",
                request.matchers,
                request.author,
                request.reason,
                request.starts_at,
                request.ends_at,
                request.is_maintenance,
            )
        except ValueError as error:
            raise InvalidTransition(str(error)) from error
        self._save(
            made, request.author, text=f"{_what(made)} until {made.ends_at:%Y-%m-%d %H:%M}Z: {made.reason}", at=now
        )
        return made

    def end(self, id: str, actor: str, now: datetime) -> Silence:
        """End one early; notices that it held back are sent from then on."""
        silence = self._kept.get(id)
        if silence is None or silence.ends_at <= now:
            raise InvalidTransition(
                "no active silence with this id", where=id[:40], remedy="List them with `watchkeeper silence list`"
            )
        # A silence that has not started never will.
        ended = replace(
            silence, starts_at=min(silence.starts_at, now - timedelta(seconds=1)), ends_at=now, ended_by=actor
        )
        self._save(ended, actor, text=f"{_what(ended)} ended by {actor}", at=now)
        return ended

    def find_match(self, subject: IncidentLabels, now: datetime) -> Silence | None:
        """The active silence that matches and ends last."""
        return longest_match(list(self._kept.values()), subject, now)

    def _save(self, silence: Silence, actor: str, *, text: str, at: datetime) -> None:
        self._journal.save_silence(silence, at=at, actor=actor, text=text)
        lasting = {id: kept for id, kept in self._kept.items() if kept.ends_at > at - SHOWN_AFTER}
        self._kept = {**lasting, silence.id: silence}
        self.version += 1


def longest_match(silences: Sequence[Silence], subject: IncidentLabels, now: datetime) -> Silence | None:
    fitting = (silence for silence in silences if silence.is_active(now) and matches_labels(silence.matchers, subject))
    return max(fitting, key=lambda silence: silence.ends_at, default=None)


def _what(silence: Silence) -> str:
    kind = "Maintenance" if silence.is_maintenance else "Silence"
    return f"{kind} of {', '.join(map(str, silence.matchers))}"
