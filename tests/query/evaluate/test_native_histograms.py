"""Native histograms in PromQL: what functions, operators and aggregations make of them, and what is said beside."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.query.loading import loaded
from tests.support import native_strategies as native
from watchkeeper import errors
from watchkeeper.kit import durations
from watchkeeper.model.histograms import Histogram, ResetHint
from watchkeeper.query import histogram_text
from watchkeeper.query.embedded import EmbeddedEngine
from watchkeeper.query.engine import QueryLimits, QueryRange, QueryResult
from watchkeeper.query.evaluate import estimates

GROWING = 'h{job="a"} {{count:4 sum:5 buckets:[1 2 1]}}+{{count:4 sum:5 buckets:[1 2 1]}}x10'
CUSTOM = 'h{job="c"} {{schema:-53 count:3 sum:9 custom_values:[2 4] buckets:[1 1 1]}}x10'
NUMBERS = 'n{job="a"} 2x10'
MIXED = "m 1 2 {{count:1}} {{count:2}} 3"


def answered(expr: str, *lines: str, at: str = "5m") -> QueryResult:
    return loaded(*lines).instant(expr, durations.parse_ms(at))


def shown(answer: QueryResult) -> dict[str, str]:
    """Each series with its histogram in the notation, without the hint, or its number."""
    found = {str(labels): f"{value:g}" for labels, value in answer.latest().items()}
    for labels, histogram in answer.latest_histograms().items():
        text = histogram_text.format_histogram(histogram.compacted())
        found[str(labels)] = text.replace(f" counter_reset_hint:{histogram.hint.name.lower()}", "")
    return found


@pytest.mark.parametrize(
    ("expr", "wanted"),
    [
        ("h", {'h{job="a"}': "{{count:24 sum:30 buckets:[6 12 6]}}"}),
        ("increase(h[2m])", {'{job="a"}': "{{count:8 sum:10 buckets:[2 4 2]}}"}),
        ("irate(h[2m]) * 60", {'{job="a"}': "{{count:4 sum:5 buckets:[1 2 1]}}"}),
        ("sum(h)", {"{}": "{{count:24 sum:30 buckets:[6 12 6]}}"}),
        ("h + h", {'{job="a"}': "{{count:48 sum:60 buckets:[12 24 12]}}"}),
        ("h - h / 2", {'{job="a"}': "{{count:12 sum:15 buckets:[3 6 3]}}"}),
        ("h * on (job) n", {'{job="a"}': "{{count:48 sum:60 buckets:[12 24 12]}}"}),
        ("-h", {'{job="a"}': "{{count:-24 sum:-30 buckets:[-6 -12 -6]}}"}),
        ("h </ 1", {'h{job="a"}': "{{count:6 sum:4.24264068711929 buckets:[6]}}"}),
        ("last_over_time(h[1m])", {'h{job="a"}': "{{count:24 sum:30 buckets:[6 12 6]}}"}),
        ("max_over_time(h[2m])", {}),
        ("histogram_count(h)", {'{job="a"}': "24"}),
        ("histogram_quantile(0.5, h)", {'{job="a"}': "1.41421"}),
        ("count(h)", {"{}": "1"}),
        ("abs(h) or sort(h)", {}),
        ("scalar(h)", {"{}": "nan"}),
        ("h == h", {'h{job="a"}': "{{count:24 sum:30 buckets:[6 12 6]}}"}),
        ("h == bool h", {'{job="a"}': "1"}),
        ("h and on (job) n", {'h{job="a"}': "{{count:24 sum:30 buckets:[6 12 6]}}"}),
        ("h or n", {'h{job="a"}': "{{count:24 sum:30 buckets:[6 12 6]}}"}),
        ("absent(h)", {}),
        ("timestamp(h)", {'{job="a"}': "300"}),
    ],
)
def test_an_expression_makes_of_histograms_what_prometheus_does(expr: str, wanted: dict[str, str]) -> None:
    assert shown(answered(expr, GROWING, NUMBERS)) == wanted


@pytest.mark.parametrize(
    ("expr", "said"),
    [
        (
            "sum(h)",
            'vector contains a mix of histograms with exponential and custom buckets schemas for metric name "h"',
        ),
        ('h{job="a"} + ignoring (job) h{job="c"}', "incompatible bucket layout encountered for binary operator +"),
        ("rate(m[5m])", 'encountered a mix of histograms and floats for metric name "m"'),
        ("sum({__name__=~'h|n', job='a'})", "encountered a mix of histograms and floats for aggregation"),
        ("delta(h{job='a'}[5m])", 'this native histogram metric is not a gauge: "h"'),
    ],
)
def test_a_warning_explains_a_missing_result(expr: str, said: str) -> None:
    answer = answered(expr, GROWING, CUSTOM, NUMBERS, MIXED)
    [warning] = answer.warnings
    assert warning.startswith(f"PromQL warning: {said}")


@pytest.mark.parametrize(
    ("expr", "told"),
    [
        ("max(h)", "ignored histogram in max aggregation (1:5)"),
        ("topk(1, h)", "ignored histogram in topk aggregation (1:1)"),
        ("h > 1", 'incompatible sample types encountered for binary operator ">": histogram > float (1:1)'),
        ("n </ 1", 'incompatible sample types encountered for binary operator "</": float </ float (1:1)'),
        ("min_over_time(m[5m])", "ignored histograms in a range containing both floats and histograms for metric name"),
    ],
)
def test_dropped_histograms_are_reported(expr: str, told: str) -> None:
    answer = answered(expr, GROWING, NUMBERS, MIXED)
    assert answer.warnings == ()
    [info] = answer.infos
    assert info.startswith(f"PromQL info: {told}")


def test_a_range_has_numbers_and_histograms_at_their_steps() -> None:
    frame = loaded(MIXED).range("m", QueryRange(0, 240_000, 60_000)).frame
    assert frame.histograms is not None
    assert frame.present.tolist() == [[True, True, False, False, True]]
    assert [None if cell is None else cell.count for cell in frame.histograms[0]] == [None, None, 1.0, 2.0, None]


def test_a_range_selector_answers_the_histograms_of_its_window() -> None:
    frame = answered("h[2m]", GROWING).frame
    assert frame.histograms is not None
    assert [(at, cell.count) for at, cell in zip(frame.times_ms.tolist(), frame.histograms[0], strict=True)] == [
        (240_000, 20.0),
        (300_000, 24.0),
    ]


def test_a_reset_in_one_bucket_is_seen_although_the_count_grew() -> None:
    lines = "r {{count:4 buckets:[1 2 1]}} {{count:5 buckets:[1 1 3]}}"
    assert shown(answered("resets(r[5m])", lines, at="1m")) == {"{}": "1"}
    assert shown(answered("changes(r[5m])", lines, at="1m")) == {"{}": "1"}


def test_a_query_over_too_many_histograms_is_refused_before_it_takes_minutes() -> None:
    engine = loaded(GROWING, limits=QueryLimits(max_samples=10_000))
    assert len(engine.range("rate(h[2m])", QueryRange(0, 300_000, 60_000)).frame.labels) == 1
    with pytest.raises(errors.QueryLimit, match="samples, the limit is 10000"):
        engine.range("rate(h[2m])", QueryRange(0, 300_000, 1000))


def test_federated_samples_include_histograms() -> None:
    engine: EmbeddedEngine = loaded(GROWING, NUMBERS, "h2 1 {{count:2 sum:3}} stale")
    newest = {sample.labels.name: sample.value for sample in engine.latest_samples([], 60_000)}
    assert {name: isinstance(value, Histogram) for name, value in newest.items()} == {"h": True, "n": False, "h2": True}
    raw = {labels.name: values for labels, _, values in engine.raw_samples([], -1, 10**9)}
    assert (isinstance(raw["h"], list), isinstance(raw["n"], list)) == (True, False)
    assert [type(value) for value in raw["h2"]] == [float, Histogram, float]


# Where the zero bucket has no width, or a bucket no bound at all, nothing can be estimated inside.
exponential = native.exponential().filter(lambda one: one.count > 0 and one.zero_threshold > 0)
observed = exponential | native.custom().filter(lambda one: one.count > 0 and one.bounds)


@given(exponential, st.floats(0.01, 0.99))
def test_a_quantile_lies_where_that_fraction_is_below_it(histogram: Histogram, wanted: float) -> None:
    value, _ = estimates.quantile(wanted, histogram)
    below, _ = estimates.fraction(-math.inf, value, histogram)
    assert below == pytest.approx(wanted, abs=1e-6)


@given(observed)
def test_quantiles_ascend_and_all_is_between_the_ends(histogram: Histogram) -> None:
    values = [estimates.quantile(wanted, histogram)[0] for wanted in (0.0, 0.1, 0.5, 0.9, 1.0)]
    assert all(low <= high or math.isclose(low, high) for low, high in itertools.pairwise(values))
    assert estimates.fraction(-math.inf, math.inf, histogram) == (1.0, None)


@given(exponential, st.floats(-20, 20))
def test_what_is_trimmed_on_both_sides_is_all(histogram: Histogram, limit: float) -> None:
    below, above = (estimates.trim(histogram, limit, keeps_below=keeps) for keeps in (True, False))
    assert below.count + above.count == pytest.approx(histogram.count)
    assert all(bucket.upper >= limit or bucket.lower <= limit for bucket in above.buckets())


def test_hints_are_joined_and_a_difference_is_a_gauge() -> None:
    [total] = answered("sum(h)", GROWING).latest_histograms().values()
    [less] = answered("h - h", GROWING).latest_histograms().values()
    assert (total.hint, less.hint) == (ResetHint.NOT_RESET, ResetHint.GAUGE)
