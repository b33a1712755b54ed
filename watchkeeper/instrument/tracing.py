"""Traces requests: W3C's `traceparent`, and spans of OpenTelemetry if its packages are installed.

`serving_request.Request` starts one span per request and, at its end, one span for each phase. Without OpenTelemetry,
only the caller's trace id is kept, for the exemplar.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from watchkeeper.instrument import optional

# 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01     (W3C Trace Context, 2.2.2)
TRACEPARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})(?P<trace>[0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?"
)
HEADERS = ("traceparent", "tracestate")
Carrier = Mapping[str, str]


def parse_trace_id(carrier: Carrier) -> str | None:
    match = TRACEPARENT.fullmatch(carrier.get("traceparent", "").strip())
    return None if match is None else match["trace"]


def read_carrier(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    decoded = ((name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in headers)
    return {name: value for name, value in decoded if name in HEADERS}


class Spans:
    """OpenTelemetry if it is installed; without it, each call does nothing."""

    def __init__(self) -> None:
        self._trace = optional.find_module("opentelemetry.trace")
        self._context = optional.find_module("opentelemetry.context")
        self._propagate = optional.find_module("opentelemetry.propagate")

    def start(self, name: str, carrier: Carrier) -> Any | None:
        if self._trace is None or self._propagate is None:
            return None
        # Deliberately any error: a broken tracer must not fail a request.
        with suppress(Exception):
            parent = self._propagate.extract(dict(carrier))
            tracer = self._trace.get_tracer("watchkeeper.instrument")
            span = tracer.start_span(name, context=parent, kind=self._trace.SpanKind.SERVER)
            # Without an SDK, or if the caller's trace is not sampled, the span is not recorded.
            return span if span.is_recording() else None
        return None

    def trace_id(self, span: Any | None, carrier: Carrier) -> str | None:
        if span is not None:
            return f"{span.get_span_context().trace_id:032x}"
        return parse_trace_id(carrier)

    def attach(self, span: Any | None) -> Any | None:
        """Make the span the parent of spans that the program starts, until `detach`."""
        if span is None or self._context is None or self._trace is None:
            return None
        return self._context.attach(self._trace.set_span_in_context(span))

    def detach(self, token: Any | None) -> None:
        if token is not None and self._context is not None:
            self._context.detach(token)

    def end(
        self,
        span: Any | None,
        phases: Iterable[tuple[str, float, float]],
        *,
        attributes: Mapping[str, str | int | None],
        error: str,
    ) -> None:
        """End a span; phases are in seconds before now, because the request's clock need not be the wall clock."""
        if span is None or self._trace is None:
            return
        with suppress(Exception):
            now = time.time_ns()
            context = self._trace.set_span_in_context(span)
            tracer = self._trace.get_tracer("watchkeeper.instrument")
            for name, since, until in phases:
                child = tracer.start_span(name, context=context, start_time=now - int(since * 1e9))
                child.end(end_time=now - int(until * 1e9))
            for name, value in attributes.items():
                if value is not None:
                    span.set_attribute(name, value)
            if error:
                span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, error))
            span.end(end_time=now)
