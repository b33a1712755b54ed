"""Exchange samples with other Prometheus servers: `/federate` serves the newest ones, remote write receives them.

`query.remote.remote_write` checks and decodes what a sender writes;
samples too far ahead of the hub's clock are dropped and counted.
"""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from watchkeeper.errors import StoreError, WireError
from watchkeeper.hub.runtime import Runtime
from watchkeeper.hub.samples import Queries
from watchkeeper.kit import clock
from watchkeeper.model.histograms import HistogramSample
from watchkeeper.model.samples import Sample
from watchkeeper.query import engine
from watchkeeper.query.promql import ast, printer
from watchkeeper.query.remote import remote_write
from watchkeeper.store import interfaces
from watchkeeper.web.auth.auth import Role
from watchkeeper.web.endpoint import check_node, post, read_body
from watchkeeper.web.prometheus import federation
from watchkeeper.web.prometheus.prometheus_form import BadParameter, Form, read_matchers
from watchkeeper.web.prometheus.prometheus_params import MATCH, prometheus_get

# Writes that are decoded concurrently; a sender queues the rest.
MAX_CONCURRENT_WRITES = 8
RETRY_AFTER_SECONDS = 2
Matchers = tuple[engine.Matcher, ...]


class SampleExchange:
    def __init__(self, runtime: Runtime, queries: Queries) -> None:
        self._runtime, self._queries = runtime, queries
        self._running_writes = 0
        self._dropped = runtime.metrics.counter(
            "watchkeeper_remote_write_samples_dropped_total",
            "Samples received by remote write that were dropped, by reason",
        )

    @prometheus_get("/federate", MATCH, media_type="text/plain")
    async def federate(self, params: Form) -> Response:
        """Newest samples as a metrics page: text, or protobuf with native histograms if `Accept` prefers it."""
        selectors = [read_matchers("match[]", text) for text in params.all("match[]")]
        if not selectors:
            raise BadParameter("no match[] parameter provided")
        at_ms = clock.to_ms(self._runtime.clock.now())
        samples = await asyncio.to_thread(self._latest_samples, selectors, at_ms)
        page_format = federation.choose_format(params.accept)
        page = await asyncio.to_thread(federation.write_page, samples, page_format)
        return Response(page, media_type=page_format.value)

    def _latest_samples(self, selectors: list[Matchers], at_ms: int) -> list[interfaces.AnySample]:
        """The newest sample of each series; a remote engine returns its value without its time."""
        local = self._queries.engine.local
        samples: dict[object, interfaces.AnySample] = {}
        for selector in selectors:
            if local is not None:
                samples |= {sample.labels: sample for sample in local.latest_samples(selector, at_ms)}
                continue
            expr = printer.to_text(ast.Selector(None, selector))
            result = self._queries.engine.instant(expr, at_ms)
            samples |= {labels: Sample(labels, at_ms, value) for labels, value in result.latest().items()}
            histograms = result.latest_histograms().items()
            samples |= {labels: HistogramSample(labels, at_ms, value) for labels, value in histograms}
        return sorted(samples.values(), key=lambda sample: (sample.labels.name, sample.labels))

    def _append(self, body: bytes, now_ms: int) -> interfaces.Appended:
        """Append a body and sync the WAL, so that acknowledged samples survive a crash; StoreError if that fails."""
        appender = self._queries.engine.appender
        appended = remote_write.append_request(body, appender, now_ms=now_ms)
        appender.sync()
        return appended

    @post("/api/v1/write", role=Role.AGENT, media_type="text/plain")
    async def write(self, request: Request) -> Response:
        """Receive samples by remote write 1.0 (protobuf in a snappy block): 204 if all were stored, 400 with reasons
        and counts if some were dropped (out of order, too old, more than 10 minutes ahead of the hub's clock, invalid
        histograms); 2.0 returns 415, so that the sender falls back to 1.0.

        After a 4xx the sender drops its samples, after a 5xx or 429 it retries.
        """
        # Remote write can hold samples of any node, so a token that is bound to nodes may not send it.
        check_node(request.state.caller, None)
        unsupported = remote_write.unsupported_reason(
            request.headers.get("content-type"), request.headers.get("content-encoding")
        )
        if unsupported is not None:
            return PlainTextResponse(unsupported, status_code=415)
        if self._running_writes >= MAX_CONCURRENT_WRITES:
            headers = {"Retry-After": str(RETRY_AFTER_SECONDS)}
            problem = f"{self._running_writes} remote writes are running, the limit is {MAX_CONCURRENT_WRITES}; retry"
            return PlainTextResponse(problem, status_code=429, headers=headers)
        self._running_writes += 1
        try:
            body = await read_body(request, remote_write.WriteLimits().max_bytes)
            now_ms = clock.to_ms(self._runtime.clock.now())
            appended = await asyncio.to_thread(self._append, body, now_ms)
        except WireError as error:
            return PlainTextResponse(str(error), status_code=400)
        except StoreError as error:
            return PlainTextResponse(str(error), status_code=503)
        finally:
            self._running_writes -= 1
        for reason, count in appended.dropped.items():
            self._dropped.add(count, reason=reason)
        status, problem = remote_write.response_for(appended)
        return PlainTextResponse(problem, status_code=status) if problem else Response(status_code=status)
