"""An exporter's page as protobuf: delimited messages MetricFamily, the only form that has native histograms.

Read like a page of text (`exposition`): each target has its own parser, which remembers the bytes of each series'
labels, so that a series seen before costs one look-up. Field numbers are those of metrics.proto in Prometheus'
prompb/io/prometheus/client; when a series was created is not looked at.
"""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import NamedTuple, TypeAlias

from watchkeeper.errors import CollectError, quote
from watchkeeper.kit.protobuf import read_fields, read_varint, to_signed
from watchkeeper.model.histograms import Histogram, ResetHint
from watchkeeper.model.labels import METRIC_NAME, Labels
from watchkeeper.readers import histogram_message
from watchkeeper.readers.exposition import (
    BAD_LINES_NAMED,
    FORGET_SLACK,
    MAX_LABEL_LENGTH,
    MAX_LABELS,
    MAX_SERIES,
    BadLine,
    ExpositionPage,
    FamilyMetadata,
)

CONTENT_TYPE = "application/vnd.google.protobuf"
ACCEPT = f"{CONTENT_TYPE};proto=io.prometheus.client.MetricFamily;encoding=delimited"
TYPES = ("counter", "gauge", "summary", "unknown", "histogram", "gaugehistogram")
GAUGE_HISTOGRAM = 5
# Fields of a family, of a metric, and of what a metric holds.
NAME, HELP, TYPE, METRIC, UNIT = 0x0A, 0x12, 0x18, 0x22, 0x2A
LABEL, TIMESTAMP = 0x0A, 0x30
GAUGE, COUNTER, SUMMARY, UNTYPED, HISTOGRAM = 2, 3, 4, 5, 7
NATIVE = ("", "", "native")
# Field 16: exemplars of a native histogram, which are those of no bucket.
NATIVE_EXEMPLAR = 0x82

# Which series of a metric: the ending of its name, and the label that its value is in.
Part: TypeAlias = tuple[str, str, str]
Bytes: TypeAlias = tuple[int, int]


class MetricPoint(NamedTuple):
    part: Part
    value: float
    exemplar: Bytes | None = None


@dataclass(slots=True)
class _MetricBytes:
    """Where one metric's parts lie in the page."""

    labels_end: int
    labels: list[Bytes]
    content: dict[int, Bytes]
    at_ms: int | None


@dataclass(slots=True)
class _ProtobufReading:
    """What has been gathered of a page so far."""

    body: bytes
    handles: list[int] = field(default_factory=list)
    values: array[float] = field(default_factory=lambda: array("d"))
    timestamps_ms: dict[int, int] = field(default_factory=dict)
    seen: set[tuple[int, int | None]] = field(default_factory=set)
    bad: int = 0
    problems: list[str] = field(default_factory=list)
    exemplars: list[tuple[int, Labels, float, int | None]] = field(default_factory=list)
    histograms: list[tuple[int, Histogram, int | None]] = field(default_factory=list)

    def complain(self, name: str, reason: object) -> None:
        self.bad += 1
        if len(self.problems) < BAD_LINES_NAMED:
            self.problems.append(f"{quote(name)}: {reason}")


