"""Tables of jobs: every bad line is named, nothing is guessed, and hours are what counting minutes finds."""

from __future__ import annotations

import csv
import itertools
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.paths import SHARED
from watchkeeper.accounting import job_files, summary, usage
from watchkeeper.errors import CollectError
from watchkeeper.readers.table import MAX_NAMED_LINES

UTC = ZoneInfo("UTC")
TRACES = SHARED / "corpus" / "traces"
SACCT = """JobID|User|Account|Partition|Start|End|AllocTRES|State
101|ana|vision|h200|2026-11-01T08:00:00|2026-11-02T08:00:00|cpu=64,gres/gpu=8,gres/gpu:h200=8|COMPLETED
101.batch|ana|vision|h200|2026-11-01T08:00:00|2026-11-02T08:00:00|cpu=64,gres/gpu=8|COMPLETED
102|bob|speech|h200|2026-11-01T10:00:00|Unknown|gres/gpu=2|RUNNING
103|bob|speech|h200|2026-11-02T10:00:00|2026-11-01T10:00:00|gres/gpu=2|FAILED
101|ana|vision|h200|2026-11-01T08:00:00|2026-11-02T08:00:00|gres/gpu=8|COMPLETED
104|bob|speech|h200|yesterday|2026-11-01T12:00:00|gres/gpu=1|COMPLETED
105|bob|speech|h200|2026-11-01T10:00:00
106|bob|speech|h200|2026-11-01T10:00:00|2026-11-01T12:00:00|cpu=4|COMPLETED
"""


def read(text: str, **column_overrides: str) -> job_files.JobTable:
    return job_files.read_job_table(text, where="jobs.csv", zone=UTC, column_overrides=column_overrides)


def test_bad_lines_of_sacct_are_named_and_counted() -> None:
    job_table = read(SACCT)
    assert [job.key[usage.DIMENSIONS.index("job")] for job in job_table.jobs] == ["101", "102"]
    assert job_table.problems.lines() == [
        "jobs.csv:8: wrong number of cells: 5 of 8",
        "jobs.csv:5: invalid row: it ends 86,400 s before it starts",
        "jobs.csv:6: duplicate job id: '101': the first row is used",
        "jobs.csv:7: invalid row: 'yesterday' is not a time such as 2026-01-31 09:00:00 or 1769850000",
    ]
    table = job_files.sum_job_hours(job_table, since=job_table.since, until=job_table.until, capacity=10)
    assert {line.names[0]: float(line.amounts[0]) for line in summary.usage_lines(table, ["team"])} == {
        "vision": 192.0, "speech": 44.0, "(nobody)": 0.0,
    }  # fmt: skip
    assert {line.names[0] for line in summary.usage_lines(table, ["model"])} == {"h200", "unmapped"}
    assert usage.total(summary.total(table)) == pytest.approx(240.0)
    for note_start in (
        "jobs without an end, counted as running: 1",
        "steps of jobs: 1",
        "excluded rows, duplicate job id: 1",
    ):
        assert note_start in table.notes


def test_named_lines_are_bounded_and_the_rest_is_counted() -> None:
    rows = "".join(f"{id},1,never,\n" for id in range(100))
    job_table = read(f"id,gpus,started,ended\n{rows}ok,1,0,3600\n")
    assert len(job_table.problems.lines()) == MAX_NAMED_LINES + 1
    assert job_table.problems.lines()[-1] == "jobs.csv: and 80 more problems"


jobs = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 200), st.sampled_from([0.5, 1, 2, 8])), min_size=1)


@given(jobs, st.lists(st.integers(0, 600), min_size=2, max_size=5, unique=True).map(sorted))
def test_hours_are_what_counting_minutes_finds_and_any_partition_sums(
    drawn: list[tuple[int, int, float]], cuts: list[int]
) -> None:
    rows = "".join(
        f"{at},{gpus},{start * 60},{(start + length) * 60}\n" for at, (start, length, gpus) in enumerate(drawn)
    )
    job_table = read("id,gpus,started,ended\n" + rows)

    def held(first: int, last: int) -> float:
        return float(
            job_files.sum_job_hours(job_table, since=first * 60, until=last * 60).amounts[:, usage.ALLOCATED].sum()
        )

    counted = sum(
        gpus / 60
        for start, length, gpus in drawn
        for minute in range(start, start + length)
        if cuts[0] <= minute < cuts[-1]
    )
    assert held(cuts[0], cuts[-1]) == pytest.approx(counted)
    assert sum(map(held, cuts, cuts[1:])) == pytest.approx(counted)


