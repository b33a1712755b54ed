"""Parse an exporter's protobuf page: delimited MetricFamily messages, the only format with native histograms.

As for text (`exposition`), each target has its own parser, which caches the label bytes of each series. Field numbers
are those of metrics.proto in Prometheus' prompb/io/prometheus/client; created timestamps are ignored.
"""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import TypeAlias

from watchkeeper.errors import CollectError, quote
from watchkeeper.kit.protobuf import read_fields, read_varint, to_signed
from watchkeeper.model.histograms import ResetHint
from watchkeeper.model.labels import METRIC_NAME, Labels
from watchkeeper.readers import histogram_message
from watchkeeper.readers.exposition import (
    FORGET_SLACK,
    MAX_LABEL_LENGTH,
    MAX_SERIES,
    BadLine,
    ExpositionPage,
    FamilyMetadata,
    ParsedPage,
    SeriesCache,
    check_label,
)

CONTENT_TYPE = "application/vnd.google.protobuf"
ACCEPT = f"{CONTENT_TYPE};proto=io.prometheus.client.MetricFamily;encoding=delimited"
TYPES = ("counter", "gauge", "summary", "unknown", "histogram", "gaugehistogram")
GAUGE_HISTOGRAM = 5
# Tags of a family and of a metric, and field numbers of a metric's types.
NAME, HELP, TYPE, METRIC, UNIT = 0x0A, 0x12, 0x18, 0x22, 0x2A
LABEL, TIMESTAMP = 0x0A, 0x30
GAUGE, COUNTER, SUMMARY, UNTYPED, HISTOGRAM = 2, 3, 4, 5, 7
NATIVE = ("", "", "native")
# Field 16: exemplars of a native histogram, which belong to no bucket.
NATIVE_EXEMPLAR = 0x82

# A series of a metric: the suffix of its name, and the name and value of its extra label.
SeriesPart: TypeAlias = tuple[str, str, str]
ByteRange: TypeAlias = tuple[int, int]
MetricSample: TypeAlias = tuple[SeriesPart, float, ByteRange | None]


@dataclass(slots=True)
class _MetricBytes:
    """The byte ranges of one metric's parts in the page."""

    labels_end: int
    labels: list[ByteRange]
    content: dict[int, ByteRange]
    at_ms: int | None


@dataclass(slots=True)
class _ParsedMessages(ParsedPage):
    body: bytes = b""
    values: array[float] = field(default_factory=lambda: array("d"))
    sample_keys: set[tuple[int, int | None]] = field(default_factory=set)


