"""Samples as Parquet, for DuckDB, pandas and whoever else reads it: users own their samples.

Needs pyarrow, which the hub does not: it is asked for only here. One row for each sample; each label is a column
of text, beside `time` and `value`; one metric after another, so that a filter on `__name__` skips the rest. Where
blocks have native histograms there is a column `histogram` beside: count, sum, and a list of buckets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from watchkeeper import errors
from watchkeeper.store.blocks.block import Block, ChunkCache
from watchkeeper.store.blocks.block_writer import SUFFIX
from watchkeeper.store.blocks.compaction import Named
from watchkeeper.store.columns import NEVER_MS, is_absent
from watchkeeper.store.histograms import Cells, find_histograms, is_histogram
from watchkeeper.store.index import Patterns
from watchkeeper.store.sample_columns import Columns

# The columns that are no labels; a label of such a name is written as label_….
TIME, VALUE, HISTOGRAM = OWN = ("time", "value", "histogram")


class ExportSummary(NamedTuple):
    """How many samples were written, and how many of them are native histograms."""

    samples: int
    histograms: int


def write_parquet(samples: Path, target: Path, *, start_ms: int, end_ms: int) -> ExportSummary:
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
    schema = _schema(labels, pyarrow, has_histograms=any(block.has_histograms for block in blocks))
    count = histograms = 0
    with parquet.ParquetWriter(target, schema, compression="zstd") as writer:
        for name in sorted({name for block in blocks for name in block.metric_names()}):
            for block in blocks:
                columns = block.select([Named(name)], start_ms, end_ms)
                if len(columns.series) and columns.values.size:
                    columns = replace(columns, values=columns.values.copy())
                    columns = replace(columns, histograms=find_histograms(columns.values, block.histograms.get))
                    table = pyarrow.table(list(_arrays(columns, labels, schema, pyarrow=pyarrow)), schema=schema)
                    writer.write_table(table)
                    count += table.num_rows
                    histograms += int(np.count_nonzero(is_histogram(columns.values)))
    return ExportSummary(count, histograms)


def _schema(labels: list[str], pyarrow: Any, *, has_histograms: bool) -> Any:
    number, text = pyarrow.float64(), pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
    bucket = pyarrow.struct([("lower", number), ("upper", number), ("count", number)])
    histogram = pyarrow.struct([("count", number), ("sum", number), ("buckets", pyarrow.list_(bucket))])
    own = [(TIME, pyarrow.timestamp("ms", tz="UTC")), (VALUE, number)]
    own += [(HISTOGRAM, histogram)] if has_histograms else []
    return pyarrow.schema([*own, *((_column(name, labels), text) for name in labels)])


def _column(label: str, labels: list[str]) -> str:
    """The column of a label; kube-state-metrics has labels that begin with label_, and no column may stand twice."""
    made = label
    while made in OWN or (made != label and made in labels):
        made = f"label_{made}"
    return made


def _arrays(columns: Columns, labels: list[str], schema: Any, *, pyarrow: Any) -> Iterator[Any]:
    held = ~is_absent(columns.values) & (columns.times != NEVER_MS)[columns.groups]
    rows, slots = np.nonzero(held)
    values = columns.values[rows, slots]
    yield pyarrow.array(columns.times[columns.groups[rows], slots], schema.field(TIME).type)
    yield pyarrow.array(values, mask=is_histogram(values))
    if HISTOGRAM in schema.names:
        cells = np.full(len(rows), None) if columns.histograms is None else columns.histograms[rows, slots]
        yield pyarrow.array(_plain(cells), schema.field(HISTOGRAM).type)
    sets = [dict(pairs) for pairs in columns.series.pairs]
    for name in labels:
        words = pyarrow.array([one.get(name) for one in sets]).cast(pyarrow.string()).dictionary_encode()
        yield words.take(pyarrow.array(rows))


def _plain(cells: Cells) -> list[dict[str, Any] | None]:
    """Histograms in the words of the column; None where there is a number."""
    return [
        one
        and {
            "count": one.count,
            "sum": one.sum,
            "buckets": [
                {"lower": bucket.lower, "upper": bucket.upper, "count": bucket.population} for bucket in one.buckets()
            ],
        }
        for one in cells.tolist()
    ]


def _opened(samples: Path) -> Iterator[Block]:
    """Blocks that can be read; a damaged one is left to `watchkeeper store verify`."""
    for path in samples.glob(f"blocks/*{SUFFIX}"):
        try:
            yield Block(path, cache=ChunkCache(), patterns=Patterns(), report=lambda _: None)
        except errors.StoreError:
            continue
