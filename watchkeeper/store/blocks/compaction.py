"""Compaction: choose and merge small blocks, and choose expired blocks.

Each sample is written a few times: to the WAL, to its first block, and each time that neighbouring blocks are merged.
Larger blocks store each label set once for a longer time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from watchkeeper import errors
from watchkeeper.model import labels as label_sets
from watchkeeper.store.blocks.block import Block, ChunkCache
from watchkeeper.store.blocks.block_writer import BlockWriter
from watchkeeper.store.columns import NEVER_MS, SLOT_BYTES
from watchkeeper.store.corruption import Corruption
from watchkeeper.store.index import Matcher, MatchOp
from watchkeeper.store.sample_columns import Columns, SeriesUnion, UnionCache, join
from watchkeeper.store.series import SeriesSet

# A first block of 30 minutes grows to 2 h, 8 h and a day.
GROWTH_FACTORS = (4, 16, 48)
# Samples that are merged at a time: 32 MB, and as much again for the result.
MERGE_SAMPLES = 4 << 20


def find_merge(blocks: Sequence[Block], block_ms: int, *, until_ms: int) -> list[Block]:
    """Neighbouring blocks to merge, which fill a larger time span that is over; empty if there are none."""
    for growth in GROWTH_FACTORS:
        size = growth * block_ms
        by_span: dict[int, list[Block]] = {}
        for block in blocks:
            span = block.start_ms // size
            if block.end_ms <= (span + 1) * size:
                by_span.setdefault(span, []).append(block)
        for span, span_blocks in sorted(by_span.items()):
            if len(span_blocks) > 1 and (span + 1) * size <= until_ms:
                return span_blocks
    return []


def find_expired(blocks: Sequence[Block], *, oldest_ms: int, max_bytes: int | None, other_bytes: int) -> list[Block]:
    """Blocks that are completely older than `oldest_ms`, and the oldest blocks above `max_bytes` in total."""
    expired = [block for block in blocks if block.end_ms <= oldest_ms]
    remaining = [block for block in blocks if block not in expired]
    if max_bytes is not None:
        used = other_bytes + sum(block.bytes for block in remaining)
        while remaining and used > max_bytes:
            used -= remaining[0].bytes
            expired.append(remaining.pop(0))
    return expired


def merge(sources: Sequence[Block], folder: Path, *, since_ms: int = -NEVER_MS, until_ms: int = NEVER_MS) -> Path:
    """Write one block with all samples with since ≤ time < until; StoreError and no file if a source is damaged."""
    damages: list[Corruption] = []
    # A separate cache, because merging reads chunks once and would evict the chunks of queries. It has room for the
    # current chunk of each source, its times, and one more.
    cache = ChunkCache(3 * SLOT_BYTES * sum(source.largest_chunk_samples for source in sources))
    source_blocks = [Block(source.path, cache=cache, report=damages.append) for source in sources]
    names = sorted({name for block in source_blocks for name in block.metric_names()})
    writer = BlockWriter(
        folder,
        max(since_ms, min(block.start_ms for block in source_blocks)),
        min(until_ms, max(block.end_ms for block in source_blocks)),
        sources=tuple(block.path.name for block in source_blocks),
    )
    try:
        for name in names:
            for columns in _merged_columns(source_blocks, name, since_ms, until_ms=until_ms):
                writer.add(columns)
                for block in (block for block in source_blocks if block.has_histograms):
                    writer.add_histograms(columns, block.histograms.get)
        if damages:
            raise errors.StoreError(
                f"blocks cannot be merged because one is damaged: {damages[0]}",
                now="The blocks are unchanged",
                remedy="Restore the damaged file from a backup, or remove it",
            )
        return writer.finish()
    except BaseException:
        writer.abandon()
        raise


def _merged_columns(blocks: Sequence[Block], name: str, since_ms: int, *, until_ms: int) -> Iterator[Columns]:
    """Yield the samples of one metric from all blocks in a time range, some series at a time."""
    selections = [block.find_rows([Matcher(label_sets.METRIC_NAME, MatchOp.EQUAL, name)]) for block in blocks]
    unions = UnionCache()
    union: SeriesUnion = unions.get([series for _, series in selections])
    slots = sum(int(block.chunk_index.chunks[4].max(initial=0)) for block in blocks)
    step = max(1, MERGE_SAMPLES // max(1, slots))
    for first in range(0, len(union.series), step):
        parts = []
        for block, (rows, series), positions in zip(blocks, selections, union.positions, strict=True):
            block_rows = np.flatnonzero((positions >= first) & (positions < first + step))
            subset = SeriesSet([series.pairs[row] for row in block_rows.tolist()])
            after_ms, end_ms = max(block.start_ms, since_ms) - 1, min(block.end_ms, until_ms) - 1
            parts.append(block.read(rows[block_rows], subset, after_ms, end_ms=end_ms))
        yield join(parts, unions)


def find_superseded(blocks: Sequence[Block]) -> list[Block]:
    """Blocks that were merged into another but not removed, because of a crash in between."""
    names = {name for block in blocks for name in block.sources}
    return [block for block in blocks if block.path.name in names]
