"""Telling people: one line for each receiver, so that one that hangs delays nobody else, or one feed of Alertmanager.

The hub makes one `Desk` and runs its `loops`. Decisions and the journal belong to the thread of the incidents
(`clerk`); each receiver has a thread of its own to wait in.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol, TypeVar

from watchkeeper.config import settings as config
from watchkeeper.errors import IllegalMove, ReceiverError, SettingsError
from watchkeeper.incidents import alertmanager, message, outbox, receivers, routing, silencing
from watchkeeper.incidents.subject import Inventory, Subject, subject_of
from watchkeeper.kit import clock, own_metrics
from watchkeeper.kit.logs import fields
from watchkeeper.model.incidents import Incident
from watchkeeper.model.silences import Silence
from watchkeeper.store import journal as journals

log = logging.getLogger(__name__)
T = TypeVar("T")

# How often a line looks whether something is due for its receiver.
LOOK_SECONDS = 0.5
MOST_RECEIVERS = 50


class Clerk(Protocol):
    """Runs work in the thread of the incidents."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]: ...


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the desk needs of the hub."""

    journal: journals.Journal
    inventory: Inventory
    known: message.Known
    metrics: own_metrics.Registry


class Desk:
    """Who is told what. `look`, `silence` and `unsilence` belong to the thread of the incidents."""

    def __init__(self, settings: config.Notify, around: Surroundings, *, now: datetime) -> None:
        self._settings = settings
        self._around = around
        self._current: tuple[Incident, ...] = ()
        self._subjects: dict[str, tuple[int, Subject]] = {}
        self.silences = silencing.Silences(around.journal, now=now)
        self._routing = _load(settings)
        self._outbox = outbox.Outbox(
            around.journal, self._routing, subject=self._subject, silences=self.silences, now=now
        )
        is_feed = settings.via is config.NotifyVia.ALERTMANAGER
        self._feed = alertmanager.Feed(settings.alertmanager_urls) if is_feed else None
        counter, gauge = around.metrics.counter, around.metrics.gauge
        self._sent = counter("watchkeeper_notify_messages_total", "Messages that a receiver has taken")
        self._failed = counter("watchkeeper_notify_failures_total", "Messages that a receiver did not take, each try")
        self._waiting = gauge("watchkeeper_notify_waiting", "Notices that wait for a receiver")
        self._unrouted = gauge("watchkeeper_notify_unrouted_incidents", "Open incidents that no route takes")

    def look(self, incidents: Iterable[Incident], now: datetime) -> None:
        """Decide who is to be told about incidents, the open ones and those resolved of late."""
        self._current = tuple(incidents)
        if self._settings.via is not config.NotifyVia.RECEIVERS:
            return
        self._outbox.look(self._current, now)
        self._unrouted.set(self._outbox.unrouted(self._current, now))
        for receiver, count in self._outbox.waiting().items():
            self._waiting.set(count, receiver=receiver)

    def silenced_by(self, incident: Incident, now: datetime) -> Silence | None:
        """The silence that holds for an incident; where Alertmanager routes, that is its own affair."""
        return self.silences.over(self._subject(incident), now)

    def silence(self, wish: silencing.Wish, now: datetime) -> Silence:
        """Make a silence, here or in Alertmanager; IllegalMove says why not."""
        if self._feed is None:
            return self.silences.add(wish, now)
        made = Silence("", wish.matchers, wish.author, wish.reason, wish.starts_at, wish.ends_at)
        try:
            answer = self._feed.silence(made)
        except ReceiverError as error:
            raise IllegalMove(f"Alertmanager did not take the silence: {error}") from error
        return replace(made, id=f"alertmanager:{answer}")

    def unsilence(self, id: str, actor: str, now: datetime) -> Silence:
        if self._feed is not None:
            raise IllegalMove(
                "silences belong to Alertmanager here", where=id[:60], remedy="End it there: amtool silence expire ID"
            )
        return self.silences.end(id, actor, now)

    def loops(self, time: clock.Clock, clerk: Clerk) -> list[Coroutine[Any, Any, None]]:
        """Everything that runs all the time, for the hub to run."""
        if self._feed is not None:
            return [self._feed_forever(self._feed, time)]
        if self._settings.via is config.NotifyVia.RECEIVERS:
            return [self._line(receiver, time, clerk) for receiver in self._routing.receivers]
        return []

    async def _line(self, receiver: routing.Receiver, time: clock.Clock, clerk: Clerk) -> None:
        """Hand messages to one receiver for ever, one at a time."""
        sender = receivers.sender_of(receiver)
        thread = ThreadPoolExecutor(1, thread_name_prefix=f"receiver {receiver.name}")
        find = self._around.journal.incident
        try:
            while True:
                try:
                    batch = await clerk(lambda: self._outbox.take(receiver.name, time.now(), incident=find))
                    if batch is not None:
                        await self._hand_over(batch, sender, thread=thread, time=time, clerk=clerk)
                        continue
                except Exception:  # Deliberately everything: one message must not end the line.
                    log.exception("A line to a receiver failed", extra=fields(receiver=receiver.name))
                await time.sleep(LOOK_SECONDS)
        finally:
            # A receiver that hangs must not hold up the end of the process.
            thread.shutdown(wait=False, cancel_futures=True)

    async def _hand_over(
        self,
        batch: outbox.Batch,
        sender: receivers.Sender,
        *,
        thread: ThreadPoolExecutor,
        time: clock.Clock,
        clerk: Clerk,
    ) -> None:
        told = message.compose(batch, self._around.known)
        try:
            answer = await asyncio.get_running_loop().run_in_executor(thread, sender.send, told)
        except ReceiverError as error:
            self._failed.add(receiver=batch.receiver)
            problem, may_retry = str(error), error.may_retry
            log.warning("A receiver did not take a message", extra=fields(receiver=batch.receiver, error=problem))
            await clerk(lambda: self._outbox.failed(batch, problem, time.now(), may_retry=may_retry))
            return
        self._sent.add(receiver=batch.receiver)
        await clerk(lambda: self._outbox.taken(batch, answer, time.now()))

    async def _feed_forever(self, feed: alertmanager.Feed, time: clock.Clock) -> None:
        """Repeat what is open, at once when something changed."""
        said, sent, sent_at = "", list[tuple[str, int]](), time.now() - alertmanager.REPEAT
        while True:
            now, current = time.now(), self._current
            versions = [(str(one.id), one.version) for one in current]
            if versions != sent or now - sent_at >= alertmanager.REPEAT:
                problem = await self._repeat(feed, current, now)
                if problem != said:
                    log.warning("Alertmanager", extra=fields(problem=problem or "answers again"))
                said, sent, sent_at = problem, versions, now
            await time.sleep(LOOK_SECONDS)

    async def _repeat(self, feed: alertmanager.Feed, current: Iterable[Incident], now: datetime) -> str:
        known = self._around.known
        wanted = [(one, alertmanager.posted(one, self._subject(one), known, now=now)) for one in current]
        problems = await asyncio.to_thread(feed.send, feed.batch(wanted, now=now))
        if problems:
            self._failed.add(receiver="alertmanager")
        return "; ".join(problems)

    def _subject(self, incident: Incident) -> Subject:
        version, subject = self._subjects.get(incident.id, (0, {}))
        if version != incident.version:
            subject = subject_of(incident, self._around.inventory)
            if len(self._subjects) > 2 * len(self._current) + 1000:
                self._subjects.clear()
            self._subjects[incident.id] = (incident.version, subject)
        return subject


def _load(settings: config.Notify) -> routing.Routing:
    if settings.via is not config.NotifyVia.RECEIVERS:
        return routing.Routing()
    loaded = routing.load(Path(settings.routes or ""))
    if len(loaded.receivers) > MOST_RECEIVERS:
        raise SettingsError(
            f"{len(loaded.receivers)} receivers, the limit is {MOST_RECEIVERS}",
            where=settings.routes,
            remedy="Let a service with its own routing, or Alertmanager, spread the messages",
        )
    return loaded
