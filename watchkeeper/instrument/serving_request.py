"""Measures one request of a serving program, from its arrival to the end of its response.

`inference.InferenceMonitor` starts requests and counts them when they end; `asgi` and the program report their pieces.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Protocol

from watchkeeper.instrument import tracing
from watchkeeper.instrument.page import MetricsPage

# nginx' status code for a client that disconnected, which is not an error of the server.
CLIENT_CLOSED, SERVER_ERROR, OK = 499, 500, 200
_current: ContextVar[Request | None] = ContextVar("watchkeeper_request", default=None)


class ServingMonitor(Protocol):
    """The part of `inference.InferenceMonitor` that requests and `asgi` use."""

    model: tuple[str, str]
    clock: Callable[[], float]
    spans: tracing.Spans

    def add_queued(self, change: int) -> None: ...

    def record_request(self, request: Request, code: int) -> None: ...

    def begin(self, carrier: tracing.Carrier | None = None) -> Request: ...

    def write(self, page: MetricsPage) -> None: ...


class Request:
    """One request: queued, then prefilled until its first piece, then decoded until its last piece."""

    def __init__(self, monitor: ServingMonitor, carrier: tracing.Carrier) -> None:
        self._monitor = monitor
        self._started_at = monitor.clock()
        self._queued_between: tuple[float, float] | None = None
        self._first_piece_at: float | None = None
        self._last_piece_at = self._started_at
        self._pieces = 0
        self._has_ended = False
        self.prompt_tokens: int | None = None
        self.generated_tokens: int | None = None
        self.span = monitor.spans.start(f"inference {monitor.model[0]}", carrier)
        self.trace_id = monitor.spans.trace_id(self.span, carrier)

    @contextlib.contextmanager
    def queueing(self) -> Iterator[None]:
        """Measure the wait in the program's own queue or for its batch, as a `with` block."""
        queued_at = self._monitor.clock()
        self._monitor.add_queued(1)
        try:
            yield
        finally:
            self._monitor.add_queued(-1)
            self._queued_between = (queued_at, self._monitor.clock())

    def record_piece(self) -> None:
        """Record that a piece of a streamed response was sent; the first piece ends the prefill."""
        self._last_piece_at = self._monitor.clock()
        self._pieces += 1
        if self._first_piece_at is None:
            self._first_piece_at = self._last_piece_at

    def record_tokens(self, *, prompt_tokens: int | None = None, generated_tokens: int | None = None) -> None:
        """Set the model's token counts; without them, each piece of a stream counts as one generated token."""
        self.prompt_tokens = self.prompt_tokens if prompt_tokens is None else prompt_tokens
        self.generated_tokens = self.generated_tokens if generated_tokens is None else generated_tokens

    # The names until release 0.1; kept until release 0.3.
    piece = record_piece
    used = record_tokens

    def end(self, code: int) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        ended_at = self._monitor.clock()
        self.seconds = ended_at - self._started_at
        if self.generated_tokens is None and self._pieces:
            self.generated_tokens = self._pieces
        self._monitor.record_request(self, code)
        attributes: dict[str, str | int | None] = {
            "gen_ai.request.model": self._monitor.model[0],
            "http.response.status_code": code,
            "gen_ai.usage.input_tokens": self.prompt_tokens,
            "gen_ai.usage.output_tokens": self.generated_tokens,
        }
        error = str(code) if code >= SERVER_ERROR else ""
        self._monitor.spans.end(self.span, self._list_phases(ended_at), attributes=attributes, error=error)

    @property
    def first_token_seconds(self) -> float | None:
        return None if self._first_piece_at is None else self._first_piece_at - self._started_at

    @property
    def seconds_per_token(self) -> float | None:
        tokens = self.generated_tokens or self._pieces
        if self._first_piece_at is None or tokens < 2:
            return None
        return (self._last_piece_at - self._first_piece_at) / (tokens - 1)

    def _list_phases(self, ended_at: float) -> Iterator[tuple[str, float, float]]:
        """The name of each phase, and how long before the end it started and ended."""
        started_at = self._started_at
        if self._queued_between is not None:
            queued_at, started_at = self._queued_between
            yield "queue", ended_at - queued_at, ended_at - started_at
        if self._first_piece_at is not None:
            yield "prefill", ended_at - started_at, ended_at - self._first_piece_at
            yield "decode", ended_at - self._first_piece_at, ended_at - self._last_piece_at


def current_request() -> Request | None:
    return _current.get()


@contextlib.contextmanager
def use_as_current(request: Request) -> Iterator[None]:
    token = _current.set(request)
    try:
        yield
    finally:
        # A generator may be closed in another context than it was started in.
        with contextlib.suppress(ValueError):
            _current.reset(token)
