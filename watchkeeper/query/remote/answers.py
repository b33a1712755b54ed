"""A server's JSON as our values: frames of numbers, label sets, warnings, and errors with their place.

`query.prometheus` calls these for each response. Prometheus' HTTP API is the form; VictoriaMetrics, Thanos and
Mimir answer in it with small additions, which are understood here. What a server leaves out of an answer
(`isPartial`, warnings) is passed on, because half an answer that looks whole is worse than none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import orjson

from watchkeeper import errors
from watchkeeper.model.exemplars import Exemplar
from watchkeeper.model.labels import Labels
from watchkeeper.query import histogram_json
from watchkeeper.query.engine import Frame, Matcher, Millis, QueryRange, QueryResult, ResultType
from watchkeeper.query.remote.http import Response

# invalid parameter "query": 1:5: parse error: unexpected <by> in label matching
PARSE_ERROR = re.compile(r"(?:^|[ :])(?P<line>\d+):(?P<column>\d+): (?P<what>parse error: .*)", re.DOTALL)
# Prometheus, Mimir and VictoriaMetrics about a query that is too expensive.
LIMIT_WORDS = (
    "too many samples",
    "maximum resolution",
    "maximum limit",
    "limit of",
    "exceeds the limit",
    "-search.max",
)
INFO = "PromQL info: "
PARTIAL = "the answer is partial: the server could not reach all of its storage"


class Said(NamedTuple):
    """What a server says beside its answer."""

    warnings: tuple[str, ...] = ()
    infos: tuple[str, ...] = ()


def content(response: Response, where: str) -> tuple[Any, Said]:
    """`data` of a successful response and what the server says about it; our errors for everything else."""
    body = _json(response, where)
    if response.status == 200 and body.get("status") == "success":
        return body.get("data"), said(body)
    message = str(body.get("error") or body.get("message") or "")
    if response.status in (400, 422) or body.get("errorType") in ("bad_data", "execution", "timeout", "canceled"):
        raise query_error(message or f"the server answered {response.status}")
    raise refusal(response, where, message)


def said(body: Mapping[str, Any]) -> Said:
    lines = [str(line) for line in body.get("warnings") or ()]
    # Prometheus before 3.0 has no list of infos: they stand among the warnings.
    warnings = [line for line in lines if not line.startswith(INFO)]
    infos = [line for line in lines if line.startswith(INFO)] + [str(line) for line in body.get("infos") or ()]
    return Said(tuple(([PARTIAL] if body.get("isPartial") else []) + warnings), tuple(infos))


def query_error(message: str) -> errors.QueryError:
    found = PARSE_ERROR.search(message)
    if found:
        return errors.QueryError(found["what"], line=int(found["line"]), column=int(found["column"]))
    if any(words in message for words in LIMIT_WORDS):
        return errors.QueryLimit(message, remedy="Select fewer series or a shorter time, or raise the server's limit")
    return errors.QueryError(message)


def refusal(response: Response, where: str, message: str = "") -> errors.StoreError:
    """What a status means that is no answer to a question."""
    said = message or response.body[:300].decode("utf-8", "replace").strip()
    if response.status in (401, 403):
        remedy = "Check query.bearer_token_file, query.username, query.password_file and query.tenant"
    elif response.status in (301, 302, 303, 307, 308):
        said, remedy = response.headers.get("location", ""), "Write the address that it leads to into the settings"
    elif response.status in (404, 405):
        remedy = "The address in the settings is the part before /api/v1"
    elif response.status == 429:
        remedy = "Ask less often, or raise the server's limit"
    else:
        remedy = "Look at the server's log"
    now = f"It says {errors.quote(said)}" if said else None
    return errors.StoreError(f"the server answered {response.status}", where=where, now=now, remedy=remedy)


def instant(found: Any, at_ms: int, said: Said) -> QueryResult:
    """The answer of /api/v1/query at one time."""
    kind, result = _shape(found)
    times = np.array([at_ms], dtype=np.int64)
    if kind is ResultType.STRING:
        empty = Frame([], times[:0], np.empty((0, 0)), np.empty((0, 0), dtype=bool))
        return QueryResult(kind, empty, str(result[1]), *said)
    if kind is ResultType.SCALAR:
        value = np.array([[float(result[1])]])
        return QueryResult(kind, Frame([Labels()], times, value, np.ones((1, 1), dtype=bool)), None, *said)
    if kind is ResultType.MATRIX:
        return QueryResult(kind, _raw_frame(result), None, *said)
    values = np.array([float(row["value"][1]) if "value" in row else np.nan for row in result], dtype=np.float64)
    present = np.array(["value" in row for row in result], dtype=bool)
    cells = np.full((len(result), 1), None, dtype=object)
    for number, row in enumerate(result):
        cells[number, 0] = histogram_json.read(row["histogram"][1]) if "histogram" in row else None
    frame = Frame(
        [Labels(row["metric"]) for row in result],
        times,
        values.reshape(-1, 1),
        present.reshape(-1, 1),
        None if present.all() else cells,
    )
    return QueryResult(kind, frame, None, *said)


def vector(labels: list[Labels], values: Sequence[float], at_ms: int, *, said: Said) -> QueryResult:
    """An instant vector of numbers."""
    column = np.array(values, dtype=np.float64).reshape(-1, 1)
    frame = Frame(labels, np.array([at_ms], dtype=np.int64), column, np.ones((len(labels), 1), dtype=bool))
    return QueryResult(ResultType.VECTOR, frame, None, *said)


def ranged(found: Any, span: QueryRange, said: Said) -> QueryResult:
    """The answer of /api/v1/query_range on the axis of its span."""
    kind, result = _shape(found)
    if kind is not ResultType.MATRIX:
        raise errors.StoreError(f"the server answered a range query with a {kind}", remedy="Look at the server's log")
    rows = [row for row in result if row.get("values") or row.get("histograms")]
    times = span.times

    def place(points: Sequence[Any]) -> Millis:
        at, rest = np.divmod(_millis(points) - span.start_ms, span.step_ms)
        if rest.any() or not 0 <= int(at[0]) <= int(at[-1]) < len(times):
            raise errors.StoreError("the server answered with times that were not asked for")
        return at

    return QueryResult(kind, _filled(rows, times, place), None, *said)


def label_sets(found: Any) -> list[Labels]:
    return sorted(Labels(pairs) for pairs in found or ())


def exemplars(found: Any) -> list[tuple[Labels, list[Exemplar]]]:
    return [
        (
            Labels(row["seriesLabels"]),
            [
                Exemplar(Labels(one["labels"]), float(one["value"]), round(float(one["timestamp"]) * 1000))
                for one in row["exemplars"]
            ],
        )
        for row in found or ()
    ]


def selector(matchers: Iterable[Matcher]) -> str:
    """A selector that a server accepts; an empty one, which servers refuse, becomes every series."""
    inside = ",".join(f"{one.name}{one.op}{_quoted(one.value)}" for one in matchers)
    return "{" + (inside or '__name__!=""') + "}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _json(response: Response, where: str) -> Mapping[str, Any]:
    try:
        body = orjson.loads(response.body)
    except orjson.JSONDecodeError as error:
        if response.status != 200:
            raise refusal(response, where) from error
        raise errors.StoreError(
            f"the server's answer is not JSON: {errors.quote(response.body[:100])}",
            where=where,
            remedy="The address in the settings is the part before /api/v1",
        ) from error
    if not isinstance(body, dict):
        raise errors.StoreError("the server's answer is not an object", where=where)
    return body


def _shape(found: Any) -> tuple[ResultType, Sequence[Any]]:
    if not isinstance(found, dict) or found.get("resultType") not in set(ResultType):
        raise errors.StoreError(f"the server's answer has no known result: {errors.quote(found)}")
    return ResultType(found["resultType"]), found.get("result") or []


def _filled(rows: Sequence[Mapping[str, Any]], axis: Millis, place: Callable[[Sequence[Any]], Millis]) -> Frame:
    """Series with their points on an axis; `place` says where on it points lie."""
    shape = (len(rows), len(axis))
    values, present = np.zeros(shape), np.zeros(shape, dtype=bool)
    cells = np.full(shape, None, dtype=object) if any(row.get("histograms") for row in rows) else None
    for number, row in enumerate(rows):
        if points := row.get("values"):
            at = place(points)
            values[number, at] = [float(value) for _, value in points]
            present[number, at] = True
        if cells is not None and (points := row.get("histograms")):
            for slot, (_, plain) in zip(place(points).tolist(), points, strict=True):
                cells[number, slot] = histogram_json.read(plain)
    return Frame([Labels(row["metric"]) for row in rows], axis, values, present, cells)


def _millis(points: Sequence[Sequence[Any]]) -> Millis:
    return np.rint(np.array([point[0] for point in points], dtype=np.float64) * 1000).astype(np.int64)


def _raw_frame(result: Sequence[Mapping[str, Any]]) -> Frame:
    """Samples with their own times, on an axis of all of them."""
    rows = [row for row in result if row.get("values") or row.get("histograms")]
    own = [_millis(points) for row in rows for points in (row.get("values"), row.get("histograms")) if points]
    axis = np.unique(np.concatenate(own)) if own else np.empty(0, dtype=np.int64)
    return _filled(rows, axis, lambda points: np.searchsorted(axis, _millis(points)))
