"""Binary operators find their partners by labels; aggregations bring series together."""

from __future__ import annotations

import math

import pytest

from tests.query.loading import instant, loaded, ranged
from watchkeeper import errors

PAIR = ('used{gpu="0"} 30', 'used{gpu="1"} 40', 'free{gpu="0"} 70', 'free{gpu="2"} 60')
JOIN = ('temp{node="n1", gpu="0"} 80', 'temp{node="n1", gpu="1"} 90', 'rack{node="n1", rack="r7"} 1')


def test_only_matching_series_are_combined_and_the_name_is_dropped() -> None:
    assert instant(loaded(*PAIR), "used / (used + free)") == {'{gpu="0"}': pytest.approx(0.3)}


def test_a_comparison_filters_and_keeps_value_and_name() -> None:
    engine = loaded(*PAIR)
    assert instant(engine, "used > 35") == {'used{gpu="1"}': 40.0}
    assert instant(engine, "35 < used") == {'used{gpu="1"}': 40.0}
    assert instant(engine, "used < free") == {'used{gpu="0"}': 30.0}
    assert instant(engine, "used > bool 35") == {'{gpu="0"}': 0.0, '{gpu="1"}': 1.0}


def test_group_left_carries_labels_over_from_the_one_side() -> None:
    engine = loaded(*JOIN)
    assert instant(engine, "temp * on (node) group_left (rack) rack") == {
        '{gpu="0", node="n1", rack="r7"}': 80.0,
        '{gpu="1", node="n1", rack="r7"}': 90.0,
    }
    assert instant(engine, "rack - on (node) group_right () temp") == {
        '{gpu="0", node="n1"}': -79.0,
        '{gpu="1", node="n1"}': -89.0,
    }


def test_many_to_one_must_be_explicit() -> None:
    with pytest.raises(errors.QueryError, match="many-to-one matching must be explicit"):
        loaded(*JOIN).instant("temp * on (node) rack", 0)


def test_many_to_one_must_be_explicit_even_if_a_comparison_keeps_one() -> None:
    with pytest.raises(errors.QueryError, match="many-to-one matching must be explicit"):
        loaded(*JOIN, 'limit{node="n1"} 85').instant("temp > on (node) limit", 0)


def test_two_partners_on_the_one_side_are_an_error_that_names_them() -> None:
    with pytest.raises(errors.QueryError, match=r"duplicate series for the match group .* right hand-side"):
        loaded(*JOIN).instant("rack * on (node) temp", 0)


def test_matches_at_different_steps_are_not_duplicates() -> None:
    engine = loaded("a 1 1 1", 'b{pod="old"} 5 stale', 'b{pod="new"} _ 7 8')
    assert ranged(engine, "a * on () b", "2m") == {"{}": {0: 5.0, 60: 7.0, 120: 8.0}}


def test_group_left_that_makes_two_results_equal_is_an_error() -> None:
    engine = loaded('a{x="1", y="i"} 1', 'a{x="1", y="j"} 1', 'b{x="1", y="k"} 1')
    with pytest.raises(errors.QueryError, match="grouping labels must ensure unique matches"):
        engine.instant("a * on (x) group_left (y) b", 0)


def test_set_operators_look_at_labels_at_each_step() -> None:
    engine = loaded('a{i="1"} 1 1', 'a{i="2"} 2 2', 'b{i="1"} 5 stale', 'c{i="3"} 9 9')
    assert ranged(engine, "a and b", "1m") == {'a{i="1"}': {0: 1.0}}
    assert ranged(engine, "a unless b", "1m") == {'a{i="1"}': {60: 1.0}, 'a{i="2"}': {0: 2.0, 60: 2.0}}
    assert sorted(instant(engine, "b or a or c")) == ['a{i="2"}', 'b{i="1"}', 'c{i="3"}']
    assert instant(engine, "a and on () c") == {'a{i="1"}': 1.0, 'a{i="2"}': 2.0}


def test_division_and_remainder_follow_floats() -> None:
    engine = loaded("x 5", "z 0")
    assert instant(engine, "x / z") == {"{}": math.inf}
    assert instant(engine, "-x % 3") == {"{}": -2.0}
    assert math.isnan(instant(engine, "x % z")["{}"])
    assert instant(engine, "2 ^ x") == {"{}": 32.0}


