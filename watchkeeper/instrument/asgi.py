"""The middleware of an ASGI application: each request measured from its arrival to the last byte of its answer.

    app.add_middleware(InferenceMiddleware, monitor=monitor)

It changes no message. The application finds its request with `current_request()`, to tell about its queue and tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, Protocol

from watchkeeper.instrument import tracing
from watchkeeper.instrument.page import MetricsPage
from watchkeeper.instrument.serving_request import ANSWERED, CLIENT_GONE, FAILED, Request, working_on

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class ServingMonitor(Protocol):
    """What the middleware needs of an `inference.InferenceMonitor`."""

    spans: tracing.Spans

    def begin(self, carrier: tracing.Carrier | None = None) -> Request: ...

    def write(self, page: MetricsPage) -> None: ...


class InferenceMiddleware:
    """`paths` are the beginnings of paths that count, or all without any; `metrics_path` answers with the page."""

    def __init__(
        self, app: App, monitor: ServingMonitor, *, paths: Sequence[str] = (), metrics_path: str | None = None
    ) -> None:
        self._app, self._monitor = app, monitor
        self._paths, self._metrics_path = tuple(paths), metrics_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = str(scope.get("path", ""))
        if scope["type"] == "http" and path == self._metrics_path:
            await self._answer_page(scope, send)
        elif scope["type"] == "http" and (not self._paths or path.startswith(self._paths)):
            await self._measure(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _measure(self, scope: Scope, receive: Receive, send: Send) -> None:
        carrier = tracing.carrier_of(scope.get("headers", ()))
        request = self._monitor.begin(carrier)
        answer = _ResponseRecorder(request, send)
        spans = self._monitor.spans
        token = spans.attach(request.span)
        code = FAILED
        try:
            with working_on(request):
                await self._app(scope, receive, answer.send)
            code = answer.status
        except asyncio.CancelledError:
            code = CLIENT_GONE
            raise
        finally:
            spans.detach(token)
            request.end(code)

    async def _answer_page(self, scope: Scope, send: Send) -> None:
        accepts = [value for name, value in scope.get("headers", ()) if name.lower() == b"accept"]
        page = MetricsPage(is_openmetrics=any(b"application/openmetrics-text" in value for value in accepts))
        self._monitor.write(page)
        headers = [(b"content-type", page.content_type.encode())]
        await send({"type": "http.response.start", "status": ANSWERED, "headers": headers})
        await send({"type": "http.response.body", "body": page.content()})


class _ResponseRecorder:
    """What the application sends, passed on as it is."""

    def __init__(self, request: Request, send: Send) -> None:
        self._request, self._send = request, send
        # An application that ends without an answer has failed.
        self.status = FAILED
        self._is_stream = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = int(message["status"])
        elif message["type"] == "http.response.body" and message.get("body"):
            # An answer in one piece has no first token to wait for.
            self._is_stream = self._is_stream or bool(message.get("more_body"))
            if self._is_stream:
                self._request.piece()
        await self._send(message)
