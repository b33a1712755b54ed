"""Prometheus' HTTP API, so that Grafana, promtool and every other client work against a hub.

Shapes, parameter names, error types and status codes are Prometheus'; where it has a field that we
do not know, the field is there and empty. The console draws its charts through the same endpoints.
docs/howto/grafana.md lists the calls that Grafana makes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from watchkeeper.errors import QueryError, StoreError
from watchkeeper.hub.runtime import Runtime
from watchkeeper.hub.samples import Queries
from watchkeeper.kit import clock
from watchkeeper.model.labels import METRIC_NAME
from watchkeeper.query import engine
from watchkeeper.query.promql import printer
from watchkeeper.web.auth.auth import Role
from watchkeeper.web.endpoint import (
    PROMETHEUS_PREFIX,
    Endpoint,
    RequestHandler,
    json_response,
    prometheus_error,
    read_body,
)
from watchkeeper.web.prometheus import prometheus_exchange as exchange
from watchkeeper.web.prometheus import prometheus_form as form
from watchkeeper.web.prometheus import prometheus_params, prometheus_tree
from watchkeeper.web.prometheus import prometheus_status as status
from watchkeeper.web.prometheus.prometheus_form import Form

# Prometheus' own limit on an expression is the size of a URL or form; ours is a generous form.
FORM_LIMIT_BYTES = 256 * 1024
# Prometheus' default of --query.timeout; a caller may ask for less.
QUERY_TIMEOUT_SECONDS = 120.0
EVERYTHING = ((engine.Matcher(METRIC_NAME, engine.MatchOp.NOT_EQUAL, ""),),)
BOTH = ("GET", "POST")
TRUNCATED = "results truncated due to limit"


@dataclass(slots=True)
class _Manner:
    """How a query wants to be answered; `on` is the engine, where it must not be the hub's usual one."""

    on: engine.Engine | None
    timeout_seconds: float
    limit: int | None
    with_stats: bool
    took_seconds: float = 0.0

    async def wait_for(self, asking: Awaitable[engine.QueryResult]) -> engine.QueryResult:
        began = time.perf_counter()
        try:
            async with asyncio.timeout(self.timeout_seconds):
                answer = await asking
        except TimeoutError as error:
            raise _TooSlow(f"query timed out in expression evaluation after {self.timeout_seconds:g} s") from error
        self.took_seconds = time.perf_counter() - began
        return answer


