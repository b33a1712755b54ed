"""Serve Prometheus' HTTP API, so that Grafana, promtool and other clients work against a hub.

Formats, parameter names, error types and status codes are Prometheus'; a field that the hub cannot fill is present and
empty. The console draws its charts with the same endpoints. docs/howto/grafana.md lists the calls that Grafana makes.
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
    POST,
    PROMETHEUS_PREFIX,
    Endpoint,
    RequestHandler,
    json_response,
    prometheus_error,
    read_body,
)
from watchkeeper.web.prometheus import prometheus_exchange as exchange
from watchkeeper.web.prometheus import prometheus_form as form
from watchkeeper.web.prometheus import prometheus_json, prometheus_params, prometheus_tree
from watchkeeper.web.prometheus import prometheus_status as status
from watchkeeper.web.prometheus.prometheus_form import Form

# Prometheus limits an expression only by the size of a URL or form.
MAX_FORM_BYTES = 256 * 1024
# Prometheus' default of --query.timeout; a request can set a shorter one.
QUERY_TIMEOUT_SECONDS = 120.0
ALL_SERIES = ((engine.Matcher(METRIC_NAME, engine.MatchOp.NOT_EQUAL, ""),),)
GET_AND_POST = ("GET", "POST")
TRUNCATED_WARNING = "results truncated due to limit"


@dataclass(slots=True)
class _QueryOptions:
    """The options of a query; `engine_override` replaces the hub's engine for a request with its own lookback."""

    engine_override: engine.Engine | None
    timeout_seconds: float
    limit: int | None
    with_stats: bool
    took_seconds: float = 0.0

    async def run(self, query: Awaitable[engine.QueryResult]) -> engine.QueryResult:
        began = time.perf_counter()
        try:
            async with asyncio.timeout(self.timeout_seconds):
                result = await query
        except TimeoutError as error:
            raise _QueryTimeout(f"query timed out in expression evaluation after {self.timeout_seconds:g} s") from error
        self.took_seconds = time.perf_counter() - began
        return result


