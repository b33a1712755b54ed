"""Export samples as Parquet, for DuckDB, pandas and other tools.

There is one row for each sample, with the columns `time` and `value` and a text column for each label; rows are sorted
by metric, so that a filter on `__name__` skips the others. If blocks have native histograms, a column `histogram` has
their count, sum and list of buckets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from watchkeeper import errors
from watchkeeper.model.labels import METRIC_NAME
from watchkeeper.store.blocks.block import Block, ChunkCache
from watchkeeper.store.blocks.block_writer import SUFFIX
from watchkeeper.store.columns import NEVER_MS, is_absent
from watchkeeper.store.histograms import Cells, find_histograms, is_histogram
from watchkeeper.store.index import Matcher, MatchOp
from watchkeeper.store.sample_columns import Columns

# The columns that are not labels; a label with such a name is written as label_….
TIME, VALUE, HISTOGRAM = SAMPLE_COLUMNS = ("time", "value", "histogram")


class ExportSummary(NamedTuple):
    samples: int
    histograms: int


def write_parquet(samples: Path, target: Path, *, start_ms: int, end_ms: int) -> ExportSummary:
    """Write the samples of blocks with start < time ≤ end to a new file."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise errors.StoreError(
            "Parquet export requires pyarrow, which is not installed", remedy="Run `pip install pyarrow`"
        ) from error
    blocks = sorted(_open_blocks(samples), key=lambda block: block.start_ms)
    blocks = [block for block in blocks if block.end_ms > start_ms + 1 and block.start_ms <= end_ms]
    labels = sorted({name for block in blocks for name in block.directory.labels.values})
    schema = _schema(labels, pyarrow, has_histograms=any(block.has_histograms for block in blocks))
    count = histograms = 0
    with parquet.ParquetWriter(target, schema, compression="zstd") as writer:
        for name in sorted({name for block in blocks for name in block.metric_names()}):
            for block in blocks:
                columns = block.select([Matcher(METRIC_NAME, MatchOp.EQUAL, name)], start_ms, end_ms)
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
    sample_columns = [(TIME, pyarrow.timestamp("ms", tz="UTC")), (VALUE, number)]
    sample_columns += [(HISTOGRAM, histogram)] if has_histograms else []
    return pyarrow.schema([*sample_columns, *((_column_name(name, labels), text) for name in labels)])


def _column_name(label: str, labels: list[str]) -> str:
    """The column of a label; labels of kube-state-metrics begin with label_, and column names must be unique."""
    column_name = label
    while column_name in SAMPLE_COLUMNS or (column_name != label and column_name in labels):
        column_name = f"label_{column_name}"
    return column_name


def _arrays(columns: Columns, labels: list[str], schema: Any, *, pyarrow: Any) -> Iterator[Any]:
    has_sample = ~is_absent(columns.values) & (columns.times != NEVER_MS)[columns.groups]
    rows, slots = np.nonzero(has_sample)
    values = columns.values[rows, slots]
    yield pyarrow.array(columns.times[columns.groups[rows], slots], schema.field(TIME).type)
    yield pyarrow.array(values, mask=is_histogram(values))
    if HISTOGRAM in schema.names:
        cells = np.full(len(rows), None) if columns.histograms is None else columns.histograms[rows, slots]
        yield pyarrow.array(_histogram_values(cells), schema.field(HISTOGRAM).type)
    label_sets = [dict(pairs) for pairs in columns.series.pairs]
    for name in labels:
        texts = pyarrow.array([labels.get(name) for labels in label_sets]).cast(pyarrow.string()).dictionary_encode()
        yield texts.take(pyarrow.array(rows))


def _histogram_values(cells: Cells) -> list[dict[str, Any] | None]:
    """The values of the column `histogram`; None for a sample that is a number."""
    return [
        histogram
        and {
            "count": histogram.count,
            "sum": histogram.sum,
            "buckets": [
                {"lower": bucket.lower, "upper": bucket.upper, "count": bucket.population}
                for bucket in histogram.buckets()
            ],
        }
        for histogram in cells.tolist()
    ]


def _open_blocks(samples: Path) -> Iterator[Block]:
    """The readable blocks; `watchkeeper store verify` reports the damaged ones."""
    for path in samples.glob(f"blocks/*{SUFFIX}"):
        try:
            yield Block(path, cache=ChunkCache(), report=lambda _: None)
        except errors.StoreError:
            continue
