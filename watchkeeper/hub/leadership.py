"""Leader election: one hub leads and writes, the others follow, serve queries and wait.

The hub opens its journal here (`open`), and `run` keeps the lease. With a journal in a file, the hub that opened it
leads. In PostgreSQL, leadership is a lease (`store.journal.election`): renewed while all is well, acquired by another
hub after it expires. Each time this hub starts to lead or to follow, and after each loss of the connection, its stages
are built on a new journal and restore only what that contains. So a conclusion from an earlier lease is never written
under a later one.
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
from dataclasses import dataclass
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

# A leader whose event loop hangs for this many lease times stops renewing, so that another hub can lead.
MOST_SILENT_LEASES = 3
# Renewals in one lease time: four may fail before the lease expires.
RENEWALS_PER_LEASE = 5
# How old silences, alerts and repairs on a follower's pages may be; incidents are read from the journal each time.
REFRESH_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class LeadershipCallbacks:
    """`join` builds all stages on a journal; `loops` are the tasks of a leader."""

    join: Callable[[journals.Journal], None]
    loops: Callable[[], Sequence[Coroutine[Any, Any, None]]]


class Leadership:
    """Whether this hub leads. `not_leading_reason` is a text for people, None while it leads."""

    def __init__(self, settings: config.Settings, *, metrics: own_metrics.Registry) -> None:
        self._path, self._settings = settings.journal_path, settings.journal
        self._url = settings.journal.hub_url or f"http://{settings.hub.host}:{settings.hub.port}"
        self._lease = settings.journal.lease_seconds
        self._election: election.Election | None = None
        self._connection: postgres.PostgresConnection | None = None
        self._epoch = self._seen_epoch = 0
        self._led_until = self._joined_at = self._heard_at = 0.0
        # The newest journal, and the one that the stages use or are being built on.
        self._newest: journals.Journal | None = None
        self._joined: journals.Journal | None = None
        self._lock = threading.Lock()
        self._is_closed = threading.Event()
        self._why_not: str | None = None
        self._is_built = True
        self._leads = metrics.gauge("watchkeeper_hub_leader", "1 if this hub is the leader, 0 if it is a follower")
        self._changes = metrics.counter(
            "watchkeeper_hub_leadership_acquired_total", "How often this hub acquired leadership"
        )

    @property
    def not_leading_reason(self) -> str | None:
        return self._why_not or (None if self._is_built else "this hub acquired leadership and reads the journal")

    @property
    def is_leading(self) -> bool:
        return self._why_not is None

    def may_act(self) -> bool:
        """False as soon as another hub may lead, by a clock that also counts while this process is suspended."""
        return self._election is None or (self._epoch > 0 and _now() < self._led_until)

    def fence_driver(self, unfenced: driver.Driver) -> driver.Driver:
        """The driver for this lease: a decision made under it does not run under a later one."""
        if self._settings.url_file is None:
            return unfenced
        epoch = self._epoch
        return FencedDriver(unfenced, lambda: self._epoch == epoch and self.may_act())

    def open(self) -> journals.Journal:
        """Open the journal, and acquire leadership if no other hub leads."""
        if self._settings.url_file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._leads.set(1)
            return journals.Journal(self._path)
        server = connection.load_server(self._settings.url_file)
        server.create()
        self._election = _election(server, self._url, self._lease)
        try:
            self._turn()
        except StoreError:
            self.close()
            raise
        assert self._newest is not None
        # The hub builds its stages on it before it serves requests.
        self._joined, self._is_built = self._newest, True
        return self._newest

    def close(self) -> None:
        """Release the lease, so that another hub can lead at once."""
        self._is_closed.set()
        with self._lock, contextlib.suppress(StoreError):
            if self._election is not None:
                if self._epoch:
                    self._election.release(self._epoch)
                self._epoch = 0
                self._election.close()

    async def run(self, stages: LeadershipCallbacks, stop: asyncio.Event) -> None:
        """Until `stop` is set: run the leader's tasks while this hub leads, and stop them when it does not."""
        leader_tasks: list[asyncio.Task[None]] = []
        wakeup, loop = asyncio.Event(), asyncio.get_running_loop()
        if self._election is not None:
            # A thread of its own: a busy event loop must not lose the lease.
            watch = threading.Thread(target=self._watch, args=(loop, wakeup), name="leadership", daemon=True)
            watch.start()
        stopped = asyncio.create_task(stop.wait())
        stopped.add_done_callback(lambda _: wakeup.set())
        try:
            while not stop.is_set():
                if self._joined is not self._newest or not self.is_leading:
                    await _end(leader_tasks)
                    leader_tasks = []
                if self._newest is not None and self._joined is not self._newest:
                    await self._join(stages, self._newest)
                    continue
                if self.is_leading and not leader_tasks:
                    leader_tasks = [asyncio.create_task(body) for body in stages.loops()]
                await wakeup.wait()
                wakeup.clear()
        finally:
            self._is_closed.set()
            await _end([*leader_tasks, stopped])

    async def _join(self, stages: LeadershipCallbacks, newest: journals.Journal) -> None:
        previous, self._joined = self._joined, newest
        try:
            await asyncio.to_thread(stages.join, newest)
            self._is_built = self._newest is newest
        except Exception as error:  # Deliberately everything: a hub that cannot lead must release the lease.
            is_ours = isinstance(error, WatchkeeperError)
            log.error("journal read failed", extra=fields(error=error), exc_info=None if is_ours else error)
            await asyncio.to_thread(self._give_up, error)
        finally:
            if previous is not None:
                previous.close()

    def _watch(self, loop: asyncio.AbstractEventLoop, wakeup: asyncio.Event) -> None:
        def wake() -> None:
            self._heard_at = _now()
            wakeup.set()

        self._heard_at = _now()
        # The lease is real time, however fast a simulated clock runs.
        while not self._is_closed.wait(self._lease / RENEWALS_PER_LEASE):
            with self._lock:
                if not self._is_closed.is_set():
                    self._try_turn()
            with contextlib.suppress(RuntimeError):  # The loop has ended.
                loop.call_soon_threadsafe(wake)

    def _try_turn(self) -> None:
        if self._epoch and _now() - self._heard_at > MOST_SILENT_LEASES * self._lease:
            log.error("event loop hangs, not renewing the lease", extra=fields(epoch=self._epoch))
            return
        try:
            self._turn()
        except StoreError as error:
            if self._epoch:
                log.error("lease renewal failed", extra=fields(error=error, epoch=self._epoch))
            if self._connection is not None and (self._connection.is_broken or _now() > self._led_until):
                self._connection.cut()
                self._follow(str(error))

    def _turn(self) -> None:
        """Renew the lease, acquire it, or read who has it; opens another journal if the stages need one."""
        assert self._election is not None
        asked_at = _now()
        is_broken = self._connection is None or self._connection.is_broken
        if self._epoch and not is_broken and self._election.renew(self._epoch):
            self._led_until = asked_at + self._lease
            return
        epoch = self._election.acquire()
        if epoch is not None:
            self._begin(epoch, asked_at)
            return
        lease = self._election.read_lease()
        is_old = self._seen_epoch != lease.epoch or asked_at - self._joined_at > REFRESH_SECONDS
        self._follow(f"this hub follows the leader {lease}")
        if is_broken or is_old:
            self._change(self._opened(0, str(lease)))
            self._seen_epoch, self._joined_at = lease.epoch, asked_at

    def _begin(self, epoch: int, asked_at: float) -> None:
        opened = self._opened(epoch)
        # The order matters: `run` reads these in another thread, and starts when the last one is set.
        self._epoch = self._seen_epoch = epoch
        self._led_until, self._joined_at = asked_at + self._lease, asked_at
        self._change(opened)
        log.info("acquired leadership", extra=fields(epoch=epoch))
        self._leads.set(1)
        self._changes.add()
        self._why_not = None

    def _follow(self, why: str) -> None:
        if self._epoch:
            log.warning("lost leadership", extra=fields(epoch=self._epoch, reason=why))
        self._epoch = 0
        self._leads.set(0)
        self._why_not = why

    def _give_up(self, error: Exception) -> None:
        with self._lock, contextlib.suppress(StoreError):
            if self._connection is not None:
                self._connection.cut()
            epoch = self._epoch
            self._follow(str(error))
            if self._election is not None and epoch:
                self._election.release(epoch)

    def _opened(self, epoch: int, leader: str = "") -> postgres.PostgresConnection:
        from watchkeeper.store.journal import postgres

        assert self._election is not None
        return postgres.PostgresConnection(self._election.server, epoch, leader=leader, idle_seconds=self._lease)

    def _change(self, opened: postgres.PostgresConnection) -> None:
        unused = self._newest if self._newest is not self._joined else None
        newest = journals.Journal(opened)
        self._is_built, self._connection, self._newest = False, opened, newest
        if unused is not None:
            unused.close()


class FencedDriver:
    """A driver that refuses every change if this hub does not lead."""

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
                now="Nothing was called",
                remedy="No action needed: the new leader continues the repair",
            )
        return self._driver.perform(action)


def _election(server: postgres.PostgresServer, url: str, lease_seconds: float) -> election.Election:
    from watchkeeper.store.journal import election

    # The last part distinguishes two starts of one container, which may have the same host name and PID.
    holder = f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(3)}"
    return election.Election(server, holder, url=url, lease_seconds=lease_seconds)


def _now() -> float:
    """Seconds, including the time in which the process or the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


async def _end(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
