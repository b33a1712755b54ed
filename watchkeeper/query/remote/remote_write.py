"""Remote write 1.0 as bytes: samples in a snappy block of protobuf, both ways.

`remote.sender` writes with `encode` what an engine appends on a server; the web application hands bodies of
POST /api/v1/write to `receive`. The message is small and fixed, so it is read and written here by hand
(prompb/remote.proto and types.proto of Prometheus): nearly every sample is the same 18 bytes long, which NumPy
reads and writes in one go.
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
from watchkeeper.query.remote.remembered import Remembered, allowed_bytes
from watchkeeper.store import label_limits
from watchkeeper.store.head import head
from watchkeeper.store.interfaces import AnySample, Appended, Appender

CONTENT_TYPE = "application/x-protobuf"
HEADERS = {
    "Content-Type": CONTENT_TYPE,
    "Content-Encoding": "snappy",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}
# A whole sample: tag 2 of a series, 16 bytes long, value as fixed 64 bits, time as a varint of 6 bytes.
SAMPLE_BYTES = 18
SAMPLE_HEAD = b"\x12\x10\x09"
TIME_TAG = 0x10
# Times whose varint has exactly 6 bytes: from 1971 to 2109.
SIX_BYTE_TIMES = (1 << 35, (1 << 42) - 1)
METRIC_TYPES = ("unknown", "counter", "gauge", "histogram", "gaugehistogram", "summary", "info", "stateset")
# Long label sets are rare, and few of them would fill the memory.
REMEMBERED_BYTES = 2048
# What a remembered label set takes beside its bytes: places in dictionaries, the Labels, and a pointer for each pair.
BESIDE_BYTES = 400
Series: TypeAlias = tuple[Labels, Millis, Floats]


@dataclass(frozen=True, slots=True)
class WriteLimits:
    """What one request may cost. Prometheus sends 2,000 samples in some 100 kB; vmagent up to 32 MiB unpacked."""

    max_bytes: int = 8 * 1024 * 1024
    max_unpacked_bytes: int = 64 * 1024 * 1024
    max_series: int = 200_000
    max_samples: int = 1_000_000


@dataclass(frozen=True, slots=True)
class WriteRequest:
    """One request: series with their times and values, what was left out and why, type, help and unit by metric."""

    series: list[Series]
    dropped: dict[str, int] = field(default_factory=dict)
    metadata: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    exemplars: list[tuple[Labels, Exemplar]] = field(default_factory=list)
    histograms: list[HistogramSample] = field(default_factory=list)


def encode(
    series: Sequence[tuple[Labels, Sequence[int], Sequence[float]]], histograms: Iterable[HistogramSample] = ()
) -> bytes:
    """A request body; the samples of one series stand in the order in which they are given."""
    counts = [len(times) for _, times, _ in series]
    times = np.fromiter((at for _, row, _ in series for at in row), dtype=np.int64, count=sum(counts))
    values = np.fromiter((value for _, _, row in series for value in row), dtype=np.float64, count=sum(counts))
    pieces = _sample_pieces(times, values, counts)
    body = bytearray()
    for (labels, _, _), samples in zip(series, pieces, strict=True):
        names = _written.get(labels)
        body += b"\x0a" + encode_varint(len(names) + len(samples)) + names + samples
    for one in histograms:
        inner = _written.get(one.labels) + histogram_wire.write(one.at_ms, one.value)
        body += b"\x0a" + encode_varint(len(inner)) + inner
    packed: bytes = bytes(cramjam.snappy.compress_raw(bytes(body)))
    return packed


def encode_rows(names: Sequence[bytes], times: Millis, values: Floats) -> bytes:
    """A request body of one sample for each row, whose labels `label_bytes` has written."""
    samples = list(_sample_pieces(times, values, [1] * len(names)))
    heads = [b"\x0a" + encode_varint(len(name) + len(sample)) for name, sample in zip(names, samples, strict=True)]
    body = b"".join([part for row in zip(heads, names, samples, strict=True) for part in row])
    return bytes(cramjam.snappy.compress_raw(body))


def encode_samples(samples: Sequence[Sample]) -> bytes:
    """A request body of samples of different series."""
    times = np.array([one.at_ms for one in samples], dtype=np.int64)
    values = np.array([one.value for one in samples], dtype=np.float64)
    return encode_rows([_written.get(one.labels) for one in samples], times, values)


def _sample_pieces(times: Millis, values: Floats, counts: Sequence[int]) -> Iterator[bytes]:
    """The encoded samples of each series."""
    low, high = SIX_BYTE_TIMES
    bounds = [0, *np.cumsum(counts, dtype=np.int64).tolist()]
    if len(times) and int(times.min()) >= low and int(times.max()) <= high:
        block = np.empty((len(times), SAMPLE_BYTES), dtype=np.uint8)
        block[:, :3] = np.frombuffer(SAMPLE_HEAD, dtype=np.uint8)
        block[:, 3:11] = values.astype("<f8").view(np.uint8).reshape(-1, 8)
        block[:, 11] = TIME_TAG
        for place in range(6):
            block[:, 12 + place] = (times >> 7 * place) & 0x7F | (0x80 if place < 5 else 0)
        whole = block.tobytes()
        yield from (whole[start * SAMPLE_BYTES : end * SAMPLE_BYTES] for start, end in pairwise(bounds))
        return
    for start, end in pairwise(bounds):
        pairs = zip(times[start:end].tolist(), values[start:end], strict=True)
        yield b"".join(_sample_bytes(at_ms, value) for at_ms, value in pairs)


def _sample_bytes(at_ms: int, value: np.float64) -> bytes:
    # tobytes keeps the bits of a stale marker, which a round trip through float arithmetic might not.
    bits: bytes = value.astype("<f8").tobytes()
    inner = b"\x09" + bits + b"\x10" + encode_varint(at_ms & (1 << 64) - 1)
    return b"\x12" + encode_varint(len(inner)) + inner


def _pair_bytes(pair: tuple[str, str]) -> bytes:
    name, value = pair[0].encode(), pair[1].encode()
    inner = b"\x0a" + encode_varint(len(name)) + name + b"\x12" + encode_varint(len(value)) + value
    return b"\x0a" + encode_varint(len(inner)) + inner


# Series share most of their labels, on the way out as on the way in.
_written_pairs: Remembered[tuple[str, str], bytes] = Remembered(
    _pair_bytes, lambda _, raw: 2 * len(raw) + BESIDE_BYTES, limit_bytes=allowed_bytes() // 4
)


def label_bytes(labels: Labels) -> bytes:
    """The labels of a series as they stand in a request, before its samples."""
    return b"".join(map(_written_pairs.get, labels.pairs))


_written: Remembered[Labels, bytes] = Remembered(
    label_bytes, lambda _, raw: len(raw) + BESIDE_BYTES, limit_bytes=allowed_bytes()
)


def unsupported_reason(content_type: str | None, content_encoding: str | None) -> str | None:
    """Why a request with these headers cannot be read (to be answered with 415), or None."""
    kind = (content_type or CONTENT_TYPE).lower().replace(" ", "")
    if kind.partition(";")[0] != CONTENT_TYPE or "io.prometheus.write.v2" in kind:
        return f"content type {errors.quote(content_type)} is not remote write 1.0. Send {CONTENT_TYPE}"
    if (content_encoding or "snappy").lower() != "snappy":
        return f"content encoding {errors.quote(content_encoding)} is not known here. Send snappy blocks"
    return None


def append_request(
    body: bytes,
    appender: Appender,
    *,
    limits: WriteLimits = WriteLimits(),  # noqa: B008 (frozen)
    now_ms: int | None = None,
) -> Appended:
    """Append what a sender wrote; WireError if the body is broken or too large, before anything is kept.

    With `now_ms`, samples too far ahead of it are left out: one of the year 2200 would make all others old.
    """
    decoded = decode(body, limits)
    latest_ms = None if now_ms is None else now_ms + head.MAX_AHEAD_MS
    if appender.metadata is not None:
        for name, (kind, help, unit) in decoded.metadata.items():
            appender.metadata.record(name, kind, help=help, unit=unit)
    left_out = Counter(decoded.dropped)
    if latest_ms is not None:
        left_out["future"] += sum(int(np.count_nonzero(times > latest_ms)) for _, times, _ in decoded.series)
        left_out["future"] += sum(one.at_ms > latest_ms for one in decoded.histograms)
    kept = appender.exemplars
    for series, exemplar in decoded.exemplars:
        is_future = latest_ms is not None and exemplar.at_ms > latest_ms
        if kept is None or is_future or not kept.add(series, exemplar):
            left_out["exemplar"] += 1
    numbers = (
        Sample(labels, at_ms, value)
        for labels, times, values in decoded.series
        for at_ms, value in zip(times.tolist(), values.tolist(), strict=True)
        if latest_ms is None or at_ms <= latest_ms
    )
    samples = _with_histograms(numbers, decoded.histograms, latest_ms) if decoded.histograms else numbers
    taken = appender.append(samples)
    return Appended(taken.kept, dict(Counter(taken.dropped) + left_out))


def _with_histograms(
    numbers: Iterable[Sample], histograms: Iterable[HistogramSample], latest_ms: int | None
) -> list[AnySample]:
    """All in the order of time: a series may have both kinds."""
    found: list[AnySample] = [*numbers, *(one for one in histograms if latest_ms is None or one.at_ms <= latest_ms)]
    return sorted(found, key=lambda sample: sample.at_ms)


# Reasons that do not speak for themselves.
EXPLAINED = {
    "limit": f" (more than {label_limits.MAX_LABELS} labels, more than {label_limits.MAX_NAME_LENGTH} characters in a "
    f"name or {label_limits.MAX_VALUE_LENGTH:,} in a value, or more series or histograms than the store takes)",
    "too_old": " (before what may still come late)",
    "invalid_labels": " (no name, a name twice, or no UTF-8)",
}


def response_for(taken: Appended) -> tuple[int, str]:
    """Status and text for the sender: 400 makes it log the reason and go on; it would repeat a 5xx for ever.

    A lost exemplar is no lost sample: Prometheus' own receiver does not complain about one either.
    """
    lost = sorted((reason, count) for reason, count in taken.dropped.items() if reason != "exemplar")
    if not lost:
        return 204, ""
    reasons = ", ".join(f"{count} {reason}{EXPLAINED.get(reason, '')}" for reason, count in lost)
    return 400, f"{taken.kept} samples were kept, others were not: {reasons}"


def decode(body: bytes, limits: WriteLimits = WriteLimits()) -> WriteRequest:  # noqa: B008 (frozen)
    """Read a request body; WireError says what is broken, or which limit it breaks."""
    message = _unpack(body, limits)
    try:
        return _RequestReader(message, limits).finish()
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise errors.WireError((f"remote write: the message is cut off or broken ({error})",)) from error


def _unpack(body: bytes, limits: WriteLimits) -> bytes:
    _refuse_above("bytes", len(body), limits.max_bytes)
    try:
        # The length stands in front, so that a bomb is known before it goes off.
        _refuse_above("bytes when unpacked", cramjam.snappy.decompress_raw_len(body), limits.max_unpacked_bytes)
        return bytes(cramjam.snappy.decompress_raw(body))
    except cramjam.DecompressionError as error:
        raise errors.WireError((f"remote write: the body is not a snappy block ({error})",)) from error


def _refuse_above(what: str, found: int, limit: int) -> None:
    if found > limit:
        raise errors.WireError((f"remote write: the request has {found} {what}, the limit is {limit}",))


class _RequestReader:
    """One pass over a message: samples of the usual form are noted by place and read together at the end."""

    def __init__(self, message: bytes, limits: WriteLimits) -> None:
        self.message = message
        self.limits = limits
        self.labels: list[Labels] = []
        self.counts: list[int] = []
        self.places: list[int] = []
        self.odd: dict[int, tuple[int, float]] = {}
        self.dropped: Counter[str] = Counter()
        self.metadata: dict[str, tuple[str, str, str]] = {}
        self.exemplars: list[tuple[Labels, Exemplar]] = []
        self.histograms: list[HistogramSample] = []

    def finish(self) -> WriteRequest:
        for tag, start, end in read_fields(self.message, 0, len(self.message)):
            if tag == 0x0A and not (end - start > SAMPLE_BYTES and self._read_again(start, end)):
                self._read_series(start, end)
            elif tag == 0x1A:
                self._read_metadata(start, end)
        self._refuse_too_many()
        times, values = self._samples()
        ends = np.cumsum(self.counts, dtype=np.int64).tolist()
        series = [
            (labels, times[end - count : end], values[end - count : end])
            for labels, count, end in zip(self.labels, self.counts, ends, strict=True)
        ]
        return WriteRequest(series, dict(self.dropped), self.metadata, self.exemplars, self.histograms)

    def _read_again(self, start: int, end: int) -> bool:
        """Read a series whose labels are known and that has one sample of the usual form, as nearly all are."""
        message, at = self.message, end - SAMPLE_BYTES
        if not (message.startswith(SAMPLE_HEAD, at) and self._is_usual(at + 2, end)):
            return False
        labels = _read.known(message[start:at])
        if labels is None:
            return False
        self.labels.append(labels)
        self.counts.append(1)
        self.places.append(at + 2)
        return True

    def _read_series(self, start: int, end: int) -> None:
        message, place = self.message, start
        while place < end and message[place] == 0x0A:
            length, place = read_varint(message, place + 1)
            place += length
        if place > end:
            raise IndexError(f"labels end at byte {place}, their series at {end}")
        read = _read.get if place - start <= REMEMBERED_BYTES else _read_labels
        labels = read(message[start:place])
        before = len(self.places)
        for tag, at, stop in read_fields(message, place, end):
            if tag == 0x12:
                self._note_sample(at, stop)
            elif tag == 0x1A and labels is not None:
                self.exemplars.append((labels, _read_exemplar(message, at, stop)))
            elif tag == 0x22:
                self._read_histogram(labels, at, stop)
            elif tag == 0x1A:
                self.dropped["exemplar"] += 1
            elif tag == 0x0A:
                raise IndexError("labels stand behind samples")
        count = len(self.places) - before
        if labels is None:
            self.dropped["invalid_labels"] += count
            for number in range(before, len(self.places)):
                self.odd.pop(number, None)
            del self.places[before:]
            return
        if count:
            self.labels.append(labels)
            self.counts.append(count)
        self._refuse_too_many()

    def _refuse_too_many(self) -> None:
        _refuse_above("series", len(self.labels), self.limits.max_series)
        _refuse_above("samples", len(self.places) + len(self.histograms), self.limits.max_samples)
        _refuse_above("exemplars", len(self.exemplars), self.limits.max_samples)

    def _read_histogram(self, labels: Labels | None, start: int, end: int) -> None:
        if labels is None:
            self.dropped["invalid_labels"] += 1
            return
        try:
            at_ms, histogram = histogram_wire.read(self.message, start, end)
        except histogram_wire.Broken:
            self.dropped["invalid_histogram"] += 1
        else:
            self.histograms.append(HistogramSample(labels, at_ms, histogram))

    def _note_sample(self, start: int, end: int) -> None:
        usual = self._is_usual(start, end)
        if not usual:
            # A value of 0 and a time of 0 are left out by some writers, and times before 1971 are shorter.
            self.odd[len(self.places)] = _read_sample(self.message, start, end)
        self.places.append(start if usual else -1)

    def _is_usual(self, start: int, end: int) -> bool:
        """A value, and a time of 6 bytes, each but the last of which says that another follows."""
        message = self.message
        return (
            end - start == SAMPLE_BYTES - 2
            and message[start] == 0x09
            and message[start + 9] == TIME_TAG
            and min(message[start + 10 : end - 1]) >= 0x80
            and message[end - 1] < 0x80
        )

    def _samples(self) -> tuple[Millis, Floats]:
        places = np.array(self.places, dtype=np.int64)
        raw = np.frombuffer(self.message, dtype=np.uint8)
        usual = np.flatnonzero(places >= 0)
        times, values = np.zeros(len(places), dtype=np.int64), np.zeros(len(places))
        if len(usual):
            starts = places[usual][:, None]
            values[usual] = np.ascontiguousarray(raw[starts + np.arange(1, 9)]).view("<f8")[:, 0]
            septets = (raw[starts + np.arange(10, 16)] & 0x7F).astype(np.int64)
            times[usual] = (septets << (7 * np.arange(6))).sum(axis=1)
        for place, (at_ms, value) in self.odd.items():
            times[place], values[place] = at_ms, value
        return times, values

    def _read_metadata(self, start: int, end: int) -> None:
        kind, texts = 0, {0x12: "", 0x22: "", 0x2A: ""}
        for tag, at, stop in read_fields(self.message, start, end):
            if tag == 0x08:
                kind = at
            elif tag in texts:
                texts[tag] = self.message[at:stop].decode()
        known = METRIC_TYPES[kind] if kind < len(METRIC_TYPES) else METRIC_TYPES[0]
        self.metadata[texts[0x12]] = (known, texts[0x22], texts[0x2A])


def _read_sample(message: bytes, start: int, end: int) -> tuple[int, float]:
    at_ms, value = 0, 0.0
    for tag, at, _ in read_fields(message, start, end):
        if tag == 0x09:
            (value,) = struct.unpack_from("<d", message, at)
        elif tag == TIME_TAG:
            at_ms = to_signed(at)
    return at_ms, value


def _read_exemplar(message: bytes, start: int, end: int) -> Exemplar:
    pairs, value, at_ms = [], 0.0, 0
    for tag, at, stop in read_fields(message, start, end):
        if tag == 0x0A:
            pairs.append(_read_pair(message, at, stop))
        elif tag == 0x11:
            (value,) = struct.unpack_from("<d", message, at)
        elif tag == 0x18:
            at_ms = to_signed(at)
    return Exemplar(Labels(dict(pairs)), value, at_ms)


def _read_pair(message: bytes, start: int, end: int) -> tuple[str, str]:
    texts = {0x0A: "", 0x12: ""}
    for tag, at, stop in read_fields(message, start, end):
        if tag in texts:
            texts[tag] = message[at:stop].decode()
    return texts[0x0A], texts[0x12]


def _read_labels(raw: bytes) -> Labels | None:
    """The label set of a series; None if a name is empty or twice, or there is no metric name."""
    pairs = [_read_pairs.get(raw[start:end]) for _, start, end in read_fields(raw, 0, len(raw))]
    names = {name for name, _ in pairs}
    metric = next((value for name, value in pairs if name == METRIC_NAME), "")
    if len(names) < len(pairs) or "" in names or not metric:
        return None
    others = [pair for pair in pairs if pair[0] != METRIC_NAME and pair[1]]
    return Labels.with_metric_name(metric, tuple(sorted(others)))


# Most label sets are made of labels that others have too, and share them.
_read_pairs: Remembered[bytes, tuple[str, str]] = Remembered(
    lambda raw: _read_pair(raw, 0, len(raw)),
    lambda raw, _: 2 * len(raw) + BESIDE_BYTES,
    limit_bytes=allowed_bytes() // 4,
)
_read: Remembered[bytes, Labels | None] = Remembered(
    _read_labels, lambda raw, _: len(raw) + BESIDE_BYTES, limit_bytes=allowed_bytes()
)
