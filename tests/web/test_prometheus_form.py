"""Prometheus' parameters and numbers, in its own wording."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.model.labels import Labels
from watchkeeper.query import engine
from watchkeeper.web import prometheus_form as form


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
    assert form.write_value(value) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_written_number_reads_back_exactly(value: float) -> None:
    assert float(form.write_value(value)) == value


@given(st.lists(st.floats() | st.integers(-(10**17), 10**17).map(float) | st.sampled_from([-0.0, 10.05, 1e16])))
def test_numbers_written_together_are_written_as_each_alone(values: list[float]) -> None:
    assert form.write_values(values) == [form.write_value(value) for value in values]


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
    assert form.read_span("0", "60", text) == engine.Span(0, 60_000, step_ms)


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
        form.read_span(start, end, step)


def test_absent_points_are_left_out_and_nan_is_kept() -> None:
    values, present = np.array([[1.0, math.nan, 3.5]]), np.array([[True, True, False]])
    frame = engine.Frame([Labels({"a": "b"})], np.array([1000, 1500, 2000]), values, present)
    answer = engine.Answer(engine.Kind.MATRIX, frame)
    assert form.write_answer(answer, None) == {
        "resultType": "matrix",
        "result": [{"metric": {"a": "b"}, "values": [[1, "1"], [1.5, "NaN"]]}],
    }


def test_scalars_and_strings_have_a_time_and_a_text() -> None:
    frame = engine.Frame([Labels()], np.array([1500]), np.array([[2.0]]), np.array([[True]]))
    none = engine.Frame([], np.array([1500]), np.zeros((0, 1)), np.zeros((0, 1), dtype=np.bool_))
    assert form.write_answer(engine.Answer(engine.Kind.SCALAR, frame), 1500)["result"] == [1.5, "2"]
    assert form.write_answer(engine.Answer(engine.Kind.STRING, none, text="hi"), 1500)["result"] == [1.5, "hi"]
