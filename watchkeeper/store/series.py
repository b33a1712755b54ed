"""Label sets as numbers, so that label work is done once for each of them, whatever sets of series it is part of.

A `Register` gives label sets numbers and remembers what follows from each: what it becomes without its metric name,
which group it belongs to. A `SeriesSet` is rows of such numbers. The index makes a register for each metric that is
asked for; series come and go with every job, and a query then works on the few that are new and on arrays of numbers.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from watchkeeper.model import labels as label_sets
from watchkeeper.store.columns import Ints

T = TypeVar("T")
Pairs = tuple[tuple[str, str], ...]

# A small fleet remembers no more than it has series.
LEAST_LABEL_SETS, REMEMBERED_LABEL_SETS = 1 << 12, 1 << 15
# A set of series is shared by all queries that select it; what they derive from it is kept up to this many results.
REMEMBERED_DERIVATIONS = 256
# Sets of one register that are found again where they are made anew with the same rows.
REMEMBERED_SETS = 2
# Instead of the number of a series that there is not.
UNKNOWN = -1
NUMBER_BITS = 32
NUMBER_MASK = (1 << NUMBER_BITS) - 1
NOTHING: Ints = np.empty(0, dtype=np.int64)
# Queries of several threads share what they work out about labels.
LABEL_WORK = threading.RLock()


class LabelSets:
    """Label sets that queries work out: the same few come from every metric of a GPU, so each is kept once.

    Most are made within seconds, when rules are first asked: that is why forgetting all at the limit does little harm.
    """

    def __init__(self) -> None:
        self._limit = REMEMBERED_LABEL_SETS
        self._known: dict[Pairs, Pairs] = {}

    def fit(self, series: int) -> None:
        """Remember as much as a fleet with so many series needs."""
        self._limit = min(max(LEAST_LABEL_SETS, series), REMEMBERED_LABEL_SETS)

    def share(self, pairs: Pairs) -> Pairs:
        if len(self._known) >= self._limit:
            self._known.clear()
        return self._known.setdefault(pairs, pairs)


DERIVED = LabelSets()


@dataclass(slots=True)
class _Beside:
    """What a register remembers about another one."""

    # For each number the other's number of the same label set, and how many of the other were looked at.
    towards: Ints = field(default_factory=lambda: NOTHING)
    looked_at: int = 0
    # One register for the label sets of both, and for each number of ours and of theirs the number there.
    joined: LabelRegistry | None = None
    ours: Ints = field(default_factory=lambda: NOTHING)
    theirs: Ints = field(default_factory=lambda: NOTHING)
    met: LabelRegistry | None = None
    met_numbers: dict[int, int] = field(default_factory=dict)


class LabelRegistry:
    """Label sets, each with a number that stands for it, and what follows from each, worked out once.

    It only grows. Whoever made it begins another one when most of its label sets are gone.
    """

    __slots__ = ("__weakref__", "_beside", "_columns", "_labels", "_mapped", "_numbers", "_recent", "pairs")

    def __init__(self) -> None:
        self.pairs: list[Pairs] = []
        self._labels: list[label_sets.Labels | None] = []
        self._numbers: dict[Pairs, int] = {}
        self._columns: dict[Hashable, Ints] = {}
        self._mapped: dict[Hashable, LabelRegistry] = {}
        self._recent: tuple[SeriesSet, ...] = ()
        self._beside: weakref.WeakKeyDictionary[LabelRegistry, _Beside] = weakref.WeakKeyDictionary()

    def __len__(self) -> int:
        return len(self.pairs)

    def add(self, labels: label_sets.Labels) -> int:
        """A number for a new series, unlike all others; a register has either series or what `number` was asked for."""
        self._labels.append(labels)
        self.pairs.append(labels.pairs)
        return len(self.pairs) - 1

    def number(self, pairs: Pairs) -> int:
        """The number of a label set, given to it when it is new."""
        known = self._numbers.get(pairs)
        if known is None:
            with LABEL_WORK:
                known = self._numbers.get(pairs, len(self.pairs))
                if known == len(self.pairs):
                    shared = DERIVED.share(pairs)
                    self.pairs.append(shared)
                    self._numbers[shared] = known
        return known

    def _append(self, pairs: Pairs) -> int:
        self.pairs.append(pairs)
        return len(self.pairs) - 1

    def labels_of(self, numbers: Iterable[int]) -> list[label_sets.Labels]:
        self._labels.extend([None] * (len(self.pairs) - len(self._labels)))
        known, out = self._labels, []
        for number in numbers:
            labels = known[number]
            if labels is None:
                labels = known[number] = label_sets.Labels(self.pairs[number])
            out.append(labels)
        return out

    def column(self, key: Hashable, of: Callable[[Pairs], int]) -> Ints:
        """`of` each label set; the key names the function and all that it depends on."""
        known = self._columns.get(key, NOTHING)
        if len(known) < len(self.pairs):
            with LABEL_WORK:
                known = _extended(self._columns.pop(key, NOTHING), self.pairs, of)
                _forget_oldest(self._columns)
                self._columns[key] = known
        return known

    def mapped(
        self, key: Hashable, change: Callable[[Pairs], Pairs], *, are_apart: bool = False
    ) -> tuple[LabelRegistry, Ints]:
        """What the label sets become: the register of that, and the number of each there.

        `are_apart` says that no two become the same: then nothing has to be kept to find them by.
        """
        with LABEL_WORK:
            target = self._mapped.get(key)
            if target is None:
                _forget_oldest(self._mapped)
                target = self._mapped[key] = LabelRegistry()
            number = target._append if are_apart else target.number
            return target, self.column((target, "mapped"), lambda pairs: number(change(pairs)))

    def numbers_in(self, other: LabelRegistry) -> Ints:
        """For each number the number of the same label set in another register, or -1."""
        with LABEL_WORK:
            beside = self._with(other)
            mine, theirs = self.pairs[len(beside.towards) :], other.pairs[beside.looked_at :]
            if mine or theirs:
                new = np.array([other._numbers.get(pairs, -1) for pairs in mine], dtype=np.int64)
                found = np.concatenate([beside.towards, new])
                for number, pairs in enumerate(theirs, beside.looked_at):
                    same = self._numbers.get(pairs)
                    if same is not None:
                        found[same] = number
                beside.towards, beside.looked_at = found, len(other.pairs)
            return beside.towards

    def merge_with(self, other: LabelRegistry) -> tuple[LabelRegistry, Ints, Ints]:
        """One register for the label sets of both, and the numbers of each there."""
        with LABEL_WORK:
            beside = self._with(other)
            target = beside.joined = beside.joined or LabelRegistry()
            # Not among the columns, which would keep what was joined with a register that is gone.
            beside.ours = _extended(beside.ours, self.pairs, target.number)
            beside.theirs = _extended(beside.theirs, other.pairs, target.number)
            return target, beside.ours, beside.theirs

    def combine_with(self, other: LabelRegistry, numbers: Ints, *, partners: Ints) -> SeriesSet:
        """Each label set together with that of its partner in another register."""
        with LABEL_WORK:
            beside = self._with(other)
            target, known = beside.met or LabelRegistry(), beside.met_numbers
            beside.met = target
            couples = (numbers << NUMBER_BITS | partners).tolist()
            for couple in couples:
                if couple not in known:
                    both = self.pairs[couple >> NUMBER_BITS] + other.pairs[couple & NUMBER_MASK]
                    known[couple] = target.number(tuple(sorted(both)))
            return target.select(np.array([known[couple] for couple in couples], dtype=np.int64))

    def select(self, ids: Ints) -> SeriesSet:
        """The set with these label sets as its rows: the one that was made before, where it has the same."""
        for known in self._recent:
            if np.array_equal(known.ids, ids):
                return known
        made = SeriesSet(of=(self, ids))
        self._recent = (made, *self._recent[: REMEMBERED_SETS - 1])
        return made

    def release(self) -> None:
        """Forget the sets that were made of this: they hold it as it holds them, until the garbage collector comes."""
        with LABEL_WORK:
            self._recent = ()
            beside = [made for one in self._beside.values() for made in (one.joined, one.met) if made is not None]
            for made in (*self._mapped.values(), *beside):
                made.release()

    def _with(self, other: LabelRegistry) -> _Beside:
        return self._beside.setdefault(other, _Beside())


class SeriesSet:
    """An immutable list of label sets that remembers what was worked out about it.

    Made of a list, or of a register and the numbers of its rows there. `has_one_name` says that all series are of one
    metric.
    """

    __slots__ = ("__weakref__", "_beside", "_derived", "_of", "_pairs", "has_one_name")

    def __init__(
        self,
        pairs: Sequence[Pairs] | None = None,
        *,
        of: tuple[LabelRegistry, Ints] | None = None,
        has_one_name: bool = False,
    ) -> None:
        self.has_one_name = has_one_name
        self._pairs = pairs
        self._of = of
        self._derived: dict[Hashable, object] = {}
        self._beside: weakref.WeakKeyDictionary[SeriesSet, dict[Hashable, object]] | None = None

    def __len__(self) -> int:
        return len(self._of[1]) if self._of is not None else len(self._pairs or ())

    @property
    def pairs(self) -> Sequence[Pairs]:
        if self._pairs is None:
            known = self.register.pairs
            self._pairs = [known[number] for number in self.ids.tolist()]
        return self._pairs

    @pairs.setter
    def pairs(self, equal: Sequence[Pairs]) -> None:
        self._pairs = equal

    @property
    def register(self) -> LabelRegistry:
        return self._numbered()[0]

    @property
    def ids(self) -> Ints:
        """The number of each row in the register: rows with the same number have the same labels."""
        return self._numbered()[1]

    def release(self) -> None:
        """Nobody will ask for this set any more: see `Register.let_go`."""
        if self._of is not None:
            self._of[0].release()

    def subset(self, rows: Ints) -> SeriesSet:
        return SeriesSet(of=(self.register, self.ids[rows]), has_one_name=self.has_one_name)

    def labels_of(self, rows: Iterable[int]) -> list[label_sets.Labels]:
        return self.register.labels_of(self.ids[np.array(list(rows), dtype=np.int64)].tolist())

    def cached(self, key: Hashable, build: Callable[[], T]) -> T:
        """What `build` answers, worked out once per key; the key names the build and all it depends on."""
        known = self._derived.get(key)
        if known is None:
            known = build()
            _forget_oldest(self._derived)
            self._derived[key] = known
        return known  # type: ignore[return-value]  # the key stands for the type

    def derive(self, key: Hashable, build: Callable[[Sequence[Pairs]], T]) -> T:
        """`build(self.pairs)`, worked out once per key."""
        return self.cached(key, lambda: build(self.pairs))

    def derive_with(self, other: SeriesSet, key: Hashable, build: Callable[[], T]) -> T:
        """What follows from this set and another one, worked out once per key while both are there."""
        if self._beside is None:
            self._beside = weakref.WeakKeyDictionary()
        mine = self._beside.setdefault(other, {})
        if key not in mine:
            mine[key] = build()
        return mine[key]  # type: ignore[return-value]  # the key stands for the type

    def mapped(self, key: Hashable, change: Callable[[Pairs], Pairs], *, are_apart: bool = False) -> SeriesSet:
        """The set with each label set changed, row by row, worked out once per key and label set."""

        def build() -> SeriesSet:
            target, numbers = self.register.mapped(key, change, are_apart=are_apart)
            return target.select(numbers[self.ids])

        return self.cached(("mapped", key), build)

    def _numbered(self) -> tuple[LabelRegistry, Ints]:
        if self._of is None:
            register = LabelRegistry()
            ids = np.array([register.number(pairs) for pairs in self._pairs or ()], dtype=np.int64)
            self._of = register, ids
        return self._of


def _extended(known: Ints, pairs: Sequence[Pairs], of: Callable[[Pairs], int]) -> Ints:
    """A column with what `of` says about the label sets that it does not have yet."""
    new = [of(one) for one in pairs[len(known) :]]
    return np.concatenate([known, np.array(new, dtype=np.int64)]) if new else known


def _forget_oldest(known: dict[Hashable, T]) -> None:
    """Make room for one more."""
    if len(known) >= REMEMBERED_DERIVATIONS:
        known.pop(next(iter(known)), None)
