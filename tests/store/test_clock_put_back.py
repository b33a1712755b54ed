"""A clock that was ahead is set back: new samples are accepted, past samples stay, future samples are quarantined."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.properties import examples
from tests.store.durables import BLOCK, MINUTE, SETTINGS, Rig, named, read
from watchkeeper.kit import clock
from watchkeeper.model.samples import Sample
from watchkeeper.store import clock_check

HOUR = 60 * MINUTE
DAY = 24 * HOUR
TEMP = [named("temp", gpu="0"), named("temp", gpu="1")]


def filled(rig: Rig, start_ms: int, minutes: int, *, maintains: bool = False) -> None:
    """Two series a minute from one target, and one recorded series."""
    for at_ms in range(start_ms, start_ms + minutes * MINUTE, MINUTE):
        rig.now_ms = at_ms
        assert rig.scrape("node", TEMP, at_ms, [at_ms / 1000, 1.0]).dropped == {}
        rig.store.append([Sample(named("recorded"), at_ms, 2.0)])
        if maintains:
            rig.store.maintain(at_ms)


def times(rig: Rig) -> dict[str, list[int]]:
    return {str(labels): [at for at, _ in rows] for labels, rows in read(rig.store).items()}


@pytest.mark.parametrize("ahead_ms", [11 * MINUTE, 3 * HOUR, 40 * DAY])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_past_samples_stay_and_future_samples_are_quarantined(
    tmp_path: Path, ahead_ms: int, is_restarted: bool
) -> None:
    rig = Rig(tmp_path)
    filled(rig, DAY, 100, maintains=True)
    real = times(rig)
    filled(rig, DAY + 100 * MINUTE + ahead_ms, 45, maintains=True)
    rig.store.sync()
    rig.now_ms = DAY + 100 * MINUTE
    if is_restarted:
        rig.store.close()
        rig.open()
    else:
        quarantined = rig.store.quarantine_future_samples()
        assert quarantined.samples == 3 * 45
    assert times(rig) == real
    filled(rig, DAY + 101 * MINUTE, 60, maintains=True)
    expected = list(range(DAY, DAY + 100 * MINUTE, MINUTE)) + list(
        range(DAY + 101 * MINUTE, DAY + 161 * MINUTE, MINUTE)
    )
    assert set(map(tuple, times(rig).values())) == {tuple(expected)}
    rig.reopen()
    assert set(map(tuple, times(rig).values())) == {tuple(expected)}
    assert list(tmp_path.glob("ahead/*/*.block"))
    rig.store.close()


@pytest.mark.parametrize("back_minutes", [2, 4, 9, 15])
def test_a_store_with_a_short_out_of_order_window_works_after_a_restart_with_the_clock_set_back(
    tmp_path: Path, back_minutes: int
) -> None:
    rig = Rig(tmp_path, dataclasses.replace(SETTINGS, block_ms=3 * MINUTE, late_ms=MINUTE // 2, memory_ms=6 * MINUTE))
    filled(rig, DAY, 60, maintains=True)
    rig.store.sync()
    rig.store.close()
    rig.now_ms = DAY + (60 - back_minutes) * MINUTE + 1
    rig.open()
    filled(rig, rig.now_ms + 1, 5, maintains=True)
    assert len(times(rig)['temp{gpu="0"}']) >= 60 - back_minutes + 5
    rig.store.close()


@pytest.mark.slow
@examples(10)
@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(1, 60), st.booleans()), min_size=1, max_size=5))
def test_any_walk_of_the_clock_keeps_all_samples_before_the_time_it_was_set_back_to(
    tmp_path_factory: pytest.TempPathFactory, walk: list[tuple[int, int, bool]]
) -> None:
    """The law: what is seen are the samples of each stretch up to the moment that the clock was put back to."""
    rig = Rig(tmp_path_factory.mktemp("walk"))
    check = clock_check.ClockCheck(monotonic=iter(range(0, 10**9, 60)).__next__)
    now, kept = 10 * DAY, list[int]()
    for hours, minutes, is_restarted in walk:
        now += hours * HOUR
        rig.now_ms = now
        if is_restarted:
            rig.reopen()
        while rig.store.newest_ms is not None and rig.store.newest_ms > now + 10 * MINUTE:
            check.quarantine_if_ahead(rig.store, now)
        kept = [at for at in kept if at <= now]
        filled(rig, now + MINUTE, minutes)
        rig.store.maintain(now + minutes * MINUTE)
        kept += range(now + MINUTE, now + (minutes + 1) * MINUTE, MINUTE)
        now += minutes * MINUTE
        assert times(rig)['temp{gpu="0"}'] == kept
    rig.store.close()


def test_a_clock_that_is_wrong_for_a_moment_changes_nothing(tmp_path: Path) -> None:
    rig, seconds = Rig(tmp_path), [0.0]
    check = clock_check.ClockCheck(monotonic=lambda: seconds[0])
    filled(rig, DAY, 10)
    for seconds[0] in (0.0, 19.0):
        assert check.quarantine_if_ahead(rig.store, DAY - HOUR) == ""
    assert "1.1 h ahead of the clock" in clock_check.describe_problem(rig.store, DAY - HOUR)
    assert check.quarantine_if_ahead(rig.store, DAY + 10 * MINUTE) == ""
    seconds[0] = 21.0
    assert check.quarantine_if_ahead(rig.store, DAY - HOUR) == ""
    assert len(times(rig)['temp{gpu="0"}']) == 10
    rig.store.close()


def test_a_quarantine_is_reported_with_its_count(tmp_path: Path) -> None:
    rig, seconds = Rig(tmp_path), [0.0]
    check = clock_check.ClockCheck(monotonic=lambda: seconds[0])
    filled(rig, DAY, 10)
    rig.now_ms = DAY - HOUR
    check.quarantine_if_ahead(rig.store, rig.now_ms)
    seconds[0] = clock_check.QUARANTINE_AFTER_SECONDS
    problem = check.quarantine_if_ahead(rig.store, rig.now_ms)
    assert problem == (
        "set back by 1.1 h: 30 samples ahead of it were moved to"
        f" {tmp_path}/ahead/1970-01-01T23-00-00.000Z-0 and are not queried"
    )
    assert clock_check.describe_problem(rig.store, rig.now_ms) == ""
    rig.store.close()


def test_a_clock_that_jumps_past_the_retention_removes_nothing_for_a_day(tmp_path: Path) -> None:
    rig = Rig(tmp_path, dataclasses.replace(SETTINGS, retention_ms=2 * DAY))
    filled(rig, 0, 100, maintains=True)
    before = times(rig)
    for minute in range(1430):
        rig.store.maintain(30 * DAY + minute * MINUTE)
    assert times(rig) == before
    rig.reopen()
    for minute in range(2):
        rig.store.maintain(30 * DAY + minute * MINUTE)
    assert rig.blocks() == []
    rig.store.close()


def test_the_day_without_removal_ends_when_the_clock_is_set_back() -> None:
    doubt = clock.ClockJumpGuard(3600)
    assert [doubt.may_remove(at) for at in (0, 3600, 10**6, 10**6 + 3600, 7200, 10800)] == [
        True,
        True,
        False,
        False,
        True,
        True,
    ]


def test_quarantined_samples_are_removed_after_the_retention(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    filled(rig, 10**12, 40)
    rig.now_ms = 10**12 - DAY
    rig.store.quarantine_future_samples()
    assert list(tmp_path.glob("ahead/*/*.block"))
    rig.store.maintain(4 * 10**12)
    assert not list(tmp_path.glob("ahead/*"))
    rig.store.close()


@pytest.mark.parametrize("maintains", [False, True])
def test_quarantined_blocks_can_be_moved_back(tmp_path: Path, maintains: bool) -> None:
    rig = Rig(tmp_path)
    filled(rig, DAY, 100, maintains=maintains)
    before = times(rig)
    rig.now_ms = DAY - 3 * HOUR
    rig.store.quarantine_future_samples()
    assert times(rig) == {}
    rig.store.close()
    for path in tmp_path.glob("ahead/*/*.block"):
        path.rename(tmp_path / "blocks" / path.name)
    rig.now_ms = DAY + 3 * HOUR
    rig.open()
    assert times(rig) == before
    rig.store.close()


def test_two_quarantines_do_not_overwrite_each_other(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    for _ in range(2):
        rig.now_ms = DAY
        filled(rig, DAY + 3 * HOUR, BLOCK // MINUTE + 15, maintains=True)
        rig.now_ms = DAY
        rig.store.quarantine_future_samples()
    assert len(list(tmp_path.glob("ahead/*/*.block"))) == 4
    rig.store.close()
