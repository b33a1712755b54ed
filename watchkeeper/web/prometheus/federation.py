"""The page of `/federate` in the form that its reader asks for: text, or protobuf, which alone has native histograms.

`prometheus_exchange` finds the samples. Names that are not [a-zA-Z_:][a-zA-Z0-9_:]* are written in quotes for readers
who say that they understand it (`escaping=allow-utf-8`, Prometheus 3), and with underscores for all others.
"""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate, groupby

from watchkeeper.kit import own_metrics
from watchkeeper.kit.protobuf import encode_varint
from watchkeeper.model.histograms import Histogram, ResetHint
from watchkeeper.model.labels import METRIC_NAME
from watchkeeper.model.samples import Sample
from watchkeeper.query import histogram_wire
from watchkeeper.readers.histogram_message import EXPOSITION
from watchkeeper.store import interfaces
from watchkeeper.web.prometheus.prometheus_form import write_value

UTF8 = "escaping=allow-utf-8"
PLAIN_METRIC = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*\Z")
PLAIN_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*\Z")
# Numbers of metrics.proto in Prometheus' prompb/io/prometheus/client: types of a family, and fields of a metric.
UNTYPED, HISTOGRAM, GAUGE_HISTOGRAM = 3, 4, 5
UNTYPED_VALUE, HISTOGRAM_VALUE = 5, 7


class PageForm(Enum):
    TEXT = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores"
    QUOTED_TEXT = f"text/plain; version=1.0.0; charset=utf-8; {UTF8}"
    PROTOBUF = f"application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited; {UTF8}"

    @property
    def media_type(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class _Clause:
    """One kind of page that a reader accepts."""

    kind: str
    parameters: frozenset[str]
    weight: float


def choose_form(accept: str) -> PageForm:
    """What a reader with this Accept header likes best of what we write."""
    clauses = [_clause(part) for part in accept.lower().split(",")]
    for clause in sorted(clauses, key=lambda clause: -clause.weight):
        if clause.kind == "application/vnd.google.protobuf" and "encoding=delimited" in clause.parameters:
            return PageForm.PROTOBUF
        if clause.kind == "text/plain":
            return PageForm.QUOTED_TEXT if UTF8 in clause.parameters else PageForm.TEXT
    return PageForm.TEXT


def write_page(found: Sequence[interfaces.AnySample], form: PageForm) -> bytes:
    """The page; samples come in the order of their names."""
    if form is PageForm.PROTOBUF:
        return b"".join(_families(found))
    return "".join(_lines(found, is_quoted=form is PageForm.QUOTED_TEXT)).encode()


def _clause(text: str) -> _Clause:
    kind, *parameters = (part.replace(" ", "") for part in text.split(";"))
    weights = [part[2:] for part in parameters if part.startswith("q=")]
    try:
        weight = float(weights[0]) if weights else 1.0
    except ValueError:
        weight = 0.0
    return _Clause(kind, frozenset(parameters), weight)


def _lines(found: Sequence[interfaces.AnySample], *, is_quoted: bool) -> Iterator[str]:
    """Each metric once with its type, as Prometheus writes it."""
    samples = [sample for sample in found if isinstance(sample, Sample)]
    if left_out := len(found) - len(samples):
        yield f"# {left_out} series of native histograms are left out: text has none, protobuf and remote write do.\n"
    for name, group in groupby(samples, key=lambda sample: sample.labels.name):
        is_plain = PLAIN_METRIC.match(name) is not None
        shown = name if is_plain else f'"{own_metrics.escape(name)}"' if is_quoted else _underscored(name)
        yield f"# TYPE {shown} untyped\n"
        for sample in group:
            pairs = (pair for pair in sample.labels.pairs if pair[0] != METRIC_NAME)
            inside = [f'{_label(key, is_quoted)}="{own_metrics.escape(value)}"' for key, value in pairs]
            series = f"{{{','.join([shown, *inside])}}}" if shown.startswith('"') else f"{shown}{{{','.join(inside)}}}"
            yield f"{series} {write_value(sample.value)} {sample.at_ms}\n"


# The names of a store's labels are few, and each stands on every line.
@functools.lru_cache(maxsize=1024)
def _label(name: str, is_quoted: bool) -> str:
    if PLAIN_LABEL.match(name):
        return name
    return f'"{own_metrics.escape(name)}"' if is_quoted else _underscored(name).replace(":", "_")


def _underscored(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_:]|^[0-9]", "_", name)


def _families(found: Sequence[interfaces.AnySample]) -> Iterator[bytes]:
    """Delimited messages MetricFamily; one name has several where its samples are of several kinds."""
    for (name, kind), group in groupby(found, key=lambda sample: (sample.labels.name, _kind(sample))):
        metrics = b"".join(_bytes(4, _metric(sample)) for sample in group)
        body = _bytes(1, name.encode()) + _whole(3, kind) + metrics
        yield encode_varint(len(body)) + body


def _kind(sample: interfaces.AnySample) -> int:
    if isinstance(sample, Sample):
        return UNTYPED
    return GAUGE_HISTOGRAM if sample.value.hint is ResetHint.GAUGE else HISTOGRAM


def _metric(sample: interfaces.AnySample) -> bytes:
    pairs = (pair for pair in sample.labels.pairs if pair[0] != METRIC_NAME)
    labels = b"".join(_bytes(1, _bytes(1, key.encode()) + _bytes(2, value.encode())) for key, value in pairs)
    if isinstance(sample, Sample):
        content = _bytes(UNTYPED_VALUE, _double(1, sample.value))
    else:
        content = _bytes(HISTOGRAM_VALUE, _histogram(sample.value))
    return labels + content + _whole(6, sample.at_ms & (1 << 64) - 1)


def _histogram(one: Histogram) -> bytes:
    """Native buckets; those with custom bounds, which such a page cannot name, as the classic ones that they are."""
    if not one.is_custom:
        # An empty span says that it is native, where nothing has been observed yet.
        mark = b"" if one.positive or one.negative else _bytes(EXPOSITION.positive.spans, b"")
        return histogram_wire.buckets(one, EXPOSITION) + mark
    counts = dict(one.positive)
    below = accumulate(counts.get(index, 0.0) for index in range(len(one.bounds)))
    classic = (_bytes(3, _double(2, bound) + _double(4, count)) for bound, count in zip(one.bounds, below, strict=True))
    return _double(EXPOSITION.count, one.count) + _double(EXPOSITION.sum, one.sum) + b"".join(classic)


def _bytes(number: int, content: bytes) -> bytes:
    return encode_varint(number << 3 | 2) + encode_varint(len(content)) + content


def _whole(number: int, value: int) -> bytes:
    return encode_varint(number << 3) + encode_varint(value)


def _double(number: int, value: float) -> bytes:
    return encode_varint(number << 3 | 1) + struct.pack("<d", value)