class PrometheusApi:
    """One method per endpoint that asks the engine; each takes the form and answers with `data`."""

    def __init__(self, runtime: Runtime, queries: Queries) -> None:
        self._runtime, self._queries = runtime, queries

    async def query(self, asked: Form) -> Response:
        expr, manner = _expression(asked), self._manner(asked)
        at_ms = form.read_time("time", asked.one("time"), default_ms=clock.to_ms(self._runtime.clock.now()))
        asking = (
            self._queries.instant(expr, at_ms)
            if manner.on is None
            else asyncio.to_thread(manner.on.instant, expr, at_ms)
        )
        return await _write(await manner.wait_for(asking), at_ms, manner)

    async def query_range(self, asked: Form) -> Response:
        expr, manner = _expression(asked), self._manner(asked)
        span = form.read_span(asked.one("start"), asked.one("end"), asked.one("step"))
        form.refuse_ranges(expr)
        asking = (
            self._queries.range(expr, span) if manner.on is None else asyncio.to_thread(manner.on.range, expr, span)
        )
        return await _write(await manner.wait_for(asking), None, manner)

    async def format_query(self, asked: Form) -> Response:
        return success_response(printer.pretty(form.parse("query", asked.one("query") or "")))

    async def parse_query(self, asked: Form) -> Response:
        return success_response(prometheus_tree.tree(form.parse("query", asked.one("query") or "")))

    async def exemplars(self, asked: Form) -> Response:
        """The exemplars of every series that a selector of the expression means."""
        selectors = form.selectors_in(_expression(asked))
        start_ms, end_ms = _read_times(asked, 0, clock.to_ms(self._runtime.clock.now()))
        found = await asyncio.to_thread(self._queries.engine.exemplars, selectors, start_ms, end_ms)
        return success_response([form.write_exemplars(series, kept) for series, kept in found])

    async def series(self, asked: Form) -> Response:
        if not asked.all("match[]"):
            raise form.BadParameter("no match[] parameter provided")
        selectors, times = self._selectors(asked)
        found = await asyncio.to_thread(self._queries.engine.series, selectors or EVERYTHING, *times)
        return limited_response([dict(labels) for labels in found], asked)

    async def labels(self, asked: Form) -> Response:
        selectors, times = self._selectors(asked)
        return limited_response(await asyncio.to_thread(self._queries.engine.label_names, selectors, *times), asked)

    async def label_values(self, asked: Form, name: str) -> Response:
        name = form.read_label_name(name)
        selectors, (start_ms, end_ms) = self._selectors(asked)
        ask = self._queries.engine.label_values
        found = await asyncio.to_thread(ask, name, selectors, start_ms=start_ms, end_ms=end_ms)
        return limited_response(found, asked)

    async def metadata(self, asked: Form) -> Response:
        wanted, most = asked.one("metric"), asked.metadata_limit()
        # Each metric has one description here, so that this limit cuts nothing.
        asked.metadata_limit("limit_per_metric")
        known = await asyncio.to_thread(self._queries.engine.metadata)
        names = [name for name in sorted(known) if not wanted or name == wanted][:most]
        return success_response({name: [status.described(known[name])] for name in names})

    def _manner(self, asked: Form) -> _Manner:
        return _Manner(
            on=self._with_lookback(asked),
            timeout_seconds=_patience(asked),
            limit=asked.limit(),
            with_stats=bool(asked.one("stats")),
        )

    def _with_lookback(self, asked: Form) -> engine.Engine | None:
        text = asked.one("lookback_delta")
        lookback_ms = form.read_duration("lookback_delta", text) if text else 0
        # In Prometheus 0 is the usual one, too.
        if lookback_ms <= 0:
            return None
        local = self._queries.engine.local
        if local is None:
            raise form.BadParameter('invalid parameter "lookback_delta": the server behind this hub sets its own')
        return local.with_lookback(lookback_ms)

    def _selectors(self, asked: Form) -> tuple[Sequence[Sequence[engine.Matcher]], tuple[int, int]]:
        selectors = [form.matchers("match[]", text) for text in asked.all("match[]")]
        return selectors, _read_times(asked, 0, clock.to_ms(self._runtime.clock.now()))


def query_endpoints(api: PrometheusApi) -> list[Endpoint]:
    """What is asked most, and needs nothing of a hub but its samples."""
    asked = (("query", api.query), ("query_range", api.query_range))
    return [replace(_endpoint(BOTH, path, answer), response=prometheus_params.QueryData) for path, answer in asked]


def endpoints(api: PrometheusApi, pages: status.StatusPages, doors: exchange.SampleExchange) -> list[Endpoint]:
    get = ("GET",)
    table = [
        *query_endpoints(api),
        _endpoint(BOTH, "query_exemplars", api.exemplars),
        _endpoint(BOTH, "format_query", api.format_query),
        _endpoint(BOTH, "parse_query", api.parse_query),
        _endpoint(BOTH, "series", api.series),
        _endpoint(BOTH, "labels", api.labels),
        _endpoint(get, "label/{name}/values", api.label_values),
        _endpoint(get, "metadata", api.metadata),
        *(_endpoint(get, path, _shown(page)) for path, page in pages.table()),
    ]
    said, asks = prometheus_params.FEDERATE, (prometheus_params.MATCH,)
    federate = _answering(doors.federate)
    table.append(Endpoint(get, "/federate", Role.VIEWER, federate, summary=said, params=asks, media_type="text/plain"))
    write, said = PROMETHEUS_PREFIX + "write", prometheus_params.WRITE
    table.append(
        Endpoint(("POST",), write, Role.AGENT, doors.write, changes=True, summary=said, media_type="text/plain")
    )
    return table


