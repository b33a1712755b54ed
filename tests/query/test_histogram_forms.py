"""A native histogram comes back from every form it is written in: test notation, remote write, JSON, bytes on disk."""

from __future__ import annotations

import contextlib
import struct
from dataclasses import replace

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import native_strategies as native
from watchkeeper import errors
from watchkeeper.kit.protobuf import encode_varint, read_fields
from watchkeeper.model.histograms import CUSTOM, Histogram, HistogramSample, ResetHint
from watchkeeper.model.labels import Labels
from watchkeeper.query import histogram_json, histogram_text, histogram_wire
from watchkeeper.query.remote import remote_write
from watchkeeper.store import histograms as stored
from watchkeeper.store.head.head import Head
from watchkeeper.web.prometheus.prometheus_json import write_value

SERIES = Labels({"__name__": "latency"})
AT_MS = 1_700_000_000_000


@given(native.histograms)
def test_test_notation_reads_back_what_it_shows(histogram: Histogram) -> None:
    [found] = histogram_text.expand(histogram_text.format_histogram(histogram))
    assert found.compacted().is_same(histogram.compacted())
    assert found.hint is histogram.hint


@given(native.histograms, st.integers(-(2**40), 2**40))
def test_remote_write_brings_a_histogram_as_it_was(histogram: Histogram, at_ms: int) -> None:
    body = remote_write.encode([], [HistogramSample(SERIES, at_ms, histogram)])
    decoded = remote_write.decode(body)
    assert decoded.histograms == [HistogramSample(SERIES, at_ms, histogram)]
    assert (decoded.series, decoded.dropped) == ([], {})


@given(st.dictionaries(st.integers(0, 2**50 - 1), native.histograms, max_size=5))
def test_a_table_on_disk_comes_back_bit_by_bit(table: dict[int, Histogram]) -> None:
    marked = {stored.MARK | number: stored.pack_histogram(histogram) for number, histogram in table.items()}
    assert stored.unpack_table(stored.pack_table(marked)) == marked
    assert [stored.unpack_histogram(packed) for packed in marked.values()] == list(table.values())


@given(native.exponential())
def test_a_server_is_understood_although_its_json_names_no_schema(histogram: Histogram) -> None:
    plain = histogram_json.write(histogram, write_value)
    found = histogram_json.read(plain)
    assert (found.count, found.sum) == (histogram.count, histogram.sum)
    seen = [bucket for bucket in histogram.buckets() if bucket.population]
    assert [bucket.population for bucket in found.buckets()] == [bucket.population for bucket in seen]
    for ours, theirs in zip(found.buckets(), seen, strict=True):
        assert ours[:2] == pytest.approx(theirs[:2])


@given(native.histograms, st.data())
def test_a_message_with_any_byte_changed_is_kept_or_refused(histogram: Histogram, draw: st.DataObject) -> None:
    message = bytearray(histogram_wire.write(AT_MS, histogram))
    for _ in range(draw.draw(st.integers(1, 4))):
        message[draw.draw(st.integers(0, len(message) - 1))] = draw.draw(st.integers(0, 255))
    inner = remote_write.encode([(SERIES, [AT_MS], [1.0])])
    series = bytes(cramjam.snappy.decompress_raw(inner))
    labels = series[2 : 2 + len(series) - 2 - remote_write.SAMPLE_BYTES]
    whole = labels + bytes(message)
    body = bytes(cramjam.snappy.compress_raw(b"\x0a" + encode_varint(len(whole)) + whole))
    with contextlib.suppress(errors.WireError):
        remote_write.append_request(body, Head())


def test_custom_bounds_stay_custom_in_json() -> None:
    histogram = Histogram(CUSTOM, 6.0, 20.0, bounds=(0.3, 5.0), positive=((0, 1.0), (1, 2.0), (2, 3.0)))
    plain = histogram_json.write(histogram, write_value)
    assert plain["buckets"] == [[3, "-Inf", "0.3", "1"], [0, "0.3", "5", "2"], [0, "5", "+Inf", "3"]]
    assert histogram_json.read(plain) == histogram


def whole_numbers() -> bytes:
    """What a target's counts look like: differences of whole numbers, in two spans."""
    spans = b"\x08\x00\x10\x02", b"\x08\x04\x10\x01"
    inner = (
        b"\x08\x07" + b"\x19" + struct.pack("<d", 9.5) + b"\x20\x02" + b"\x29" + struct.pack("<d", 0.001) + b"\x30\x01"
    )
    inner += b"".join(b"\x5a" + encode_varint(len(span)) + span for span in spans)
    # 3, then 1 less, then 1 less again.
    return inner + b"\x62\x03\x06\x01\x01" + b"\x78" + encode_varint(AT_MS)


def test_counts_as_differences_of_whole_numbers_are_understood() -> None:
    message = whole_numbers()
    at_ms, found = histogram_wire.read(message, 0, len(message))
    assert at_ms == AT_MS
    assert found == Histogram(1, 7.0, 9.5, 0.001, 1.0, positive=((0, 3.0), (1, 2.0), (4, 1.0)))


FINE = Histogram(20, 2.0, 3.0, positive=((1 << 20, 2.0),))


@pytest.mark.parametrize(
    "broken",
    [
        Histogram(53),
        Histogram(-5),
        Histogram(0, bounds=(1.0,)),
        Histogram(0, count=-1.0),
        Histogram(0, zero_threshold=float("nan")),
        Histogram(CUSTOM, bounds=(2.0, 1.0)),
        Histogram(CUSTOM, bounds=(1.0,), positive=((2, 1.0),)),
        Histogram(CUSTOM, bounds=(1.0,), negative=((0, 1.0),)),
    ],
)
def test_a_histogram_that_means_nothing_is_counted_and_left_out(broken: Histogram) -> None:
    if broken.bounds and broken.schema != CUSTOM:
        body = histogram_wire.write(AT_MS, replace(broken, schema=CUSTOM)).replace(b"\x20\x69", b"\x20\x00")
    else:
        body = histogram_wire.write(AT_MS, broken)
    [(_, start, end)] = read_fields(body, 0, len(body))
    with pytest.raises(histogram_wire.InvalidHistogram):
        histogram_wire.read(body, start, end)


def test_a_finer_schema_than_is_kept_becomes_coarser() -> None:
    body = histogram_wire.write(AT_MS, FINE)
    [(_, start, end)] = read_fields(body, 0, len(body))
    _, found = histogram_wire.read(body, start, end)
    assert (found.schema, found.positive) == (8, ((1 << 8, 2.0),))


@pytest.mark.parametrize(
    "text", ["{{count:x}}", "{{colour:1}}", "{{buckets:[1 two]}}", "{{counter_reset_hint:no}}", "1"]
)
def test_a_slip_in_the_notation_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=r"`|convert"):
        histogram_text.expand(text)


def test_series_of_histograms_grow_step_by_step() -> None:
    found = histogram_text.expand("{{count:4 sum:8 buckets:[4]}}-{{count:1 sum:2 buckets:[1]}}x2")
    assert [(one.count, one.sum, one.positive) for one in found] == [
        (4.0, 8.0, ((0, 4.0),)),
        (3.0, 6.0, ((0, 3.0),)),
        (2.0, 4.0, ((0, 2.0),)),
    ]
    [gauge] = histogram_text.expand("{{counter_reset_hint:gauge}}")
    assert gauge.hint is ResetHint.GAUGE