class ProtobufParser:
    """Reads the pages of one target; histograms with native buckets as those, and as classic ones too if wanted."""

    def __init__(self, *, max_series: int = MAX_SERIES, keeps_classic: bool = False) -> None:
        self.labels: list[Labels] = []
        self.families: dict[str, FamilyMetadata] = {}
        # Counts the changes of `families`.
        self.families_version = 0
        self.epoch = 0
        self._max_series = max_series
        self._keeps_classic = keeps_classic
        self._handle_of: dict[tuple[str, bytes, Part], int] = {}
        self._pairs: dict[tuple[str, str], tuple[str, str]] = {}
        self._exemplars: dict[int, set[bytes]] = {}
        self._last_handles: list[int] = []
        self._last_count = 0

    def parse(self, body: bytes) -> ExpositionPage:
        """Every readable sample of the page; CollectError if it has too many series or is cut short."""
        if 2 * len(self.labels) > 3 * self._last_count + 2 * FORGET_SLACK:
            self._forget()
        reading, place = _ProtobufReading(body), 0
        while place < len(body):
            try:
                size, start = read_varint(body, place)
            except IndexError:
                size, start = len(body), place
            if start + size > len(body):
                raise CollectError(f"the page is cut short: byte {place} begins what has no end in {len(body)} bytes")
            self._read_family(reading, start, start + size)
            place = start + size
        if reading.handles != self._last_handles:
            self._last_handles = reading.handles
        self._last_count = len(reading.handles) + len(reading.histograms)
        return ExpositionPage(
            self._last_handles,
            reading.values,
            self.epoch,
            timestamps_ms=reading.timestamps_ms,
            bad_lines=reading.bad,
            problems=tuple(reading.problems),
            exemplars=tuple(reading.exemplars),
            histograms=tuple(reading.histograms),
        )

    def _read_family(self, reading: _ProtobufReading, start: int, end: int) -> None:
        texts, metrics, kind = {NAME: "", HELP: "", UNIT: ""}, [], 0
        try:
            for tag, at, stop in read_fields(reading.body, start, end):
                if tag == METRIC:
                    metrics.append((at, stop))
                elif tag in texts:
                    texts[tag] = reading.body[at:stop].decode()
                elif tag == TYPE:
                    kind = at
        except (IndexError, UnicodeDecodeError) as error:
            reading.complain(texts[NAME] or f"the family at byte {start}", f"is no family: {error}")
            return
        name = texts[NAME]
        if not name or kind >= len(TYPES):
            reading.complain(name, f"a family needs a name and one of {len(TYPES)} types, its type is {kind}")
            return
        if len(name) > MAX_LABEL_LENGTH:
            reading.complain(name, f"the name has {len(name):,} characters, the limit is {MAX_LABEL_LENGTH:,}")
            return
        self._note_family(name, FamilyMetadata(TYPES[kind], texts[HELP], texts[UNIT]))
        for at, stop in metrics:
            try:
                self._read_metric(reading, name, kind=kind, where=(at, stop))
            except (BadLine, histogram_message.Broken, IndexError, UnicodeDecodeError, struct.error) as error:
                reading.complain(name, error)
        self._refuse_size(reading)

    def _note_family(self, name: str, family: FamilyMetadata) -> None:
        if family == self.families.get(name) or (name not in self.families and len(self.families) >= self._max_series):
            return
        self.families[name] = family
        self.families_version += 1

    def _read_metric(self, reading: _ProtobufReading, name: str, *, kind: int, where: Bytes) -> None:
        body, metric = reading.body, _metric(reading.body, *where)
        own = body[where[0] : metric.labels_end]
        native = metric.content.get(HISTOGRAM)
        is_native = native is not None and histogram_message.is_native(body, *native)
        if native is not None and is_native:
            _, found = histogram_message.read(body, *native, numbering=histogram_message.EXPOSITION)
            if kind == GAUGE_HISTOGRAM:
                found = replace(found, hint=ResetHint.GAUGE)
            handle = self._handle(reading, (name, own, NATIVE), metric)
            if self._is_first(reading, handle, metric.at_ms):
                reading.histograms.append((handle, found, metric.at_ms))
                self._note_exemplars(reading, handle, _exemplars(body, *native))
            if not self._keeps_classic:
                return
        for point in _points(body, metric):
            handle = self._handle(reading, (name, own, point.part), metric)
            if not self._is_first(reading, handle, metric.at_ms):
                continue
            if metric.at_ms is not None:
                reading.timestamps_ms[len(reading.handles)] = metric.at_ms
            reading.handles.append(handle)
            reading.values.append(point.value)
            if point.exemplar is not None:
                self._note_exemplars(reading, handle, [point.exemplar])

    def _is_first(self, reading: _ProtobufReading, handle: int, at_ms: int | None) -> bool:
        """Whether the page has not had this series yet, at this time."""
        if (handle, at_ms) in reading.seen:
            reading.complain(str(self.labels[handle]), "stands twice; the first is kept")
            return False
        reading.seen.add((handle, at_ms))
        return True

    def _handle(self, reading: _ProtobufReading, key: tuple[str, bytes, Part], metric: _MetricBytes) -> int:
        known = self._handle_of.get(key)
        if known is not None:
            return known
        name, _, (ending, label, value) = key
        pairs = {METRIC_NAME: name + ending}
        for at, stop in metric.labels:
            own, text = _label(reading.body, at, stop)
            if own in pairs:
                raise BadLine(f"label {quote(own)} stands twice")
            pairs[own] = text
            if len(text) > MAX_LABEL_LENGTH or len(own) > MAX_LABEL_LENGTH or len(pairs) > MAX_LABELS:
                raise BadLine(
                    f"label {quote(own)} has {len(text):,} characters and is number {len(pairs)}; "
                    f"the limits are {MAX_LABEL_LENGTH:,} characters and {MAX_LABELS} labels"
                )
        if label:
            pairs[label] = value
        series = Labels(pairs)
        series.pairs = tuple([self._pairs.setdefault(pair, pair) for pair in series.pairs])
        handle = self._handle_of[key] = len(self.labels)
        self.labels.append(series)
        return handle

    def _note_exemplars(self, reading: _ProtobufReading, handle: int, places: list[Bytes]) -> None:
        """Those that were not on the page before."""
        raw = {reading.body[at:stop] for at, stop in places}
        known = self._exemplars.get(handle, set())
        for one in sorted(raw - known):
            reading.exemplars.append((handle, *_read_exemplar(one)))
        if raw:
            self._exemplars[handle] = raw

    def _refuse_size(self, reading: _ProtobufReading) -> None:
        found = len(reading.handles) + len(reading.histograms)
        if found <= self._max_series:
            return
        self._forget()
        raise CollectError(
            f"the page has {found} samples or more, the limit is {self._max_series}",
            now="Nothing of this page is kept",
            remedy="Raise the limit for this target, or drop metrics in the exporter",
        )

    def _forget(self) -> None:
        """Start anew when most remembered series are gone."""
        self.epoch += 1
        self.labels = []
        self._handle_of.clear()
        self._pairs.clear()
        self._exemplars.clear()
        self._last_handles = []


