"""Replay restores all samples of the WAL, also when it reads many series and slots at a time."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.properties import examples
from tests.store.durables import MINUTE, SETTINGS, Rig, equals, named, read
from watchkeeper import errors
from watchkeeper.model.labels import Labels
from watchkeeper.store.head.head import Head
from watchkeeper.store.series import UNKNOWN
from watchkeeper.store.wal import wal, wal_reader

NAMES, NODES = st.sampled_from(["", "temp", "power"]), st.sampled_from(["", "a", "b", "ab"])
LABEL_SETS = st.lists(st.builds(lambda name, node: Labels({"__name__": name, "node": node}), NAMES, NODES), max_size=12)


def add_one_by_one(head: Head, requested: list[Labels]) -> list[int]:
    ids = []
    for labels in requested:
        try:
            ids.append(head.series_id(labels))
        except errors.StoreError:
            ids.append(UNKNOWN)
    return ids


@given(LABEL_SETS, LABEL_SETS, st.sets(st.integers(0, 11)), st.integers(0, 6))
def test_adding_many_series_equals_adding_them_one_by_one(
    before: list[Labels], requested: list[Labels], silent: set[int], room: int
) -> None:
    heads = [Head(retention_ms=MINUTE, max_series=room), Head(retention_ms=MINUTE, max_series=room)]
    for head in heads:
        ids = add_one_by_one(head, [Labels(labels) for labels in before])
        spoken = np.array(sorted({id for at, id in enumerate(ids) if at not in silent and id != UNKNOWN}), dtype=int)
        head.append_scrape("node", spoken, 10 * MINUTE, np.ones(len(spoken)))
        head.expire(10 * MINUTE)
    id_lists = [
        add_one_by_one(heads[0], [Labels(labels) for labels in requested]),
        heads[1].series_ids([Labels(labels) for labels in requested]).tolist(),
    ]
    assert id_lists[0] == id_lists[1]
    assert heads[0].cardinality(99) == heads[1].cardinality(99)
    for matchers in ([], [equals("__name__", "temp")], [equals("node", "a")], [equals("node", "")]):
        series = [head.select(matchers, 0, 10 * MINUTE).series for head in heads]
        assert list(series[0].pairs) == list(series[1].pairs)
    accepted = [id for id in id_lists[0] if id != UNKNOWN]
    outcomes = [head.append_scrape("again", accepted, 11 * MINUTE, np.arange(float(len(accepted)))) for head in heads]
    assert outcomes[0] == outcomes[1]
    assert read(heads[0]) == read(heads[1])


# A target, how many series it has now, and whether the log is synced behind it: several scrapes share a record.
SCRAPES = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 20), st.booleans()), max_size=60)


@pytest.mark.slow
@examples(100)
@given(SCRAPES, st.integers(2, 7))
def test_scrapes_of_any_shape_are_replayed(scrapes: list[tuple[str, int, bool]], gathered: int) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(wal_reader, "BUFFERED_SLOTS", gathered)
        patch.setattr(wal_reader, "SPARE_SERIES", 2)
        patch.setattr(wal, "FULL_SLOT_INTERVAL", 4)
        rig = Rig(Path(folder))
        for at, (target, count, is_synced) in enumerate(scrapes):
            series = [named("temp", target=target, gpu=str(gpu)) for gpu in range(count)]
            values = [float(at if gpu % 3 else gpu) / (1 + gpu % 2 * 6) for gpu in range(count)]
            rig.scrape(target, series, at * 1000, values)
            if is_synced:
                rig.store.sync()
        held = read(rig.store)
        assert read(rig.reopen()) == held
        rig.store.close()


def test_a_reused_series_number_keeps_the_samples_of_the_earlier_series(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.scrape("gone", [named("temp", node="gone")], MINUTE, [1.0])
    rig.store.sync()
    later = MINUTE + SETTINGS.memory_ms + MINUTE
    rig.store.head.unsaved_from_ms = later
    rig.now_ms = later
    rig.store.head.expire(later)
    rig.scrape("came", [named("temp", node="came")], later, [2.0])
    rig.store.close()
    rig.open()
    assert [rows for _, rows in sorted(read(rig.store).items())] == [[(later, 2.0)], [(MINUTE, 1.0)]]
    rig.store.close()


def test_a_target_of_two_hours_gets_room_for_them_at_once(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    series = [named("temp", gpu=str(gpu)) for gpu in range(3)]
    for slot in range(480):
        rig.scrape("node", series, slot * 15_000, [slot, slot / 7, 1.0])
    held, used = read(rig.store), rig.store.head.used_bytes
    rig.reopen()
    assert read(rig.store) == held
    assert rig.store.head.used_bytes == used
    # No rows of a shorter length were ever taken.
    assert [slab.capacity for slab in rig.store.head._table.slabs if slab._narrow._blocks] == [512]
    rig.store.close()
