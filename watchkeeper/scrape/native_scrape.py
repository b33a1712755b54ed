"""Store the native histograms of one target's pages, and end their series when they disappear.

`target_loop` passes each page. Histograms are appended like those of remote write; those that the store refuses are
counted as dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from watchkeeper.model.histograms import HistogramSample
from watchkeeper.model.labels import Labels
from watchkeeper.model.samples import STALE, Sample
from watchkeeper.readers import exposition
from watchkeeper.store import interfaces

Attach = Callable[[int], Labels | None]


class NativeHistogramSeries:
    def __init__(self, sink: interfaces.Appender, key: str) -> None:
        self._sink = sink
        self._key = f"{key} native"
        self._epoch = 0
        # The stored series of each handle; None if a rule drops it.
        self._series_of_handle: dict[int, Labels | None] = {}
        self._present: dict[Labels, None] = {}

    def labels_of(self, handle: int) -> Labels | None:
        return self._series_of_handle.get(handle)

    def append_page(
        self, page: exposition.ExpositionPage, at_ms: int, *, latest_ms: int, attach: Attach
    ) -> Mapping[str, int]:
        """Append the histograms of a page, and end those that disappeared; returns the dropped ones, by reason."""
        if not page.histograms and not self._present:
            return {}
        if page.epoch != self._epoch:
            self._epoch, self._series_of_handle = page.epoch, {}
        dropped: Counter[str] = Counter()
        samples: dict[Labels, HistogramSample] = {}
        timed: set[Labels] = set()
        for handle, histogram, explicit_ms in page.histograms:
            if handle not in self._series_of_handle:
                self._series_of_handle[handle] = attach(handle)
            series = self._series_of_handle[handle]
            if explicit_ms is not None and explicit_ms > latest_ms:
                dropped["future"] += 1
            elif series in samples:
                dropped["duplicate"] += 1
            elif series is not None:
                samples[series] = HistogramSample(series, at_ms if explicit_ms is None else explicit_ms, histogram)
                timed.update(() if explicit_ms is None else (series,))
        dropped.update(self._end(self._present.keys() - samples.keys(), at_ms))
        # As in Prometheus, a series with explicit timestamps gets no stale marker.
        self._present = {series: None for series in samples if series not in timed}
        dropped.update(self._store(samples.values(), together=None if timed else self._key))
        return dropped

    def end_series(self, at_ms: int) -> Mapping[str, int]:
        ended, self._present = self._end(self._present, at_ms), {}
        return ended

    def _end(self, series: Iterable[Labels], at_ms: int) -> Mapping[str, int]:
        return self._store([Sample(series_labels, at_ms, STALE) for series_labels in series], together=None)

    def _store(self, samples: Iterable[Sample | HistogramSample], *, together: str | None) -> Mapping[str, int]:
        batch = list(samples)
        return self._sink.append(batch, group_key=together).dropped if batch else {}