@given(jobs, st.lists(st.integers(1, 599), max_size=3, unique=True).map(sorted), st.sampled_from([0.5, 3, 20]))
def test_idle_is_what_nobody_held_minute_by_minute_also_where_jobs_held_more_than_there_is(
    drawn: list[tuple[int, int, float]], cuts: list[int], capacity: float
) -> None:
    rows = "".join(
        f"{at},{gpus},{start * 60},{(start + length) * 60}\n" for at, (start, length, gpus) in enumerate(drawn)
    )
    job_table = read("id,gpus,started,ended\n" + rows)
    taken = [sum(gpus for start, length, gpus in drawn if start <= at < start + length) for at in range(600)]
    pieces = [
        job_files.sum_job_hours(job_table, since=first * 60, until=last * 60, capacity=capacity)
        for first, last in itertools.pairwise([0, *cuts, 600])
    ]
    idle = sum(float(summary.total(piece)[usage.IDLE]) for piece in pieces)
    assert idle == pytest.approx(sum(max(capacity - gpus, 0) for gpus in taken) / 60)
    is_said = any("GPUs at once, but the capacity is" in note for piece in pieces for note in piece.notes)
    assert is_said == (max(taken) > capacity)


def test_a_time_that_is_years_from_the_others_is_a_mistake_and_named() -> None:
    day = "2026-11-01T00:00:00Z,2026-11-02T00:00:00Z"
    job_table = read(f"id,gpus,started,ended\na,8,{day}\nb,8,0,2026-11-02T00:00:00Z\nc,1,{day}\n")
    assert job_table.problems.lines() == [
        "jobs.csv:3: invalid row: 1970-01-01T00:00:00+00:00 is 57 years from the other times"
    ]
    assert (job_table.until - job_table.since, job_table.count) == (86_400, 2)


def test_a_time_without_a_zone_is_in_the_zone_that_is_told_also_when_clocks_change() -> None:
    text = "id,gpus,started,ended\na,1,2026-10-25T00:00:00,2026-10-26T00:00:00\n"
    job_table = job_files.read_job_table(text, where="x", zone=ZoneInfo("Europe/Berlin"))
    assert (job_table.until - job_table.since) / 3600 == 25


def test_activity_makes_hours_used_or_wasted() -> None:
    job_table = read("id,gpus,started,ended,activity\na,1,0,3600,0.5\nb,1,0,3600,0.01\nc,1,0,3600,\n")
    amounts = summary.total(job_files.sum_job_hours(job_table, since=0, until=3600))
    parts = (usage.ALLOCATED, usage.USED, usage.WASTED, usage.UNMEASURED)
    assert [float(amounts[at]) for at in parts] == pytest.approx([3, 0.51, 0.99, 1])


def held(text: str, *by: str) -> dict[tuple[str, ...], float]:
    job_table = read(text)
    lines = summary.usage_lines(job_files.sum_job_hours(job_table, since=job_table.since, until=job_table.until), by)
    return {line.names: float(line.amounts[usage.ALLOCATED]) for line in lines}


def test_a_column_of_activity_is_in_per_cent_as_a_whole() -> None:
    job_table = read("id,gpus,started,ended,util\na,1,0,3600,50\nb,1,0,3600,1\nc,1,0,3600,101\n", activity="util")
    assert [job.share for job in job_table.jobs] == [0.5, 0.01]
    assert job_table.problems.lines() == ["jobs.csv:4: invalid row: an activity of 101 is not between 0 and 100"]


def test_slices_of_slurm_are_parts_of_a_gpu_and_each_model_has_its_hours() -> None:
    table = "JobID|Start|End|AllocTRES\n" + "".join(
        f"{id}|2026-11-01T00:00:00|2026-11-01T07:00:00|{tres}\n"
        for id, tres in enumerate(
            (
                "cpu=4,gres/gpu:1g.18gb=1,gres/gpu=1",
                "gres/gpu:h200_3g.71gb=2,gres/gpu=2",
                "gres/gpu:a30_1g.6gb=1",
                "gres/gpu:h100=2,gres/gpu:h200=1,gres/gpu=3",
                "cpu=4,gres/shard=4",
            )
        )
    )
    assert held(table, "job", "model") == pytest.approx(
        {("0", "unmapped"): 1, ("1", "h200"): 6, ("2", "a30"): 7 / 4, ("3", "h100"): 14, ("3", "h200"): 7}
    )
    job_table = read(table)
    assert job_table.count == 4
    assert job_table.counts == {"excluded jobs, shards or MPS shares of unknown size": 1}


