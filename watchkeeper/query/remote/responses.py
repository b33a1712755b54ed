"""Read responses of the Prometheus HTTP API: results, label sets, warnings, and errors with their position.

The small additions of VictoriaMetrics, Thanos and Mimir are supported. A partial response (`isPartial`, warnings)
becomes a warning, because half a result that looks complete is worse than none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import orjson

from watchkeeper import errors
from watchkeeper.kit.own_metrics import escape
from watchkeeper.model.exemplars import Exemplar
from watchkeeper.model.labels import Labels
from watchkeeper.query import histogram_json
from watchkeeper.query.engine import Frame, Matcher, Millis, QueryRange, QueryResult, ResultType
from watchkeeper.query.remote.bounded_cache import BoundedCache, default_limit_bytes
from watchkeeper.query.remote.http import Response

# invalid parameter "query": 1:5: parse error: unexpected <by> in label matching
PARSE_ERROR = re.compile(r"(?:^|[ :])(?P<line>\d+):(?P<column>\d+): (?P<what>parse error: .*)", re.DOTALL)
# Phrases of Prometheus, Mimir and VictoriaMetrics for a query that exceeds a limit.
LIMIT_PHRASES = (
    "too many samples",
    "maximum resolution",
    "maximum limit",
    "limit of",
    "exceeds the limit",
    "-search.max",
)
INFO = "PromQL info: "
PARTIAL = "the result is partial: the server could not reach all of its storage"


class ResponseNotes(NamedTuple):
    warnings: tuple[str, ...] = ()
    infos: tuple[str, ...] = ()


# {"metric":{"__name__":"up","instance":"n1"},"value":[1730000000.123,"1"]},
ROW = b'{"metric":'
VALUE = b',"value":['
# In a string a quotation mark follows a backslash, so neither END nor NEXT can be part of a label.
END = b"]}"
NEXT = b'"]},' + ROW
# The memory of a cached label set besides its bytes: a dictionary entry, the Labels and its pairs.
ENTRY_OVERHEAD_BYTES = 1500


class VectorRows(NamedTuple):
    labels: list[Labels]
    values: list[float]
    envelope: Mapping[str, Any]


_label_cache: BoundedCache[bytes, Labels] = BoundedCache(
    lambda raw: Labels(orjson.loads(raw)),
    lambda raw, _: len(raw) + ENTRY_OVERHEAD_BYTES,
    limit_bytes=default_limit_bytes(),
)


def read_vector_rows(body: bytes) -> VectorRows | None:
    """The rows of a successful response; None if it has no rows, or a row without a number.

    A rule gets the same hundred thousand series at each evaluation. The cache finds their labels by the bytes that the
    server sends, so that only the values are parsed: a tenth of the time of a JSON parser.
    """
    head, *pieces = body.split(ROW)
    if not pieces:
        return None
    labels, values, tail = [], [], b""
    try:
        for piece in pieces:
            raw, _, rest = piece.rpartition(VALUE)
            timestamp, text, tail = rest.split(b'"', 2)
            if not timestamp.endswith(b",") or not tail.startswith(END):
                return None
            labels.append(_label_cache.get(raw))
            values.append(float(text))
        envelope = orjson.loads(head + tail[len(END) :])
    except ValueError:
        return None
    if body.count(NEXT) != len(pieces) - 1 or not isinstance(envelope, dict):
        return None
    is_vector = envelope.get("data") == {"resultType": "vector", "result": []}
    return VectorRows(labels, values, envelope) if is_vector and envelope.get("status") == "success" else None


def read_payload(response: Response, where: str) -> tuple[Any, ResponseNotes]:
    """The `data` of a successful response and its warnings; QueryError or StoreError for every other response."""
    body = _json(response, where)
    if response.status == 200 and body.get("status") == "success":
        return body.get("data"), read_notes(body)
    message = str(body.get("error") or body.get("message") or "")
    if response.status in (400, 422) or body.get("errorType") in ("bad_data", "execution", "timeout", "canceled"):
        raise query_error(message or f"the server answered {response.status}")
    raise response_error(response, where, message)


def read_notes(body: Mapping[str, Any]) -> ResponseNotes:
    warnings_and_infos = [str(line) for line in body.get("warnings") or ()]
    # Prometheus before 3.0 has no list of infos: they are among the warnings.
    warnings = [line for line in warnings_and_infos if not line.startswith(INFO)]
    infos = [line for line in warnings_and_infos if line.startswith(INFO)] + [
        str(line) for line in body.get("infos") or ()
    ]
    return ResponseNotes(tuple(([PARTIAL] if body.get("isPartial") else []) + warnings), tuple(infos))


def query_error(message: str) -> errors.QueryError:
    match = PARSE_ERROR.search(message)
    if match:
        return errors.QueryError(match["what"], line=int(match["line"]), column=int(match["column"]))
    if any(phrase in message for phrase in LIMIT_PHRASES):
        return errors.QueryLimit(message, remedy="Select fewer series or a shorter range, or raise the server's limit")
    return errors.QueryError(message)


def response_error(response: Response, where: str, message: str = "") -> errors.StoreError:
    """The error for a response that has no query result, with a remedy for its status."""
    body_text = message or response.body[:300].decode("utf-8", "replace").strip()
    if response.status in (401, 403):
        remedy = "Check query.bearer_token_file, query.username, query.password_file and query.tenant"
    elif response.status in (301, 302, 303, 307, 308):
        body_text, remedy = response.headers.get("location", ""), "Set query.url to the address it redirects to"
    elif response.status in (404, 405):
        remedy = "Set the address without /api/v1"
    elif response.status == 429:
        remedy = "Send fewer requests, or raise the server's limit"
    else:
        remedy = "Check the log of the server"
    now = f"The response says {errors.quote(body_text)}" if body_text else None
    return errors.StoreError(f"the server answered {response.status}", where=where, now=now, remedy=remedy)


def read_instant(data: Any, at_ms: int, notes: ResponseNotes) -> QueryResult:
    kind, result = _check_shape(data)
    times = np.array([at_ms], dtype=np.int64)
    if kind is ResultType.STRING:
        empty = Frame([], times[:0], np.empty((0, 0)), np.empty((0, 0), dtype=bool))
        return QueryResult(kind, empty, str(result[1]), *notes)
    if kind is ResultType.SCALAR:
        value = np.array([[float(result[1])]])
        return QueryResult(kind, Frame([Labels()], times, value, np.ones((1, 1), dtype=bool)), None, *notes)
    if kind is ResultType.MATRIX:
        return QueryResult(kind, _raw_frame(result), None, *notes)
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
    return QueryResult(kind, frame, None, *notes)


def build_vector(rows: VectorRows, at_ms: int) -> QueryResult:
    column = np.array(rows.values, dtype=np.float64).reshape(-1, 1)
    frame = Frame(rows.labels, np.array([at_ms], dtype=np.int64), column, np.ones(column.shape, dtype=bool))
    return QueryResult(ResultType.VECTOR, frame, None, *read_notes(rows.envelope))


def read_range(data: Any, span: QueryRange, notes: ResponseNotes) -> QueryResult:
    """Read the result of /api/v1/query_range with the steps of the requested range."""
    kind, result = _check_shape(data)
    if kind is not ResultType.MATRIX:
        raise errors.StoreError(
            f"the server answered a range query with a {kind}", remedy="Check the log of the server"
        )
    rows = [row for row in result if row.get("values") or row.get("histograms")]
    times = span.times

    def positions_of(points: Sequence[Any]) -> Millis:
        positions, remainders = np.divmod(_millis(points) - span.start_ms, span.step_ms)
        if remainders.any() or not 0 <= int(positions[0]) <= int(positions[-1]) < len(times):
            raise errors.StoreError("the response of the server has times that were not requested")
        return positions

    return QueryResult(kind, _build_frame(rows, times, positions_of), None, *notes)


def read_exemplars(data: Any) -> list[tuple[Labels, list[Exemplar]]]:
    return [
        (Labels(row["seriesLabels"]), [_read_exemplar(exemplar) for exemplar in row["exemplars"]]) for row in data or ()
    ]


def _read_exemplar(row: Mapping[str, Any]) -> Exemplar:
    return Exemplar(Labels(row["labels"]), float(row["value"]), round(float(row["timestamp"]) * 1000))


def format_selector(matchers: Iterable[Matcher]) -> str:
    """A selector of these matchers as text; without matchers it selects every series, because servers refuse `{}`."""
    inside = ",".join(f'{matcher.name}{matcher.op}"{escape(matcher.value)}"' for matcher in matchers)
    return "{" + (inside or '__name__!=""') + "}"


def _json(response: Response, where: str) -> Mapping[str, Any]:
    try:
        body = orjson.loads(response.body)
    except orjson.JSONDecodeError as error:
        if response.status != 200:
            raise response_error(response, where) from error
        raise errors.StoreError(
            f"the response of the server is not JSON: {errors.quote(response.body[:100])}",
            where=where,
            remedy="Set the address without /api/v1",
        ) from error
    if not isinstance(body, dict):
        raise errors.StoreError("the response of the server is not a JSON object", where=where)
    return body


def _check_shape(data: Any) -> tuple[ResultType, Sequence[Any]]:
    if not isinstance(data, dict) or data.get("resultType") not in set(ResultType):
        raise errors.StoreError(f"the response of the server has no known resultType: {errors.quote(data)}")
    return ResultType(data["resultType"]), data.get("result") or []


def _build_frame(
    rows: Sequence[Mapping[str, Any]], axis: Millis, positions_of: Callable[[Sequence[Any]], Millis]
) -> Frame:
    """Build a frame; `positions_of` returns the positions of points on the time axis."""
    shape = (len(rows), len(axis))
    values, present = np.zeros(shape), np.zeros(shape, dtype=bool)
    cells = np.full(shape, None, dtype=object) if any(row.get("histograms") for row in rows) else None
    for number, row in enumerate(rows):
        if points := row.get("values"):
            positions = positions_of(points)
            values[number, positions] = [float(value) for _, value in points]
            present[number, positions] = True
        if cells is not None and (points := row.get("histograms")):
            for position, (_, plain) in zip(positions_of(points).tolist(), points, strict=True):
                cells[number, position] = histogram_json.read(plain)
    return Frame([Labels(row["metric"]) for row in rows], axis, values, present, cells)


def _millis(points: Sequence[Sequence[Any]]) -> Millis:
    return np.rint(np.array([point[0] for point in points], dtype=np.float64) * 1000).astype(np.int64)


def _raw_frame(result: Sequence[Mapping[str, Any]]) -> Frame:
    rows = [row for row in result if row.get("values") or row.get("histograms")]
    sample_times = [_millis(points) for row in rows for points in (row.get("values"), row.get("histograms")) if points]
    axis = np.unique(np.concatenate(sample_times)) if sample_times else np.empty(0, dtype=np.int64)
    return _build_frame(rows, axis, lambda points: np.searchsorted(axis, _millis(points)))
