"""Encode and decode remote write 1.0: samples as protobuf in a snappy block.

`remote.sender` sends samples with `encode`; the web application passes bodies of POST /api/v1/write to
`append_request`. The message is small and fixed, so this module encodes it without a library (prompb/remote.proto and
types.proto of Prometheus): nearly every sample has 18 bytes, and NumPy reads and writes them all at once.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeAlias

import cramjam
import numpy as np

from watchkeeper import errors
from watchkeeper.kit.protobuf import encode_varint, read_fields, read_varint, to_signed
from watchkeeper.model.exemplars import Exemplar
from watchkeeper.model.histograms import HistogramSample
from watchkeeper.model.labels import METRIC_NAME, Labels
from watchkeeper.model.samples import Sample
from watchkeeper.query import histogram_wire
from watchkeeper.query.engine import Floats, Millis
from watchkeeper.query.remote.bounded_cache import BoundedCache, default_limit_bytes
from watchkeeper.store.head import head
from watchkeeper.store.interfaces import AnySample, Appended, Appender
from watchkeeper.store.series import MAX_LABELS, MAX_NAME_LENGTH, MAX_VALUE_LENGTH

CONTENT_TYPE = "application/x-protobuf"
HEADERS = {"Content-Type": CONTENT_TYPE, "Content-Encoding": "snappy", "X-Prometheus-Remote-Write-Version": "0.1.0"}
# A sample: tag 2 of a series, 16 bytes long, value as fixed 64 bits, time as a varint of 6 bytes.
SAMPLE_BYTES = 18
SAMPLE_HEAD = b"\x12\x10\x09"
TIME_TAG = 0x10
# Times whose varint has exactly 6 bytes: from 1971 to 2109.
SIX_BYTE_TIMES = (1 << 35, (1 << 42) - 1)
METRIC_TYPES = ("unknown", "counter", "gauge", "histogram", "gaugehistogram", "summary", "info", "stateset")
# Longer label sets are not cached: they are rare, and few of them would fill the cache.
MAX_CACHED_BYTES = 2048
# The memory of a cached label set besides its bytes: dictionary entries, the Labels, and a pointer for each pair.
ENTRY_OVERHEAD_BYTES = 400
# No sender has messages with more fields: a label has 2, a sample 3, a description 4, an exemplar 2 and its labels.
MAX_FIELDS, MAX_EXEMPLAR_FIELDS = 8, 128
Series: TypeAlias = tuple[Labels, Millis, Floats]


@dataclass(frozen=True, slots=True)
class WriteLimits:
    """The limits of one request. Prometheus sends 2,000 samples in about 100 kB; vmagent up to 32 MiB unpacked."""

    max_bytes: int = 8 * 1024 * 1024
    max_unpacked_bytes: int = 64 * 1024 * 1024
    max_series: int = 200_000
    max_samples: int = 1_000_000
    max_labels: int = 4_000_000
    max_exemplars: int = 100_000
    max_histograms: int = 100_000
    max_histogram_bytes: int = 8 * 1024 * 1024
    max_metadata: int = 100_000
    # Fields that this version does not know.
    max_unknown: int = 10_000


@dataclass(frozen=True, slots=True)
class WriteRequest:
    """A decoded request; `dropped` counts samples by reason, `metadata` has type, help and unit by metric."""

    series: list[Series]
    dropped: dict[str, int] = field(default_factory=dict)
    metadata: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    exemplars: list[tuple[Labels, Exemplar]] = field(default_factory=list)
    histograms: list[HistogramSample] = field(default_factory=list)


def encode(
    series: Sequence[tuple[Labels, Sequence[int], Sequence[float]]], histograms: Iterable[HistogramSample] = ()
) -> bytes:
    """Encode a request body; the samples of a series keep their order."""
    counts = [len(times) for _, times, _ in series]
    times = np.fromiter((at_ms for _, row, _ in series for at_ms in row), dtype=np.int64, count=sum(counts))
    values = np.fromiter((value for _, _, row in series for value in row), dtype=np.float64, count=sum(counts))
    pieces = _sample_pieces(times, values, counts)
    body = bytearray()
    for (labels, _, _), samples in zip(series, pieces, strict=True):
        encoded_labels = _encoded_labels.get(labels)
        body += b"\x0a" + encode_varint(len(encoded_labels) + len(samples)) + encoded_labels + samples
    for sample in histograms:
        inner = _encoded_labels.get(sample.labels) + histogram_wire.write(sample.at_ms, sample.value)
        body += b"\x0a" + encode_varint(len(inner)) + inner
    packed: bytes = bytes(cramjam.snappy.compress_raw(bytes(body)))
    return packed


def encode_rows(encoded_labels: Sequence[bytes], times: Millis, values: Floats) -> bytes:
    """Encode a request body with one sample per row; `encode_labels` has encoded the labels."""
    samples = list(_sample_pieces(times, values, [1] * len(encoded_labels)))
    heads = [
        b"\x0a" + encode_varint(len(labels) + len(sample))
        for labels, sample in zip(encoded_labels, samples, strict=True)
    ]
    body = b"".join([part for row in zip(heads, encoded_labels, samples, strict=True) for part in row])
    return bytes(cramjam.snappy.compress_raw(body))


def encode_samples(samples: Sequence[Sample]) -> bytes:
    """Encode a request body with one sample for each series."""
    times = np.array([sample.at_ms for sample in samples], dtype=np.int64)
    values = np.array([sample.value for sample in samples], dtype=np.float64)
    return encode_rows([_encoded_labels.get(sample.labels) for sample in samples], times, values)


def _sample_pieces(times: Millis, values: Floats, counts: Sequence[int]) -> Iterator[bytes]:
    low, high = SIX_BYTE_TIMES
    bounds = [0, *np.cumsum(counts, dtype=np.int64).tolist()]
    if len(times) and int(times.min()) >= low and int(times.max()) <= high:
        block = np.empty((len(times), SAMPLE_BYTES), dtype=np.uint8)
        block[:, :3] = np.frombuffer(SAMPLE_HEAD, dtype=np.uint8)
        block[:, 3:11] = values.astype("<f8").view(np.uint8).reshape(-1, 8)
        block[:, 11] = TIME_TAG
        for index in range(6):
            block[:, 12 + index] = (times >> 7 * index) & 0x7F | (0x80 if index < 5 else 0)
        block_bytes = block.tobytes()
        yield from (block_bytes[start * SAMPLE_BYTES : end * SAMPLE_BYTES] for start, end in pairwise(bounds))
        return
    for start, end in pairwise(bounds):
        pairs = zip(times[start:end].tolist(), values[start:end], strict=True)
        yield b"".join(_sample_bytes(at_ms, value) for at_ms, value in pairs)


def _sample_bytes(at_ms: int, value: np.float64) -> bytes:
    # tobytes keeps the bits of a stale marker; float arithmetic might change them.
    bits: bytes = value.astype("<f8").tobytes()
    inner = b"\x09" + bits + b"\x10" + encode_varint(at_ms & (1 << 64) - 1)
    return b"\x12" + encode_varint(len(inner)) + inner


def _pair_bytes(pair: tuple[str, str]) -> bytes:
    name, value = pair[0].encode(), pair[1].encode()
    inner = b"\x0a" + encode_varint(len(name)) + name + b"\x12" + encode_varint(len(value)) + value
    return b"\x0a" + encode_varint(len(inner)) + inner


# Series share most of their labels.
_encoded_pairs: BoundedCache[tuple[str, str], bytes] = BoundedCache(
    _pair_bytes, lambda _, raw: 2 * len(raw) + ENTRY_OVERHEAD_BYTES, limit_bytes=default_limit_bytes() // 4
)


def encode_labels(labels: Labels) -> bytes:
    """Encode the labels of a series; in a request they precede its samples."""
    return b"".join(map(_encoded_pairs.get, labels.pairs))


_encoded_labels: BoundedCache[Labels, bytes] = BoundedCache(
    encode_labels, lambda _, raw: len(raw) + ENTRY_OVERHEAD_BYTES, limit_bytes=default_limit_bytes()
)


def unsupported_reason(content_type: str | None, content_encoding: str | None) -> str | None:
    """Why a request with these headers is not supported (status 415), or None."""
    kind = (content_type or CONTENT_TYPE).lower().replace(" ", "")
    if kind.partition(";")[0] != CONTENT_TYPE or "io.prometheus.write.v2" in kind:
        return f"content type {errors.quote(content_type)} is not supported; send remote write 1.0 as {CONTENT_TYPE}"
    if (content_encoding or "snappy").lower() != "snappy":
        return f"content encoding {errors.quote(content_encoding)} is not supported; send snappy blocks"
    return None


def append_request(body: bytes, appender: Appender, *, now_ms: int | None = None) -> Appended:
    """Append the samples of a request; WireError if the body is invalid or too large, before any sample is stored.

    With `now_ms`, samples too far in the future are dropped: a sample of the year 2200 would make all others too old.
    """
    decoded = decode(body)
    latest_ms = None if now_ms is None else now_ms + head.MAX_AHEAD_MS
    if appender.metadata is not None:
        for name, (kind, help, unit) in decoded.metadata.items():
            appender.metadata.record(name, kind, help=help, unit=unit)
    dropped = Counter(decoded.dropped)
    if latest_ms is not None:
        dropped["future"] += sum(int(np.count_nonzero(times > latest_ms)) for _, times, _ in decoded.series)
        dropped["future"] += sum(sample.at_ms > latest_ms for sample in decoded.histograms)
    exemplar_store = appender.exemplars
    for series, exemplar in decoded.exemplars:
        is_future = latest_ms is not None and exemplar.at_ms > latest_ms
        if exemplar_store is None or is_future or not exemplar_store.add(series, exemplar):
            dropped["exemplar"] += 1
    numbers = (
        Sample(labels, at_ms, value)
        for labels, times, values in decoded.series
        for at_ms, value in zip(times.tolist(), values.tolist(), strict=True)
        if latest_ms is None or at_ms <= latest_ms
    )
    samples = _merge_by_time(numbers, decoded.histograms, latest_ms) if decoded.histograms else numbers
    appended = appender.append(samples)
    return Appended(appended.kept, dict(Counter(appended.dropped) + dropped))


def _merge_by_time(
    numbers: Iterable[Sample], histograms: Iterable[HistogramSample], latest_ms: int | None
) -> list[AnySample]:
    """Numbers and histograms, sorted by time: a series may have both."""
    merged: list[AnySample] = [
        *numbers,
        *(sample for sample in histograms if latest_ms is None or sample.at_ms <= latest_ms),
    ]
    return sorted(merged, key=lambda sample: sample.at_ms)


# Explanations for reasons whose name is not enough.
REASON_DETAILS = {
    "limit": f" (more than {MAX_LABELS} labels, more than {MAX_NAME_LENGTH} characters in a "
    f"name or {MAX_VALUE_LENGTH:,} in a value, or more series or histograms than the store allows)",
    "too_old": " (older than the out-of-order window)",
    "invalid_labels": " (no name, a duplicate name, or not UTF-8)",
}


def response_for(appended: Appended) -> tuple[int, str]:
    """Status and text for the sender, without dropped exemplars: it logs a 400 and continues, but would retry a 5xx."""
    lost = sorted((reason, count) for reason, count in appended.dropped.items() if reason != "exemplar")
    if not lost:
        return 204, ""
    reasons = ", ".join(f"{count} {reason}{REASON_DETAILS.get(reason, '')}" for reason, count in lost)
    return 400, f"{appended.kept} samples were stored, others were dropped: {reasons}"


def decode(body: bytes, limits: WriteLimits = WriteLimits()) -> WriteRequest:  # noqa: B008 (frozen)
    """Decode a request body; WireError if it is invalid or exceeds a limit."""
    message = _unpack(body, limits)
    try:
        return _RequestReader(message, limits).read()
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise errors.WireError((f"remote write: the message is truncated or invalid ({error})",)) from error


def _unpack(body: bytes, limits: WriteLimits) -> bytes:
    _check_limit("bytes", len(body), limits.max_bytes)
    try:
        # The block starts with its unpacked length, so a decompression bomb is refused before it is unpacked.
        _check_limit("bytes when unpacked", cramjam.snappy.decompress_raw_len(body), limits.max_unpacked_bytes)
        return bytes(cramjam.snappy.decompress_raw(body))
    except cramjam.DecompressionError as error:
        raise errors.WireError((f"remote write: the body is not a snappy block ({error})",)) from error


def _check_limit(unit: str, count: int, limit: int) -> None:
    if count > limit:
        raise errors.WireError((f"remote write: the request has {count} {unit}, the limit is {limit}",))


class _RequestReader:
    """Reads a message in one pass: it collects offsets of samples in the usual layout and reads them at the end."""

    def __init__(self, message: bytes, limits: WriteLimits) -> None:
        self.message = message
        self.limits = limits
        self.labels: list[Labels] = []
        self.counts: list[int] = []
        self.offsets: list[int] = []
        self.unusual: dict[int, tuple[int, float]] = {}
        self.dropped: Counter[str] = Counter()
        self.metadata: dict[str, tuple[str, str, str]] = {}
        self.exemplars: list[tuple[Labels, Exemplar]] = []
        self.histograms: list[HistogramSample] = []
        # What was read, also what is dropped, by the unit of its limit.
        self.read_counts: Counter[str] = Counter()

    def read(self) -> WriteRequest:
        max_series, series_count = self.limits.max_series, 0
        for tag, start, end in read_fields(self.message, 0, len(self.message)):
            if tag == 0x0A:
                series_count += 1
                if series_count > max_series:
                    _check_limit("series", series_count, max_series)
                if not (end - start > SAMPLE_BYTES and self._read_cached_series(start, end)):
                    self._read_series(start, end)
            elif tag == 0x1A:
                self._count("descriptions", self.limits.max_metadata)
                self._read_metadata(start, end)
            else:
                self._count("unknown fields", self.limits.max_unknown)
        _check_limit("samples", len(self.offsets), self.limits.max_samples)
        times, values = self._read_samples()
        ends = np.cumsum(self.counts, dtype=np.int64).tolist()
        series = [
            (labels, times[end - count : end], values[end - count : end])
            for labels, count, end in zip(self.labels, self.counts, ends, strict=True)
        ]
        return WriteRequest(series, dict(self.dropped), self.metadata, self.exemplars, self.histograms)

    def _read_cached_series(self, start: int, end: int) -> bool:
        """Read a series with cached labels and one sample in the usual layout, as nearly all series have."""
        message, at = self.message, end - SAMPLE_BYTES
        if not (message.startswith(SAMPLE_HEAD, at) and self._is_usual(at + 2, end)):
            return False
        labels = _label_sets.peek(message[start:at])
        if labels is None:
            return False
        self.labels.append(labels)
        self.counts.append(1)
        self.offsets.append(at + 2)
        return True

    def _read_series(self, start: int, end: int) -> None:
        message, position = self.message, start
        labels_left = self.limits.max_labels - self.read_counts["labels"]
        label_count = 0
        while position < end and message[position] == 0x0A and label_count <= labels_left:
            length, position = read_varint(message, position + 1)
            position += length
            label_count += 1
        self._count("labels", self.limits.max_labels, label_count)
        if position > end:
            raise IndexError(f"labels end at byte {position}, their series at {end}")
        read_labels = _label_sets.get if position - start <= MAX_CACHED_BYTES else _read_labels
        labels = read_labels(message[start:position])
        before = len(self.offsets)
        for tag, at, stop in read_fields(message, position, end):
            if tag == 0x12:
                is_usual = self._is_usual(at, stop)
                if not is_usual:
                    # Some senders omit a value of 0 and a time of 0, and times before 1971 are shorter.
                    self.unusual[len(self.offsets)] = _read_sample(self.message, at, stop)
                self.offsets.append(at if is_usual else -1)
                if len(self.offsets) > self.limits.max_samples:
                    _check_limit("samples", len(self.offsets), self.limits.max_samples)
            elif tag == 0x1A:
                self._count("exemplars", self.limits.max_exemplars)
                self._read_exemplar(labels, at, stop)
            elif tag == 0x22:
                self._count("histograms", self.limits.max_histograms)
                self._count("bytes of histograms", self.limits.max_histogram_bytes, stop - at)
                self._read_histogram(labels, at, stop)
            elif tag == 0x0A:
                raise IndexError("labels follow samples")
            else:
                self._count("unknown fields", self.limits.max_unknown)
        count = len(self.offsets) - before
        if labels is None:
            self.dropped["invalid_labels"] += count
            for number in range(before, len(self.offsets)):
                self.unusual.pop(number, None)
            del self.offsets[before:]
            return
        if count:
            self.labels.append(labels)
            self.counts.append(count)

    def _count(self, unit: str, limit: int, count: int = 1) -> None:
        self.read_counts[unit] += count
        if self.read_counts[unit] > limit:
            _check_limit(unit, self.read_counts[unit], limit)

    def _read_exemplar(self, labels: Labels | None, start: int, end: int) -> None:
        if labels is None:
            self.dropped["exemplar"] += 1
        else:
            self.exemplars.append((labels, _read_exemplar(self.message, start, end)))

    def _read_histogram(self, labels: Labels | None, start: int, end: int) -> None:
        if labels is None:
            self.dropped["invalid_labels"] += 1
            return
        try:
            at_ms, histogram = histogram_wire.read(self.message, start, end)
        except histogram_wire.InvalidHistogram:
            self.dropped["invalid_histogram"] += 1
        else:
            self.histograms.append(HistogramSample(labels, at_ms, histogram))

    def _is_usual(self, start: int, end: int) -> bool:
        """Whether a sample has a value and then a time of 6 bytes; all bytes but the last have the continuation bit."""
        message = self.message
        return (
            end - start == SAMPLE_BYTES - 2
            and message[start] == 0x09
            and message[start + 9] == TIME_TAG
            and min(message[start + 10 : end - 1]) >= 0x80
            and message[end - 1] < 0x80
        )

    def _read_samples(self) -> tuple[Millis, Floats]:
        offsets = np.array(self.offsets, dtype=np.int64)
        raw = np.frombuffer(self.message, dtype=np.uint8)
        usual = np.flatnonzero(offsets >= 0)
        times, values = np.zeros(len(offsets), dtype=np.int64), np.zeros(len(offsets))
        if len(usual):
            starts = offsets[usual][:, None]
            values[usual] = np.ascontiguousarray(raw[starts + np.arange(1, 9)]).view("<f8")[:, 0]
            septets = (raw[starts + np.arange(10, 16)] & 0x7F).astype(np.int64)
            times[usual] = (septets << (7 * np.arange(6))).sum(axis=1)
        for index, (at_ms, value) in self.unusual.items():
            times[index], values[index] = at_ms, value
        return times, values

    def _read_metadata(self, start: int, end: int) -> None:
        kind, texts = 0, {0x12: "", 0x22: "", 0x2A: ""}
        for tag, at, stop in read_fields(self.message, start, end, max_fields=MAX_FIELDS):
            if tag == 0x08:
                kind = at
            elif tag in texts:
                texts[tag] = self.message[at:stop].decode()
        metric_type = METRIC_TYPES[kind] if kind < len(METRIC_TYPES) else METRIC_TYPES[0]
        self.metadata[texts[0x12]] = (metric_type, texts[0x22], texts[0x2A])


def _read_sample(message: bytes, start: int, end: int) -> tuple[int, float]:
    at_ms, value = 0, 0.0
    for tag, at, _ in read_fields(message, start, end, max_fields=MAX_FIELDS):
        if tag == 0x09:
            (value,) = struct.unpack_from("<d", message, at)
        elif tag == TIME_TAG:
            at_ms = to_signed(at)
    return at_ms, value


def _read_exemplar(message: bytes, start: int, end: int) -> Exemplar:
    pairs, value, at_ms = [], 0.0, 0
    for tag, at, stop in read_fields(message, start, end, max_fields=MAX_EXEMPLAR_FIELDS):
        if tag == 0x0A:
            pairs.append(_read_pair(message, at, stop))
        elif tag == 0x11:
            (value,) = struct.unpack_from("<d", message, at)
        elif tag == 0x18:
            at_ms = to_signed(at)
    return Exemplar(Labels(dict(pairs)), value, at_ms)


def _read_pair(message: bytes, start: int, end: int) -> tuple[str, str]:
    texts = {0x0A: "", 0x12: ""}
    for tag, at, stop in read_fields(message, start, end, max_fields=MAX_FIELDS):
        if tag in texts:
            texts[tag] = message[at:stop].decode()
    return texts[0x0A], texts[0x12]


def _read_labels(raw: bytes) -> Labels | None:
    """The label set of a series; None if a name is empty or duplicate, or the metric name is missing."""
    pairs = [_label_pairs.get(raw[start:end]) for _, start, end in read_fields(raw, 0, len(raw))]
    names = {name for name, _ in pairs}
    metric = next((value for name, value in pairs if name == METRIC_NAME), "")
    if len(names) < len(pairs) or "" in names or not metric:
        return None
    others = [pair for pair in pairs if pair[0] != METRIC_NAME and pair[1]]
    return Labels.with_metric_name(metric, tuple(sorted(others)))


# Most label sets consist of labels that other label sets have too, and share them.
_label_pairs: BoundedCache[bytes, tuple[str, str]] = BoundedCache(
    lambda raw: _read_pair(raw, 0, len(raw)),
    lambda raw, _: 2 * len(raw) + ENTRY_OVERHEAD_BYTES,
    limit_bytes=default_limit_bytes() // 4,
)
_label_sets: BoundedCache[bytes, Labels | None] = BoundedCache(
    _read_labels, lambda raw, _: len(raw) + ENTRY_OVERHEAD_BYTES, limit_bytes=default_limit_bytes()
)
