"""Which series exist, and which of them a selector means.

Each series has a number; for each label value the index keeps the numbers that carry it. Patterns
are matched against the distinct values only. A selection is remembered until a series of its metric
comes or goes, and then what is known about the series that stay is kept (`series`), so that a rule asked every few
seconds does no label work.
"""

from __future__ import annotations

import heapq
import threading
from array import array
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Protocol

import numpy as np
import re2

from watchkeeper import errors
from watchkeeper.model import labels as label_sets
from watchkeeper.store.columns import Ints, Mask
from watchkeeper.store.groups import grow_column
from watchkeeper.store.series import DERIVED, UNKNOWN, LabelRegistry, Pairs, SeriesSet

REMEMBERED_SELECTIONS = 512
# So many selections are made between two looks at those that are out of date.
LOOK_AFTER = 64
REMEMBERED_PATTERNS = 256
REMEMBERED_VALUES = 100_000
# A metric's register begins anew once so many series are gone beyond half of the present ones. A register has some kB
# for each, of every metric that rules ask for: a thousand more were 30 MiB of a hub with 64 GPUs.
FORGET_SLACK = 64
NOT_ASKED = -1
# What it takes to look at a series for a label, and to note one that is known to have a value, beside 1 for each value.
LOOK_MICROSECONDS, NOTE_MICROSECONDS = 0.7, 0.006
# Characters that mean themselves in a pattern, so that `a|b|c` needs no regular expression.
LITERAL = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-:/ ,=@%<>|")


class MatcherLike(Protocol):
    """A label condition, as `query.engine.Matcher` has it."""

    @property
    def name(self) -> str: ...
    @property
    def op(self) -> str: ...
    @property
    def value(self) -> str: ...


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """The series that a selector means: their numbers, and their labels in the same order."""

    numbers: Ints
    series: SeriesSet
    version: int