class ProtobufParser(SeriesCache):
    """Parses the pages of one target. With `keeps_classic`, native histograms are also read as classic histograms."""

    def __init__(self, *, max_series: int = MAX_SERIES, keeps_classic: bool = False) -> None:
        super().__init__(max_series)
        self._keeps_classic = keeps_classic
        self._handle_of: dict[tuple[str, bytes, SeriesPart], int] = {}
        self._exemplars: dict[int, set[bytes]] = {}
        self._last_count = 0

    def parse(self, body: bytes) -> ExpositionPage:
        """Parse every valid sample of the page; CollectError if it has too many series or is truncated."""
        if 2 * len(self.labels) > 3 * self._last_count + 2 * FORGET_SLACK:
            self._reset()
        parsed, position = _ParsedMessages(body=body), 0
        while position < len(body):
            try:
                size, start = read_varint(body, position)
            except IndexError:
                size, start = len(body), position
            if start + size > len(body):
                raise CollectError(
                    f"the page is truncated: the message at byte {position} exceeds the {len(body)} bytes of the page"
                )
            self._read_family(parsed, start, start + size)
            position = start + size
        if parsed.handles != self._last_handles:
            self._last_handles = parsed.handles
        self._last_count = len(parsed.handles) + len(parsed.histograms)
        return parsed.finish(self._last_handles, parsed.values, self.epoch)

    def _read_family(self, parsed: _ParsedMessages, start: int, end: int) -> None:
        texts, metrics, type_number = {NAME: "", HELP: "", UNIT: ""}, [], 0
        try:
            for tag, at, stop in read_fields(parsed.body, start, end):
                if tag == METRIC:
                    metrics.append((at, stop))
                elif tag in texts:
                    texts[tag] = parsed.body[at:stop].decode()
                elif tag == TYPE:
                    type_number = at
        except (IndexError, UnicodeDecodeError) as error:
            where = quote(texts[NAME] or f"the family at byte {start}")
            parsed.add_problem(f"{where}: is not a MetricFamily: {error}")
            return
        name, where = texts[NAME], quote(texts[NAME])
        if not name or type_number >= len(TYPES):
            types = f"types are 0 to {len(TYPES) - 1}"
            parsed.add_problem(f"{where}: has no name or an unknown type: {type_number}, {types}")
            return
        if len(name) > MAX_LABEL_LENGTH:
            limit = f"the limit is {MAX_LABEL_LENGTH:,}"
            parsed.add_problem(f"{where}: the name has {len(name):,} characters, {limit}")
            return
        self._add_family(name, FamilyMetadata(TYPES[type_number], texts[HELP], texts[UNIT]))
        for at, stop in metrics:
            try:
                self._read_metric(parsed, name, type_number=type_number, span=(at, stop))
            except (BadLine, histogram_message.InvalidHistogram, IndexError, UnicodeDecodeError, struct.error) as error:
                parsed.add_problem(f"{where}: {error}")
        count = len(parsed.handles) + len(parsed.histograms)
        if count > self._max_series:
            self._refuse_page(f"{count} samples or more")

    def _read_metric(self, parsed: _ParsedMessages, name: str, *, type_number: int, span: ByteRange) -> None:
        body, metric = parsed.body, _read_metric_fields(parsed.body, *span)
        label_bytes = body[span[0] : metric.labels_end]
        native = metric.content.get(HISTOGRAM)
        is_native = native is not None and histogram_message.is_native(body, *native)
        if native is not None and is_native:
            _, histogram = histogram_message.read(body, *native, numbering=histogram_message.EXPOSITION)
            if type_number == GAUGE_HISTOGRAM:
                histogram = replace(histogram, hint=ResetHint.GAUGE)
            handle = self._find_handle(parsed, (name, label_bytes, NATIVE), metric)
            if self._is_first(parsed, handle, metric.at_ms):
                parsed.histograms.append((handle, histogram, metric.at_ms))
                exemplars = [(at, stop) for tag, at, stop in read_fields(body, *native) if tag == NATIVE_EXEMPLAR]
                self._add_exemplars(parsed, handle, exemplars)
            if not self._keeps_classic:
                return
        for part, value, exemplar in _read_samples(body, metric):
            handle = self._find_handle(parsed, (name, label_bytes, part), metric)
            if not self._is_first(parsed, handle, metric.at_ms):
                continue
            if metric.at_ms is not None:
                parsed.timestamps_ms[len(parsed.handles)] = metric.at_ms
            parsed.handles.append(handle)
            parsed.values.append(value)
            if exemplar is not None:
                self._add_exemplars(parsed, handle, [exemplar])

    def _is_first(self, parsed: _ParsedMessages, handle: int, at_ms: int | None) -> bool:
        """Whether this is the first sample of the series and timestamp on the page."""
        if (handle, at_ms) in parsed.sample_keys:
            parsed.add_problem(f"{quote(str(self.labels[handle]))}: is a duplicate; the first sample was kept")
            return False
        parsed.sample_keys.add((handle, at_ms))
        return True

    def _find_handle(self, parsed: _ParsedMessages, key: tuple[str, bytes, SeriesPart], metric: _MetricBytes) -> int:
        handle = self._handle_of.get(key)
        if handle is not None:
            return handle
        name, _, (suffix, label, value) = key
        pairs = {METRIC_NAME: name + suffix}
        for at, stop in metric.labels:
            label_name, text = _read_label(parsed.body, at, stop)
            if label_name in pairs:
                raise BadLine(f"duplicate label {quote(label_name)}")
            pairs[label_name] = text
            check_label(label_name, text, number=len(pairs))
        if label:
            pairs[label] = value
        handle = self._handle_of[key] = self._add_series(Labels(pairs))
        return handle

    def _add_exemplars(self, parsed: _ParsedMessages, handle: int, spans: list[ByteRange]) -> None:
        """Add the exemplars that were not on the page before."""
        raw = {parsed.body[at:stop] for at, stop in spans}
        previous = self._exemplars.get(handle, set())
        for exemplar in sorted(raw - previous):
            parsed.exemplars.append((handle, *_read_exemplar(exemplar)))
        if raw:
            self._exemplars[handle] = raw

    def _reset(self) -> None:
        super()._reset()
        self._handle_of.clear()
        self._exemplars.clear()


def _read_metric_fields(body: bytes, start: int, end: int) -> _MetricBytes:
    metric = _MetricBytes(start, [], {}, None)
    for tag, at, stop in read_fields(body, start, end):
        if tag == LABEL:
            metric.labels.append((at, stop))
            metric.labels_end = stop
        elif tag == TIMESTAMP:
            metric.at_ms = to_signed(at)
        elif tag & 7 == 2:
            metric.content[tag >> 3] = (at, stop)
    return metric


