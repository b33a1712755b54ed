"""The index of series: it finds the series that a selector matches.

Patterns are matched against distinct values only. A selection is cached until a series of its metric is added or
removed; results for the other series are kept even then (`series`), so that rules that run every few seconds need no
label work.
"""

from __future__ import annotations

import heapq
from array import array
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import compress
from typing import TypeAlias, TypeVar

import numpy as np
import re2

from watchkeeper import errors
from watchkeeper.kit import allowance
from watchkeeper.kit.recency_cache import RecencyCache
from watchkeeper.model import labels as label_sets
from watchkeeper.store.cache_memory import CACHE_MEMORY
from watchkeeper.store.columns import Ints, Mask
from watchkeeper.store.groups import grow_column
from watchkeeper.store.series import DERIVED, UNKNOWN, LabelRegistry, Pairs, SeriesSet

T = TypeVar("T")

MAX_SELECTIONS = 512
# Outdated selections are dropped after this many new ones.
CLEANUP_INTERVAL = 64
# The memory of a cached selection for each of its series: numbers, ids, locations of samples, a registry of its own.
SELECTED_BYTES = 64
# Appends wait while the series of a selector are searched, so a query with a deadline may not take longer.
SEARCH_SECONDS = 5.0
# In each of two generations.
MAX_PATTERNS = 256
# Longer patterns come from generated queries: compiled they take megabytes, and they are rarely used again.
MAX_CACHED_PATTERN = 1000
MAX_PATTERN_RESULTS = 100_000
# A metric's registry is replaced when it has this many removed series beyond half of the present ones. Each needs a few
# kB: a thousand removed series of every metric that rules query were 30 MiB of a hub with 64 GPUs.
REGISTRY_SLACK = 64
UNREGISTERED = -1
# The cost of checking one series, and of marking one in a mask; checking one distinct value costs 1.
CHECK_MICROSECONDS, MARK_MICROSECONDS = 0.7, 0.006
# Characters that are literal in a pattern, so that `a|b|c` needs no regular expression.
LITERAL = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-:/ ,=@%<>|")


def _re2_options(max_bytes: int | None = None) -> re2.Options:
    options = re2.Options()
    options.log_errors, options.dot_nl = False, True
    if max_bytes is not None:
        options.max_mem = max_bytes
    return options


RE2_OPTIONS = _re2_options()
# Of a compiled pattern that stays in a cache; a short pattern with large repetitions would take 8 MiB.
CACHED_RE2_OPTIONS = _re2_options(1 << 20)


class MatchOp(StrEnum):
    EQUAL = "="
    NOT_EQUAL = "!="
    REGEX = "=~"
    NOT_REGEX = "!~"


@dataclass(frozen=True, slots=True)
class Matcher:
    """One label matcher of a selector; an absent label has the empty value."""

    name: str
    op: MatchOp
    value: str

    def __hash__(self) -> int:
        # Without `op`: hashing an enum is slow, and rules look up the same selectors repeatedly.
        return hash((self.name, self.value))


Matchers: TypeAlias = Sequence[Matcher]


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """The series that a selector matches: their numbers, and their labels in the same order."""

    numbers: Ints
    series: SeriesSet
    version: int


