"""The digest as a message: made when it is due, handed to its receivers, and not sent twice.

`delivery.Desk` runs `Reviews.forever` where the file of routes has a `[digest]`. What was sent is in the journal under
the receiver and the day, which a restart asks before it sends.
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

LOOK_SECONDS = 30.0
# A hub that was away when the digest was due sends it when it is back, if that is soon.
LATEST = timedelta(days=1)
PAUSE = timedelta(minutes=10)
SENT = "digest"


class JournalThread(Protocol):
    """Runs work in the thread of the incidents."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]: ...


@dataclass(frozen=True, slots=True)
class DueDigest:
    """One digest for one receiver; `key` is the same for every try."""

    receiver: routing.Receiver
    since: datetime
    until: datetime

    @property
    def key(self) -> str:
        return f"{SENT}/{self.receiver.name}/{wire.format_time(self.until)[:16]}"


def due_digests(table: routing.Routing, now: datetime) -> list[DueDigest]:
    """What is to be sent by now, whether or not it was."""
    review = table.digest
    if review is None:
        return []
    until = review.last_due(now)
    if now - until > LATEST:
        return []
    chosen = [one for one in table.receivers if one.name in review.receivers]
    return [DueDigest(receiver, until - timedelta(days=review.days), until) for receiver in chosen]


class DigestDelivery:
    def __init__(
        self, journal: journals.Journal, names: Callable[[fleet.Place], str], inventory: incident_labels.InventoryLookup
    ) -> None:
        self._journal = journal
        self._names = names
        self._inventory = inventory
        self._not_before: dict[str, datetime] = {}

    async def run_forever(self, table: Callable[[], routing.Routing], time: clock.Clock, clerk: JournalThread) -> None:
        while True:
            try:
                waiting = await clerk(lambda: self._waiting(table(), time.now()))
                await asyncio.gather(*(self._send(one, time, clerk) for one in waiting))
            except StoreError as error:
                log.error("The digest was not looked after", extra=fields(error=error))
            await time.sleep(LOOK_SECONDS)

    def _waiting(self, table: routing.Routing, now: datetime) -> list[DueDigest]:
        """What is due, was not sent, and may be tried again by now."""
        listed = [one for one in due_digests(table, now) if now >= self._not_before.get(one.key, now)]
        return [one for one in listed if not self._journal.timeline(one.key, limit=1)]

    async def _send(self, one: DueDigest, time: clock.Clock, clerk: JournalThread) -> None:
        self._not_before = {one.key: time.now() + PAUSE, **_young(self._not_before, time.now())}
        try:
            answer = await asyncio.to_thread(self._hand_over, one)
        except ReceiverError as error:
            log.warning("A receiver did not take the digest", extra=fields(receiver=one.receiver.name, error=error))
            return
        except Exception:  # Deliberately everything: one digest must not end the others.
            log.exception("The digest could not be sent", extra=fields(receiver=one.receiver.name))
            return
        text = f"Sent the digest to {one.receiver.name}: {answer}"
        await clerk(lambda: self._journal.record(SENT, one.key, at=time.now(), actor=journals.HUB, body={"text": text}))

    def _hand_over(self, one: DueDigest) -> str:
        made = digest.make_digest(
            self._journal.incidents(limit=journals.MOST_ROWS, opened_since=one.since),
            since=one.since,
            until=one.until,
            timeline=self._journal.timeline,
            names=lambda incident: self._names(incident.place),
            belongs_to=lambda incident: incident_labels.belongs_to(incident, self._inventory),
        )
        return receivers.make_sender(one.receiver).send(compose_message(one, made))


def compose_message(one: DueDigest, made: digest.Digest) -> Message:
    title, *rest = digest.digest_lines(made)
    payload = {
        "version": PAYLOAD_VERSION,
        "receiver": one.receiver.name,
        "title": title,
        "notices": [],
        "digest": wire.to_plain(made),
    }
    return Message(one.key, title, "\n".join(rest).strip() or "Nothing happened.", payload)


def _young(pauses: dict[str, datetime], now: datetime) -> dict[str, datetime]:
    return {key: until for key, until in pauses.items() if until > now}
