"""InferenceMonitor: exports latency, time to first token, queue, tokens and errors of a serving program, by model.

    monitor = InferenceMonitor("llama-7b", "3", Exports(port=9600))
    app = monitor.asgi(app)                    # any ASGI application: FastAPI, Starlette, …
    @monitor.measured                          # or any function, coroutine or generator

`asgi` has the middleware. Each histogram bucket has the trace id of its newest request as exemplar, so that a slow
bucket leads to a trace.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import threading
from asyncio import CancelledError
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import wraps
from time import perf_counter, time
from typing import Any

from watchkeeper.instrument import exports as exporting
from watchkeeper.instrument import placement, tracing
from watchkeeper.instrument.asgi import InferenceMiddleware
from watchkeeper.instrument.page import Counters, Exemplar, Histograms, MetricsPage, format_labels
from watchkeeper.instrument.serving_request import (
    CLIENT_CLOSED,
    OK,
    SERVER_ERROR,
    Request,
    current_request,
    use_as_current,
)

__all__ = ["InferenceMonitor", "current_request"]

# The guides' bounds up to ten seconds, with more for long responses of language models.
DURATION_BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 120.0)
# vLLM's bounds, so that both can be aggregated.
FIRST_TOKEN_BOUNDS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
PER_TOKEN_BOUNDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)


class InferenceMonitor:
    """Measures one served model; without `exports`, environment variables set where metrics are exported."""

    def __init__(
        self,
        model_name: str,
        model_version: str = "",
        exports: exporting.Exports | None = None,
        *,
        duration_bounds: Sequence[float] = DURATION_BOUNDS,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.model = (model_name, model_version)
        self.clock = clock
        self.spans = tracing.Spans()
        label_names = ("model_name", "model_version")
        self._durations = Histograms(
            "inference_request_duration_seconds", "End-to-end inference latency", label_names, bounds=duration_bounds
        )
        self._first_tokens = Histograms(
            "inference_time_to_first_token_seconds", "Time to the first token of a streamed response", label_names,
            bounds=FIRST_TOKEN_BOUNDS,
        )  # fmt: skip
        self._per_token = Histograms(
            "inference_time_per_output_token_seconds", "Time between the tokens of a streamed response", label_names,
            bounds=PER_TOKEN_BOUNDS,
        )  # fmt: skip
        self._requests = Counters("inference_requests_total", "Requests by status code", (*label_names, "code"))
        self._prompt_tokens = Counters("inference_prompt_tokens_total", "Prompt tokens", label_names)
        self._generated_tokens = Counters("inference_generated_tokens_total", "Generated tokens", label_names)
        self._lock = threading.Lock()
        self._running = 0
        # None until the program reports a queue: an unknown queue is not an empty queue.
        self._queued: int | None = None
        place = placement.from_environment()
        # A server may run as several processes on several nodes, each with its own page.
        group_labels = {"model_name": model_name, "instance": f"{place.node}:{os.getpid()}"}
        source = exporting.MetricsSource(f"{model_name[:60]}_{os.getpid()}", group_labels, self.write, place.node)
        self.exporter = exporting.Exporter(exports or exporting.from_environment(), source)

    def asgi(self, app: Any, *, paths: Sequence[str] = (), metrics_path: str | None = None) -> Any:
        """Wrap an ASGI application; see `asgi.InferenceMiddleware`."""
        return InferenceMiddleware(app, self, paths=paths, metrics_path=metrics_path)

    def begin(self, carrier: tracing.Carrier | None = None) -> Request:
        """Start a request; the caller must call its `end`."""
        with self._lock:
            self._running += 1
        return Request(self, carrier or {})

    def measured(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Decorator for a function, coroutine or generator; a generator counts as a streamed response."""
        if inspect.isasyncgenfunction(call):
            return _stream_async(self, call)
        if inspect.isgeneratorfunction(call):
            return _stream(self, call)
        if inspect.iscoroutinefunction(call):

            @wraps(call)
            async def measure_async(*arguments: Any, **options: Any) -> Any:
                with self.request():
                    return await call(*arguments, **options)

            return measure_async

        @wraps(call)
        def measure(*arguments: Any, **options: Any) -> Any:
            with self.request():
                return call(*arguments, **options)

        return measure

    @contextlib.contextmanager
    def request(self, carrier: tracing.Carrier | None = None) -> Iterator[Request]:
        """Measure one request as a `with` block; an exception inside counts as 500 and is raised again."""
        request = self.begin(carrier)
        code = SERVER_ERROR
        try:
            with use_as_current(request):
                yield request
            code = OK
        except (GeneratorExit, CancelledError):
            code = CLIENT_CLOSED
            raise
        finally:
            request.end(code)

    def write(self, page: MetricsPage) -> None:
        for histogram in (self._durations, self._first_tokens, self._per_token):
            histogram.write(page)
        for counters in (self._requests, self._prompt_tokens, self._generated_tokens):
            counters.write(page)
        labels = format_labels({"model_name": self.model[0], "model_version": self.model[1]})
        running = self._running - (self._queued or 0)
        page.add_family("inference_requests_running", "Requests in progress", labels=labels, value=running)
        waiting = "Requests that wait in the program's queue"
        page.add_family("inference_requests_waiting", waiting, labels=labels, value=self._queued)

    def close(self) -> None:
        self.exporter.close()

    def add_queued(self, change: int) -> None:
        with self._lock:
            self._queued = (self._queued or 0) + change

    def record_request(self, request: Request, code: int) -> None:
        with self._lock:
            self._running -= 1
        exemplar_at = time()

        def exemplar(value: float) -> Exemplar | None:
            return None if request.trace_id is None else Exemplar(request.trace_id, value, exemplar_at)

        self._requests.add((*self.model, str(code)))
        seconds = request.seconds
        self._durations.observe(self.model, seconds, exemplar(seconds))
        if request.first_token_seconds is not None:
            self._first_tokens.observe(self.model, request.first_token_seconds, exemplar(request.first_token_seconds))
        if request.seconds_per_token is not None:
            self._per_token.observe(self.model, request.seconds_per_token, exemplar(request.seconds_per_token))
        if request.prompt_tokens is not None:
            self._prompt_tokens.add(self.model, request.prompt_tokens)
        if request.generated_tokens is not None:
            self._generated_tokens.add(self.model, request.generated_tokens)


def _stream(monitor: InferenceMonitor, call: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    @wraps(call)
    def measure_stream(*arguments: Any, **options: Any) -> Iterator[Any]:
        with monitor.request() as request:
            for piece in call(*arguments, **options):
                request.record_piece()
                yield piece

    return measure_stream


def _stream_async(
    monitor: InferenceMonitor, call: Callable[..., AsyncIterator[Any]]
) -> Callable[..., AsyncIterator[Any]]:
    @wraps(call)
    async def measure_stream(*arguments: Any, **options: Any) -> AsyncIterator[Any]:
        with monitor.request() as request:
            async for piece in call(*arguments, **options):
                request.record_piece()
                yield piece

    return measure_stream
