"""Selectors select exactly the series whose labels match every matcher."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper import errors
from watchkeeper.model.labels import Labels
from watchkeeper.query.engine import Matcher, MatchOp
from watchkeeper.store import index
from watchkeeper.store.index import SeriesIndex

FLEET = [
    Labels({"__name__": "temp", "node": "n1", "gpu": "0"}),
    Labels({"__name__": "temp", "node": "n2", "gpu": "0"}),
    Labels({"__name__": "temp", "node": "n10"}),
    Labels({"__name__": "power", "node": "n1", "gpu": "1"}),
]


def chosen(*matchers: tuple[str, str, str], fleet: list[Labels] = FLEET) -> list[Labels]:
    index = SeriesIndex()
    for labels in fleet:
        index.add(labels)
    selection = index.select([Matcher(name, MatchOp(op), value) for name, op, value in matchers])
    return selection.series.labels_of(range(len(selection.series)))


def test_equality_with_the_empty_value_means_that_the_label_is_absent() -> None:
    assert chosen(("gpu", "=", "")) == [FLEET[2]]
    assert chosen(("gpu", "!=", "")) == [FLEET[0], FLEET[1], FLEET[3]]


def test_a_pattern_must_match_the_whole_value() -> None:
    assert chosen(("__name__", "=", "temp"), ("node", "=~", "n1")) == [FLEET[0]]
    assert chosen(("__name__", "=", "temp"), ("node", "=~", "n1.*")) == [FLEET[0], FLEET[2]]
    assert chosen(("node", "!~", "n1|n2")) == [FLEET[2]]


def test_a_pattern_that_matches_nothing_at_all_also_selects_series_without_the_label() -> None:
    assert chosen(("gpu", "=~", "0|")) == [FLEET[0], FLEET[1], FLEET[2]]
    assert chosen(("gpu", "=~", ".+")) == [FLEET[0], FLEET[1], FLEET[3]]


def test_a_dot_matches_a_line_break() -> None:
    odd = [Labels({"__name__": "x", "a": "one\ntwo"})]
    assert chosen(("a", "=~", "one.two"), fleet=odd) == odd


def test_an_invalid_pattern_is_a_query_error() -> None:
    with pytest.raises(errors.QueryError, match="is not a regular expression"):
        chosen(("gpu", "=~", "(a"))


def test_a_selection_is_cached_until_a_series_of_its_metric_is_added() -> None:
    index = SeriesIndex()
    index.add(FLEET[0])
    matchers = [Matcher("__name__", MatchOp.EQUAL, "temp")]
    first = index.select(matchers)
    index.add(FLEET[3])
    assert index.select(matchers) is first
    index.add(FLEET[1])
    assert len(index.select(matchers).series) == 2


def test_a_removed_series_is_not_selected_and_its_number_is_reused() -> None:
    index = SeriesIndex()
    numbers = [index.add(labels) for labels in FLEET]
    index.remove([numbers[0]])
    assert index.find(FLEET[0]) is None
    assert index.label_values("node") == ["n1", "n10", "n2"]
    assert index.add(Labels({"__name__": "new"})) == numbers[0]
    selection = index.select([Matcher("node", MatchOp.REGEX, ".*n1.*")])
    assert selection.series.labels_of(range(len(selection.series))) == [FLEET[2], FLEET[3]]


TEXTS = st.sampled_from(["", "a", "b", "ab", "a|b"])
LABEL_SETS = st.lists(st.builds(lambda x, y: Labels({"__name__": "m", "x": x, "y": y}), TEXTS, TEXTS), unique=True)
CONDITIONS = st.lists(st.tuples(st.sampled_from("xy"), st.sampled_from(["=", "!=", "=~", "!~"]), TEXTS), max_size=3)


@pytest.mark.parametrize("look_microseconds", [0.0, 1e9], ids=["series by series", "value by value"])
@given(fleet=LABEL_SETS, conditions=CONDITIONS)
def test_selection_equals_a_scan_over_all_series(
    look_microseconds: float, fleet: list[Labels], conditions: list[tuple[str, str, str]]
) -> None:
    def holds(labels: Labels, name: str, op: str, value: str) -> bool:
        own = labels.get(name, "")
        hit = own == value if op in ("=", "!=") else re.fullmatch(value, own) is not None
        return hit == (op in ("=", "=~"))

    expected = [labels for labels in fleet if all(holds(labels, *condition) for condition in conditions)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "CHECK_MICROSECONDS", look_microseconds)
        assert sorted(chosen(*conditions, fleet=fleet)) == sorted(expected)
        assert sorted(chosen(("__name__", "=", "m"), *conditions, fleet=fleet)) == sorted(expected)
