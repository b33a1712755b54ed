"""Questions that would cost too much, and numbers that cannot be: an error with words or an answer, and in no time."""

from __future__ import annotations

import time

import pytest

from tests.query.loading import instant, loaded
from watchkeeper import errors
from watchkeeper.query.engine import QueryRange

YEAR_2200_MS = 7_258_118_400_000
SOON_SECONDS = 5.0


@pytest.fixture(autouse=True)
def in_no_time() -> object:
    begun = time.process_time()
    yield
    assert time.process_time() - begun < SOON_SECONDS


@pytest.mark.parametrize(
    "expr",
    [
        "max_over_time(x[32y:1s])",
        "sum(sum_over_time(x[365d:1m])) + sum(max_over_time((x + x)[365d:30ms]))",
        "max_over_time(max_over_time(max_over_time(x[1d:1s])[1d:1s])[1d:1s])",
        "quantile_over_time(0.5, quantile_over_time(0.5, x[12h:1s])[12h:1s])",
    ],
)
def test_a_query_over_a_billion_samples_is_refused_with_both_numbers(expr: str) -> None:
    with pytest.raises(errors.QueryLimit, match=r"\d+ (samples|steps), the limit is (50000000|1000000000)"):
        loaded("x 1").instant(expr, 10**12)


def test_a_range_of_too_many_steps_is_refused_with_both_numbers() -> None:
    engine = loaded("x 1")
    with pytest.raises(errors.QueryLimit, match="11002 steps, the limit is 11001"):
        engine.range("x", QueryRange(0, 11_001_000, 1000))
    # Prometheus answers this one, and Grafana asks for it: 11,000 steps from the first point to the last.
    assert engine.range("x", QueryRange(0, 11_000_000, 1000)).frame.values.shape == (1, 11_001)


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|aa)+$", "(.*a){20}", "^(([a-z])+.)+[A-Z]([a-z])+$"])
def test_a_pattern_that_explodes_elsewhere_is_matched_in_one_pass(pattern: str) -> None:
    engine = loaded(f'x{{name="{"a" * 4000}!"}} 1')
    assert instant(engine, f'count(x{{name=~"{pattern}"}}) or vector(0)') == {"{}": 0.0}
    assert instant(engine, f'count(label_replace(x, "n", "$1", "name", "{pattern}"))') == {"{}": 1.0}


def test_a_pattern_that_grows_without_bound_is_refused_at_its_place() -> None:
    with pytest.raises(errors.QueryError, match="1:9: error parsing regexp: invalid repetition size"):
        loaded("x 1").instant('x{name=~"((a{100}){100}){100}"}', 0)


@pytest.mark.parametrize(
    "expr", ["", "x" * 1_000_000, "(" * 500_000, "-" * 1_000_000 + "1", "x +\n" * 200_000, '{a="' + "b" * 10**6 + '"}']
)
def test_nonsense_and_a_megabyte_are_refused_with_words(expr: str) -> None:
    with pytest.raises(errors.QueryError) as caught:
        loaded("x 1").instant(expr, 0)
    assert len(str(caught.value)) < 500


def test_negative_counters_have_a_rate_and_a_fall_is_a_reset() -> None:
    engine = loaded("x_total -10 -5 0 5 10")
    assert instant(engine, "rate(x_total[4m1s])", "4m")["{}"] == pytest.approx(5 / 60, rel=0.01)
    assert instant(loaded("x_total -5 -10 -15"), "resets(x_total[3m])", "2m") == {"{}": 2.0}


def test_the_year_2200_can_be_asked_about() -> None:
    engine = loaded("x 1")
    assert instant(engine, "x @ 7258118400") == {}
    assert engine.instant("x", YEAR_2200_MS).latest() == {}
    assert instant(engine, "year(vector(7258118400))") == {"{}": 2200.0}
