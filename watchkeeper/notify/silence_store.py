"""Create, end and match the hub's silences, and store them in the journal.

The hub has one `SilenceStore`, which only the journal thread changes; pages read it too. If Alertmanager sends the
notifications, it stores the silences, and this store stays empty.
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

# Each is compared with each incident; to mute more, change a rule.
MAX_ACTIVE = 1000
# To mute something permanently, change a rule.
MAX_DURATION = timedelta(days=365)
# Ended silences are listed for a day, to see who silenced something last night.
LISTED_AFTER_END = timedelta(days=1)


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
    """The hub's silences; each change replaces the whole table, so that any thread may read it."""

    def __init__(self, journal: journals.Journal, *, now: datetime) -> None:
        self._journal = journal
        self._silences = {silence.id: silence for silence in journal.silences(now - LISTED_AFTER_END)}
        # Increases with each change, so that callers need not compare silences.
        self.version = 0

    def list_silences(self, now: datetime) -> list[Silence]:
        """Silences that are active, pending, or ended within the last day."""
        return [silence for silence in self._silences.values() if silence.ends_at > now - LISTED_AFTER_END]

    def add(self, request: SilenceRequest, now: datetime) -> Silence:
        """Create a silence; raise InvalidTransition if it is invalid."""
        active = [silence for silence in self._silences.values() if silence.ends_at > now]
        if len(active) >= MAX_ACTIVE:
            raise InvalidTransition(
                f"{len(active)} active silences, the limit is {MAX_ACTIVE}",
                remedy="End some, or change the rules that cause them",
            )
        if not now < request.ends_at <= now + MAX_DURATION:
            raise InvalidTransition(
                f"a silence must end after now and within {durations.format_seconds(MAX_DURATION.total_seconds())}",
                now=f"It would end at {request.ends_at:%Y-%m-%d %H:%M}Z",
            )
        try:
            for matcher in request.matchers:
                check_matcher(matcher)
            silence = Silence(
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
            silence,
            request.author,
            text=f"{_describe(silence)} until {silence.ends_at:%Y-%m-%d %H:%M}Z: {silence.reason}",
            at=now,
        )
        return silence

    def end(self, id: str, actor: str, now: datetime) -> Silence:
        """End a silence early; muted incidents notify again from then on."""
        silence = self._silences.get(id)
        if silence is None or silence.ends_at <= now:
            raise InvalidTransition(
                "no active silence with this id", where=id[:40], remedy="List silences with `watchkeeper silence list`"
            )
        # A silence that has not started yet must not start later.
        ended = replace(
            silence, starts_at=min(silence.starts_at, now - timedelta(seconds=1)), ends_at=now, ended_by=actor
        )
        self._save(ended, actor, text=f"{_describe(ended)} ended by {actor}", at=now)
        return ended

    def find_match(self, subject: IncidentLabels, now: datetime) -> Silence | None:
        """The active silence that matches these labels and ends last."""
        return longest_match(list(self._silences.values()), subject, now)

    def _save(self, silence: Silence, actor: str, *, text: str, at: datetime) -> None:
        self._journal.save_silence(silence, at=at, actor=actor, text=text)
        recent = {id: stored for id, stored in self._silences.items() if stored.ends_at > at - LISTED_AFTER_END}
        self._silences = {**recent, silence.id: silence}
        self.version += 1


def longest_match(silences: Sequence[Silence], subject: IncidentLabels, now: datetime) -> Silence | None:
    matching = (silence for silence in silences if silence.is_active(now) and matches_labels(silence.matchers, subject))
    return max(matching, key=lambda silence: silence.ends_at, default=None)


def _describe(silence: Silence) -> str:
    kind = "Maintenance" if silence.is_maintenance else "Silence"
    return f"{kind} of {', '.join(map(str, silence.matchers))}"
