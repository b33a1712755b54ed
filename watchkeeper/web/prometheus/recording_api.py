"""GET /api/recording: samples, events and incidents of a time window as one file.

`watchkeeper record` saves what comes from here; `store.recording` says what is in it. The file is written
metric by metric while it is sent, so that a long window needs no more memory than one metric of it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from datetime import datetime
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from watchkeeper.hub import services
from watchkeeper.hub.runtime import Runtime
from watchkeeper.hub.samples import Queries
from watchkeeper.kit import clock
from watchkeeper.model.labels import METRIC_NAME
from watchkeeper.query import engine
from watchkeeper.query.promql import ast, printer
from watchkeeper.store import recording
from watchkeeper.web.auth.auth import Role
from watchkeeper.web.endpoint import Endpoint, QueryParam
from watchkeeper.web.prometheus import prometheus_form as form

# Each reads the whole window; two people may do so at a time.
RECORDINGS_AT_ONCE = 2
MOST_INCIDENTS = 1000
PIECE_BYTES = 256 * 1024
Matchers = tuple[engine.Matcher, ...]


class RecordingApi:
    def __init__(
        self,
        runtime: Runtime,
        queries: Queries,
        *,
        journal: services.JournalProtocol,
        fleet: services.FleetProtocol,
    ) -> None:
        self._runtime, self._queries, self._journal = runtime, queries, journal
        self._fleet = fleet
        self._running = 0

    async def record(self, request: Request) -> Response:
        asked = form.Form(list(request.query_params.multi_items()))
        try:
            from_ms, to_ms = form.read_time("from", asked.one("from")), form.read_time("to", asked.one("to"))
            selectors = [form.matchers("match[]", text) for text in asked.all("match[]")] or [()]
        except form.BadParameter as error:
            raise HTTPException(400, str(error)) from error
        if from_ms >= to_ms:
            raise HTTPException(400, "`from` must be before `to`")
        if self._running >= RECORDINGS_AT_ONCE:
            raise HTTPException(429, f"{self._running} recordings are being made, the limit is {RECORDINGS_AT_ONCE}")
        stream = self._stream(from_ms, to_ms, selectors)
        # Begun before it is handed over: whoever leaves before the first byte would keep its place for ever.
        first = await anext(stream)
        return StreamingResponse(_with(first, stream), media_type="application/gzip")

    async def _stream(self, from_ms: int, to_ms: int, selectors: Sequence[Matchers]) -> AsyncGenerator[bytes, None]:
        pieces = self._pieces(from_ms, to_ms, selectors)
        self._running += 1
        try:
            while piece := await self._journal.read(lambda: _gather(pieces), is_long=True):
                yield piece
        finally:
            self._running -= 1

    def _pieces(self, from_ms: int, to_ms: int, selectors: Sequence[Matchers]) -> Iterator[bytes]:
        head = recording.Header(from_ms, to_ms, self._runtime.settings.fleet.cluster, self._runtime.version)
        writer = recording.RecordingWriter(head)
        for node in self._fleet.nodes():
            yield writer.add("node", node)
        cluster_of = {node.name: node.cluster for node in self._fleet.nodes()}
        for seen in self._fleet.gpus():
            cluster = cluster_of.get(seen.node, head.cluster)
            yield writer.add("gpu", recording.RecordedGpu(cluster, seen.node, seen.gpu, seen.gone_since_ms is not None))
        yield from self._series(writer, head, selectors)
        since, until = clock.from_ms(from_ms), clock.from_ms(to_ms)
        for event in self._journal.events_between(since, until):
            yield writer.add("event", event)
        for story in self._stories(since, until):
            yield writer.add("story", story)
        yield writer.end()

    def _series(
        self, writer: recording.RecordingWriter, head: recording.Header, selectors: Sequence[Matchers]
    ) -> Iterator[bytes]:
        """Metric by metric; a series that two selectors mean is written once."""
        on, known = self._queries.engine, self._queries.engine.metadata()
        names = on.label_values(METRIC_NAME, selectors, start_ms=head.from_ms, end_ms=head.to_ms)
        read = _from_afar(on) if on.local is None else on.local.raw_samples
        for name in names:
            if name in known:
                yield writer.add("metric", recording.RecordedMetric(name, *known[name]))
            done: set[object] = set()
            for selector in selectors:
                this = engine.Matcher(METRIC_NAME, engine.MatchOp.EQUAL, name)
                for labels, times, values in read((*selector, this), head.from_ms, head.to_ms):
                    if labels not in done:
                        done.add(labels)
                        yield writer.add_series(labels, times, values)

    def _stories(self, since: datetime, until: datetime) -> Iterator[recording.RecordedIncident]:
        journal = self._journal
        for incident in journal.incidents(open_only=False, limit=MOST_INCIDENTS):
            if incident.opened_at > until or (incident.resolved_at is not None and incident.resolved_at < since):
                continue
            lines = tuple(recording.RecordedEntry(e.at, e.actor, e.kind, e.body) for e in journal.timeline(incident.id))
            yield recording.RecordedIncident(incident, journal.diagnosis(incident.id), journal.plan(incident.id), lines)


async def _with(first: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    yield first
    async for piece in rest:
        yield piece


def _gather(pieces: Iterator[bytes]) -> bytes:
    """The next pieces, enough of them to be worth a trip to a thread and back."""
    held = bytearray()
    for piece in pieces:
        held += piece
        if len(held) >= PIECE_BYTES:
            break
    return bytes(held)


def _from_afar(on: engine.Engine) -> Callable[[Matchers, int, int], Iterator[Any]]:
    """Samples of an engine that only answers PromQL: without stale markers, which no query shows."""

    def read(matchers: Matchers, start_ms: int, end_ms: int) -> Iterator[Any]:
        expr = ast.RangeSelector(ast.Selector(None, matchers), end_ms - start_ms)
        return on.instant(printer.to_text(expr), end_ms).frame.raw_rows()

    return read


def endpoints(api: RecordingApi) -> list[Endpoint]:
    asks = (
        QueryParam("from", "RFC 3339 or seconds since 1970", is_required=True),
        QueryParam("to", "RFC 3339 or seconds since 1970", is_required=True),
        QueryParam("match[]", "only series that a selector means", list[str]),
    )
    words = "Samples, events and incidents of a time window as one file; see howto/history.md"
    record = api.record
    return [
        Endpoint(
            ("GET",), "/api/recording", Role.VIEWER, record, summary=words, params=asks, media_type="application/gzip"
        ),
    ]
