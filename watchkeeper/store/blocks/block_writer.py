"""Write a block: the samples of some hours in one immutable file.

Series of a metric with the same number of slots are in the same chunk; a row of times is stored once for all series
that share it. The file gets its name only after it is completely on disk, so a crash leaves a whole block or none.
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
# Length and CRC-32 of the footer, which is directly before this.
TAIL = struct.Struct("<II8s")
SUFFIX = ".block"
UNFINISHED = ".unfinished"
# An unreadable block that was replaced by another of the same time; it is kept for a manual repair.
REPLACED = ".replaced"
# Samples in a chunk: about 100 kB on disk, and 2 ms to decompress for a query of one row.
CHUNK_SAMPLES = 1 << 17


def block_name(start_ms: int, end_ms: int) -> str:
    return f"{start_ms}-{end_ms}{SUFFIX}"


class BlockWriter:
    """Writes one block with start ≤ time < end; call `finish` or `abandon` at the end."""

    def __init__(self, folder: Path, start_ms: int, end_ms: int, *, sources: tuple[str, ...] = ()) -> None:
        self.path = folder / block_name(start_ms, end_ms)
        self._scratch = self.path.with_suffix(UNFINISHED)
        self._start_ms, self._end_ms = start_ms, end_ms
        self._sources = sources
        self._file: BinaryIO = self._scratch.open("wb")
        self._file.write(MAGIC)
        self._labels = label_table.GrowingTable()
        self._series: list[Ints] = []
        self._chunks: list[tuple[int, int, int, int, int]] = []
        self._time_rows: list[tuple[int, int, int]] = []
        self._time_row_by_hash: dict[bytes, int] = {}
        self._pending_times: dict[int, list[tuple[int, Ints]]] = {}
        self._histograms: dict[int, bytes] = {}
        self.samples = 0

    def add(self, columns: Columns) -> None:
        counts = np.count_nonzero(columns.times != NEVER_MS, axis=1)
        has_sample = ~is_absent(columns.values) & (np.arange(columns.values.shape[1]) < counts[columns.groups][:, None])
        is_kept = has_sample.any(axis=1)
        lengths = np.where(is_kept, counts[columns.groups], 0)
        for length in np.unique(lengths[is_kept]).tolist():
            rows = np.flatnonzero(lengths == length)
            # Series of one node behave alike and compress well together; groups are numbered by node.
            rows = rows[np.argsort(columns.groups[rows], kind="stable")]
            step = max(1, CHUNK_SAMPLES // length)
            for start in range(0, len(rows), step):
                self._add_rows(columns, rows[start : start + step], has_sample, length=length)

    def add_histograms(self, columns: Columns, find: Callable[[int], bytes | None]) -> None:
        for mark in histograms.marks_in(columns.values) - self._histograms.keys():
            histogram = find(mark)
            if histogram is not None:
                self._histograms[mark] = histogram

    def _add_rows(self, columns: Columns, rows: Ints, has_sample: np.typing.NDArray[np.bool_], *, length: int) -> None:
        row_has_sample, groups = has_sample[rows, :length], columns.groups[rows]
        # Indexing with an array makes a copy.
        matrix = to_file(columns.values[rows, :length])
        chunk = self._write_chunk(codec.pack_floats(matrix), (len(rows), length))
        unique, inverse = np.unique(groups, return_inverse=True)
        times = columns.times[unique, :length]
        time_rows = np.array([self._time_row(row) for row in times], dtype=np.int64)[inverse]
        first = times[inverse, row_has_sample.argmax(axis=1)]
        last = times[inverse, length - 1 - row_has_sample[:, ::-1].argmax(axis=1)]
        self._series.append(np.stack([np.full(len(rows), chunk), np.arange(len(rows)), time_rows, first, last]))
        self._labels.extend(columns.series.pairs[row] for row in rows.tolist())
        self.samples += int(np.count_nonzero(row_has_sample))

    def _time_row(self, times: Ints) -> int:
        """The number of a row of times; equal rows are stored once."""
        key = hashlib.blake2b(np.ascontiguousarray(times).tobytes(), digest_size=16).digest()
        number = self._time_row_by_hash.get(key)
        if number is None:
            number = self._time_row_by_hash[key] = len(self._time_rows)
            self._time_rows.append((0, 0, len(times)))
            pending = self._pending_times.setdefault(len(times), [])
            pending.append((number, times.copy()))
            if len(pending) * len(times) >= CHUNK_SAMPLES:
                self._write_times(len(times))
        return number

    def _write_times(self, length: int) -> None:
        pending = self._pending_times.pop(length)
        matrix = np.stack([times for _, times in pending])
        chunk = self._write_chunk(codec.pack_ints(matrix), matrix.shape)
        for row, (number, _) in enumerate(pending):
            self._time_rows[number] = (chunk, row, length)

    def _write_chunk(self, packed: bytes, shape: tuple[int, int]) -> int:
        self._chunks.append((self._file.tell(), len(packed), zlib.crc32(packed), *shape))
        self._file.write(packed)
        return len(self._chunks) - 1

    def finish(self) -> Path:
        """Write labels and tables, sync the file to disk, and give it its name."""
        for length in list(self._pending_times):
            self._write_times(length)
        series = np.concatenate(self._series, axis=1) if self._series else np.empty((5, 0), dtype=np.int64)
        parts = {
            "labels": self._write_part(self._labels.finish().pack()),
            "series": self._write_part(codec.pack_ints(series)),
            "times": self._write_part(codec.pack_ints(_matrix(self._time_rows, 3))),
            "chunks": self._write_part(codec.pack_ints(_matrix(self._chunks, 5))),
        }
        if self._histograms:
            # Earlier versions ignore this part.
            parts["histograms"] = self._write_part(histograms.pack_table(self._histograms))
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
        self._file.close()
        self._scratch.unlink(missing_ok=True)

    def _write_part(self, content: bytes) -> tuple[int, int, int]:
        offset = self._file.tell()
        self._file.write(content)
        return offset, len(content), zlib.crc32(content)


def _matrix(rows: Sequence[tuple[int, ...]], width: int) -> Ints:
    """The columns of a table as rows, because similar numbers in a row compress well."""
    return np.array(rows, dtype=np.int64).reshape(-1, width).T
