"""Exchange samples with other programs: federation, remote write, and recordings with events and incidents.

`query.remote.remote_write` checks and decodes what a sender writes; samples too far ahead of the hub's clock are
dropped and counted. Recordings are written metric by metric while they are sent, so that a long window needs no more
memory than one metric.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from datetime import datetime
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from watchkeeper.errors import StoreError, WireError
from watchkeeper.hub import services
from watchkeeper.hub.runtime import Runtime
from watchkeeper.hub.samples import Queries
from watchkeeper.kit import allowance, clock
from watchkeeper.model.histograms import HistogramSample
from watchkeeper.model.labels import METRIC_NAME
from watchkeeper.model.samples import Sample
from watchkeeper.query import engine
from watchkeeper.query.promql import ast, printer
from watchkeeper.query.remote import remote_write
from watchkeeper.store import interfaces, recording
from watchkeeper.web.auth.auth import Role
from watchkeeper.web.endpoint import QueryParam, check_node, get, post, read_body
from watchkeeper.web.prometheus import federation
from watchkeeper.web.prometheus import prometheus_params as form
from watchkeeper.web.prometheus.prometheus_params import MATCH, BadParameter, Form, prometheus_get, read_matchers

# Writes that are decoded concurrently; a sender queues the rest.
MAX_CONCURRENT_WRITES = 8
RETRY_AFTER_SECONDS = 2
Matchers = tuple[engine.Matcher, ...]
# Each recording reads all samples of its window.
MAX_CONCURRENT_RECORDINGS = 2
MAX_INCIDENTS = 1000
CHUNK_BYTES = 256 * 1024
# A sample of a federated page, with its line.
FEDERATED_BYTES = 1000


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
        if not params.all("match[]"):
            raise BadParameter("no match[] parameter provided")
        at_ms = clock.to_ms(self._runtime.clock.now())

        def answer() -> Response:
            selectors = [read_matchers("match[]", text) for text in params.all("match[]")]
            page_format = federation.choose_format(params.accept)
            page = federation.write_page(self._latest_samples(selectors, at_ms), page_format)
            return Response(page, media_type=page_format.value)

        return await self._queries.run_for_user(answer)

    def _latest_samples(self, selectors: list[Matchers], at_ms: int) -> list[interfaces.AnySample]:
        """The newest sample of each series; a remote engine returns its value without its time."""
        local = self._queries.engine.local
        samples: dict[object, interfaces.AnySample] = {}
        for selector in selectors:
            allowance.check()
            allowance.require(FEDERATED_BYTES * len(samples))
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
        headers = request.headers
        unsupported = remote_write.unsupported_reason(headers.get("content-type"), headers.get("content-encoding"))
        if unsupported is not None:
            return PlainTextResponse(unsupported, status_code=415)
        if self._running_writes >= MAX_CONCURRENT_WRITES:
            retry = {"Retry-After": str(RETRY_AFTER_SECONDS)}
            problem = f"{self._running_writes} remote writes are running, the limit is {MAX_CONCURRENT_WRITES}; retry"
            return PlainTextResponse(problem, status_code=429, headers=retry)
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


class RecordingApi:
    def __init__(self, hub: services.Services) -> None:
        self._runtime, self._queries, self._journal, self._fleet = hub.runtime, hub.queries, hub.journal, hub.fleet
        self._running = 0

    @get(
        "/api/recording",
        QueryParam("from", "Start of the window: RFC 3339 or Unix seconds.", is_required=True),
        QueryParam("to", "End of the window: RFC 3339 or Unix seconds.", is_required=True),
        QueryParam("match[]", "Record only series that match this selector; repeat it for several.", list[str]),
        media_type="application/gzip",
    )
    async def record(self, request: Request) -> Response:
        """Record samples, events and incidents of a time window into one file; see howto/history.md."""
        params = form.Form(list(request.query_params.multi_items()))
        from_ms, to_ms = form.read_time("from", params.first("from")), form.read_time("to", params.first("to"))
        selectors = [form.read_matchers("match[]", text) for text in params.all("match[]")] or [()]
        if from_ms >= to_ms:
            raise HTTPException(400, "`from` must be before `to`")
        if self._running >= MAX_CONCURRENT_RECORDINGS:
            problem = f"{self._running} recordings are running, the limit is {MAX_CONCURRENT_RECORDINGS}; retry later"
            raise HTTPException(429, problem)
        stream = self._stream(from_ms, to_ms, selectors)
        # Started before it is returned: else a client that disconnects before the first byte keeps `_running` raised.
        first = await anext(stream)
        return StreamingResponse(_prepend(first, stream), media_type="application/gzip")

    async def _stream(self, from_ms: int, to_ms: int, selectors: Sequence[Matchers]) -> AsyncGenerator[bytes, None]:
        pieces = self._write_pieces(from_ms, to_ms, selectors)
        self._running += 1
        try:
            while chunk := await self._journal.read(lambda: _next_chunk(pieces), is_long=True):
                yield chunk
        finally:
            self._running -= 1

    def _write_pieces(self, from_ms: int, to_ms: int, selectors: Sequence[Matchers]) -> Iterator[bytes]:
        header = recording.Header(from_ms, to_ms, self._runtime.settings.fleet.cluster, self._runtime.version)
        writer = recording.RecordingWriter(header)
        for node in self._fleet.nodes():
            yield writer.add("node", node)
        cluster_of = {node.name: node.cluster for node in self._fleet.nodes()}
        for gpu in self._fleet.gpus():
            cluster = cluster_of.get(gpu.node, header.cluster)
            yield writer.add("gpu", recording.RecordedGpu(cluster, gpu.node, gpu.gpu, gpu.gone_since_ms is not None))
        yield from self._write_series(writer, header, selectors)
        since, until = clock.from_ms(from_ms), clock.from_ms(to_ms)
        for event in self._journal.events_between(since, until):
            yield writer.add("event", event)
        for incident in self._recorded_incidents(since, until):
            yield writer.add("story", incident)
        yield writer.end()

    def _write_series(
        self, writer: recording.RecordingWriter, header: recording.Header, selectors: Sequence[Matchers]
    ) -> Iterator[bytes]:
        """Write metric by metric; a series that matches two selectors is written once."""
        query_engine, metadata = self._queries.engine, self._queries.engine.metadata()
        names = query_engine.label_values(METRIC_NAME, selectors, start_ms=header.from_ms, end_ms=header.to_ms)
        read = _read_by_promql(query_engine) if query_engine.local is None else query_engine.local.raw_samples
        for name in names:
            if name in metadata:
                yield writer.add("metric", recording.RecordedMetric(name, *metadata[name]))
            written: set[object] = set()
            for selector in selectors:
                name_matcher = engine.Matcher(METRIC_NAME, engine.MatchOp.EQUAL, name)
                for labels, times, values in read((*selector, name_matcher), header.from_ms, header.to_ms):
                    if labels not in written:
                        written.add(labels)
                        yield writer.add_series(labels, times, values)

    def _recorded_incidents(self, since: datetime, until: datetime) -> Iterator[recording.RecordedIncident]:
        journal = self._journal
        for incident in journal.incidents(open_only=False, limit=MAX_INCIDENTS):
            if incident.opened_at > until or (incident.resolved_at is not None and incident.resolved_at < since):
                continue
            id = incident.id
            entries = tuple(recording.RecordedEntry(e.at, e.actor, e.kind, e.body) for e in journal.timeline(id))
            yield recording.RecordedIncident(incident, journal.diagnosis(id), journal.plan(id), entries)


async def _prepend(first: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    yield first
    async for chunk in rest:
        yield chunk


def _next_chunk(pieces: Iterator[bytes]) -> bytes:
    """Join the next pieces to a chunk large enough to be worth a switch to a thread."""
    chunk = bytearray()
    for piece in pieces:
        chunk += piece
        if len(chunk) >= CHUNK_BYTES:
            break
    return bytes(chunk)


def _read_by_promql(query_engine: engine.Engine) -> Callable[[Matchers, int, int], Iterator[Any]]:
    """A reader of samples from an engine with PromQL only; stale markers are missing, because no query returns them."""

    def read(matchers: Matchers, start_ms: int, end_ms: int) -> Iterator[Any]:
        expr = ast.RangeSelector(ast.Selector(None, matchers), end_ms - start_ms)
        return query_engine.instant(printer.to_text(expr), end_ms).frame.raw_rows()

    return read
