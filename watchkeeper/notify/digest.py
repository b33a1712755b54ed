"""Build the weekly digest: incidents by cause, times to detect and repair, noisy rules, repeated failures.

Pure: uses incidents and their timelines, for `watchkeeper incidents digest` and GET /api/digest.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median
from typing import Protocol, TypeVar

from watchkeeper.errors import ReceiverError, StoreError
from watchkeeper.incidents import incident_labels
from watchkeeper.incidents.incident_labels import alert_names
from watchkeeper.kit import clock, durations, wire
from watchkeeper.kit.logs import fields
from watchkeeper.model import fleet
from watchkeeper.model.fleet import UNMAPPED
from watchkeeper.model.incidents import Incident
from watchkeeper.notify import receivers, routing
from watchkeeper.notify.incident_report import TimelineEntry
from watchkeeper.notify.message import PAYLOAD_VERSION, Message
from watchkeeper.store.journal import journal as journals

log = logging.getLogger(__name__)

MAX_LISTED = 20
DIAGNOSED = "diagnosis"
ReadTimeline = Callable[[str], Sequence[TimelineEntry]]
T = TypeVar("T")

CHECK_SECONDS = 30.0
# A hub that was down when a digest was due sends it after its start, within this time.
SEND_WITHIN = timedelta(days=1)
RETRY_PAUSE = timedelta(minutes=10)
JOURNAL_KIND = "digest"


@dataclass(frozen=True, slots=True)
class CauseLine:
    """The incidents of a cause, with median times in seconds; None if not measured."""

    cause: str
    incidents: int
    detect_seconds: float | None
    diagnose_seconds: float | None
    repair_seconds: float | None


@dataclass(frozen=True, slots=True)
class NamedCount:
    name: str
    incidents: int


@dataclass(frozen=True, slots=True)
class Digest:
    since: datetime
    until: datetime
    incidents: int
    still_open: int
    by_cause: tuple[CauseLine, ...]
    noisiest_rules: tuple[NamedCount, ...]
    repeat_offenders: tuple[NamedCount, ...]
    # From the inventory; incidents without an entry count as `unmapped`.
    by_team: tuple[NamedCount, ...] = ()
    by_rack: tuple[NamedCount, ...] = ()
    by_pool: tuple[NamedCount, ...] = ()


def make_digest(
    incidents: Iterable[Incident],
    *,
    since: datetime,
    until: datetime,
    timeline: ReadTimeline,
    names: Callable[[Incident], str],
    belongs_to: Callable[[Incident], Mapping[str, frozenset[str]]],
) -> Digest:
    """The digest of incidents that opened in the window; an incident of two teams counts for both."""
    # A merged incident is counted in the other incident.
    opened = [incident for incident in incidents if since <= incident.opened_at < until and incident.part_of is None]
    by_cause: dict[str, list[Incident]] = {}
    for incident in opened:
        by_cause.setdefault(incident.cause, []).append(incident)
    cause_lines = [_cause_line(cause, group, timeline=timeline) for cause, group in by_cause.items()]
    rules = Counter(name for incident in opened for name in set(alert_names(incident)))
    places = Counter(names(incident) for incident in opened)
    labels = [belongs_to(incident) for incident in opened]

    def most_frequent_owners(kind: str) -> tuple[NamedCount, ...]:
        return _most_frequent(Counter(name for owner in labels for name in owner.get(kind, ())), at_least=1)

    return Digest(
        since=since,
        until=until,
        incidents=len(opened),
        still_open=sum(incident.is_open for incident in opened),
        by_cause=tuple(sorted(cause_lines, key=lambda line: (-line.incidents, line.cause))),
        noisiest_rules=_most_frequent(rules, at_least=1),
        repeat_offenders=_most_frequent(places, at_least=2),
        by_team=most_frequent_owners("team"),
        by_rack=most_frequent_owners("rack"),
        by_pool=most_frequent_owners("pool"),
    )


def digest_lines(digest: Digest) -> list[str]:
    window = f"{digest.since:%Y-%m-%d} to {digest.until:%Y-%m-%d}"
    lines = [f"Incidents {window}: {digest.incidents}, {digest.still_open} still open"]
    if digest.by_cause:
        lines += ["", "By cause (median times to detect, diagnose, repair)"]
        lines += [
            f"  {line.incidents:4}  {line.cause:32} {_format_duration(line.detect_seconds):>8} "
            f"{_format_duration(line.diagnose_seconds):>8} {_format_duration(line.repair_seconds):>8}"
            for line in digest.by_cause
        ]
    for title, counts in (
        ("Noisiest rules", digest.noisiest_rules),
        ("Repeated failures", digest.repeat_offenders),
        ("By team", digest.by_team),
        ("By rack", digest.by_rack),
        ("By pool", digest.by_pool),
    ):
        if counts:
            lines += ["", title, *(f"  {entry.incidents:4}  {entry.name}" for entry in counts)]
    return lines


def _cause_line(cause: str, incidents: Sequence[Incident], *, timeline: ReadTimeline) -> CauseLine:
    detect, diagnose, repair = list[float](), list[float](), list[float]()
    for incident in incidents:
        opened_at = incident.opened_at
        detect.append((opened_at - min(member.since for member in incident.members)).total_seconds())
        first = next((entry.at for entry in timeline(incident.id) if entry.kind == DIAGNOSED), None)
        if first is not None:
            diagnose.append((first - opened_at).total_seconds())
        if incident.resolved_at is not None:
            repair.append((incident.resolved_at - opened_at).total_seconds())
    return CauseLine(cause, len(incidents), _median(detect), _median(diagnose), _median(repair))


def _median(seconds: Sequence[float]) -> float | None:
    # A clock that runs ahead must not make the time to detect negative.
    return round(max(median(seconds), 0.0), 1) if seconds else None


def _most_frequent(counts: Counter[str], *, at_least: int) -> tuple[NamedCount, ...]:
    """The most frequent names, and always `unmapped`."""
    listed = dict(counts.most_common(MAX_LISTED)) | ({UNMAPPED: counts[UNMAPPED]} if counts[UNMAPPED] else {})
    return tuple(NamedCount(name, count) for name, count in listed.items() if count >= at_least)


def _format_duration(seconds: float | None) -> str:
    return "-" if seconds is None else durations.format_seconds(round(seconds))


GetRouting = Callable[[], routing.Routing]


class JournalThread(Protocol):
    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]: ...


@dataclass(frozen=True, slots=True)
class DueDigest:
    """A digest for a receiver; `key` is the same for every attempt."""

    receiver: routing.Receiver
    since: datetime
    until: datetime

    @property
    def key(self) -> str:
        return f"{JOURNAL_KIND}/{self.receiver.name}/{wire.format_time(self.until)[:16]}"


def due_digests(current_routing: routing.Routing, now: datetime) -> list[DueDigest]:
    """The digests that are due, sent or not."""
    schedule = current_routing.digest
    if schedule is None:
        return []
    until = schedule.last_due(now)
    if now - until > SEND_WITHIN:
        return []
    due_receivers = [receiver for receiver in current_routing.receivers if receiver.name in schedule.receivers]
    return [DueDigest(receiver, until - timedelta(days=schedule.days), until) for receiver in due_receivers]


class DigestDelivery:
    def __init__(
        self, journal: journals.Journal, names: Callable[[fleet.Place], str], inventory: incident_labels.InventoryLookup
    ) -> None:
        self._journal, self._names, self._inventory = journal, names, inventory
        self._retry_at: dict[str, datetime] = {}

    async def run(self, get_routing: GetRouting, time: clock.Clock, on_journal_thread: JournalThread) -> None:
        while True:
            try:
                due_digests_now = await on_journal_thread(lambda: self._unsent(get_routing(), time.now()))
                await asyncio.gather(*(self._send(due, time, on_journal_thread) for due in due_digests_now))
            except StoreError as error:
                log.error("digest failed", extra=fields(error=error))
            await time.sleep(CHECK_SECONDS)

    def _unsent(self, current_routing: routing.Routing, now: datetime) -> list[DueDigest]:
        """Digests that are due, not sent, and not in a retry pause."""
        may_send = [due for due in due_digests(current_routing, now) if now >= self._retry_at.get(due.key, now)]
        return [due for due in may_send if not self._journal.timeline(due.key, limit=1)]

    async def _send(self, due: DueDigest, time: clock.Clock, on_journal_thread: JournalThread) -> None:
        now = time.now()
        self._retry_at = {key: until for key, until in self._retry_at.items() if until > now}
        self._retry_at.setdefault(due.key, now + RETRY_PAUSE)
        try:
            answer = await asyncio.to_thread(self._compose_and_send, due)
        except ReceiverError as error:
            log.warning("digest delivery failed", extra=fields(receiver=due.receiver.name, error=error))
            return
        except Exception:  # Deliberately everything: one digest must not end the others.
            log.exception("digest delivery failed", extra=fields(receiver=due.receiver.name))
            return
        text = f"Sent the digest to {due.receiver.name}: {answer}"
        await on_journal_thread(
            lambda: self._journal.record(JOURNAL_KIND, due.key, at=time.now(), actor=journals.HUB, body={"text": text})
        )

    def _compose_and_send(self, due: DueDigest) -> str:
        made_digest = make_digest(
            self._journal.incidents(limit=journals.MAX_ROWS, opened_since=due.since),
            since=due.since,
            until=due.until,
            timeline=self._journal.timeline,
            names=lambda incident: self._names(incident.place),
            belongs_to=lambda incident: incident_labels.report_labels(incident, self._inventory),
        )
        return receivers.make_sender(due.receiver).send(compose_message(due, made_digest))


def compose_message(due: DueDigest, made_digest: Digest) -> Message:
    title, *rest = digest_lines(made_digest)
    payload = {
        "version": PAYLOAD_VERSION,
        "receiver": due.receiver.name,
        "title": title,
        "notices": [],
        "digest": wire.to_plain(made_digest),
    }
    return Message(due.key, title, "\n".join(rest).strip() or "No incidents.", payload)
