"""What is refused first when more is asked than can be answered: panels, then pages; rules and events go on.

Rules run beside the web server and are never refused; pushes of agents and remote writes have limits of their own in
`fleet_api` and `prometheus_exchange`. Here questions of people and dashboards are bounded: those of panels at the
lower limit, everything else that a viewer may read at the higher one. Long before that, when many wait, few are worked
on at once, and not while rules are evaluated. `gate.Gate` asks before it answers. What a viewer may have worked out at
length by POST is bounded by `Places`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

from starlette.exceptions import HTTPException

from watchkeeper.kit import own_metrics
from watchkeeper.web.auth.auth import Role
from watchkeeper.web.endpoint import Endpoint

# Two dozen dashboards of twenty panels that refresh at the same moment; a browser asks again after a refusal.
MAX_PANEL_REQUESTS, MAX_PAGE_REQUESTS = 500, 1000
RETRY_AFTER_SECONDS = 5
# With more questions than this in flight, only so many of each kind are worked on at once: one interpreter answers no
# faster for having a hundred begun, and rules would have a hundredth of it.
MANY_REQUESTS, MAX_CONCURRENT = 32, 3
# A question waits for rules at most so long, one of a panel for as long as their usual interval; they may be at work
# all the time.
MAX_PAGE_WAIT_SECONDS, MAX_PANEL_WAIT_SECONDS, POLL_SECONDS = 1.0, 5.0, 0.02
NO_WAIT = nullcontext()
PANELS = ("/api/v1/query", "/api/v1/series", "/api/v1/label", "/federate", "/api/history", "/api/explore")


class LoadShedder:
    """`rules_are_at_work` is asked while many questions wait."""

    def __init__(self, metrics: own_metrics.Registry, is_evaluating: Callable[[], bool] = lambda: False) -> None:
        self._in_flight = 0
        # People do not wait behind dashboards.
        self._panels, self._pages = asyncio.Semaphore(MAX_CONCURRENT), asyncio.Semaphore(MAX_CONCURRENT)
        self._is_evaluating = is_evaluating
        self._refused = metrics.counter("watchkeeper_web_refused_total", "Questions refused under load, by kind")

    def start_request(self, endpoint: Endpoint) -> bool:
        """Count a question; 503 when there are too many of its kind. False for what is never refused here."""
        if endpoint.role is not Role.VIEWER or endpoint.changes:
            return False
        is_panel = _is_panel(endpoint)
        limit = MAX_PANEL_REQUESTS if is_panel else MAX_PAGE_REQUESTS
        if self._in_flight >= limit:
            self._refused.add(kind="panel" if is_panel else "page")
            raise HTTPException(
                503,
                f"{self._in_flight} questions wait for an answer, the limit is {limit}. Rules and events go first",
                {"Retry-After": str(RETRY_AFTER_SECONDS)},
            )
        self._in_flight += 1
        return True

    def end_request(self) -> None:
        self._in_flight -= 1

    def acquire_slot(self, endpoint: Endpoint) -> AbstractAsyncContextManager[None]:
        """Wait until a question that was counted may be worked on."""
        return self._wait_for_slot(endpoint) if self._in_flight > MANY_REQUESTS else NO_WAIT

    @asynccontextmanager
    async def _wait_for_slot(self, endpoint: Endpoint) -> AsyncIterator[None]:
        is_panel = _is_panel(endpoint)
        async with self._panels if is_panel else self._pages:
            max_wait_seconds = MAX_PANEL_WAIT_SECONDS if is_panel else MAX_PAGE_WAIT_SECONDS
            deadline = asyncio.get_running_loop().time() + max_wait_seconds
            while self._is_evaluating() and asyncio.get_running_loop().time() < deadline:
                await asyncio.sleep(POLL_SECONDS)
            yield


class ConcurrencyLimit:
    """Room for a few who want long work done one after the other; 429 for one more, before its body is read."""

    def __init__(self, subject: str, limit: int = 4) -> None:
        self._subject, self._limit, self._in_use = subject, limit, 0

    def __enter__(self) -> None:
        if self._in_use >= self._limit:
            raise HTTPException(
                429,
                f"{self._in_use} {self._subject} are made or wait, the limit is {self._limit}. Try again later",
                {"Retry-After": str(RETRY_AFTER_SECONDS)},
            )
        self._in_use += 1

    def __exit__(self, *_: object) -> None:
        self._in_use -= 1


def _is_panel(endpoint: Endpoint) -> bool:
    return endpoint.path.startswith(PANELS)
