"""GET /api/recording: samples, events and incidents of a time window as one file.

`watchkeeper record` saves the file; `store.recording` defines its format. The file is written metric by metric while it
is sent, so that a long window needs no more memory than one metric.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from datetime import datetime
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from watchkeeper.hub import services
from watchkeeper.kit import clock
from watchkeeper.model.labels import METRIC_NAME
from watchkeeper.query import engine
from watchkeeper.query.promql import ast, printer
from watchkeeper.store import recording
from watchkeeper.web.endpoint import QueryParam, get
from watchkeeper.web.prometheus import prometheus_form as form

# Each recording reads all samples of its window.
MAX_CONCURRENT_RECORDINGS = 2
MAX_INCIDENTS = 1000
CHUNK_BYTES = 256 * 1024
Matchers = tuple[engine.Matcher, ...]


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
            entries = tuple(
                recording.RecordedEntry(e.at, e.actor, e.kind, e.body) for e in journal.timeline(incident.id)
            )
            yield recording.RecordedIncident(
                incident, journal.diagnosis(incident.id), journal.plan(incident.id), entries
            )


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
