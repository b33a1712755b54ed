"""ASGI middleware that measures each request from its arrival to the last byte of its response.

    app.add_middleware(InferenceMiddleware, monitor=monitor)

It changes no message. The application gets its request from `current_request()`, to report queue time and tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

from watchkeeper.instrument import tracing
from watchkeeper.instrument.page import MetricsPage
from watchkeeper.instrument.serving_request import (
    CLIENT_CLOSED,
    OK,
    SERVER_ERROR,
    Request,
    ServingMonitor,
    use_as_current,
)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class InferenceMiddleware:
    """`paths` are the prefixes of measured paths (empty: all paths); `metrics_path` serves the metrics page."""

    def __init__(
        self, app: App, monitor: ServingMonitor, *, paths: Sequence[str] = (), metrics_path: str | None = None
    ) -> None:
        self._app, self._monitor = app, monitor
        self._paths, self._metrics_path = tuple(paths), metrics_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = str(scope.get("path", ""))
        if scope["type"] == "http" and path == self._metrics_path:
            await self._send_page(scope, send)
        elif scope["type"] == "http" and (not self._paths or path.startswith(self._paths)):
            await self._measure(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _measure(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = self._monitor.begin(tracing.read_carrier(scope.get("headers", ())))
        recorder = _ResponseRecorder(request, send)
        spans = self._monitor.spans
        token = spans.attach(request.span)
        code = SERVER_ERROR
        try:
            with use_as_current(request):
                await self._app(scope, receive, recorder.send)
            code = recorder.status
        except asyncio.CancelledError:
            code = CLIENT_CLOSED
            raise
        finally:
            spans.detach(token)
            request.end(code)

    async def _send_page(self, scope: Scope, send: Send) -> None:
        accept_headers = [value for name, value in scope.get("headers", ()) if name.lower() == b"accept"]
        page = MetricsPage(is_openmetrics=any(b"application/openmetrics-text" in value for value in accept_headers))
        self._monitor.write(page)
        headers = [(b"content-type", page.content_type.encode())]
        await send({"type": "http.response.start", "status": OK, "headers": headers})
        await send({"type": "http.response.body", "body": page.encode()})


class _ResponseRecorder:
    """Records the messages that the application sends, and passes them on unchanged."""

    def __init__(self, request: Request, send: Send) -> None:
        self._request, self._send = request, send
        # An application that ends without a response has failed.
        self.status = SERVER_ERROR
        self._is_stream = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = int(message["status"])
        elif message["type"] == "http.response.body" and message.get("body"):
            # A response in one piece has no time to first token.
            self._is_stream = self._is_stream or bool(message.get("more_body"))
            if self._is_stream:
                self._request.record_piece()
        await self._send(message)
