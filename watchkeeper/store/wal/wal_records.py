"""Read the records of WAL segments as columns; damage between records is reported and skipped.

`wal_reader` prepares them for the head; `durable` and `backup` use their times and damage.
"""

from __future__ import annotations

import itertools
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import orjson

from watchkeeper import errors
from watchkeeper.model import labels as label_sets
from watchkeeper.store import codec, histograms
from watchkeeper.store.columns import NEVER_MS, Floats, Ints
from watchkeeper.store.corruption import Corruption
from watchkeeper.store.series import Pairs
from watchkeeper.store.wal.wal import MAGIC, PARTS, RECORD, RECORD_MARK, SUFFIX

# A record of a large fleet has a few hundred kB.
TAIL_BYTES = 4 << 20

Pair = tuple[str, str]
# A series is `1,[["gpu","0"],["node","n1`, without the removed end.
BETWEEN_SERIES, BEFORE_PAIRS, BETWEEN_PAIRS, INSIDE_PAIR = '"]]],[', ",[", '"],["', '","'
NAME = f"{label_sets.METRIC_NAME}{INSIDE_PAIR}"
NAMED = f'["{NAME}'
OPEN, CLOSE, QUOTE, COMMA = b'[]",'
# The series of a GPU are close together, so dropped texts are rarely needed again.
MAX_CACHED_TEXTS = 1 << 12


class SharedPairs(dict[str, Pair]):
    """Pairs by their text; each is created at its first use."""

    def __init__(self) -> None:
        super().__init__()
        self._pair_by_pair: dict[Pair, Pair] = {}
        self.pair_lists = _PairLists(self)

    def __missing__(self, text: str) -> Pair:
        name, _, value = text.partition(INSIDE_PAIR)
        pair = self[text] = self.share((name, value))
        return pair

    def share(self, pair: Pair) -> Pair:
        return self._pair_by_pair.setdefault(pair, pair)


class _PairLists(dict[str, Pairs]):
    def __init__(self, shared: SharedPairs) -> None:
        super().__init__()
        self._pair = shared.__getitem__

    def __missing__(self, text: str) -> Pairs:
        if len(self) >= MAX_CACHED_TEXTS:
            self.clear()
        pairs = self[text] = tuple(map(self._pair, text.split(BETWEEN_PAIRS))) if text else ()
        return pairs


def decode_label_sets(content: bytes, shared: SharedPairs) -> dict[int, Pairs]:
    """Label sets by id, as `wal` writes them; ValueError if the text is invalid.

    A large fleet has a quarter of a million label sets with mostly repeated pairs: so the text is split into the texts
    of pairs, and each distinct text becomes one pair that all its series share. The label sets of a GPU differ only in
    the metric name: the text before and after the name is decoded once for all of them.
    """
    if not _has_plain_separators(content):
        return {
            id: tuple([shared.share((name, value)) for name, value in pairs]) for id, pairs in orjson.loads(content)
        }
    label_sets_by_id, pair_lists = {}, shared.pair_lists
    for series in content.decode().removeprefix("[[").removesuffix('"]]]]').split(BETWEEN_SERIES):
        id, _, pairs = series.partition(BEFORE_PAIRS)
        before, name_mark, after = pairs.partition(NAMED)
        if name_mark:
            name, _, after = after.partition(BETWEEN_PAIRS)
            label_sets_by_id[int(id)] = (*pair_lists[before[2:-3]], shared[NAME + name], *pair_lists[after])
        else:
            label_sets_by_id[int(id)] = pair_lists[pairs[2:]]
    return label_sets_by_id


def _has_plain_separators(content: bytes) -> bool:
    """Whether every separator in the text is JSON syntax, and none is part of a name or a value.

    That is the case without escapes, without texts that begin with a bracket (their opening quote would look like a
    closing one), and without series that have no labels.
    """
    characters = np.frombuffer(content, dtype=np.uint8)
    is_open, is_close = characters == OPEN, characters == CLOSE
    is_quote_at_start = (characters[1:-1] == QUOTE) & is_close[2:] & (is_open[:-2] | (characters[:-2] == COMMA))
    return not (b"\\" in content or is_quote_at_start.any() or (is_open[:-1] & is_close[1:]).any())


Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class WalRecord:
    """One record, which is the batch of one sync, as columns."""

    definitions: dict[int, Pairs]
    layouts: list[tuple[int, str, list[int]]]
    scrapes: Ints
    masks: Bytes
    # The bits of floats.
    changed: Ints
    ids: Ints
    times: Ints
    values: Floats
    histograms: dict[int, bytes]


