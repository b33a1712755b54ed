"""Experiments of Prometheus that are spoken without a flag: computed durations, fills, and labels of info metrics."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.query.loading import instant, loaded, ranged
from watchkeeper import errors
from watchkeeper.query.engine import QueryLimits
from watchkeeper.query.promql import ast, duration_expr, parser, printer

COUNTER = "x_total 0+1x60"
# What is written, and what it is in a query with a step of 30 s over 10 minutes.
DURATIONS = {
    "5m * 2": 600_000,
    "1h / 4 + 30": 930_000,
    "-(1m - 90s)": 30_000,
    "2 ^ 3 ^ 1": 8_000,
    "7m % 2m": 60_000,
    "step()": 30_000,
    "STEP() * 2 + 1ms": 60_001,
    "range() / 4": 150_000,
    "max_of(step(), min_of(2m, 90))": 90_000,
}
KNOWN = duration_expr.QueryTimes(step_ms=30_000, range_ms=600_000)


@pytest.mark.parametrize(("text", "milliseconds"), DURATIONS.items())
def test_a_duration_is_computed_wherever_one_may_stand(text: str, milliseconds: int) -> None:
    tree = parser.parse(f"rate(a[{text}:{text}] offset ({text}))")
    assert isinstance(tree, ast.FunctionCall)
    [found] = tree.args
    assert isinstance(found, ast.Subquery)
    fixed = (found.range_ms, found.step_ms, found.offset_ms)
    by = (found.range_expr, found.step_expr, found.offset_expr)
    worked_out = [
        ms if how is None else duration_expr.evaluate_ms(how, KNOWN) for ms, how in zip(fixed, by, strict=True)
    ]
    assert worked_out == [milliseconds] * 3
    assert parser.parse(printer.to_text(tree)) == tree


def test_a_window_follows_the_step_of_the_query() -> None:
    engine = loaded(COUNTER, step="10s")
    assert ranged(engine, "count_over_time(x_total[step()])", "2m", step="1m") == {"{}": {0: 1.0, 60: 6.0, 120: 6.0}}
    assert ranged(engine, "x_total offset range()", "1m", step="1m") == {"x_total": {60: 0.0}}
    with pytest.raises(errors.QueryError, match="greater than 0, it is 0 s in this query"):
        engine.instant("rate(x_total[step()])", 60_000)


def test_a_number_after_an_offset_belongs_to_the_operator() -> None:
    engine = loaded(COUNTER, step="10s")
    assert instant(engine, "x_total offset 1m + 2", "5m") == {"{}": 26.0}
    assert instant(engine, "x_total offset (1m + 2)", "5m") == {"x_total": 23.0}


ENGINE = loaded('left{a="1"} 1', 'left{a="2"} 2', 'right{a="2"} 20', 'right{a="3"} 30', 'fill{a="1"} 5')


@pytest.mark.parametrize(
    ("expr", "wanted"),
    [
        ("left + fill(0) right", {'{a="1"}': 1.0, '{a="2"}': 22.0, '{a="3"}': 30.0}),
        ("left - fill_left(7) right", {'{a="2"}': -18.0, '{a="3"}': -23.0}),
        ("left * on (a) fill_right(-2) right", {'{a="1"}': -2.0, '{a="2"}': 40.0}),
        ("left > bool fill_right(Inf) right", {'{a="1"}': 0.0, '{a="2"}': 0.0}),
        ("left + fill", {'{a="1"}': 6.0}),
        ("left + fill(1) fill", {'{a="1"}': 6.0, '{a="2"}': 3.0}),
    ],
)
def test_a_missing_side_is_filled(expr: str, wanted: dict[str, float]) -> None:
    assert instant(ENGINE, expr) == wanted
    tree = parser.parse(expr)
    assert parser.parse(printer.to_text(tree)) == tree


numbers = st.lists(st.integers(-9, 9).map(float), min_size=4, max_size=4)


@pytest.mark.slow
@given(numbers, numbers, st.floats(-5, 5))
def test_filling_both_sides_is_adding_what_is_missing_by_hand(
    left: list[float], right: list[float], fill: float
) -> None:
    lines = [f'l{{n="{at}"}} {value}' for at, value in enumerate(left) if value >= 0]
    lines += [f'r{{n="{at}"}} {value}' for at, value in enumerate(right) if value >= 0]
    found = instant(loaded(*lines, "other 1"), f"l + fill({fill!r}) r")
    sums = {
        f'{{n="{at}"}}': (one if one >= 0 else fill) + (other if other >= 0 else fill)
        for at, (one, other) in enumerate(zip(left, right, strict=True))
        if one >= 0 or other >= 0
    }
    assert found == sums


def test_labels_of_an_info_metric_join_the_series_of_their_target() -> None:
    engine = loaded(
        'up{instance="a", job="j"} 1',
        'up{instance="b", job="j"} 1',
        'target_info{instance="a", job="j", version="2", zone="x"} 1',
        'build_info{instance="b", job="j", commit="f00"} 1',
    )
    assert sorted(instant(engine, "info(up)")) == [
        'up{instance="a", job="j", version="2", zone="x"}',
        'up{instance="b", job="j"}',
    ]
    assert list(instant(engine, 'info(up, {version=~".+"})')) == ['up{instance="a", job="j", version="2"}']
    assert sorted(instant(engine, 'info(up, {__name__="build_info"})')) == [
        'up{commit="f00", instance="b", job="j"}',
        'up{instance="a", job="j"}',
    ]
    assert instant(engine, "info(nosuch)") == {}


def test_two_series_of_an_info_metric_about_one_target_are_refused() -> None:
    engine = loaded("up 1", 'm{job="j"} 1', 'target_info{job="j", v="1"} 1', 'target_info{job="j", v="2"} 1')
    with pytest.raises(errors.QueryError, match="found duplicate series for info metric"):
        instant(engine, "info(m)")


@pytest.mark.parametrize("text", ["-" * 5000 + "1m", "(" * 5000, "1m" + " + 1m" * 5000, "min_of(1m, " * 5000])
def test_an_expression_that_is_deep_by_its_durations_is_refused(text: str) -> None:
    with pytest.raises(errors.QueryLimit, match="the limit is 50"):
        parser.parse(f"a[{text}]", QueryLimits(max_depth=50))
