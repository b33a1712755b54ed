"""Native histograms are kept like numbers: through restarts, blocks, merges and late arrivals, and never twice."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from tests.store.durables import BLOCK, MINUTE, Rig, equals, named
from watchkeeper.model.histograms import CUSTOM, Histogram, HistogramSample, ResetHint
from watchkeeper.model.samples import STALE, Sample
from watchkeeper.store import histograms, interfaces
from watchkeeper.store.head.head import Head
from watchkeeper.store.wal import wal_records

LATENCY = named("latency", node="n1")


def grown(count: int) -> Histogram:
    return Histogram(count=float(count), sum=count * 1.5, positive=((0, float(count)),))


def kept(store: interfaces.SampleStore, name: str = "latency") -> list[tuple[int, Histogram | float]]:
    """Every sample of one series, histograms as such."""
    found = store.select([equals("__name__", name)], -1, 10**15)
    cells = store.find_histograms(found.values)
    times = found.times[found.groups[0]].tolist() if len(found.groups) else []
    histograms_there = [None] * len(times) if cells is None else cells[0].tolist()
    rows = zip(times, histograms_there, found.values[0].tolist() if times else [], strict=True)
    return [(at_ms, number if cell is None else cell) for at_ms, cell, number in rows]


def fill(rig: Rig, minutes: int, *, start: int = 0) -> None:
    for minute in range(start, start + minutes):
        rig.now_ms = minute * MINUTE
        rig.store.append([HistogramSample(LATENCY, minute * MINUTE, grown(minute + 1))])
        rig.store.append([Sample(named("plain"), minute * MINUTE, 1.0)])


def counts(rig: Rig) -> list[float]:
    return [one.count for _, one in kept(rig.store) if isinstance(one, Histogram)]


def test_a_restart_brings_histograms_back_from_the_log(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    fill(rig, 5)
    before = kept(rig.store)
    rig.reopen()
    assert kept(rig.store) == before
    assert [one.hint for _, one in before if isinstance(one, Histogram)] == [
        ResetHint.UNKNOWN,
        *[ResetHint.NOT_RESET] * 4,
    ]
    rig.store.close()


def test_histograms_go_on_after_a_restart_and_a_segment_stands_by_itself(tmp_path: Path) -> None:
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


def test_a_late_histogram_finds_its_place_and_an_old_one_none(tmp_path: Path) -> None:
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


def test_the_same_histogram_again_is_no_second_one_and_another_is_refused() -> None:
    head = Head()
    sample = HistogramSample(LATENCY, MINUTE, grown(3))
    assert [head.append([sample]).kept, head.append([sample]).kept] == [1, 1]
    assert head.append([HistogramSample(LATENCY, MINUTE, grown(4))]).dropped == {"duplicate": 1}
    assert len(kept(head)) == 1


def test_numbers_and_histograms_may_take_turns() -> None:
    head = Head()
    head.append([Sample(LATENCY, 0, 2.5), HistogramSample(LATENCY, 1, grown(3)), Sample(LATENCY, 2, 4.5)])
    assert [getattr(one, "count", one) for _, one in kept(head)] == [2.5, 3.0, 4.5]


def test_a_counter_that_began_anew_is_known_and_a_gauge_stays_one() -> None:
    head = Head()
    gauge = dataclasses.replace(grown(1), hint=ResetHint.GAUGE)
    rows = [grown(3), grown(2), Histogram(CUSTOM, 9.0, bounds=(1.0,)), gauge, grown(5)]
    head.append(HistogramSample(LATENCY, at, one) for at, one in enumerate(rows))
    hints = [one.hint for _, one in kept(head) if isinstance(one, Histogram)]
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


def test_what_is_too_old_is_forgotten_with_its_samples() -> None:
    head = Head(retention_ms=10 * MINUTE)
    for minute in range(100):
        head.append([HistogramSample(LATENCY, minute * MINUTE, grown(minute + 1))])
    assert 10 < len(head.histograms.packed) < 40


def test_histograms_beyond_what_memory_holds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histograms, "MAX_BYTES", 200)
    head = Head()
    outcome = head.append(HistogramSample(LATENCY, minute * MINUTE, grown(minute)) for minute in range(10))
    assert outcome == interfaces.Appended(3, {"limit": 7})
    assert head.append([Sample(named("plain"), 0, 1.0)]).kept == 1


def test_a_mark_without_its_histogram_reads_as_nothing(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    fill(rig, 3)
    rig.store.head.histograms.packed.pop(next(iter(rig.store.head.histograms.packed)))
    assert counts(rig) == [2.0, 3.0]
    rig.store.close()


def test_a_record_of_an_earlier_version_has_no_histograms(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.store.append([Sample(named("plain"), 0, 1.0)])
    rig.store.close()
    [record] = [one for one in wal_records.records(rig.segments()[0]) if isinstance(one, wal_records.WalRecord)]
    assert record.histograms == {}


@pytest.mark.parametrize("salt", [0, 1])
def test_a_mark_is_a_nan_that_no_number_is(salt: int) -> None:
    mark = np.array([histograms.mark_of(histograms.pack_histogram(grown(7)), salt)])
    assert np.isnan(mark.view(np.float64)[0])
    assert histograms.is_histogram(mark.view(np.float64)).all()
    odd = np.array([np.nan, -np.nan, np.inf, STALE, 0.0, -1.0])
    assert not histograms.is_histogram(odd).any()