class PrometheusApi:
    """One method for each endpoint that queries the engine; each takes the parameters and answers with `data`."""

    def __init__(self, runtime: Runtime, queries: Queries) -> None:
        self._runtime, self._queries = runtime, queries

    async def query(self, params: Form) -> Response:
        expr, options = _read_expression(params), self._query_options(params)
        at_ms = form.read_time("time", params.first("time"), default_ms=clock.to_ms(self._runtime.clock.now()))
        query = (
            self._queries.instant(expr, at_ms)
            if options.engine_override is None
            else asyncio.to_thread(options.engine_override.instant, expr, at_ms)
        )
        return await _query_response(await options.run(query), at_ms, options)

    async def query_range(self, params: Form) -> Response:
        expr, options = _read_expression(params), self._query_options(params)
        query_range = form.read_query_range(params.first("start"), params.first("end"), params.first("step"))
        form.check_range_expression(expr)
        query = (
            self._queries.range(expr, query_range)
            if options.engine_override is None
            else asyncio.to_thread(options.engine_override.range, expr, query_range)
        )
        return await _query_response(await options.run(query), None, options)

    async def format_query(self, params: Form) -> Response:
        return success_response(printer.pretty(form.parse("query", params.first("query") or "")))

    async def parse_query(self, params: Form) -> Response:
        return success_response(prometheus_tree.write_tree(form.parse("query", params.first("query") or "")))

    async def exemplars(self, params: Form) -> Response:
        """The exemplars of the series that the selectors of an expression match."""
        selectors = form.selectors_in(_read_expression(params))
        start_ms, end_ms = _read_times(params, 0, clock.to_ms(self._runtime.clock.now()))
        rows = await asyncio.to_thread(self._queries.engine.exemplars, selectors, start_ms, end_ms)
        return success_response([prometheus_json.write_exemplars(series, exemplars) for series, exemplars in rows])

    async def series(self, params: Form) -> Response:
        if not params.all("match[]"):
            raise form.BadParameter("no match[] parameter provided")
        selectors, times = self._selectors(params)
        label_sets = await asyncio.to_thread(self._queries.engine.series, selectors or ALL_SERIES, *times)
        return limited_response([dict(labels) for labels in label_sets], params)

    async def labels(self, params: Form) -> Response:
        selectors, times = self._selectors(params)
        return limited_response(await asyncio.to_thread(self._queries.engine.label_names, selectors, *times), params)

    async def label_values(self, params: Form, name: str) -> Response:
        name = form.read_label_name(name)
        selectors, (start_ms, end_ms) = self._selectors(params)
        read_values = self._queries.engine.label_values
        values = await asyncio.to_thread(read_values, name, selectors, start_ms=start_ms, end_ms=end_ms)
        return limited_response(values, params)

    async def metadata(self, params: Form) -> Response:
        metric, limit = params.first("metric"), params.metadata_limit()
        # The hub has one description per metric, so this limit is only validated.
        params.metadata_limit("limit_per_metric")
        metadata = await asyncio.to_thread(self._queries.engine.metadata)
        names = [name for name in sorted(metadata) if not metric or name == metric][:limit]
        return success_response({name: [status.write_metadata(metadata[name])] for name in names})

    def _query_options(self, params: Form) -> _QueryOptions:
        return _QueryOptions(
            engine_override=self._engine_with_lookback(params),
            timeout_seconds=_read_timeout(params),
            limit=params.limit(),
            with_stats=bool(params.first("stats")),
        )

    def _engine_with_lookback(self, params: Form) -> engine.Engine | None:
        text = params.first("lookback_delta")
        lookback_ms = form.read_duration("lookback_delta", text) if text else 0
        # As in Prometheus, 0 means the default.
        if lookback_ms <= 0:
            return None
        local = self._queries.engine.local
        if local is None:
            raise form.BadParameter(
                'invalid parameter "lookback_delta": the remote query engine of this hub does not support it'
            )
        return local.with_lookback(lookback_ms)

    def _selectors(self, params: Form) -> tuple[Sequence[Sequence[engine.Matcher]], tuple[int, int]]:
        selectors = [form.read_matchers("match[]", text) for text in params.all("match[]")]
        return selectors, _read_times(params, 0, clock.to_ms(self._runtime.clock.now()))


def query_endpoints(api: PrometheusApi) -> list[Endpoint]:
    """The endpoints of queries, which need only the samples of a hub."""
    rows = (_endpoint(GET_AND_POST, "query", api.query), _endpoint(GET_AND_POST, "query_range", api.query_range))
    return [replace(row, response=prometheus_params.QueryData) for row in rows]


def endpoints(
    api: PrometheusApi, pages: status.StatusPages, sample_exchange: exchange.SampleExchange
) -> list[Endpoint]:
    get = ("GET",)
    table = [
        *query_endpoints(api),
        _endpoint(GET_AND_POST, "query_exemplars", api.exemplars),
        _endpoint(GET_AND_POST, "format_query", api.format_query),
        _endpoint(GET_AND_POST, "parse_query", api.parse_query),
        _endpoint(GET_AND_POST, "series", api.series),
        _endpoint(GET_AND_POST, "labels", api.labels),
        _endpoint(get, "label/{name}/values", api.label_values),
        _endpoint(get, "metadata", api.metadata),
        *(_endpoint(get, path, _async_page(page)) for path, page in pages.table()),
    ]
    federate = Endpoint(
        "/federate",
        _with_prometheus_errors(sample_exchange.federate),
        prometheus_params.FEDERATE_SUMMARY,
        params=(prometheus_params.MATCH,),
        media_type="text/plain",
    )
    write = Endpoint(
        PROMETHEUS_PREFIX + "write",
        sample_exchange.write,
        prometheus_params.WRITE_SUMMARY,
        role=Role.AGENT,
        methods=POST,
        changes=True,
        media_type="text/plain",
    )
    return [*table, federate, write]


