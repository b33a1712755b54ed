"""Load shedding: under load the hub refuses dashboard panels first, then pages, and never rules or events.

Reads of viewers are limited: panels at the lower limit, everything else at the higher one. Only a few panels run at a
time, and clients get their turns one after the other: one that sends heavy queries delays its own, not those of others.
When many requests are in progress, only a few pages run at a time too, and both wait while rules are evaluated.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

from starlette.exceptions import HTTPException

from watchkeeper.kit import own_metrics
from watchkeeper.web.auth.auth import Role
from watchkeeper.web.endpoint import Endpoint

# 500 requests are 25 dashboards of 20 panels that refresh at the same time; a browser retries after a refusal.
MAX_PANEL_REQUESTS, MAX_PAGE_REQUESTS = 500, 1000
RETRY_AFTER_SECONDS = 5
# With more than MANY_REQUESTS in progress, only MAX_CONCURRENT of each kind run at a time: in one Python process more
# would not be faster, and rules would get a smaller share of the CPU.
MANY_REQUESTS, MAX_CONCURRENT = 32, 3
# Panels that run at a time, and those of one client: the last slot is always for another.
PANEL_SLOTS, SLOTS_PER_CLIENT = 4, 3
# How long a panel waits for its turn at most, and how many panels of one client wait.
MAX_QUEUE_SECONDS, MAX_WAITING_PER_CLIENT = 30.0, 300
# How long a request waits for rules at most: rules may be evaluated all the time. Panels usually refresh every 5 s.
MAX_PAGE_WAIT_SECONDS, MAX_PANEL_WAIT_SECONDS, POLL_SECONDS = 1.0, 5.0, 0.02
PANELS = ("/api/v1/query", "/api/v1/series", "/api/v1/label", "/federate", "/api/history", "/api/explore")


class LoadShedder:
    """Counts and delays the reads of viewers; `is_evaluating` says whether rules are evaluated now."""

    def __init__(self, metrics: own_metrics.Registry, is_evaluating: Callable[[], bool] = lambda: False) -> None:
        self._in_flight = 0
        # Deliberately two: pages do not wait for panels.
        self._panels, self._pages = FairSlots(metrics), asyncio.Semaphore(MAX_CONCURRENT)
        self._is_evaluating = is_evaluating
        self._cancelled = metrics.counter(
            "watchkeeper_web_cancelled_total", "Reads cancelled because their client disconnected, by kind"
        )
        self._refused = metrics.counter("watchkeeper_web_refused_total", "Requests refused under load, by kind")

    def start_request(self, endpoint: Endpoint) -> bool:
        """Count a request and return True; raise 503 at the limit. Return False for requests without a limit."""
        if endpoint.role is not Role.VIEWER or endpoint.changes:
            return False
        limit = MAX_PANEL_REQUESTS if is_panel(endpoint) else MAX_PAGE_REQUESTS
        if self._in_flight >= limit:
            self._refused.add(kind=kind_of(endpoint))
            raise overloaded(f"{self._in_flight} requests are in progress, the limit is {limit}")
        self._in_flight += 1
        return True

    def end_request(self) -> None:
        self._in_flight -= 1

    def count_cancelled(self, endpoint: Endpoint) -> None:
        self._cancelled.add(kind=kind_of(endpoint))

    @asynccontextmanager
    async def acquire_slot(self, endpoint: Endpoint, client: str = "") -> AsyncIterator[None]:
        """Wait for the slot of a panel, or under load of a page; 503 if a panel has to wait too long."""
        try:
            slot = self._panels.acquire(client) if is_panel(endpoint) else self._page_slot()
            async with slot:
                if self._in_flight > MANY_REQUESTS:
                    await self._wait_for_rules(MAX_PANEL_WAIT_SECONDS if is_panel(endpoint) else MAX_PAGE_WAIT_SECONDS)
                yield
        except QueueOverload as error:
            self._refused.add(kind=kind_of(endpoint))
            raise overloaded(str(error)) from error

    def _page_slot(self) -> AbstractAsyncContextManager[None]:
        return self._pages if self._in_flight > MANY_REQUESTS else nullcontext()

    async def _wait_for_rules(self, seconds: float) -> None:
        time = asyncio.get_running_loop().time
        deadline = time() + seconds
        while self._is_evaluating() and time() < deadline:
            await asyncio.sleep(POLL_SECONDS)


def is_panel(endpoint: Endpoint) -> bool:
    return endpoint.path.startswith(PANELS)


def kind_of(endpoint: Endpoint) -> str:
    return "panel" if is_panel(endpoint) else "page"


def overloaded(problem: str) -> HTTPException:
    return HTTPException(
        503,
        f"{problem}. Rules and events have priority. Try again in {RETRY_AFTER_SECONDS} s",
        {"Retry-After": str(RETRY_AFTER_SECONDS)},
    )


class QueueOverload(Exception):
    """A client has too many waiting requests, or a request waited too long."""


class FairSlots:
    """Slots that waiting clients get in turn; one client never has all of them."""

    def __init__(self, metrics: own_metrics.Registry) -> None:
        self._running: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._gauge = metrics.gauge("watchkeeper_web_panels", "Panels that run or wait for their turn, by state")

    @asynccontextmanager
    async def acquire(self, client: str) -> AsyncIterator[None]:
        turn = asyncio.get_running_loop().create_future()
        queue = self._waiting.setdefault(client, deque())
        queue.append(turn)
        self._start_next()
        try:
            if not turn.done():
                await self._wait(turn, len(queue))
            yield
        finally:
            if turn.done() and not turn.cancelled():
                self._running[client] -= 1
            elif turn in queue:
                queue.remove(turn)
            self._start_next()

    async def _wait(self, turn: asyncio.Future[None], waiting: int) -> None:
        if waiting > MAX_WAITING_PER_CLIENT:
            raise QueueOverload(f"{waiting - 1} panels of this client wait, the limit is {MAX_WAITING_PER_CLIENT}")
        try:
            async with asyncio.timeout(MAX_QUEUE_SECONDS):
                await turn
        except TimeoutError as error:
            raise QueueOverload(f"the panel waited {MAX_QUEUE_SECONDS:g} s for one of {PANEL_SLOTS} slots") from error

    def _start_next(self) -> None:
        for client, queue in list(self._waiting.items()):
            # A cancelled request removes its turn a moment later.
            while queue and queue[0].cancelled():
                queue.popleft()
            if not queue:
                del self._waiting[client]
            elif self._running.total() < PANEL_SLOTS and self._running[client] < SLOTS_PER_CLIENT:
                queue.popleft().set_result(None)
                self._running[client] += 1
                self._waiting.move_to_end(client)
        self._running += Counter()
        self._gauge.set(self._running.total(), state="running")
        self._gauge.set(sum(map(len, self._waiting.values())), state="waiting")


class ConcurrencyLimit:
    """Limits calls that run or wait; above the limit it refuses them with `problem`, which may name the count."""

    def __init__(
        self, limit: int, problem: str, *, status: int = 429, retry_after_seconds: int | None = RETRY_AFTER_SECONDS
    ) -> None:
        self._limit, self._problem, self._status, self._in_use = limit, problem, status, 0
        self._headers = None if retry_after_seconds is None else {"Retry-After": str(retry_after_seconds)}

    def __enter__(self) -> None:
        if self._in_use >= self._limit:
            raise HTTPException(self._status, self._problem.format(count=self._in_use), self._headers)
        self._in_use += 1

    def __exit__(self, *_: object) -> None:
        self._in_use -= 1


def replay_limit(subject: str, limit: int = 4) -> ConcurrencyLimit:
    problem = f"{{count}} {subject} run or wait, the limit is {limit}. Try again in {RETRY_AFTER_SECONDS} s"
    return ConcurrencyLimit(limit, problem)
