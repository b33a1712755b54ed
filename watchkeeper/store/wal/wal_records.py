"""The records of a log's segments: each as columns, damage between them named and stepped over.

`wal_reader` makes of them what goes into the head; `durable` and `backup` look for times and damage.
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
from watchkeeper.store import codec, histograms
from watchkeeper.store.columns import NEVER_MS, Floats, Ints
from watchkeeper.store.corruption import Corruption
from watchkeeper.store.series import Pairs
from watchkeeper.store.wal import wal_labels
from watchkeeper.store.wal.wal import MAGIC, MARK, PARTS, RECORD, SUFFIX
from watchkeeper.store.wal.wal_labels import SharedPairs

# A record of a large fleet has some hundred kB.
LOOKED_AT_BYTES = 4 << 20
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class WalRecord:
    """One synced batch as columns."""

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
    """StoreError if the payload is not a record of ours."""
    try:
        sizes = PARTS.unpack_from(payload)
        ends = list(itertools.accumulate(sizes, initial=PARTS.size))
        parts = [memoryview(payload)[start:end] for start, end in itertools.pairwise(ends)]
        singles = np.frombuffer(parts[5], dtype="<i8").reshape(3, -1)
        return WalRecord(
            definitions=wal_labels.read(bytes(parts[0]), shared),
            layouts=orjson.loads(parts[1]),
            scrapes=np.frombuffer(parts[2], dtype="<i8").reshape(5, -1),
            masks=np.frombuffer(parts[3], dtype=np.uint8),
            changed=np.frombuffer(parts[4], dtype="<i8"),
            ids=singles[0],
            times=singles[1],
            values=singles[2].view("<f8"),
            histograms=histograms.unpack(payload[ends[-1] :]) if len(payload) > ends[-1] else {},
        )
    except (struct.error, ValueError) as error:
        raise errors.StoreError(f"a record of the log cannot be read: {error}") from error


def records(path: Path, shared: SharedPairs | None = None) -> Iterator[WalRecord | Corruption]:
    """The records of a segment in order, with what is wrong between them; a torn end is a Damage without problem."""
    shared = SharedPairs() if shared is None else shared
    at = 0
    try:
        with path.open("rb") as file:
            begins = file.read(len(MAGIC))
            if begins != MAGIC:
                problem = "" if len(begins) < len(MAGIC) else "this is not a segment of ours, or of a later version"
                yield Corruption(path, 0, problem)
                return
            # One at a time: the system would have to clear as much memory as a segment is long.
            at = len(MAGIC)
            while (record := _next_of(file, shared)) is not None:
                yield record
                at = file.tell()
        yield from _behind(path, at, shared)
    except OSError as error:
        yield Corruption(path, at, f"the rest of the segment cannot be read: {error.strerror}")


def _next_of(file: BinaryIO, shared: SharedPairs) -> WalRecord | None:
    """The record that a file goes on with; None at its end, and where something is wrong."""
    head = file.read(RECORD.size)
    if len(head) < RECORD.size:
        return None
    mark, length, checksum = RECORD.unpack(head)
    if mark != MARK:
        return None
    packed = file.read(length)
    return _unpacked(packed, checksum, shared) if len(packed) == length else None


def _behind(path: Path, at: int, shared: SharedPairs) -> Iterator[WalRecord | Corruption]:
    """What a segment has from where it is no longer a record after another."""
    content = path.read_bytes() if at < path.stat().st_size else b""
    while at < len(content):
        record, end = _record_at(content, at, shared)
        if record is not None:
            yield record
            at = end
            continue
        following = _next_record(content, at + 1, shared)
        if following is None:
            yield Corruption(path, at, "" if end > len(content) else f"{len(content) - at} bytes are not a good record")
            return
        yield Corruption(path, at, f"{following - at} bytes are not a good record")
        at = following


def _record_at(content: bytes, at: int, shared: SharedPairs) -> tuple[WalRecord | None, int]:
    """The record that starts here, or None, and where it ends or would end."""
    if len(content) - at < RECORD.size:
        return None, at + RECORD.size
    mark, length, checksum = RECORD.unpack_from(content, at)
    start, end = at + RECORD.size, at + RECORD.size + length
    if mark != MARK:
        return None, at
    return (_unpacked(content[start:end], checksum, shared) if end <= len(content) else None), end


def _unpacked(packed: bytes, checksum: int, shared: SharedPairs) -> WalRecord | None:
    if zlib.crc32(packed) != checksum:
        return None
    try:
        return decode(codec.decompress(packed), shared)
    except errors.StoreError:
        return None


def _next_record(content: bytes, at: int, shared: SharedPairs) -> int | None:
    while (at := content.find(MARK, at)) >= 0:
        if _record_at(content, at, shared)[0] is not None:
            return at
        at += 1
    return None


def newest_ms(record: WalRecord) -> int:
    newest = [int(times.max()) for times in (record.scrapes[1], record.times) if len(times)]
    return max(newest, default=-NEVER_MS)


def last_sample_ms(path: Path) -> int:
    """The newest time in the last good record of a segment, as far as one is found near its end."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LOOKED_AT_BYTES))
            content = file.read()
    except OSError:
        # Whoever reads its records says so.
        return -NEVER_MS
    at = len(content)
    while (at := content.rfind(MARK, 0, at)) >= 0:
        record, _ = _record_at(content, at, SharedPairs())
        if record is not None and newest_ms(record) > -NEVER_MS:
            return newest_ms(record)
    return -NEVER_MS


def first_ms_from(folder: Path, at_ms: int) -> int | None:
    """The earliest time not before `at_ms` of which the log has a sample."""
    found = [
        int(times[times >= at_ms].min())
        for path in sorted(folder.glob(f"*{SUFFIX}"))
        for record in records(path)
        if isinstance(record, WalRecord)
        for times in (record.scrapes[1], record.times)
        if (times >= at_ms).any()
    ]
    return min(found, default=None)
