"""Load shedding: under load the hub refuses dashboard panels first, then pages, and never rules or events.

Reads of viewers are limited: panels at the lower limit, everything else at the higher one. Well below these limits,
when many requests are in progress, only a few run at a time, and they wait while rules are evaluated.
"""

from __future__ import annotations

import asyncio
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
# How long a request waits for rules at most: rules may be evaluated all the time. Panels usually refresh every 5 s.
MAX_PAGE_WAIT_SECONDS, MAX_PANEL_WAIT_SECONDS, POLL_SECONDS = 1.0, 5.0, 0.02
PANELS = ("/api/v1/query", "/api/v1/series", "/api/v1/label", "/federate", "/api/history", "/api/explore")


class LoadShedder:
    """Counts and delays the reads of viewers; `is_evaluating` says whether rules are evaluated now."""

    def __init__(self, metrics: own_metrics.Registry, is_evaluating: Callable[[], bool] = lambda: False) -> None:
        self._in_flight = 0
        # Deliberately two: pages do not wait for panels.
        self._panels, self._pages = asyncio.Semaphore(MAX_CONCURRENT), asyncio.Semaphore(MAX_CONCURRENT)
        self._is_evaluating = is_evaluating
        self._refused = metrics.counter("watchkeeper_web_refused_total", "Requests refused under load, by kind")

    def start_request(self, endpoint: Endpoint) -> bool:
        """Count a request and return True; raise 503 at the limit. Return False for requests without a limit."""
        if endpoint.role is not Role.VIEWER or endpoint.changes:
            return False
        is_panel = endpoint.path.startswith(PANELS)
        limit = MAX_PANEL_REQUESTS if is_panel else MAX_PAGE_REQUESTS
        if self._in_flight >= limit:
            self._refused.add(kind="panel" if is_panel else "page")
            raise HTTPException(
                503,
                f"{self._in_flight} requests are in progress, the limit is {limit}. "
                f"Rules and events have priority. Try again in {RETRY_AFTER_SECONDS} s",
                {"Retry-After": str(RETRY_AFTER_SECONDS)},
            )
        self._in_flight += 1
        return True

    def end_request(self) -> None:
        self._in_flight -= 1

    def acquire_slot(self, endpoint: Endpoint) -> AbstractAsyncContextManager[None]:
        """Under load, wait for a slot before handling a counted request."""
        return self._wait_for_slot(endpoint) if self._in_flight > MANY_REQUESTS else nullcontext()

    @asynccontextmanager
    async def _wait_for_slot(self, endpoint: Endpoint) -> AsyncIterator[None]:
        is_panel = endpoint.path.startswith(PANELS)
        async with self._panels if is_panel else self._pages:
            time = asyncio.get_running_loop().time
            deadline = time() + (MAX_PANEL_WAIT_SECONDS if is_panel else MAX_PAGE_WAIT_SECONDS)
            while self._is_evaluating() and time() < deadline:
                await asyncio.sleep(POLL_SECONDS)
            yield


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
