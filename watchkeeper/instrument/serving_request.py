"""One request of a serving program, from its arrival to the end of its answer.

`inference.InferenceMonitor` begins requests and counts them when they end; `asgi` and the program report their pieces.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Protocol

from watchkeeper.instrument import tracing

# nginx' code for a client that went away, which is no error of the server.
CLIENT_GONE, FAILED, ANSWERED = 499, 500, 200
_current: ContextVar[Request | None] = ContextVar("watchkeeper_request", default=None)


class RequestMonitor(Protocol):
    """What a request reports to."""

    model: tuple[str, str]
    clock: Callable[[], float]
    spans: tracing.Spans

    def queue(self, change: int) -> None: ...

    def count(self, request: Request, code: int) -> None: ...


class Request:
    """One request on its way: queued, then prefilled until its first piece, then decoded until its last."""

    def __init__(self, monitor: RequestMonitor, carrier: tracing.Carrier) -> None:
        self._monitor = monitor
        self._began = monitor.clock()
        self._queued: tuple[float, float] | None = None
        self._first: float | None = None
        self._last = self._began
        self._pieces = 0
        self._is_over = False
        self.prompt_tokens: int | None = None
        self.generated_tokens: int | None = None
        self.span = monitor.spans.begin(f"inference {monitor.model[0]}", carrier)
        self.trace_id = monitor.spans.trace_id(self.span, carrier)

    @contextlib.contextmanager
    def queueing(self) -> Iterator[None]:
        """Around the wait for a free place in the program's own queue or batch."""
        since = self._monitor.clock()
        self._monitor.queue(1)
        try:
            yield
        finally:
            self._monitor.queue(-1)
            self._queued = (since, self._monitor.clock())

    def piece(self) -> None:
        """A piece of a streamed answer leaves; the first one ends the prefill."""
        self._last = self._monitor.clock()
        self._pieces += 1
        if self._first is None:
            self._first = self._last

    def used(self, *, prompt_tokens: int | None = None, generated_tokens: int | None = None) -> None:
        """Tokens as the model counts them; without it each piece of a stream counts as one token of the answer."""
        self.prompt_tokens = self.prompt_tokens if prompt_tokens is None else prompt_tokens
        self.generated_tokens = self.generated_tokens if generated_tokens is None else generated_tokens

    def end(self, code: int) -> None:
        if self._is_over:
            return
        self._is_over = True
        ended = self._monitor.clock()
        self.seconds = ended - self._began
        if self.generated_tokens is None and self._pieces:
            self.generated_tokens = self._pieces
        self._monitor.count(self, code)
        told = {"gen_ai.usage.input_tokens": self.prompt_tokens, "gen_ai.usage.output_tokens": self.generated_tokens}
        attributes: dict[str, str | int] = {name: number for name, number in told.items() if number is not None}
        attributes |= {"gen_ai.request.model": self._monitor.model[0], "http.response.status_code": code}
        self._monitor.spans.end(
            self.span, self._phases(ended), attributes=attributes, error=str(code) if code >= FAILED else ""
        )

    @property
    def first_token_seconds(self) -> float | None:
        return None if self._first is None else self._first - self._began

    @property
    def seconds_per_token(self) -> float | None:
        tokens = self.generated_tokens or self._pieces
        return None if self._first is None or tokens < 2 else (self._last - self._first) / (tokens - 1)

    def _phases(self, ended: float) -> Iterator[tuple[str, float, float]]:
        """Name, and how long before the end each phase began and ended."""
        begun = self._began
        if self._queued is not None:
            since, begun = self._queued
            yield "queue", ended - since, ended - begun
        if self._first is not None:
            yield "prefill", ended - begun, ended - self._first
            yield "decode", ended - self._first, ended - self._last


def current_request() -> Request | None:
    """The request that this task or thread works on."""
    return _current.get()


@contextlib.contextmanager
def working_on(request: Request) -> Iterator[None]:
    token = _current.set(request)
    try:
        yield
    finally:
        # A generator may be closed from another context than it began in.
        with contextlib.suppress(ValueError):
            _current.reset(token)
