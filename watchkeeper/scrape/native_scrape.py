"""Native histograms of one target's pages: they go to the store beside its numbers, and end where they are gone.

`target_loop` hands over each page. They are appended as those of remote write are; what the store does not take is
counted as left out.
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
    """The native histograms that a target reports now."""

    def __init__(self, sink: interfaces.Appender, key: str) -> None:
        self._sink = sink
        self._key = f"{key} native"
        self._epoch = 0
        # The stored series of each handle; None where a rule drops it.
        self._known: dict[int, Labels | None] = {}
        self._present: dict[Labels, None] = {}

    @property
    def is_empty(self) -> bool:
        """Whether the page before had none that would have to end."""
        return not self._present

    def labels_of(self, handle: int) -> Labels | None:
        return self._known.get(handle)

    def append_page(
        self, page: exposition.ExpositionPage, at_ms: int, *, latest_ms: int, attach: Attach
    ) -> Mapping[str, int]:
        """Append what the page has, and end what it no longer has; what was not kept comes back, by reason."""
        if page.epoch != self._epoch:
            self._epoch, self._known = page.epoch, {}
        left_out: Counter[str] = Counter()
        samples: dict[Labels, HistogramSample] = {}
        timed: set[Labels] = set()
        for handle, histogram, own_ms in page.histograms:
            if handle not in self._known:
                self._known[handle] = attach(handle)
            series = self._known[handle]
            if own_ms is not None and own_ms > latest_ms:
                left_out["future"] += 1
            elif series in samples:
                left_out["duplicate"] += 1
            elif series is not None:
                samples[series] = HistogramSample(series, at_ms if own_ms is None else own_ms, histogram)
                timed.update(() if own_ms is None else (series,))
        left_out.update(self._end(self._present.keys() - samples.keys(), at_ms))
        # As in Prometheus, a series with times of its own gets no stale marker.
        self._present = {series: None for series in samples if series not in timed}
        left_out.update(self._store(samples.values(), together=None if timed else self._key))
        return left_out

    def end_series(self, at_ms: int) -> Mapping[str, int]:
        """The target is silent or gone, and with it all its histograms."""
        ended, self._present = self._end(self._present, at_ms), {}
        return ended

    def _end(self, series: Iterable[Labels], at_ms: int) -> Mapping[str, int]:
        return self._store([Sample(one, at_ms, STALE) for one in series], together=None)

    def _store(self, samples: Iterable[Sample | HistogramSample], *, together: str | None) -> Mapping[str, int]:
        found = list(samples)
        return self._sink.append(found, group_key=together).dropped if found else {}
