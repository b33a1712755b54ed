"""Deliver notifications to receivers, with one task for each, or to Alertmanager.

The hub creates one `Notifier` and runs its `loops`. A slow receiver delays no other. Decisions and journal writes run
on the journal thread (`on_journal_thread`); each receiver has its own thread for blocking calls.
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
from watchkeeper.notify import alertmanager, digest, message, outbox, receivers, routing, silence_store
from watchkeeper.notify.alertmanager import AlertmanagerFeed
from watchkeeper.notify.digest import JournalThread
from watchkeeper.notify.routing import Receiver
from watchkeeper.store.journal import journal as journals

log = logging.getLogger(__name__)

# How often a task checks for due notices.
CHECK_SECONDS = 0.5
MAX_RECEIVERS = 50
# Apprise services limit each wait but not the total time; a webhook has its own, shorter limit.
SEND_TIMEOUT_SECONDS = 120.0
# How often the file of receivers and routes is checked for changes.
RELOAD_SECONDS = 5.0
# A silence is recorded on the timelines of at most this many incidents.
MAX_NOTED = 100


LoopBody = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class NotifierDependencies:
    journal: journals.Journal
    inventory: InventoryLookup
    message_context: message.MessageContext
    metrics: own_metrics.Registry
    place_name: Callable[[fleet.Place], str] = str


class Notifier:
    """Decides and delivers notifications; `update` must run on the journal thread."""

    def __init__(self, settings: config.NotifySettings, dependencies: NotifierDependencies, *, now: datetime) -> None:
        self._settings = settings
        self._dependencies = dependencies
        self._current: tuple[Incident, ...] = ()
        self._subjects: dict[str, tuple[int, IncidentLabels]] = {}
        self.silences = silence_store.SilenceStore(dependencies.journal, now=now)
        self._routes_stamp = files.read_stamp(Path(settings.routes or ""))
        self._routing = _load_routing(settings)
        journal, silences = dependencies.journal, self.silences
        self._outbox = outbox.Outbox(journal, self._routing, subject=self._subject, silences=silences, now=now)
        urls = settings.alertmanager_urls if settings.via is config.NotifyVia.ALERTMANAGER else ()
        self._feeds = [AlertmanagerFeed(url) for url in urls]
        self._alertmanager_silences = silence_store.AlertmanagerSilences(urls)
        counter, gauge = dependencies.metrics.counter, dependencies.metrics.gauge
        self._sent_counter = counter("watchkeeper_notify_messages_total", "Messages delivered to a receiver")
        self._failed_counter = counter("watchkeeper_notify_failures_total", "Failed attempts to deliver a message")
        self._pending_gauge = gauge("watchkeeper_notify_waiting", "Notices pending for a receiver")
        self._unrouted_gauge = gauge("watchkeeper_notify_unrouted_incidents", "Open incidents without a matching route")
        self._invalid_routes_gauge = gauge(
            "watchkeeper_notify_routes_broken", "1 if the changed routes file is invalid and not in use"
        )

    def update(self, incidents: Iterable[Incident], now: datetime) -> None:
        self._current = tuple(incidents)
        if self._settings.via is not config.NotifyVia.RECEIVERS:
            return
        self._outbox.update(self._current, now)
        self._unrouted_gauge.set(self._outbox.unrouted_count)
        for receiver, count in self._outbox.pending_counts().items():
            self._pending_gauge.set(count, receiver=receiver)

    def silenced_by(self, incident: Incident, now: datetime) -> Silence | None:
        """The silence that matches an incident, from the hub, or from Alertmanager if it sends the notifications."""
        subject = self._subject(incident)
        if self._feeds:
            return self._alertmanager_silences.find_match(alertmanager.alert_labels(incident, subject), now)
        return self.silences.find_match(subject, now)

    def list_silences(self, now: datetime) -> list[Silence]:
        return self._alertmanager_silences.list_silences(now) if self._feeds else self.silences.list_silences(now)

    def silences_problem(self, now: datetime) -> str:
        """Why Alertmanager's silences are unknown or incomplete; empty if complete or not used."""
        return self._alertmanager_silences.problem(now)

    async def silence(
        self, request: silence_store.SilenceRequest, time: clock.Clock, on_journal_thread: JournalThread
    ) -> Silence:
        """Create a silence, in the hub or in Alertmanager; raise InvalidTransition if it failed."""
        if not self._feeds:
            add = self.silences.add
            return await on_journal_thread(lambda: self._record_on_timelines(add(request, time.now()), time.now()))
        try:
            silence = Silence("-", request.matchers, request.author, request.reason, request.starts_at, request.ends_at)
            # Deliberately outside the journal thread: Alertmanager may be slow.
            silence_id = await asyncio.to_thread(self._feeds[0].create_silence, silence)
        except ReceiverError as error:
            raise InvalidTransition(f"Alertmanager rejected the silence: {error}") from error
        except ValueError as error:
            raise InvalidTransition(str(error)) from error
        await asyncio.to_thread(self._alertmanager_silences.refresh, time.now())
        created = replace(silence, id=f"{silence_store.PREFIX}{silence_id}", keeper=ALERTMANAGER)
        return await on_journal_thread(lambda: self._record_on_timelines(created, time.now()))

    async def end_silence(self, id: str, actor: str, *, time: clock.Clock, on_journal_thread: JournalThread) -> Silence:
        if not self._feeds:
            end = self.silences.end
            return await on_journal_thread(lambda: self._record_on_timelines(end(id, actor, time.now()), time.now()))
        await asyncio.to_thread(self._alertmanager_silences.refresh, time.now())
        listed = self._alertmanager_silences.list_silences(time.now())
        silence = next((silence for silence in listed if silence.id == id), None)
        if silence is None or silence.ends_at <= time.now():
            remedy = "List silences with `watchkeeper silence list`"
            raise InvalidTransition("no active silence with this id in Alertmanager", where=id[:60], remedy=remedy)
        try:
            await asyncio.to_thread(self._feeds[0].end_silence, id.removeprefix(silence_store.PREFIX))
        except ReceiverError as error:
            raise InvalidTransition(f"Alertmanager did not end the silence: {error}", where=id[:60]) from error
        await asyncio.to_thread(self._alertmanager_silences.refresh, time.now())
        return await on_journal_thread(lambda: self._record_on_timelines(replace(silence, ended_by=actor), time.now()))

    def _record_on_timelines(self, silence: Silence, now: datetime) -> Silence:
        """Record the silence on the timelines of the open incidents that it matches."""
        journal, actor = self._dependencies.journal, silence.ended_by or silence.author
        text = f"Notifications muted until {silence.ends_at:%Y-%m-%d %H:%M}Z: {silence.reason}"
        if silence.ended_by:
            text = f"Silence of {silence.author} ended"

        def matches(incident: Incident) -> bool:
            # Alertmanager's silences of one incident use its own label name.
            own_label = {alertmanager.INCIDENT_LABEL: frozenset({str(incident.id)})}
            return matches_labels(silence.matchers, {**self._subject(incident), **own_label})

        open_incidents = journal.incidents(open_only=True)
        with journal.transaction():
            for incident in islice(filter(matches, open_incidents), MAX_NOTED):
                journal.record("silenced", incident.id, at=now, actor=actor, body={"text": text})
        return silence

    def loops(self, time: clock.Clock, on_journal_thread: JournalThread) -> list[tuple[str, LoopBody]]:
        if self._settings.via is config.NotifyVia.RECEIVERS:
            needs = self._dependencies
            digests = digest.DigestDelivery(needs.journal, needs.place_name, needs.inventory)
            return [
                ("receivers", lambda: self._run_receiver_tasks(time, on_journal_thread)),
                ("digest", lambda: digests.run(lambda: self._routing, time, on_journal_thread)),
            ]
        feeds = [("alertmanager", partial(self._run_feed, feed, time)) for feed in self._feeds]
        return [("silences", lambda: self._run_silence_reader(time)), *feeds] if feeds else []

    async def _run_silence_reader(self, time: clock.Clock) -> None:
        last_problem = ""
        while True:
            try:
                await asyncio.to_thread(self._alertmanager_silences.refresh, time.now())
                problem = self._alertmanager_silences.problem(time.now())
            except Exception as error:  # Deliberately everything: an unexpected answer must not end the loop.
                log.exception("reading Alertmanager silences failed")
                problem = type(error).__name__
            if problem and not last_problem:
                log.warning("reading Alertmanager silences failed", extra=fields(error=problem))
            elif last_problem and not problem:
                log.info("reading Alertmanager silences recovered")
            last_problem = problem
            await time.sleep(silence_store.REFRESH_SECONDS)

    async def _run_receiver_tasks(self, time: clock.Clock, on_journal_thread: JournalThread) -> None:
        """Run a task for each receiver of the routes file; the task of a removed receiver ends itself."""
        tasks: dict[Receiver, asyncio.Task[None]] = {}
        try:
            while True:
                for receiver in self._routing.receivers:
                    if receiver not in tasks or tasks[receiver].done():
                        tasks[receiver] = asyncio.create_task(self._deliver_to(receiver, time, on_journal_thread))
                tasks = {receiver: task for receiver, task in tasks.items() if not task.done()}
                await time.sleep(RELOAD_SECONDS)
                try:
                    await on_journal_thread(lambda: self.reload(time.now()))
                except StoreError as error:
                    log.error("withdrawing notices of removed receivers failed", extra=fields(error=error))
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)

    def reload(self, now: datetime) -> None:
        """Reload the routes file if it changed; keep the previous routes if it is invalid."""
        stamp = files.read_stamp(Path(self._settings.routes or ""))
        if stamp == self._routes_stamp:
            return
        self._routes_stamp = stamp
        try:
            loaded = _load_routing(self._settings)
        except SettingsError as error:
            self._invalid_routes_gauge.set(1)
            log.error("routes file invalid; keeping previous routes", extra=fields(error=error))
            return
        self._invalid_routes_gauge.set(0)
        self._routing = loaded
        self._outbox.set_routing(loaded, now)
        log.info("routes file reloaded", extra=fields(receivers=len(loaded.receivers)))

    async def _deliver_to(self, receiver: Receiver, time: clock.Clock, on_journal_thread: JournalThread) -> None:
        """Send messages to a receiver, one at a time, while it is configured."""
        sender = receivers.make_sender(receiver)
        thread = ThreadPoolExecutor(1, thread_name_prefix=f"receiver {receiver.name}")
        find_incident = self._dependencies.journal.incident
        try:
            while receiver in self._routing.receivers:
                try:
                    batch = await on_journal_thread(
                        lambda: self._outbox.next_batch(receiver.name, time.now(), incident=find_incident)
                    )
                    if batch is not None:
                        await self._send_batch(batch, sender, thread, time=time, on_journal_thread=on_journal_thread)
                        continue
                except Exception:  # Deliberately everything: one message must not end the task.
                    log.exception("delivery to receiver failed", extra=fields(receiver=receiver.name))
                await time.sleep(CHECK_SECONDS)
        finally:
            # A receiver that hangs must not delay the shutdown.
            thread.shutdown(wait=False, cancel_futures=True)

    async def _send_batch(
        self,
        batch: outbox.NoticeBatch,
        sender: receivers.Sender,
        thread: ThreadPoolExecutor,
        *,
        time: clock.Clock,
        on_journal_thread: JournalThread,
    ) -> None:
        def send() -> str:
            return sender.send(message.compose_message(batch, self._dependencies.message_context))

        try:
            # After a timeout the thread stays the only worker; the next attempt waits for it, so the order is kept.
            sending = asyncio.get_running_loop().run_in_executor(thread, send)
            answer = await asyncio.wait_for(sending, SEND_TIMEOUT_SECONDS)
        except Exception as error:  # Deliberately everything: an error in the code of a service is a failed message.
            self._failed_counter.add(receiver=batch.receiver)
            problem, may_retry = _problem_text(error), not isinstance(error, ReceiverError) or error.may_retry
            unexpected = None if isinstance(error, ReceiverError | TimeoutError) else error
            details = fields(receiver=batch.receiver, error=problem)
            log.warning("notification failed", extra=details, exc_info=unexpected)
            await on_journal_thread(lambda: self._outbox.mark_failed(batch, problem, time.now(), may_retry=may_retry))
            return
        self._sent_counter.add(receiver=batch.receiver)
        await on_journal_thread(lambda: self._outbox.mark_sent(batch, answer, time.now()))

    async def _run_feed(self, feed: AlertmanagerFeed, time: clock.Clock) -> None:
        """Send open incidents on an interval, and immediately after a change."""
        last_problem, sent_versions, sent_at = "", list[tuple[str, int]](), time.now() - alertmanager.REPEAT
        # It is unknown which ends were delivered before a restart; Alertmanager deduplicates them.
        stored = await asyncio.to_thread(self._dependencies.journal.incidents)
        oldest = time.now() - alertmanager.RESEND_ENDS_WITHIN
        recently_resolved = [incident for incident in stored if incident.resolved_at and incident.resolved_at >= oldest]
        while True:
            now, current = time.now(), self._current
            versions = [(str(incident.id), incident.version) for incident in current]
            interval = alertmanager.RETRY if last_problem else alertmanager.REPEAT
            if versions != sent_versions or not sent_at <= now < sent_at + interval:
                try:
                    newest = {incident.id: incident for incident in (*recently_resolved, *current)}
                    problem = await self._send_incidents(feed, newest.values(), now)
                    recently_resolved = []
                except Exception as error:  # Deliberately everything: one incident must not end the feed.
                    log.exception("sending alerts to Alertmanager failed", extra=fields(url=feed.url))
                    problem = type(error).__name__
                if problem and problem != last_problem:
                    log.warning("sending alerts to Alertmanager failed", extra=fields(url=feed.url, error=problem))
                elif last_problem and not problem:
                    log.info("sending alerts to Alertmanager recovered", extra=fields(url=feed.url))
                last_problem, sent_versions, sent_at = problem, versions, now
            await time.sleep(CHECK_SECONDS)

    async def _send_incidents(self, feed: AlertmanagerFeed, current: Iterable[Incident], now: datetime) -> str:
        def send() -> str:
            make_alert = partial(alertmanager.make_alert, context=self._dependencies.message_context, now=now)
            incident_alerts = [(incident, make_alert(incident, self._subject(incident))) for incident in current]
            return feed.send(feed.next_alerts(incident_alerts, now=now))

        problem = await asyncio.to_thread(send)
        if problem:
            self._failed_counter.add(receiver="alertmanager")
        return problem

    def _subject(self, incident: Incident) -> IncidentLabels:
        version, subject = self._subjects.get(incident.id, (0, {}))
        if version != incident.version:
            subject = collect_labels(incident, self._dependencies.inventory)
            if len(self._subjects) > 2 * len(self._current) + 1000:
                self._subjects.clear()
            self._subjects[incident.id] = (incident.version, subject)
        return subject


def _problem_text(error: Exception) -> str:
    if isinstance(error, ReceiverError):
        return str(error)
    if isinstance(error, TimeoutError):
        return f"no answer within {SEND_TIMEOUT_SECONDS:g} s"
    return f"{type(error).__name__} in the sender"


def _load_routing(settings: config.NotifySettings) -> routing.Routing:
    if settings.via is not config.NotifyVia.RECEIVERS:
        return routing.Routing()
    loaded = routing.load(Path(settings.routes or ""))
    if len(loaded.receivers) > MAX_RECEIVERS:
        raise SettingsError(
            f"{len(loaded.receivers)} receivers, the limit is {MAX_RECEIVERS}",
            where=settings.routes,
            remedy="Route with Alertmanager, or with a service that has its own routing",
        )
    return loaded
