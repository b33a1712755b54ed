"""Label sets as numbers, so that each label computation runs once for each label set.

A `LabelRegistry` numbers label sets and caches the results for each, and a `SeriesSet` is an array of such numbers.
Series change with every job, and a query then computes labels only for the new ones; the rest is work on arrays of
numbers.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from watchkeeper import errors
from watchkeeper.kit import allowance
from watchkeeper.model import labels as label_sets
from watchkeeper.store.cache_memory import CACHE_MEMORY
from watchkeeper.store.columns import Ints

T = TypeVar("T")
Pairs = tuple[tuple[str, str], ...]

# A small fleet caches at most as many label sets as it has series.
MIN_LABEL_SETS, MAX_LABEL_SETS = 1 << 12, 1 << 15
# All queries that select a set of series share it; this many derived results are cached with it.
MAX_DERIVATIONS = 256
# The last sets of a registry, which are reused for the same rows.
MAX_RECENT_SETS = 2
# The number of a series that does not exist.
UNKNOWN = -1
NUMBER_BITS = 32
NUMBER_MASK = (1 << NUMBER_BITS) - 1
NO_NUMBERS: Ints = np.empty(0, dtype=np.int64)
# The memory of a derived label set besides its texts: entries of a list and a dictionary, a tuple, a pointer per pair;
# and of a number in a column with its copies in the sets and groups that are derived from the column.
LABEL_SET_BYTES, PAIR_BYTES, NUMBER_BYTES = 160, 8, 32
# Queries of several threads share cached label results.
LABEL_LOCK = threading.RLock()


class SharedLabelSets:
    """Label sets that queries derive: every metric of a GPU leads to the same few, so each is stored once.

    Most are created within seconds, at the first evaluation of rules, so it does little harm to drop all at the limit.
    """

    def __init__(self) -> None:
        self._limit = MAX_LABEL_SETS
        self._label_sets: dict[Pairs, Pairs] = {}
        CACHE_MEMORY.register(self)

    def drop_results(self) -> None:
        self._label_sets.clear()

    def set_limit(self, series: int) -> None:
        self._limit = min(max(MIN_LABEL_SETS, series), MAX_LABEL_SETS)

    def share(self, pairs: Pairs) -> Pairs:
        if len(self._label_sets) >= self._limit:
            self._label_sets.clear()
        return self._label_sets.setdefault(pairs, pairs)


DERIVED = SharedLabelSets()


@dataclass(slots=True)
class _RegistryPair:
    """Cached results for two registries: this one and another."""

    # For each number, the number of the same label set in the other; and how many of the other were compared.
    other_numbers: Ints = field(default_factory=lambda: NO_NUMBERS)
    checked_count: int = 0
    # A registry for the label sets of both, and the numbers of this and of the other registry there.
    merged: LabelRegistry | None = None
    own_merged: Ints = field(default_factory=lambda: NO_NUMBERS)
    other_merged: Ints = field(default_factory=lambda: NO_NUMBERS)
    combined: LabelRegistry | None = None
    combined_numbers: dict[int, int] = field(default_factory=dict)


class LabelRegistry:
    """Numbers label sets and caches results for each; it only grows, and its owner replaces it."""

    __slots__ = (
        *(
            "__weakref__",
            "_charged_bytes",
            "_columns",
            "_generation",
            "_labels",
            "_mapped",
            "_numbers",
            "_pairs_by_registry",
        ),
        *("_recent", "pairs"),
    )

    def __init__(self) -> None:
        self.pairs: list[Pairs] = []
        # What this registry has charged to the memory of caches, in which generation.
        self._charged_bytes, self._generation = 0, CACHE_MEMORY.generation
        self._labels: list[label_sets.Labels | None] = []
        self._numbers: dict[Pairs, int] = {}
        self._columns: dict[Hashable, Ints] = {}
        self._mapped: dict[Hashable, LabelRegistry] = {}
        self._recent: tuple[SeriesSet, ...] = ()
        self._pairs_by_registry: weakref.WeakKeyDictionary[LabelRegistry, _RegistryPair] = weakref.WeakKeyDictionary()

    def __len__(self) -> int:
        return len(self.pairs)

    def __del__(self) -> None:
        if self._charged_bytes:
            CACHE_MEMORY.credit(self._charged_bytes, self._generation)

    def charge(self, numbers: int, label_bytes: int = 0) -> None:
        """Charge results that are cached as long as this registry exists."""
        size = NUMBER_BYTES * numbers + label_bytes
        if self._generation != CACHE_MEMORY.generation:
            self._charged_bytes, self._generation = 0, CACHE_MEMORY.generation
        self._charged_bytes += size
        CACHE_MEMORY.charge(size)

    def add(self, labels: label_sets.Labels) -> int:
        """Number a series that differs from all others; a registry is filled either by `add` or by `number`."""
        self._labels.append(labels)
        self.pairs.append(labels.pairs)
        return len(self.pairs) - 1

    def number(self, pairs: Pairs) -> int:
        number = self._numbers.get(pairs)
        if number is None:
            with LABEL_LOCK:
                number = self._numbers.get(pairs, len(self.pairs))
                if number == len(self.pairs):
                    allowance.use_labels(LABEL_SET_BYTES + PAIR_BYTES * len(pairs))
                    shared = DERIVED.share(pairs)
                    self.pairs.append(shared)
                    self._numbers[shared] = number
        return number

    def _append(self, pairs: Pairs) -> int:
        allowance.use_labels(LABEL_SET_BYTES + PAIR_BYTES * len(pairs))
        self.pairs.append(pairs)
        return len(self.pairs) - 1

    def labels_of(self, numbers: Iterable[int]) -> list[label_sets.Labels]:
        self._labels.extend([None] * (len(self.pairs) - len(self._labels)))
        labels_by_number, out = self._labels, []
        for number in numbers:
            labels = labels_by_number[number]
            if labels is None:
                labels = labels_by_number[number] = label_sets.Labels(self.pairs[number])
            out.append(labels)
        return out

    def column(self, key: Hashable, compute: Callable[[Pairs], int]) -> Ints:
        """`compute` of each label set, cached; the key identifies the function and all that it depends on."""
        column = self._columns.get(key, NO_NUMBERS)
        if len(column) < len(self.pairs):
            with LABEL_LOCK:
                column = self._columns.pop(key, NO_NUMBERS)
                with self._charged(len(self.pairs) - len(column)):
                    column = _extend_column(column, self.pairs, compute)
                _drop_oldest(self._columns)
                self._columns[key] = column
        return column

    @contextmanager
    def _charged(self, numbers: int) -> Iterator[None]:
        """Charge so many new numbers, and the labels that are created for them."""
        before = allowance.used_label_bytes()
        try:
            yield
        finally:
            self.charge(numbers, allowance.used_label_bytes() - before)

    def mapped(
        self, key: Hashable, change: Callable[[Pairs], Pairs], *, is_one_to_one: bool = False
    ) -> tuple[LabelRegistry, Ints]:
        """The registry of the changed label sets and their numbers there; one-to-one changes need no lookup table."""
        with LABEL_LOCK:
            registry = self._mapped.get(key)
            if registry is None:
                _drop_oldest(self._mapped)
                registry = self._mapped[key] = LabelRegistry()
            number = registry._append if is_one_to_one else registry.number
            return registry, self.column((registry, "mapped"), lambda pairs: number(change(pairs)))

    def numbers_in(self, other: LabelRegistry) -> Ints:
        """For each number, the number of the same label set in another registry, or -1."""
        with LABEL_LOCK:
            pair = self._pair_with(other)
            new_pairs, new_other_pairs = self.pairs[len(pair.other_numbers) :], other.pairs[pair.checked_count :]
            if new_pairs or new_other_pairs:
                new_numbers = np.array([other._numbers.get(pairs, -1) for pairs in new_pairs], dtype=np.int64)
                numbers = np.concatenate([pair.other_numbers, new_numbers])
                for number, pairs in enumerate(new_other_pairs, pair.checked_count):
                    own_number = self._numbers.get(pairs)
                    if own_number is not None:
                        numbers[own_number] = number
                pair.other_numbers, pair.checked_count = numbers, len(other.pairs)
            return pair.other_numbers

    def merge_with(self, other: LabelRegistry) -> tuple[LabelRegistry, Ints, Ints]:
        with LABEL_LOCK:
            pair = self._pair_with(other)
            merged = pair.merged = pair.merged or LabelRegistry()
            # Not in `_columns`, which would keep results for registries that no longer exist.
            with self._charged(len(self.pairs) - len(pair.own_merged) + len(other.pairs) - len(pair.other_merged)):
                pair.own_merged = _extend_column(pair.own_merged, self.pairs, merged.number)
                pair.other_merged = _extend_column(pair.other_merged, other.pairs, merged.number)
            return merged, pair.own_merged, pair.other_merged

    def combine_with(self, other: LabelRegistry, numbers: Ints, *, partners: Ints) -> SeriesSet:
        """Each label set joined with that of its partner in another registry."""
        with LABEL_LOCK:
            pair = self._pair_with(other)
            combined, number_by_couple = pair.combined or LabelRegistry(), pair.combined_numbers
            pair.combined = combined
            couples = (numbers << NUMBER_BITS | partners).tolist()
            with self._charged(len(couples)):
                for couple in allowance.watch(couples):
                    if couple not in number_by_couple:
                        joined_pairs = self.pairs[couple >> NUMBER_BITS] + other.pairs[couple & NUMBER_MASK]
                        number_by_couple[couple] = combined.number(tuple(sorted(joined_pairs)))
            return combined.select(np.array([number_by_couple[couple] for couple in couples], dtype=np.int64))

    def select(self, ids: Ints) -> SeriesSet:
        """The set with these label sets as rows; a recent set with the same rows is reused."""
        for series_set in self._recent:
            if np.array_equal(series_set.ids, ids):
                return series_set
        series_set = SeriesSet(registered=(self, ids))
        self._recent = (series_set, *self._recent[: MAX_RECENT_SETS - 1])
        return series_set

    def release(self) -> None:
        """Drop the sets of this registry, to break reference cycles that otherwise wait for the garbage collector."""
        with LABEL_LOCK:
            self._recent = ()
            paired = [other for pair in self._pairs_by_registry.values() for other in (pair.merged, pair.combined)]
            for registry in (*self._mapped.values(), *paired):
                if registry is not None:
                    registry.release()

    def _pair_with(self, other: LabelRegistry) -> _RegistryPair:
        return self._pairs_by_registry.setdefault(other, _RegistryPair())


class SeriesSet:
    """An immutable list of label sets with cached results.

    It is created from a list, or from a registry and the numbers of its rows there. `has_one_name` says that all series
    have the same metric name.
    """

    __slots__ = ("__weakref__", "_derived", "_pairs", "_registered", "_results_by_other", "has_one_name")

    def __init__(
        self,
        pairs: Sequence[Pairs] | None = None,
        *,
        registered: tuple[LabelRegistry, Ints] | None = None,
        has_one_name: bool = False,
    ) -> None:
        self.has_one_name = has_one_name
        self._pairs = pairs
        self._registered = registered
        self._derived: dict[Hashable, object] = {}
        self._results_by_other: weakref.WeakKeyDictionary[SeriesSet, dict[Hashable, object]] | None = None

    def __len__(self) -> int:
        return len(self._registered[1]) if self._registered is not None else len(self._pairs or ())

    @property
    def pairs(self) -> Sequence[Pairs]:
        if self._pairs is None:
            registry_pairs = self.register.pairs
            self._pairs = [registry_pairs[number] for number in self.ids.tolist()]
        return self._pairs

    @pairs.setter
    def pairs(self, equal: Sequence[Pairs]) -> None:
        self._pairs = equal

    @property
    def register(self) -> LabelRegistry:
        return self._numbered()[0]

    @property
    def ids(self) -> Ints:
        """The number of each row in the registry; rows with the same number have the same labels."""
        return self._numbered()[1]

    def release(self) -> None:
        """Release the registry of this set, which is not used any more; see `LabelRegistry.release`."""
        if self._registered is not None:
            self._registered[0].release()

    def subset(self, rows: Ints) -> SeriesSet:
        return SeriesSet(registered=(self.register, self.ids[rows]), has_one_name=self.has_one_name)

    def labels_of(self, rows: Iterable[int]) -> list[label_sets.Labels]:
        return self.register.labels_of(self.ids[np.array(list(rows), dtype=np.int64)].tolist())

    def cached(self, key: Hashable, build: Callable[[], T]) -> T:
        """The result of `build`, cached by key; the key identifies the function and all that it depends on."""
        result = self._derived.get(key)
        if result is None:
            result = build()
            _drop_oldest(self._derived)
            self._derived[key] = result
        return result  # type: ignore[return-value]  # the key stands for the type

    def derive(self, key: Hashable, build: Callable[[Sequence[Pairs]], T]) -> T:
        """The result of `build(self.pairs)`, cached by key."""
        return self.cached(key, lambda: build(self.pairs))

    def derive_with(self, other: SeriesSet, key: Hashable, build: Callable[[], T]) -> T:
        """A result for this set and another, cached by key while both exist."""
        if self._results_by_other is None:
            self._results_by_other = weakref.WeakKeyDictionary()
        results = self._results_by_other.setdefault(other, {})
        if key not in results:
            result = build()
            _drop_oldest(results)
            results[key] = result
            return result
        return results[key]  # type: ignore[return-value]  # the key stands for the type

    def mapped(self, key: Hashable, change: Callable[[Pairs], Pairs], *, is_one_to_one: bool = False) -> SeriesSet:
        """The set with each label set changed, cached by key and label set."""

        def build() -> SeriesSet:
            target, numbers = self.register.mapped(key, change, is_one_to_one=is_one_to_one)
            return target.select(numbers[self.ids])

        return self.cached(("mapped", key), build)

    def _numbered(self) -> tuple[LabelRegistry, Ints]:
        if self._registered is None:
            register = LabelRegistry()
            ids = np.array([register.number(pairs) for pairs in self._pairs or ()], dtype=np.int64)
            self._registered = register, ids
        return self._registered


def _extend_column(column: Ints, pairs: Sequence[Pairs], compute: Callable[[Pairs], int]) -> Ints:
    """A column, extended with `compute` of the label sets that it does not have yet."""
    new_numbers = [compute(label_set) for label_set in allowance.watch(pairs[len(column) :])]
    return np.concatenate([column, np.array(new_numbers, dtype=np.int64)]) if new_numbers else column


def _drop_oldest(entries: dict[Hashable, T]) -> None:
    """Drop the oldest entry at the limit."""
    if len(entries) >= MAX_DERIVATIONS:
        entries.pop(next(iter(entries), None), None)


MAX_LABELS = 64
MAX_NAME_LENGTH = 512
MAX_VALUE_LENGTH = 4096


def check_label_limits(labels: label_sets.Labels) -> None:
    """StoreError for a label set that is too large for the index, or that cannot be written to a file."""
    text = "".join(itertools.chain.from_iterable(labels.pairs))
    if len(labels.pairs) <= MAX_LABELS and len(text) <= MAX_NAME_LENGTH and text.isascii():
        return
    for unit, actual, limit in (
        ("labels", len(labels.pairs), MAX_LABELS),
        ("characters in a label name", max([len(name) for name, _ in labels.pairs], default=0), MAX_NAME_LENGTH),
        ("characters in a label value", max([len(value) for _, value in labels.pairs], default=0), MAX_VALUE_LENGTH),
    ):
        if actual > limit:
            raise errors.StoreError(
                f"series {errors.quote(str(labels))} has {actual} {unit}, the limit is {limit}",
                remedy="Drop or shorten the label with metric_relabel_configs",
            )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise errors.StoreError(
            f"series {errors.quote(str(labels))} has a label that is not Unicode text",
            remedy="Correct the label in its exporter",
        ) from error
