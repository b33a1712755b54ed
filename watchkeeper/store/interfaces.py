"""Where samples are written, and the whole of a store: all that other packages use of it, whatever lies behind.

Scraping, rules and remote write have an `Appender`: the head in memory, the durable store, or the way to a server
(`query.remote.remote_appender`). The embedded query engine has a `SampleStore`. What only some can do is an attribute,
and None where it is absent.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from watchkeeper.model import histograms as histogram_model
from watchkeeper.model import labels as label_sets
from watchkeeper.model import samples as sample_model
from watchkeeper.store.columns import Floats, Ints
from watchkeeper.store.exemplars import Exemplars
from watchkeeper.store.histograms import Cells
from watchkeeper.store.index import Cardinality, MatcherLike
from watchkeeper.store.metadata import Metadata
from watchkeeper.store.sample_columns import Columns
from watchkeeper.store.series import SeriesSet

AnySample: TypeAlias = sample_model.Sample | histogram_model.HistogramSample

# How long a sample counts as the newest of its series: Prometheus' default.
LOOKBACK_MS = 300_000


@dataclass(frozen=True, slots=True)
class Appended:
    """What became of the samples of one append: how many were kept, and why others were not."""

    kept: int
    dropped: Mapping[str, int] = field(default_factory=dict)


class Appender(Protocol):
    """Where samples are written; StoreError where that cannot be."""

    @property
    def metadata(self) -> Metadata | None:
        """Type, help and unit of metrics; None where a server has them from its own targets."""

    @property
    def exemplars(self) -> Exemplars | None:
        """None where exemplars are not taken."""

    def series_id(self, labels: label_sets.Labels, /) -> int:
        """The number under which `append_scrape` takes values of a series; StoreError says which limit it breaks."""
        ...

    def append_scrape(
        self, group_key: Hashable, series_ids: Sequence[int], at_ms: int, values: Sequence[float], /
    ) -> Appended:
        """Keep one scrape of a target: a value for each series id, all at one time.

        Ids and values come as arrays of 64-bit numbers (`array('q')`, `array('d')`), which NumPy reads without
        copying. The reason `forgotten` says that ids have lost their meaning and must be asked for again.
        """
        ...

    def append(self, samples: Iterable[AnySample], *, group_key: str | None = None) -> Appended:
        """Keep samples; `together` names who brings these series again and again, always at one time."""
        ...

    def active_series(self, group_key: Hashable, since_ms: int, /) -> Mapping[int, label_sets.Labels]:
        """The series of a group's newest append, where that is after a time, by their ids; a server does not tell."""
        ...

    def sync(self) -> int:
        """Bring what was appended to the disk, where one is ours; returns how many samples."""
        ...


class SampleStore(Appender, Protocol):
    """Samples that can be added and asked for; `Head` says what each method does."""

    @property
    def metadata(self) -> Metadata: ...

    @property
    def exemplars(self) -> Exemplars: ...

    def __len__(self) -> int: ...

    @property
    def newest_ms(self) -> int | None: ...

    @property
    def retention_ms(self) -> int: ...

    def append_scrape(
        self,
        group_key: Hashable,
        series_ids: Sequence[int] | Ints,
        at_ms: int,
        values: Sequence[float] | Floats,
        /,
        *,
        now_ms: int | None = None,
    ) -> Appended: ...

    def append(
        self, samples: Iterable[AnySample], *, group_key: str | None = None, now_ms: int | None = None
    ) -> Appended: ...

    def select(
        self, matchers: Sequence[MatcherLike], start_ms: int, end_ms: int, *, max_samples: int | None = None
    ) -> Columns: ...

    def find_histograms(self, values: Floats) -> Cells | None: ...

    def cached_series_count(self, matchers: Sequence[MatcherLike], start_ms: int) -> int | None: ...

    def latest(self, matchers: Sequence[MatcherLike], start_ms: int, end_ms: int) -> tuple[SeriesSet, Ints, Floats]: ...

    def series(self, matchers: Sequence[MatcherLike], start_ms: int, end_ms: int) -> list[label_sets.Labels]: ...

    def label_names(self, matchers: Sequence[MatcherLike], start_ms: int, end_ms: int) -> list[str]: ...

    def label_values(self, name: str, matchers: Sequence[MatcherLike], start_ms: int, *, end_ms: int) -> list[str]: ...

    def cardinality(self, limit: int) -> Cardinality: ...

    def warnings(self) -> tuple[str, ...]: ...

    def close(self) -> None: ...
