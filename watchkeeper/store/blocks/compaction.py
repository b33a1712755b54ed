"""Small blocks become larger ones, old ones go: what to do is decided here, and how blocks are merged.

Each sample is written a few times in its life: with the log, with the first block, and each time that four
neighbours become one. Larger blocks hold each label set once for a longer time. `durable` calls this after it has
cut a block from the head.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from watchkeeper import errors
from watchkeeper.model import labels as label_sets
from watchkeeper.store.blocks.block import Block, ChunkCache
from watchkeeper.store.blocks.block_writer import BlockWriter
from watchkeeper.store.columns import NEVER_MS, SLOT_BYTES
from watchkeeper.store.corruption import Corruption
from watchkeeper.store.index import Patterns
from watchkeeper.store.sample_columns import Columns, SeriesUnion, UnionCache, join
from watchkeeper.store.series import SeriesSet

# A first block of 30 minutes grows to 2 h, 8 h and a day.
GROWTH = (4, 16, 48)
# Samples that are merged at once: 32 MB of them, and as much again for the result.
PIECE_SAMPLES = 4 << 20


@dataclass(frozen=True, slots=True)
class Named:
    """A matcher for one metric, or for series without a name."""

    value: str
    name: str = label_sets.METRIC_NAME
    op: str = "="


def find_merge(blocks: Sequence[Block], block_ms: int, *, until_ms: int) -> list[Block]:
    """Neighbours that should become one block: all lie in one span of a larger size that has passed; or none."""
    for growth in GROWTH:
        size = growth * block_ms
        by_span: dict[int, list[Block]] = {}
        for block in blocks:
            span = block.start_ms // size
            if block.end_ms <= (span + 1) * size:
                by_span.setdefault(span, []).append(block)
        for span, inside in sorted(by_span.items()):
            if len(inside) > 1 and (span + 1) * size <= until_ms:
                return inside
    return []


def find_expired(blocks: Sequence[Block], *, oldest_ms: int, max_bytes: int | None, other_bytes: int) -> list[Block]:
    """Blocks that are too old as a whole, and the oldest ones beyond the size that all may have together."""
    expired = [block for block in blocks if block.end_ms <= oldest_ms]
    left = [block for block in blocks if block not in expired]
    if max_bytes is not None:
        used = other_bytes + sum(block.bytes for block in left)
        while left and used > max_bytes:
            used -= left[0].bytes
            expired.append(left.pop(0))
    return expired


def merge(sources: Sequence[Block], folder: Path, *, since_ms: int = -NEVER_MS, until_ms: int = NEVER_MS) -> Path:
    """Write one block with everything of its sources from `since_ms` up to, not including, `until_ms`.

    StoreError if a source is damaged, and then nothing is left.
    """
    damages: list[Corruption] = []
    # A cache of its own: what merging reads once must not drive out what queries read often. Of each source it has
    # room for the chunk that is read, for its times, and for one more.
    cache = ChunkCache(3 * SLOT_BYTES * sum(source.largest_chunk for source in sources))
    opened = [Block(source.path, cache=cache, patterns=Patterns(), report=damages.append) for source in sources]
    names = sorted({name for block in opened for name in block.metric_names()})
    writer = BlockWriter(
        folder,
        max(since_ms, min(block.start_ms for block in opened)),
        min(until_ms, max(block.end_ms for block in opened)),
        sources=tuple(block.path.name for block in opened),
    )
    try:
        for name in names:
            for columns in _pieces(opened, name, since_ms, until_ms=until_ms):
                writer.add(columns)
                for block in (block for block in opened if block.has_histograms):
                    writer.add_histograms(columns, block.histograms.get)
        if damages:
            raise errors.StoreError(
                f"blocks are not merged, because one is damaged: {damages[0]}",
                now="All of them stay as they are",
                remedy="Restore the damaged file from a backup, or remove it",
            )
        return writer.finish()
    except BaseException:
        writer.abandon()
        raise


def _pieces(blocks: Sequence[Block], name: str, since_ms: int, *, until_ms: int) -> Iterator[Columns]:
    """The samples of one metric in a time from all blocks, some series at a time."""
    chosen = [block.find([Named(name)]) for block in blocks]
    unions = UnionCache()
    union: SeriesUnion = unions.get([series for _, series in chosen])
    slots = sum(int(block.contents.chunks[4].max(initial=0)) for block in blocks)
    step = max(1, PIECE_SAMPLES // max(1, slots))
    for first in range(0, len(union.series), step):
        parts = []
        for block, (rows, series), places in zip(blocks, chosen, union.places, strict=True):
            mine = np.flatnonzero((places >= first) & (places < first + step))
            subset = SeriesSet([series.pairs[row] for row in mine.tolist()])
            after_ms, end_ms = max(block.start_ms, since_ms) - 1, min(block.end_ms, until_ms) - 1
            parts.append(block.read(rows[mine], subset, after_ms, end_ms=end_ms))
        yield join(parts, unions)


def superseded(blocks: Sequence[Block]) -> list[Block]:
    """Blocks whose samples a merged block has, too: a crash came between writing it and removing them."""
    names = {name for block in blocks for name in block.sources}
    return [block for block in blocks if block.path.name in names]