def _endpoint(ways: tuple[str, ...], path: str, method: Callable[..., Any]) -> Endpoint:
    words, asks = prometheus_params.WORDS[path]
    return Endpoint(ways, PROMETHEUS_PREFIX + path, Role.VIEWER, _answering(method), summary=words, params=asks)


def _shown(page: Callable[[Form], Any]) -> Callable[[Form], Any]:
    async def answer(asked: Form) -> Response:
        return success_response(page(asked))

    return answer


async def read_form(request: Request) -> Form:
    pairs = parse_qsl(request.scope["query_string"].decode("latin-1"), keep_blank_values=True)
    if request.method == "POST":
        body = await read_body(request, FORM_LIMIT_BYTES, remedy="Split the expression into recording rules")
        pairs = parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True) + pairs
    return Form(pairs, accept=request.headers.get("accept", ""))


def _answering(method: Callable[..., Any]) -> RequestHandler:
    async def answer(request: Request) -> Response:
        """Errors become Prometheus' error types: what was asked wrongly, what failed while it ran, what is away."""
        try:
            response: Response = await method(await read_form(request), **request.path_params)
        except form.BadParameter as error:
            return prometheus_error(str(error), status=400)
        except QueryError as error:
            return prometheus_error(str(error), status=422)
        except _TooSlow as error:
            return prometheus_error(str(error), status=503, kind="timeout")
        except StoreError as error:
            return prometheus_error(str(error), status=503)
        except HTTPException as error:
            return prometheus_error(error.detail, status=error.status_code)
        return response

    return answer


class _TooSlow(Exception):
    """The caller's patience is over."""


def _patience(asked: Form) -> float:
    text = asked.one("timeout")
    if not text:
        return QUERY_TIMEOUT_SECONDS
    seconds = form.read_duration("timeout", text) / 1000
    if seconds <= 0:
        raise form.BadParameter('invalid parameter "timeout": it must be longer than 0')
    return min(seconds, QUERY_TIMEOUT_SECONDS)


def _expression(asked: Form) -> str:
    expr = asked.one("query") or ""
    form.parse("query", expr)
    return expr


def _read_times(asked: Form, start_ms: int, end_ms: int) -> tuple[int, int]:
    start = form.read_time("start", asked.one("start"), default_ms=start_ms)
    end = form.read_time("end", asked.one("end"), default_ms=end_ms)
    if end < start:
        raise form.BadParameter('invalid parameter "end": end timestamp must not be before start time')
    return start, end


async def _write(answer: engine.QueryResult, at_ms: int | None, manner: _Manner) -> Response:
    """Rendering a large answer takes longer than asking for it, so it leaves the event loop as well."""

    def render() -> Response:
        shown = answer if manner.limit is None else form.first_series(answer, manner.limit)
        content, warnings = form.write_answer(shown, at_ms), list(answer.warnings)
        if shown is not answer:
            warnings.append(TRUNCATED)
        if manner.with_stats:
            seconds = manner.took_seconds
            content["stats"] = {"timings": {"evalTotalTime": seconds, "execTotalTime": seconds}}
        return success_response(content, warnings, answer.infos)

    return await asyncio.to_thread(render) if answer.frame.values.size > 10_000 else render()


def success_response(content: Any, warnings: Sequence[str] = (), infos: Sequence[str] = ()) -> Response:
    said = {"warnings": list(warnings), "infos": list(infos)}
    return json_response({"status": "success", "data": content} | {key: lines for key, lines in said.items() if lines})


def limited_response(items: list[Any], asked: Form) -> Response:
    most = asked.limit()
    if most is None or len(items) <= most:
        return success_response(items)
    return success_response(items[:most], [TRUNCATED])
