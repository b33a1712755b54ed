"""Create, end and match the hub's silences, and read those of Alertmanager, if it sends the notifications.

Only the journal thread changes `SilenceStore`; pages read it too. `AlertmanagerSilences` match the labels that
Alertmanager gets, which are fewer than the hub's; while it does not answer, the last answer is used for some minutes,
and after that the silences are unknown, which differs from none.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from watchkeeper.errors import InvalidTransition, ReceiverError, quote
from watchkeeper.incidents.incident_labels import IncidentLabels, check_matcher, matches_labels
from watchkeeper.kit import durations, wire
from watchkeeper.model.silences import ALERTMANAGER, Matcher, Silence
from watchkeeper.notify import receiver_http
from watchkeeper.store.journal import journal as journals

# Each is compared with each incident; to mute more, change a rule.
MAX_ACTIVE = 1000
# To mute something permanently, change a rule.
MAX_DURATION = timedelta(days=365)
# Ended silences are listed for a day, to see who silenced something last night.
LISTED_AFTER_END = timedelta(days=1)
# A silence created in Alertmanager appears here within this time.
REFRESH_SECONDS = 15.0
# The last answer is used for this time.
CURRENT_FOR = timedelta(minutes=5)
# A silence has about 500 bytes; each is compared with each incident.
MAX_BYTES, MAX_SHOWN = 4 * 1024 * 1024, 1000
PREFIX = f"{ALERTMANAGER}:"
UNKNOWN_AUTHOR, NO_REASON = "unknown", "no comment"


@dataclass(frozen=True, slots=True)
class SilenceRequest:
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
        text = f"{_describe(silence)} until {silence.ends_at:%Y-%m-%d %H:%M}Z: {silence.reason}"
        self._save(silence, request.author, text=text, at=now)
        return silence

    def end(self, id: str, actor: str, now: datetime) -> Silence:
        """End a silence early; muted incidents notify again from then on."""
        silence = self._silences.get(id)
        if silence is None or silence.ends_at <= now:
            remedy = "List silences with `watchkeeper silence list`"
            raise InvalidTransition("no active silence with this id", where=id[:40], remedy=remedy)
        # A silence that has not started yet must not start later.
        starts_at = min(silence.starts_at, now - timedelta(seconds=1))
        ended = replace(silence, starts_at=starts_at, ends_at=now, ended_by=actor)
        self._save(ended, actor, text=f"{_describe(ended)} ended by {actor}", at=now)
        return ended

    def find_match(self, subject: IncidentLabels, now: datetime) -> Silence | None:
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


@dataclass(frozen=True, slots=True)
class SilenceSnapshot:
    """The result of one read; `problem` is empty if every silence was valid."""

    silences: tuple[Silence, ...] = ()
    at: datetime | None = None
    problem: str = ""


class AlertmanagerSilences:
    """`refresh` blocks and may run on one thread at a time; the other methods are thread-safe."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = [url.rstrip("/") for url in urls]
        self._snapshot = SilenceSnapshot(problem="Alertmanager's silences not read yet" if urls else "")

    def refresh(self, now: datetime) -> None:
        """Read from the first Alertmanager that answers, because members of a cluster replicate silences."""
        problems = []
        for url in self._urls:
            try:
                self._snapshot = read_silences(_fetch(url), now)
                return
            except ReceiverError as error:
                problems.append(str(error))
        previous = self._snapshot
        self._snapshot = SilenceSnapshot(previous.silences, previous.at, "; ".join(problems))

    def list_silences(self, now: datetime) -> list[Silence]:
        """Silences that are active, pending, or ended within the last day; empty while they are unknown."""
        return list(self._snapshot.silences) if self._is_known(now) else []

    def find_match(self, labels: Mapping[str, str], now: datetime) -> Silence | None:
        return longest_match(self.list_silences(now), {name: frozenset({value}) for name, value in labels.items()}, now)

    def problem(self, now: datetime) -> str:
        """Why the list of silences is outdated or incomplete; empty if it is complete."""
        snapshot = self._snapshot
        if not snapshot.problem or snapshot.at is None:
            return snapshot.problem
        shown = f"showing the silences of {snapshot.at:%H:%M:%S}Z" if self._is_known(now) else "silences are unknown"
        return f"{snapshot.problem} ({shown})"

    def _is_known(self, now: datetime) -> bool:
        return self._snapshot.at is not None and abs(now - self._snapshot.at) <= CURRENT_FOR


def read_silences(body: bytes, now: datetime) -> SilenceSnapshot:
    """Active, pending and recent silences of GET /api/v2/silences; raise ReceiverError if it is unreadable."""
    try:
        entries = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ReceiverError(f"answer is not JSON: {quote(body[:80])}") from error
    if not isinstance(entries, list):
        raise ReceiverError(f"unexpected answer {quote(entries)}: expected a list of silences")
    current, problems = [], 0
    for entry in entries:
        try:
            silence = _read_silence(entry)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
            problems += 1
            continue
        if silence.ends_at > now - LISTED_AFTER_END:
            current.append(silence)
    warnings = [f"{problems} invalid silences were skipped"] if problems else []
    if len(current) > MAX_SHOWN:
        warnings.append(f"{len(current):,} silences, the limit is {MAX_SHOWN:,}; showing those that end last")
    current.sort(key=lambda silence: silence.ends_at, reverse=True)
    return SilenceSnapshot(tuple(current[:MAX_SHOWN]), now, "; ".join(warnings))


def _fetch(url: str) -> bytes:
    limits = replace(receiver_http.DEFAULT_LIMITS, answer_bytes=MAX_BYTES + 1)
    headers = {"Accept": "application/json"}
    status, body = receiver_http.http_call("GET", f"{url}/api/v2/silences", headers, limits=limits)
    if status != 200:
        raise ReceiverError(f"answered {status}", where=url)
    if len(body) > MAX_BYTES:
        raise ReceiverError(f"the list of silences is larger than the limit of {MAX_BYTES >> 20} MiB", where=url)
    return body


def _read_silence(plain: Mapping[str, Any]) -> Silence:
    """Read a silence; raise ValueError, KeyError or TypeError if it is invalid."""
    matchers = tuple(
        Matcher(
            str(matcher["name"]),
            str(matcher["value"]),
            is_regex=matcher.get("isRegex") is True,
            # Since Alertmanager 0.22; before, every matcher was for equality.
            is_equal=matcher.get("isEqual") is not False,
        )
        for matcher in plain["matchers"]
    )
    for matcher in matchers:
        check_matcher(matcher)
    author, reason = str(plain.get("createdBy") or UNKNOWN_AUTHOR), str(plain.get("comment") or NO_REASON)
    starts_at, ends_at = wire.parse_time(plain["startsAt"]), wire.parse_time(plain["endsAt"])
    return Silence(f"{PREFIX}{plain['id']}", matchers, author, reason, starts_at, ends_at, keeper=ALERTMANAGER)
