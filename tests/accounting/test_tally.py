"""Closing the books: recorded hours with gaps, overlaps and unseen minutes; any partition of any history sums."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.accounting.histories import empty_engine, read_usage
from tests.properties import examples
from watchkeeper.accounting import ledger, recorded_hours, summary, usage, usage_reader
from watchkeeper.accounting.tally import HOUR, MIN_GAP_SECONDS, unowned_key
from watchkeeper.model.labels import METRIC_NAME, Labels
from watchkeeper.model.samples import Sample
from watchkeeper.query import embedded

# 2026-11-01T00:00Z
DAY = 1_793_491_200.0
TEAMS = ("vision", "speech", "")
hours = st.dictionaries(
    st.integers(0, 30), st.tuples(st.floats(0, 8), st.floats(0, 8), st.integers(1, 60)), min_size=1, max_size=12
)


def engine_of(recorded_hours: dict[int, tuple[float, float, int]], *, offset: float = 0.4) -> embedded.EmbeddedEngine:
    """An engine with recorded hours: GPUs of vision, GPUs that are idle, and minutes that were seen."""
    engine = empty_engine()
    for hour, (held, idle, minutes) in sorted(recorded_hours.items()):
        at = round((DAY + (hour + 1) * HOUR + offset) * 1000)
        share = minutes / 60
        team = {METRIC_NAME: "watchkeeper:team_gpu_hours:sum", "cluster": "main", "modelName": "NVIDIA H200"}
        engine.appender.append(
            [
                Sample(Labels({METRIC_NAME: "watchkeeper:usage_minutes:count", "cluster": "main"}), at, float(minutes)),
                Sample(Labels({**team, "team": "vision", "part": "allocated"}), at, held * share),
                Sample(Labels({**team, "team": usage.UNOWNED, "part": "idle"}), at, idle * share),
            ]
        )
    return engine


def totals(engine: embedded.EmbeddedEngine, since: float, until: float) -> usage.Amounts:
    return summary.total(read_usage(engine, None, since=since, until=until, by_job=False))


@examples(40)
@given(hours)
def test_every_hour_since_the_first_is_accounted_for(slots_by_hour: dict[int, tuple[float, float, int]]) -> None:
    amounts = totals(engine_of(slots_by_hour), DAY, DAY + 31 * HOUR)
    last, expected = 0.0, 0.0
    for hour in range(min(slots_by_hour), 31):
        if hour in slots_by_hour:
            last = slots_by_hour[hour][0] + slots_by_hour[hour][1]
        # What was not seen of the very first hour lies before the records.
        minutes = slots_by_hour[hour][2] if hour == min(slots_by_hour) > 0 else 60
        expected += last * (1 if minutes >= 48 else minutes / 60)
    assert usage.total(amounts) == pytest.approx(expected, rel=1e-4, abs=1e-6)


@pytest.mark.slow
@examples(40)
@given(hours, st.lists(st.integers(0, 31 * 60), min_size=1, max_size=4, unique=True).map(sorted), st.floats(0, 3599))
@example({0: (0.0, 0.0, 1), 8: (0.0, 0.0, 1), 1: (0.0, 1.0, 1)}, [521], 2461.0)
def test_windows_that_tile_a_time_sum_to_it(
    slots_by_hour: dict[int, tuple[float, float, int]], cuts: list[int], offset: float
) -> None:
    whole_hours = {hour: (held, idle, 60) for hour, (held, idle, _) in slots_by_hour.items()}
    engine = engine_of(whole_hours, offset=offset)
    edges = [DAY, *(DAY + cut * 60 for cut in cuts if 0 < cut < 31 * 60), DAY + 31 * HOUR]
    pieces = [totals(engine, since, until) for since, until in itertools.pairwise(edges)]
    whole = totals(engine, edges[0], edges[-1])
    apart = np.abs(np.sum(pieces, axis=0) - whole)
    # A cut may leave so little of a gap on one of its sides that it looks like the jitter of clocks.
    most_gpus = max(held + idle for held, idle, _ in slots_by_hour.values())
    tolerance = (len(pieces) - 1) * most_gpus * MIN_GAP_SECONDS / HOUR
    assert apart[usage.UNKNOWN] <= tolerance + 1e-6 * (1 + whole[usage.UNKNOWN])
    assert np.delete(apart, usage.UNKNOWN) == pytest.approx(0.0, abs=1e-6 * (1 + float(whole.max())))


def test_a_gap_is_unknown_and_never_idle_and_both_are_said() -> None:
    engine = engine_of({2: (6.0, 2.0, 60), 5: (6.0, 2.0, 60)})
    table = read_usage(engine, None, since=DAY, until=DAY + 6 * HOUR, by_job=False)
    amounts = summary.total(table)
    assert amounts[usage.UNKNOWN] == pytest.approx(16.0)
    assert amounts[usage.IDLE] == pytest.approx(4.0)
    assert any("records start at 2026-11-01T02:00Z; the 2.0 hours before are excluded" in note for note in table.notes)
    assert any("no records for 2.0 hours" in note for note in table.notes)


def test_hours_that_overlap_after_a_restart_count_once() -> None:
    engine = engine_of({0: (8.0, 0.0, 60), 1: (8.0, 0.0, 60)})
    engine.appender.append(engine_with_offset_hour())
    assert totals(engine, DAY, DAY + 3 * HOUR)[usage.ALLOCATED] == pytest.approx(8 * 2.5, rel=1e-3)


def engine_with_offset_hour() -> list[Sample]:
    """A second evaluator's hour from 1:30 to 2:30."""
    labels = {METRIC_NAME: "watchkeeper:team_gpu_hours:sum", "cluster": "main", "modelName": "NVIDIA H200"}
    at = round((DAY + 2.5 * HOUR) * 1000)
    return [
        Sample(Labels({**labels, "team": "vision", "part": "allocated"}), at, 8.0),
        Sample(Labels({METRIC_NAME: "watchkeeper:usage_minutes:count", "cluster": "main"}), at, 60.0),
    ]


