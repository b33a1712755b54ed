"""Native histograms are stored like numbers: through restarts, blocks, merges and late samples, and only once."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from tests.store.durables import BLOCK, MINUTE, Rig, equals, named
from watchkeeper.model.histograms import CUSTOM, Histogram, HistogramSample, ResetHint
from watchkeeper.model.samples import STALE, Sample
from watchkeeper.store import durable, histograms, interfaces
from watchkeeper.store.head.head import Head
from watchkeeper.store.wal import wal_records

LATENCY = named("latency", node="n1")


def grown(count: int) -> Histogram:
    return Histogram(count=float(count), sum=count * 1.5, positive=((0, float(count)),))


def kept(store: durable.SampleStore, name: str = "latency") -> list[tuple[int, Histogram | float]]:
    """Every sample of one series, histograms as such."""
    columns = store.select([equals("__name__", name)], -1, 10**15)
    cells = store.find_histograms(columns.values)
    times = columns.times[columns.groups[0]].tolist() if len(columns.groups) else []
    histograms_there = [None] * len(times) if cells is None else cells[0].tolist()
    rows = zip(times, histograms_there, columns.values[0].tolist() if times else [], strict=True)
    return [(at_ms, number if cell is None else cell) for at_ms, cell, number in rows]


def fill(rig: Rig, minutes: int, *, start: int = 0) -> None:
    for minute in range(start, start + minutes):
        rig.now_ms = minute * MINUTE
        rig.store.append([HistogramSample(LATENCY, minute * MINUTE, grown(minute + 1))])
        rig.store.append([Sample(named("plain"), minute * MINUTE, 1.0)])


def counts(rig: Rig) -> list[float]:
    return [sample.count for _, sample in kept(rig.store) if isinstance(sample, Histogram)]


def test_a_restart_replays_histograms_from_the_wal(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    fill(rig, 5)
    before = kept(rig.store)
    rig.reopen()
    assert kept(rig.store) == before
    assert [sample.hint for _, sample in before if isinstance(sample, Histogram)] == [
        ResetHint.UNKNOWN,
        *[ResetHint.NOT_RESET] * 4,
    ]
    rig.store.close()


def test_histograms_continue_after_a_restart_and_each_segment_is_self_contained(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.store.append([HistogramSample(LATENCY, 0, grown(1))])
    rig.reopen()
    # The same histogram again, in a segment of its own.
    rig.now_ms = MINUTE
    rig.store.append([HistogramSample(LATENCY, MINUTE, grown(1))])
    rig.store.close()
    rig.segments()[0].unlink()
    rig.open()
    assert counts(rig) == [1.0]
    rig.store.close()


def test_blocks_hold_their_histograms_and_a_merge_keeps_them(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    fill(rig, 200)
    rig.now_ms = 8 * BLOCK
    rig.store.maintain(rig.now_ms)
    assert rig.blocks()[0].name == f"0-{4 * BLOCK}.block"
    assert counts(rig) == [float(count) for count in range(1, 201)]
    rig.reopen()
    assert counts(rig) == [float(count) for count in range(1, 201)]
    assert rig.store.warnings() == ()
    rig.store.close()


def test_only_blocks_with_histograms_have_a_table_of_them(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.store.append([Sample(named("plain"), 0, 1.0)])
    rig.now_ms = 3 * BLOCK
    rig.store.maintain(rig.now_ms)
    fill(rig, 1, start=130)
    rig.now_ms = 7 * BLOCK
    rig.store.maintain(rig.now_ms)
    assert [b'"histograms"' in path.read_bytes() for path in rig.blocks()] == [False, True]
    rig.store.close()


def test_a_late_histogram_is_inserted_and_an_old_one_is_refused(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    fill(rig, 1)
    fill(rig, 1, start=20)
    outcome = rig.store.append([HistogramSample(LATENCY, 15 * MINUTE, grown(15))])
    assert outcome == interfaces.Appended(1, {})
    outcome = rig.store.append([HistogramSample(LATENCY, MINUTE, grown(2))])
    assert outcome == interfaces.Appended(0, {"out_of_order": 1})
    rig.reopen()
    assert counts(rig) == [1.0, 15.0, 21.0]
    rig.store.close()


def test_a_repeated_histogram_is_stored_once_and_a_different_one_is_refused() -> None:
    head = Head()
    sample = HistogramSample(LATENCY, MINUTE, grown(3))
    assert [head.append([sample]).kept, head.append([sample]).kept] == [1, 1]
    assert head.append([HistogramSample(LATENCY, MINUTE, grown(4))]).dropped == {"duplicate": 1}
    assert len(kept(head)) == 1


def test_numbers_and_histograms_may_alternate() -> None:
    head = Head()
    head.append([Sample(LATENCY, 0, 2.5), HistogramSample(LATENCY, 1, grown(3)), Sample(LATENCY, 2, 4.5)])
    assert [getattr(sample, "count", sample) for _, sample in kept(head)] == [2.5, 3.0, 4.5]


def test_a_counter_reset_is_detected_and_a_gauge_stays_a_gauge() -> None:
    head = Head()
    gauge = dataclasses.replace(grown(1), hint=ResetHint.GAUGE)
    rows = [grown(3), grown(2), Histogram(CUSTOM, 9.0, bounds=(1.0,)), gauge, grown(5)]
    head.append(HistogramSample(LATENCY, at, sample) for at, sample in enumerate(rows))
    hints = [sample.hint for _, sample in kept(head) if isinstance(sample, Histogram)]
    assert hints == [ResetHint.UNKNOWN, ResetHint.RESET, ResetHint.RESET, ResetHint.GAUGE, ResetHint.UNKNOWN]


def test_a_stale_histogram_is_a_stale_marker() -> None:
    head = Head()
    head.append([HistogramSample(LATENCY, 0, Histogram(sum=STALE))])
    [(_, value)] = kept(head)
    assert np.array([value]).view(np.int64)[0] == np.array([STALE]).view(np.int64)[0]


def test_a_number_that_looks_like_a_mark_is_an_ordinary_nan() -> None:
    head = Head()
    looks = np.array([histograms.mark_of(histograms.pack_histogram(grown(1)))]).view(np.float64)[0]
    head.append([Sample(named("plain"), 0, float(looks)), HistogramSample(LATENCY, 0, grown(1))])
    [(_, value)] = kept(head, "plain")
    assert np.isnan(value)


def test_histograms_expire_with_their_samples() -> None:
    head = Head(retention_ms=10 * MINUTE)
    for minute in range(100):
        head.append([HistogramSample(LATENCY, minute * MINUTE, grown(minute + 1))])
    assert 10 < len(head.histograms.packed) < 40


def test_histograms_above_the_memory_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histograms, "MAX_BYTES", 200)
    head = Head()
    outcome = head.append(HistogramSample(LATENCY, minute * MINUTE, grown(minute)) for minute in range(10))
    assert outcome == interfaces.Appended(3, {"limit": 7})
    assert head.append([Sample(named("plain"), 0, 1.0)]).kept == 1


def test_a_mark_without_its_histogram_reads_as_absent(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    fill(rig, 3)
    rig.store.head.histograms.packed.pop(next(iter(rig.store.head.histograms.packed)))
    assert counts(rig) == [2.0, 3.0]
    rig.store.close()


def test_a_record_of_an_earlier_version_has_no_histograms(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.store.append([Sample(named("plain"), 0, 1.0)])
    rig.store.close()
    [record] = [
        sample for sample in wal_records.records(rig.segments()[0]) if isinstance(sample, wal_records.WalRecord)
    ]
    assert record.histograms == {}


@pytest.mark.parametrize("salt", [0, 1])
def test_a_mark_is_a_nan_that_no_number_is(salt: int) -> None:
    mark = np.array([histograms.mark_of(histograms.pack_histogram(grown(7)), salt)])
    assert np.isnan(mark.view(np.float64)[0])
    assert histograms.is_histogram(mark.view(np.float64)).all()
    odd = np.array([np.nan, -np.nan, np.inf, STALE, 0.0, -1.0])
    assert not histograms.is_histogram(odd).any()
