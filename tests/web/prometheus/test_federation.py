"""What `/federate` hands on, in text and in protobuf, read back by the parsers that read exporters' pages."""

from __future__ import annotations

import math

import pytest
from hypothesis import given

from tests.support import native_strategies
from watchkeeper.model.histograms import CUSTOM, Histogram, HistogramSample, ResetHint
from watchkeeper.model.labels import Labels
from watchkeeper.model.samples import Sample
from watchkeeper.readers.exposition import ExpositionParser
from watchkeeper.readers.exposition_protobuf import ACCEPT, ProtobufParser
from watchkeeper.web.prometheus import federation
from watchkeeper.web.prometheus.federation import PageFormat

AT_MS = 1_700_000_000_123
# As Prometheus 3.5 sends it with and without scrape_native_histograms, and 2.42.
NATIVE = f"{ACCEPT};escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
MODERN = (
    "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,*/*;q=0.1"
)
OLDER = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;q=0.5"


def named(name: str, **labels: str) -> Labels:
    return Labels({"__name__": name, **labels})


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        *(
            (NATIVE, PageFormat.PROTOBUF),
            (MODERN, PageFormat.QUOTED_TEXT),
            (OLDER, PageFormat.TEXT),
            ("", PageFormat.TEXT),
        ),
        *(
            ("*/*", PageFormat.TEXT),
            (f"text/plain,{ACCEPT};q=0.5", PageFormat.TEXT),
            ("text/plain;q=x", PageFormat.TEXT),
        ),
    ],
)
def test_the_reader_chooses_the_form(accept: str, expected: PageFormat) -> None:
    assert federation.choose_format(accept) is expected


def test_names_of_any_characters_are_quoted_for_those_who_understand_it() -> None:
    labels = Labels({"__name__": "gpu.temp", "k8s.pod": 'a"b', "node": "n1"})
    page = federation.write_page([Sample(labels, AT_MS, 41.0)], PageFormat.QUOTED_TEXT)
    assert page.decode().splitlines() == [
        '# TYPE "gpu.temp" untyped',
        f'{{"gpu.temp","k8s.pod"="a\\"b",node="n1",instance=""}} 41 {AT_MS}',
    ]
    parser = ExpositionParser()
    read = parser.parse(page)
    assert (parser.labels, list(read.values), read.problems) == ([labels], [41.0], ())
    assert parser.families["gpu.temp"].type == "untyped"


def test_names_of_any_characters_have_underscores_for_other_clients() -> None:
    samples = [Sample(Labels({"__name__": "9gpu.témp:x", "k8s.pod:y": "a"}), AT_MS, math.inf)]
    page = federation.write_page(samples, PageFormat.TEXT).decode()
    assert page == f'# TYPE _gpu_t_mp:x untyped\n_gpu_t_mp:x{{k8s_pod_y="a",instance=""}} +Inf {AT_MS}\n'


def test_text_counts_the_native_histograms_that_it_omits() -> None:
    samples = [HistogramSample(named("took"), AT_MS, Histogram(count=1.0)), Sample(named("up"), AT_MS, 1.0)]
    first, *others = federation.write_page(samples, PageFormat.TEXT).decode().splitlines()
    assert first == "# 1 native histogram series omitted: text cannot hold them. Use protobuf or remote write."
    assert others == ["# TYPE up untyped", f'up{{instance=""}} 1 {AT_MS}']


def test_protobuf_has_numbers_and_histograms() -> None:
    observed = Histogram(1, 7.0, 5.5, 0.25, 2.0, positive=((0, 1.0), (3, 2.5)), negative=((-2, 1.5),))
    gauge = Histogram(count=2.0, sum=3.0, positive=((1, 2.0),), hint=ResetHint.GAUGE)
    empty = Histogram(zero_threshold=0.0)
    samples = [
        *(HistogramSample(named("empty"), AT_MS, empty), HistogramSample(named("queue", node="n1"), AT_MS, gauge)),
        *(HistogramSample(named("took", node="n1"), AT_MS, observed), Sample(named("took", node="n2"), AT_MS, 3.0)),
    ]
    parser = ProtobufParser()
    page = parser.parse(federation.write_page(samples, PageFormat.PROTOBUF))
    assert page.problems == ()
    assert [parser.labels[at] for at in page.handles] == [named("took", node="n2")]
    assert (list(page.values), page.timestamps_ms) == ([3.0], {0: AT_MS})
    read = {parser.labels[at]: (histogram, at_ms) for at, histogram, at_ms in page.histograms}
    assert read == {sample.labels: (sample.value, AT_MS) for sample in samples if isinstance(sample, HistogramSample)}


def test_custom_bounds_become_classic_buckets() -> None:
    custom = Histogram(CUSTOM, 6.0, 9.0, positive=((0, 1.0), (2, 5.0)), bounds=(0.5, 1.0))
    parser = ProtobufParser()
    page = parser.parse(federation.write_page([HistogramSample(named("took"), AT_MS, custom)], PageFormat.PROTOBUF))
    read = {str(parser.labels[at]): value for at, value in zip(page.handles, page.values, strict=True)}
    buckets = {'took_bucket{le="0.5"}': 1.0, 'took_bucket{le="1"}': 1.0, 'took_bucket{le="+Inf"}': 6.0}
    assert read == {**buckets, "took_sum": 9.0, "took_count": 6.0}


@given(native_strategies.exponential())
def test_every_exponential_histogram_comes_back_as_it_was(histogram: Histogram) -> None:
    parser = ProtobufParser()
    page = parser.parse(federation.write_page([HistogramSample(named("x"), AT_MS, histogram)], PageFormat.PROTOBUF))
    [(_, read, _)] = page.histograms
    assert read.is_same(histogram)
