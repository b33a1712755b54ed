"""The application while a hub starts: it answers queries as soon as the samples are loaded.

Most of the startup time loads modules and stages that queries do not need. `serving` builds them in steps between which
it calls `yield_to_requests`, and then calls `set_application`; other requests wait until then.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from starlette.types import Receive, Scope, Send

from watchkeeper.web.endpoint import endpoints_of, error_response
from watchkeeper.web.gate import Gate
from watchkeeper.web.prometheus import prometheus_api

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from watchkeeper.hub.runtime import Runtime
    from watchkeeper.hub.samples import Queries
    from watchkeeper.web.auth.auth_reload import AuthFiles

# Iterations of the event loop in which a waiting connection is accepted, and its request is read and parsed.
YIELD_ROUNDS = 6
QUERY_PATHS = ("/api/v1/query", "/api/v1/query_range")
# The limit for all waiting: steady queries must not delay the startup of monitoring.
MAX_YIELD_SECONDS = 1.0


class StartupApp:
    """An ASGI application that answers queries, and later delegates to the full application."""

    def __init__(self, runtime: Runtime, queries: Queries, *, auth_files: AuthFiles) -> None:
        table = [row for row in endpoints_of(prometheus_api.PrometheusApi(runtime, queries)) if row.path in QUERY_PATHS]
        self._query_app = Gate(runtime, auth_files).build_application(table)
        self._paths = frozenset(row.path for row in table)
        self._full_app: Starlette | None = None
        self._is_app_set, self._is_started = asyncio.Event(), asyncio.Event()
        self._requests_in_progress = 0
        self._is_idle = asyncio.Event()
        self._yield_until = time.monotonic() + MAX_YIELD_SECONDS

    def set_application(self, full_app: Starlette) -> None:
        """Delegate to this application from now on."""
        self._full_app = full_app
        self._is_app_set.set()

    def fail_startup(self) -> None:
        """Answer all waiting requests with an error, because the full application cannot be built."""
        self._is_started.set()

    async def yield_to_requests(self) -> None:
        """Let queries run before the next step of the startup, for a limited time."""
        for _ in range(YIELD_ROUNDS):
            await asyncio.sleep(0)
        remaining_seconds = self._yield_until - time.monotonic()
        if self._requests_in_progress and remaining_seconds > 0:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_idle.wait(), remaining_seconds)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._run_lifespan(receive, send)
        elif self._is_started.is_set() or scope["path"] not in self._paths:
            await self._is_started.wait()
            failure = error_response(scope["path"], status=503, problem="the hub failed to start; see its log")
            await (self._full_app or failure)(scope, receive, send)
        else:
            await self._serve_query(scope, receive, send)

    async def _serve_query(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._requests_in_progress += 1
        self._is_idle.clear()
        try:
            await self._query_app(scope, receive, send)
        finally:
            self._requests_in_progress -= 1
            if not self._requests_in_progress:
                self._is_idle.set()

    async def _run_lifespan(self, receive: Receive, send: Send) -> None:
        """Handle ASGI startup and shutdown; the lifespan of the full application starts when it is set."""
        await receive()
        await send({"type": "lifespan.startup.complete"})
        shutdown, app_set = asyncio.ensure_future(receive()), asyncio.ensure_future(self._is_app_set.wait())
        try:
            await asyncio.wait({shutdown, app_set}, return_when=asyncio.FIRST_COMPLETED)
            if self._full_app is not None:
                async with self._full_app.router.lifespan_context(self._full_app):
                    self._is_started.set()
                    await shutdown
        finally:
            shutdown.cancel()
            app_set.cancel()
        await send({"type": "lifespan.shutdown.complete"})
