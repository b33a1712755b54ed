"""A durable store in a test's folder, with a clock that the test moves, and helpers to read it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from watchkeeper.model.labels import Labels
from watchkeeper.model.samples import STALE_BITS, Sample
from watchkeeper.query.engine import Matcher, MatchOp
from watchkeeper.store import columns, durable, interfaces
from watchkeeper.store.head import head

MINUTE = 60_000
BLOCK = 30 * MINUTE
SETTINGS = durable.StoreSettings(block_ms=BLOCK, late_ms=10 * MINUTE, memory_ms=2 * 60 * MINUTE)
Read = dict[Labels, list[tuple[int, float | str]]]


def named(name: str, **labels: str) -> Labels:
    return Labels({"__name__": name, **labels})


def equals(name: str, value: str) -> Matcher:
    return Matcher(name, MatchOp.EQUAL, value)


@dataclass
class Rig:
    """Opens and closes one store again and again."""

    path: Path
    settings: durable.StoreSettings = SETTINGS
    now_ms: int = 0
    store: durable.DurableStore = field(init=False)

    def __post_init__(self) -> None:
        self.open()

    def open(self) -> durable.DurableStore:
        self.store = durable.open_store(self.path, self.settings, clock_ms=lambda: self.now_ms)
        return self.store

    def reopen(self) -> durable.DurableStore:
        self.store.close()
        return self.open()

    def scrape(self, key: str, series: list[Labels], at_ms: int, values: list[float]) -> interfaces.Appended:
        self.now_ms = max(self.now_ms, at_ms)
        ids = np.array([self.store.series_id(labels) for labels in series], dtype=np.int64)
        return self.store.append_scrape(key, ids, at_ms, np.array(values))

    def blocks(self) -> list[Path]:
        return sorted((self.path / "blocks").glob("*.block"))

    def segments(self) -> list[Path]:
        return sorted((self.path / "wal").glob("*.wal"))


def read(store: durable.SampleStore, *matchers: Matcher, start: int = -1, end: int = 10**15) -> Read:
    """Every sample of the series that match; NaNs as texts, so that they can be compared."""
    selected = store.select(list(matchers), start, end)
    out: Read = {}
    for row, labels in enumerate(selected.series.labels_of(range(len(selected.series)))):
        values = selected.values[row]
        has_sample = ~columns.is_absent(values) & (selected.times[selected.groups[row]] != columns.NEVER_MS)
        times = selected.times[selected.groups[row]][has_sample].tolist()
        rows = list(zip(times, map(spelled, values[has_sample]), strict=True))
        if rows:
            out[labels] = rows
    return out


def spelled(value: np.float64) -> float | str:
    if np.isnan(value):
        return "stale" if value.view(np.int64) == STALE_BITS else "NaN"
    return float(value)


def scraped(store: head.Head, series: list[Labels]) -> np.ndarray:
    return np.array([store.series_id(labels) for labels in series], dtype=np.int64)


SERIES = [named("temp", gpu=str(gpu)) for gpu in range(4)]


def filled(path: Path, *, minutes: int) -> tuple[Rig, Read]:
    rig = Rig(path)
    for minute in range(minutes):
        rig.scrape("node", SERIES, minute * MINUTE, [minute + 0.5, 1.0, minute // 7, -1.0])
        rig.store.append([Sample(named("recorded"), minute * MINUTE, float(minute))])
        rig.store.sync()
    return rig, read(rig.store)
