"""A durable store gives the same results after a restart, after a block was written, and after a merge."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.store.durables import BLOCK, MINUTE, SETTINGS, Rig, equals, named, read
from watchkeeper import errors
from watchkeeper.model.samples import STALE, Sample
from watchkeeper.store import durable

TEMP = [named("temp", gpu="0"), named("temp", gpu="1")]
DAY = 86_400_000


def filled(rig: Rig, minutes: int, *, start: int = 0) -> None:
    """Two series a minute from one target, and one recorded series."""
    for minute in range(start, start + minutes):
        rig.scrape("node", TEMP, minute * MINUTE, [60.0 + minute, 0.125 * minute])
        rig.store.append([Sample(named("recorded"), minute * MINUTE, minute / 1000)])


def everything(rig: Rig) -> dict[str, object]:
    return {str(labels): rows for labels, rows in read(rig.store).items()}


def test_a_restart_brings_back_what_was_synced(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    filled(rig, 20)
    rig.scrape("node", TEMP, 20 * MINUTE, [STALE, float("nan")])
    before = everything(rig)
    rig.reopen()
    assert everything(rig) == before
    assert before['temp{gpu="0"}'][-1] == (20 * MINUTE, "stale")
    assert rig.store.status().replayed_samples == 62
    rig.store.close()


def test_a_target_continues_after_a_restart(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    filled(rig, 5)
    rig.reopen()
    filled(rig, 5, start=5)
    rig.reopen()
    assert len(everything(rig)['temp{gpu="1"}']) == 10
    rig.store.close()


def test_a_restart_knows_which_series_of_a_target_had_not_ended(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    filled(rig, 5)
    rig.scrape("node", TEMP, 5 * MINUTE, [STALE, 61.0])
    rig.scrape("node", TEMP[1:], 6 * MINUTE, [62.0])
    rig.reopen()
    assert list(rig.store.active_series("node", 5 * MINUTE).values()) == TEMP[1:]
    assert rig.store.active_series("node", 6 * MINUTE) == rig.store.active_series("stranger", 0) == {}
    rig.store.append_scrape("node", list(rig.store.active_series("node", 0)), 7 * MINUTE, [STALE])
    assert rig.store.active_series("node", 0) == {}
    rig.store.close()


def test_half_an_hour_becomes_a_block_when_late_samples_are_refused(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    filled(rig, 41)
    before = everything(rig)
    rig.store.maintain(BLOCK + SETTINGS.late_ms - 1)
    assert rig.blocks() == []
    rig.store.maintain(BLOCK + SETTINGS.late_ms)
    assert [path.name for path in rig.blocks()] == [f"0-{BLOCK}.block"]
    assert everything(rig) == before
    rig.reopen()
    assert everything(rig) == before
    assert rig.store.status().replayed_samples == 33
    rig.store.close()


def test_the_wal_drops_segments_whose_samples_are_in_a_block(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    filled(rig, 30)
    rig.store.sync()
    rig.store.maintain(BLOCK + SETTINGS.late_ms)
    assert rig.segments() == []
    rig.store.close()


def test_blocks_grow_into_larger_ones_and_answers_stay_the_same(tmp_path: Path) -> None:
    rig = Rig(tmp_path, dataclasses.replace(SETTINGS, memory_ms=10 * DAY))
    filled(rig, 9 * 60)
    before = everything(rig)
    rig.store.maintain(9 * 60 * MINUTE + SETTINGS.late_ms)
    spans = sorted(tuple(map(int, path.stem.split("-"))) for path in rig.blocks())
    assert spans == [(0, 16 * BLOCK), (16 * BLOCK, 17 * BLOCK), (17 * BLOCK, 18 * BLOCK)]
    rig.reopen()
    assert everything(rig) == before
    rig.store.close()


def test_a_crash_between_a_merge_and_its_cleanup_duplicates_nothing(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    filled(rig, 121)
    rig.store.maintain(3 * BLOCK + SETTINGS.late_ms)
    sources = {path: path.read_bytes() for path in rig.blocks()}
    rig.store.maintain(4 * BLOCK + SETTINGS.late_ms)
    before = everything(rig)
    rig.store.close()
    for path, content in sources.items():
        path.write_bytes(content)
    (tmp_path / "blocks" / "7-9.unfinished").write_bytes(b"half a block")
    rig.open()
    assert everything(rig) == before
    assert len(rig.blocks()) == 1
    assert not list((tmp_path / "blocks").glob("*.unfinished"))
    rig.store.close()


def test_blocks_older_than_the_retention_are_removed(tmp_path: Path) -> None:
    rig = Rig(tmp_path, dataclasses.replace(SETTINGS, retention_ms=DAY))
    filled(rig, 30)
    rig.store.maintain(BLOCK + DAY - 1)
    assert len(rig.blocks()) == 1
    rig.store.maintain(BLOCK + DAY)
    assert rig.blocks() == []
    rig.store.close()


def test_the_oldest_blocks_are_removed_above_the_disk_limit(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    filled(rig, 121)
    rig.store.maintain(3 * BLOCK + SETTINGS.late_ms)
    sizes = [path.stat().st_size for path in rig.blocks()]
    rig.settings = dataclasses.replace(SETTINGS, max_bytes=sum(sizes[1:]) + rig.store.status().log_bytes)
    rig.reopen()
    rig.store.maintain(3 * BLOCK + SETTINGS.late_ms)
    assert len(rig.blocks()) == len(sizes) - 1
    rig.store.close()


def test_a_late_sample_is_inserted_and_a_later_one_is_counted(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    filled(rig, 12)
    assert rig.scrape("node", TEMP, 10 * MINUTE + 1, [1.0, 2.0]).kept == 2
    assert rig.scrape("node", TEMP, 1, [1.0, 2.0]).dropped == {"out_of_order": 2}
    assert rig.store.append([Sample(named("recorded"), 10 * MINUTE + 1, 5.0)]).kept == 1
    assert rig.store.append([Sample(named("recorded"), 10 * MINUTE, 5.0)]).dropped == {"duplicate": 1}
    before = everything(rig)
    assert before['temp{gpu="0"}'][10:12] == [(10 * MINUTE, 70.0), (10 * MINUTE + 1, 1.0)]
    assert before["recorded"][11] == (10 * MINUTE + 1, 5.0)
    rig.reopen()
    assert everything(rig) == before
    rig.store.close()


def test_a_sample_for_a_time_that_a_block_has_is_too_old(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    filled(rig, 30)
    rig.store.maintain(BLOCK + SETTINGS.late_ms)
    assert rig.scrape("other", [named("new")], BLOCK - 1, [1.0]).dropped == {"too_old": 1}
    rig.store.close()


def test_an_exporter_from_the_future_expires_no_other_series(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    filled(rig, 5)
    for at_ms in (DAY, DAY + 1):
        ids = [rig.store.series_id(named("future"))]
        assert rig.store.append_scrape("liar", ids, at_ms, [1.0]).dropped == {"future": 1}
    ids = [rig.store.series_id(named("ahead"))]
    assert rig.store.append_scrape("ahead", ids, rig.now_ms + 600_000, [1.0]).kept == 1
    assert rig.store.head.newest_ms == rig.now_ms
    rig.store.close()


def test_blocks_of_a_clock_that_ran_ahead_are_quarantined(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    filled(rig, 30, start=24 * 60)
    rig.store.maintain(DAY + BLOCK + SETTINGS.late_ms)
    rig.store.close()
    rig.now_ms = 0
    rig.open()
    filled(rig, 5)
    assert len(everything(rig)['temp{gpu="0"}']) == 5
    assert len(list((tmp_path / "ahead").glob("*/*.block"))) == 2
    rig.store.close()


def test_metadata_survives_a_restart(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.store.metadata.record("temp", "gauge", help="GPU temperature", unit="celsius")
    rig.reopen()
    assert rig.store.metadata.descriptions() == {"temp": ("gauge", "GPU temperature", "celsius")}
    rig.store.close()


def test_labels_of_the_past_are_found(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    filled(rig, 30)
    rig.store.maintain(BLOCK + SETTINGS.late_ms)
    rig.now_ms = DAY
    rig.reopen()
    assert rig.store.label_values("gpu", [], 0, end_ms=BLOCK) == ["0", "1"]
    assert rig.store.label_names([equals("__name__", "temp")], 0, BLOCK) == ["__name__", "gpu"]
    assert sorted(rig.store.series([], 0, BLOCK)) == sorted([*TEMP, named("recorded")])
    assert rig.store.series([], BLOCK, DAY) == []
    assert rig.store.latest([equals("gpu", "1")], 0, BLOCK)[2].tolist() == [0.125 * 29]
    rig.store.close()


def test_more_samples_than_a_query_may_read_are_refused_before_they_are_unpacked(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    filled(rig, 30)
    rig.store.maintain(BLOCK + SETTINGS.late_ms)
    rig.now_ms = DAY
    rig.reopen()
    with pytest.raises(errors.QueryLimit, match="60 samples, the limit is 59"):
        rig.store.select([equals("__name__", "temp")], -1, BLOCK, max_samples=59)
    rig.store.close()


def test_a_directory_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "samples").write_text("a file is in the way")
    with pytest.raises(errors.StoreError, match="samples cannot be stored here"):
        durable.open_store(tmp_path / "samples", SETTINGS, clock_ms=lambda: 0)


def test_a_time_that_neither_memory_nor_a_block_has_is_empty(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    filled(rig, 30, start=60)
    rig.store.maintain(3 * BLOCK + SETTINGS.late_ms)
    rig.now_ms = DAY
    rig.reopen()
    assert read(rig.store, start=0, end=10 * MINUTE) == {}
    assert len(read(rig.store)[TEMP[0]]) == 30
    rig.store.close()
