"""Prometheus' parameters and numbers, in its own wording."""

from __future__ import annotations

import math

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.model.labels import Labels
from watchkeeper.query import engine
from watchkeeper.web.prometheus import prometheus_json
from watchkeeper.web.prometheus import prometheus_params as form

STAMPS = (0, 1.5, 1_760_000_400.123)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (math.nan, "NaN"),
        (math.inf, "+Inf"),
        (-math.inf, "-Inf"),
        (0.0, "0"),
        (-0.0, "-0"),
        (1.0, "1"),
        (0.1, "0.1"),
        (1e-5, "0.00001"),
        (1e-7, "1e-07"),
        (123456789012345680.0, "123456789012345680"),
        (1e20, "100000000000000000000"),
        (1e21, "1e+21"),
    ],
)
def test_numbers_are_written_as_prometheus_writes_them(value: float, text: str) -> None:
    assert prometheus_json.write_value(value) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_written_number_reads_back_exactly(value: float) -> None:
    assert float(prometheus_json.write_value(value)) == value


@given(st.lists(st.integers(-(2**54), 2**54).map(float) | st.just(-0.0)))
def test_whole_numbers_written_together_are_written_as_each_alone(values: list[float]) -> None:
    assert prometheus_json.write_values(values) == [prometheus_json.write_value(value) for value in values]


@given(st.lists(st.floats() | st.integers(-(10**17), 10**17).map(float) | st.sampled_from([-0.0, 10.05, 1e16])))
def test_numbers_written_together_are_written_as_each_alone(values: list[float]) -> None:
    assert prometheus_json.write_values(values) == [prometheus_json.write_value(value) for value in values]


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [
        ("1435781451.781", 1435781451781),
        ("2015-07-01T20:10:51.781Z", 1435781451781),
        ("2015-07-01T22:10:51+02:00", 1435781451000),
    ],
)
def test_times_are_seconds_or_rfc_3339(text: str, at_ms: int) -> None:
    assert form.read_time("time", text) == at_ms


@pytest.mark.parametrize("text", ["", "yesterday", "NaN", "Inf", "1e300", "2015-07-01T20:10:51"])
def test_other_times_are_refused_with_the_parameters_name(text: str) -> None:
    with pytest.raises(form.BadParameter, match='invalid parameter "start"'):
        form.read_time("start", text)


@pytest.mark.parametrize(("text", "step_ms"), [("15", 15_000), ("0.5", 500), ("1m30s", 90_000)])
def test_steps_are_seconds_or_durations(text: str, step_ms: int) -> None:
    assert form.read_query_range("0", "60", text) == engine.QueryRange(0, 60_000, step_ms)


@pytest.mark.parametrize(
    ("start", "end", "step", "words"),
    [
        ("10", "0", "1", "end timestamp must not be before start time"),
        ("0", "10", "0", "zero or negative query resolution"),
        ("0", "10", "-1", "zero or negative query resolution"),
        ("0", "10", "x", "cannot parse"),
        ("0", "11001", "1", "exceeded maximum resolution of 11,000 points per timeseries"),
    ],
)
def test_impossible_ranges_are_refused(start: str, end: str, step: str, words: str) -> None:
    with pytest.raises(form.BadParameter, match=words):
        form.read_query_range(start, end, step)


def test_absent_points_are_left_out_and_nan_is_kept() -> None:
    values, present = np.array([[1.0, math.nan, 3.5]]), np.array([[True, True, False]])
    frame = engine.Frame([Labels({"a": "b"})], np.array([1000, 1500, 2000]), values, present)
    answer = engine.QueryResult(engine.ResultType.MATRIX, frame)
    assert orjson.loads(orjson.dumps(prometheus_json.write_result(answer, None))) == {
        "resultType": "matrix",
        "result": [{"metric": {"a": "b"}, "values": [[1, "1"], [1.5, "NaN"]]}],
    }


@given(
    st.lists(st.lists(st.none() | st.floats(), min_size=3, max_size=3), max_size=4)
    | st.lists(st.lists(st.integers(0, 10_001).map(float) | st.just(-0.0), min_size=3, max_size=3), max_size=4),
    st.sampled_from([1, 4, prometheus_json.BATCH_POINTS]),
)
def test_a_matrix_has_each_present_point_of_each_series(rows: list[list[float | None]], piece: int) -> None:
    values = np.array([[0.0 if value is None else value for value in row] for row in rows]).reshape(len(rows), 3)
    present = np.array([[value is not None for value in row] for row in rows], dtype=bool).reshape(len(rows), 3)
    series = [Labels({"text": f'a"{number}\n'}) for number in range(len(rows))]
    frame = engine.Frame(series, np.array([0, 1500, 1_760_000_400_123]), values, present)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prometheus_json, "BATCH_POINTS", piece)
        written = orjson.loads(
            orjson.dumps(prometheus_json.write_result(engine.QueryResult(engine.ResultType.MATRIX, frame), None))
        )
    assert written["result"] == [
        {"metric": dict(labels.pairs), "values": points}
        for labels, row in zip(series, rows, strict=True)
        if (
            points := [
                [at, prometheus_json.write_value(value)]
                for at, value in zip(STAMPS, row, strict=True)
                if value is not None
            ]
        )
    ]


def test_a_limit_keeps_the_first_series_that_have_points() -> None:
    values, present = np.ones((3, 1)), np.array([[False], [True], [True]])
    frame = engine.Frame([Labels({"a": name}) for name in "xyz"], np.array([0]), values, present)
    answer = engine.QueryResult(engine.ResultType.VECTOR, frame)
    assert prometheus_json.limit_series(answer, 2) is answer
    assert [labels["a"] for labels in prometheus_json.limit_series(answer, 1).frame.labels] == ["y"]


def test_scalars_and_strings_have_a_time_and_a_text() -> None:
    frame = engine.Frame([Labels()], np.array([1500]), np.array([[2.0]]), np.array([[True]]))
    none = engine.Frame([], np.array([1500]), np.zeros((0, 1)), np.zeros((0, 1), dtype=np.bool_))
    assert prometheus_json.write_result(engine.QueryResult(engine.ResultType.SCALAR, frame), 1500)["result"] == [
        1.5,
        "2",
    ]
    assert prometheus_json.write_result(engine.QueryResult(engine.ResultType.STRING, none, text="hi"), 1500)[
        "result"
    ] == [
        1.5,
        "hi",
    ]