Counts = list[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Cardinality:
    """How many series exist, and the metrics and labels with the most, in descending order."""

    series: int
    pairs: int
    by_metric: Counts
    values_by_label: Counts
    bytes_by_label: Counts
    by_pair: Counts


@dataclass(slots=True)
class CachedPattern:
    """A fully anchored regular expression that caches its result for each value."""

    text: str
    _literals: frozenset[str] | None = None
    _compiled: object = None
    _result_by_value: dict[str, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if LITERAL.issuperset(self.text):
            self._literals = frozenset(self.text.split("|"))
            return
        try:
            is_cached = len(self.text) <= MAX_CACHED_PATTERN
            self._compiled = re2.compile(self.text, CACHED_RE2_OPTIONS if is_cached else RE2_OPTIONS)
        except re2.error as error:
            raise errors.QueryError(
                f"the pattern {errors.quote(self.text)} is not a regular expression: {error}",
                remedy="Use RE2 syntax, as in Prometheus",
            ) from error

    def matches(self, value: str) -> bool:
        if self._literals is not None:
            return value in self._literals
        is_match = self._result_by_value.get(value)
        if is_match is None:
            if len(self._result_by_value) >= MAX_PATTERN_RESULTS:
                self._result_by_value.clear()
            is_match = self._result_by_value[value] = self._compiled.fullmatch(value) is not None  # type: ignore[attr-defined]
        return is_match


# All stores and threads share the compiled patterns.
_find_pattern = RecencyCache(CachedPattern, max_entries=MAX_PATTERNS)


def build_predicate(matcher: Matcher) -> Callable[[str], bool]:
    matcher_value = matcher.value
    if matcher.op == "=":
        return lambda value: value == matcher_value
    if matcher.op == "!=":
        return lambda value: value != matcher_value
    is_long = len(matcher_value) > MAX_CACHED_PATTERN
    pattern = CachedPattern(matcher_value) if is_long else _find_pattern(matcher_value)
    if matcher.op == "=~":
        return pattern.matches
    return lambda value: not pattern.matches(value)


class SeriesIndex:
    """Maps label sets to series numbers and back; numbers of removed series are reused."""

    def __init__(self) -> None:
        self.labels: list[label_sets.Labels | None] = []
        self._numbers: dict[label_sets.Labels, int] = {}
        self._postings: dict[str, dict[str, array[int]]] = {}
        self._posting_by_pair: dict[tuple[str, str], tuple[tuple[str, str], array[int]]] = {}
        self._free: list[int] = []
        self._version = 0
        self._name_versions: dict[str, int] = {}
        self._selections: OrderedDict[tuple[Matcher, ...], Selection] = OrderedDict()
        self._selections_made = 0
        self._cache_generation = CACHE_MEMORY.generation
        # The registry of each metric that was queried, and for each series its number there.
        self._registry_by_metric: dict[str, LabelRegistry] = {}
        self._registry_ids = np.empty(0, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._numbers)

    def find(self, labels: label_sets.Labels) -> int | None:
        return self._numbers.get(labels)

    def add(self, labels: label_sets.Labels) -> int:
        number = self._free.pop() if self._free else len(self.labels)
        if number == len(self.labels):
            self.labels.append(labels)
        else:
            self.labels[number] = labels
        self._registry_ids = grow_column(self._registry_ids, number + 1, fill=UNREGISTERED)
        self._registry_ids[number] = UNREGISTERED
        self._add_postings(labels, number)
        self._changed(labels.name)
        return number

    def add_all(self, new_series: Sequence[label_sets.Labels], names: Iterable[str]) -> Ints:
        """Add new, distinct label sets of these metrics, whose equal pairs are the same object."""
        reused_count = min(len(self._free), len(new_series))
        numbers = [self._free.pop() for _ in range(reused_count)]
        numbers += range(len(self.labels), len(self.labels) + len(new_series) - reused_count)
        self.labels += [None] * (len(new_series) - reused_count)
        self._registry_ids = grow_column(self._registry_ids, len(self.labels), fill=UNREGISTERED)
        self._registry_ids[numbers] = UNREGISTERED
        self._add_all_postings(new_series, numbers)
        for name in names:
            self._changed(name)
        return np.array(numbers, dtype=np.int64)

    def find_all(self, series: Iterable[label_sets.Labels]) -> Ints:
        """The number of each label set, or UNKNOWN."""
        number_of = self._numbers.get
        return np.array([number_of(labels, UNKNOWN) for labels in series], dtype=np.int64)

    def _add_postings(self, labels: label_sets.Labels, number: int) -> None:
        """Add the series to the posting of each pair, and replace its pairs by the shared objects."""
        self._numbers[labels] = number
        posting_by_pair = self._posting_by_pair
        entries = [posting_by_pair.get(pair) or self._add_pair(pair) for pair in labels.pairs]
        for _, posting in entries:
            posting.append(number)
        # Labels use most of the memory.
        labels.pairs = tuple([pair for pair, _ in entries])

    def _add_all_postings(self, new_series: Sequence[label_sets.Labels], numbers: Sequence[int]) -> None:
        """`_add_postings` for many series that share most pairs: one step for each distinct pair."""
        numbers_by_pair: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
        # In an empty index, no other series has copies of these pairs.
        is_empty = not self._posting_by_pair
        for number, labels in zip(numbers, new_series, strict=True):
            self.labels[number] = labels
            for pair in labels.pairs:
                numbers_by_pair[pair].append(number)
        self._numbers.update(zip(new_series, numbers, strict=True))
        for pair, pair_numbers in numbers_by_pair.items():
            (self._posting_by_pair.get(pair) or self._add_pair(pair))[1].extend(pair_numbers)
        if not is_empty:
            for labels in new_series:
                labels.pairs = tuple([self._posting_by_pair[pair][0] for pair in labels.pairs])

    def _add_pair(self, pair: tuple[str, str]) -> tuple[tuple[str, str], array[int]]:
        posting = self._postings.setdefault(pair[0], {}).setdefault(pair[1], array("q"))
        self._posting_by_pair[pair] = (pair, posting)
        return self._posting_by_pair[pair]

    def remove(self, numbers: Iterable[int]) -> None:
        removed = set(numbers)
        affected_pairs: set[tuple[str, str]] = set()
        for number in removed:
            labels = self.labels[number]
            if labels is not None:
                affected_pairs.update(labels.pairs)
                del self._numbers[labels]
                self.labels[number] = None
                self._changed(labels.name)
        for name, value in affected_pairs:
            remaining = array("q", (number for number in self._postings[name][value] if number not in removed))
            if remaining:
                self._postings[name][value] = remaining
                self._posting_by_pair[name, value] = (self._posting_by_pair[name, value][0], remaining)
            else:
                del self._postings[name][value], self._posting_by_pair[name, value]
        self._free.extend(removed)

    def label_names(self, matchers: Matchers = (), in_range: Mask | None = None) -> list[str]:
        """Label names of the matching series whose number is in the mask `in_range`; None means all."""
        in_range = self._all_series() if in_range is None else in_range
        if not matchers:
            return sorted(name for name, values in self._postings.items() if _any_in_range(values.values(), in_range))
        return self._derive_in_range(
            matchers, in_range, "label names", lambda rows: sorted({name for pairs in rows for name, _ in pairs})
        )

    def label_values(self, name: str, matchers: Matchers = (), *, in_range: Mask | None = None) -> list[str]:
        in_range = self._all_series() if in_range is None else in_range
        if not matchers:
            values = self._postings.get(name, {})
            return sorted(value for value, posting in values.items() if _any_in_range([posting], in_range))
        return self._derive_in_range(
            matchers,
            in_range,
            ("label values", name),
            lambda rows: sorted({value for pairs in rows for label, value in pairs if label == name}),
        )

    def _derive_in_range(
        self, matchers: Matchers, in_range: Mask, key: Hashable, build: Callable[[Sequence[Pairs]], T]
    ) -> T:
        """The result for the selected series in the mask; cached if these are all selected series."""
        selection = self.select(matchers)
        is_kept = in_range[selection.numbers]
        if is_kept.all():
            return selection.series.derive(key, build)
        return build(list(compress(selection.series.pairs, is_kept.tolist())))

    def cardinality(self, limit: int) -> Cardinality:
        metrics = self._postings.get(label_sets.METRIC_NAME, {})
        names = self._postings.items()
        return Cardinality(
            series=len(self),
            pairs=sum(len(values) for _, values in names),
            by_metric=_largest(((value, len(posting)) for value, posting in metrics.items()), limit),
            values_by_label=_largest(((name, len(values)) for name, values in names), limit),
            bytes_by_label=_largest(((name, sum(map(len, values))) for name, values in names), limit),
            by_pair=_largest(
                ((f"{name}={value}", len(posting)) for name, values in names for value, posting in values.items()),
                limit,
            ),
        )

    def select(self, matchers: Matchers) -> Selection:
        if self._cache_generation != CACHE_MEMORY.generation:
            self._drop_results()
        key = tuple(matchers)
        version = self._version_for(key)
        cached = self._selections.get(key)
        if cached is not None and cached.version == version:
            self._selections.move_to_end(key)
            return cached
        with allowance.tighter_deadline(SEARCH_SECONDS, "the search for the series of a selector"):
            numbers, name = self._find_matching(key), _metric_of(key)
        series = self._metric_series(name, numbers) if name else self._standalone_set(numbers)
        selection = Selection(numbers, series, version)
        self._cache_selection(key, selection)
        return selection

    def _cache_selection(self, key: tuple[Matcher, ...], selection: Selection) -> None:
        """Cache a selection, and drop outdated selections from time to time.

        A selection that is used once, for an incident's node or GPU, would keep the labels of removed series.
        """
        self._drop_selection(key)
        self._selections[key] = selection
        CACHE_MEMORY.charge(SELECTED_BYTES * len(selection.numbers))
        if len(self._selections) > MAX_SELECTIONS:
            self._drop_selection(next(iter(self._selections)))
        self._selections_made += 1
        if self._selections_made % CLEANUP_INTERVAL == 0:
            DERIVED.set_limit(len(self))
            CACHE_MEMORY.allow_for(len(self))
            outdated = [old for old, cached in self._selections.items() if cached.version != self._version_for(old)]
            for stale_key in outdated:
                dropped = self._drop_selection(stale_key)
                if dropped is not None and not _metric_of(stale_key):
                    dropped.series.register.release()

    def _drop_selection(self, key: tuple[Matcher, ...]) -> Selection | None:
        dropped = self._selections.pop(key, None)
        if dropped is not None:
            CACHE_MEMORY.credit(SELECTED_BYTES * len(dropped.numbers), self._cache_generation)
        return dropped

    def _drop_results(self) -> None:
        """Drop everything that is cached for queries; release it, because it contains reference cycles."""
        for selection in self._selections.values():
            selection.series.register.release()
        for registry in self._registry_by_metric.values():
            registry.release()
        self._selections.clear()
        self._registry_by_metric.clear()
        self._registry_ids[:] = UNREGISTERED
        self._cache_generation = CACHE_MEMORY.generation

    def cached_selection(self, matchers: Matchers) -> Selection | None:
        cached = self._selections.get(tuple(matchers))
        return cached if cached is not None and cached.version == self._version_for(matchers) else None

    def select_metric(self, name: str) -> Selection:
        """All series of one metric, or the series without a name; not cached."""
        if name:
            numbers = np.sort(self._posting(label_sets.METRIC_NAME, name))
        else:
            nameless = [number for labels, number in self._numbers.items() if not labels.name]
            numbers = np.array(sorted(nameless), dtype=np.int64)
        return Selection(numbers, self._standalone_set(numbers), self._version)

    def _metric_series(self, name: str, numbers: Ints) -> SeriesSet:
        """Series of one metric as a set; only series that are new to the registry are read."""
        registry = self._registry_by_metric.get(name)
        metric_posting = self._posting(label_sets.METRIC_NAME, name)
        if registry is None or 2 * len(registry) > 3 * len(metric_posting) + 2 * REGISTRY_SLACK:
            if registry is not None:
                registry.release()
            registry = self._registry_by_metric[name] = LabelRegistry()
            self._registry_ids[metric_posting] = UNREGISTERED
        ids = self._registry_ids[numbers]
        for index in np.flatnonzero(ids == UNREGISTERED).tolist():
            labels = self.labels[numbers[index]]
            assert labels is not None
            ids[index] = registry.add(labels)
        self._registry_ids[numbers] = ids
        return SeriesSet(registered=(registry, ids), has_one_name=True)

    def _standalone_set(self, numbers: Ints) -> SeriesSet:
        registry = LabelRegistry()
        for number in numbers.tolist():
            labels = self.labels[number]
            assert labels is not None
            registry.add(labels)
        return SeriesSet(registered=(registry, np.arange(len(numbers))))

    def _changed(self, name: str) -> None:
        self._version += 1
        self._name_versions[name] = self._version
        if len(self._name_versions) > 2 * len(self._postings.get(label_sets.METRIC_NAME, ())) + 1000:
            self._name_versions.clear()
            for key in list(self._selections):
                self._drop_selection(key)
            self._drop_results()

    def _version_for(self, matchers: Matchers) -> int:
        name = _metric_of(matchers)
        return self._name_versions.get(name, 0) if name else self._version

    def _find_matching(self, matchers: Matchers) -> Ints:
        """The series that match all matchers; `=` matchers come first, because they leave the fewest series."""
        postings = [self._posting(matcher.name, matcher.value) for matcher in matchers if _is_equality(matcher)]
        numbers: Ints | None = None
        for posting in sorted(postings, key=len):
            numbers = np.sort(posting) if numbers is None else numbers[self._member_mask(posting)[numbers]]
        for matcher in matchers:
            allowance.check()
            if not _is_equality(matcher):
                numbers = self._filter(numbers, matcher)
        return self._all_numbers() if numbers is None else numbers

    def _posting(self, name: str, value: str) -> Ints:
        return _to_numbers(self._postings.get(name, {}).get(value, array("q")))

    def _all_numbers(self) -> Ints:
        return np.array(sorted(self._numbers.values()), dtype=np.int64)

    def _filter(self, numbers: Ints | None, matcher: Matcher) -> Ints:
        """The series of `numbers`, or of all series, that a matcher accepts.

        It checks each series, or else each distinct value of the label, whichever is cheaper: most selectors name a
        metric, and `UUID!=""` would otherwise read the postings of all series of the fleet.
        """
        accepts, values = build_predicate(matcher), self._postings.get(matcher.name, {})
        if numbers is not None and CHECK_MICROSECONDS * len(numbers) < len(values) + MARK_MICROSECONDS * len(self):
            labels_by_number = self.labels
            is_accepted = [
                accepts(labels.get(matcher.name, ""))
                for number in allowance.watch(numbers.tolist())
                if (labels := labels_by_number[number]) is not None
            ]
            checked: Ints = numbers[np.array(is_accepted, dtype=bool)]
            return checked
        accepts_absent = accepts("")
        entries = allowance.watch(values.items())
        postings = [_to_numbers(posting) for value, posting in entries if accepts(value) != accepts_absent]
        is_member = self._member_mask(np.concatenate(postings) if postings else np.empty(0, dtype=np.int64))
        if numbers is None:
            numbers = self._all_numbers() if accepts_absent else np.flatnonzero(is_member)
        filtered: Ints = numbers[is_member[numbers] != accepts_absent]
        return filtered

    def _all_series(self) -> Mask:
        return np.ones(len(self.labels), dtype=bool)

    def _member_mask(self, numbers: Ints) -> np.typing.NDArray[np.bool_]:
        mask = np.zeros(len(self.labels), dtype=bool)
        mask[numbers] = True
        return mask


def _metric_of(matchers: Matchers) -> str:
    """The metric that a selector names, or an empty text."""
    names = (matcher.value for matcher in matchers if matcher.name == label_sets.METRIC_NAME and _is_equality(matcher))
    return next(names, "")


def _is_equality(matcher: Matcher) -> bool:
    return matcher.op == "=" and bool(matcher.value)


def _to_numbers(posting: array[int]) -> Ints:
    return np.array(posting, dtype=np.int64)


def _any_in_range(postings: Iterable[array[int]], in_range: Mask) -> bool:
    return any(in_range[_to_numbers(posting)].any() for posting in postings)


def _largest(counts: Iterable[tuple[str, int]], limit: int) -> Counts:
    return heapq.nlargest(limit, counts, key=lambda entry: entry[1])
