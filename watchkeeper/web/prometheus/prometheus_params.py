"""Declare the endpoints of Prometheus' API, read their parameters, and write their responses and errors.

A declared method takes a `Form` and returns a response, or the `data` of one. Parameters have Prometheus' names,
meanings and limits unless the description says otherwise.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypedDict
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from watchkeeper.errors import QueryError, StoreError
from watchkeeper.web.endpoint import QueryParam, get, json_response, prometheus_error, read_body
from watchkeeper.web.prometheus.prometheus_form import Form

# Prometheus limits an expression only by the size of a URL or form.
MAX_FORM_BYTES = 256 * 1024
GET_AND_POST = ("GET", "POST")
TRUNCATED_WARNING = "results truncated due to limit"


class QuerySeries(TypedDict, total=False):
    """A series of a vector or a matrix; numbers are strings, as in Prometheus."""

    metric: dict[str, str]
    value: tuple[float, str]
    values: list[tuple[float, str]]
    histogram: tuple[float, dict[str, Any]]
    histograms: list[tuple[float, dict[str, Any]]]


class QueryData(TypedDict):
    """Prometheus' `data`: series, or one point for a scalar or a string."""

    resultType: str
    result: list[QuerySeries] | tuple[float, str]


QUERY = QueryParam("query", "The PromQL expression to evaluate.", is_required=True)
TIMEOUT = QueryParam("timeout", "Evaluation timeout, such as 30s, at most 2m; then 503 `timeout`. Default: 2m.")
LOOKBACK = QueryParam(
    "lookback_delta", "Lookback of instant selectors for this query, such as 5m; not supported by a remote engine."
)
LIMIT = QueryParam("limit", "Maximum number of results, with a warning if truncated. Default: all.", int)
STATS = QueryParam("stats", "Set to all to add the evaluation time to the answer; samples are not counted.")
START = QueryParam("start", "Start time: RFC 3339 or Unix seconds.")
END = QueryParam("end", "End time: RFC 3339 or Unix seconds.")
STEP = QueryParam("step", "Resolution: a duration such as 15s, or seconds.", is_required=True)
MATCH = QueryParam("match[]", "Return only series that match this selector; repeat it for several.", list[str])
QUERY_OPTIONS = (TIMEOUT, LOOKBACK, LIMIT, STATS)
SELECTION = (MATCH, START, END, LIMIT)


class QueryTimeout(Exception):
    """A query ran longer than its timeout."""


def prometheus_get(
    path: str, *params: QueryParam, **fields: Any
) -> Callable[[Callable[..., Any]], Callable[..., Awaitable[Response]]]:
    """Declare a method as an endpoint; its errors have Prometheus' types."""

    def declare(method: Callable[..., Any]) -> Callable[..., Awaitable[Response]]:
        @get(path, *params, **fields)
        @functools.wraps(method)
        async def answer(api: object, request: Request) -> Response:
            try:
                data = method(api, await read_form(request), **request.path_params)
                data = await data if inspect.isawaitable(data) else data
            except QueryError as error:
                return prometheus_error(str(error), status=422)
            except QueryTimeout as error:
                return prometheus_error(str(error), status=503, kind="timeout")
            except StoreError as error:
                return prometheus_error(str(error), status=503)
            except HTTPException as error:
                return prometheus_error(error.detail, status=error.status_code)
            return data if isinstance(data, Response) else success_response(data)

        return answer

    return declare


async def read_form(request: Request) -> Form:
    pairs = parse_qsl(request.scope["query_string"].decode("latin-1"), keep_blank_values=True)
    if request.method == "POST":
        body = await read_body(request, MAX_FORM_BYTES, remedy="Split the expression into recording rules")
        pairs = parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True) + pairs
    return Form(pairs, accept=request.headers.get("accept", ""))


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
