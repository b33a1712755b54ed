"""Tables that people bring: what is read, what is left out, and that it is said."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.paths import SHARED
from watchkeeper.capacity import demand, demand_table, jobs
from watchkeeper.capacity.simulated_fleet import FleetNode, GpuRequest
from watchkeeper.errors import CollectError
from watchkeeper.readers import table

TRACES = SHARED / "corpus" / "traces"
SACCT = """JobID|Submit|Start|End|AllocTRES|State|
17|2026-10-01T00:00:00|2026-10-01T00:00:10|2026-10-01T02:00:10|billing=8,cpu=64,gres/gpu=8,node=1|COMPLETED|
17.batch|2026-10-01T00:00:00|2026-10-01T00:00:10|2026-10-01T02:00:10|cpu=64,gres/gpu=8|COMPLETED|
18|2026-10-01T00:10:00|2026-10-01T02:00:20|Unknown|gres/gpu:h100=4,gres/gpu=4|RUNNING|
19|2026-10-01T00:20:00|Unknown|Unknown|gres/gpu=2|PENDING|
20|2026-10-01T00:30:00|2026-10-01T03:00:00|2026-10-01T02:00:00|gres/gpu=2|FAILED|
17|2026-10-01T00:30:00|2026-10-01T01:00:00|2026-10-01T02:00:00|gres/gpu=2|FAILED|
=1+1|2026-10-01T00:30:00|bad|2026-10-01T02:00:00|gres/gpu=2|FAILED|
21|2026-10-01T00:40:00|None|2026-10-01T00:50:00||CANCELLED by 1000|
22|2026-10-01T00:40:00|2026-10-01T00:41:00
"""


def read_demand(text: str, **options: str) -> tuple[demand.DemandSeries, table.Problems]:
    columns = demand_table.DemandColumns("time", "gpus", {}, **options)
    read = demand_table.read_points(text, columns, where="d.csv", now=4e9)
    return demand.regular_series(read.points, combine=columns.combine), read.problems


def test_what_sacct_prints_becomes_jobs_and_every_odd_line_is_named() -> None:
    records = jobs.read_jobs(SACCT, where="s.txt")
    assert [(job.id, job.shape.gpus) for job in records.jobs] == [("17", 8.0), ("18", 4.0)]
    assert records.jobs[1].is_cut_off
    assert records.counts == {
        "rows": 9,
        "jobs": 2,
        "steps_skipped": 1,
        "without_end": 1,
        "without_gpus": 1,
        "left_out": 5,
    }
    assert records.problems.counts == {
        "wrong number of cells": 1,
        "bad time": 1,
        "never ran": 1,
        "negative duration": 1,
        "duplicate job id": 1,
    }
    assert "s.txt:7: duplicate job id: 17: the first row is used" in records.problems.lines()


def test_a_job_that_waits_asks_for_what_it_requested() -> None:
    text = "JobID|Submit|Start|End|AllocTRES|ReqTRES\n1|0|0|60|gres/gpu=2|gres/gpu=1\n2|5|Unknown|Unknown||gres/gpu=8\n"
    records = jobs.read_jobs(text, where="s.txt")
    assert [(job.id, job.shape.gpus) for job in (*records.jobs, *records.waiting)] == [("1", 2.0), ("2", 8.0)]


def test_each_run_of_a_requeued_job_is_replayed() -> None:
    text = "JobID|Submit|Start|End|AllocTRES\n" + "".join(
        f"7|{submit}|{start}|{end}|gres/gpu=2\n"
        for submit, start, end in ((0, 10, 60), (60, 100, 200), (60, 100, 200), (60, 150, 250))
    )
    records = jobs.read_jobs(text, where="s.txt")
    assert [(job.id, job.submitted, job.seconds) for job in records.jobs] == [("7", 0, 50), ("7 run 2", 60, 100)]
    assert records.counts["further_runs"] == 1
    assert records.problems.counts == {"duplicate job id": 2}


@pytest.mark.parametrize(
    ("tres", "shape"),
    [
        ("cpu=4,gres/gpu:1g.18gb=1,gres/gpu=1", GpuRequest(143, (), slice_milli=143)),
        ("gres/gpu:a30_2g.12gb=1,gres/gpu=1", GpuRequest(500, (), slice_milli=500)),
        ("gres/gpu:h200=4,gres/gpu=4", GpuRequest(4000)),
    ],
)
def test_a_slice_of_slurm_is_a_part_of_a_gpu(tres: str, shape: GpuRequest) -> None:
    text = f"JobID|Submit|Start|End|AllocTRES\n1|0|0|60|{tres}\n2|0|0|60|gres/shard=2\n"
    records = jobs.read_jobs(text, where="s.txt")
    assert [job.shape for job in records.jobs] == [shape]
    assert records.counts["shares_of_unknown_size"] == 1


def test_a_row_whose_times_cannot_be_does_not_make_the_record_longer() -> None:
    rows = (
        "a,8,2026-11-01T00:00Z,2026-11-01T00:00Z,2026-11-01T10:00Z",
        "b,8,2026-11-01T00:00Z,0,2026-11-01T10:00Z",
        "c,8,2026-11-01T01:00Z,2026-11-01T10:00Z,2026-11-01T20:00Z",
        "d,8,2026-12-01T00:00Z,2026-11-01T10:00Z,2026-11-01T20:00Z",
    )
    records = jobs.read_jobs("\n".join(["id,gpus,submitted,started,ended", *rows]), where="j.csv")
    assert (records.until - records.since, [job.id for job in records.jobs]) == (20 * 3600, ["a", "c"])
    assert records.problems.lines() == [
        "j.csv:3: bad time: 1970-01-01T00:00:00+00:00 is 57 years from the other times",
        "j.csv:5: negative duration: it starts before it was submitted",
    ]


def test_a_job_stands_twice_also_in_a_table_whose_columns_are_told() -> None:
    columns = {"submitted": "began", "gpus": "gpus", "ended": "over"}
    records = jobs.read_jobs("id,gpus,began,over\n7,1,0,60\n7,1,60,90\n", where="j.csv", columns=columns)
    assert records.problems.lines() == ["j.csv:3: duplicate job id: 7: the first row is used"]


def test_a_table_that_nobody_knows_is_read_by_the_columns_that_are_told() -> None:
    text = "came,cards,ran\n100,2,50\n0,1,10\n"
    with pytest.raises(CollectError, match="--column submitted="):
        jobs.read_jobs(text, where="j.csv")
    columns = {"submitted": "came", "gpus": "cards", "seconds": "ran"}
    records = jobs.read_jobs(text, where="j.csv", columns=columns).jobs
    assert [(job.submitted, job.seconds, job.shape.gpus) for job in records] == [(0, 10, 1), (100, 50, 2)]


@pytest.mark.parametrize(
    ("gpus", "milli", "spec", "shape"),
    [
        ("1", "460", "", GpuRequest(460, (), slice_milli=460)),
        ("1", "1000", "V100M16|V100M32", GpuRequest(1000, ("V100M16", "V100M32"))),
        ("2", "1000", "", GpuRequest(2000)),
        ("8", "", "", GpuRequest(8000)),
    ],
)
def test_a_pod_asks_for_a_share_or_for_whole_gpus(gpus: str, milli: str, spec: str, shape: GpuRequest) -> None:
    header = "name,num_gpu,gpu_milli,gpu_spec,creation_time,scheduled_time,deletion_time"
    [job] = jobs.read_jobs(f"{header}\np,{gpus},{milli},{spec},0,0,10\n", where="p.csv").jobs
    assert job.shape == shape


def test_the_list_of_bad_lines_is_bounded_and_the_counts_are_not() -> None:
    text = "time,gpus\n0,1\n3600,2\n" + "oops,1\n" * 500
    _, problems = read_demand(text)
    assert problems.counts == {"unreadable cell": 500}
    assert len(problems.lines()) == table.MAX_NAMED_LINES + 1
    assert problems.lines()[-1] == "d.csv: and 480 more problems"


@pytest.mark.parametrize("text", ["=cmd()|' /C calc'!A0", "@SUM(1)", "+1+1", "-2+3", "\tx", "\x1b[31mred"])
def test_a_name_cannot_become_a_formula_or_move_the_cursor(text: str) -> None:
    shown = table.escape_cell(text)
    assert not shown.startswith(table.FORMULA_STARTS)
    assert shown.isprintable()


@pytest.mark.parametrize("text", ["-5", "+1.5", "12", "node-1"])
def test_plain_names_and_numbers_stay_as_they_are(text: str) -> None:
    assert table.escape_cell(text) == text


def test_missing_days_are_gaps_and_not_zeros() -> None:
    series, _ = read_demand(
        "time,gpus\n2026-01-01 00:00,1\n2026-01-01 01:00,2\n2026-01-01 02:00,3\n2026-01-03 00:00,4\n"
    )
    assert (len(series), series.step_seconds) == (49, 3600)
    assert int(np.isnan(series.values).sum()) == 45
    assert any("45 of 49 steps" in note for note in series.notes)


@pytest.mark.parametrize(
    ("times", "step"),
    [
        (["0", "1", "2", "3"], 3600.0),
        (["0", "3600", "7200"], 3600.0),
        (["1767225600000", "1767225900000", "1767226200000"], 300.0),
        (["2026-01-01", "2026-01-02", "2026-01-03"], 86_400.0),
        (["2026/01/01 00:00", "2026/01/01 00:10"], 600.0),
        (["2023-11-16 18:00:00.6805900", "2023-11-16 18:05:00.1"], 300.0),
    ],
)
def test_times_are_read_as_tools_write_them(times: list[str], step: float) -> None:
    series, problems = read_demand("time,gpus\n" + "".join(f"{at},5\n" for at in times))
    assert series.step_seconds == step
    assert not problems.counts


def test_a_week_of_seconds_is_forecast_in_longer_steps_and_said() -> None:
    points = [(float(at), 1.0) for at in range(0, 86_400, 60)]
    series = demand.regular_series(points, horizon_seconds=7 * 86_400.0)
    assert series.step_seconds == 300.0
    assert "resampled to 5m: the limit is 2,500 steps ahead" in series.notes


def test_of_a_long_history_the_end_is_used_and_said() -> None:
    series = demand.regular_series([(3600.0 * at, float(at)) for at in range(30_000)])
    assert len(series) == demand.MAX_STEPS
    assert series.values[-1] == 29_999
    assert "only the last 25,000 steps are used" in series.notes


def test_a_forecast_goes_on_where_the_samples_were_taken() -> None:
    series = demand.regular_series([(1800.0 + 3600 * at, 1.0) for at in range(10)])
    assert series.end_seconds == 1800.0 + 36_000


def test_rows_of_several_groups_at_one_time_are_added_up_unless_told_otherwise() -> None:
    text = "time,gpus\n" + "".join(f"{3600 * hour},{gpus}\n" for hour in range(3) for gpus in (1, 3))
    assert read_demand(text)[0].values.tolist() == [4, 4, 4]
    assert read_demand(text, combine="max")[0].values.tolist() == [3, 3, 3]
    assert read_demand(text, combine="mean")[0].values.tolist() == [2, 2, 2]


@given(st.lists(st.tuples(st.integers(0, 10**6), st.floats(0, 1e6)), min_size=2, max_size=60))
def test_a_regular_series_has_the_mean_of_what_was_measured(points: list[tuple[float, float]]) -> None:
    if len({at for at, _ in points}) < 2:
        return
    series = demand.regular_series([(float(at), value) for at, value in points], combine="sum", step_seconds=3600.0)
    assert np.nansum(series.values) == pytest.approx(math.fsum(value for _, value in points))


@given(st.text(max_size=300))
def test_no_text_breaks_the_reader(text: str) -> None:
    try:
        csv_table = table.read_table(text, where="x", problems=table.Problems("x"))
    except CollectError:
        return
    assert all(set(row.cells) == set(csv_table.columns) for row in csv_table.rows)


def test_nodes_come_with_model_and_rack_and_without_those_that_have_no_gpu() -> None:
    nodes, problems = jobs.read_nodes("sn,gpu,model,rack\na,8,H100,r1\nb,0,,r1\nc,x,,\na,8,H100,r1\n", where="n.csv")
    assert nodes == (FleetNode("a", 8, model="H100", rack="r1"),)
    assert problems.counts == {"bad number": 1, "duplicate node": 1}


@pytest.mark.slow
@pytest.mark.skipif(not TRACES.exists(), reason="the public traces are not here")
@pytest.mark.parametrize(
    ("name", "layout", "count"),
    [("alibaba2025_dlrm_instances.csv", "alibaba instances", 7386), ("alibaba2023_pods.csv", "alibaba pods", 6203)],
)
def test_public_traces_are_recognised(name: str, layout: str, count: int) -> None:
    records = jobs.read_jobs((TRACES / name).read_text(), where=name)
    assert (records.layout, len(records.jobs)) == (layout, count)
