"""Serve Prometheus' HTTP API, so that Grafana, promtool and other clients work against a hub.

Formats, parameter names, error types and status codes are Prometheus'; a field that the hub cannot fill is present and
empty. The console draws its charts with the same endpoints. docs/howto/grafana.md lists the calls that Grafana makes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from starlette.responses import Response

from watchkeeper.hub.runtime import Runtime
from watchkeeper.hub.samples import Queries
from watchkeeper.kit import clock
from watchkeeper.model.labels import METRIC_NAME
from watchkeeper.query import engine
from watchkeeper.query.promql import printer
from watchkeeper.web.endpoint import QueryParam
from watchkeeper.web.prometheus import prometheus_json, prometheus_tree
from watchkeeper.web.prometheus import prometheus_params as form
from watchkeeper.web.prometheus.prometheus_params import (
    END,
    GET_AND_POST,
    LIMIT,
    MATCH,
    QUERY,
    QUERY_OPTIONS,
    SELECTION,
    START,
    STEP,
    TRUNCATED_WARNING,
    Form,
    QueryData,
    QueryTimeout,
    limited_response,
    prometheus_get,
    success_response,
)
from watchkeeper.web.prometheus.prometheus_status import write_metadata

# Prometheus' default of --query.timeout; a request can set a shorter one.
QUERY_TIMEOUT_SECONDS = 120.0
ALL_SERIES = ((engine.Matcher(METRIC_NAME, engine.MatchOp.NOT_EQUAL, ""),),)


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
            raise QueryTimeout(f"query timed out in expression evaluation after {self.timeout_seconds:g} s") from error
        self.took_seconds = time.perf_counter() - began
        return result


class PrometheusApi:
    """One method for each endpoint that queries the engine; each takes the parameters and answers with `data`."""

    def __init__(self, runtime: Runtime, queries: Queries) -> None:
        self._runtime, self._queries = runtime, queries

    @prometheus_get(
        "/api/v1/query",
        QUERY,
        QueryParam("time", "Evaluation time: RFC 3339 or Unix seconds. Default: now."),
        *QUERY_OPTIONS,
        methods=GET_AND_POST,
        response=QueryData,
    )
    async def query(self, params: Form) -> Response:
        """Evaluate an instant query."""
        expr, options = _read_expression(params), self._query_options(params)
        at_ms = form.read_time("time", params.first("time"), default_ms=clock.to_ms(self._runtime.clock.now()))
        query = (
            self._queries.instant(expr, at_ms)
            if options.engine_override is None
            else asyncio.to_thread(options.engine_override.instant, expr, at_ms)
        )
        return await _query_response(await options.run(query), at_ms, options)

    @prometheus_get(
        "/api/v1/query_range", QUERY, START, END, STEP, *QUERY_OPTIONS, methods=GET_AND_POST, response=QueryData
    )
    async def query_range(self, params: Form) -> Response:
        """Evaluate a range query."""
        expr, options = _read_expression(params), self._query_options(params)
        query_range = form.read_query_range(params.first("start"), params.first("end"), params.first("step"))
        form.check_range_expression(expr)
        query = (
            self._queries.range(expr, query_range)
            if options.engine_override is None
            else asyncio.to_thread(options.engine_override.range, expr, query_range)
        )
        return await _query_response(await options.run(query), None, options)

    @prometheus_get("/api/v1/query_exemplars", QUERY, START, END, methods=GET_AND_POST)
    async def exemplars(self, params: Form) -> list[dict[str, Any]]:
        """Exemplars of series; the newest 20,000 are kept in memory."""
        selectors = form.selectors_in(_read_expression(params))
        start_ms, end_ms = _read_times(params, 0, clock.to_ms(self._runtime.clock.now()))
        rows = await asyncio.to_thread(self._queries.engine.exemplars, selectors, start_ms, end_ms)
        return [prometheus_json.write_exemplars(series, exemplars) for series, exemplars in rows]

    @prometheus_get("/api/v1/format_query", QUERY, methods=GET_AND_POST)
    def format_query(self, params: Form) -> str:
        """Format a PromQL expression."""
        return printer.pretty(form.parse("query", params.first("query") or ""))

    @prometheus_get("/api/v1/parse_query", QUERY, methods=GET_AND_POST)
    def parse_query(self, params: Form) -> dict[str, Any]:
        """Parse a PromQL expression into a syntax tree."""
        return prometheus_tree.write_tree(form.parse("query", params.first("query") or ""))

    @prometheus_get("/api/v1/series", replace(MATCH, is_required=True), START, END, LIMIT, methods=GET_AND_POST)
    async def series(self, params: Form) -> Response:
        """List series that match selectors."""
        if not params.all("match[]"):
            raise form.BadParameter("no match[] parameter provided")
        selectors, times = self._selectors(params)
        label_sets = await asyncio.to_thread(self._queries.engine.series, selectors or ALL_SERIES, *times)
        return limited_response([dict(labels) for labels in label_sets], params)

    @prometheus_get("/api/v1/labels", *SELECTION, methods=GET_AND_POST)
    async def labels(self, params: Form) -> Response:
        """List label names."""
        selectors, times = self._selectors(params)
        return limited_response(await asyncio.to_thread(self._queries.engine.label_names, selectors, *times), params)

    @prometheus_get("/api/v1/label/{name}/values", *SELECTION)
    async def label_values(self, params: Form, name: str) -> Response:
        """List the values of a label."""
        name = form.read_label_name(name)
        selectors, (start_ms, end_ms) = self._selectors(params)
        read_values = self._queries.engine.label_values
        values = await asyncio.to_thread(read_values, name, selectors, start_ms=start_ms, end_ms=end_ms)
        return limited_response(values, params)

    @prometheus_get("/api/v1/metadata", QueryParam("metric", "Return only this metric."), LIMIT)
    async def metadata(self, params: Form) -> dict[str, Any]:
        """Type, help and unit of metrics."""
        metric, limit = params.first("metric"), params.metadata_limit()
        # The hub has one description per metric, so this limit is only validated.
        params.metadata_limit("limit_per_metric")
        metadata = await asyncio.to_thread(self._queries.engine.metadata)
        names = [name for name in sorted(metadata) if not metric or name == metric][:limit]
        return {name: [write_metadata(metadata[name])] for name in names}

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
