"""The label sets of a block as a table: a column for each label name, a number for each distinct value.

A matcher looks at the distinct values and then at numbers, so that no label set is made for a series that
nobody selects. `block_writer` makes one, `block` reads it.
"""

from __future__ import annotations

import itertools
import json
import struct
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from watchkeeper import errors
from watchkeeper.store import codec
from watchkeeper.store.columns import Ints
from watchkeeper.store.index import MatcherLike
from watchkeeper.store.series import Pairs

# A series without the label has this number, which stands for the empty value.
NO_VALUE = 0
NO_ROW = 0xFFFF_FFFF
# Type codes of arrays of one, two and four bytes.
NARROWEST, WIDER = "B", {"B": "H", "H": "I"}
HEADER = struct.Struct("<II")

Numbers = npt.NDArray[np.unsignedinteger[Any]]


class _Column:
    """The number of each series for one label: all of them, or those of the few series that have the label.

    A fleet has dozens of label names, of which a series has a dozen; a day has many blocks.
    """

    def __init__(self, numbers: Numbers) -> None:
        holders = np.flatnonzero(numbers)
        self._holders: npt.NDArray[np.uint32] | None = None
        self._numbers = numbers
        if holders.size * (np.uint32().itemsize + numbers.itemsize) < numbers.nbytes:
            # One more at the end, which no row has, so that a search ends at some place.
            self._holders = np.append(holders, NO_ROW).astype(np.uint32)
            self._numbers = np.append(numbers[holders], NO_VALUE).astype(numbers.dtype)

    def at(self, rows: Ints) -> Numbers:
        if self._holders is None:
            return self._numbers[rows]
        places = np.searchsorted(self._holders, rows.astype(np.uint32))
        return np.where(self._holders[places] == rows, self._numbers[places], NO_VALUE)


class LabelTable:
    """`numbers[name][s]` is the place of series s in `values[name]`."""

    def __init__(self, size: int, values: dict[str, list[str]], numbers: Iterable[Numbers]) -> None:
        self.size = size
        self.values = values
        self._columns = {name: _Column(held) for name, held in zip(values, numbers, strict=True)}
        self._pairs = {name: [None, *((name, value) for value in held[1:])] for name, held in values.items()}

    def matching(
        self, matchers: Sequence[MatcherLike], acceptance: Callable[[MatcherLike], Callable[[str], bool]]
    ) -> Ints:
        """The series that satisfy all matchers."""
        chosen = np.arange(self.size)
        for matcher in matchers:
            accepts = acceptance(matcher)
            if matcher.name in self.values:
                accepted = np.fromiter(map(accepts, self.values[matcher.name]), dtype=bool)
                chosen = chosen[accepted[self._columns[matcher.name].at(chosen)]]
            elif not accepts(""):
                return chosen[:0]
        return chosen

    def pairs_of(self, rows: Ints) -> list[Pairs]:
        columns = []
        for name, column in self._columns.items():
            numbers = column.at(rows)
            # Series of one metric have the same few labels.
            if numbers.any():
                columns.append(list(map(self._pairs[name].__getitem__, numbers.tolist())))
        if not columns:
            return [()] * len(rows)
        return [tuple([pair for pair in row if pair is not None]) for row in zip(*columns, strict=True)]

    def names_of(self, rows: Ints) -> set[str]:
        return {name for name, column in self._columns.items() if column.at(rows).any()}

    def values_of(self, name: str, rows: Ints) -> set[str]:
        if name not in self._columns:
            return set()
        held = self.values[name]
        return {held[number] for number in np.unique(self._columns[name].at(rows)).tolist()} - {""}

    def pack(self) -> bytes:
        words = codec.compress(json.dumps(self.values, ensure_ascii=False, separators=(",", ":")).encode())
        every = np.arange(self.size)
        packed = [codec.pack_ints(column.at(every)[None, :].astype(np.int64)) for column in self._columns.values()]
        sizes = np.array([len(one) for one in packed], dtype="<u4").tobytes()
        return HEADER.pack(self.size, len(words)) + words + sizes + b"".join(packed)

    @classmethod
    def unpack(cls, packed: bytes) -> LabelTable:
        try:
            size, length = HEADER.unpack_from(packed)
            at = HEADER.size + length
            values: dict[str, list[str]] = json.loads(codec.decompress(packed[HEADER.size : at]))
            sizes = np.frombuffer(packed, dtype="<u4", count=len(values), offset=at).tolist()
            at += 4 * len(values)
            ends = [at, *(at + np.cumsum(sizes)).tolist()]
            parts = (packed[start:end] for start, end in itertools.pairwise(ends))
            # As narrow as they may be, and one after the other: a label has a few values, and a block many series.
            numbers = (
                codec.unpack_ints(part)[0].astype(np.min_scalar_type(len(held)))
                for part, held in zip(parts, values.values(), strict=True)
            )
            return cls(size, values, numbers)
        except (struct.error, ValueError, KeyError) as error:
            raise errors.StoreError(f"a table of labels cannot be read: {error}") from error


class GrowingTable:
    """A table while label sets are added to it; it keeps none of them.

    Its columns are as narrow as their numbers: most labels of a fleet have less than 256 values.
    """

    def __init__(self) -> None:
        self.size = 0
        self._known: dict[str, dict[str, int]] = {}
        self._columns: dict[str, array[int]] = {}

    def extend(self, series: Iterable[Pairs]) -> None:
        for pairs in series:
            for name, value in pairs:
                if name not in self._known:
                    self._known[name], self._columns[name] = {"": NO_VALUE}, array(NARROWEST)
                places, column = self._known[name], self._columns[name]
                self._fill(column)
                number = places.setdefault(value, len(places))
                try:
                    column.append(number)
                except OverflowError:
                    column = self._columns[name] = array(WIDER[column.typecode], column)
                    column.append(number)
            self.size += 1

    def finish(self) -> LabelTable:
        names = sorted(self._known)
        for name in names:
            self._fill(self._columns[name])
        numbers = (np.frombuffer(held := self._columns[name], dtype=held.typecode) for name in names)
        return LabelTable(self.size, {name: list(self._known[name]) for name in names}, numbers)

    def _fill(self, column: array[int]) -> None:
        """Series since the label was last met do not have it."""
        if len(column) < self.size:
            column.frombytes(bytes(column.itemsize * (self.size - len(column))))
