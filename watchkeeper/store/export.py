"""Samples as Parquet, for DuckDB, pandas and whoever else reads it: users own their samples.

Needs pyarrow, which the hub does not: it is asked for only here. One row for each sample; each label is a column
of text, beside `time` and `value`; one metric after another, so that a filter on `__name__` skips the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from watchkeeper import errors
from watchkeeper.store.block import Block, ChunkCache
from watchkeeper.store.block_writer import SUFFIX
from watchkeeper.store.columns import NEVER_MS, is_absent
from watchkeeper.store.compaction import Named
from watchkeeper.store.histograms import is_histogram
from watchkeeper.store.index import Patterns
from watchkeeper.store.reading import Columns


class Exported(NamedTuple):
    """How many samples were written, and how many native histograms were not: a row has one number."""

    samples: int
    left_out: int


def write_parquet(samples: Path, target: Path, *, start_ms: int, end_ms: int) -> Exported:
    """Write what blocks hold with start < time ≤ end into one new file."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise errors.StoreError(
            "Parquet is written by pyarrow, which is not installed here", remedy="Install it: pip install pyarrow"
        ) from error
    blocks = sorted(_opened(samples), key=lambda block: block.start_ms)
    blocks = [block for block in blocks if block.end_ms > start_ms + 1 and block.start_ms <= end_ms]
    labels = sorted({name for block in blocks for name in block.directory.labels.values})
    text = pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
    schema = pyarrow.schema(
        [("time", pyarrow.timestamp("ms", tz="UTC")), ("value", pyarrow.float64()), *((name, text) for name in labels)]
    )
    count = left_out = 0
    with parquet.ParquetWriter(target, schema, compression="zstd") as writer:
        for name in sorted({name for block in blocks for name in block.metric_names()}):
            for block in blocks:
                columns = block.select([Named(name)], start_ms, end_ms)
                if len(columns.series) and columns.values.size:
                    left_out += int(np.count_nonzero(is_histogram(columns.values)))
                    table = pyarrow.table(list(_arrays(columns, labels, pyarrow)), schema=schema)
                    writer.write_table(table)
                    count += table.num_rows
    return Exported(count, left_out)


def _arrays(columns: Columns, labels: list[str], pyarrow: Any) -> Iterator[Any]:
    held = ~is_absent(columns.values) & ~is_histogram(columns.values) & (columns.times != NEVER_MS)[columns.groups]
    rows, slots = np.nonzero(held)
    yield pyarrow.array(columns.times[columns.groups[rows], slots], pyarrow.timestamp("ms", tz="UTC"))
    yield pyarrow.array(columns.values[rows, slots])
    sets = [dict(pairs) for pairs in columns.series.pairs]
    for name in labels:
        words = pyarrow.array([one.get(name) for one in sets]).cast(pyarrow.string()).dictionary_encode()
        yield words.take(pyarrow.array(rows))


def _opened(samples: Path) -> Iterator[Block]:
    """Blocks that can be read; a damaged one is left to `watchkeeper store verify`."""
    for path in samples.glob(f"blocks/*{SUFFIX}"):
        try:
            yield Block(path, cache=ChunkCache(), patterns=Patterns(), report=lambda _: None)
        except errors.StoreError:
            continue
