"""The newest exemplars are stored once, and the oldest are dropped at the limit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.model.exemplars import Exemplar
from watchkeeper.model.labels import Labels
from watchkeeper.store.exemplars import Exemplars

A, B = Labels({"__name__": "a"}), Labels({"__name__": "b"})


def trace(id: str, at_ms: int, value: float = 1.0) -> Exemplar:
    return Exemplar(Labels({"trace_id": id}), value, at_ms)


def times(kept: Exemplars, series: Labels = A) -> list[int]:
    selected = kept.select(lambda labels: labels == series, 0, 10**9)
    return [exemplar.at_ms for _, row in selected for exemplar in row]


def test_an_exemplar_is_found_by_its_series_and_time() -> None:
    kept = Exemplars()
    assert kept.add(B, trace("x", 1))
    assert kept.add(A, trace("y", 2))
    assert kept.select(lambda _: True, 0, 5) == [(A, [trace("y", 2)]), (B, [trace("x", 1)])]
    assert kept.select(lambda _: True, 2, 2) == [(A, [trace("y", 2)])]


def test_repeated_older_and_long_exemplars_are_dropped() -> None:
    kept = Exemplars()
    assert kept.add(A, trace("x", 5))
    assert not kept.add(A, trace("x", 9))
    assert not kept.add(A, trace("y", 4))
    assert not kept.add(A, trace("y" * 200, 10))
    assert kept.add(A, trace("y", 10))
    assert times(kept) == [5, 10]


@given(st.lists(st.tuples(st.sampled_from([A, B]), st.integers(0, 100)), max_size=60), st.integers(1, 8))
def test_the_newest_exemplars_up_to_the_limit_stay(noted: list[tuple[Labels, int]], room: int) -> None:
    kept, taken = Exemplars(room), []
    for number, (series, at_ms) in enumerate(noted):
        if kept.add(series, trace(str(number), at_ms)):
            taken.append((series, at_ms))
    last = taken[-room:]
    assert len(kept) == len(last)
    for series in (A, B):
        assert times(kept, series) == [at_ms for of, at_ms in last if of == series]