FLEET = ('t{node="a", gpu="0"} 10', 't{node="a", gpu="1"} 30', 't{node="b", gpu="0"} 50')


@pytest.mark.parametrize(
    ("expr", "values"),
    [
        ("sum by (node) (t)", {'{node="a"}': 40.0, '{node="b"}': 50.0}),
        ("avg without (gpu) (t)", {'{node="a"}': 20.0, '{node="b"}': 50.0}),
        ("count(t)", {"{}": 3.0}),
        ("min(t)", {"{}": 10.0}),
        ("max by (gpu) (t)", {'{gpu="0"}': 50.0, '{gpu="1"}': 30.0}),
        ("group by (node) (t)", {'{node="a"}': 1.0, '{node="b"}': 1.0}),
        ("stdvar by (node) (t)", {'{node="a"}': 100.0, '{node="b"}': 0.0}),
        ("stddev by (node) (t)", {'{node="a"}': 10.0, '{node="b"}': 0.0}),
        ("quantile(0.5, t)", {"{}": 30.0}),
        ("topk(1, t)", {'t{gpu="0", node="b"}': 50.0}),
        ("bottomk by (node) (1, t)", {'t{gpu="0", node="a"}': 10.0, 't{gpu="0", node="b"}': 50.0}),
        ("limitk(0, t)", {}),
        ('count_values("v", t > bool 20)', {'{v="0"}': 1.0, '{v="1"}': 2.0}),
        ("sum(nothing)", {}),
    ],
)
def test_an_aggregation_makes_one_series_per_group_or_keeps_some(expr: str, values: dict[str, float]) -> None:
    assert instant(loaded(*FLEET), expr) == values


def test_topk_comes_sorted_and_nan_is_taken_last() -> None:
    engine = loaded('x{a="1"} 1', 'x{a="2"} NaN', 'x{a="3"} 3')
    assert list(instant(engine, "topk(3, x)")) == ['x{a="3"}', 'x{a="1"}', 'x{a="2"}']
    assert list(instant(engine, "bottomk(2, x)")) == ['x{a="1"}', 'x{a="3"}']


def test_topk_of_a_range_query_selects_at_each_step() -> None:
    engine = loaded('x{a="1"} 1 9', 'x{a="2"} 5 5')
    assert ranged(engine, "topk(1, x)", "1m") == {'x{a="1"}': {60: 9.0}, 'x{a="2"}': {0: 5.0}}


def test_limit_ratio_and_its_complement_select_all_series() -> None:
    engine = loaded(*(f'x{{a="{at}"}} 1' for at in range(40)))
    some, others = instant(engine, "limit_ratio(0.3, x)"), instant(engine, "limit_ratio(-0.7, x)")
    assert some.keys() | others.keys() == instant(engine, "x").keys()
    assert not some.keys() & others.keys()


def test_sums_over_series_keep_small_numbers_beside_huge_ones() -> None:
    engine = loaded('x{a="1"} 1', 'x{a="2"} 1e100', 'x{a="3"} 1', 'x{a="4"} -1e100')
    assert instant(engine, "sum(x)") == {"{}": 2.0}
    assert instant(engine, "avg(x)") == {"{}": 0.5}


def test_a_k_that_is_no_number_is_an_error_even_without_series() -> None:
    with pytest.raises(errors.QueryError, match="Parameter value is NaN"):
        loaded().instant("topk(NaN, nothing)", 0)


def test_count_values_over_a_label_that_groups_adds_up_what_becomes_one() -> None:
    engine = loaded('v{job="a"} 6', 'v{job="b"} 6', 'v{job="c"} 7')
    assert instant(engine, 'count_values by (job) ("job", v)') == {'{job="6"}': 2.0, '{job="7"}': 1.0}


def test_count_values_without_its_own_label_counts_the_series() -> None:
    engine = loaded('v{job="a", x="1"} 6', 'v{job="b", x="1"} 7')
    assert instant(engine, 'count_values without (job) ("job", v)') == {'{x="1"}': 2.0}


def test_count_values_tells_0_from_minus_0() -> None:
    assert instant(loaded('v{job="a"} 0', 'v{job="b"} -0'), 'count_values("v", v)') == {'{v="-0"}': 1.0, '{v="0"}': 1.0}
