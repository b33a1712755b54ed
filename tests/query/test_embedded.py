"""The embedded engine answers instant and range queries, keeps its limits and knows its series."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from tests.query.loading import instant, loaded, ranged
from watchkeeper import errors
from watchkeeper.model.labels import Labels
from watchkeeper.model.samples import Sample
from watchkeeper.query.embedded import EmbeddedEngine
from watchkeeper.query.engine import Engine, Matcher, MatchOp, QueryLimits, QueryRange, ResultType
from watchkeeper.store.head.head import Head
from watchkeeper.store.interfaces import Appended


def test_the_embedded_engine_is_an_engine() -> None:
    engine: Engine = EmbeddedEngine(Head())
    assert engine.appender.append([Sample(Labels({"__name__": "up"}), 1000, 1.0)]) == Appended(1, {})
    assert engine.limits() == QueryLimits()


def test_a_sample_is_seen_until_it_is_five_minutes_old() -> None:
    engine = loaded("x 7")
    assert instant(engine, "x", "4m59s999ms") == {"x": 7.0}
    assert instant(engine, "x", "5m") == {}


def test_a_stale_marker_ends_a_series_at_once_and_a_new_sample_revives_it() -> None:
    engine = loaded("x 1 stale 3")
    assert ranged(engine, "x", "2m", step="30s") == {"x": {0: 1.0, 30: 1.0, 120: 3.0}}


def test_absent_is_a_mask_and_nan_is_a_value() -> None:
    answer = loaded("x 1 NaN stale").range("x", QueryRange(0, 120_000, 60_000))
    assert answer.frame.present.tolist() == [[True, True, False]]
    assert np.isnan(answer.frame.values[0, 1])


def test_a_range_selector_answers_raw_samples_with_their_own_times() -> None:
    answer = loaded("x 1 2 stale 4").instant("x[3m]", 180_000)
    assert answer.kind is ResultType.MATRIX
    [(labels, times, values)] = list(answer.frame.rows())
    assert str(labels) == "x"
    # The window is open on the left, and a stale marker is no sample.
    assert times.tolist() == [60_000, 180_000]
    assert values.tolist() == [2.0, 4.0]


def test_strings_and_scalars_have_their_own_kind() -> None:
    engine = loaded()
    assert engine.instant('"hello"', 0).text == "hello"
    scalar = engine.instant("time() * 2", 30_000)
    assert scalar.kind is ResultType.SCALAR
    assert scalar.latest() == {Labels(): 60.0}
    assert engine.range("time()", QueryRange(0, 60_000, 30_000)).frame.values.tolist() == [[0.0, 30.0, 60.0]]


def test_a_range_query_for_a_range_vector_is_refused() -> None:
    with pytest.raises(errors.QueryError, match="must be Scalar or instant Vector"):
        loaded("x 1").range("x[5m]", QueryRange(0, 1, 1))


def test_too_many_steps_are_refused_with_both_numbers() -> None:
    engine = loaded("x 1", limits=QueryLimits(max_steps=10))
    with pytest.raises(errors.QueryLimit, match="11 steps, the limit is 10"):
        engine.range("x", QueryRange(0, 10, 1))


def test_too_many_samples_are_refused_before_they_are_copied() -> None:
    engine = loaded("x 0+1x99", limits=QueryLimits(max_samples=50))
    with pytest.raises(errors.QueryLimit, match="100 samples, the limit is 50"):
        engine.instant("sum_over_time(x[2h])", 6_000_000)


def test_a_huge_subquery_is_refused() -> None:
    engine = loaded("x 1", limits=QueryLimits(max_samples=1000))
    with pytest.raises(errors.QueryLimit, match="the limit is 1000"):
        engine.instant("max_over_time(x[200y:1ms])", 0)


def test_functions_of_native_histograms_find_none() -> None:
    assert instant(loaded("x 1"), "histogram_avg(x) or histogram_count(x)") == {}


def test_series_and_label_questions_look_at_living_series_only() -> None:
    engine = loaded('up{node="n1"} 1 1 1', 'up{node="n2"} _ _ _ _ _ 1')
    any_up = [[Matcher("__name__", MatchOp.EQUAL, "up")]]
    assert [labels["node"] for labels in engine.series(any_up, 0, 60_000)] == ["n1"]
    assert engine.label_values("node", any_up, start_ms=0, end_ms=300_000) == ["n1", "n2"]
    assert engine.label_names([], 0, 300_000) == ["__name__", "node"]
    assert engine.label_values("node", [], start_ms=200_000, end_ms=300_000) == ["n2"]


def test_metadata_is_kept_per_metric() -> None:
    engine = loaded()
    engine.head.metadata.record("power_watts", "gauge", help="Board power", unit="watts")
    assert engine.metadata() == {"power_watts": ("gauge", "Board power", "watts")}


def test_queries_in_other_threads_see_whole_scrapes_while_the_scraper_appends() -> None:
    engine = EmbeddedEngine(Head(retention_ms=3_600_000))
    ids = np.array([engine.head.series_id(Labels({"__name__": "x", "gpu": str(gpu)})) for gpu in range(50)])
    engine.appender.append_scrape("node", ids, 0, np.zeros(50))
    torn: list[object] = []
    done = threading.Event()

    def ask() -> None:
        while not done.is_set():
            spread = engine.instant("max(x) - min(x)", 10**9).latest()
            torn.extend(value for value in spread.values() if value != 0.0)

    readers = [threading.Thread(target=ask) for _ in range(2)]
    for reader in readers:
        reader.start()
    for turn in range(1, 300):
        engine.appender.append_scrape("node", ids, turn * 1000, np.full(50, float(turn)))
    done.set()
    for reader in readers:
        reader.join()
    assert torn == []
    assert instant(engine, "x{gpu='7'}", "299s") == {'x{gpu="7"}': 299.0}


def test_a_product_of_both_sides_is_refused_with_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The series of `b` take turns, so that no step has two of them; together they still meet every `a`."""
    engine = EmbeddedEngine(Head())
    engine.appender.append(Sample(Labels({"__name__": "a", "n": n}), at, 1.0) for n in "01" for at in (0, 600_000))
    engine.appender.append(Sample(Labels({"__name__": "b", "n": n}), at, 1.0) for n, at in (("0", 0), ("1", 600_000)))
    monkeypatch.setattr("watchkeeper.query.evaluate.binary.MAX_PAIRS", 3)
    with pytest.raises(errors.QueryLimit, match="has 4 pairs of series, the limit is 3"):
        engine.range("a * on () group_left b", QueryRange(0, 600_000, 600_000))
