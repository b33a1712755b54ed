"""Telling people: one line for each receiver, so that one that hangs delays nobody else, or one feed of Alertmanager.

The hub makes one `Desk` and runs its `loops`. Decisions and the journal belong to the thread of the incidents
(`clerk`); each receiver has a thread of its own to wait in.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import islice
from pathlib import Path

from watchkeeper.config import settings as config
from watchkeeper.errors import InvalidTransition, ReceiverError, SettingsError, StoreError
from watchkeeper.incidents.incident_labels import IncidentLabels, InventoryLookup, collect_labels, matches_labels
from watchkeeper.kit import clock, files, own_metrics
from watchkeeper.kit.logs import fields
from watchkeeper.model import fleet
from watchkeeper.model.incidents import Incident
from watchkeeper.model.silences import ALERTMANAGER, Silence
from watchkeeper.notify import (
    alertmanager,
    alertmanager_silences,
    digest_delivery,
    message,
    outbox,
    receivers,
    routing,
    silence_store,
)
from watchkeeper.notify.digest_delivery import JournalThread
from watchkeeper.store.journal import journal as journals

log = logging.getLogger(__name__)

# How often a line looks whether something is due for its receiver.
LOOK_SECONDS = 0.5
MOST_RECEIVERS = 50
# Services behind Apprise have limits on each wait and none on the whole; a webhook has its own, which is shorter.
HAND_OVER_SECONDS = 120.0
# How often the file of receivers and routes is looked at for changes.
RELOAD_SECONDS = 5.0
# On so many timelines a silence is noted.
MOST_NOTED = 100


@dataclass(frozen=True, slots=True)
class NotifierDependencies:
    """What the desk needs of the hub."""

    journal: journals.Journal
    inventory: InventoryLookup
    message_context: message.MessageContext
    metrics: own_metrics.Registry
    place_name: Callable[[fleet.Place], str] = str


class Notifier:
    """Who is told what. `look` belongs to the thread of the incidents."""

    def __init__(self, settings: config.NotifySettings, dependencies: NotifierDependencies, *, now: datetime) -> None:
        self._settings = settings
        self._around = dependencies
        self._current: tuple[Incident, ...] = ()
        self._subjects: dict[str, tuple[int, IncidentLabels]] = {}
        self.silences = silence_store.SilenceStore(dependencies.journal, now=now)
        self._routes_stamp = files.read_stamp(Path(settings.routes or ""))
        self._routing = _load(settings)
        self._outbox = outbox.Outbox(
            dependencies.journal, self._routing, subject=self._subject, silences=self.silences, now=now
        )
        urls = settings.alertmanager_urls if settings.via is config.NotifyVia.ALERTMANAGER else ()
        self._feeds = [alertmanager.AlertmanagerFeed(url) for url in urls]
        self._theirs = alertmanager_silences.AlertmanagerSilences(urls)
        counter, gauge = dependencies.metrics.counter, dependencies.metrics.gauge
        self._sent = counter("watchkeeper_notify_messages_total", "Messages that a receiver has taken")
        self._failed = counter("watchkeeper_notify_failures_total", "Messages that a receiver did not take, each try")
        self._waiting = gauge("watchkeeper_notify_waiting", "Notices that wait for a receiver")
        self._unrouted = gauge("watchkeeper_notify_unrouted_incidents", "Open incidents that no route takes")
        self._broken = gauge("watchkeeper_notify_routes_broken", "1 while the changed file of routes cannot be used")

    def update(self, incidents: Iterable[Incident], now: datetime) -> None:
        """Decide who is to be told about incidents, the open ones and those resolved of late."""
        self._current = tuple(incidents)
        if self._settings.via is not config.NotifyVia.RECEIVERS:
            return
        self._outbox.update(self._current, now)
        self._unrouted.set(self._outbox.unrouted_count)
        for receiver, count in self._outbox.pending_counts().items():
            self._waiting.set(count, receiver=receiver)

    def silenced_by(self, incident: Incident, now: datetime) -> Silence | None:
        """The silence that holds for an incident: ours, or Alertmanager's where that routes."""
        if self._feeds:
            return self._theirs.find_match(alertmanager.labels_of(incident, self._subject(incident)), now)
        return self.silences.find_match(self._subject(incident), now)

    def list_silences(self, now: datetime) -> list[Silence]:
        return self._theirs.listed(now) if self._feeds else self.silences.listed(now)

    def silences_problem(self, now: datetime) -> str:
        """Why Alertmanager's silences are not, or not all, known; empty where they are, or are our own."""
        return self._theirs.problem(now)

    async def silence(
        self, request: silence_store.SilenceRequest, time: clock.Clock, on_journal_thread: JournalThread
    ) -> Silence:
        """Make a silence, here or in Alertmanager; InvalidTransition says why not."""
        if not self._feeds:
            return await on_journal_thread(lambda: self._noted(self.silences.add(request, time.now()), time.now()))
        try:
            made = Silence("-", request.matchers, request.author, request.reason, request.starts_at, request.ends_at)
            # Alertmanager may take its time, and nobody else is to wait for it.
            answer = await asyncio.to_thread(self._feeds[0].create_silence, made)
        except ReceiverError as error:
            raise InvalidTransition(f"Alertmanager did not take the silence: {error}") from error
        except ValueError as error:
            raise InvalidTransition(str(error)) from error
        await asyncio.to_thread(self._theirs.refresh, time.now())
        kept = replace(made, id=f"{alertmanager_silences.PREFIX}{answer}", keeper=ALERTMANAGER)
        return await on_journal_thread(lambda: self._noted(kept, time.now()))

    async def end_silence(self, id: str, actor: str, *, time: clock.Clock, on_journal_thread: JournalThread) -> Silence:
        """End a silence, here or in Alertmanager; InvalidTransition says why not."""
        if not self._feeds:
            return await on_journal_thread(lambda: self._noted(self.silences.end(id, actor, time.now()), time.now()))
        await asyncio.to_thread(self._theirs.refresh, time.now())
        known = next((one for one in self._theirs.listed(time.now()) if one.id == id), None)
        if known is None or known.ends_at <= time.now():
            remedy = "List them with `watchkeeper silence list`"
            raise InvalidTransition("Alertmanager has no such silence in force", where=id[:60], remedy=remedy)
        try:
            await asyncio.to_thread(self._feeds[0].end_silence, id.removeprefix(alertmanager_silences.PREFIX))
        except ReceiverError as error:
            raise InvalidTransition(f"Alertmanager did not end the silence: {error}", where=id[:60]) from error
        await asyncio.to_thread(self._theirs.refresh, time.now())
        return await on_journal_thread(lambda: self._noted(replace(known, ended_by=actor), time.now()))

    def _noted(self, silence: Silence, now: datetime) -> Silence:
        """Say it on the timeline of what is open there."""
        known = self._around.journal.incidents(open_only=True)
        # Read back from Alertmanager, a silence of one incident has the name that this has there.
        there = {one.id: {alertmanager.INCIDENT_LABEL: frozenset({str(one.id)})} for one in known}
        matching = (one for one in known if matches_labels(silence.matchers, {**self._subject(one), **there[one.id]}))
        with self._around.journal.transaction():
            for incident in islice(matching, MOST_NOTED):
                text = (
                    f"The silence of {silence.author} was ended"
                    if silence.ended_by
                    else f"Nobody is told until {silence.ends_at:%Y-%m-%d %H:%M}Z: {silence.reason}"
                )
                actor = silence.ended_by or silence.author
                self._around.journal.record("silenced", incident.id, at=now, actor=actor, body={"text": text})
        return silence

    def loops(
        self, time: clock.Clock, on_journal_thread: JournalThread
    ) -> list[tuple[str, Callable[[], Awaitable[None]]]]:
        """Everything that runs all the time, by name, for the hub to run and to begin again where it breaks."""
        if self._settings.via is config.NotifyVia.RECEIVERS:
            reviews = digest_delivery.DigestDelivery(
                self._around.journal, self._around.place_name, self._around.inventory
            )
            return [
                ("receivers", lambda: self._lines_forever(time, on_journal_thread)),
                ("digest", lambda: reviews.run_forever(lambda: self._routing, time, on_journal_thread)),
            ]
        feeds = [("alertmanager", partial(self._feed_forever, feed, time)) for feed in self._feeds]
        return [("silences", lambda: self._read_silences_forever(time)), *feeds] if feeds else []

    async def _read_silences_forever(self, time: clock.Clock) -> None:
        said = ""
        while True:
            try:
                await asyncio.to_thread(self._theirs.refresh, time.now())
                problem = self._theirs.problem(time.now())
            except Exception as error:  # Deliberately everything: a strange answer must not end the reading.
                log.exception("Alertmanager's silences could not be read")
                problem = type(error).__name__
            if bool(problem) != bool(said):
                log.warning("Alertmanager's silences", extra=fields(problem=problem or "are read again"))
            said = problem
            await time.sleep(alertmanager_silences.REFRESH_SECONDS)

    async def _lines_forever(self, time: clock.Clock, clerk: JournalThread) -> None:
        """A line for each receiver of the file; one that is no longer in it ends by itself."""
        lines: dict[routing.Receiver, asyncio.Task[None]] = {}
        try:
            while True:
                for receiver in self._routing.receivers:
                    if receiver not in lines or lines[receiver].done():
                        lines[receiver] = asyncio.create_task(self._line(receiver, time, clerk))
                lines = {receiver: line for receiver, line in lines.items() if not line.done()}
                await time.sleep(RELOAD_SECONDS)
                try:
                    await clerk(lambda: self.reload(time.now()))
                except StoreError as error:
                    log.error("Receivers that are gone still have their notices", extra=fields(error=error))
        finally:
            for line in lines.values():
                line.cancel()
            await asyncio.gather(*lines.values(), return_exceptions=True)

    def reload(self, now: datetime) -> None:
        """Put the file of receivers and routes in force if it has changed; a broken one is said once and not used."""
        stamp = files.read_stamp(Path(self._settings.routes or ""))
        if stamp == self._routes_stamp:
            return
        self._routes_stamp = stamp
        try:
            loaded = _load(self._settings)
        except SettingsError as error:
            self._broken.set(1)
            log.error("The changed receivers and routes are not used", extra=fields(error=error))
            return
        self._broken.set(0)
        self._routing = loaded
        self._outbox.set_routing(loaded, now)
        log.info("Receivers and routes were read again", extra=fields(receivers=len(loaded.receivers)))

    async def _line(self, receiver: routing.Receiver, time: clock.Clock, clerk: JournalThread) -> None:
        """Hand messages to one receiver for ever, one at a time."""
        sender = receivers.make_sender(receiver)
        thread = ThreadPoolExecutor(1, thread_name_prefix=f"receiver {receiver.name}")
        find = self._around.journal.incident
        try:
            while receiver in self._routing.receivers:
                try:
                    batch = await clerk(lambda: self._outbox.next_batch(receiver.name, time.now(), incident=find))
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
        batch: outbox.NoticeBatch,
        sender: receivers.Sender,
        *,
        thread: ThreadPoolExecutor,
        time: clock.Clock,
        clerk: JournalThread,
    ) -> None:
        def send() -> str:
            return sender.send(message.compose_message(batch, self._around.message_context))

        try:
            # A thread that is late keeps the line's only place: the next try waits for it, and nothing overtakes it.
            handed = asyncio.get_running_loop().run_in_executor(thread, send)
            answer = await asyncio.wait_for(handed, HAND_OVER_SECONDS)
        except Exception as error:  # Deliberately everything: a fault in a service's code is a message not taken.
            self._failed.add(receiver=batch.receiver)
            problem, may_retry = _said(error), not isinstance(error, ReceiverError) or error.may_retry
            known = isinstance(error, ReceiverError | TimeoutError)
            log.warning(
                "A receiver did not take a message",
                extra=fields(receiver=batch.receiver, error=problem),
                exc_info=None if known else error,
            )
            await clerk(lambda: self._outbox.mark_failed(batch, problem, time.now(), may_retry=may_retry))
            return
        self._sent.add(receiver=batch.receiver)
        await clerk(lambda: self._outbox.mark_sent(batch, answer, time.now()))

    async def _feed_forever(self, feed: alertmanager.AlertmanagerFeed, time: clock.Clock) -> None:
        """Repeat what is open, at once when something changed."""
        said, sent, sent_at = "", list[tuple[str, int]](), time.now() - alertmanager.REPEAT
        # Nobody knows which ends were taken before the hub stopped; one that is told twice is told once to people.
        late = await asyncio.to_thread(self._ended_lately, time.now())
        while True:
            now, current = time.now(), self._current
            versions = [(str(one.id), one.version) for one in current]
            pause = alertmanager.RETRY if said else alertmanager.REPEAT
            if versions != sent or not sent_at <= now < sent_at + pause:
                try:
                    problem = await self._repeat(feed, {one.id: one for one in (*late, *current)}.values(), now)
                    late = ()
                except Exception as error:  # Deliberately everything: one incident must not end the feed.
                    log.exception("The feed of Alertmanager failed")
                    problem = type(error).__name__
                if problem != said:
                    log.warning("Alertmanager", extra=fields(url=feed.url, problem=problem or "answers again"))
                said, sent, sent_at = problem, versions, now
            await time.sleep(LOOK_SECONDS)

    def _ended_lately(self, now: datetime) -> tuple[Incident, ...]:
        known = self._around.journal.incidents()
        return tuple(one for one in known if one.resolved_at and now - one.resolved_at <= alertmanager.REMEMBERED)

    async def _repeat(self, feed: alertmanager.AlertmanagerFeed, current: Iterable[Incident], now: datetime) -> str:
        def send() -> str:
            known = self._around.message_context
            wanted = [(one, alertmanager.make_alert(one, self._subject(one), known, now=now)) for one in current]
            return feed.send(feed.next_alerts(wanted, now=now))

        problem = await asyncio.to_thread(send)
        if problem:
            self._failed.add(receiver="alertmanager")
        return problem

    def _subject(self, incident: Incident) -> IncidentLabels:
        version, subject = self._subjects.get(incident.id, (0, {}))
        if version != incident.version:
            subject = collect_labels(incident, self._around.inventory)
            if len(self._subjects) > 2 * len(self._current) + 1000:
                self._subjects.clear()
            self._subjects[incident.id] = (incident.version, subject)
        return subject


def _said(error: Exception) -> str:
    """What the timeline says about a message that was not taken."""
    if isinstance(error, ReceiverError):
        return str(error)
    if isinstance(error, TimeoutError):
        return f"no answer within {HAND_OVER_SECONDS:g} s"
    return f"{type(error).__name__} while it was handed over"


def _load(settings: config.NotifySettings) -> routing.Routing:
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
