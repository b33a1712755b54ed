"""The silences in force: made and ended by people, kept in the journal, asked before anybody is told.

The hub's one `Silences` is changed in the thread of the incidents only and read by pages as well. Where Alertmanager
routes, silences are its own, and this one stays empty.
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

# Each is compared with each incident; more than this is a rule that should be changed instead.
MOST_ACTIVE = 1000
# What never ends is a rule to change, not a silence.
LONGEST = timedelta(days=365)
# Ended ones are listed for a day: "who silenced this last night?"
SHOWN_AFTER = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class SilenceRequest:
    """A silence that somebody asks for."""

    matchers: tuple[Matcher, ...]
    author: str
    reason: str
    starts_at: datetime
    ends_at: datetime
    is_maintenance: bool = False


class SilenceStore:
    """One thread changes it; a change puts another table in the place of the old one, so that any thread may read."""

    def __init__(self, journal: journals.Journal, *, now: datetime) -> None:
        self._journal = journal
        self._kept = {silence.id: silence for silence in journal.silences(now - SHOWN_AFTER)}
        # Rises with each change, so that others need not compare.
        self.version = 0

    def listed(self, now: datetime) -> list[Silence]:
        """Those that are, will be, or were in force within the last day."""
        return [one for one in self._kept.values() if one.ends_at > now - SHOWN_AFTER]

    def add(self, wish: SilenceRequest, now: datetime) -> Silence:
        """Keep a new one; InvalidTransition says what is wrong with it."""
        lasting = [one for one in self._kept.values() if one.ends_at > now]
        if len(lasting) >= MOST_ACTIVE:
            raise InvalidTransition(
                f"{len(lasting)} silences are in force, the limit is {MOST_ACTIVE}",
                remedy="End some, or change the rules that need so many",
            )
        if not now < wish.ends_at <= now + LONGEST:
            raise InvalidTransition(
                f"a silence must end after now and within {durations.format_seconds(LONGEST.total_seconds())}",
                now=f"It would end at {wish.ends_at:%Y-%m-%d %H:%M}Z",
            )
        try:
            for matcher in wish.matchers:
                check_matcher(matcher)
            made = Silence(
                f"S-{secrets.token_hex(4)}",
                wish.matchers,
                wish.author,
                wish.reason,
                wish.starts_at,
                wish.ends_at,
                wish.is_maintenance,
            )
        except ValueError as error:
            raise InvalidTransition(str(error)) from error
        self._save(made, wish.author, text=f"{_what(made)} until {made.ends_at:%Y-%m-%d %H:%M}Z: {made.reason}", at=now)
        return made

    def end(self, id: str, actor: str, now: datetime) -> Silence:
        """End one before its time; what it held back is told from now on."""
        silence = self._kept.get(id)
        if silence is None or silence.ends_at <= now:
            raise InvalidTransition(
                "there is no such silence in force", where=id[:40], remedy="List them with `watchkeeper silence list`"
            )
        # One that has not begun never will.
        ended = replace(
            silence, starts_at=min(silence.starts_at, now - timedelta(seconds=1)), ends_at=now, ended_by=actor
        )
        self._save(ended, actor, text=f"{_what(ended)} ended by {actor}", at=now)
        return ended

    def find_match(self, subject: IncidentLabels, now: datetime) -> Silence | None:
        """The silence that holds for a subject now, the one that lasts longest."""
        return longest_match(list(self._kept.values()), subject, now)

    def _save(self, silence: Silence, actor: str, *, text: str, at: datetime) -> None:
        self._journal.save_silence(silence, at=at, actor=actor, text=text)
        lasting = {id: one for id, one in self._kept.items() if one.ends_at > at - SHOWN_AFTER}
        self._kept = {**lasting, silence.id: silence}
        self.version += 1


def longest_match(known: Sequence[Silence], subject: IncidentLabels, now: datetime) -> Silence | None:
    fitting = (one for one in known if one.is_active(now) and matches_labels(one.matchers, subject))
    return max(fitting, key=lambda one: one.ends_at, default=None)


def _what(silence: Silence) -> str:
    kind = "Maintenance" if silence.is_maintenance else "Silence"
    return f"{kind} of {', '.join(map(str, silence.matchers))}"
