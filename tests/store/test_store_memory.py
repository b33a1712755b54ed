"""The memory of a store: label sets are stored once, and removed data needs no memory."""

from __future__ import annotations

import dataclasses
import tracemalloc
from pathlib import Path

import numpy as np

from tests.store.durables import BLOCK, MINUTE, SETTINGS, Rig, equals, named
from watchkeeper.store.blocks.block import Block, ChunkCache
from watchkeeper.store.sample_columns import UnionCache
from watchkeeper.store.series import Pairs, SeriesSet
from watchkeeper.store.wal import wal, wal_records


def label_sets(name: str) -> list[Pairs]:
    return [named(name, gpu=str(gpu)).pairs for gpu in range(8)]


def without_name(pairs: Pairs) -> Pairs:
    return tuple(pair for pair in pairs if pair[0] != "__name__")


def test_equal_label_sets_derived_from_two_metrics_are_stored_once() -> None:
    first_set, second_set = (SeriesSet(label_sets(name)).mapped("nameless", without_name) for name in ("temp", "power"))
    assert all(mine is theirs for mine, theirs in zip(first_set.pairs, second_set.pairs, strict=True))


def test_a_block_that_was_joined_with_memory_shares_its_label_sets() -> None:
    newest, older = SeriesSet(label_sets("temp")), SeriesSet([*label_sets("gone"), *reversed(label_sets("temp"))])
    pairs_before = list(older.pairs)
    union = UnionCache().get([older, newest])
    assert older.pairs == pairs_before
    assert all(mine is theirs for mine, theirs in zip(older.pairs[8:], reversed(newest.pairs), strict=True))
    assert sorted(union.series.pairs) == sorted(pairs_before)


def test_a_repeated_selection_needs_no_more_memory(tmp_path: Path) -> None:
    rig, temps = Rig(tmp_path), [named("temp", gpu=str(gpu)) for gpu in range(2000)]
    rig.scrape("node", temps, MINUTE, [1.0] * len(temps))
    tracemalloc.start()
    for turn in range(40):
        if turn == 10:
            before, _ = tracemalloc.get_traced_memory()
        rig.scrape(f"other {turn}", [named("other", turn=str(turn))], MINUTE, [1.0])
        rig.store.select([equals("__name__", "temp")], 0, MINUTE)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 10 * len(temps) * 8
    rig.store.close()


def test_chunks_of_a_removed_file_leave_the_cache() -> None:
    cache, kept = ChunkCache(), np.zeros((4, 4))
    for path in (Path("gone"), Path("stays")):
        cache.add((path, 0), kept)
    cache.drop_file(Path("gone"))
    assert cache.get((Path("gone"), 0)) is None
    assert cache.get((Path("stays"), 0)) is kept
    assert cache.used_bytes == kept.nbytes


def test_the_labels_of_many_series_are_split_into_records_and_all_are_read(tmp_path: Path) -> None:
    rig, many = Rig(tmp_path), [named("temp", gpu=str(gpu)) for gpu in range(2 * wal.MAX_DEFINITIONS + 1)]
    rig.scrape("node", many, MINUTE, [float(gpu) for gpu in range(len(many))])
    rig.reopen()
    [segment] = rig.segments()
    assert [len(first_set.definitions) for first_set in wal_records.records(segment)] == [
        wal.MAX_DEFINITIONS,
        wal.MAX_DEFINITIONS,
        1,
    ]
    columns = rig.store.select([equals("__name__", "temp")], 0, MINUTE)
    assert sorted(columns.values[:, 0].tolist()) == [float(gpu) for gpu in range(len(many))]
    rig.store.close()


def test_a_merged_block_answers_for_its_sources_and_they_leave_the_cache(tmp_path: Path) -> None:
    # The head keeps 80 minutes, two blocks and their late samples: what is older is read from blocks.
    rig = Rig(tmp_path, dataclasses.replace(SETTINGS, memory_ms=MINUTE))
    temps = [named("temp", gpu=str(gpu)) for gpu in range(3)]
    for minute in range(4 * 30 + 11):
        rig.scrape("node", temps, minute * MINUTE, [minute, 2.0 * minute, 0.5])
        if minute % 30 == 15:
            rig.store.select([equals("__name__", "temp")], -1, minute * MINUTE)
            rig.store.maintain(minute * MINUTE)
    assert rig.store._cache.used_bytes
    rig.store.maintain(4 * BLOCK + SETTINGS.late_ms)
    [merged] = rig.blocks()
    columns = rig.store.select([equals("__name__", "temp")], -1, 4 * BLOCK - 1)
    assert columns.values.shape == (3, 120)
    assert {path for path, _ in rig.store._cache._chunks} <= {merged}
    rig.store.close()


def test_a_block_drops_unused_labels_and_reads_them_again(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.scrape("node", [named("temp"), named("power")], MINUTE, [1.0, 2.0])
    rig.store.maintain(BLOCK + SETTINGS.late_ms)
    block = Block(rig.blocks()[0], cache=ChunkCache(), report=print)
    for name, value in (("temp", 1.0), ("temp", 1.0), ("power", 2.0)):
        assert block.select([equals("__name__", name)], 0, MINUTE).values.tolist() == [[value]]
        block.release_unused()
        block.release_unused()
        assert block._directory is None
    block.close()
    rig.store.close()
