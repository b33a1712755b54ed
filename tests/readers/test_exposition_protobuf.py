"""Pages as protobuf: the same series as a page of text, native histograms on top, and bad input named."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import protobuf_pages as pages
from watchkeeper.errors import CollectError
from watchkeeper.model.histograms import Histogram, ResetHint
from watchkeeper.model.labels import Labels
from watchkeeper.readers.exposition import ExpositionPage, ExpositionParser, FamilyMetadata
from watchkeeper.readers.exposition_protobuf import ProtobufParser, format_go_number

CLASSIC = pages.whole(1, 7) + pages.double(2, 3.5) + pages.bucket(0.5, 4) + pages.bucket(2500000, 6)
TEXT = b"""# HELP requests_total Asked.
# TYPE requests_total counter
requests_total{code="200",path="/a\\"b"} 41
# TYPE heat gauge
heat -1.5
heat{gpu="1"} 0
# TYPE odd unknown
odd NaN
# TYPE took summary
took{quantile="0.5"} 2
took{quantile="0.99"} 9
took_sum 30
took_count 8
# TYPE wait histogram
wait_bucket{le="0.5"} 4
wait_bucket{le="2.5e+06"} 6
wait_bucket{le="+Inf"} 7
wait_sum 3.5
wait_count 7
"""
QUANTILES = pages.inner(3, pages.double(1, 0.5) + pages.double(2, 2)) + pages.inner(
    3, pages.double(1, 0.99) + pages.double(2, 9)
)
SAME = b"".join(
    (
        pages.family(
            "requests_total",
            pages.COUNTER,
            pages.metric(pages.COUNTER, pages.double(1, 41), code="200", path='/a"b'),
            help="Asked.",
        ),
        pages.family(
            "heat",
            pages.GAUGE,
            pages.metric(pages.GAUGE, pages.double(1, -1.5)),
            pages.metric(pages.GAUGE, b"", gpu="1"),
        ),
        pages.family("odd", pages.UNTYPED, pages.metric(pages.UNTYPED, pages.double(1, math.nan))),
        pages.family(
            "took",
            pages.SUMMARY,
            pages.metric(pages.SUMMARY, pages.whole(1, 8) + pages.double(2, 30) + QUANTILES),
        ),
        pages.family("wait", pages.HISTOGRAM, pages.metric(pages.HISTOGRAM, CLASSIC)),
    )
)


def shown(parser: ExpositionParser | ProtobufParser, page: ExpositionPage) -> list[tuple[Labels, str]]:
    return [(parser.labels[at], repr(value)) for at, value in zip(page.handles, page.values, strict=True)]


def test_a_page_has_the_series_and_values_of_its_text() -> None:
    text, protobuf = ExpositionParser(), ProtobufParser()
    page = protobuf.parse(SAME)
    assert shown(protobuf, page) == shown(text, text.parse(TEXT))
    assert protobuf.families == text.families
    assert protobuf.families["requests_total"] == FamilyMetadata("counter", "Asked.")
    assert (page.bad_lines, page.problems, page.histograms) == (0, (), ())


def test_the_same_series_have_the_same_list_of_handles_on_every_page() -> None:
    parser = ProtobufParser()
    assert parser.parse(SAME).handles is parser.parse(SAME).handles


def native_page(content: bytes, kind: int = pages.HISTOGRAM) -> bytes:
    return pages.family("latency", kind, pages.metric(kind, content, job="a"))


def test_a_native_histogram_is_read_instead_of_its_classic_buckets() -> None:
    parser = ProtobufParser()
    page = parser.parse(native_page(pages.native(6, 12.5, [3, -1, -1], offset=-2) + pages.bucket(1, 5)))
    [(handle, found, at_ms)] = page.histograms
    assert parser.labels[handle] == Labels({"__name__": "latency", "job": "a"})
    assert found == Histogram(0, 6.0, 12.5, 0.001, 0.0, ((-2, 3.0), (-1, 2.0), (0, 1.0)))
    assert (at_ms, page.handles) == (None, [])


def test_classic_buckets_are_kept_beside_native_ones_where_that_is_wanted() -> None:
    parser = ProtobufParser(keeps_classic=True)
    page = parser.parse(native_page(pages.native(6, 12.5, [6]) + pages.bucket(1, 5)))
    assert [parser.labels[handle].name for handle in page.handles] == [
        *("latency_bucket", "latency_bucket", "latency_sum", "latency_count")
    ]
    assert len(page.histograms) == 1


def test_an_empty_span_says_that_a_histogram_without_observations_is_native() -> None:
    page = ProtobufParser().parse(native_page(pages.inner(12, b"")))
    [(_, found, _)] = page.histograms
    assert found == Histogram()


def test_a_gauge_histogram_with_counts_as_floats_is_a_gauge() -> None:
    span = pages.inner(9, pages.signed(1, 1) + pages.whole(2, 1))
    content = pages.double(4, 2.5) + pages.double(8, 0.5) + span + pages.double(11, 2.0)
    [(_, found, _)] = ProtobufParser().parse(native_page(content, pages.GAUGE_HISTOGRAM)).histograms
    assert found == Histogram(count=2.5, zero_count=0.5, negative=((1, 2.0),), hint=ResetHint.GAUGE)


def test_exemplars_are_told_once_and_carry_their_time() -> None:
    parser = ProtobufParser()
    mark = pages.exemplar(0.25, 1_700_000_000, trace_id="abc")
    page = native_page(pages.native(1, 0.25, [1]) + pages.inner(16, mark))
    [(handle, labels, value, at_ms)] = parser.parse(page).exemplars
    assert (parser.labels[handle].name, labels, value) == ("latency", Labels({"trace_id": "abc"}), 0.25)
    assert at_ms == 1_700_000_000_500
    assert parser.parse(page).exemplars == ()


def test_a_sample_with_a_time_keeps_it() -> None:
    page = ProtobufParser().parse(
        pages.family("heat", pages.GAUGE, pages.metric(pages.GAUGE, pages.double(1, 5), at_ms=1_700_000_000_123))
    )
    assert page.timestamps_ms == {0: 1_700_000_000_123}


@pytest.mark.parametrize(
    ("broken", "named"),
    [
        (pages.family("", pages.GAUGE, pages.metric(pages.GAUGE, b"")), "has no name"),
        (pages.family("x", 9, pages.metric(pages.GAUGE, b"")), "unknown type: 9"),
        (pages.family("x", pages.GAUGE, pages.inner(4, b"\x0f")), "'x': wire type 7"),
        (pages.family("x", pages.GAUGE, pages.metric(pages.GAUGE, b"", a="y" * 5000)), "5,000 characters"),
        (native_page(pages.native(1, 1.0, [1], schema=60)), "schema 60 is not valid"),
        (native_page(pages.native(1, 1.0, [-4])), "a count is negative"),
    ],
)
def test_what_cannot_be_read_is_named_and_the_rest_is_kept(broken: bytes, named: str) -> None:
    parser = ProtobufParser()
    page = parser.parse(broken + SAME)
    assert page.bad_lines == 1
    assert named in page.problems[0]
    assert len(page.handles) == 13


def test_a_series_that_stands_twice_is_kept_once() -> None:
    parser = ProtobufParser()
    page = parser.parse(SAME + SAME)
    assert (len(page.handles), page.bad_lines) == (13, 13)
    assert "is a duplicate" in page.problems[0]


def test_a_page_that_is_cut_short_is_refused() -> None:
    with pytest.raises(CollectError, match="truncated"):
        ProtobufParser().parse(SAME[:-1])


def test_a_page_with_too_many_series_is_refused_with_both_numbers() -> None:
    with pytest.raises(CollectError, match="13 samples or more, the limit is 12"):
        ProtobufParser(max_series=12).parse(SAME)


@given(st.binary(max_size=200), st.integers(0, len(SAME)))
def test_whatever_bytes_come_nothing_but_a_collect_error_leaves(noise: bytes, at: int) -> None:
    for body in (noise, SAME[:at] + noise + SAME[at + len(noise) :], native_page(noise)):
        try:
            page = ProtobufParser().parse(body)
        except CollectError:
            continue
        assert len(page.handles) == len(page.values)


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.0, "1"), (0.005, "0.005"), (1e6, "1e+06"), (1234567.0, "1.234567e+06"), (1e-5, "1e-05"), (math.inf, "+Inf")],
)
def test_a_bound_is_written_as_in_text(value: float, text: str) -> None:
    assert format_go_number(value) == text
