"""A function takes the metric name from the answer; until the answer is complete, labels can be made of it."""

from __future__ import annotations

import pytest

from tests.query.loading import instant, loaded, ranged
from watchkeeper import errors

COUNTERS = ('in_total{node="n1"} 0+60x10', 'out_total{node="n1"} 0+120x10')


def test_the_answer_of_a_function_has_no_metric_name() -> None:
    assert instant(loaded(*COUNTERS), "rate(in_total[5m])", "10m") == {'{node="n1"}': 1.0}


def test_metrics_that_differ_by_name_alone_can_be_added_up_after_a_function() -> None:
    assert instant(loaded(*COUNTERS), 'sum(rate({node="n1"}[5m]))', "10m") == {"{}": 3.0}
    with pytest.raises(errors.QueryError, match="vector cannot contain metrics with the same labelset"):
        instant(loaded(*COUNTERS), 'rate({node="n1"}[5m])', "10m")


@pytest.mark.parametrize(
    ("expr", "series"),
    [
        ('label_replace(X, "of", "$1", "__name__", "(.*)_total")', '{node="n1", of="in"}'),
        ('label_replace(X, "__name__", "$1:rate", "__name__", "(.*)_total")', 'in:rate{node="n1"}'),
        ('label_join(X, "__name__", ":", "node", "__name__")', 'n1:in_total{node="n1"}'),
        ("sum by (__name__) (X)", "{}"),
        ('count_values by (__name__) ("__name__", X)', '{"1"}'),
        ("last_over_time(X[5m:1m])", '{node="n1"}'),
        ("X > 0", '{node="n1"}'),
    ],
)
def test_a_dropped_name_can_still_be_read_and_is_not_shown(expr: str, series: str) -> None:
    answer = instant(loaded(*COUNTERS), expr.replace("X", "rate(in_total[5m])"), "10m")
    assert list(answer) == [series]


def test_a_group_loses_its_name_if_one_of_its_series_has() -> None:
    engine = loaded('x{a="1"} 1', 'x{a="2"} 2')
    assert instant(engine, 'sum by (__name__) (x{a="1"} or -x{a="2"})') == {"{}": -1.0}
    assert instant(engine, "sum by (__name__) (x)") == {"x": 3.0}


def test_series_that_become_one_are_joined_where_they_take_turns() -> None:
    engine = loaded("a 1 stale", "b 3 4")
    assert ranged(engine, "-a or -b", "1m") == {"{}": {0: -1.0, 60: -4.0}}


def test_a_subquery_shows_no_dropped_name() -> None:
    answer = loaded(*COUNTERS).instant("rate(in_total[5m])[5m:1m]", 600_000)
    assert [str(labels) for labels in answer.frame.labels] == ['{node="n1"}']