def hours_of_a_day(day: float, rows: int = 24) -> recorded_hours.RecordedHours:
    keys = [usage.make_key(cluster="main", team=team, model="NVIDIA H200") for team in TEAMS] + [
        unowned_key(cluster="main")
    ]
    amounts = np.zeros((rows * len(keys), len(usage.PARTS)))
    amounts[:, usage.ALLOCATED] = np.tile([3.0, 2.0, 1.0, 0.0], rows)
    amounts[:, usage.IDLE] = np.tile([0.0, 0.0, 0.0, 2.0], rows)
    starts = np.repeat(day + np.arange(rows) * HOUR, len(keys))
    return recorded_hours.RecordedHours(
        starts, keys * rows, amounts, {"main": {day + at * HOUR: 1.0 for at in range(rows)}}
    )


@examples(25)
@given(st.integers(0, 71), st.integers(1, 72))
def test_a_ledger_gives_back_any_window(tmp_path_factory: pytest.TempPathFactory, first: int, length: int) -> None:
    kept = ledger.UsageLedger(tmp_path_factory.mktemp("ledger"))
    for day in range(3):
        day_hours = hours_of_a_day(DAY + day * 86_400)
        kept.write_day(DAY + day * 86_400, day_hours, day_hours)
    last = min(first + length, 72)
    table = read_usage(empty_engine(), kept, since=DAY + first * HOUR, until=DAY + last * HOUR, by_job=False)
    assert usage.total(summary.total(table)) == pytest.approx(8.0 * (last - first), rel=1e-6)
    assert {line.names[0]: round(float(line.amounts[0])) for line in summary.usage_lines(table, ["team"])} == {
        "vision": 3 * (last - first), "speech": 2 * (last - first), "unmapped": last - first, usage.UNOWNED: 0,
    }  # fmt: skip


@examples(40)
@given(hours, st.integers(1, 31), st.sampled_from([0.4, 1500.0]))
def test_a_ledger_that_lags_behind_changes_no_total(
    tmp_path_factory: pytest.TempPathFactory,
    slots_by_hour: dict[int, tuple[float, float, int]],
    kept_hours: int,
    offset: float,
) -> None:
    engine, kept = engine_of(slots_by_hour, offset=offset), ledger.UsageLedger(tmp_path_factory.mktemp("ledger"))
    for day in (DAY, DAY + 86_400):
        recorded = recorded_hours.read_hours(engine, day, min(day + 86_400, DAY + kept_hours * HOUR), by_job=False)
        if len(recorded.starts):
            kept.write_day(day, recorded, recorded)
    window = {"since": DAY - HOUR, "until": DAY + 32 * HOUR, "by_job": False}
    from_engine, other = (summary.total(read_usage(engine, source, **window)) for source in (None, kept))
    assert other == pytest.approx(from_engine, rel=1e-5, abs=1e-5)


def test_a_day_is_never_replaced_by_one_with_fewer_hours(tmp_path: Path) -> None:
    kept = ledger.UsageLedger(tmp_path)
    assert kept.is_missing_hours(DAY, hours_of_a_day(DAY))
    kept.write_day(DAY, hours_of_a_day(DAY), hours_of_a_day(DAY))
    assert not kept.is_missing_hours(DAY, hours_of_a_day(DAY, rows=9))


