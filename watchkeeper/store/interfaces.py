"""The interfaces of sample stores that other packages use.

Scraping, rules and remote write use an `Appender`: the head in memory, the durable store, or a remote server
(`query.remote.remote_appender`). An optional feature is an attribute that is None if it is not supported.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from watchkeeper.model import histograms as histogram_model
from watchkeeper.model import labels as label_sets
from watchkeeper.model import samples as sample_model
from watchkeeper.store.exemplars import Exemplars
from watchkeeper.store.metadata import Metadata

AnySample: TypeAlias = sample_model.Sample | histogram_model.HistogramSample

# The default lookback of Prometheus: how long a sample is the current value of its series.
LOOKBACK_MS = 300_000


@dataclass(frozen=True, slots=True)
class Appended:
    """The result of one append: how many samples were stored, and how many were dropped by reason."""

    kept: int
    dropped: Mapping[str, int] = field(default_factory=dict)


class Appender(Protocol):
    """Writes samples; StoreError if that fails."""

    @property
    def metadata(self) -> Metadata | None:
        """Type, help and unit of metrics; None if a remote server gets them from its own targets."""

    @property
    def exemplars(self) -> Exemplars | None:
        """None if exemplars are not stored."""

    def series_id(self, labels: label_sets.Labels, /) -> int:
        """The id of a series for `append_scrape`; StoreError names the limit that the series exceeds."""
        ...

    def append_scrape(
        self, group_key: Hashable, series_ids: Sequence[int], at_ms: int, values: Sequence[float], /
    ) -> Appended:
        """Append one scrape of a target: a value for each series id, all at one time.

        Pass ids and values as arrays of 64-bit numbers (`array('q')`, `array('d')`), which NumPy reads without a copy.
        If samples are dropped as `forgotten`, their series were removed: call `series_id` again.
        """
        ...

    def append(self, samples: Iterable[AnySample], *, group_key: str | None = None) -> Appended:
        """Append samples; `group_key` names a source whose series always have the same time."""
        ...

    def active_series(self, group_key: Hashable, since_ms: int, /) -> Mapping[int, label_sets.Labels]:
        """The series of a group's newest append, if that is after `since_ms`, by id; empty for a remote server."""
        ...

    def sync(self) -> int:
        """Write appended samples to the local disk, if there is one; return how many."""
        ...
