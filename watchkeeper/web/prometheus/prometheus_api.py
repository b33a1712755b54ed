"""Serve Prometheus' HTTP API, so that Grafana, promtool and other clients work against a hub.

Formats, parameter names, error types and status codes are Prometheus'; a field that the hub cannot fill is present and
empty. The console draws its charts with the same endpoints. docs/howto/grafana.md lists the calls that Grafana makes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from starlette.responses import Response

from watchkeeper.hub.runtime import Runtime
from watchkeeper.hub.samples import QUERY_TIMEOUT_SECONDS, Queries
from watchkeeper.kit import allowance, clock
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
    limited_response,
    prometheus_get,
    success_response,
)
from watchkeeper.web.prometheus.prometheus_status import write_metadata

ALL_SERIES = ((engine.Matcher(METRIC_NAME, engine.MatchOp.NOT_EQUAL, ""),),)


@dataclass(slots=True)
class _QueryOptions:
    """The options of a query; `engine_override` replaces the hub's engine for a request with its own lookback."""

    engine_override: engine.Engine | None
    timeout_seconds: float
    limit: int | None
    with_stats: bool


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
        expr, options = params.first("query") or "", self._query_options(params)
        at_ms = form.read_time("time", params.first("time"), default_ms=clock.to_ms(self._runtime.clock.now()))
        queried = options.engine_override or self._queries.engine

        def answer() -> Response:
            form.parse("query", expr)
            return _answer_query(lambda: queried.instant(expr, at_ms), at_ms, options)

        return await self._queries.run_for_user(answer, timeout_seconds=options.timeout_seconds)

    @prometheus_get(
        "/api/v1/query_range", QUERY, START, END, STEP, *QUERY_OPTIONS, methods=GET_AND_POST, response=QueryData
    )
    async def query_range(self, params: Form) -> Response:
        """Evaluate a range query."""
        expr, options = params.first("query") or "", self._query_options(params)
        query_range = form.read_query_range(params.first("start"), params.first("end"), params.first("step"))
        queried = options.engine_override
        if queried is None and (result := self._queries.range_if_cheap(expr, query_range)) is not None:
            return _answer_query(lambda: result, None, options)

        def answer() -> Response:
            form.check_range_expression(expr)
            return _answer_query(lambda: (queried or self._queries.engine).range(expr, query_range), None, options)

        return await self._queries.run_for_user(answer, timeout_seconds=options.timeout_seconds)

    @prometheus_get("/api/v1/query_exemplars", QUERY, START, END, methods=GET_AND_POST)
    async def exemplars(self, params: Form) -> list[dict[str, Any]]:
        """Exemplars of series; the newest 20,000 are kept in memory."""
        start_ms, end_ms = self._read_times(params)

        def answer() -> list[dict[str, Any]]:
            expr = params.first("query") or ""
            form.parse("query", expr)
            rows = self._queries.engine.exemplars(form.selectors_in(expr), start_ms, end_ms)
            return [prometheus_json.write_exemplars(series, exemplars) for series, exemplars in rows]

        return await self._queries.run_for_user(answer)

    @prometheus_get("/api/v1/format_query", QUERY, methods=GET_AND_POST)
    async def format_query(self, params: Form) -> str:
        """Format a PromQL expression."""
        expr = params.first("query") or ""
        return await self._queries.run_for_user(lambda: printer.pretty(form.parse("query", expr)))

    @prometheus_get("/api/v1/parse_query", QUERY, methods=GET_AND_POST)
    async def parse_query(self, params: Form) -> dict[str, Any]:
        """Parse a PromQL expression into a syntax tree."""
        expr = params.first("query") or ""
        return await self._queries.run_for_user(lambda: prometheus_tree.write_tree(form.parse("query", expr)))

    @prometheus_get("/api/v1/series", replace(MATCH, is_required=True), START, END, LIMIT, methods=GET_AND_POST)
    async def series(self, params: Form) -> Response:
        """List series that match selectors."""
        if not params.all("match[]"):
            raise form.BadParameter("no match[] parameter provided")
        start_ms, end_ms = self._read_times(params)

        def answer() -> Response:
            label_sets = self._queries.engine.series(_read_selectors(params) or ALL_SERIES, start_ms, end_ms)
            return limited_response(label_sets, params, write=dict)

        return await self._queries.run_for_user(answer)

    @prometheus_get("/api/v1/labels", *SELECTION, methods=GET_AND_POST)
    async def labels(self, params: Form) -> Response:
        """List label names."""
        start_ms, end_ms = self._read_times(params)
        read_names = self._queries.engine.label_names
        return await self._queries.run_for_user(
            lambda: limited_response(read_names(_read_selectors(params), start_ms, end_ms), params)
        )

    @prometheus_get("/api/v1/label/{name}/values", *SELECTION)
    async def label_values(self, params: Form, name: str) -> Response:
        """List the values of a label."""
        name, (start_ms, end_ms) = form.read_label_name(name), self._read_times(params)
        read_values = self._queries.engine.label_values

        def answer() -> Response:
            values = read_values(name, _read_selectors(params), start_ms=start_ms, end_ms=end_ms)
            return limited_response(values, params)

        return await self._queries.run_for_user(answer)

    @prometheus_get("/api/v1/metadata", QueryParam("metric", "Return only this metric."), LIMIT)
    async def metadata(self, params: Form) -> dict[str, Any]:
        """Type, help and unit of metrics."""
        metric, limit = params.first("metric"), params.metadata_limit()
        # The hub has one description per metric, so this limit is only validated.
        params.metadata_limit("limit_per_metric")
        metadata = await self._queries.run_for_user(self._queries.engine.metadata)
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

    def _read_times(self, params: Form) -> tuple[int, int]:
        start = form.read_time("start", params.first("start"), default_ms=0)
        end = form.read_time("end", params.first("end"), default_ms=clock.to_ms(self._runtime.clock.now()))
        if end < start:
            raise form.BadParameter('invalid parameter "end": end timestamp must not be before start time')
        return start, end


def _read_timeout(params: Form) -> float:
    text = params.first("timeout")
    if not text:
        return QUERY_TIMEOUT_SECONDS
    seconds = form.read_duration("timeout", text) / 1000
    if seconds <= 0:
        raise form.BadParameter('invalid parameter "timeout": it must be greater than 0')
    return min(seconds, QUERY_TIMEOUT_SECONDS)


def _read_selectors(params: Form) -> Sequence[Sequence[engine.Matcher]]:
    return [form.read_matchers("match[]", text) for text in allowance.watch(params.all("match[]"))]


def _answer_query(evaluate: Callable[[], engine.QueryResult], at_ms: int | None, options: _QueryOptions) -> Response:
    """Evaluate a query and write its result, which for a large one takes longer."""
    began = time.perf_counter()
    result = evaluate()
    seconds = time.perf_counter() - began
    limited = result if options.limit is None else prometheus_json.limit_series(result, options.limit)
    content, warnings = prometheus_json.write_result(limited, at_ms), list(result.warnings)
    if limited is not result:
        warnings.append(TRUNCATED_WARNING)
    if options.with_stats:
        content["stats"] = {"timings": {"evalTotalTime": seconds, "execTotalTime": seconds}}
    return success_response(content, warnings, result.infos)