def _metric(body: bytes, start: int, end: int) -> _MetricBytes:
    found = _MetricBytes(start, [], {}, None)
    for tag, at, stop in read_fields(body, start, end):
        if tag == LABEL:
            found.labels.append((at, stop))
            found.labels_end = stop
        elif tag == TIMESTAMP:
            found.at_ms = to_signed(at)
        elif tag & 7 == 2:
            found.content[tag >> 3] = (at, stop)
    return found


def _points(body: bytes, metric: _MetricBytes) -> Iterator[MetricPoint]:
    """The numbers of a metric, each with the part of it that it belongs to."""
    for kind, where in metric.content.items():
        if kind in (GAUGE, COUNTER, UNTYPED):
            yield _plain(body, *where)
        elif kind == SUMMARY:
            yield from _summary(body, *where)
        elif kind == HISTOGRAM:
            yield from _classic(body, *where)


def _plain(body: bytes, start: int, end: int) -> MetricPoint:
    """A field that is not written is 0."""
    value, exemplar = 0.0, None
    for tag, at, stop in read_fields(body, start, end):
        if tag == 0x09:
            value = _double(body, at)
        elif tag == 0x12:
            exemplar = (at, stop)
    return MetricPoint(("", "", ""), value, exemplar)


def _summary(body: bytes, start: int, end: int) -> Iterator[MetricPoint]:
    count, total = 0.0, 0.0
    for tag, at, stop in read_fields(body, start, end):
        if tag == 0x08:
            count = float(at)
        elif tag == 0x11:
            total = _double(body, at)
        elif tag == 0x1A:
            own = {tag: _double(body, at) for tag, at, _ in read_fields(body, at, stop) if tag in (0x09, 0x11)}
            yield MetricPoint(("", "quantile", go_number(own.get(0x09, 0.0))), own.get(0x11, 0.0))
    yield MetricPoint(("_sum", "", ""), total)
    yield MetricPoint(("_count", "", ""), count)


def _classic(body: bytes, start: int, end: int) -> Iterator[MetricPoint]:
    """Buckets that count what lies below their bound; the last one, which counts everything, may be left out."""
    numbers: dict[int, float] = {}
    has_last = False
    for tag, at, stop in read_fields(body, start, end):
        if tag == 0x08:
            numbers[tag] = float(at)
        elif tag in (0x11, 0x21):
            numbers[tag] = _double(body, at)
        elif tag == 0x1A:
            bound, count, exemplar = _bucket(body, at, stop)
            has_last = has_last or bound == math.inf
            yield MetricPoint(("_bucket", "le", go_number(bound)), count, exemplar)
    count = numbers.get(0x21) or numbers.get(0x08, 0.0)
    if not has_last:
        yield MetricPoint(("_bucket", "le", "+Inf"), count)
    yield MetricPoint(("_sum", "", ""), numbers.get(0x11, 0.0))
    yield MetricPoint(("_count", "", ""), count)


def _bucket(body: bytes, start: int, end: int) -> tuple[float, float, Bytes | None]:
    bound, count, exemplar = 0.0, 0.0, None
    for tag, at, stop in read_fields(body, start, end):
        if tag == 0x08:
            count = count or float(at)
        elif tag == 0x11:
            bound = _double(body, at)
        elif tag == 0x21:
            count = _double(body, at) or count
        elif tag == 0x1A:
            exemplar = (at, stop)
    return bound, count, exemplar


def _exemplars(body: bytes, start: int, end: int) -> list[Bytes]:
    return [(at, stop) for tag, at, stop in read_fields(body, start, end) if tag == NATIVE_EXEMPLAR]


def _read_exemplar(raw: bytes) -> tuple[Labels, float, int | None]:
    pairs, value, at_ms = {}, 0.0, None
    for tag, at, stop in read_fields(raw, 0, len(raw)):
        if tag == 0x0A:
            name, text = _label(raw, at, stop)
            pairs[name] = text
        elif tag == 0x11:
            value = _double(raw, at)
        elif tag == 0x1A:
            own = {tag: to_signed(at) for tag, at, _ in read_fields(raw, at, stop) if tag in (0x08, 0x10)}
            at_ms = own.get(0x08, 0) * 1000 + own.get(0x10, 0) // 1_000_000
    return Labels(pairs), value, at_ms


def _label(body: bytes, start: int, end: int) -> tuple[str, str]:
    found = {tag: body[at:stop].decode() for tag, at, stop in read_fields(body, start, end) if tag in (0x0A, 0x12)}
    return found.get(0x0A, ""), found.get(0x12, "")


def _double(body: bytes, at: int) -> float:
    (value,) = struct.unpack_from("<d", body, at)
    return float(value)


def go_number(value: float) -> str:
    """A bound as pages of text have it: Go's shortest %g."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    if value == 0 or 1e-4 <= abs(value) < 1e6:
        return repr(value).removesuffix(".0")
    digits, exponent = f"{Decimal(repr(value)).normalize():e}".split("e")
    return f"{digits}e{int(exponent):+03d}"
