"""Declare the endpoints of Prometheus' API, read their parameters, and write their responses and errors.

A declared method takes a `Form` and returns a response, or the `data` of one. Parameters have Prometheus' names,
meanings and limits unless the description says otherwise, and an invalid one raises `BadParameter` with Prometheus' own
wording, because clients match it.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime
from typing import Any, TypedDict
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from watchkeeper.errors import QueryError, QueryTimeout, StoreError
from watchkeeper.kit import clock, durations
from watchkeeper.query import engine
from watchkeeper.query.promql import ast, parser, types
from watchkeeper.web.endpoint import QueryParam, get, json_response, prometheus_error, read_body

# Prometheus' limit on the points of one series, more than a screen has columns.
MAX_POINTS = 11_000
# The last second of the year 9999, where datetime ends.
LAST_SECOND = 253_402_300_799.0
# How Prometheus' clients write the minimum and maximum time.
TIME_BOUNDS = {"-292273086-05-16T16:47:06Z": -LAST_SECOND, "292277025-08-18T07:12:54.999999999Z": LAST_SECOND}

# Python accepts more numbers and times than Go: ` 5`, digits of all scripts, 2026-W07-4.
DIGITS = r"\d+(?:_\d+)*"
NUMBER = re.compile(rf"[-+]?(?:{DIGITS}\.?(?:{DIGITS})?|\.{DIGITS})(?:e[-+]?{DIGITS})?", re.ASCII | re.IGNORECASE)
TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[-+]\d\d:\d\d)", re.ASCII)

# Trees of expressions up to this length are cached.
MAX_CACHED_LENGTH = 1000
# Go's strconv.ParseBool.
BOOLEANS = {"true": True, "1": True, "t": True, "false": False, "0": False, "f": False}
ESCAPED_NAME = "U__"
ESCAPED_PART = re.compile("_([0-9a-fA-F]{1,6})_|__")
# Prometheus limits an expression only by the size of a URL or form.
MAX_FORM_BYTES = 256 * 1024
# Each selector of a list of series is searched separately.
MAX_FIELDS = 1000
GET_AND_POST = ("GET", "POST")
TRUNCATED_WARNING = "results truncated due to limit"
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


class BadParameter(HTTPException):
    """An invalid parameter; answered as 400 bad_data."""

    def __init__(self, problem: str) -> None:
        super().__init__(400, problem)


class Form:
    """The parameters of one request, from the URL and from a form body."""

    def __init__(self, pairs: Sequence[tuple[str, str]], *, accept: str = "") -> None:
        self._pairs = pairs
        # The Accept header: the formats that the client accepts.
        self.accept = accept

    def first(self, name: str) -> str | None:
        return next((value for key, value in self._pairs if key == name), None)

    def all(self, name: str) -> list[str]:
        return [value for key, value in self._pairs if key == name]

    def limit(self, name: str = "limit", *, minimum: int = 0) -> int | None:
        """The largest number of items to return; None, for all, if the parameter is absent or 0."""
        text = self.first(name)
        if not text:
            return None
        if not (text.isascii() and text.isdigit() and len(text) < 16 and int(text) >= minimum):
            raise BadParameter(f'invalid parameter "{name}": "{text[:80]}" is not a number of {minimum} or more')
        return int(text) or None

    def metadata_limit(self, name: str = "limit") -> int | None:
        """The limit of metadata endpoints: as in Prometheus, 0 means none, and -1 or absent means all."""
        return 0 if self.first(name) == "0" else None if self.first(name) == "-1" else self.limit(name)

    def is_true(self, name: str) -> bool:
        text = (self.first(name) or "false").lower()
        if text not in BOOLEANS:
            raise BadParameter(f'invalid parameter "{name}": "{text[:80]}" is not true or false')
        return BOOLEANS[text]


def read_time(name: str, text: str | None, *, default_ms: int | None = None) -> int:
    """Milliseconds of a time written as Unix seconds or RFC 3339."""
    if not text:
        if default_ms is None:
            raise BadParameter(f'invalid parameter "{name}": cannot parse "" to a valid timestamp')
        return default_ms
    problem = f'invalid parameter "{name}": cannot parse "{text[:80]}" to a valid timestamp'
    if text in TIME_BOUNDS or NUMBER.fullmatch(text):
        seconds = TIME_BOUNDS.get(text) or float(text)
        if not abs(seconds) <= LAST_SECOND:
            raise BadParameter(problem)
        return round(seconds * 1000)
    if not TIMESTAMP.fullmatch(text):
        raise BadParameter(f"{problem}: expected Unix seconds or a time such as 2026-02-12T02:14:07Z")
    try:
        return clock.to_ms(datetime.fromisoformat(text))
    except ValueError as error:
        raise BadParameter(f"{problem}: {error}") from error


def read_duration(name: str, text: str | None) -> int:
    """Milliseconds of a duration written as seconds or as a Prometheus duration such as 5m."""
    if NUMBER.fullmatch(text or ""):
        seconds = float(text or "")
        if abs(seconds) > durations.MAX_MS / 1000:
            raise BadParameter(f'invalid parameter "{name}": cannot parse "{text}" to a valid duration')
        return round(seconds * 1000)
    try:
        return durations.parse_ms(text or "")
    except ValueError as error:
        raise BadParameter(
            f'invalid parameter "{name}": cannot parse "{(text or "")[:80]}" to a valid duration: {error}'
        ) from error


def read_query_range(start: str | None, end: str | None, step: str | None) -> engine.QueryRange:
    start_ms, end_ms = read_time("start", start), read_time("end", end)
    if end_ms < start_ms:
        raise BadParameter('invalid parameter "end": end timestamp must not be before start time')
    step_ms = read_duration("step", step)
    if step_ms <= 0:
        raise BadParameter(
            'invalid parameter "step": zero or negative query resolution step widths are not accepted. '
            "Try a positive integer"
        )
    points = (end_ms - start_ms) // step_ms
    if points > MAX_POINTS:
        raise BadParameter(
            f"exceeded maximum resolution of {MAX_POINTS:,} points per timeseries ({points:,} requested). "
            "Try decreasing the query resolution (?step=XX)"
        )
    return engine.QueryRange(start_ms, end_ms, step_ms)


def parse(name: str, text: str) -> ast.Expr:
    """Parse an expression; invalid PromQL is a bad parameter, unlike an error during evaluation."""
    try:
        return _parse_cached(text) if len(text) <= MAX_CACHED_LENGTH else parser.parse(text)
    except QueryError as error:
        raise BadParameter(f'invalid parameter "{name}": {error}') from error


# A page repeats its expressions; a tree takes about a hundred times the memory of its text.
@functools.lru_cache(maxsize=256)
def _parse_cached(text: str) -> ast.Expr:
    return parser.parse(text)


def check_range_expression(text: str) -> None:
    """Raise BadParameter unless the expression returns a scalar or an instant vector at each step."""
    value_type = types.value_type(parse("query", text))
    if value_type not in (ast.ValueType.SCALAR, ast.ValueType.INSTANT):
        why = f'invalid expression type "{value_type}" for range query, must be Scalar or instant Vector'
        raise BadParameter(f'invalid parameter "query": {why}')


def read_matchers(name: str, text: str) -> tuple[engine.Matcher, ...]:
    """The matchers of a series selector."""
    tree = parse(name, text)
    if not isinstance(tree, ast.Selector) or tree != ast.Selector(tree.name, tree.matchers):
        raise BadParameter(f'invalid parameter "{name}": expected a series selector such as up{{job="x"}}')
    return tree.matchers


def read_label_name(text: str) -> str:
    """Unescape a label name of a path: Prometheus 3 writes names beyond [a-zA-Z0-9_] as U__, with _2e_ for a dot."""
    if not text.startswith(ESCAPED_NAME):
        return text
    try:
        return ESCAPED_PART.sub(lambda part: chr(int(part[1], 16)) if part[1] else "_", text[len(ESCAPED_NAME) :])
    except (ValueError, OverflowError):
        return text


def selectors_in(expr: str) -> list[tuple[engine.Matcher, ...]]:
    """The matchers of every selector in a valid PromQL expression."""

    def walk(node: object) -> Iterator[tuple[engine.Matcher, ...]]:
        if isinstance(node, ast.Selector):
            yield node.matchers
        elif isinstance(node, tuple):
            yield from (matchers for each in node for matchers in walk(each))
        elif is_dataclass(node):
            yield from (matchers for each in fields(node) for matchers in walk(getattr(node, each.name)))

    return list(walk(parser.parse(expr)))


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
            except QueryTimeout as error:
                return prometheus_error(str(error), status=503, kind="timeout")
            except QueryError as error:
                return prometheus_error(str(error), status=422)
            except StoreError as error:
                return prometheus_error(str(error), status=503)
            except HTTPException as error:
                return prometheus_error(error.detail, status=error.status_code)
            return data if isinstance(data, Response) else success_response(data)

        return answer

    return declare


async def read_form(request: Request) -> Form:
    pairs = _parse_pairs(request.scope["query_string"].decode("latin-1"))
    if request.method == "POST":
        body = await read_body(request, MAX_FORM_BYTES, remedy="Split the expression into recording rules")
        pairs = _parse_pairs(body.decode("utf-8", "replace")) + pairs
    return Form(pairs, accept=request.headers.get("accept", ""))


def _parse_pairs(text: str) -> list[tuple[str, str]]:
    try:
        return parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FIELDS)
    except ValueError as error:
        raise BadParameter(f"the request has more than {MAX_FIELDS:,} parameters. Send several requests") from error


def success_response(content: Any, warnings: Sequence[str] = (), infos: Sequence[str] = ()) -> Response:
    notices = {"warnings": list(warnings), "infos": list(infos)}
    return json_response(
        {"status": "success", "data": content} | {key: texts for key, texts in notices.items() if texts}
    )


def limited_response(items: Sequence[Any], params: Form, *, write: Callable[[Any], Any] = str) -> Response:
    limit = params.limit()
    if limit is None or len(items) <= limit:
        return success_response([write(item) for item in items])
    return success_response([write(item) for item in items[:limit]], [TRUNCATED_WARNING])
