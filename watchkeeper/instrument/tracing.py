"""Traces of requests: W3C's `traceparent`, and spans of OpenTelemetry where its packages are installed.

`inference.Request` asks `Spans` for one span a request and, at its end, for one span for each phase. Without
OpenTelemetry only the caller's trace id is kept, for the exemplar.
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


def trace_id_of(carrier: Carrier) -> str | None:
    """The caller's trace, or None where it has none or what it sent is not one."""
    found = TRACEPARENT.fullmatch(carrier.get("traceparent", "").strip())
    return None if found is None else found["trace"]


def carrier_of(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """What ASGI's headers say about a trace."""
    named = ((name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in headers)
    return {name: value for name, value in named if name in HEADERS}


class Spans:
    """OpenTelemetry as far as it is there; each call is a no-op without it."""

    def __init__(self) -> None:
        self._trace = optional.find("opentelemetry.trace")
        self._context = optional.find("opentelemetry.context")
        self._propagate = optional.find("opentelemetry.propagate")

    def begin(self, name: str, carrier: Carrier) -> Any | None:
        if self._trace is None or self._propagate is None:
            return None
        # Deliberately any error: a tracer that breaks must not fail a request.
        with suppress(Exception):
            parent = self._propagate.extract(dict(carrier))
            tracer = self._trace.get_tracer("watchkeeper.instrument")
            span = tracer.start_span(name, context=parent, kind=self._trace.SpanKind.SERVER)
            # Without an SDK, or where the caller's trace is not sampled, nobody would ever see it.
            return span if span.is_recording() else None
        return None

    def trace_id(self, span: Any | None, carrier: Carrier) -> str | None:
        """The span's where there is one, else the caller's."""
        if span is not None:
            return f"{span.get_span_context().trace_id:032x}"
        return trace_id_of(carrier)

    def attach(self, span: Any | None) -> Any | None:
        """Make it the parent of spans that the program starts itself, until `detach`."""
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
        attributes: Mapping[str, str | int],
        error: str,
    ) -> None:
        """Phases as seconds ago: the request's own clock need not be the wall clock."""
        if span is None or self._trace is None:
            return
        with suppress(Exception):
            now = time.time_ns()
            inside = self._trace.set_span_in_context(span)
            tracer = self._trace.get_tracer("watchkeeper.instrument")
            for name, since, until in phases:
                part = tracer.start_span(name, context=inside, start_time=now - int(since * 1e9))
                part.end(end_time=now - int(until * 1e9))
            for name, value in attributes.items():
                span.set_attribute(name, value)
            if error:
                span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, error))
            span.end(end_time=now)