Counts = list[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Cardinality:
    """How many series there are and what makes them many, the largest first."""

    series: int
    pairs: int
    by_metric: Counts
    values_by_label: Counts
    bytes_by_label: Counts
    by_pair: Counts


@dataclass(slots=True)
class CachedPattern:
    """A fully anchored regular expression that remembers the values it has seen."""

    text: str
    _words: frozenset[str] | None = None
    _compiled: object = None
    _seen: dict[str, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if LITERAL.issuperset(self.text):
            self._words = frozenset(self.text.split("|"))
            return
        options = re2.Options()
        options.dot_nl = True
        options.log_errors = False
        try:
            self._compiled = re2.compile(self.text, options)
        except re2.error as error:
            raise errors.QueryError(
                f"the pattern {errors.quote(self.text)} is not a regular expression: {error}",
                remedy="Use the RE2 syntax that Prometheus uses",
            ) from error

    def matches(self, value: str) -> bool:
        if self._words is not None:
            return value in self._words
        known = self._seen.get(value)
        if known is None:
            if len(self._seen) >= REMEMBERED_VALUES:
                self._seen.clear()
            known = self._seen[value] = self._compiled.fullmatch(value) is not None  # type: ignore[attr-defined]
        return known


class Patterns:
    """What matchers accept; compiled patterns are kept and shared by all threads."""

    def __init__(self) -> None:
        self._patterns: OrderedDict[str, CachedPattern] = OrderedDict()
        self._lock = threading.Lock()

    def acceptance(self, matcher: MatcherLike) -> Callable[[str], bool]:
        """Says of a label value whether the matcher accepts it."""
        wanted = matcher.value
        if matcher.op == "=":
            return lambda value: value == wanted
        if matcher.op == "!=":
            return lambda value: value != wanted
        pattern = self._pattern(wanted)
        if matcher.op == "=~":
            return pattern.matches
        return lambda value: not pattern.matches(value)

    def _pattern(self, text: str) -> CachedPattern:
        with self._lock:
            if text not in self._patterns:
                self._patterns[text] = CachedPattern(text)
                if len(self._patterns) > REMEMBERED_PATTERNS:
                    self._patterns.popitem(last=False)
            self._patterns.move_to_end(text)
            return self._patterns[text]


class SeriesIndex:
    """Label sets to numbers and back; numbers of forgotten series are used again."""

    def __init__(self) -> None:
        self.labels: list[label_sets.Labels | None] = []
        self._numbers: dict[label_sets.Labels, int] = {}
        self._postings: dict[str, dict[str, array[int]]] = {}
        self._pairs: dict[tuple[str, str], tuple[tuple[str, str], array[int]]] = {}
        self._free: list[int] = []
        self._version = 0
        self._name_versions: dict[str, int] = {}
        self._selections: OrderedDict[tuple[MatcherLike, ...], Selection] = OrderedDict()
        self._made = 0
        self._patterns = Patterns()
        # For each metric that was asked for the register of its series, and for each series its number there.
        self._registers: dict[str, LabelRegistry] = {}
        self._registered = np.empty(0, dtype=np.int64)

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
        self._registered = grow_column(self._registered, number + 1, fill=NOT_ASKED)
        self._registered[number] = NOT_ASKED
        self._note(labels, number)
        self._changed(labels.name)
        return number

    def add_all(self, fresh: Sequence[label_sets.Labels], names: Iterable[str]) -> Ints:
        """What `add` does for each of some label sets of these metrics; no two are equal, and none is known.

        Equal pairs among them are one object, as the log's reader makes them.
        """
        again = min(len(self._free), len(fresh))
        numbers = [self._free.pop() for _ in range(again)]
        numbers += range(len(self.labels), len(self.labels) + len(fresh) - again)
        self.labels += [None] * (len(fresh) - again)
        self._registered = grow_column(self._registered, len(self.labels), fill=NOT_ASKED)
        self._registered[numbers] = NOT_ASKED
        self._note_all(fresh, numbers)
        for name in names:
            self._changed(name)
        return np.array(numbers, dtype=np.int64)

    def find_all(self, asked: Iterable[label_sets.Labels]) -> Ints:
        """The number of each label set, or UNKNOWN."""
        known = self._numbers.get
        return np.array([known(labels, UNKNOWN) for labels in asked], dtype=np.int64)

    def _note(self, labels: label_sets.Labels, number: int) -> None:
        """Note the series under each pair, and let it have the one pair that all its series share."""
        self._numbers[labels] = number
        known = self._pairs
        held = [known.get(pair) or self._first_of(pair) for pair in labels.pairs]
        for _, posting in held:
            posting.append(number)
        # Most memory is labels.
        labels.pairs = tuple([pair for pair, _ in held])

    def _note_all(self, fresh: Sequence[label_sets.Labels], numbers: Sequence[int]) -> None:
        """What `_note` does for each of many, which share most pairs among themselves: one step for each pair."""
        holders: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
        # Before there are others, nobody has another copy of their pairs.
        is_first = not self._pairs
        for number, labels in zip(numbers, fresh, strict=True):
            self.labels[number] = labels
            for pair in labels.pairs:
                holders[pair].append(number)
        self._numbers.update(zip(fresh, numbers, strict=True))
        for pair, held in holders.items():
            (self._pairs.get(pair) or self._first_of(pair))[1].extend(held)
        if not is_first:
            for labels in fresh:
                labels.pairs = tuple([self._pairs[pair][0] for pair in labels.pairs])

    def _first_of(self, pair: tuple[str, str]) -> tuple[tuple[str, str], array[int]]:
        posting = self._postings.setdefault(pair[0], {}).setdefault(pair[1], array("q"))
        self._pairs[pair] = (pair, posting)
        return self._pairs[pair]

    def remove(self, numbers: Iterable[int]) -> None:
        gone = set(numbers)
        touched: set[tuple[str, str]] = set()
        for number in gone:
            labels = self.labels[number]
            if labels is not None:
                touched.update(labels.pairs)
                del self._numbers[labels]
                self.labels[number] = None
                self._changed(labels.name)
        for name, value in touched:
            left = array("q", (number for number in self._postings[name][value] if number not in gone))
            if left:
                self._postings[name][value] = left
                self._pairs[name, value] = (self._pairs[name, value][0], left)
            else:
                del self._postings[name][value], self._pairs[name, value]
        self._free.extend(gone)

    def label_names(self, matchers: Sequence[MatcherLike] = (), lived: Mask | None = None) -> list[str]:
        """Names of labels of the series that match and for whose number `lived` is true; without it, of all."""
        lived = self._everyone() if lived is None else lived
        if not matchers:
            return sorted(name for name, values in self._postings.items() if _any_lived(values.values(), lived))
        chosen = self.select(matchers)
        alive = lived[chosen.numbers]
        if alive.all():
            return chosen.series.derive("label names", _names)
        return _names(list(compress(chosen.series.pairs, alive.tolist())))

    def label_values(self, name: str, matchers: Sequence[MatcherLike] = (), *, lived: Mask | None = None) -> list[str]:
        lived = self._everyone() if lived is None else lived
        if not matchers:
            values = self._postings.get(name, {})
            return sorted(value for value, held in values.items() if _any_lived([held], lived))
        chosen = self.select(matchers)
        alive = lived[chosen.numbers]
        if alive.all():
            return chosen.series.derive(("label values", name), lambda rows: _values(rows, name))
        return _values(list(compress(chosen.series.pairs, alive.tolist())), name)

    def cardinality(self, limit: int) -> Cardinality:
        """The `limit` largest of everything that can grow."""
        metrics = self._postings.get(label_sets.METRIC_NAME, {})
        names = self._postings.items()
        return Cardinality(
            series=len(self),
            pairs=sum(len(values) for _, values in names),
            by_metric=_largest(((value, len(held)) for value, held in metrics.items()), limit),
            values_by_label=_largest(((name, len(values)) for name, values in names), limit),
            bytes_by_label=_largest(((name, sum(map(len, values))) for name, values in names), limit),
            by_pair=_largest(
                ((f"{name}={value}", len(held)) for name, values in names for value, held in values.items()), limit
            ),
        )

    def select(self, matchers: Sequence[MatcherLike]) -> Selection:
        """The series that satisfy all matchers."""
        key = tuple(matchers)
        version = self._version_for(key)
        known = self._selections.get(key)
        if known is not None and known.version == version:
            self._selections.move_to_end(key)
            return known
        numbers, name = self._matching(key), _metric_of(key)
        chosen = Selection(numbers, self._series_of(name, numbers) if name else self._nameless(numbers), version)
        self._remember(key, chosen)
        return chosen

    def _remember(self, key: tuple[MatcherLike, ...], chosen: Selection) -> None:
        """Keep a selection, and now and then let go of those that would be made anew if they were asked for again.

        What is asked once, about an incident's node or GPU, would keep the labels of series that are long gone.
        """
        self._selections[key] = chosen
        self._selections.move_to_end(key)
        if len(self._selections) > REMEMBERED_SELECTIONS:
            self._selections.popitem(last=False)
        self._made += 1
        if self._made % LOOK_AFTER == 0:
            DERIVED.fit(len(self))
            known = self._selections.items()
            for old in [old for old, one in known if one.version != self._version_for(old)]:
                gone = self._selections.pop(old)
                if not _metric_of(old):
                    gone.series.register.release()

    def remembered(self, matchers: Sequence[MatcherLike]) -> Selection | None:
        """What `select` would answer without any work."""
        known = self._selections.get(tuple(matchers))
        return known if known is not None and known.version == self._version_for(matchers) else None

    def of_metric(self, name: str) -> Selection:
        """All series of one metric, or those without a name; not remembered."""
        if name:
            numbers = np.sort(_numbers(self._postings.get(label_sets.METRIC_NAME, {}).get(name, array("q"))))
        else:
            nameless = [number for labels, number in self._numbers.items() if not labels.name]
            numbers = np.array(sorted(nameless), dtype=np.int64)
        return Selection(numbers, self._nameless(numbers), self._version)

    def _series_of(self, name: str, numbers: Ints) -> SeriesSet:
        """Series of one metric as a set, of which only those are looked at that were not in one before."""
        register = self._registers.get(name)
        everyone = self._postings.get(label_sets.METRIC_NAME, {}).get(name, array("q"))
        if register is None or 2 * len(register) > 3 * len(everyone) + 2 * FORGET_SLACK:
            if register is not None:
                register.release()
            register = self._registers[name] = LabelRegistry()
            self._registered[_numbers(everyone)] = NOT_ASKED
        ids = self._registered[numbers]
        for at in np.flatnonzero(ids == NOT_ASKED).tolist():
            labels = self.labels[numbers[at]]
            assert labels is not None
            ids[at] = register.add(labels)
        self._registered[numbers] = ids
        return SeriesSet(of=(register, ids), has_one_name=True)

    def _nameless(self, numbers: Ints) -> SeriesSet:
        register = LabelRegistry()
        for number in numbers.tolist():
            labels = self.labels[number]
            assert labels is not None
            register.add(labels)
        return SeriesSet(of=(register, np.arange(len(numbers))))

    def _changed(self, name: str) -> None:
        self._version += 1
        self._name_versions[name] = self._version
        if len(self._name_versions) > 2 * len(self._postings.get(label_sets.METRIC_NAME, ())) + 1000:
            self._name_versions.clear()
            self._selections.clear()
            self._registers.clear()
            self._registered[:] = NOT_ASKED

    def _version_for(self, matchers: Sequence[MatcherLike]) -> int:
        name = _metric_of(matchers)
        return self._name_versions.get(name, 0) if name else self._version

    def _matching(self, matchers: Sequence[MatcherLike]) -> Ints:
        """The series that satisfy all matchers: those named by plain values first, and of these each other matcher."""
        plain = [one for one in matchers if one.op == "=" and one.value]
        included = [_numbers(self._postings.get(one.name, {}).get(one.value, array("q"))) for one in plain]
        included.sort(key=len)
        chosen: Ints | None = None
        for others in included:
            chosen = np.sort(others) if chosen is None else chosen[self._membership(others)[chosen]]
        for matcher in (one for one in matchers if not (one.op == "=" and one.value)):
            chosen = self._narrowed(chosen, matcher)
        return np.array(sorted(self._numbers.values()), dtype=np.int64) if chosen is None else chosen

    def _narrowed(self, chosen: Ints | None, matcher: MatcherLike) -> Ints:
        """Those of some series, or of all, whose label a matcher accepts.

        By a look at each of them, or at each value of the label and the series that have it: whichever is less. A
        selector mostly names a metric, and `UUID!=""` would otherwise go through all series of a fleet for it.
        """
        accepts, values = self._patterns.acceptance(matcher), self._postings.get(matcher.name, {})
        if chosen is not None and LOOK_MICROSECONDS * len(chosen) < len(values) + NOTE_MICROSECONDS * len(self):
            known = self.labels
            is_meant = [accepts(one.get(matcher.name, "")) for at in chosen.tolist() if (one := known[at]) is not None]
            looked_at: Ints = chosen[np.array(is_meant, dtype=bool)]
            return looked_at
        takes_absent = accepts("")
        found = [_numbers(numbers) for value, numbers in values.items() if accepts(value) != takes_absent]
        named = self._membership(np.concatenate(found) if found else np.empty(0, dtype=np.int64))
        if chosen is None:
            chosen = np.array(sorted(self._numbers.values()), dtype=np.int64) if takes_absent else np.flatnonzero(named)
        narrowed: Ints = chosen[named[chosen] != takes_absent]
        return narrowed

    def _everyone(self) -> Mask:
        return np.ones(len(self.labels), dtype=bool)

    def _membership(self, numbers: Ints) -> np.typing.NDArray[np.bool_]:
        mask = np.zeros(len(self.labels), dtype=bool)
        mask[numbers] = True
        return mask


def _metric_of(matchers: Sequence[MatcherLike]) -> str:
    """The metric that a selector names; empty where it does not."""
    named = (one.value for one in matchers if one.name == label_sets.METRIC_NAME and one.op == "=" and one.value)
    return next(named, "")


def _numbers(posting: array[int]) -> Ints:
    return np.array(posting, dtype=np.int64)


def _any_lived(postings: Iterable[array[int]], lived: Mask) -> bool:
    return any(lived[_numbers(posting)].any() for posting in postings)


def _names(rows: Sequence[Pairs]) -> list[str]:
    return sorted({name for pairs in rows for name, _ in pairs})


def _values(rows: Sequence[Pairs], name: str) -> list[str]:
    return sorted({value for pairs in rows for own, value in pairs if own == name})


def _largest(counts: Iterable[tuple[str, int]], limit: int) -> Counts:
    return heapq.nlargest(limit, counts, key=lambda counted: counted[1])