@pytest.mark.parametrize(
    ("kind", "model", "share"),
    [
        ("nvidia_h100_nvl_1g.24gb", "", 1 / 7),
        ("nvidia_rtx_pro_6000_blackwell_server_edition_1g.24gb", "", 1 / 4),
        ("nvidia_rtx_pro_6000_blackwell_server_edition_2g.48gb-me", "", 1 / 2),
        ("nvidia_rtx_pro_5000_blackwell_2g.48gb", "", 1),
        ("1g.24gb", "NVIDIA RTX PRO 5000 Blackwell", 1 / 2),
        ("gh200_4g.48gb", "", 4 / 7),
        ("slow_1g.6gb", "", 1 / 4),
        ("slow_5g.99gb", "", 5 / 7),
    ],
)
def test_a_slice_of_slurm_is_a_part_of_its_own_model(kind: str, model: str, share: float) -> None:
    text = f"JobID|Start|End|AllocTRES\n1|0|3600|gres/gpu:{kind}=1\n"
    job_table = job_files.read_job_table(text, where="jobs.csv", zone=ZoneInfo("UTC"), model=model)
    assert [job.gpus for job in job_table.jobs] == pytest.approx([share])


def test_a_slice_that_several_gpus_have_is_not_guessed() -> None:
    text = "JobID|Start|End|AllocTRES\n1|0|3600|gres/gpu:1g.24gb=1\n2|0|3600|gres/gpu=1\n"
    job_table = read(text)
    assert [job.gpus for job in job_table.jobs] == [1]
    reason = "1g.24gb is a different share of each GPU model; name the GPU model"
    assert job_table.problems.lines() == [f"jobs.csv:2: invalid row: {reason}"]


def test_each_run_of_a_requeued_job_counts_and_a_row_that_is_there_twice_does_not() -> None:
    rows = ("00:00:00|01:00:00", "00:00:00|01:00:00", "02:00:00|05:00:00", "04:00:00|06:00:00")
    begun = ["|".join(f"2026-11-01T{at}" for at in row.split("|")) for row in rows]
    text = "JobID|Start|End|AllocTRES\n" + "".join(f"7|{row}|gres/gpu=2\n" for row in begun)
    assert held(text, "job") == {("7",): 8}
    assert read(text).counts == {"further runs of requeued jobs": 1}
    assert read(text).problems.counts == {"duplicate job id": 2}
    assert read(text).count == 1


def test_a_quotation_mark_in_the_name_of_a_slurm_job_takes_no_other_job_away() -> None:
    names = ("plain", '"half', "plain", '6" pipe')
    rows = "".join(f"{id}|{name}|a|0|3600|gres/gpu=1\n" for id, name in enumerate(names))
    assert held(f"JobID|JobName|Account|Start|End|AllocTRES\n{rows}", "job") == {(str(id),): 1 for id in range(4)}


def test_jobs_of_two_namespaces_or_clusters_may_have_one_name() -> None:
    pods = "id,namespace,gpus,started,ended\ntrain,a,1,0,3600\ntrain,b,2,0,3600\n"
    assert held(pods, "namespace") == {("a",): 1, ("b",): 2}
    clusters = "JobID|Cluster|Start|End|AllocTRES\n7|east|0|3600|gres/gpu=1\n7|west|0|3600|gres/gpu=2\n"
    assert held(clusters, "cluster") == {("east",): 1, ("west",): 2}


def test_a_time_without_jobs_says_of_which_time_the_table_is() -> None:
    job_table = read("id,gpus,started,ended\na,1,0,3600\n")
    notes = job_files.sum_job_hours(job_table, since=7200, until=9000).notes
    assert "no job ran in this period; the table covers 1970-01-01T00:00Z to 1970-01-01T01:00Z" in notes


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a,b\n1,2\n", "the columns for the start of a job"),
        ("", "not a table"),
        ("id,gpus,started,ended\nx,0,1,2\n", "no row is a job with a GPU"),
        ("id,gpus,started,ended\nx,1,,\n", "jobs that never started: 1"),
        ("id,gpus,submitted,started,ended\nx,1,,,\n", "no row has a valid time"),
        ("id,gpus,submitted,started,seconds\nx,1,,,60\n", "has neither a start nor an end"),
        ("id,gpus,started,ended\nx,-1,1,2\n", "between 0 and 1,000,000"),
    ],
)
def test_a_table_that_cannot_be_used_says_why(text: str, problem: str) -> None:
    with pytest.raises(CollectError, match=problem):
        read(text)


@pytest.mark.skipif(not TRACES.exists(), reason="the traces are not in this checkout")
def test_a_public_trace_adds_up_to_its_own_hourly_allocation() -> None:
    job_table = read((TRACES / "alibaba2025_dlrm_instances.csv").read_text())
    with (TRACES / "alibaba2025_dlrm_hourly_alloc.csv").open() as file:
        hourly = [float(row["gpus_allocated"]) for row in csv.DictReader(file)]
    table = job_files.sum_job_hours(job_table, since=0, until=len(hourly) * 3600)
    assert float(summary.total(table)[usage.ALLOCATED]) == pytest.approx(sum(hourly), rel=1e-3)
