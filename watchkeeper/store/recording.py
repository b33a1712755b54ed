"""A recording: samples, events and incidents of a time window in one portable file.

The hub writes one line after another (`web.prometheus.recording_api`), `watchkeeper record` keeps them, and
`watchkeeper play` and `watchkeeper rules replay` read them back. The file is gzip over JSON lines, so that any
tool can look into it: a header, then nodes, GPUs, metrics, series, events and incidents, and a last line
with the counts, without which the file was cut off.
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
from typing import Any, TypeAlias

import numpy as np

from watchkeeper.errors import StoreError, WireError, error_reason, quote
from watchkeeper.kit import wire
from watchkeeper.model import actions, diagnosis, events, fleet, histograms, incidents, labels, samples
from watchkeeper.store import interfaces
from watchkeeper.store.columns import Floats, Ints

VERSION = 1
# What one line may hold: a series of a year at 15 s has some 30 MB of text.
LONGEST_LINE = 64 * 1024 * 1024
WORDS = {math.inf: "+Inf", -math.inf: "-Inf"}
NUMBERS = {"+Inf": math.inf, "-Inf": -math.inf, "NaN": math.nan, "stale": samples.STALE}
NUMBERS_OF, SIDES = ("count", "sum", "zero_threshold", "zero_count"), ("positive", "negative")
# Native histograms among a series' numbers.
Mixed: TypeAlias = list[float | histograms.Histogram]


@dataclass(frozen=True, slots=True)
class Header:
    from_ms: int
    to_ms: int
    cluster: str
    hub_version: str
    watchkeeper_recording: int = VERSION


@dataclass(frozen=True, slots=True)
class RecordedGpu:
    """A GPU that reported; `is_gone` if it no longer did at the end."""

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
    """One line of an incident's timeline."""

    at: datetime
    actor: str
    kind: str
    body: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RecordedIncident:
    """An incident with everything that was known about it."""

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
    native: list[tuple[labels.Labels, Ints, Mixed]] = field(default_factory=list)
    events: list[events.Event] = field(default_factory=list)
    incidents: list[RecordedIncident] = field(default_factory=list)

    def counts(self) -> dict[str, int]:
        """What is in it, in numbers."""
        return {
            "nodes": len(self.nodes),
            "gpus": len(self.gpus),
            "series": len(self.series) + len(self.native),
            "samples": sum(len(times) for _, times, _ in (*self.series, *self.native)),
            "events": len(self.events),
            "incidents": len(self.incidents),
        }


class RecordingWriter:
    """Turns what is recorded into lines, packs them, and counts; `end` gives the last bytes."""

    def __init__(self, header: Header) -> None:
        self._packer = zlib.compressobj(6, wbits=31)
        self.counts = dict.fromkeys(("nodes", "gpus", "metrics", "series", "samples", "events", "incidents"), 0)
        self._waiting = [json.dumps(wire.to_plain(header))]

    def add(self, kind: str, value: Any) -> bytes:
        """One node, gpu, metric, event or incident."""
        plural = "incidents" if kind == "story" else f"{kind}s"
        self.counts[plural] += 1
        return self._pack({kind: wire.to_plain(value)})

    def add_series(self, label_set: labels.Labels, times: Ints, values: Floats | Mixed) -> bytes:
        """A series that has native histograms is of a kind of its own, which earlier versions leave out."""
        self.counts["series"] += 1
        self.counts["samples"] += len(times)
        steps = np.diff(times, prepend=0).tolist()
        if isinstance(values, list):
            return self._pack({"native": dict(label_set), "t": steps, "v": [_plain_sample(v) for v in values]})
        return self._pack({"series": dict(label_set), "t": steps, "v": [_plain_number(v) for v in values.tolist()]})

    def end(self) -> bytes:
        return self._pack({"end": self.counts}) + self._packer.flush()

    def _pack(self, line: Mapping[str, Any]) -> bytes:
        text = "".join(f"{part}\n" for part in (*self._waiting, json.dumps(line, ensure_ascii=False)))
        self._waiting = []
        return self._packer.compress(text.encode())


def _plain_number(value: float) -> float | str:
    if value != value:  # noqa: PLR0124 (NaN is the only number unequal to itself)
        return "stale" if samples.is_stale(value) else "NaN"
    return WORDS.get(value, value)


def _plain_sample(value: float | histograms.Histogram) -> Any:
    if not isinstance(value, histograms.Histogram):
        return _plain_number(value)
    found = {name: _plain_number(getattr(value, name)) for name in NUMBERS_OF}
    sides = {name: [[at, _plain_number(c)] for at, c in getattr(value, name)] for name in SIDES}
    return {"schema": value.schema, "hint": int(value.hint), **found, **sides, "bounds": list(value.bounds)}


