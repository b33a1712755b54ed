"""InferenceMonitor: latency, first token, time per token, queue, tokens and errors of a serving program, by model.

    monitor = InferenceMonitor("llama-7b", "3", Exports(port=9600))
    app = monitor.asgi(app)                    # any ASGI application: FastAPI, Starlette, …
    @monitor.measured                          # or any function, coroutine or generator

`asgi` has the middleware. The histogram's buckets carry the trace id of their newest request as exemplar, so that a
slow bucket leads to a trace.
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
from watchkeeper.instrument.metric_families import Counters, Histograms
from watchkeeper.instrument.page import Exemplar, MetricsPage, braces
from watchkeeper.instrument.serving_request import ANSWERED, CLIENT_GONE, FAILED, Request, current_request, working_on

__all__ = ["InferenceMonitor", "current_request"]

# The guides' bounds up to ten seconds, and what long answers of language models take between and beyond.
DURATION_BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 120.0)
# vLLM's own, so that both can be added up.
FIRST_TOKEN_BOUNDS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
PER_TOKEN_BOUNDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)


class InferenceMonitor:
    """One served model; without `exports` the environment decides what leaves the program."""

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
        names = ("model_name", "model_version")
        self._durations = Histograms(
            "inference_request_duration_seconds", "End-to-end inference latency", names, bounds=duration_bounds
        )
        self._first_tokens = Histograms(
            "inference_time_to_first_token_seconds", "Time until the first piece of a streamed answer", names,
            bounds=FIRST_TOKEN_BOUNDS,
        )  # fmt: skip
        self._per_token = Histograms(
            "inference_time_per_output_token_seconds", "Time between the tokens of a streamed answer", names,
            bounds=PER_TOKEN_BOUNDS,
        )  # fmt: skip
        self._requests = Counters("inference_requests_total", "Requests by status code", (*names, "code"))
        self._prompt = Counters("inference_prompt_tokens_total", "Tokens of prompts", names)
        self._generated = Counters("inference_generated_tokens_total", "Tokens of answers", names)
        self._lock = threading.Lock()
        self._running = 0
        # None until the program tells about a queue: no queue that is known is not an empty one.
        self._waiting: int | None = None
        place = placement.from_environment()
        # A server may run as several processes on several nodes, each with a page of its own.
        names_it = {"model_name": model_name, "instance": f"{place.node}:{os.getpid()}"}
        source = exporting.MetricsSource(f"{model_name[:60]}_{os.getpid()}", names_it, self.write, place.node)
        self.exporter = exporting.Exporter(exports or exporting.from_environment(), source)

    def asgi(self, app: Any, *, paths: Sequence[str] = (), metrics_path: str | None = None) -> Any:
        """The same application, measured; see `asgi.InferenceMiddleware`."""
        return InferenceMiddleware(app, self, paths=paths, metrics_path=metrics_path)

    def begin(self, carrier: tracing.Carrier | None = None) -> Request:
        """A request has come; whoever calls this calls `end` of what it gets."""
        with self._lock:
            self._running += 1
        return Request(self, carrier or {})

    def measured(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Decorator for a function, a coroutine, or a generator of either kind, which counts as a streamed answer."""
        if inspect.isasyncgenfunction(call):
            return _stream_later(self, call)
        if inspect.isgeneratorfunction(call):
            return _stream(self, call)
        if inspect.iscoroutinefunction(call):

            @wraps(call)
            async def later(*given: Any, **named: Any) -> Any:
                with self.request():
                    return await call(*given, **named)

            return later

        @wraps(call)
        def now(*given: Any, **named: Any) -> Any:
            with self.request():
                return call(*given, **named)

        return now

    @contextlib.contextmanager
    def request(self, carrier: tracing.Carrier | None = None) -> Iterator[Request]:
        """One request as a `with` block; an error inside counts as 500 and goes on to the program."""
        made = self.begin(carrier)
        code = FAILED
        try:
            with working_on(made):
                yield made
            code = ANSWERED
        except (GeneratorExit, CancelledError):
            code = CLIENT_GONE
            raise
        finally:
            made.end(code)

    def write(self, page: MetricsPage) -> None:
        for histogram in (self._durations, self._first_tokens, self._per_token):
            histogram.write(page)
        for counters in (self._requests, self._prompt, self._generated):
            counters.write(page)
        labels = braces({"model_name": self.model[0], "model_version": self.model[1]})
        page.begin("inference_requests_running", "gauge", "Requests that are being answered")
        page.add(labels, self._running - (self._waiting or 0))
        page.single(
            "inference_requests_waiting", "gauge", "Requests that wait in the program's queue",
            labels=labels, value=self._waiting,
        )  # fmt: skip

    def close(self) -> None:
        self.exporter.close()

    def queue(self, change: int) -> None:
        with self._lock:
            self._waiting = (self._waiting or 0) + change

    def count(self, request: Request, code: int) -> None:
        """A request is over: put it into the sums."""
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
            self._prompt.add(self.model, request.prompt_tokens)
        if request.generated_tokens is not None:
            self._generated.add(self.model, request.generated_tokens)


def _stream(monitor: InferenceMonitor, call: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    @wraps(call)
    def streamed(*given: Any, **named: Any) -> Iterator[Any]:
        with monitor.request() as request:
            for piece in call(*given, **named):
                request.piece()
                yield piece

    return streamed


def _stream_later(
    monitor: InferenceMonitor, call: Callable[..., AsyncIterator[Any]]
) -> Callable[..., AsyncIterator[Any]]:
    @wraps(call)
    async def streamed(*given: Any, **named: Any) -> AsyncIterator[Any]:
        with monitor.request() as request:
            async for piece in call(*given, **named):
                request.piece()
                yield piece

    return streamed
