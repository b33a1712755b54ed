"""Which of several hubs works: one leads and writes, the others follow, answer questions and wait for their turn.

The hub asks for its journal here (`open`), and lets `run` hold the lead. A journal in a file is led by whoever opened
it. In PostgreSQL the lead is a lease (`store.journal.election`): renewed while all is well, taken by another hub when
it runs out. Each time this hub begins to lead or to follow, and each time the server was away, its stages are put on
a new journal and remember only what that has. So nothing that was concluded under an earlier lead is ever written
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

# A leader whose own loop does not turn for so many leases lets another one try.
MOST_SILENT_LEASES = 3
# A lease is renewed, and looked at, so often in its time: four may fail before it is over.
TURNS_IN_A_LEASE = 5
# How old the silences, alerts and repairs of a follower's pages may be; incidents are read from the journal each time.
REFRESH_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class LeadershipCallbacks:
    """What the hub does with a journal: `join` builds everything on it, `loops` is the work of a leader."""

    join: Callable[[journals.Journal], None]
    loops: Callable[[], Sequence[Coroutine[Any, Any, None]]]


class Leadership:
    """One hub's place among several, or alone on a file. `not_leading_because` is for people, None while it leads."""

    def __init__(self, settings: config.Settings, *, metrics: own_metrics.Registry) -> None:
        self._path, self._settings = settings.journal_path, settings.journal
        self._url = settings.journal.hub_url or f"http://{settings.hub.host}:{settings.hub.port}"
        self._lease = settings.journal.lease_seconds
        self._election: election.Election | None = None
        self._connection: postgres.PostgresConnection | None = None
        self._epoch = self._seen_epoch = 0
        self._led_until = self._joined_at = self._heard_at = 0.0
        # The newest journal, and the one that the stages are on or are being put on.
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
        return self._why_not or (None if self._is_built else "this hub begins to lead and reads the journal")

    @property
    def is_leading(self) -> bool:
        return self._why_not is None

    def may_act(self) -> bool:
        """False as soon as another hub may have taken the lead, by a clock that goes on while this process does not."""
        return self._election is None or (self._epoch > 0 and _now() < self._led_until)

    def fence_driver(self, behind: driver.Driver) -> driver.Driver:
        """The driver for this lead: what was decided under it is not done under a later one."""
        if self._settings.url_file is None:
            return behind
        epoch = self._epoch
        return FencedDriver(behind, lambda: self._epoch == epoch and self.may_act())

    def open(self) -> journals.Journal:
        """The journal to begin with, led if nobody else leads it."""
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
        # The hub builds its stages on it before anybody can ask.
        self._joined, self._is_built = self._newest, True
        return self._newest

    def close(self) -> None:
        """Let another hub lead at once."""
        self._is_closed.set()
        with self._lock, contextlib.suppress(StoreError):
            if self._election is not None:
                if self._epoch:
                    self._election.release(self._epoch)
                self._epoch = 0
                self._election.close()

    async def run(self, stages: LeadershipCallbacks, stop: asyncio.Event) -> None:
        """Until `stop` is set: do a leader's work while we lead, and change sides when that changes."""
        at_work: list[asyncio.Task[None]] = []
        turned, loop = asyncio.Event(), asyncio.get_running_loop()
        if self._election is not None:
            # A thread of its own: a busy loop must not cost the lead.
            watch = threading.Thread(target=self._watch, args=(loop, turned), name="leadership", daemon=True)
            watch.start()
        stopped = asyncio.create_task(stop.wait())
        stopped.add_done_callback(lambda _: turned.set())
        try:
            while not stop.is_set():
                if self._joined is not self._newest or not self.is_leading:
                    await _end(at_work)
                    at_work = []
                if self._newest is not None and self._joined is not self._newest:
                    await self._join(stages, self._newest)
                    continue
                if self.is_leading and not at_work:
                    at_work = [asyncio.create_task(work) for work in stages.loops()]
                await turned.wait()
                turned.clear()
        finally:
            self._is_closed.set()
            await _end([*at_work, stopped])

    async def _join(self, stages: LeadershipCallbacks, newest: journals.Journal) -> None:
        before, self._joined = self._joined, newest
        try:
            await asyncio.to_thread(stages.join, newest)
            self._is_built = self._newest is newest
        except Exception as error:  # Deliberately everything: whoever cannot lead must not keep the others from it.
            known = isinstance(error, WatchkeeperError)
            log.error("The journal could not be read", extra=fields(error=error), exc_info=None if known else error)
            await asyncio.to_thread(self._give_up, error)
        finally:
            if before is not None:
                before.close()

    def _watch(self, loop: asyncio.AbstractEventLoop, turned: asyncio.Event) -> None:
        def hear() -> None:
            self._heard_at = _now()
            turned.set()

        self._heard_at = _now()
        # The lease is real time, however fast a simulated clock runs.
        while not self._is_closed.wait(self._lease / TURNS_IN_A_LEASE):
            with self._lock:
                if not self._is_closed.is_set():
                    self._turn_or_say()
            with contextlib.suppress(RuntimeError):  # The loop has ended.
                loop.call_soon_threadsafe(hear)

    def _turn_or_say(self) -> None:
        if self._epoch and _now() - self._heard_at > MOST_SILENT_LEASES * self._lease:
            log.error("The hub's own loop hangs; the lead is not renewed", extra=fields(epoch=self._epoch))
            return
        try:
            self._turn()
        except StoreError as error:
            if self._epoch:
                log.error("The lead could not be renewed", extra=fields(error=error, epoch=self._epoch))
            if self._connection is not None and (self._connection.is_broken or _now() > self._led_until):
                self._connection.cut()
                self._follow(str(error))

    def _turn(self) -> None:
        """Renew the lead, take it, or look who has it; opens another journal where the stages need one."""
        assert self._election is not None
        asked = _now()
        is_broken = self._connection is None or self._connection.is_broken
        if self._epoch and not is_broken and self._election.renew(self._epoch):
            self._led_until = asked + self._lease
            return
        epoch = self._election.acquire()
        if epoch is not None:
            self._begin(epoch, asked)
            return
        lead = self._election.read_lease()
        is_old = self._seen_epoch != lead.epoch or asked - self._joined_at > REFRESH_SECONDS
        self._follow(f"this hub follows {lead}, which leads")
        if is_broken or is_old:
            self._change(self._opened(0, str(lead)))
            self._seen_epoch, self._joined_at = lead.epoch, asked

    def _begin(self, epoch: int, asked: float) -> None:
        opened = self._opened(epoch)
        # In this order: `run` looks on from another thread, and begins to work when the last of them is so.
        self._epoch = self._seen_epoch = epoch
        self._led_until, self._joined_at = asked + self._lease, asked
        self._change(opened)
        log.warning("This hub leads now", extra=fields(epoch=epoch))
        self._leads.set(1)
        self._changes.add()
        self._why_not = None

    def _follow(self, why: str) -> None:
        if self._epoch:
            log.warning("This hub leads no longer", extra=fields(epoch=self._epoch, why=why))
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
    """A driver that a hub without the lead cannot use to change anything."""

    def __init__(self, behind: driver.Driver, may_act: Callable[[], bool]) -> None:
        self._behind, self._may_act = behind, may_act
        self.name = behind.name

    def observe(self, place: fleet.Place) -> driver.NodeObservation:
        return self._behind.observe(place)

    def describe(self, action: actions.Action) -> str:
        return self._behind.describe(action)

    def perform(self, action: actions.Action) -> driver.ActionOutcome:
        if not self._may_act():
            raise ActionFailed(
                "the lease of this hub has run out",
                where=action.id,
                now="Nothing was called",
                remedy="Whoever leads now goes on",
            )
        return self._behind.perform(action)


def _election(server: postgres.PostgresServer, url: str, lease_seconds: float) -> election.Election:
    from watchkeeper.store.journal import election

    # The last part tells two lives of one container apart, which may have the same name and number.
    holder = f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(3)}"
    return election.Election(server, holder, url=url, lease_seconds=lease_seconds)


def _now() -> float:
    """Seconds that pass while this process, or the whole machine, sleeps as well."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


async def _end(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