def _read_samples(body: bytes, metric: _MetricBytes) -> Iterator[MetricSample]:
    """The samples of a metric, each with the series that it belongs to."""
    for kind, span in metric.content.items():
        if kind in (GAUGE, COUNTER, UNTYPED):
            yield _read_value(body, *span)
        elif kind == SUMMARY:
            yield from _read_summary(body, *span)
        elif kind == HISTOGRAM:
            yield from _read_classic_histogram(body, *span)


def _read_value(body: bytes, start: int, end: int) -> MetricSample:
    """Read a gauge, counter or untyped value; an absent field is 0."""
    value, exemplar = 0.0, None
    for tag, at, stop in read_fields(body, start, end):
        if tag == 0x09:
            value = _read_double(body, at)
        elif tag == 0x12:
            exemplar = (at, stop)
    return ("", "", ""), value, exemplar


def _read_summary(body: bytes, start: int, end: int) -> Iterator[MetricSample]:
    count, total = 0.0, 0.0
    for tag, at, stop in read_fields(body, start, end):
        if tag == 0x08:
            count = float(at)
        elif tag == 0x11:
            total = _read_double(body, at)
        elif tag == 0x1A:
            numbers = {tag: _read_double(body, at) for tag, at, _ in read_fields(body, at, stop) if tag in (0x09, 0x11)}
            yield ("", "quantile", format_go_number(numbers.get(0x09, 0.0))), numbers.get(0x11, 0.0), None
    yield ("_sum", "", ""), total, None
    yield ("_count", "", ""), count, None


def _read_classic_histogram(body: bytes, start: int, end: int) -> Iterator[MetricSample]:
    """Read a classic histogram with cumulative buckets; the `+Inf` bucket is added if the message omits it."""
    numbers: dict[int, float] = {}
    has_last = False
    for tag, at, stop in read_fields(body, start, end):
        if tag == 0x08:
            numbers[tag] = float(at)
        elif tag in (0x11, 0x21):
            numbers[tag] = _read_double(body, at)
        elif tag == 0x1A:
            bound, count, exemplar = _read_bucket(body, at, stop)
            has_last = has_last or bound == math.inf
            yield ("_bucket", "le", format_go_number(bound)), count, exemplar
    count = numbers.get(0x21) or numbers.get(0x08, 0.0)
    if not has_last:
        yield ("_bucket", "le", "+Inf"), count, None
    yield ("_sum", "", ""), numbers.get(0x11, 0.0), None
    yield ("_count", "", ""), count, None


def _read_bucket(body: bytes, start: int, end: int) -> tuple[float, float, ByteRange | None]:
    bound, count, exemplar = 0.0, 0.0, None
    for tag, at, stop in read_fields(body, start, end):
        if tag == 0x08:
            count = count or float(at)
        elif tag == 0x11:
            bound = _read_double(body, at)
        elif tag == 0x21:
            count = _read_double(body, at) or count
        elif tag == 0x1A:
            exemplar = (at, stop)
    return bound, count, exemplar


def _read_exemplar(raw: bytes) -> tuple[Labels, float, int | None]:
    pairs, value, at_ms = {}, 0.0, None
    for tag, at, stop in read_fields(raw, 0, len(raw)):
        if tag == 0x0A:
            name, text = _read_label(raw, at, stop)
            pairs[name] = text
        elif tag == 0x11:
            value = _read_double(raw, at)
        elif tag == 0x1A:
            time_parts = {tag: to_signed(at) for tag, at, _ in read_fields(raw, at, stop) if tag in (0x08, 0x10)}
            at_ms = time_parts.get(0x08, 0) * 1000 + time_parts.get(0x10, 0) // 1_000_000
    return Labels(pairs), value, at_ms


def _read_label(body: bytes, start: int, end: int) -> tuple[str, str]:
    texts = {tag: body[at:stop].decode() for tag, at, stop in read_fields(body, start, end) if tag in (0x0A, 0x12)}
    return texts.get(0x0A, ""), texts.get(0x12, "")


def _read_double(body: bytes, at: int) -> float:
    (value,) = struct.unpack_from("<d", body, at)
    return float(value)


def format_go_number(value: float) -> str:
    """Format a bound as in text pages: Go's shortest %g."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    if value == 0 or 1e-4 <= abs(value) < 1e6:
        return repr(value).removesuffix(".0")
    digits, exponent = f"{Decimal(repr(value)).normalize():e}".split("e")
    return f"{digits}e{int(exponent):+03d}"
