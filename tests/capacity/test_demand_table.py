"""Tables of demand as people bring them: what cannot be used is named by line and counted, assumptions are noted."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from watchkeeper.capacity import demand, demand_table
from watchkeeper.errors import CollectError

START = datetime(2026, 1, 1, tzinfo=UTC)
NOW = START.timestamp() + 400 * 86_400


def hours(count: int) -> list[list[str]]:
    """A cell of time and one of demand for each hour; the first stands on line 2 of its table."""
    return [[f"{START + timedelta(hours=hour):%Y-%m-%d %H:%M:%S}", f"{40 + hour % 24}"] for hour in range(count)]


def read(rows: list[list[str]], *, header: str = "time,gpus", between: str = ",") -> demand_table.DemandTable:
    text = "\n".join([header, *(between.join(row) for row in rows)])
    return demand_table.read_points(text, demand_table.DemandColumns("time", "gpus", {}), where="d.csv", now=NOW)


@pytest.mark.parametrize(
    ("cell", "problem"),
    [
        ("n/a", "no value: 'n/a'"),
        ("", "no value"),
        ("NaN", "no value: 'NaN'"),
        ("-", "unreadable cell: '-' is not a number such as 1234.5"),
        ("inf", "unreadable cell: 'inf' is not a number such as 1234.5"),
        ('"1,024"', "unreadable cell: '1,024' is not a number such as 1234.5"),
        ("1,024", "wrong number of cells: 3 of 2"),
        ("-3", "negative demand: -3"),
        ("1e308", "value too large: 1e+308; the limit is 1e+15"),
    ],
)
def test_a_cell_without_a_usable_value_is_named_by_its_line_and_left_out(cell: str, problem: str) -> None:
    rows = hours(48)
    rows[10][1] = cell
    demand_read = read(rows)
    assert demand_read.problems.lines() == [f"d.csv:12: {problem}"]
    assert demand_read.counts == {"rows": 48, "used": 47, "left_out": 1}
    assert math.isnan(demand.regular_series(demand_read.points).values[10])


@pytest.mark.parametrize(
    ("cell", "problem"),
    [
        ("", "no time"),
        ("1970-01-01", "time far from all others: 1970-01-01T00:00:00+00:00"),
        ("2062-01-01", "time far from all others: 2062-01-01T00:00:00+00:00"),
        ("1e300", "unreadable cell: '1e300' is not a time such as 2026-01-31 09:00:00 or 1769850000"),
        ("9999-12-31", "unreadable cell: '9999-12-31' is not a time such as 2026-01-31 09:00:00 or 1769850000"),
    ],
)
def test_a_time_that_cannot_be_is_named_by_its_line_and_does_not_stretch_the_series(cell: str, problem: str) -> None:
    rows = hours(21 * 24)
    rows[300][0] = cell
    demand_read = read(rows)
    assert demand_read.problems.lines() == [f"d.csv:302: {problem}"]
    assert len(demand.regular_series(demand_read.points)) == 21 * 24


@pytest.mark.parametrize("per_second", [1, 1000, 10**6, 10**9])
def test_times_may_count_seconds_or_thousandths_of_them_down_to_nanoseconds(per_second: int) -> None:
    began = int(START.timestamp())
    demand_read = read([[str((began + 3600 * hour) * per_second), "5"] for hour in range(48)])
    assert demand.regular_series(demand_read.points).start_seconds == began
    assert demand.regular_series(demand_read.points).step_seconds == 3600


@pytest.mark.parametrize(
    ("header", "between"),
    [
        ("\ufefftime,gpus", ","),
        ("time;gpus", ";"),
        ('"time", "gpus"', ", "),
        ("time\tgpus", "\t"),
        ("time , gpus", ","),
    ],
)
def test_headers_and_separators_are_read_as_spreadsheets_write_them(header: str, between: str) -> None:
    assert read(hours(48), header=header, between=between).counts["used"] == 48


def test_rows_out_of_order_and_repeated_times_are_used_and_noted_with_their_lines() -> None:
    rows = hours(48)
    doubled = [*rows[:20], *([at, "999"] for at, _ in rows[15:20]), *rows[20:]]
    demand_read = read(doubled)
    assert demand_read.notes == (
        "rows earlier than the row before them: 1, first on line 22; they are sorted",
        "rows with a duplicate time: 5, first on lines 22, 23, 24; the mean of such rows is used",
    )
    assert demand.regular_series(demand_read.points).values[15] == (55 + 999) / 2
    assert demand_read.counts["left_out"] == 0


def test_of_rows_of_one_time_the_last_is_the_last_of_the_table() -> None:
    points = [(0.0, 9.0), (0.0, 1.0), (3600.0, 2.0)]
    assert demand.regular_series(points, combine="last").values.tolist() == [1.0, 2.0]


def test_times_with_offsets_run_on_through_a_change_of_the_clock() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    began = datetime(2026, 10, 20, tzinfo=UTC)
    rows = [[(began + timedelta(hours=hour)).astimezone(berlin).isoformat(), "5"] for hour in range(240)]
    demand_read = read(rows)
    assert demand_read.notes == ()
    assert len(demand.regular_series(demand_read.points)) == 240


def test_the_hour_that_a_wall_clock_shows_twice_is_noted_and_the_one_it_skips_is_a_gap() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    for month, text in (
        (3, "1 of 505 steps of 1h have no point"),
        (10, "rows with a duplicate time: 1, first on line"),
    ):
        began = datetime(2026, month, 15, tzinfo=UTC)
        shown = [(began + timedelta(hours=hour)).astimezone(berlin) for hour in range(504)]
        demand_read = read([[f"{at:%Y-%m-%d %H:%M:%S}", "5"] for at in shown])
        assert any(
            note.startswith(text) for note in (*demand_read.notes, *demand.regular_series(demand_read.points).notes)
        )


def test_times_without_a_zone_among_others_and_times_to_come_are_noted() -> None:
    rows = hours(48)
    for row in rows[:40]:
        row[0] += "Z"
    assert read(rows).notes == ("times without a zone: 8; they are read as UTC, the others in their time zone",)
    later = [[f"2090{at[4:]}", value] for at, value in hours(48)]
    assert read(later).notes == ("rows with a future time: 48, first on lines 2, 3, 4; they are used",)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("time,gpus\n", "0 rows can be used; a forecast needs at least 2"),
        ("time,gpus\n2026-01-01,5\n", "1 row can be used"),
        ("time,gpus\n2026-01-01,-\n2026-01-02,n/a\n", "d.csv:2: unreadable cell: '-' is not a number"),
        ("time,gpu\n2026-01-01,5\n", "there is no column 'gpus'. The table has: time, gpu"),
        ("time,gpus,gpus\n2026-01-01,5,6\n", "2 columns have the name 'gpus'"),
        ("\ntime,gpus\n2026-01-01,5\n", "the first line must name the columns"),
        ("2026-01-01,5\n2026-01-02,6\n2026-01-03,7\n", "d.csv:1: the first line has values, but must name the columns"),
        ("t\0i\0m\0e\0", "d.csv:1: not a text file"),
    ],
)
def test_a_table_that_cannot_be_used_is_refused_with_what_is_wrong_with_it(text: str, words: str) -> None:
    with pytest.raises(CollectError) as refused:
        demand_table.read_points(text, demand_table.DemandColumns("time", "gpus", {}), where="d.csv", now=NOW)
    assert words in str(refused.value)


def test_a_quotation_mark_that_is_never_closed_is_named_by_the_line_where_it_stands() -> None:
    rows = hours(48)
    rows[10][0] = f'"{rows[10][0]}'
    demand_read = read(rows)
    problem = "wrong number of cells: 1 of 2, up to line 49: check for a missing quotation mark"
    assert demand_read.problems.lines() == [f"d.csv:12: {problem}"]
    assert demand_read.counts["used"] == 10


def test_a_line_that_was_torn_is_named_and_the_others_count() -> None:
    rows = hours(48)
    rows[10][1] += "\0\0"
    demand_read = read(rows)
    assert demand_read.problems.lines() == ["d.csv:12: zero byte"]
    assert demand_read.counts == {"rows": 48, "used": 47, "left_out": 1}


def test_a_table_that_was_written_twice_is_not_twice_the_demand() -> None:
    demand_read = read([*hours(48), *hours(48)])
    assert demand_read.counts == {"rows": 96, "used": 48, "left_out": 48}
    assert demand_read.problems.lines()[0] == "d.csv:50: duplicate row"
    groups = [[*row, group] for row in hours(48) for group in "ab"]
    assert read(groups, header="time,gpus,group").counts["used"] == 96


def test_counts_that_are_no_times_of_this_century_are_said_to_be_taken_since_1970() -> None:
    rows = [[f"2026{10 + day // 28:02d}{1 + day % 28:02d}0000", "5"] for day in range(40)]
    assert (
        read(rows).notes[0] == "`time` is read as time since 1970, and ends on 1976-06-03; change this with --time-unit"
    )
