"""Send the digest to its receivers when it is due, and never twice.

`delivery.Notifier` runs `DigestDelivery.run_forever` if the routes file has a `[digest]`. Sent digests are
recorded in the journal by receiver and day; this is checked before sending, also after a restart.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol, TypeVar

from watchkeeper.errors import ReceiverError, StoreError
from watchkeeper.incidents import incident_labels
from watchkeeper.kit import clock, wire
from watchkeeper.kit.logs import fields
from watchkeeper.model import fleet
from watchkeeper.notify import digest, receivers, routing
from watchkeeper.notify.message import PAYLOAD_VERSION, Message
from watchkeeper.store.journal import journal as journals

log = logging.getLogger(__name__)
T = TypeVar("T")

CHECK_SECONDS = 30.0
# A hub that was down when a digest was due sends it after its start, within this time.
SEND_WITHIN = timedelta(days=1)
RETRY_PAUSE = timedelta(minutes=10)
JOURNAL_KIND = "digest"


class JournalThread(Protocol):
    """Runs a function on the journal thread."""

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
        self._journal = journal
        self._names = names
        self._inventory = inventory
        self._retry_at: dict[str, datetime] = {}

    async def run(
        self, get_routing: Callable[[], routing.Routing], time: clock.Clock, on_journal_thread: JournalThread
    ) -> None:
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
        self._retry_at = {due.key: time.now() + RETRY_PAUSE, **_unexpired(self._retry_at, time.now())}
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
        made_digest = digest.make_digest(
            self._journal.incidents(limit=journals.MAX_ROWS, opened_since=due.since),
            since=due.since,
            until=due.until,
            timeline=self._journal.timeline,
            names=lambda incident: self._names(incident.place),
            belongs_to=lambda incident: incident_labels.report_labels(incident, self._inventory),
        )
        return receivers.make_sender(due.receiver).send(compose_message(due, made_digest))


def compose_message(due: DueDigest, made_digest: digest.Digest) -> Message:
    title, *rest = digest.digest_lines(made_digest)
    payload = {
        "version": PAYLOAD_VERSION,
        "receiver": due.receiver.name,
        "title": title,
        "notices": [],
        "digest": wire.to_plain(made_digest),
    }
    return Message(due.key, title, "\n".join(rest).strip() or "No incidents.", payload)


def _unexpired(pauses: dict[str, datetime], now: datetime) -> dict[str, datetime]:
    return {key: until for key, until in pauses.items() if until > now}
