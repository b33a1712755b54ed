"""Leader election: one hub leads and writes, the others follow and serve queries.

With a journal in a file, the hub that opened it leads. In PostgreSQL, leadership is a lease (`store.journal.election`):
the leader renews it, and another hub acquires it after it expires. Each time this hub starts to lead or to follow, and
after each lost connection, its stages are built on a new journal and restore only its content: a decision from an
earlier lease is never written under a later one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from watchkeeper.config import settings as config
from watchkeeper.errors import ActionFailed, StoreError, WatchkeeperError
from watchkeeper.kit import own_metrics
from watchkeeper.kit.logs import fields
from watchkeeper.model import actions, fleet
from watchkeeper.remediate import driver
from watchkeeper.store.journal import connection
from watchkeeper.store.journal import journal as journals

if TYPE_CHECKING:
    from watchkeeper.store.journal import election, postgres

log = logging.getLogger(__name__)

# A leader whose event loop hangs for this many lease durations stops renewing, so that another hub can lead.
MAX_SILENT_LEASES = 3
# Renewals in one lease duration: four can fail before the lease expires.
RENEWALS_PER_LEASE = 5
# The maximum age of silences, alerts and repairs on the pages of a follower; incidents are always read anew.
REFRESH_SECONDS = 30.0


BuildStages = Callable[[journals.Journal], None]


class Leadership:
    """Acquires, renews and releases leadership; `not_leading_reason` is a text, or None while this hub leads."""

    def __init__(self, settings: config.Settings, *, metrics: own_metrics.Registry) -> None:
        self._path, self._settings = settings.journal_path, settings.journal
        self._url = settings.journal.hub_url or f"http://{settings.hub.host}:{settings.hub.port}"
        self._lease = settings.journal.lease_seconds
        self._election: election.Election | None = None
        self._connection: postgres.PostgresConnection | None = None
        self._epoch = self._stages_epoch = 0
        self._lease_until = self._stages_built_at = self._loop_answered_at = 0.0
        # The newest journal, and the journal that the stages use or are being built on.
        self._newest: journals.Journal | None = None
        self._stages_journal: journals.Journal | None = None
        self._lock = threading.Lock()
        self._is_closed = threading.Event()
        self._follow_reason: str | None = None
        self._has_built_stages = True
        gauge, counter = metrics.gauge, metrics.counter
        self._leader_gauge = gauge("watchkeeper_hub_leader", "1 if this hub is the leader, 0 if it is a follower")
        self._acquisitions = counter(
            "watchkeeper_hub_leadership_acquired_total", "How often this hub acquired leadership"
        )

    @property
    def not_leading_reason(self) -> str | None:
        return self._follow_reason or (
            None if self._has_built_stages else "this hub acquired leadership and is reading the journal"
        )

    @property
    def is_leading(self) -> bool:
        return self._follow_reason is None

    def may_act(self) -> bool:
        """Whether the lease is valid, by a clock that also advances while this process is suspended."""
        return self._election is None or (self._epoch > 0 and _now() < self._lease_until)

    def fence_driver(self, unfenced: driver.Driver) -> driver.Driver:
        """The driver for this lease: it refuses actions under a later lease."""
        if self._settings.url_file is None:
            return unfenced
        epoch = self._epoch
        return FencedDriver(unfenced, lambda: self._epoch == epoch and self.may_act())

    def open(self) -> journals.Journal:
        """Open the journal, and acquire leadership if no other hub leads."""
        if self._settings.url_file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._leader_gauge.set(1)
            return journals.Journal(self._path)
        server = connection.load_server(self._settings.url_file)
        server.create()
        from watchkeeper.store.journal import election

        # The random part distinguishes two starts of a container with the same host name and PID.
        holder = f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(3)}"
        self._election = election.Election(server, holder, url=self._url, lease_seconds=self._lease)
        try:
            self._renew_or_acquire()
        except StoreError:
            self.close()
            raise
        assert self._newest is not None
        # The hub builds its stages on this journal before it serves requests.
        self._stages_journal, self._has_built_stages = self._newest, True
        return self._newest

    def close(self) -> None:
        """Release the lease, so that another hub can lead immediately."""
        self._is_closed.set()
        with self._lock, contextlib.suppress(StoreError):
            if self._election is not None:
                if self._epoch:
                    self._election.release(self._epoch)
                self._epoch = 0
                self._election.close()

    async def run(
        self, build_stages: BuildStages, tasks: Callable[[], Sequence[Coroutine[Any, Any, None]]], stop: asyncio.Event
    ) -> None:
        """Run the leader's tasks whenever this hub leads, until `stop` is set; each journal gets its own stages."""
        leader_tasks: list[asyncio.Task[None]] = []
        wakeup, loop = asyncio.Event(), asyncio.get_running_loop()
        if self._election is not None:
            # A separate thread: a busy event loop must not lose the lease.
            renewal = partial(self._renew_repeatedly, loop, wakeup)
            threading.Thread(target=renewal, name="leadership", daemon=True).start()
        stopped = asyncio.create_task(stop.wait())
        stopped.add_done_callback(lambda _: wakeup.set())
        try:
            while not stop.is_set():
                if self._stages_journal is not self._newest or not self.is_leading:
                    await _cancel_tasks(leader_tasks)
                    leader_tasks = []
                if self._newest is not None and self._stages_journal is not self._newest:
                    await self._build_stages(build_stages, self._newest)
                    continue
                if self.is_leading and not leader_tasks:
                    leader_tasks = [asyncio.create_task(body) for body in tasks()]
                await wakeup.wait()
                wakeup.clear()
        finally:
            self._is_closed.set()
            await _cancel_tasks([*leader_tasks, stopped])

    async def _build_stages(self, build_stages: BuildStages, newest: journals.Journal) -> None:
        previous, self._stages_journal = self._stages_journal, newest
        try:
            await asyncio.to_thread(build_stages, newest)
            self._has_built_stages = self._newest is newest
        except Exception as error:  # Deliberately everything: a hub that cannot lead releases the lease.
            is_expected = isinstance(error, WatchkeeperError)
            log.error("journal read failed", extra=fields(error=error), exc_info=None if is_expected else error)
            await asyncio.to_thread(self._give_up, error)
        finally:
            if previous is not None:
                previous.close()

    def _renew_repeatedly(self, loop: asyncio.AbstractEventLoop, wakeup: asyncio.Event) -> None:
        def wake() -> None:
            self._loop_answered_at = _now()
            wakeup.set()

        self._loop_answered_at = _now()
        # The lease uses real time, also with a simulated clock.
        while not self._is_closed.wait(self._lease / RENEWALS_PER_LEASE):
            with self._lock:
                if not self._is_closed.is_set():
                    self._try_to_renew()
            with contextlib.suppress(RuntimeError):  # The loop is closed.
                loop.call_soon_threadsafe(wake)

    def _try_to_renew(self) -> None:
        if self._epoch and _now() - self._loop_answered_at > MAX_SILENT_LEASES * self._lease:
            log.error("event loop hangs, not renewing the lease", extra=fields(epoch=self._epoch))
            return
        try:
            self._renew_or_acquire()
        except StoreError as error:
            if self._epoch:
                log.error("lease renewal failed", extra=fields(error=error, epoch=self._epoch))
            if self._connection is not None and (self._connection.is_broken or _now() > self._lease_until):
                self._connection.abort()
                self._start_following(str(error))

    def _renew_or_acquire(self) -> None:
        """Renew or acquire the lease, or follow its holder; open another journal if the stages need one."""
        assert self._election is not None
        requested_at = _now()
        is_broken = self._connection is None or self._connection.is_broken
        if self._epoch and not is_broken and self._election.renew(self._epoch):
            self._lease_until = requested_at + self._lease
            return
        epoch = self._election.acquire()
        if epoch is not None:
            self._start_leading(epoch, requested_at)
            return
        lease = self._election.read_lease()
        is_stale = self._stages_epoch != lease.epoch or requested_at - self._stages_built_at > REFRESH_SECONDS
        self._start_following(f"this hub follows the leader {lease}")
        if is_broken or is_stale:
            self._replace_journal(self._open_connection(0, str(lease)))
            self._stages_epoch, self._stages_built_at = lease.epoch, requested_at

    def _start_leading(self, epoch: int, requested_at: float) -> None:
        connection_to_journal = self._open_connection(epoch)
        # The order matters: `run` reads these in another thread and starts when the last one is set.
        self._epoch = self._stages_epoch = epoch
        self._lease_until, self._stages_built_at = requested_at + self._lease, requested_at
        self._replace_journal(connection_to_journal)
        log.info("acquired leadership", extra=fields(epoch=epoch))
        self._leader_gauge.set(1)
        self._acquisitions.add()
        self._follow_reason = None

    def _start_following(self, reason: str) -> None:
        if self._epoch:
            log.warning("lost leadership", extra=fields(epoch=self._epoch, reason=reason))
        self._epoch = 0
        self._leader_gauge.set(0)
        self._follow_reason = reason

    def _give_up(self, error: Exception) -> None:
        with self._lock, contextlib.suppress(StoreError):
            if self._connection is not None:
                self._connection.abort()
            epoch = self._epoch
            self._start_following(str(error))
            if self._election is not None and epoch:
                self._election.release(epoch)

    def _open_connection(self, epoch: int, leader: str = "") -> postgres.PostgresConnection:
        from watchkeeper.store.journal import postgres

        assert self._election is not None
        return postgres.PostgresConnection(self._election.server, epoch, leader=leader, idle_seconds=self._lease)

    def _replace_journal(self, new_connection: postgres.PostgresConnection) -> None:
        unused = self._newest if self._newest is not self._stages_journal else None
        self._has_built_stages, self._connection, self._newest = False, new_connection, journals.Journal(new_connection)
        if unused is not None:
            unused.close()


class FencedDriver:
    """A driver that refuses every action if this hub does not lead."""

    def __init__(self, driver: driver.Driver, may_act: Callable[[], bool]) -> None:
        self._driver, self._may_act = driver, may_act
        self.name = driver.name

    def observe(self, place: fleet.Place) -> driver.NodeObservation:
        return self._driver.observe(place)

    def describe(self, action: actions.Action) -> str:
        return self._driver.describe(action)

    def perform(self, action: actions.Action) -> driver.ActionOutcome:
        if not self._may_act():
            raise ActionFailed(
                "the lease of this hub has expired",
                where=action.id,
                now="No action was sent",
                remedy="No action needed: the new leader continues the repair",
            )
        return self._driver.perform(action)


def _now() -> float:
    """Seconds of a clock that also advances while the process or the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


async def _cancel_tasks(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
