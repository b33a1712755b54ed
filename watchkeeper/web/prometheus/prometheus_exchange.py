"""Samples in and out in Prometheus' own ways: `/federate` hands the newest ones on, remote write takes them in.

`prometheus_api` puts both into the table of endpoints. What a sender writes is checked and decoded by
`query.remote.remote_write`; what is too far ahead of the hub's clock is counted and left out.
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
from watchkeeper.web.endpoint import check_node, read_body
from watchkeeper.web.prometheus import federation
from watchkeeper.web.prometheus.prometheus_form import BadParameter, Form, matchers

# Writes decoded at the same time; a sender keeps the rest in its queue.
WRITES_IN_FLIGHT = 8
RETRY_AFTER_SECONDS = 2
Matchers = tuple[engine.Matcher, ...]


class SampleExchange:
    def __init__(self, runtime: Runtime, queries: Queries) -> None:
        self._runtime, self._queries = runtime, queries
        self._writes = 0
        self._left_out = runtime.metrics.counter(
            "watchkeeper_remote_write_samples_dropped_total",
            "Samples received by remote write that were dropped, by reason",
        )

    async def federate(self, asked: Form) -> Response:
        selectors = [matchers("match[]", text) for text in asked.all("match[]")]
        if not selectors:
            raise BadParameter("no match[] parameter provided")
        at_ms = clock.to_ms(self._runtime.clock.now())
        found = await asyncio.to_thread(self._newest, selectors, at_ms)
        chosen = federation.choose_form(asked.accept)
        return Response(await asyncio.to_thread(federation.write_page, found, chosen), media_type=chosen.media_type)

    def _newest(self, selectors: list[Matchers], at_ms: int) -> list[interfaces.AnySample]:
        """The newest sample of each series; an engine elsewhere tells the value but not its time."""
        local = self._queries.engine.local
        found: dict[object, interfaces.AnySample] = {}
        for each in selectors:
            if local is not None:
                found |= {sample.labels: sample for sample in local.latest_samples(each, at_ms)}
                continue
            expr = printer.to_text(ast.Selector(None, each))
            answer = self._queries.engine.instant(expr, at_ms)
            found |= {labels: Sample(labels, at_ms, value) for labels, value in answer.latest().items()}
            native = answer.latest_histograms().items()
            found |= {labels: HistogramSample(labels, at_ms, value) for labels, value in native}
        return sorted(found.values(), key=lambda sample: (sample.labels.name, sample.labels))

    def _keep(self, body: bytes, now_ms: int) -> interfaces.Appended:
        """Append a body and wait for the disk: what is acknowledged must outlive us. StoreError if the disk refuses."""
        appender = self._queries.engine.appender
        taken = remote_write.append_request(body, appender, now_ms=now_ms)
        appender.sync()
        return taken

    async def write(self, request: Request) -> Response:
        """Remote write 1.0. A 4xx tells the sender to go on without these samples, a 5xx or 429 to send them again."""
        # Samples of a sender may be about any node, so a token that is bound to some cannot send them.
        check_node(request.state.caller, None)
        refused = remote_write.unsupported_reason(
            request.headers.get("content-type"), request.headers.get("content-encoding")
        )
        if refused is not None:
            return PlainTextResponse(refused, status_code=415)
        if self._writes >= WRITES_IN_FLIGHT:
            headers = {"Retry-After": str(RETRY_AFTER_SECONDS)}
            words = f"{self._writes} writes are being read, the limit is {WRITES_IN_FLIGHT}"
            return PlainTextResponse(words, status_code=429, headers=headers)
        self._writes += 1
        try:
            body = await read_body(request, remote_write.WriteLimits().max_bytes)
            now_ms = clock.to_ms(self._runtime.clock.now())
            taken = await asyncio.to_thread(self._keep, body, now_ms)
        except WireError as error:
            return PlainTextResponse(str(error), status_code=400)
        except StoreError as error:
            return PlainTextResponse(str(error), status_code=503)
        finally:
            self._writes -= 1
        for reason, count in taken.dropped.items():
            self._left_out.add(count, reason=reason)
        status, words = remote_write.response_for(taken)
        return PlainTextResponse(words, status_code=status) if words else Response(status_code=status)