def decode(payload: bytes, shared: SharedPairs) -> WalRecord:
    """Decode a record; StoreError if the payload is invalid."""
    try:
        sizes = PARTS.unpack_from(payload)
        ends = list(itertools.accumulate(sizes, initial=PARTS.size))
        parts = [memoryview(payload)[start:end] for start, end in itertools.pairwise(ends)]
        singles = np.frombuffer(parts[5], dtype="<i8").reshape(3, -1)
        return WalRecord(
            definitions=decode_label_sets(bytes(parts[0]), shared),
            layouts=orjson.loads(parts[1]),
            scrapes=np.frombuffer(parts[2], dtype="<i8").reshape(5, -1),
            masks=np.frombuffer(parts[3], dtype=np.uint8),
            changed=np.frombuffer(parts[4], dtype="<i8"),
            ids=singles[0],
            times=singles[1],
            values=singles[2].view("<f8"),
            histograms=histograms.unpack_table(payload[ends[-1] :]) if len(payload) > ends[-1] else {},
        )
    except (struct.error, ValueError) as error:
        raise errors.StoreError(f"a WAL record cannot be read: {error}") from error


def records(path: Path, shared: SharedPairs | None = None) -> Iterator[WalRecord | Corruption]:
    """The records of a segment in order, and damage between them; a truncated end is a Corruption without problem."""
    shared = SharedPairs() if shared is None else shared
    offset = 0
    try:
        with path.open("rb") as file:
            magic = file.read(len(MAGIC))
            if magic != MAGIC:
                problem = "" if len(magic) < len(MAGIC) else "not a WAL segment, or from a later version"
                yield Corruption(path, 0, problem)
                return
            # One at a time, because reading a whole segment would allocate as much memory as its size.
            offset = len(MAGIC)
            while (record := _read_next(file, shared)) is not None:
                yield record
                offset = file.tell()
        yield from _scan_rest(path, offset, shared)
    except OSError as error:
        yield Corruption(path, offset, f"the rest of the segment cannot be read: {error.strerror}")


def _read_next(file: BinaryIO, shared: SharedPairs) -> WalRecord | None:
    """The next record of a file; None at its end, or if the bytes are not a valid record."""
    header = file.read(RECORD.size)
    if len(header) < RECORD.size:
        return None
    mark, length, checksum = RECORD.unpack(header)
    if mark != RECORD_MARK:
        return None
    packed = file.read(length)
    return _decode_checked(packed, checksum, shared) if len(packed) == length else None


def _scan_rest(path: Path, offset: int, shared: SharedPairs) -> Iterator[WalRecord | Corruption]:
    """The records and damage of a segment from `offset` on, where the next record is invalid."""
    content = path.read_bytes() if offset < path.stat().st_size else b""
    while offset < len(content):
        record, end = _read_record_at(content, offset, shared)
        if record is not None:
            yield record
            offset = end
            continue
        next_offset = _find_record(content, offset + 1, shared)
        if next_offset is None:
            yield Corruption(
                path, offset, "" if end > len(content) else f"{len(content) - offset} bytes are not a valid record"
            )
            return
        yield Corruption(path, offset, f"{next_offset - offset} bytes are not a valid record")
        offset = next_offset


def _read_record_at(content: bytes, offset: int, shared: SharedPairs) -> tuple[WalRecord | None, int]:
    """The record at an offset, or None, and its end."""
    if len(content) - offset < RECORD.size:
        return None, offset + RECORD.size
    mark, length, checksum = RECORD.unpack_from(content, offset)
    start, end = offset + RECORD.size, offset + RECORD.size + length
    if mark != RECORD_MARK:
        return None, offset
    return (_decode_checked(content[start:end], checksum, shared) if end <= len(content) else None), end


def _decode_checked(packed: bytes, checksum: int, shared: SharedPairs) -> WalRecord | None:
    if zlib.crc32(packed) != checksum:
        return None
    try:
        return decode(codec.decompress(packed), shared)
    except errors.StoreError:
        return None


def _find_record(content: bytes, offset: int, shared: SharedPairs) -> int | None:
    while (offset := content.find(RECORD_MARK, offset)) >= 0:
        if _read_record_at(content, offset, shared)[0] is not None:
            return offset
        offset += 1
    return None


def newest_sample_ms(record: WalRecord) -> int:
    newest_times = [int(times.max()) for times in (record.scrapes[1], record.times) if len(times)]
    return max(newest_times, default=-NEVER_MS)


def last_sample_ms(path: Path) -> int:
    """The newest time in the last valid record near the end of a segment."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            content = file.read()
    except OSError:
        # Reading its records reports the error.
        return -NEVER_MS
    offset = len(content)
    while (offset := content.rfind(RECORD_MARK, 0, offset)) >= 0:
        record, _ = _read_record_at(content, offset, SharedPairs())
        if record is not None and newest_sample_ms(record) > -NEVER_MS:
            return newest_sample_ms(record)
    return -NEVER_MS


def first_ms_from(folder: Path, at_ms: int) -> int | None:
    earliest_times = [
        int(times[times >= at_ms].min())
        for path in sorted(folder.glob(f"*{SUFFIX}"))
        for record in records(path)
        if isinstance(record, WalRecord)
        for times in (record.scrapes[1], record.times)
        if (times >= at_ms).any()
    ]
    return min(earliest_times, default=None)
