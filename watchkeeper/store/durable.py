"""The durable store: a head in memory, a WAL, and blocks, queried as one.

The hub calls `sync` each second and `maintain` each minute; both wait for the disk, so call them in a thread. An
accepted sample is in the head at once, in the WAL within a second, and in a block soon after its half hour has passed.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TypeAlias, TypeVar

import numpy as np

from watchkeeper import errors
from watchkeeper.config import settings
from watchkeeper.kit import clock, durations, memory
from watchkeeper.kit.logs import fields
from watchkeeper.model import labels as label_sets
from watchkeeper.store import backup, inventory, quarantine
from watchkeeper.store.blocks import compaction
from watchkeeper.store.blocks.block import Block, ChunkCache
from watchkeeper.store.blocks.block_writer import REPLACED, SUFFIX, UNFINISHED, BlockWriter, block_name
from watchkeeper.store.columns import ABSENT, NEVER_MS, Floats, Ints, is_absent
from watchkeeper.store.corruption import Corruption
from watchkeeper.store.head.head import MAX_AHEAD_MS, Head
from watchkeeper.store.histograms import MAX_MERGED_BYTES, Cells, find_histograms
from watchkeeper.store.index import Matchers
from watchkeeper.store.sample_columns import Columns, UnionCache, join
from watchkeeper.store.series import SeriesSet
from watchkeeper.store.wal import wal_prefetch, wal_reader, wal_records, wal_replay
from watchkeeper.store.wal.wal import WriteAheadLog

log = logging.getLogger(__name__)
T = TypeVar("T")

# While a query runs, the head may drop samples of this much more time than at its start.
QUERY_MARGIN_MS = 60_000
MAX_REPORTED_DAMAGES = 100
# How often `maintain` is called.
MAINTENANCE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """The limits of a store; `max_bytes` is for blocks and WAL together, None means no limit."""

    retention_ms: int = 15 * 86_400_000
    memory_ms: int = 2 * 3_600_000
    max_bytes: int | None = None
    max_series: int = 1_000_000
    late_ms: int = 600_000
    block_ms: int = 1_800_000
    uses_wal: bool = True
    cache_bytes: int = 128 << 20

    @classmethod
    def from_settings(cls, query: settings.QuerySettings) -> StoreSettings:
        max_mebibytes = query.max_disk_mebibytes
        return cls(
            retention_ms=durations.parse_ms(query.retention),
            memory_ms=durations.parse_ms(query.memory),
            max_bytes=None if max_mebibytes is None else max_mebibytes << 20,
            max_series=query.max_series,
            late_ms=durations.parse_ms(query.out_of_order),
            block_ms=durations.parse_ms(query.block),
            uses_wal=query.wal,
            cache_bytes=query.cache_mebibytes << 20,
        )


@dataclass(frozen=True, slots=True)
class _BlockList:
    """The blocks in the order of time, and the time up to which they are complete; None without a block."""

    blocks: tuple[Block, ...] = ()
    end_ms: int | None = None


@dataclass(frozen=True, slots=True)
class StoreStatus:
    series: int
    blocks: int
    block_bytes: int
    log_bytes: int
    replayed_samples: int
    lost_samples: int
    unlogged_samples: int
    torn_bytes: int
    damages: int


def open_store(path: Path, limits: StoreSettings, *, clock_ms: Callable[[], int]) -> DurableStore:
    """Open the store in a directory and load its samples; StoreError if the directory cannot be used."""
    try:
        return DurableStore(path, limits, clock_ms=clock_ms)
    except OSError as error:
        raise errors.StoreError(
            f"samples cannot be stored here: {error.strerror}",
            where=str(error.filename or path),
            remedy="Allow this user to read and write it, or choose another directory",
        ) from error


class DurableStore:
    """Implements `interfaces.Appender` and the queries of `Head`; every method may be called from any thread."""

    def __init__(self, path: Path, limits: StoreSettings, *, clock_ms: Callable[[], int]) -> None:
        self.path = path
        self._limits = limits
        self.retention_ms, self.late_ms = limits.retention_ms, limits.late_ms
        self._clock_ms = clock_ms
        self._block_folder, self._wal_folder = path / "blocks", path / "wal"
        for folder in (self._block_folder, self._wal_folder):
            folder.mkdir(parents=True, exist_ok=True)
            # Raises for an unreadable folder; `glob` would silently find nothing.
            os.listdir(folder)
        self.head = Head(
            # Samples must stay in memory until their block is written.
            retention_ms=max(limits.memory_ms, 2 * (limits.block_ms + limits.late_ms)),
            max_series=limits.max_series,
            late_ms=limits.late_ms,
            clock_ms=clock_ms,
        )
        self.metadata, self.exemplars = self.head.metadata, self.head.exemplars
        self.series_id, self.active_series = self.head.series_id, self.head.active_series
        self.append, self.append_scrape = self.head.append, self.head.append_scrape
        self.cardinality = self.head.cardinality
        self.damages: list[Corruption] = []
        self._damage_count = 0
        self._cache, self._unions = ChunkCache(limits.cache_bytes), UnionCache()
        self._unmergeable: set[Path] = set()
        self._maintenance_lock = threading.Lock()
        self._jump_guard = clock.ClockJumpGuard(MAINTENANCE_SECONDS)
        self._inventory = inventory.Inventory(path)
        for damage in self._inventory.damages:
            self._report(damage)
        self._block_list = self._open_blocks()
        self._loaded_ms = self._blocks_end_ms
        self.head.accept_from(self._blocks_end_ms)
        try:
            self.metadata.load(self.path / "metadata.json")
        except errors.StoreError as error:
            self._report(Corruption(self.path / "metadata.json", 0, error.problem))
        self._replayed = wal_replay.replay(wal_prefetch.read(path, since_ms=self._loaded_ms), self.head)
        # The replay buffered slots for whole rows: 0.5 KiB for each series.
        memory.release_free_memory()
        for damage in self._replayed.damages:
            self._report(damage)
        if self._replayed.torn_bytes:
            log.warning("WAL truncated at an incomplete record", extra=fields(bytes=self._replayed.torn_bytes))
        self._wal = WriteAheadLog(self._wal_folder, lock=self.head.lock, labels_of=self.head.labels_of)
        self._wal.segments = self._replayed.segments
        self._wal.before_remove = self._inventory.forget
        self._wal.packed_histograms = self.head.histograms.packed
        self.head.log = self._wal if limits.uses_wal else None
        # A block ends in the past of the clock that wrote it; samples may be a little ahead, like the clocks of agents.
        if self._blocks_end_ms > clock_ms() or self._newest_stored_ms() > clock_ms() + MAX_AHEAD_MS:
            self.quarantine_future_samples()

    def __len__(self) -> int:
        return len(self.head)

    @property
    def newest_ms(self) -> int | None:
        return self.head.newest_ms

    def sync(self) -> int:
        """Write accepted samples to disk; return how many. StoreError if the write fails."""
        with self._disk_errors():
            count = self._wal.sync()
            # After the samples, so that a failure of these files does not delay them.
            self._inventory.update(lambda: (self._block_list.blocks, list(self._wal.segments)))
            self.metadata.save(self.path / "metadata.json", write=self._inventory.write_metadata)
            return count

    # Querying

    def select(self, matchers: Matchers, start_ms: int, end_ms: int, *, max_samples: int | None = None) -> Columns:
        block_list = self._block_list
        floor_ms = self._memory_start_ms(block_list)
        if start_ms + 1 >= floor_ms:
            return self.head.select(matchers, start_ms, end_ms, max_samples=max_samples)
        parts, limit = [], max_samples
        until_ms = min(end_ms, floor_ms - 1)
        for block in block_list.blocks:
            if block.end_ms > start_ms + 1 and block.start_ms <= until_ms:
                select = partial(Block.select, matchers=matchers, start_ms=start_ms, end_ms=until_ms, max_samples=limit)
                part = self._read_block(block, select)
                if part is not None:
                    parts.append(part)
                    limit = None if limit is None else max(0, limit - part.values.size)
        if end_ms >= floor_ms or not parts:
            since_ms = max(start_ms, floor_ms - 1)
            parts.append(self.head.select(matchers, since_ms, max(end_ms, since_ms), max_samples=limit))
        return parts[0] if len(parts) == 1 else join(parts, self._unions)

    def find_histograms(self, values: Floats) -> Cells | None:
        packed_by_mark = self.head.histograms.packed
        blocks = [block for block in self._block_list.blocks if block.has_histograms]
        if not packed_by_mark and not blocks:
            return None

        def find_packed(mark: int) -> bytes | None:
            packed = packed_by_mark.get(mark)
            for block in blocks if packed is None else ():
                packed = packed or (self._read_block(block, lambda source: source.histograms) or {}).get(mark)
            return packed

        return find_histograms(values, find_packed)

    def cached_series_count(self, matchers: Matchers, start_ms: int) -> int | None:
        is_in_memory = start_ms + 1 >= self._memory_start_ms(self._block_list)
        return self.head.cached_series_count(matchers, start_ms) if is_in_memory else None

    def latest(self, matchers: Matchers, start_ms: int, end_ms: int) -> tuple[SeriesSet, Ints, Floats]:
        if start_ms + 1 >= self._memory_start_ms(self._block_list):
            return self.head.latest(matchers, start_ms, end_ms)
        columns = self.select(matchers, start_ms, end_ms)
        count, width = columns.values.shape
        if not width:
            return columns.series, np.zeros(count, dtype=np.int64), np.full(count, ABSENT)
        has_sample = ~is_absent(columns.values) & (columns.times != NEVER_MS)[columns.groups]
        slots = width - 1 - has_sample[:, ::-1].argmax(axis=1)
        rows = np.arange(count)
        values = np.where(has_sample.any(axis=1), columns.values[rows, slots], ABSENT)
        return columns.series, columns.times[columns.groups, slots], values

    def series(self, matchers: Matchers, start_ms: int, end_ms: int) -> list[label_sets.Labels]:
        label_sets_found = dict.fromkeys(self.head.series(matchers, start_ms, end_ms))
        for pairs in self._read_blocks(start_ms, end_ms, lambda block: block.series(matchers, start_ms, end_ms)):
            label_sets_found.update(dict.fromkeys(map(label_sets.Labels, pairs)))
        return list(label_sets_found)

    def label_names(self, matchers: Matchers, start_ms: int, end_ms: int) -> list[str]:
        in_memory = self.head.label_names(matchers, start_ms, end_ms)
        in_blocks = self._read_blocks(start_ms, end_ms, lambda block: block.label_names(matchers, start_ms, end_ms))
        return sorted(set(in_memory).union(*in_blocks))

    def label_values(self, name: str, matchers: Matchers, start_ms: int, *, end_ms: int) -> list[str]:
        in_memory = self.head.label_values(name, matchers, start_ms, end_ms=end_ms)
        in_blocks = self._read_blocks(
            start_ms, end_ms, lambda block: block.label_values(name, matchers, start_ms, end_ms=end_ms)
        )
        return sorted(set(in_memory).union(*in_blocks))

    def warnings(self) -> tuple[str, ...]:
        """One warning for each damaged file, because query results may be incomplete."""
        return tuple(f"samples may be missing: {damage}" for damage in self.damages[:10])

    def status(self) -> StoreStatus:
        blocks = self._block_list.blocks
        return StoreStatus(
            series=len(self.head),
            blocks=len(blocks),
            block_bytes=sum(block.bytes for block in blocks),
            log_bytes=sum(segment.bytes for segment in self._wal.segments),
            replayed_samples=self._replayed.samples,
            lost_samples=self._replayed.lost,
            unlogged_samples=self._wal.unlogged,
            torn_bytes=self._replayed.torn_bytes,
            damages=self._damage_count,
        )

    # Maintenance

    def maintain(self, now_ms: int) -> None:
        """Write blocks that are due, merge small blocks, remove expired blocks; StoreError if the disk fails."""
        with self._maintenance_lock, self._disk_errors():
            blocks_before = self._block_list
            oldest_ms = now_ms - self._limits.retention_ms if self._jump_guard.may_remove(now_ms / 1000) else -NEVER_MS
            # Also before writing: on a full disk, removed blocks free the space for new ones.
            self._remove_expired(oldest_ms)
            self._write_due_blocks(now_ms)
            self._merge_blocks()
            self._remove_expired(oldest_ms)
            for block in self._block_list.blocks:
                block.release_unused()
            if self._block_list is not blocks_before:
                old_unions, self._unions = self._unions, UnionCache()
                old_unions.release()
                # Writing needs much more memory than what stays in use.
                memory.release_free_memory()

    def quarantine_future_samples(self) -> quarantine.QuarantinedSamples:
        """Quarantine samples after the current time, because the clock was set back and current samples are refused.

        Samples in memory and WAL up to now become a block, and later samples become blocks in quarantine. StoreError if
        the disk fails; then call it again.
        """
        now_ms = self._clock_ms()
        with self._maintenance_lock, self._disk_errors(), quarantine.create_folder(self.path, now_ms) as folder:
            ended_segments, newest_ms = self._wal.rotate(), self._newest_stored_ms()
            count = _copy_to_block(self.head, folder, max(self._blocks_end_ms, now_ms + 1), end_ms=newest_ms + 1)
            first_future_ms = self.head.drop_future_samples()
            count += self._quarantine_blocks(first_future_ms, folder)
            first_ms = self.head.first_ms_from(self._blocks_end_ms)
            if first_ms is not None and first_ms < first_future_ms:
                self._write_block(
                    max(self._blocks_end_ms, first_ms // self._limits.block_ms * self._limits.block_ms), first_future_ms
                )
            self._wal.remove(ended_segments)
            self._unions, self._loaded_ms = UnionCache(), self._blocks_end_ms
        log.warning("samples ahead of the clock quarantined", extra=fields(samples=count, folder=folder))
        return quarantine.QuarantinedSamples(count, newest_ms - first_future_ms + 1, folder)

    def _newest_stored_ms(self) -> int:
        """The newest time in memory, in the WAL and in blocks."""
        segment_times = [segment.newest_ms for segment in self._wal.segments]
        return max(self.newest_ms or 0, (self._block_list.end_ms or 0) - 1, *segment_times)

    def _quarantine_blocks(self, first_future_ms: int, folder: Path) -> int:
        """Move blocks at or after a time to the folder, split the block across it; return how many samples moved."""
        blocks, count = [], 0
        self._inventory.forget(block.path for block in self._block_list.blocks if block.end_ms > first_future_ms)
        for block in self._block_list.blocks:
            if block.start_ms < first_future_ms < block.end_ms:
                kept_parts = self._split_block(block, first_future_ms, folder)
                blocks += kept_parts
                count += block.samples - sum(part.samples for part in kept_parts)
            elif block.end_ms <= first_future_ms:
                blocks.append(block)
            else:
                block.path.rename(folder / block.path.name)
                count += block.samples
        self._block_list = _BlockList(tuple(blocks), max((block.end_ms for block in blocks), default=None))
        self.head.accept_from(self._blocks_end_ms)
        return count

    def _split_block(self, block: Block, at_ms: int, folder: Path) -> list[Block]:
        """Keep the part of a block before a time, and move the rest to the folder; a damaged block moves as a whole."""
        try:
            path = compaction.merge([block], self._block_folder, until_ms=at_ms)
            compaction.merge([block], folder, since_ms=at_ms)
        except errors.StoreError as error:
            self._report(Corruption(block.path, 0, error.problem))
            block.path.rename(folder / block.path.name)
            return []
        self._remove([block])
        return [self._open_block(path)]

    def back_up(self, target: Path, *, data: Path, journal: Path) -> backup.BackupSummary:
        """Back up all samples and the journal to a new directory; compaction waits meanwhile."""
        self.sync()
        with self._maintenance_lock:
            return backup.back_up(backup.StoreLocations(data, self.path, journal), target)

    def close(self) -> None:
        """Write everything to disk and close all files; a write error is logged, not raised."""
        try:
            self.sync()
        except errors.StoreError as error:
            log.error("write of the last samples failed", extra=fields(error=error))
        with self._maintenance_lock:
            self.head.log = None
            self._wal.close()
            for block in self._block_list.blocks:
                block.close()

    @property
    def _blocks_end_ms(self) -> int:
        return -NEVER_MS if self._block_list.end_ms is None else self._block_list.end_ms

    def _write_due_blocks(self, now_ms: int) -> None:
        block_ms = self._limits.block_ms
        while True:
            first_ms = self._first_unwritten_ms()
            if first_ms is None:
                return
            start_ms = max(self._blocks_end_ms, first_ms // block_ms * block_ms)
            end_ms = (start_ms // block_ms + 1) * block_ms
            if now_ms < end_ms + self._limits.late_ms:
                return
            self._write_block(start_ms, end_ms)

    def _first_unwritten_ms(self) -> int | None:
        if self.head.incomplete_before_ms > self._blocks_end_ms:
            return wal_records.first_ms_from(self._wal_folder, self._blocks_end_ms)
        return self.head.first_ms_from(self._blocks_end_ms)

    def _load_from_wal(self, start_ms: int, end_ms: int) -> Head:
        """A head with the samples of a time that memory dropped before its block was written."""
        head = Head(retention_ms=NEVER_MS, max_series=self._limits.max_series)
        wal_replay.replay(wal_reader.read(self._wal_folder, since_ms=start_ms, until_ms=end_ms), head)
        return head

    def _write_block(self, start_ms: int, end_ms: int) -> None:
        """Write a block of the head's samples; later samples for its time are refused."""
        self.head.close_before(end_ms)
        self.head.has_blocks = False
        source = self._load_from_wal(start_ms, end_ms) if start_ms < self.head.incomplete_before_ms else self.head
        _copy_to_block(source, self._block_folder, start_ms, end_ms=end_ms)
        self.head.has_blocks = True
        block = self._open_block(self._block_folder / block_name(start_ms, end_ms))
        self._block_list = _BlockList((*self._block_list.blocks, block), end_ms)
        self.head.unsaved_from_ms = end_ms
        self._wal.rotate()
        self._wal.remove_before(end_ms)

    def _merge_blocks(self) -> None:
        while True:
            # A table of histograms is read as a whole, so blocks with a large one do not grow.
            candidates = [block for block in self._block_list.blocks if block.path not in self._unmergeable]
            blocks = [block for block in candidates if block.histogram_bytes <= MAX_MERGED_BYTES]
            sources = compaction.find_merge(blocks, self._limits.block_ms, until_ms=self._block_list.end_ms or 0)
            if not sources:
                return
            try:
                merged = self._open_block(compaction.merge(sources, self._block_folder))
            except errors.StoreError as error:
                self._unmergeable.update(source.path for source in sources)
                log.warning("block merge failed", extra=fields(error=error))
                continue
            remaining = [block for block in self._block_list.blocks if block not in sources]
            blocks = sorted([*remaining, merged], key=attrgetter("start_ms"))
            self._block_list = _BlockList(tuple(blocks), self._block_list.end_ms)
            self._remove(sources)

    def _remove_expired(self, oldest_ms: int) -> None:
        # Segments are this old only if blocks could not be written for as long.
        self._wal.remove_before(oldest_ms)
        expired = compaction.find_expired(
            self._block_list.blocks,
            oldest_ms=oldest_ms,
            max_bytes=self._limits.max_bytes,
            other_bytes=sum(segment.bytes for segment in self._wal.segments),
        )
        quarantine.remove_expired(self.path, oldest_ms=oldest_ms)
        self._remove_unreadable(oldest_ms)
        self._inventory.expire(oldest_ms)
        if expired:
            remaining = tuple(block for block in self._block_list.blocks if block not in expired)
            self._block_list = _BlockList(remaining, self._block_list.end_ms)
            self._remove(expired)

    def _remove_unreadable(self, oldest_ms: int) -> None:
        """Remove expired blocks that are unreadable, or were replaced because they are."""
        in_use = {block.path for block in self._block_list.blocks}
        for path in self._block_folder.glob("*-*"):
            end_ms = path.stem.rpartition("-")[2]
            is_expired = end_ms.isdigit() and int(end_ms) <= oldest_ms
            if is_expired and path not in in_use and path.suffix in (SUFFIX, REPLACED):
                self._inventory.forget([path])
                path.unlink(missing_ok=True)

    def _remove(self, blocks: Sequence[Block]) -> None:
        if blocks:
            self._inventory.forget(block.path for block in blocks)
        for block in blocks:
            block.path.unlink(missing_ok=True)
            self._cache.drop_file(block.path)

    def _open_blocks(self) -> _BlockList:
        for path in self._block_folder.glob(f"*{UNFINISHED}"):
            path.unlink()
        blocks_found: list[Block] = []
        for path in self._block_folder.glob(f"*{SUFFIX}"):
            try:
                blocks_found.append(self._open_block(path))
            except errors.StoreError as error:
                self._report(Corruption(path, 0, error.problem))
        for path in self._block_folder.glob(f"*{REPLACED}"):
            self._report(Corruption(path, 0, "the block is unreadable; it was replaced with samples from the WAL"))
        superseded = compaction.find_superseded(blocks_found)
        self._remove(superseded)
        blocks = sorted((block for block in blocks_found if block not in superseded), key=attrgetter("start_ms"))
        return _BlockList(tuple(blocks), max((block.end_ms for block in blocks), default=None))

    def _open_block(self, path: Path) -> Block:
        return Block(path, cache=self._cache, report=self._report)

    def _memory_start_ms(self, block_list: _BlockList) -> int:
        """The time from which on the head is complete; before it, the blocks are."""
        newest_ms = self.head.newest_ms
        if block_list.end_ms is None:
            return -NEVER_MS
        if newest_ms is None:
            return block_list.end_ms
        return min(block_list.end_ms, max(self._loaded_ms, newest_ms - self.head.retention_ms + QUERY_MARGIN_MS))

    def _read_blocks(self, start_ms: int, end_ms: int, read: Callable[[Block], T]) -> Iterator[T]:
        """The results of `read` for the readable blocks in a time range."""
        for block in self._block_list.blocks:
            if block.start_ms <= end_ms and block.end_ms > start_ms:
                result = self._read_block(block, read)
                if result is not None:
                    yield result

    def _read_block(self, block: Block, read: Callable[[Block], T]) -> T | None:
        """The result of `read` for a block; None, and a reported damage, if the block cannot be read."""
        try:
            return read(block)
        except errors.StoreError as error:
            self._report(Corruption(block.path, 0, error.problem))
            return None

    def _report(self, damage: Corruption) -> None:
        if damage in self.damages:
            return
        self._damage_count += 1
        if len(self.damages) < MAX_REPORTED_DAMAGES:
            self.damages.append(damage)
        log.error("store file damaged", extra=fields(damage=str(damage)))

    @contextmanager
    def _disk_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise errors.StoreError(
                f"samples cannot be written: {error.strerror}",
                where=str(self.path),
                now="They stay in memory, and queries include them",
                remedy="Free disk space, or shorten [query] retention" if is_full else "Check the disk",
            ) from error


# A store that a query engine reads and writes; `Head` documents the methods.
SampleStore: TypeAlias = Head | DurableStore


def _copy_to_block(head: Head, folder: Path, start_ms: int, *, end_ms: int) -> int:
    """Write a block of a head's samples in a time range; return how many."""
    writer = BlockWriter(folder, start_ms, end_ms)
    try:
        for name in head.metric_names():
            columns = head.metric_columns(name, start_ms - 1, end_ms - 1)
            writer.add(columns)
            if head.histograms.packed:
                writer.add_histograms(columns, head.histograms.packed.get)
        writer.finish()
    except BaseException:
        writer.abandon()
        raise
    return writer.samples
