"""Instant vectors read row by row: the same as read by way of JSON, or left to it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.query.remote import responses
from watchkeeper.query.remote.http import Response

AT_MS = 1_705_276_800_000
# Everything that could be taken for the end of a row, or for its labels.
hostile = st.sampled_from(['{"metric":{}', ',"value":[1,"2"]},', '"]},{"metric":', "\\", '"', "\n", "é", "]}", ""])
words = st.lists(hostile | st.text(max_size=4), max_size=3).map("".join)
metrics = st.dictionaries(words.filter(bool), words, max_size=4)
numbers = st.floats(allow_nan=False).map(
    lambda value: {float("inf"): "+Inf", float("-inf"): "-Inf"}.get(value, repr(value))
)
rows = st.lists(st.tuples(metrics, numbers), min_size=1, max_size=5)
# Prometheus writes no spaces; a server that does is read the other way.
spacings = st.sampled_from([(",", ":"), (", ", ": ")])


def body(result: list[object], kind: str = "vector", **beside: object) -> bytes:
    told = {"status": "success", "data": {"resultType": kind, "result": result}, **beside}
    return json.dumps(told, separators=(",", ":"), ensure_ascii=False).encode()


@given(rows, spacings)
def test_rows_are_those_that_json_has(found: list[tuple[dict[str, str], str]], spacing: tuple[str, str]) -> None:
    result = [{"metric": metric, "value": [1705276800.123, value]} for metric, value in found]
    told = {"status": "success", "data": {"resultType": "vector", "result": result}, "warnings": ["w"]}
    sent = json.dumps(told, separators=spacing, ensure_ascii=False).encode()
    wanted = responses.read_instant(told["data"], AT_MS, responses.ResponseNotes())
    read = responses.read_vector_rows(sent)
    if spacing != (",", ":"):
        assert read is None
        return
    assert read is not None
    assert (read.labels, read.values) == (wanted.frame.labels, wanted.frame.values[:, 0].tolist())
    assert responses.read_notes(read.envelope).warnings == ("w",)


@pytest.mark.parametrize(
    "sent",
    [
        body([]),
        body([1705276800.0, "1"], kind="scalar"),
        body([{"metric": {"a": "b"}, "values": [[1, "2"], [3, "4"]]}], kind="matrix"),
        body([{"metric": {"a": "b"}, "histogram": [1, {"count": "1"}]}]),
        body([{"metric": {"a": "b"}, "value": [1, "2"]}, {"metric": {}, "histogram": [1, {"count": "1"}]}]),
        body([{"metric": {"a": "b"}, "value": [1, "2"], "more": 1}]),
        body([{"metric": {"a": "b"}, "value": [1, "two"]}]),
        body([{"metric": {"a": "b"}, "value": [1, "2"]}])[:-4],
        b'{"status":"error","errorType":"bad_data","error":"x"}',
        b'{"metric":{"a":"b"},"value":[1,"2"]}',
    ],
)
def test_what_is_not_a_vector_of_numbers_is_left_to_json(sent: bytes) -> None:
    assert responses.read_vector_rows(sent) is None


def test_the_series_of_the_answer_before_are_the_same_objects() -> None:
    sent = body([{"metric": {"__name__": "up", "instance": f"n{at}"}, "value": [1, str(at)]} for at in range(3)])
    first, second = responses.read_vector_rows(sent), responses.read_vector_rows(sent.replace(b'[1,"', b'[16.5,"'))
    assert first is not None
    assert second is not None
    assert all(one is other for one, other in zip(first.labels, second.labels, strict=True))
    assert second.values == [0.0, 1.0, 2.0]


def test_a_partial_answer_says_so() -> None:
    read = responses.read_vector_rows(body([{"metric": {}, "value": [1, "2"]}], isPartial=True))
    assert read is not None
    assert responses.read_notes(read.envelope).warnings == (responses.PARTIAL,)
    assert responses.read_payload(Response(200, {}, body([])), "x")[0] == read.envelope["data"]
