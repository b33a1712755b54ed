"""Alertmanager's own silences, where it is the one that silences: read now and then, and shown on what they hold back.

`delivery.Desk` reads them on an interval and after each change of ours. They are Alertmanager's: kept nowhere, shown
with its name, and compared with the labels that it sees, which are fewer than our own. While it does not answer, what
it said last is shown for some minutes with that word; then they are unknown, which is said and is not "none".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from watchkeeper.errors import ReceiverError, quote
from watchkeeper.incidents.incident_labels import check_matcher
from watchkeeper.kit import wire
from watchkeeper.model.silences import ALERTMANAGER, Matcher, Silence
from watchkeeper.notify import receiver_http
from watchkeeper.notify.silence_store import SHOWN_AFTER, longest_match

# Read so often; somebody who silences something there looks at it here moments later.
REFRESH_SECONDS = 15.0
# For so long what was read last may stand for now.
KEPT = timedelta(minutes=5)
# A silence is about 500 bytes; each is compared with each incident.
MOST_BYTES, MOST_SHOWN = 4 * 1024 * 1024, 1000
PREFIX = f"{ALERTMANAGER}:"
UNKNOWN_AUTHOR, NO_REASON = "somebody", "no comment was left"


@dataclass(frozen=True, slots=True)
class SilenceSnapshot:
    """What one reading brought; `problem` is empty when every silence could be read."""

    silences: tuple[Silence, ...] = ()
    at: datetime | None = None
    problem: str = ""


class AlertmanagerSilences:
    """`refresh` blocks and belongs to one thread at a time; the rest may be called from any."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = [url.rstrip("/") for url in urls]
        self._read = SilenceSnapshot(problem="Alertmanager has not been asked yet" if urls else "")

    def refresh(self, now: datetime) -> None:
        """Ask the first that answers: Alertmanagers of one cluster tell each other."""
        problems = []
        for url in self._urls:
            try:
                self._read = read_silences(_get(url), now)
                return
            except ReceiverError as error:
                problems.append(str(error))
        before = self._read
        self._read = SilenceSnapshot(before.silences, before.at, "; ".join(problems))

    def listed(self, now: datetime) -> list[Silence]:
        """Those that are, will be, or were in force within the last day; none when they are not known."""
        return list(self._read.silences) if self._is_known(now) else []

    def find_match(self, labels: Mapping[str, str], now: datetime) -> Silence | None:
        """The silence that holds for an alert with these labels, the one that lasts longest."""
        return longest_match(self.listed(now), {name: frozenset({value}) for name, value in labels.items()}, now)

    def problem(self, now: datetime) -> str:
        """Why what is shown is not all there is; empty when it is."""
        found = self._read
        if not found.problem or found.at is None:
            return found.problem
        shown = f"shown is what it said at {found.at:%H:%M:%S}Z" if self._is_known(now) else "they are unknown"
        return f"{found.problem} ({shown})"

    def _is_known(self, now: datetime) -> bool:
        return self._read.at is not None and abs(now - self._read.at) <= KEPT


def read_silences(body: bytes, now: datetime) -> SilenceSnapshot:
    """The silences of GET /api/v2/silences that matter now; ReceiverError if the answer is something else."""
    try:
        listed = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ReceiverError(f"answered something that is not JSON: {quote(body[:80])}") from error
    if not isinstance(listed, list):
        raise ReceiverError(f"answered {quote(listed)}, where a list of silences was expected")
    found, problems = [], 0
    for one in listed:
        try:
            silence = _silence(one)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
            problems += 1
            continue
        if silence.ends_at > now - SHOWN_AFTER:
            found.append(silence)
    said = [f"{problems} silences could not be read"] if problems else []
    if len(found) > MOST_SHOWN:
        said.append(f"{len(found):,} silences, the limit is {MOST_SHOWN:,}: those that end last are shown")
    found.sort(key=lambda one: one.ends_at, reverse=True)
    return SilenceSnapshot(tuple(found[:MOST_SHOWN]), now, "; ".join(said))


def _get(url: str) -> bytes:
    limits = replace(receiver_http.DEFAULT_LIMITS, answer_bytes=MOST_BYTES + 1)
    status, body = receiver_http.http_call(
        "GET", f"{url}/api/v2/silences", {"Accept": "application/json"}, limits=limits
    )
    if status != 200:
        raise ReceiverError(f"answered {status}", where=url)
    if len(body) > MOST_BYTES:
        raise ReceiverError(f"its silences take more than {MOST_BYTES >> 20} MiB, the limit", where=url)
    return body


def _silence(plain: Mapping[str, Any]) -> Silence:
    """One silence; ValueError, KeyError or TypeError for what is none."""
    matchers = tuple(
        Matcher(
            str(one["name"]),
            str(one["value"]),
            is_regex=one.get("isRegex") is True,
            # Came with Alertmanager 0.22; before, every matcher was for equality.
            is_equal=one.get("isEqual") is not False,
        )
        for one in plain["matchers"]
    )
    for matcher in matchers:
        check_matcher(matcher)
    author, reason = str(plain.get("createdBy") or UNKNOWN_AUTHOR), str(plain.get("comment") or NO_REASON)
    starts_at, ends_at = wire.parse_time(plain["startsAt"]), wire.parse_time(plain["endsAt"])
    return Silence(f"{PREFIX}{plain['id']}", matchers, author, reason, starts_at, ends_at, keeper=ALERTMANAGER)
