"""The durable store: a head in memory, its log, and its past in blocks, asked as one.

The hub opens one from its data directory (`open_store`), gives it to the query engine, and calls `sync` each second
and `maintain` now and then; both wait for the disk and belong into a thread. What is accepted is in the head at
once, in the log within a second, and in a block soon after its half hour has passed. Whoever asks is not told
where samples lie.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from watchkeeper import errors
from watchkeeper.config import settings
from watchkeeper.kit import durations, memory
from watchkeeper.kit.logs import fields
from watchkeeper.model import labels as label_sets
from watchkeeper.model import samples as sample_model
from watchkeeper.store import backup, compaction, wal_replay
from watchkeeper.store.block import Block, ChunkCache, Damage
from watchkeeper.store.block_writer import SUFFIX, UNFINISHED, BlockWriter
from watchkeeper.store.columns import ABSENT, NEVER_MS, Floats, Ints, is_absent
from watchkeeper.store.head import MAX_AHEAD_MS, Head
from watchkeeper.store.index import Cardinality, MatcherLike, Patterns, SeriesSet
from watchkeeper.store.reading import Columns, Outcome, Unions, join
from watchkeeper.store.wal import WriteAheadLog

log = logging.getLogger(__name__)
T = TypeVar("T")

# While a query runs, the head may clear away this much more than when it began.
MARGIN_MS = 60_000
MAX_DAMAGES = 100
AHEAD_SUFFIX = ".ahead"


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
    def of(cls, query: settings.Query) -> StoreSettings:
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
            f"samples cannot be kept here: {error.strerror}", where=str(path), remedy="Choose another directory"
        ) from error


class DurableStore:
    """Implements `reading.SampleStore`; every method may be called from any thread."""

    def __init__(self, path: Path, limits: StoreSettings, *, clock_ms: Callable[[], int]) -> None:
        self.path = path
        self._limits = limits
        self._block_folder, self._log_folder = path / "blocks", path / "wal"
        for folder in (self._block_folder, self._log_folder):
            folder.mkdir(parents=True, exist_ok=True)
        self.head = Head(
            # What a block has must stay until it surely has it.
            retention_ms=max(limits.memory_ms, 2 * (limits.block_ms + limits.late_ms)),
            max_series=limits.max_series,
            late_ms=limits.late_ms,
            clock_ms=clock_ms,
        )
        self.metadata = self.head.metadata
        self.damages: list[Damage] = []
        self._damage_count = 0
        self._cache, self._patterns, self._unions = ChunkCache(limits.cache_bytes), Patterns(), Unions()
        self._unmergeable: set[Path] = set()
        self._upkeep = threading.Lock()
        now_ms = clock_ms()
        self._past = self._open_blocks(now_ms)
        self._loaded_ms = -NEVER_MS if self._past.cut_ms is None else self._past.cut_ms
        self.head.close_until(self._loaded_ms)
        self.head.unsaved_ms = self._loaded_ms
        self._load_metadata()
        self._replayed = wal_replay.replay(
            self._log_folder, self.head, since_ms=self._loaded_ms, until_ms=now_ms + MAX_AHEAD_MS
        )
        # Slots were gathered for whole rows: 0.5 KiB for each series.
        memory.give_back()
        for damage in self._replayed.damages:
            self._report(damage)
        if self._replayed.torn_bytes:
            log.warning("The log ends in the middle of a record", extra=fields(bytes=self._replayed.torn_bytes))
        self._log = WriteAheadLog(self._log_folder, lock=self.head.lock, labels_of=self.head.labels_of)
        self._log.segments = [
            replace(one, newest_ms=min(one.newest_ms, now_ms + MAX_AHEAD_MS)) for one in self._replayed.segments
        ]
        self.head.log = self._log if limits.has_log else None

    def __len__(self) -> int:
        return len(self.head)

    @property
    def newest_ms(self) -> int | None:
        return self.head.newest_ms

    @property
    def retention_ms(self) -> int:
        return self._limits.retention_ms

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
    ) -> Outcome:
        return self.head.append_scrape(group_key, series_ids, at_ms, values, now_ms=now_ms)

    def append(
        self, samples: Iterable[sample_model.Sample], *, together: str | None = None, now_ms: int | None = None
    ) -> Outcome:
        return self.head.append(samples, together=together, now_ms=now_ms)

    def sync(self) -> int:
        """Bring what was accepted to the disk; returns how many samples. StoreError if the disk refuses."""
        with self._disk_errors():
            self.metadata.save(self.path / "metadata.json")
            return self._log.sync()

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
                part = self._ask(block, _Select(matchers, start_ms, until_ms, left))
                if part is not None:
                    parts.append(part)
                    left = None if left is None else max(0, left - part.values.size)
        if end_ms >= floor_ms or not parts:
            since_ms = max(start_ms, floor_ms - 1)
            parts.append(self.head.select(matchers, since_ms, max(end_ms, since_ms), max_samples=left))
        return parts[0] if len(parts) == 1 else join(parts, self._unions)

    def at_hand(self, matchers: Sequence[MatcherLike], start_ms: int) -> int | None:
        is_in_memory = start_ms + 1 >= self._floor_ms(self._past)
        return self.head.at_hand(matchers, start_ms) if is_in_memory else None

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
            self._cut(now_ms)
            self._merge()
            self._remove_expired(now_ms)
            for block in self._past.blocks:
                block.let_go()
            if self._past is not before:
                self._unions = Unions()
                # Writing needs many times what it leaves behind.
                memory.give_back()

    def back_up(self, target: Path, *, data: Path, journal: Path) -> backup.Copied:
        """Copy what is kept up to now, journal included, into a new directory; nothing is merged away meanwhile."""
        self.sync()
        with self._upkeep:
            return backup.back_up(backup.Holdings(data, self.path, journal), target)

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

    def _cut(self, now_ms: int) -> None:
        size = self._limits.block_ms
        while True:
            cut_ms = self._past.cut_ms
            first_ms = self.head.first_ms_from(-NEVER_MS if cut_ms is None else cut_ms)
            if first_ms is None:
                return
            start_ms = first_ms // size * size if cut_ms is None else max(cut_ms, first_ms // size * size)
            end_ms = (start_ms // size + 1) * size
            if now_ms < end_ms + self._limits.late_ms:
                return
            self._write_block(start_ms, end_ms)

    def _write_block(self, start_ms: int, end_ms: int) -> None:
        """Move a span of the head's time into a block; nothing is accepted for it any more."""
        self.head.close_until(end_ms)
        writer = BlockWriter(self._block_folder, start_ms, end_ms)
        try:
            for name in self.head.metric_names():
                writer.add(self.head.metric_columns(name, start_ms - 1, end_ms - 1))
            path = writer.finish()
        except BaseException:
            writer.abandon()
            raise
        self._past = _Past((*self._past.blocks, self._block(path)), end_ms)
        self.head.unsaved_ms = end_ms
        self._log.rotate()
        self._log.forget_before(end_ms)

    def _merge(self) -> None:
        while True:
            blocks = [block for block in self._past.blocks if block.path not in self._unmergeable]
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

    def _remove_expired(self, now_ms: int) -> None:
        expired = compaction.find_expired(
            self._past.blocks,
            oldest_ms=now_ms - self._limits.retention_ms,
            max_bytes=self._limits.max_bytes,
            other_bytes=sum(segment.bytes for segment in self._log.segments),
        )
        if expired:
            left = tuple(block for block in self._past.blocks if block not in expired)
            self._past = _Past(left, self._past.cut_ms)
            self._remove(expired)

    def _remove(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            block.path.unlink(missing_ok=True)
            self._cache.forget(block.path)

    def _open_blocks(self, now_ms: int) -> _Past:
        for path in self._block_folder.glob(f"*{UNFINISHED}"):
            path.unlink()
        found: list[Block] = []
        for path in self._block_folder.glob(f"*{SUFFIX}"):
            try:
                found.append(self._block(path))
            except errors.StoreError as error:
                self._report(Damage(path, 0, error.problem))
        gone = compaction.superseded(found)
        ahead = [block for block in found if block.end_ms > now_ms + MAX_AHEAD_MS]
        self._remove(gone)
        for block in ahead:
            # The clock was ahead of today's, as in a simulation that ran faster: such a block would stop the present.
            block.path.rename(block.path.with_name(block.path.name + AHEAD_SUFFIX))
            log.warning("A block from the future was set aside", extra=fields(block=str(block.path)))
        blocks = sorted((block for block in found if block not in gone and block not in ahead), key=_start)
        return _Past(tuple(blocks), max((block.end_ms for block in blocks), default=None))

    def _block(self, path: Path) -> Block:
        return Block(path, cache=self._cache, patterns=self._patterns, report=self._report)

    def _load_metadata(self) -> None:
        try:
            self.metadata.load(self.path / "metadata.json")
        except errors.StoreError as error:
            self._report(Damage(self.path / "metadata.json", 0, error.problem))

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
            self._report(Damage(block.path, 0, error.problem))
            return None

    def _report(self, damage: Damage) -> None:
        if damage in self.damages:
            return
        self._damage_count += 1
        if len(self.damages) < MAX_DAMAGES:
            self.damages.append(damage)
        log.error("A file of the store is damaged", extra=fields(damage=str(damage)))

    def _disk_errors(self) -> _DiskErrors:
        return _DiskErrors(self.path)


@dataclass(frozen=True, slots=True)
class _Select:
    matchers: Sequence[MatcherLike]
    start_ms: int
    end_ms: int
    max_samples: int | None

    def __call__(self, block: Block) -> Columns:
        return block.select(self.matchers, self.start_ms, self.end_ms, max_samples=self.max_samples)


@dataclass(frozen=True, slots=True)
class _DiskErrors:
    """Turns what the operating system says into our own error."""

    path: Path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise errors.StoreError(
                f"samples cannot be written: {error.strerror}",
                where=str(self.path),
                now="They stay in memory, where queries see them",
                remedy="Make room on the disk, or shorten [query] retention" if is_full else "Look at the disk",
            ) from error


def _start(block: Block) -> int:
    return block.start_ms
