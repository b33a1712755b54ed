"""A recording: samples, events and incidents of a time window in one portable file.

The hub writes it line by line (`web.prometheus.prometheus_exchange`). The file is gzip over JSON lines: a header, then
nodes, GPUs, metrics, series, events and incidents, and a last line with the counts; without it, the file is truncated.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from watchkeeper.errors import StoreError, WireError, error_reason, quote
from watchkeeper.kit import wire
from watchkeeper.model import actions, diagnosis, events, fleet, histograms, incidents, labels, samples
from watchkeeper.store.columns import Floats, Ints

if TYPE_CHECKING:
    from watchkeeper.store import durable

VERSION = 1
# The limit of one line: a series of a year at 15 s has about 30 MB of text.
MAX_LINE_BYTES = 64 * 1024 * 1024
TEXT_OF_NUMBER = {math.inf: "+Inf", -math.inf: "-Inf"}
NUMBER_OF_TEXT = {"+Inf": math.inf, "-Inf": -math.inf, "NaN": math.nan, "stale": samples.STALE}
HISTOGRAM_NUMBERS, BUCKET_SIDES = ("count", "sum", "zero_threshold", "zero_count"), ("positive", "negative")
# Samples of a series that has native histograms.
MixedSamples: TypeAlias = list[float | histograms.Histogram]


@dataclass(frozen=True, slots=True)
class Header:
    from_ms: int
    to_ms: int
    cluster: str
    hub_version: str
    watchkeeper_recording: int = VERSION


@dataclass(frozen=True, slots=True)
class RecordedGpu:
    """A GPU that reported; `is_gone` if it did not report at the end."""

    cluster: str
    node: str
    gpu: fleet.Gpu
    is_gone: bool = False


@dataclass(frozen=True, slots=True)
class RecordedMetric:
    name: str
    type: str
    help: str
    unit: str


@dataclass(frozen=True, slots=True)
class RecordedEntry:
    at: datetime
    actor: str
    kind: str
    body: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RecordedIncident:
    incident: incidents.Incident
    diagnosis: diagnosis.Diagnosis | None = None
    plan: actions.Plan | None = None
    timeline: tuple[RecordedEntry, ...] = ()


@dataclass(slots=True)
class Recording:
    header: Header
    nodes: list[fleet.Node] = field(default_factory=list)
    gpus: list[RecordedGpu] = field(default_factory=list)
    metrics: list[RecordedMetric] = field(default_factory=list)
    series: list[tuple[labels.Labels, Ints, Floats]] = field(default_factory=list)
    native: list[tuple[labels.Labels, Ints, MixedSamples]] = field(default_factory=list)
    events: list[events.Event] = field(default_factory=list)
    incidents: list[RecordedIncident] = field(default_factory=list)

    def counts(self) -> dict[str, int]:
        return {
            "nodes": len(self.nodes),
            "gpus": len(self.gpus),
            "series": len(self.series) + len(self.native),
            "samples": sum(len(times) for _, times, _ in (*self.series, *self.native)),
            "events": len(self.events),
            "incidents": len(self.incidents),
        }


class RecordingWriter:
    """Encodes and compresses the lines of a recording; `end` returns the last bytes."""

    def __init__(self, header: Header) -> None:
        self._compressor = zlib.compressobj(6, wbits=31)
        self.counts = dict.fromkeys(("nodes", "gpus", "metrics", "series", "samples", "events", "incidents"), 0)
        self._pending_lines = [json.dumps(wire.to_plain(header))]

    def add(self, kind: str, value: Any) -> bytes:
        """Encode one node, GPU, metric, event or incident (`story`)."""
        plural = "incidents" if kind == "story" else f"{kind}s"
        self.counts[plural] += 1
        return self._encode_line({kind: wire.to_plain(value)})

    def add_series(self, label_set: labels.Labels, times: Ints, values: Floats | MixedSamples) -> bytes:
        """Encode a series; one with native histograms has its own kind, which earlier versions skip."""
        self.counts["series"] += 1
        self.counts["samples"] += len(times)
        steps = np.diff(times, prepend=0).tolist()
        if isinstance(values, list):
            kind, plain = "native", [_sample_to_plain(value) for value in values]
        else:
            kind, plain = "series", [_number_to_plain(value) for value in values.tolist()]
        return self._encode_line({kind: dict(label_set), "t": steps, "v": plain})

    def end(self) -> bytes:
        return self._encode_line({"end": self.counts}) + self._compressor.flush()

    def _encode_line(self, line: Mapping[str, Any]) -> bytes:
        text = "".join(f"{part}\n" for part in (*self._pending_lines, json.dumps(line, ensure_ascii=False)))
        self._pending_lines = []
        return self._compressor.compress(text.encode())


def _number_to_plain(value: float) -> float | str:
    if value != value:  # noqa: PLR0124 (NaN is the only number unequal to itself)
        return "stale" if samples.is_stale(value) else "NaN"
    return TEXT_OF_NUMBER.get(value, value)


def _sample_to_plain(value: float | histograms.Histogram) -> Any:
    if not isinstance(value, histograms.Histogram):
        return _number_to_plain(value)
    numbers = {name: _number_to_plain(getattr(value, name)) for name in HISTOGRAM_NUMBERS}
    sides = {name: [[index, _number_to_plain(count)] for index, count in getattr(value, name)] for name in BUCKET_SIDES}
    return {"schema": value.schema, "hint": int(value.hint), **numbers, **sides, "bounds": list(value.bounds)}


def _sample_from_plain(plain: Any) -> float | histograms.Histogram:
    if not isinstance(plain, dict):
        return _number_from_plain(plain)
    fields: dict[str, Any] = {name: _number_from_plain(plain[name]) for name in HISTOGRAM_NUMBERS}
    fields |= {side: tuple((int(at), _number_from_plain(c)) for at, c in plain[side]) for side in BUCKET_SIDES}
    bounds, hint = tuple(map(float, plain["bounds"])), histograms.ResetHint(plain["hint"])
    return histograms.Histogram(schema=int(plain["schema"]), bounds=bounds, hint=hint, **fields)


def _number_from_plain(plain: Any) -> float:
    return NUMBER_OF_TEXT[plain] if isinstance(plain, str) else float(plain)


def read(path: Path, *, progress: Callable[[int], None] | None = None) -> Recording:
    """Read a recording; StoreError names an invalid line, or says that the file is truncated."""
    recording: Recording | None = None
    try:
        with gzip.open(path, "rb") as lines:
            for number, line in enumerate(iter(lambda: lines.readline(MAX_LINE_BYTES), b""), 1):
                try:
                    plain = json.loads(line)
                    if recording is None:
                        if not isinstance(plain, dict) or plain.get("watchkeeper_recording") != VERSION:
                            raise ValueError(f"not a recording of version {VERSION}: {quote(plain)}")
                        recording = Recording(wire.from_plain(Header, plain))
                    elif "end" in plain:
                        return recording
                    else:
                        _add_line(recording, plain)
                except (WireError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
                    raise StoreError(f"line {number} is invalid: {quote(str(error))}", where=str(path)) from error
                if progress is not None and number % 1000 == 0:
                    progress(number)
    except (OSError, EOFError, zlib.error) as error:
        remedy = None if isinstance(error, OSError) and error.errno else "Create a recording with `watchkeeper record`"
        raise StoreError(
            f"the recording cannot be read: {error_reason(error)}", where=str(path), remedy=remedy
        ) from error
    raise StoreError("the recording is truncated: its last line is missing", where=str(path), remedy="Record it again")


def _add_line(recording: Recording, plain: dict[str, Any]) -> None:
    if "series" in plain:
        values = np.array([NUMBER_OF_TEXT[v] if isinstance(v, str) else v for v in plain["v"]], dtype=np.float64)
        recording.series.append((labels.Labels(plain["series"]), _read_times(plain), values))
    elif "native" in plain:
        samples_with_histograms = [_sample_from_plain(value) for value in plain["v"]]
        recording.native.append((labels.Labels(plain["native"]), _read_times(plain), samples_with_histograms))
    elif "node" in plain:
        recording.nodes.append(wire.from_plain(fleet.Node, plain["node"]))
    elif "gpu" in plain:
        recording.gpus.append(wire.from_plain(RecordedGpu, plain["gpu"]))
    elif "metric" in plain:
        recording.metrics.append(wire.from_plain(RecordedMetric, plain["metric"]))
    elif "event" in plain:
        recording.events.append(wire.from_plain(events.Event, plain["event"]))
    elif "story" in plain:
        recording.incidents.append(wire.from_plain(RecordedIncident, plain["story"]))
    # A kind of a later version is skipped.


def _read_times(plain: dict[str, Any]) -> Ints:
    times = np.cumsum(np.array(plain["t"], dtype=np.int64))
    if len(times) != len(plain["v"]):
        raise ValueError(f"{len(times)} times, but {len(plain['v'])} values")
    return times


def load_histogram_series(
    histogram_series: Iterable[tuple[labels.Labels, Ints, MixedSamples]], sink: durable.SampleStore, *, until_ms: int
) -> None:
    """Append series that have native histograms to a store, in the order of time."""
    ordered = [
        samples.Sample(label_set, at_ms, value)
        if not isinstance(value, histograms.Histogram)
        else histograms.HistogramSample(label_set, at_ms, value)
        for label_set, times, values in histogram_series
        for at_ms, value in zip(times.tolist(), values, strict=True)
    ]
    sink.append(sorted(ordered, key=lambda sample: sample.at_ms), now_ms=until_ms)


def load_series(
    series: Iterable[tuple[labels.Labels, Ints, Floats]],
    sink: durable.SampleStore,
    *,
    until_ms: int,
    progress: Callable[[float], None] | None = None,
) -> None:
    """Append series to a store in the order of time; series with the same times are appended together."""
    groups: dict[bytes, tuple[Ints, list[int], list[Floats]]] = {}
    for label_set, times, values in series:
        _, ids, rows = groups.setdefault(times.tobytes(), (times, [], []))
        ids.append(sink.series_id(label_set))
        rows.append(values)
    columns_by_group = [(times, np.array(ids), np.array(rows)) for times, ids, rows in groups.values()]
    slots = sorted(
        (at_ms, group, slot)
        for group, (times, _, _) in enumerate(columns_by_group)
        for slot, at_ms in enumerate(times.tolist())
    )
    for slots_done, (at_ms, group, slot) in enumerate(slots):
        _, numbers, block = columns_by_group[group]
        sink.append_scrape(f"recorded {group}", numbers, at_ms, np.ascontiguousarray(block[:, slot]), now_ms=until_ms)
        if progress is not None and slots_done % 10_000 == 0:
            progress(slots_done / len(slots))