def _endpoint(methods: tuple[str, ...], path: str, handler: Callable[..., Any]) -> Endpoint:
    summary, query_params = prometheus_params.SUMMARIES[path]
    return Endpoint(
        PROMETHEUS_PREFIX + path, _with_prometheus_errors(handler), summary, methods=methods, params=query_params
    )


def _async_page(page: Callable[[Form], Any]) -> Callable[[Form], Any]:
    async def answer(params: Form) -> Response:
        return success_response(page(params))

    return answer


async def read_form(request: Request) -> Form:
    pairs = parse_qsl(request.scope["query_string"].decode("latin-1"), keep_blank_values=True)
    if request.method == "POST":
        body = await read_body(request, MAX_FORM_BYTES, remedy="Split the expression into recording rules")
        pairs = parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True) + pairs
    return Form(pairs, accept=request.headers.get("accept", ""))


def _with_prometheus_errors(handler: Callable[..., Any]) -> RequestHandler:
    async def answer(request: Request) -> Response:
        """Run the handler; map errors to Prometheus' types: bad request, execution failed, timeout, unavailable."""
        try:
            response: Response = await handler(await read_form(request), **request.path_params)
        except form.BadParameter as error:
            return prometheus_error(str(error), status=400)
        except QueryError as error:
            return prometheus_error(str(error), status=422)
        except _QueryTimeout as error:
            return prometheus_error(str(error), status=503, kind="timeout")
        except StoreError as error:
            return prometheus_error(str(error), status=503)
        except HTTPException as error:
            return prometheus_error(error.detail, status=error.status_code)
        return response

    return answer


class _QueryTimeout(Exception):
    """A query ran longer than its timeout."""


def _read_timeout(params: Form) -> float:
    text = params.first("timeout")
    if not text:
        return QUERY_TIMEOUT_SECONDS
    seconds = form.read_duration("timeout", text) / 1000
    if seconds <= 0:
        raise form.BadParameter('invalid parameter "timeout": it must be greater than 0')
    return min(seconds, QUERY_TIMEOUT_SECONDS)


def _read_expression(params: Form) -> str:
    expr = params.first("query") or ""
    form.parse("query", expr)
    return expr


def _read_times(params: Form, start_ms: int, end_ms: int) -> tuple[int, int]:
    start = form.read_time("start", params.first("start"), default_ms=start_ms)
    end = form.read_time("end", params.first("end"), default_ms=end_ms)
    if end < start:
        raise form.BadParameter('invalid parameter "end": end timestamp must not be before start time')
    return start, end


async def _query_response(result: engine.QueryResult, at_ms: int | None, options: _QueryOptions) -> Response:
    """Write the result; a large one in a thread, because that takes longer than the query."""

    def render() -> Response:
        limited = result if options.limit is None else prometheus_json.limit_series(result, options.limit)
        content, warnings = prometheus_json.write_result(limited, at_ms), list(result.warnings)
        if limited is not result:
            warnings.append(TRUNCATED_WARNING)
        if options.with_stats:
            seconds = options.took_seconds
            content["stats"] = {"timings": {"evalTotalTime": seconds, "execTotalTime": seconds}}
        return success_response(content, warnings, result.infos)

    return await asyncio.to_thread(render) if result.frame.values.size > 10_000 else render()


def success_response(content: Any, warnings: Sequence[str] = (), infos: Sequence[str] = ()) -> Response:
    notices = {"warnings": list(warnings), "infos": list(infos)}
    return json_response(
        {"status": "success", "data": content} | {key: texts for key, texts in notices.items() if texts}
    )


def limited_response(items: list[Any], params: Form) -> Response:
    limit = params.limit()
    if limit is None or len(items) <= limit:
        return success_response(items)
    return success_response(items[:limit], [TRUNCATED_WARNING])