def test_a_broken_day_is_said_and_counts_as_unknown(tmp_path: Path) -> None:
    kept = ledger.UsageLedger(tmp_path)
    for day in range(3):
        kept.write_day(DAY + day * 86_400, hours_of_a_day(DAY + day * 86_400), hours_of_a_day(DAY + day * 86_400))
    (tmp_path / "2026-11-02.npz").write_bytes(b"PK nonsense")
    table = read_usage(empty_engine(), kept, since=DAY, until=DAY + 3 * 86_400, by_job=False)
    assert summary.total(table)[usage.UNKNOWN] == pytest.approx(24 * 8)
    assert any("cannot read the usage ledger of 2026-11-02" in note for note in table.notes)


def test_nothing_recorded_says_when_it_will_be() -> None:
    table = read_usage(empty_engine(), None, since=DAY, until=DAY + HOUR, by_job=False)
    assert "usage starts when the rules of usage-hours.yaml have run" in table.notes[0]


def test_a_hub_that_is_away_where_a_window_begins_leaves_no_hour_out() -> None:
    engine = engine_of(dict.fromkeys((*range(10), *range(20, 30)), (4, 2, 60)))
    whole = totals(engine, DAY, DAY + 30 * HOUR)
    for cut in (11, 15, 19):
        parts = totals(engine, DAY, DAY + cut * HOUR) + totals(engine, DAY + cut * HOUR, DAY + 30 * HOUR)
        assert parts == pytest.approx(whole)
    later = read_usage(engine, None, since=DAY + 15 * HOUR, until=DAY + 30 * HOUR, by_job=False)
    assert later.recorded_hours == 15
    assert [note.partition(":")[2] for note in later.notes] == [
        " no records for 5.0 hours (from 2026-11-01T15:00Z); its GPUs count as unknown"
    ]


def test_a_bill_that_is_cut_by_prices_has_the_hours_of_the_whole_time() -> None:
    engine = engine_of(dict.fromkeys((*range(3, 10), *range(20, 25)), (4, 2, 60)))
    cuts = [DAY + at * HOUR for at in (0, 2, 12, 16, 25)]
    pieces = usage_reader.read_usage_periods(engine, None, list(itertools.pairwise(cuts)), by_job=False)
    assert [usage.total(summary.total(piece)) for piece in pieces] == pytest.approx([0, 54, 24, 54])
    assert usage.total(summary.total(usage.join_tables(pieces))) == pytest.approx(
        usage.total(totals(engine, cuts[0], cuts[-1]))
    )
    start_notes = [note for note in usage.join_tables(pieces).notes if "records start" in note]
    assert [note.partition("; ")[2] for note in start_notes] == ["the 3.0 hours before are excluded"]


def test_a_day_on_which_a_cluster_was_silent_is_unknown_and_not_empty(tmp_path: Path) -> None:
    kept = ledger.UsageLedger(tmp_path)
    kept.write_day(DAY, hours_of_a_day(DAY, rows=12), hours_of_a_day(DAY, rows=12))
    silent, later = DAY + 86_400, DAY + 9 * 86_400
    usage_table = read_usage(empty_engine(), kept, since=silent, until=silent + 86_400, by_job=True)
    assert summary.total(usage_table)[usage.UNKNOWN] == usage.total(summary.total(usage_table)) == pytest.approx(24 * 8)
    # Whoever is away for longer than a week is gone.
    assert not read_usage(empty_engine(), kept, since=later, until=later + 86_400, by_job=True).keys


def test_what_nobody_saw_of_a_cluster_of_one_model_is_of_that_model() -> None:
    engine = engine_of(dict.fromkeys((0, 1, 4), (4, 2, 60)))
    table = read_usage(engine, None, since=DAY, until=DAY + 5 * HOUR, by_job=False)
    unknown = {
        key: row[usage.UNKNOWN] for key, row in zip(table.keys, table.amounts, strict=True) if row[usage.UNKNOWN]
    }
    assert unknown == pytest.approx({unowned_key(cluster="main", model="NVIDIA H200"): 12})


def test_what_nobody_saw_of_a_cluster_of_two_models_is_of_neither() -> None:
    engine = engine_of(dict.fromkeys((0, 1, 4), (4, 2, 60)))
    other = {METRIC_NAME: "watchkeeper:team_gpu_hours:sum", "cluster": "main", "modelName": "NVIDIA L4"}
    at = round((DAY + 5 * HOUR + 0.4) * 1000)
    engine.appender.append([Sample(Labels({**other, "team": usage.UNOWNED, "part": "idle"}), at, 1.0)])
    table = read_usage(engine, None, since=DAY, until=DAY + 5 * HOUR, by_job=False)
    unknown = [key for key, row in zip(table.keys, table.amounts, strict=True) if row[usage.UNKNOWN]]
    assert unknown == [unowned_key(cluster="main")]
