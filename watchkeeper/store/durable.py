"""The durable store: a head in memory, its log, and its past in blocks, asked as one.

The hub opens one from its data directory (`open_store`), gives it to the query engine, and calls `sync` each second
and `maintain` now and then; both wait for the disk and belong into a thread. What is accepted is in the head at
once, in the log within a second, and in a block soon after its half hour has passed. Whoever asks is not told
where samples lie.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from watchkeeper import errors
from watchkeeper.config import settings
from watchkeeper.kit import clock_jump, durations, memory
from watchkeeper.kit.logs import fields
from watchkeeper.model import histograms as histogram_model
from watchkeeper.model import labels as label_sets
from watchkeeper.model import samples as sample_model
from watchkeeper.store import backup, quarantine
from watchkeeper.store.blocks import compaction
from watchkeeper.store.blocks.block import Block, ChunkCache
from watchkeeper.store.blocks.block_writer import REPLACED, SUFFIX, UNFINISHED, BlockWriter, block_name
from watchkeeper.store.columns import ABSENT, NEVER_MS, Floats, Ints, is_absent
from watchkeeper.store.corruption import Corruption
from watchkeeper.store.head.head import MAX_AHEAD_MS, Head
from watchkeeper.store.histograms import MAX_MERGED_BYTES, Cells, find_histograms
from watchkeeper.store.index import Cardinality, MatcherLike, Patterns
from watchkeeper.store.interfaces import Appended
from watchkeeper.store.sample_columns import Columns, UnionCache, join
from watchkeeper.store.series import SeriesSet
from watchkeeper.store.wal import wal_prefetch, wal_reader, wal_records, wal_replay
from watchkeeper.store.wal.wal import WriteAheadLog

log = logging.getLogger(__name__)
T = TypeVar("T")

# While a query runs, the head may clear away this much more than when it began.
MARGIN_MS = 60_000
MAX_DAMAGES = 100
# How often `maintain` is called.
UPKEEP_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """How long and how much is kept; `max_bytes` counts blocks and log together, None means no limit."""

    retention_ms: int = 15 * 86_400_000
    memory_ms: int = 2 * 3_600_000
    max_bytes: int | None = None
    max_series: int = 1_000_000
    late_ms: int = 600_000
    block_ms: int = 1_800_000
    has_log: bool = True
    cache_bytes: int = 128 << 20

    @classmethod
    def of(cls, query: settings.QuerySettings) -> StoreSettings:
        """As the section [query] has it."""
        most = query.max_disk_mebibytes
        return cls(
            retention_ms=durations.parse_ms(query.retention),
            memory_ms=durations.parse_ms(query.memory),
            max_bytes=None if most is None else most << 20,
            max_series=query.max_series,
            late_ms=durations.parse_ms(query.out_of_order),
            block_ms=durations.parse_ms(query.block),
            has_log=query.wal,
            cache_bytes=query.cache_mebibytes << 20,
        )


@dataclass(frozen=True, slots=True)
class _Past:
    """The blocks in the order of time, and up to where they have everything; None before the first."""

    blocks: tuple[Block, ...] = ()
    cut_ms: int | None = None


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """What a store holds and what went wrong with it."""

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
    """The store in a directory, with everything that was kept there; StoreError if the directory cannot be used."""
    try:
        return DurableStore(path, limits, clock_ms=clock_ms)
    except OSError as error:
        raise errors.StoreError(
            f"samples cannot be kept here: {error.strerror}",
            where=str(error.filename or path),
            remedy="Let this user read and write it, or choose another directory",
        ) from error


class DurableStore:
    """Implements `interfaces.SampleStore`; every method may be called from any thread."""

    def __init__(self, path: Path, limits: StoreSettings, *, clock_ms: Callable[[], int]) -> None:
        self.path = path
        self._limits = limits
        self._clock_ms = clock_ms
        self._block_folder, self._log_folder = path / "blocks", path / "wal"
        for folder in (self._block_folder, self._log_folder):
            folder.mkdir(parents=True, exist_ok=True)
            # Said here: `glob` finds nothing in a folder that it may not read.
            os.listdir(folder)
        self.head = Head(
            # What a block has must stay until it surely has it.
            retention_ms=max(limits.memory_ms, 2 * (limits.block_ms + limits.late_ms)),
            max_series=limits.max_series,
            late_ms=limits.late_ms,
            clock_ms=clock_ms,
        )
        self.metadata, self.exemplars = self.head.metadata, self.head.exemplars
        self.damages: list[Corruption] = []
        self._damage_count = 0
        self._cache, self._patterns, self._unions = ChunkCache(limits.cache_bytes), Patterns(), UnionCache()
        self._unmergeable: set[Path] = set()
        self._upkeep = threading.Lock()
        self._doubt = clock_jump.ClockJumpGuard(UPKEEP_SECONDS)
        self._past = self._open_blocks()
        self._loaded_ms = self._cut_ms
        self.head.accept_from(self._cut_ms)
        self._load_metadata()
        self._replayed = wal_replay.replay(wal_prefetch.read(path, since_ms=self._loaded_ms), self.head)
        # Slots were gathered for whole rows: 0.5 KiB for each series.
        memory.release_free_memory()
        for damage in self._replayed.damages:
            self._report(damage)
        if self._replayed.torn_bytes:
            log.warning("The log ends in the middle of a record", extra=fields(bytes=self._replayed.torn_bytes))
        self._log = WriteAheadLog(self._log_folder, lock=self.head.lock, labels_of=self.head.labels_of)
        self._log.segments = self._replayed.segments
        self._log.known_histograms = self.head.histograms.known
        self.head.log = self._log if limits.has_log else None
        # A block ends in the past of the clock that wrote it; samples may be a little ahead, as clocks of agents are.
        if self._cut_ms > clock_ms() or self._reached_ms() > clock_ms() + MAX_AHEAD_MS:
            self.quarantine_future_samples()

    def __len__(self) -> int:
        return len(self.head)

    @property
    def newest_ms(self) -> int | None:
        return self.head.newest_ms

    @property
    def retention_ms(self) -> int:
        return self._limits.retention_ms

    @property
    def late_ms(self) -> int:
        return self._limits.late_ms

    # Appending

    def series_id(self, labels: label_sets.Labels) -> int:
        return self.head.series_id(labels)

    def append_scrape(
        self,
        group_key: Hashable,
        series_ids: Sequence[int] | Ints,
        at_ms: int,
        values: Sequence[float] | Floats,
        *,
        now_ms: int | None = None,
    ) -> Appended:
        return self.head.append_scrape(group_key, series_ids, at_ms, values, now_ms=now_ms)

    def active_series(self, group_key: Hashable, since_ms: int) -> dict[int, label_sets.Labels]:
        return self.head.active_series(group_key, since_ms)

    def append(
        self,
        samples: Iterable[sample_model.Sample | histogram_model.HistogramSample],
        *,
        group_key: str | None = None,
        now_ms: int | None = None,
    ) -> Appended:
        return self.head.append(samples, group_key=group_key, now_ms=now_ms)

    def sync(self) -> int:
        """Bring what was accepted to the disk; returns how many samples. StoreError if the disk refuses."""
        with self._disk_errors():
            count = self._log.sync()
            # Behind the samples: they do not wait for a file that refuses.
            self.metadata.save(self.path / "metadata.json")
            return count

    # Asking

    def select(
        self, matchers: Sequence[MatcherLike], start_ms: int, end_ms: int, *, max_samples: int | None = None
    ) -> Columns:
        past = self._past
        floor_ms = self._floor_ms(past)
        if start_ms + 1 >= floor_ms:
            return self.head.select(matchers, start_ms, end_ms, max_samples=max_samples)
        parts, left = [], max_samples
        until_ms = min(end_ms, floor_ms - 1)
        for block in past.blocks:
            if block.end_ms > start_ms + 1 and block.start_ms <= until_ms:
                chosen = partial(Block.select, matchers=matchers, start_ms=start_ms, end_ms=until_ms, max_samples=left)
                part = self._ask(block, chosen)
                if part is not None:
                    parts.append(part)
                    left = None if left is None else max(0, left - part.values.size)
        if end_ms >= floor_ms or not parts:
            since_ms = max(start_ms, floor_ms - 1)
            parts.append(self.head.select(matchers, since_ms, max(end_ms, since_ms), max_samples=left))
        return parts[0] if len(parts) == 1 else join(parts, self._unions)

    def find_histograms(self, values: Floats) -> Cells | None:
        known = self.head.histograms.known
        blocks = [block for block in self._past.blocks if block.has_histograms]
        if not known and not blocks:
            return None

        def find(mark: int) -> bytes | None:
            found = known.get(mark)
            for block in blocks if found is None else ():
                found = found or (self._ask(block, lambda one: one.histograms) or {}).get(mark)
            return found

        return find_histograms(values, find)

    def cached_series_count(self, matchers: Sequence[MatcherLike], start_ms: int) -> int | None:
        is_in_memory = start_ms + 1 >= self._floor_ms(self._past)
        return self.head.cached_series_count(matchers, start_ms) if is_in_memory else None

    def latest(self, matchers: Sequence[MatcherLike], start_ms: int, end_ms: int) -> tuple[SeriesSet, Ints, Floats]:
        if start_ms + 1 >= self._floor_ms(self._past):
            return self.head.latest(matchers, start_ms, end_ms)
        found = self.select(matchers, start_ms, end_ms)
        count, width = found.values.shape
        if not width:
            return found.series, np.zeros(count, dtype=np.int64), np.full(count, ABSENT)
        held = ~is_absent(found.values) & (found.times != NEVER_MS)[found.groups]
        slots = width - 1 - held[:, ::-1].argmax(axis=1)
        rows = np.arange(count)
        values = np.where(held.any(axis=1), found.values[rows, slots], ABSENT)
        return found.series, found.times[found.groups, slots], values

    def series(self, matchers: Sequence[MatcherLike], start_ms: int, end_ms: int) -> list[label_sets.Labels]:
        found = dict.fromkeys(self.head.series(matchers, start_ms, end_ms))
        for block in self._blocks_between(start_ms, end_ms):
            pairs = self._ask(block, lambda one: one.series(matchers, start_ms, end_ms))
            found.update(dict.fromkeys(map(label_sets.Labels, pairs or ())))
        return list(found)

    def label_names(self, matchers: Sequence[MatcherLike], start_ms: int, end_ms: int) -> list[str]:
        found = set(self.head.label_names(matchers, start_ms, end_ms))
        for block in self._blocks_between(start_ms, end_ms):
            found |= self._ask(block, lambda one: one.label_names(matchers, start_ms, end_ms)) or set()
        return sorted(found)

    def label_values(self, name: str, matchers: Sequence[MatcherLike], start_ms: int, *, end_ms: int) -> list[str]:
        found = set(self.head.label_values(name, matchers, start_ms, end_ms=end_ms))
        for block in self._blocks_between(start_ms, end_ms):
            found |= self._ask(block, lambda one: one.label_values(name, matchers, start_ms, end_ms=end_ms)) or set()
        return sorted(found)

    def cardinality(self, limit: int) -> Cardinality:
        return self.head.cardinality(limit)

    def warnings(self) -> tuple[str, ...]:
        """What an answer may lack, in words."""
        return tuple(f"samples may be missing: {damage}" for damage in self.damages[:10])

    def status(self) -> StoreStatus:
        blocks = self._past.blocks
        return StoreStatus(
            series=len(self.head),
            blocks=len(blocks),
            block_bytes=sum(block.bytes for block in blocks),
            log_bytes=sum(segment.bytes for segment in self._log.segments),
            replayed_samples=self._replayed.samples,
            lost_samples=self._replayed.lost,
            unlogged_samples=self._log.unlogged,
            torn_bytes=self._replayed.torn_bytes,
            damages=self._damage_count,
        )

    # Upkeep

    def maintain(self, now_ms: int) -> None:
        """Write blocks that are due, merge small ones, remove old ones; StoreError if the disk refuses."""
        with self._upkeep, self._disk_errors():
            before = self._past
            oldest_ms = now_ms - self._limits.retention_ms if self._doubt.may_remove(now_ms / 1000) else -NEVER_MS
            # Before as well: on a full disk what goes makes room for what is written.
            self._remove_expired(oldest_ms)
            self._cut(now_ms)
            self._merge()
            self._remove_expired(oldest_ms)
            for block in self._past.blocks:
                block.release_unused()
            if self._past is not before:
                gone, self._unions = self._unions, UnionCache()
                gone.release()
                # Writing needs many times what it leaves behind.
                memory.release_free_memory()

    def quarantine_future_samples(self) -> quarantine.QuarantinedSamples:
        """The clock was put back: take what lies ahead of it out of the way, so that samples of now are accepted.

        Memory and log up to now become a block, and what lies beyond becomes blocks that nobody reads. StoreError if
        the disk refuses; then it can be tried again.
        """
        now_ms = self._clock_ms()
        with self._upkeep, self._disk_errors(), quarantine.create_folder(self.path, now_ms) as folder:
            ended, reached_ms = self._log.rotate(), self._reached_ms()
            count = _copy(self.head, folder, max(self._cut_ms, now_ms + 1), end_ms=reached_ms + 1)
            edge_ms = self.head.drop_future_samples()
            count += self._set_blocks_aside(edge_ms, folder)
            first_ms = self.head.first_ms_from(self._cut_ms)
            if first_ms is not None and first_ms < edge_ms:
                self._write_block(max(self._cut_ms, first_ms // self._limits.block_ms * self._limits.block_ms), edge_ms)
            self._log.forget(ended)
            self._unions, self._loaded_ms = UnionCache(), self._cut_ms
        log.warning("Samples ahead of the clock were set aside", extra=fields(samples=count, folder=folder))
        return quarantine.QuarantinedSamples(count, reached_ms - edge_ms + 1, folder)

    def _reached_ms(self) -> int:
        """The newest time in memory, in the log and in blocks."""
        kept = [segment.newest_ms for segment in self._log.segments]
        return max(self.newest_ms or 0, (self._past.cut_ms or 0) - 1, *kept)

    def _set_blocks_aside(self, edge_ms: int, folder: Path) -> int:
        """Let blocks end at `edge_ms`, cut the one in two that goes further; returns how many samples were beyond."""
        blocks, count = [], 0
        for block in self._past.blocks:
            if block.start_ms < edge_ms < block.end_ms:
                before = self._cut_in_two(block, edge_ms, folder)
                blocks += before
                count += block.samples - sum(one.samples for one in before)
            elif block.end_ms <= edge_ms:
                blocks.append(block)
            else:
                block.path.rename(folder / block.path.name)
                count += block.samples
        self._past = _Past(tuple(blocks), max((block.end_ms for block in blocks), default=None))
        self.head.accept_from(self._cut_ms)
        return count

    def _cut_in_two(self, block: Block, at_ms: int, folder: Path) -> list[Block]:
        """The part of a block before a time; the other goes into the folder, and so does all of a damaged one."""
        try:
            path = compaction.merge([block], self._block_folder, until_ms=at_ms)
            compaction.merge([block], folder, since_ms=at_ms)
        except errors.StoreError as error:
            self._report(Corruption(block.path, 0, error.problem))
            block.path.rename(folder / block.path.name)
            return []
        self._remove([block])
        return [self._block(path)]

    def back_up(self, target: Path, *, data: Path, journal: Path) -> backup.BackupSummary:
        """Copy what is kept up to now, journal included, into a new directory; nothing is merged away meanwhile."""
        self.sync()
        with self._upkeep:
            return backup.back_up(backup.StoreLocations(data, self.path, journal), target)

    def close(self) -> None:
        """Bring everything to the disk and let go of the files; a disk that refuses is said, not raised."""
        try:
            self.sync()
        except errors.StoreError as error:
            log.error("The last samples could not be written", extra=fields(error=error))
        with self._upkeep:
            self.head.log = None
            self._log.close()
            for block in self._past.blocks:
                block.close()

    @property
    def _cut_ms(self) -> int:
        return -NEVER_MS if self._past.cut_ms is None else self._past.cut_ms

    def _cut(self, now_ms: int) -> None:
        size = self._limits.block_ms
        while True:
            first_ms = self._first_uncut_ms()
            if first_ms is None:
                return
            start_ms = max(self._cut_ms, first_ms // size * size)
            end_ms = (start_ms // size + 1) * size
            if now_ms < end_ms + self._limits.late_ms:
                return
            self._write_block(start_ms, end_ms)

    def _first_uncut_ms(self) -> int | None:
        if self.head.lacking_ms > self._cut_ms:
            return wal_records.first_ms_from(self._log_folder, self._cut_ms)
        return self.head.first_ms_from(self._cut_ms)

    def _from_log(self, start_ms: int, end_ms: int) -> Head:
        """A span of time that memory had to let go of before it could be written into a block."""
        found = Head(retention_ms=NEVER_MS, max_series=self._limits.max_series)
        wal_replay.replay(wal_reader.read(self._log_folder, since_ms=start_ms, until_ms=end_ms), found)
        return found

    def _write_block(self, start_ms: int, end_ms: int) -> None:
        """Move a span of the head's time into a block; nothing is accepted for it any more."""
        self.head.refuse_before(end_ms)
        self.head.has_blocks = False
        source = self._from_log(start_ms, end_ms) if start_ms < self.head.lacking_ms else self.head
        _copy(source, self._block_folder, start_ms, end_ms=end_ms)
        self.head.has_blocks = True
        written = self._block(self._block_folder / block_name(start_ms, end_ms))
        self._past = _Past((*self._past.blocks, written), end_ms)
        self.head.unsaved_ms = end_ms
        self._log.rotate()
        self._log.forget_before(end_ms)

    def _merge(self) -> None:
        while True:
            blocks = [block for block in self._past.blocks if self._may_merge(block)]
            sources = compaction.find_merge(blocks, self._limits.block_ms, until_ms=self._past.cut_ms or 0)
            if not sources:
                return
            try:
                merged = self._block(compaction.merge(sources, self._block_folder))
            except errors.StoreError as error:
                self._unmergeable.update(source.path for source in sources)
                log.warning("Blocks were not merged", extra=fields(error=error))
                continue
            left = [block for block in self._past.blocks if block not in sources]
            self._past = _Past(tuple(sorted([*left, merged], key=_start)), self._past.cut_ms)
            self._remove(sources)

    def _may_merge(self, block: Block) -> bool:
        """A table of histograms is read whole: past a size it does not grow further."""
        return block.path not in self._unmergeable and block.histogram_bytes <= MAX_MERGED_BYTES

    def _remove_expired(self, oldest_ms: int) -> None:
        # Segments are that old where no block could be written for as long.
        self._log.forget_before(oldest_ms)
        expired = compaction.find_expired(
            self._past.blocks,
            oldest_ms=oldest_ms,
            max_bytes=self._limits.max_bytes,
            other_bytes=sum(segment.bytes for segment in self._log.segments),
        )
        quarantine.remove_expired(self.path, oldest_ms=oldest_ms)
        self._remove_unread(oldest_ms)
        if expired:
            left = tuple(block for block in self._past.blocks if block not in expired)
            self._past = _Past(left, self._past.cut_ms)
            self._remove(expired)

    def _remove_unread(self, oldest_ms: int) -> None:
        """What cannot be read, or was replaced for that, goes when its time is over like everything else."""
        in_use = {block.path for block in self._past.blocks}
        for path in self._block_folder.glob("*-*"):
            end_ms = path.stem.rpartition("-")[2]
            if (
                path not in in_use
                and path.suffix in (SUFFIX, REPLACED)
                and end_ms.isdigit()
                and int(end_ms) <= oldest_ms
            ):
                path.unlink(missing_ok=True)

    def _remove(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            block.path.unlink(missing_ok=True)
            self._cache.forget(block.path)

    def _open_blocks(self) -> _Past:
        for path in self._block_folder.glob(f"*{UNFINISHED}"):
            path.unlink()
        found: list[Block] = []
        for path in self._block_folder.glob(f"*{SUFFIX}"):
            try:
                found.append(self._block(path))
            except errors.StoreError as error:
                self._report(Corruption(path, 0, error.problem))
        for path in self._block_folder.glob(f"*{REPLACED}"):
            self._report(Corruption(path, 0, "it could not be read, and what the log had of its time has its place"))
        gone = compaction.superseded(found)
        self._remove(gone)
        blocks = sorted((block for block in found if block not in gone), key=_start)
        return _Past(tuple(blocks), max((block.end_ms for block in blocks), default=None))

    def _block(self, path: Path) -> Block:
        return Block(path, cache=self._cache, patterns=self._patterns, report=self._report)

    def _load_metadata(self) -> None:
        try:
            self.metadata.load(self.path / "metadata.json")
        except errors.StoreError as error:
            self._report(Corruption(self.path / "metadata.json", 0, error.problem))

    def _floor_ms(self, past: _Past) -> int:
        """From this time on the head has everything; before it, the blocks."""
        newest_ms = self.head.newest_ms
        if past.cut_ms is None:
            return -NEVER_MS
        if newest_ms is None:
            return past.cut_ms
        return min(past.cut_ms, max(self._loaded_ms, newest_ms - self.head.retention_ms + MARGIN_MS))

    def _blocks_between(self, start_ms: int, end_ms: int) -> list[Block]:
        return [block for block in self._past.blocks if block.start_ms <= end_ms and block.end_ms > start_ms]

    def _ask(self, block: Block, question: Callable[[Block], T]) -> T | None:
        """A block's answer; None, and a report, if it cannot be read."""
        try:
            return question(block)
        except errors.StoreError as error:
            self._report(Corruption(block.path, 0, error.problem))
            return None

    def _report(self, damage: Corruption) -> None:
        if damage in self.damages:
            return
        self._damage_count += 1
        if len(self.damages) < MAX_DAMAGES:
            self.damages.append(damage)
        log.error("A file of the store is damaged", extra=fields(damage=str(damage)))

    @contextmanager
    def _disk_errors(self) -> Iterator[None]:
        """Turns what the operating system says into our own error."""
        try:
            yield
        except OSError as error:
            is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise errors.StoreError(
                f"samples cannot be written: {error.strerror}",
                where=str(self.path),
                now="They stay in memory, where queries see them",
                remedy="Make room on the disk, or shorten [query] retention" if is_full else "Look at the disk",
            ) from error


def _start(block: Block) -> int:
    return block.start_ms


def _copy(head: Head, folder: Path, start_ms: int, *, end_ms: int) -> int:
    """Write a block of what memory has of a time; returns how many samples that is."""
    writer = BlockWriter(folder, start_ms, end_ms)
    try:
        for name in head.metric_names():
            columns = head.metric_columns(name, start_ms - 1, end_ms - 1)
            writer.add(columns)
            if head.histograms.known:
                writer.add_histograms(columns, head.histograms.known.get)
        writer.finish()
    except BaseException:
        writer.abandon()
        raise
    return writer.samples
