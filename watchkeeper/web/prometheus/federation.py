"""Write the page of `/federate` as text or protobuf, as the client accepts; only protobuf has native histograms.

`prometheus_exchange` reads the samples. Names other than [a-zA-Z_:][a-zA-Z0-9_:]* are quoted for clients that accept
`escaping=allow-utf-8` (Prometheus 3), and escaped with underscores for all others.
"""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Iterator, Sequence
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
from watchkeeper.web.prometheus.prometheus_json import write_value

UTF8 = "escaping=allow-utf-8"
PLAIN_METRIC = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*\Z")
PLAIN_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*\Z")
# From metrics.proto in Prometheus' prompb/io/prometheus/client: types of a family, and field numbers of a metric.
UNTYPED, HISTOGRAM, GAUGE_HISTOGRAM = 3, 4, 5
UNTYPED_VALUE, HISTOGRAM_VALUE = 5, 7


class PageFormat(Enum):
    TEXT = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores"
    QUOTED_TEXT = f"text/plain; version=1.0.0; charset=utf-8; {UTF8}"
    PROTOBUF = f"application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited; {UTF8}"


def choose_format(accept: str) -> PageFormat:
    """The format of ours that this Accept header prefers; text by default."""
    clauses = [[part.replace(" ", "") for part in clause.split(";")] for clause in accept.lower().split(",")]
    for kind, *parameters in sorted(clauses, key=_weight, reverse=True):
        if kind == "application/vnd.google.protobuf" and "encoding=delimited" in parameters:
            return PageFormat.PROTOBUF
        if kind == "text/plain":
            return PageFormat.QUOTED_TEXT if UTF8 in parameters else PageFormat.TEXT
    return PageFormat.TEXT


def write_page(samples: Sequence[interfaces.AnySample], page_format: PageFormat) -> bytes:
    """Write the page; `samples` must be sorted by name."""
    if page_format is PageFormat.PROTOBUF:
        return b"".join(_protobuf_families(samples))
    return "".join(_text_lines(samples, is_quoted=page_format is PageFormat.QUOTED_TEXT)).encode()


def _weight(clause: list[str]) -> float:
    """The weight of a media type of an Accept header, which has it in a parameter."""
    try:
        return float(next((part[2:] for part in clause[1:] if part.startswith("q=")), 1.0))
    except ValueError:
        return 0.0


def _text_lines(all_samples: Sequence[interfaces.AnySample], *, is_quoted: bool) -> Iterator[str]:
    """Each metric with its type line, then its samples, as Prometheus writes them."""
    samples = [sample for sample in all_samples if isinstance(sample, Sample)]
    if omitted := len(all_samples) - len(samples):
        yield f"# {omitted} native histogram series omitted: text cannot hold them. Use protobuf or remote write.\n"
    for name, group in groupby(samples, key=lambda sample: sample.labels.name):
        is_plain = PLAIN_METRIC.match(name) is not None
        written_name = name if is_plain else f'"{own_metrics.escape(name)}"' if is_quoted else _with_underscores(name)
        yield f"# TYPE {written_name} untyped\n"
        for sample in group:
            label_pairs = [
                f'{_write_label(key, is_quoted)}="{own_metrics.escape(value)}"' for key, value in _label_pairs(sample)
            ]
            is_quoted_name = written_name.startswith('"')
            inside = ",".join([written_name, *label_pairs] if is_quoted_name else label_pairs)
            series = f"{{{inside}}}" if is_quoted_name else f"{written_name}{{{inside}}}"
            yield f"{series} {write_value(sample.value)} {sample.at_ms}\n"


def _label_pairs(sample: interfaces.AnySample) -> list[tuple[str, str]]:
    """The labels, with an empty `instance` if there is none: as from Prometheus, the reader must not add its own."""
    pairs = [pair for pair in sample.labels.pairs if pair[0] != METRIC_NAME]
    return pairs if any(name == "instance" for name, _ in pairs) else [*pairs, ("instance", "")]


# A store has few label names, and every line repeats them.
@functools.lru_cache(maxsize=1024)
def _write_label(name: str, is_quoted: bool) -> str:
    if PLAIN_LABEL.match(name):
        return name
    return f'"{own_metrics.escape(name)}"' if is_quoted else _with_underscores(name).replace(":", "_")


def _with_underscores(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_:]|^[0-9]", "_", name)


def _protobuf_families(samples: Sequence[interfaces.AnySample]) -> Iterator[bytes]:
    """Delimited MetricFamily messages; a name with several types of samples has several."""
    for (name, kind), group in groupby(samples, key=lambda sample: (sample.labels.name, _metric_type(sample))):
        metrics = b"".join(_bytes_field(4, _write_metric(sample)) for sample in group)
        body = _bytes_field(1, name.encode()) + _varint_field(3, kind) + metrics
        yield encode_varint(len(body)) + body


def _metric_type(sample: interfaces.AnySample) -> int:
    if isinstance(sample, Sample):
        return UNTYPED
    return GAUGE_HISTOGRAM if sample.value.hint is ResetHint.GAUGE else HISTOGRAM


def _write_metric(sample: interfaces.AnySample) -> bytes:
    labels = b"".join(
        _bytes_field(1, _bytes_field(1, key.encode()) + _bytes_field(2, value.encode()))
        for key, value in _label_pairs(sample)
    )
    if isinstance(sample, Sample):
        content = _bytes_field(UNTYPED_VALUE, _double_field(1, sample.value))
    else:
        content = _bytes_field(HISTOGRAM_VALUE, _write_histogram(sample.value))
    return labels + content + _varint_field(6, sample.at_ms & (1 << 64) - 1)


def _write_histogram(histogram: Histogram) -> bytes:
    """Native buckets, or classic buckets for custom bounds, which this format does not support."""
    if not histogram.is_custom:
        # An empty span marks a native histogram without observations.
        mark = b"" if histogram.positive or histogram.negative else _bytes_field(EXPOSITION.positive.spans, b"")
        return histogram_wire.encode_buckets(histogram, EXPOSITION) + mark
    counts = dict(histogram.positive)
    cumulative = accumulate(counts.get(index, 0.0) for index in range(len(histogram.bounds)))
    classic = (
        _bytes_field(3, _double_field(2, bound) + _double_field(4, count))
        for bound, count in zip(histogram.bounds, cumulative, strict=True)
    )
    return (
        _double_field(EXPOSITION.count, histogram.count)
        + _double_field(EXPOSITION.sum, histogram.sum)
        + b"".join(classic)
    )


def _bytes_field(number: int, content: bytes) -> bytes:
    return encode_varint(number << 3 | 2) + encode_varint(len(content)) + content


def _varint_field(number: int, value: int) -> bytes:
    return encode_varint(number << 3) + encode_varint(value)


def _double_field(number: int, value: float) -> bytes:
    return encode_varint(number << 3 | 1) + struct.pack("<d", value)
