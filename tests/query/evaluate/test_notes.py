"""Beside an answer stands what is doubtful about it, in Prometheus' words and with the place."""

from __future__ import annotations

import pytest

from tests.query.loading import loaded
from watchkeeper.query.engine import QueryRange, QueryResult

FALLING = ('h_bucket{le="1"} 5', 'h_bucket{le="2"} 3', 'h_bucket{le="+Inf"} 9')
COUNTER_HINT = "metric might not be a counter, name does not end in _total/_sum/_count/_bucket"


def asked(expr: str, *lines: str) -> QueryResult:
    return loaded(*lines).instant(expr, 60_000)


@pytest.mark.parametrize(
    ("expr", "told"),
    [
        ("rate(heat[5m])", f'PromQL info: {COUNTER_HINT}: "heat" (1:6)'),
        ("sum(increase(heat[5m]))", f'PromQL info: {COUNTER_HINT}: "heat" (1:14)'),
        ("vector(1) +\n  rate(heat[5m])", f'PromQL info: {COUNTER_HINT}: "heat" (2:8)'),
    ],
)
def test_a_rate_of_a_metric_not_named_like_a_counter_is_reported(expr: str, told: str) -> None:
    answer = asked(expr, "heat 1 2", "work_total 1 2")
    assert (answer.infos, answer.warnings) == ((told,), ())


@pytest.mark.parametrize("expr", ["rate(work_total[5m])", "rate(heat[1s])", "delta(heat[5m])", "rate(absent[5m])"])
def test_counters_gauge_functions_and_empty_windows_have_no_notes(expr: str) -> None:
    assert asked(expr, "heat 1 2", "work_total 1 2").infos == ()


@pytest.mark.parametrize(
    ("expr", "warned"),
    [
        ("quantile(1.5, x)", "quantile value should be between 0 and 1, got 1.5 (1:10)"),
        ("quantile(NaN, x)", "quantile value should be between 0 and 1, got NaN (1:10)"),
        ("quantile_over_time(-2, x[5m])", "quantile value should be between 0 and 1, got -2 (1:20)"),
        ("histogram_quantile(+Inf, x)", "quantile value should be between 0 and 1, got +Inf (1:20)"),
        ("limit_ratio(-3e6, x)", "ratio value should be between -1 and 1, got -3e+06, capping to -1 (1:13)"),
    ],
)
def test_a_parameter_beyond_its_bounds_is_warned_of(expr: str, warned: str) -> None:
    assert f"PromQL warning: {warned}" in asked(expr, 'x{le="+Inf"} 1 2').warnings


def test_of_parameters_that_change_from_step_to_step_the_outermost_are_warned_of() -> None:
    engine, said = loaded("x 1 2 3 4"), "PromQL warning: quantile value should be between 0 and 1, got"
    for expr, values in {"scalar(x) - 3": ("-2",), "scalar(x) + 1": ("5",), "2 * scalar(x) - 5": ("-3", "3")}.items():
        warnings = engine.range(f"quantile({expr}, x)", QueryRange(0, 180_000, 60_000)).warnings
        assert warnings == tuple(f"{said} {value} (1:10)" for value in values)


def test_buckets_without_a_bound_are_reported_and_dropped() -> None:
    answer = asked("histogram_quantile(0.5, x)", "x 1", 'x{le="Hello World"} 1')
    bad = 'PromQL warning: bucket label "le" is missing or has a malformed value of'
    assert answer.warnings == (
        f'{bad} "" for metric name "x" (1:25)',
        f'{bad} "Hello World" for metric name "x" (1:25)',
    )


def test_falling_bucket_counts_of_a_quantile_are_reported() -> None:
    [told] = asked("histogram_quantile(0.5, h_bucket)", *FALLING).infos
    assert told.startswith("PromQL info: input to histogram_quantile needed to be fixed for monotonicity (see https://")
    assert told.endswith('for metric name "h_bucket" (1:25)')
    assert asked("histogram_quantile(2, h_bucket)", *FALLING).infos == ()


def test_sorting_a_range_is_warned_of_and_an_instant_is_not() -> None:
    engine = loaded("x 1 2")
    [warned] = engine.range("1 + sort_desc(x)", QueryRange(0, 60_000, 60_000)).warnings
    assert (
        warned
        == "PromQL warning: sort is ineffective for range queries since results are always ordered by labels (1:5)"
    )
    assert engine.instant("sort_desc(x)", 60_000).warnings == ()


def test_of_many_notes_ten_are_shown_and_the_rest_is_counted() -> None:
    infos = asked('rate({a=~".+"}[5m])', *(f'gauge_{at}{{a="{at}"}} 1 2' for at in range(13))).infos
    assert (len(infos), infos[-1]) == (11, "3 more info annotations omitted")
