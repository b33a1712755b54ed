"""Writing a block: the samples of some hours in one file that never changes again.

The durable store gives it the columns of one metric after another, from the head or from smaller blocks. Series
of one metric with as many slots lie in one chunk; rows of times are kept once, however many series share
them. The file gets its name only when all of it is on the disk, so a crash leaves all or nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from watchkeeper.kit import files
from watchkeeper.store import codec, histograms
from watchkeeper.store.blocks import label_table
from watchkeeper.store.columns import NEVER_MS, Ints, is_absent, to_file

if TYPE_CHECKING:
    from watchkeeper.store.sample_columns import Columns

VERSION = 1
MAGIC = b"WKBLOCK\x01"
# Length and CRC-32 of the footer, which is the last thing before this.
TAIL = struct.Struct("<II8s")
SUFFIX = ".block"
UNFINISHED = ".unfinished"
# A block that nobody could read where another of the same time was written: kept for whoever can.
REPLACED = ".replaced"
# Samples in a chunk: some 100 kB on disk, 2 ms to unpack for a query that wants one row of it.
CHUNK_SAMPLES = 1 << 17


def block_name(start_ms: int, end_ms: int) -> str:
    return f"{start_ms}-{end_ms}{SUFFIX}"


class BlockWriter:
    """One block of times from `start_ms` up to, not including, `end_ms`; `finish` it, or `abandon` it."""

    def __init__(self, folder: Path, start_ms: int, end_ms: int, *, sources: tuple[str, ...] = ()) -> None:
        self.path = folder / block_name(start_ms, end_ms)
        self._scratch = self.path.with_suffix(UNFINISHED)
        self._start_ms, self._end_ms = start_ms, end_ms
        self._sources = sources
        self._file: BinaryIO = self._scratch.open("wb")
        self._file.write(MAGIC)
        self._labels = label_table.GrowingTable()
        self._places: list[Ints] = []
        self._chunks: list[tuple[int, int, int, int, int]] = []
        self._time_places: list[tuple[int, int, int]] = []
        self._time_of: dict[bytes, int] = {}
        self._waiting: dict[int, list[tuple[int, Ints]]] = {}
        self._histograms: dict[int, bytes] = {}
        self.samples = 0

    def add(self, columns: Columns) -> None:
        """Add the samples of some series that were not added before."""
        counts = np.count_nonzero(columns.times != NEVER_MS, axis=1)
        held = ~is_absent(columns.values) & (np.arange(columns.values.shape[1]) < counts[columns.groups][:, None])
        kept = held.any(axis=1)
        lengths = np.where(kept, counts[columns.groups], 0)
        for length in np.unique(lengths[kept]).tolist():
            rows = np.flatnonzero(lengths == length)
            # Neighbours on a node behave alike; groups come in the order of the nodes' first scrapes.
            rows = rows[np.argsort(columns.groups[rows], kind="stable")]
            step = max(1, CHUNK_SAMPLES // length)
            for at in range(0, len(rows), step):
                self._add_rows(columns, rows[at : at + step], held, length=length)

    def add_histograms(self, columns: Columns, find: Callable[[int], bytes | None]) -> None:
        """Add what marks among these samples stand for."""
        for mark in histograms.marks_in(columns.values) - self._histograms.keys():
            histogram = find(mark)
            if histogram is not None:
                self._histograms[mark] = histogram

    def _add_rows(self, columns: Columns, rows: Ints, held: np.typing.NDArray[np.bool_], *, length: int) -> None:
        mine, groups = held[rows, :length], columns.groups[rows]
        # Picked out by an array, so it is a copy.
        matrix = to_file(columns.values[rows, :length])
        chunk = self._write_chunk(codec.pack_floats(matrix), (len(rows), length))
        unique, inverse = np.unique(groups, return_inverse=True)
        times = columns.times[unique, :length]
        time_rows = np.array([self._time_row(row) for row in times], dtype=np.int64)[inverse]
        first = times[inverse, mine.argmax(axis=1)]
        last = times[inverse, length - 1 - mine[:, ::-1].argmax(axis=1)]
        self._places.append(np.stack([np.full(len(rows), chunk), np.arange(len(rows)), time_rows, first, last]))
        self._labels.extend(columns.series.pairs[row] for row in rows.tolist())
        self.samples += int(np.count_nonzero(mine))

    def _time_row(self, times: Ints) -> int:
        """The number of a row of times, which is kept once."""
        key = hashlib.blake2b(np.ascontiguousarray(times).tobytes(), digest_size=16).digest()
        known = self._time_of.get(key)
        if known is None:
            known = self._time_of[key] = len(self._time_places)
            self._time_places.append((0, 0, len(times)))
            waiting = self._waiting.setdefault(len(times), [])
            waiting.append((known, times.copy()))
            if len(waiting) * len(times) >= CHUNK_SAMPLES:
                self._write_times(len(times))
        return known

    def _write_times(self, length: int) -> None:
        waiting = self._waiting.pop(length)
        matrix = np.stack([times for _, times in waiting])
        chunk = self._write_chunk(codec.pack_ints(matrix), matrix.shape)
        for row, (number, _) in enumerate(waiting):
            self._time_places[number] = (chunk, row, length)

    def _write_chunk(self, packed: bytes, shape: tuple[int, int]) -> int:
        self._chunks.append((self._file.tell(), len(packed), zlib.crc32(packed), *shape))
        self._file.write(packed)
        return len(self._chunks) - 1

    def finish(self) -> Path:
        """Write what leads to the columns, make sure that everything is on the disk, and give the file its name."""
        for length in list(self._waiting):
            self._write_times(length)
        places = np.concatenate(self._places, axis=1) if self._places else np.empty((5, 0), dtype=np.int64)
        parts = {
            "labels": self._write_part(self._labels.finish().pack()),
            "series": self._write_part(codec.pack_ints(places)),
            "times": self._write_part(codec.pack_ints(_matrix(self._time_places, 3))),
            "chunks": self._write_part(codec.pack_ints(_matrix(self._chunks, 5))),
        }
        if self._histograms:
            # Earlier versions do not ask for this part.
            parts["histograms"] = self._write_part(histograms.pack(self._histograms))
        footer = {
            "version": VERSION,
            "start_ms": self._start_ms,
            "end_ms": self._end_ms,
            "series": self._labels.size,
            "samples": self.samples,
            "sources": self._sources,
            "parts": parts,
        }
        content = json.dumps(footer).encode()
        self._file.write(content + TAIL.pack(len(content), zlib.crc32(content), MAGIC))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        if self.path.exists():
            self.path.rename(self.path.with_suffix(REPLACED))
        self._scratch.rename(self.path)
        files.sync_folder(self.path.parent)
        return self.path

    def abandon(self) -> None:
        """Leave nothing behind."""
        self._file.close()
        self._scratch.unlink(missing_ok=True)

    def _write_part(self, content: bytes) -> tuple[int, int, int]:
        at = self._file.tell()
        self._file.write(content)
        return at, len(content), zlib.crc32(content)


def _matrix(rows: Sequence[tuple[int, ...]], width: int) -> Ints:
    """Rows of a table as columns: each column is packed as one row of like numbers."""
    return np.array(rows, dtype=np.int64).reshape(-1, width).T