def _sample(plain: Any) -> float | histograms.Histogram:
    if not isinstance(plain, dict):
        return _number(plain)
    count, total, threshold, zeros = (_number(plain[name]) for name in NUMBERS_OF)
    positive, negative = (tuple((int(at), _number(c)) for at, c in plain[side]) for side in SIDES)
    return histograms.Histogram(
        schema=int(plain["schema"]),
        count=count,
        sum=total,
        zero_threshold=threshold,
        zero_count=zeros,
        positive=positive,
        negative=negative,
        bounds=tuple(map(float, plain["bounds"])),
        hint=histograms.ResetHint(plain["hint"]),
    )


def _number(plain: Any) -> float:
    return NUMBERS[plain] if isinstance(plain, str) else float(plain)


def read(path: Path, *, progress: Callable[[int], None] | None = None) -> Recording:
    """The whole recording; StoreError says which line is broken, or that the file is not whole."""
    found: Recording | None = None
    try:
        with gzip.open(path, "rb") as lines:
            for number, line in enumerate(iter(lambda: lines.readline(LONGEST_LINE), b""), 1):
                try:
                    plain = json.loads(line)
                    if found is None:
                        found = Recording(_header(plain))
                    elif "end" in plain:
                        return found
                    else:
                        _take(found, plain)
                except (WireError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
                    raise StoreError(f"line {number} is broken: {quote(str(error))}", where=str(path)) from error
                if progress is not None and number % 1000 == 0:
                    progress(number)
    except (OSError, EOFError, zlib.error) as error:
        remedy = None if isinstance(error, OSError) and error.errno else "`watchkeeper record` writes recordings"
        raise StoreError(
            f"the recording cannot be read: {error_reason(error)}", where=str(path), remedy=remedy
        ) from error
    raise StoreError("the recording is not whole: its last line is missing", where=str(path), remedy="Record it again")


def _header(plain: Any) -> Header:
    if not isinstance(plain, dict) or plain.get("watchkeeper_recording") != VERSION:
        raise ValueError(f"not a recording of version {VERSION}: {quote(plain)}")
    return wire.from_plain(Header, plain)


def _take(found: Recording, plain: dict[str, Any]) -> None:
    if "series" in plain:
        values = np.array([NUMBERS[v] if isinstance(v, str) else v for v in plain["v"]], dtype=np.float64)
        found.series.append((labels.Labels(plain["series"]), _times(plain), values))
    elif "native" in plain:
        mixed = [_sample(value) for value in plain["v"]]
        found.native.append((labels.Labels(plain["native"]), _times(plain), mixed))
    elif "node" in plain:
        found.nodes.append(wire.from_plain(fleet.Node, plain["node"]))
    elif "gpu" in plain:
        found.gpus.append(wire.from_plain(RecordedGpu, plain["gpu"]))
    elif "metric" in plain:
        found.metrics.append(wire.from_plain(RecordedMetric, plain["metric"]))
    elif "event" in plain:
        found.events.append(wire.from_plain(events.Event, plain["event"]))
    elif "story" in plain:
        found.incidents.append(wire.from_plain(RecordedIncident, plain["story"]))
    # A kind that a later version writes is left out.


def _times(plain: dict[str, Any]) -> Ints:
    times = np.cumsum(np.array(plain["t"], dtype=np.int64))
    if len(times) != len(plain["v"]):
        raise ValueError(f"{len(times)} times and {len(plain['v'])} values")
    return times


def load_histogram_series(
    found: Iterable[tuple[labels.Labels, Ints, Mixed]], sink: interfaces.SampleStore, *, until_ms: int
) -> None:
    """Put series that have native histograms into a head, in the order of time."""
    poured = [
        samples.Sample(own, at_ms, value)
        if not isinstance(value, histograms.Histogram)
        else histograms.HistogramSample(own, at_ms, value)
        for own, times, values in found
        for at_ms, value in zip(times.tolist(), values, strict=True)
    ]
    sink.append(sorted(poured, key=lambda sample: sample.at_ms), now_ms=until_ms)


def load_series(
    found: Iterable[tuple[labels.Labels, Ints, Floats]],
    sink: interfaces.SampleStore,
    *,
    until_ms: int,
    progress: Callable[[float], None] | None = None,
) -> None:
    """Put series into a head as they came: those that share their times together, in the order of time."""
    groups: dict[bytes, tuple[Ints, list[int], list[Floats]]] = {}
    for label_set, times, values in found:
        _, ids, rows = groups.setdefault(times.tobytes(), (times, [], []))
        ids.append(sink.series_id(label_set))
        rows.append(values)
    packed = [(times, np.array(ids), np.array(rows)) for times, ids, rows in groups.values()]
    slots = sorted(
        (at_ms, group, slot) for group, (times, _, _) in enumerate(packed) for slot, at_ms in enumerate(times.tolist())
    )
    for done, (at_ms, group, slot) in enumerate(slots):
        _, numbers, block = packed[group]
        sink.append_scrape(f"recorded {group}", numbers, at_ms, np.ascontiguousarray(block[:, slot]), now_ms=until_ms)
        if progress is not None and done % 10_000 == 0:
            progress(done / len(slots))
