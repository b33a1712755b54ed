"""The label sets of a block as a table: a column for each label name, with a number for each distinct value.

A matcher checks the distinct values and then compares numbers, so that label sets are created only for selected series.
`block_writer` writes the table, `block` reads it.
"""

from __future__ import annotations

import itertools
import json
import struct
from array import array
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from watchkeeper import errors
from watchkeeper.kit import allowance
from watchkeeper.store import codec
from watchkeeper.store.columns import Ints
from watchkeeper.store.index import Matchers, build_predicate
from watchkeeper.store.series import Pairs

# The number of a series without the label; it means the empty value.
NO_VALUE = 0
NO_ROW = 0xFFFF_FFFF
# Type codes of arrays of one, two and four bytes.
NARROWEST_TYPE, WIDER_TYPE = "B", {"B": "H", "H": "I"}
HEADER = struct.Struct("<II")

Numbers = npt.NDArray[np.unsignedinteger[Any]]


class _Column:
    """The number of each series for one label; most columns are sparse, and store only the series with the label."""

    def __init__(self, numbers: Numbers) -> None:
        rows_with_label = np.flatnonzero(numbers)
        self._rows_with_label: npt.NDArray[np.uint32] | None = None
        self._numbers = numbers
        if rows_with_label.size * (np.uint32().itemsize + numbers.itemsize) < numbers.nbytes:
            # A sentinel at the end, so that a search always finds a position.
            self._rows_with_label = np.append(rows_with_label, NO_ROW).astype(np.uint32)
            self._numbers = np.append(numbers[rows_with_label], NO_VALUE).astype(numbers.dtype)

    def take(self, rows: Ints) -> Numbers:
        if self._rows_with_label is None:
            return self._numbers[rows]
        positions = np.searchsorted(self._rows_with_label, rows.astype(np.uint32))
        return np.where(self._rows_with_label[positions] == rows, self._numbers[positions], NO_VALUE)


class LabelTable:
    """Label sets by column; `numbers[name][s]` is the position of the value of series s in `values[name]`."""

    def __init__(self, size: int, values: dict[str, list[str]], numbers: Iterable[Numbers]) -> None:
        self.size = size
        self.values = values
        self._columns = {name: _Column(label_numbers) for name, label_numbers in zip(values, numbers, strict=True)}
        self._pairs = {name: [None, *((name, text) for text in texts[1:])] for name, texts in values.items()}

    def find_matching(self, matchers: Matchers) -> Ints:
        rows = np.arange(self.size)
        for matcher in matchers:
            accepts = build_predicate(matcher)
            if matcher.name in self.values:
                accepted = np.fromiter(map(accepts, allowance.watch(self.values[matcher.name])), dtype=bool)
                rows = rows[accepted[self._columns[matcher.name].take(rows)]]
            elif not accepts(""):
                return rows[:0]
        return rows

    def pairs_of(self, rows: Ints) -> list[Pairs]:
        columns = []
        for name, column in self._columns.items():
            numbers = column.take(rows)
            # Series of one metric have the same few labels, so most columns are skipped.
            if numbers.any():
                columns.append(list(map(self._pairs[name].__getitem__, numbers.tolist())))
        if not columns:
            return [()] * len(rows)
        return [tuple([pair for pair in row if pair is not None]) for row in zip(*columns, strict=True)]

    def names_of(self, rows: Ints) -> set[str]:
        return {name for name, column in self._columns.items() if column.take(rows).any()}

    def values_of(self, name: str, rows: Ints) -> set[str]:
        if name not in self._columns:
            return set()
        label_values = self.values[name]
        return {label_values[number] for number in np.unique(self._columns[name].take(rows)).tolist()} - {""}

    def pack(self) -> bytes:
        values_part = codec.compress(json.dumps(self.values, ensure_ascii=False, separators=(",", ":")).encode())
        rows = np.arange(self.size)
        columns = [codec.pack_ints(column.take(rows)[None, :].astype(np.int64)) for column in self._columns.values()]
        sizes = np.array([len(column) for column in columns], dtype="<u4").tobytes()
        return HEADER.pack(self.size, len(values_part)) + values_part + sizes + b"".join(columns)

    @classmethod
    def unpack(cls, packed: bytes) -> LabelTable:
        try:
            size, length = HEADER.unpack_from(packed)
            offset = HEADER.size + length
            values: dict[str, list[str]] = json.loads(codec.decompress(packed[HEADER.size : offset]))
            sizes = np.frombuffer(packed, dtype="<u4", count=len(values), offset=offset).tolist()
            offset += 4 * len(values)
            ends = [offset, *(offset + np.cumsum(sizes)).tolist()]
            parts = (packed[start:end] for start, end in itertools.pairwise(ends))
            # In the narrowest type and one at a time, to save memory: a label has few values, but a block many series.
            numbers = (
                codec.unpack_ints(part)[0].astype(np.min_scalar_type(len(label_values)))
                for part, label_values in zip(parts, values.values(), strict=True)
            )
            return cls(size, values, numbers)
        except (struct.error, ValueError, KeyError) as error:
            raise errors.StoreError(f"a table of labels cannot be read: {error}") from error


class GrowingTable:
    """Builds a table from label sets; a column has one byte for each series until a label has more values."""

    def __init__(self) -> None:
        self.size = 0
        self._number_by_value: dict[str, dict[str, int]] = {}
        self._columns: dict[str, array[int]] = {}

    def extend(self, series: Iterable[Pairs]) -> None:
        for pairs in series:
            for name, value in pairs:
                if name not in self._number_by_value:
                    self._number_by_value[name], self._columns[name] = {"": NO_VALUE}, array(NARROWEST_TYPE)
                numbers, column = self._number_by_value[name], self._columns[name]
                self._pad(column)
                number = numbers.setdefault(value, len(numbers))
                try:
                    column.append(number)
                except OverflowError:
                    column = self._columns[name] = array(WIDER_TYPE[column.typecode], column)
                    column.append(number)
            self.size += 1

    def finish(self) -> LabelTable:
        names = sorted(self._number_by_value)
        for name in names:
            self._pad(self._columns[name])
        numbers = (np.frombuffer(column := self._columns[name], dtype=column.typecode) for name in names)
        return LabelTable(self.size, {name: list(self._number_by_value[name]) for name in names}, numbers)

    def _pad(self, column: array[int]) -> None:
        """Pad a column with NO_VALUE for the series since its last entry."""
        if len(column) < self.size:
            column.frombytes(bytes(column.itemsize * (self.size - len(column))))
