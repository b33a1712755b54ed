"""Label sets as numbers: cached results are shared by all sets of series."""

from __future__ import annotations

import gc
import weakref

import numpy as np

from watchkeeper.model.labels import Labels
from watchkeeper.query.engine import Matcher, MatchOp
from watchkeeper.store import index as indexes
from watchkeeper.store.index import SeriesIndex
from watchkeeper.store.series import LabelRegistry, Pairs, SeriesSet

A, B, C = ((("node", name),) for name in "abc")
TEMPERATURE = [Matcher("__name__", MatchOp.EQUAL, "temp")]


def register_of(*rows: Pairs) -> LabelRegistry:
    register = LabelRegistry()
    for pairs in rows:
        register.number(pairs)
    return register


def temp(gpu: int) -> Labels:
    return Labels({"__name__": "temp", "gpu": str(gpu)})


def test_the_same_rows_are_the_same_set_with_its_cached_results() -> None:
    register = register_of(A, B)
    first_set = register.select(np.array([0, 1]))
    assert register.select(np.array([0, 1])) is first_set
    assert register.select(np.array([1, 0])).pairs == [B, A]


def test_partners_are_found_when_either_registry_grows_later() -> None:
    ours, theirs = register_of(A, B), register_of(C, B)
    assert ours.numbers_in(theirs).tolist() == [-1, 1]
    theirs.number(A)
    ours.number(C)
    assert ours.numbers_in(theirs).tolist() == [2, 1, 0]


def test_a_label_set_of_two_registries_has_one_number_in_their_union() -> None:
    ours, theirs = register_of(A, B), register_of(B, C)
    both, mine, others = ours.merge_with(theirs)
    assert [both.pairs[number] for number in (*mine, *others)] == [A, B, B, C]
    assert mine[1] == others[0]


def test_rows_with_the_same_labels_have_the_same_number() -> None:
    assert SeriesSet([A, B, A]).ids.tolist() == [0, 1, 0]


def test_a_series_that_takes_the_number_of_another_has_its_own_labels() -> None:
    index = SeriesIndex()
    first = index.add(temp(0))
    assert index.select(TEMPERATURE).series.pairs == [temp(0).pairs]
    index.remove([first])
    assert index.add(temp(1)) == first
    assert index.select(TEMPERATURE).series.labels_of([0]) == [temp(1)]


def test_removed_series_do_not_fill_the_memory() -> None:
    index = SeriesIndex()
    for gpu in range(3 * indexes.REGISTRY_SLACK):
        number = index.add(temp(gpu))
        series = index.select(TEMPERATURE).series
        assert series.pairs == [temp(gpu).pairs]
        assert len(series.register) <= indexes.REGISTRY_SLACK + 3
        index.remove([number])


def test_a_replaced_registry_leaves_no_reference_cycles() -> None:
    index = SeriesIndex()
    index.add(temp(0))
    made = index.select(TEMPERATURE).series.mapped("as it is", lambda pairs: pairs)
    weak = weakref.ref(made.register)
    del made
    gc.disable()
    try:
        for gpu in range(1, 3 * indexes.REGISTRY_SLACK):
            index.remove([index.add(temp(gpu))])
            index.select(TEMPERATURE)
            number = index.add(temp(-gpu))
            index.select(TEMPERATURE)
            index.remove([number])
        index.select(TEMPERATURE)
        assert weak() is None
    finally:
        gc.enable()


def test_old_selections_of_removed_series_are_dropped() -> None:
    index = SeriesIndex()
    for gpu in range(3 * indexes.CLEANUP_INTERVAL):
        number = index.add(temp(gpu))
        index.select((*TEMPERATURE, Matcher("gpu", MatchOp.EQUAL, str(gpu))))
        index.select((Matcher("gpu", MatchOp.EQUAL, str(gpu)),))
        index.remove([number])
    assert len(index._selections) <= indexes.CLEANUP_INTERVAL
