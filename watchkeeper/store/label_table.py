"""The label sets of a block as a table: a column for each label name, a number for each distinct value.

A matcher looks at the distinct values and then at numbers, so that no label set is made for a series that
nobody selects. `block_writer` makes one, `block` reads it.
"""

from __future__ import annotations

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
HEADER = struct.Struct("<II")

Numbers = npt.NDArray[np.unsignedinteger[Any]]


class LabelTable:
    """`numbers[name][s]` is the place of series s in `values[name]`."""

    def __init__(self, size: int, values: dict[str, list[str]], numbers: dict[str, Numbers]) -> None:
        self.size = size
        self.values = values
        # As narrow as they may be: a label has a few values, and a block thousands of series.
        self._numbers = {name: held.astype(np.min_scalar_type(len(values[name]))) for name, held in numbers.items()}
        self._pairs = {name: [None, *((name, value) for value in held[1:])] for name, held in values.items()}

    def matching(
        self, matchers: Sequence[MatcherLike], acceptance: Callable[[MatcherLike], Callable[[str], bool]]
    ) -> Ints:
        """The series that satisfy all matchers."""
        chosen = np.ones(self.size, dtype=bool)
        for matcher in matchers:
            accepts = acceptance(matcher)
            if matcher.name not in self.values:
                chosen &= accepts("")
                continue
            accepted = np.fromiter(map(accepts, self.values[matcher.name]), dtype=bool)
            chosen &= accepted[self._numbers[matcher.name]]
        return np.flatnonzero(chosen)

    def pairs_of(self, rows: Ints) -> list[Pairs]:
        columns = [
            list(map(self._pairs[name].__getitem__, numbers[rows].tolist())) for name, numbers in self._numbers.items()
        ]
        if not columns:
            return [()] * len(rows)
        return [tuple([pair for pair in row if pair is not None]) for row in zip(*columns, strict=True)]

    def names_of(self, rows: Ints) -> set[str]:
        return {name for name, numbers in self._numbers.items() if numbers[rows].any()}

    def values_of(self, name: str, rows: Ints) -> set[str]:
        if name not in self._numbers:
            return set()
        held = self.values[name]
        return {held[number] for number in np.unique(self._numbers[name][rows]).tolist()} - {""}

    def pack(self) -> bytes:
        words = codec.compress(json.dumps(self.values, ensure_ascii=False, separators=(",", ":")).encode())
        packed = [codec.pack_ints(row[None, :].astype(np.int64)) for row in self._numbers.values()]
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
            numbers = {}
            for name, width in zip(values, sizes, strict=True):
                numbers[name] = codec.unpack_ints(packed[at : at + width])[0].astype(np.uint32)
                at += width
        except (struct.error, ValueError, KeyError) as error:
            raise errors.StoreError(f"a table of labels cannot be read: {error}") from error
        return cls(size, values, numbers)


class GrowingTable:
    """A table while label sets are added to it; it keeps none of them."""

    def __init__(self) -> None:
        self.size = 0
        self._known: dict[str, dict[str, int]] = {}
        self._columns: dict[str, array[int]] = {}

    def extend(self, series: Iterable[Pairs]) -> None:
        for pairs in series:
            for name, value in pairs:
                if name not in self._known:
                    self._known[name], self._columns[name] = {"": NO_VALUE}, array("I")
                places, column = self._known[name], self._columns[name]
                self._fill(column)
                column.append(places.setdefault(value, len(places)))
            self.size += 1

    def finish(self) -> LabelTable:
        names = sorted(self._known)
        for name in names:
            self._fill(self._columns[name])
        numbers = {name: np.frombuffer(self._columns[name], dtype=np.uint32) for name in names}
        return LabelTable(self.size, {name: list(self._known[name]) for name in names}, numbers)

    def _fill(self, column: array[int]) -> None:
        """Series since the label was last met do not have it."""
        if len(column) < self.size:
            column.extend([NO_VALUE] * (self.size - len(column)))
