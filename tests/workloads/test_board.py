"""Every job in one line and one job in full, from series that lie in an engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.workloads.boards import NOW, RANK, RANKS, SERIES, SLOW, SLURM, engine, report_inputs, xid
from watchkeeper.catalogue import prices
from watchkeeper.model import jobs, workloads
from watchkeeper.model.samples import STALE
from watchkeeper.query import embedded
from watchkeeper.workloads import board, efficiency, identity, report

BOOK = prices.PriceBook(prices=(prices.Price("H100", prices.PriceKind.ON_DEMAND, 2.0),))


def test_a_slurm_job_is_one_line_with_the_name_that_its_ranks_give_it() -> None:
    since = (NOW - timedelta(hours=3)).timestamp()
    key = identity.JobKey("c", jobs.JobKind.SLURM, "", "4711")
    jobs_board = board.make_board(engine(SERIES), NOW, board.BoardInputs(price_book=BOOK, first_seen={key: since}))
    line = next(line for line in jobs_board.lines if line.id == "4711")
    assert (line.kind, line.name, line.team, line.user, line.gpus, line.nodes) == (
        "slurm", "pretrain", "vision", "ada", 4, 1,
    )  # fmt: skip
    assert (line.state, line.used, line.memory_used, line.bound_by) == ("running", 0.8, 0.7, "compute")
    assert (line.started_at, line.gpu_hours, line.cost) == (None, 12.0, jobs.Money(24.0, "USD"))
    assert line.counted_since == NOW - timedelta(hours=3)
    assert jobs_board.problems == ()


def test_a_price_that_has_not_begun_is_none_of_a_job() -> None:
    later = prices.Price("H100", prices.PriceKind.ON_DEMAND, 9.0, begins=(NOW + timedelta(days=3)).timestamp())
    book = prices.PriceBook(prices=(*BOOK.prices, later))
    jobs_board = board.make_board(engine(SERIES), NOW + timedelta(seconds=89), board.BoardInputs(price_book=book))
    assert next(line for line in jobs_board.lines if line.id == "4711").cost == jobs.Money(0.2, "USD")


def test_a_job_of_this_minute_has_hours_and_cost_so_far() -> None:
    jobs_board = board.make_board(engine(SERIES), NOW + timedelta(seconds=89), board.BoardInputs(price_book=BOOK))
    line = next(line for line in jobs_board.lines if line.id == "4711")
    assert (line.gpu_hours, line.cost) == (0.1, jobs.Money(0.2, "USD"))
    assert line.counted_since == NOW - timedelta(seconds=1)


def test_a_job_that_only_its_own_series_name_is_plain_and_the_gravest_comes_first() -> None:
    jobs_board = board.make_board(engine(SERIES), NOW, board.BoardInputs(incidents_by_job={"alone": ("INC-3",)}))
    assert [(line.id, line.kind.value, line.state.value) for line in jobs_board.lines] == [
        ("alone", "plain", "stalled"), ("web/chat", "kubernetes", "idle"), ("4711", "slurm", "running"),
    ]  # fmt: skip
    assert (jobs_board.lines[0].stalled_since, jobs_board.lines[0].incidents) == (
        # The age is a second old.
        NOW - timedelta(seconds=901),
        ("INC-3",),
    )


def test_a_job_whose_steps_the_rules_have_not_looked_at_yet_is_still_one_line() -> None:
    late = {name: value for name, value in SERIES.items() if "last_step_age" not in name}
    jobs_board = board.make_board(engine(late), NOW, board.BoardInputs(price_book=BOOK))
    assert sorted((line.id, line.kind.value) for line in jobs_board.lines) == [
        ("4711", "slurm"), ("alone", "plain"), ("web/chat", "kubernetes"),
    ]  # fmt: skip


def test_a_mute_job_that_stopped_working_is_stalled_since_its_gpus_last_did_anything() -> None:
    pod = 'cluster="c",workload_kind="pod",namespace="web",job_name="chat"'
    series = {
        f"watchkeeper:job_idle:seconds{{{pod}}}": 1000,
        f'ALERTS{{alertname="JobStalled",alertstate="firing",{pod}}}': 1,
    }
    jobs_board = board.make_board(engine(SERIES, series), NOW, board.BoardInputs())
    line = next(line for line in jobs_board.lines if line.id == "web/chat")
    assert line.state is jobs.JobState.STALLED
    assert line.stalled_since == NOW - timedelta(seconds=1000)
    still = board.make_board(engine(SERIES, dict([*series.items()][:1])), NOW, board.BoardInputs())
    assert next(line.state for line in still.lines if line.id == "web/chat") is jobs.JobState.IDLE


def test_a_job_that_worked_this_hour_and_does_nothing_for_a_quarter_of_it_is_idle() -> None:
    pod = 'cluster="c",workload_kind="pod",namespace="web",job_name="chat"'
    series = {
        f'watchkeeper:job_use:ratio{{of="active",{pod}}}': 0.4,
        f'watchkeeper:job_use:ratio{{of="memory",{pod}}}': 0.1,
    }
    for idle, state, bound in ((600, "running", "unknown"), (900, "idle", "nothing")):
        made = engine(SERIES | series, {f"watchkeeper:job_idle:seconds{{{pod}}}": idle})
        jobs_board = board.make_board(made, NOW, board.BoardInputs())
        line = next(line for line in jobs_board.lines if line.id == "web/chat")
        assert (line.state.value, line.bound_by.value) == (state, bound)
        key = next(key for key in jobs_board.training_names if key.id == "web/chat")
        fixes = [fix.do for fix in efficiency.assess_efficiency(jobs_board.facts[key], 3600.0).fixes]
        assert any("batch" in fix for fix in fixes) is (state == "running")


def test_a_job_that_says_that_it_pauses_is_paused() -> None:
    jobs_board = board.make_board(
        engine(SERIES, {'training_paused{cluster="c",job_name="pretrain",rank="0"}': 1.0}), NOW, board.BoardInputs()
    )
    assert next(line for line in jobs_board.lines if line.id == "4711").state == "paused"


def test_a_job_that_waits_is_known_by_its_scheduler_alone() -> None:
    pod = workloads.Workload(workloads.WorkloadKind.POD, "big-worker-0", "ml")
    part = workloads.ScheduledWorkload("c", pod, workloads.WorkloadState.PENDING, gpus=8, requested_at=1.0)
    jobs_board = board.make_board(engine(), NOW, board.BoardInputs(scheduled=[part]))
    assert [(line.id, line.state.value, line.gpus, line.used) for line in jobs_board.lines] == [
        ("ml/big", "pending", 8, None)
    ]


def test_a_pod_that_waits_is_known_by_kube_state_metrics_and_never_twice() -> None:
    series = {
        f'watchkeeper:pending_gpu_pods:requests{{cluster="c",namespace="ml",pod="big-worker-{at}"}}': 8.0
        for at in (0, 1)
    }
    pod = workloads.Workload(workloads.WorkloadKind.POD, "big-worker-0", "ml")
    scheduled_part = workloads.ScheduledWorkload(
        "c", pod, workloads.WorkloadState.PENDING, gpus=8, reason="Unschedulable"
    )
    for scheduled, why in (((), "no reason reported"), ((scheduled_part,), "Unschedulable")):
        source = engine(series)
        jobs_board = board.make_board(source, NOW, board.BoardInputs(scheduled=scheduled))
        assert [(line.id, line.state.value, line.gpus) for line in jobs_board.lines] == [("ml/big", "pending", 16)]
        made = report.make_report(
            source,
            NOW,
            replace(report_inputs(jobs_board, "ml/big"), parts=jobs_board.parts[next(iter(jobs_board.training_names))]),
        )
        assert made.why == f"its 2 parts wait for 16 GPUs: {why}"
        assert [fix.command for fix in made.efficiency.fixes] == ["watchkeeper explain pod ml/big-worker-0"]


def test_a_full_report_names_the_slow_rank_by_node_and_gpu_and_so_does_the_list() -> None:
    source = engine(SERIES, RANKS, SLOW)
    jobs_board = board.make_board(source, NOW, board.BoardInputs())
    made = report.make_report(source, NOW, report_inputs(jobs_board, "4711"))
    assert next(line for line in jobs_board.lines if line.id == "4711") == made.job
    assert made.job.straggler is not None
    assert (made.job.state, made.job.straggler.rank, made.job.straggler.uuid) == ("slow", 2, "GPU-2")
    assert [(rank.rank, rank.state.value) for rank in made.ranks] == [
        (0, "works"),
        (1, "works"),
        (2, "slow"),
        (3, "works"),
    ]
    assert made.efficiency.bound_by == "straggler"
    assert made.notes == ()


def test_without_node_exporter_the_load_of_our_agent_tells_which_rank_is_short_of_cpu() -> None:
    """Four nodes of one rank each, of which that of the slow one has no CPU free."""
    spread = {
        row.replace('Hostname="n1"', f'Hostname="n{row.partition("GPU-")[2][:1]}"'): value
        for row, value in RANKS.items()
    }
    series = {f'watchkeeper_host_cpus{{cluster="c",Hostname="n{rank}"}}': 96.0 for rank in range(4)}
    series |= {
        f'watchkeeper_host_load{{cluster="c",Hostname="n{rank}",minutes="{minutes}"}}': 240.0 if rank == 2 else 24.0
        for rank in range(4)
        for minutes in (1, 5)
    }
    source = engine(SERIES, spread, series, SLOW)
    made = report.make_report(source, NOW, report_inputs(board.make_board(source, NOW, board.BoardInputs()), "4711"))
    assert made.why.startswith(
        "rank 2 on n2 computes 20% longer than the others at each step: "
        "the CPUs of its node are 100% busy, those of the others 25%"
    )
    assert made.efficiency.fixes[0].do == "See what uses the CPUs of n2, and end it or reserve CPUs for the job"
    assert [(use.held, use.used) for use in made.efficiency.uses if use.what == "CPU"] == [(384.0, 168.0)]
    assert made.notes == ()


def test_a_job_that_exchanges_gradients_this_second_is_not_bound_by_that() -> None:
    def uses(active: float, tensor: float) -> dict[str, float]:
        shares = {"active": active, "tensor": tensor, "dram": 0.3, "utilisation": 0.99}
        return {f'watchkeeper:job_use:ratio{{of="{of}",{SLURM}}}': share for of, share in shares.items()}

    held = {f"watchkeeper:job_gpus:sum{{{SLURM}}}": 4.0}
    [line] = board.make_board(engine(held, uses(0.5, 0.1), before=uses(0.9, 0.4)), NOW, board.BoardInputs()).lines
    assert line.bound_by is jobs.BoundBy.COMPUTE


def test_a_mute_job_whose_gpu_is_late_is_slow_and_its_line_names_the_gpu() -> None:
    mute = 'cluster="c",workload_kind="slurm_job",job_name="12"'
    series = {
        f"watchkeeper:job_gpus:sum{{{mute}}}": 4.0,
        f'ALERTS{{alertname="JobRankSlow",alertstate="firing",{mute}}}': 1.0,
        f'watchkeeper:job_gpu_busier:ratio{{{mute},Hostname="n1",UUID="GPU-1"}}': 0.01,
        f'watchkeeper:job_gpu_busier:ratio{{{mute},Hostname="n1",UUID="GPU-2"}}': 0.25,
    }
    [line] = board.make_board(engine(series), NOW, board.BoardInputs()).lines
    assert (line.state, line.bound_by) == (jobs.JobState.SLOW, jobs.BoundBy.STRAGGLER)
    slow = line.straggler
    assert slow is not None
    assert (slow.rank, slow.node, slow.uuid, slow.score) == (None, "n1", "GPU-2", 0.25)
    assert slow.why == "keeps its SMs busy 25% longer than the others, which wait for it"


def test_a_mute_job_without_profiling_fields_that_hangs_names_the_gpu_that_is_idle() -> None:
    mute = 'cluster="c",workload_kind="slurm_job",job_name="12"'
    series: dict[str, float] = {
        f"watchkeeper:job_gpus:sum{{{mute}}}": 4,
        f'ALERTS{{alertname="JobHung",alertstate="firing",{mute}}}': 1,
        f"watchkeeper:job_power:max1d{{{mute}}}": 650,
    }
    for at in range(4):
        place = f'cluster="c",Hostname="n1",UUID="GPU-{at}"'
        series |= {
            f'watchkeeper:job_gpu:share{{{mute},Hostname="n1",UUID="GPU-{at}"}}': 1,
            f'DCGM_FI_DEV_GPU_UTIL{{{place},gpu="{at}"}}': 0 if at == 2 else 100,
            f'DCGM_FI_DEV_POWER_USAGE{{{place},gpu="{at}"}}': 150,
            f'DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL{{{place},gpu="{at}"}}': 3,
            f'DCGM_FI_PROF_PCIE_RX_BYTES{{{place},gpu="{at}"}}': 1e6,
        }
    store = engine(series)
    [line] = board.make_board(store, NOW, board.BoardInputs()).lines
    made = report.make_report(store, NOW, report_inputs(board.make_board(store, NOW, board.BoardInputs()), "12"))
    assert (line, line.bound_by) == (made.job, jobs.BoundBy.STRAGGLER)
    assert made.why == "GPU 2 on n1 is idle while 3 of 4 GPUs spin in a collective (3 waiting, 1 idle)"
    assert (made.job.state, made.notes) == (jobs.JobState.HUNG, ())
    assert {rank.link_bytes_per_second for rank in made.ranks} == {3e6}
    assert {rank.sm_active for rank in made.ranks} == {None}


def test_a_hung_job_whose_ranks_all_look_alike_is_not_bound_by_communication() -> None:
    series = {
        f'ALERTS{{alertname="TrainingJobStalled",alertstate="firing",{RANK}}}': 1.0,
        f'watchkeeper:job_use:ratio{{of="spinning",{SLURM}}}': 1.0,
        f'watchkeeper:job_use:ratio{{of="utilisation",{SLURM}}}': 1.0,
    }
    spins = {name: 0.1 if "SM_ACTIVE" in name else 100.0 if "GPU_UTIL" in name else 1.0 for name in RANKS}
    source = engine(SERIES, spins, series)
    jobs_board = board.make_board(source, NOW, board.BoardInputs())
    made = report.make_report(source, NOW, report_inputs(jobs_board, "4711"))
    [line] = [line for line in jobs_board.lines if line.id == "4711"]
    assert line == made.job
    assert (line.state, line.straggler, line.bound_by) == (jobs.JobState.HUNG, None, jobs.BoundBy.UNKNOWN)
    assert made.efficiency.bound_by is line.bound_by
    assert [fix.do for fix in made.efficiency.fixes] == ["Compare the stack of each rank"]


def gone(*ranks: int, nodes: Mapping[int, str], seconds: int = 60) -> embedded.EmbeddedEngine:
    """A stalled job of four ranks; the GPUs of some were read until a minute ago, when it made its last step."""
    placed = {
        row.replace('Hostname="n1"', f'Hostname="{nodes[at]}"'): value
        for at in range(4)
        for row, value in RANKS.items()
        if f'"{at}"' in row or f"GPU-{at}" in row
    }
    spins = {row: 0.1 if "SM_ACTIVE" in row else 100.0 if "GPU_UTIL" in row else value for row, value in placed.items()}
    lost = {row for row in spins if "DCGM" in row and any(f"GPU-{rank}" in row for rank in ranks)}
    series = {f'ALERTS{{alertname="TrainingJobStalled",alertstate="firing",{RANK}}}': 1.0}
    now = {row: STALE if row in lost else value for row, value in spins.items()}
    age = {'watchkeeper:training_last_step_age:seconds{cluster="c",job_name="pretrain"}': float(seconds)}
    return engine({**SERIES, **age}, now, series, before=spins, earlier_seconds=seconds)


def test_a_gpu_that_stopped_reporting_blocks_a_stalled_job() -> None:
    source = gone(2, nodes=dict.fromkeys(range(4), "n1"))
    jobs_board = board.make_board(source, NOW, board.BoardInputs())
    made = report.make_report(source, NOW, report_inputs(jobs_board, "4711"))
    assert made.why == "rank 2 on n1 has a GPU that stopped reporting, and the others wait (3 waiting, 1 missing)"
    assert next(line for line in jobs_board.lines if line.id == "4711").straggler == made.job.straggler
    assert made.efficiency.fixes[0].do == "Read the last log lines of rank 2 on n1, and the kernel log of its node"


def test_a_job_stalled_for_hours_names_the_gpu_that_failed_first() -> None:
    source = gone(2, nodes=dict.fromkeys(range(4), "n1"), seconds=3 * 3600)
    jobs_board = board.make_board(source, NOW, board.BoardInputs())
    straggler = next(line for line in jobs_board.lines if line.id == "4711").straggler
    assert straggler is not None
    assert (straggler.rank, straggler.is_gone) == (2, True)


def test_gpus_of_a_node_that_is_gone_are_not_at_work() -> None:
    source = gone(2, 3, nodes={0: "n1", 1: "n1", 2: "n2", 3: "n2"})
    made = report.make_report(source, NOW, report_inputs(board.make_board(source, NOW, board.BoardInputs()), "4711"))
    assert made.why == (
        "rank 2 on n2 has a GPU that stopped reporting (and 1 more of its node), and the others wait"
        " (2 waiting, 2 missing)"
    )


SILENT = {row: value for row, value in {**SERIES, **RANKS}.items() if not row.startswith("DCGM")}
GOODPUT = {'watchkeeper:training_productive:ratio{cluster="c",job_name="pretrain"}': 0.93}
AGE = 'watchkeeper:training_last_step_age:seconds{cluster="c",job_name="pretrain"}'


@pytest.mark.parametrize(
    ("step_age", "state", "goodput"), [(3, "running", 0.93), (90, "stalled", 0.93), (None, "unknown", None)]
)
def test_a_job_whose_gpus_no_longer_report_is_healthy_only_if_it_still_steps(
    step_age: float | None, state: str, goodput: float | None
) -> None:
    series = {**SILENT, **GOODPUT} | ({AGE: step_age} if step_age is not None else {})
    if step_age is None:
        series = {
            row: value for row, value in series.items() if "pretrain" not in row or "group" in row or row in GOODPUT
        }
    made = board.make_board(engine(series), NOW, board.BoardInputs())
    line = next(line for line in made.lines if line.id == "4711")
    assert (line.state, line.goodput, line.gpus) == (state, goodput, 4)


def test_the_time_of_a_job_without_its_gpus_is_a_stall_before_an_alert_fires() -> None:
    pace = {'watchkeeper:training_step:seconds{cluster="c",job_name="pretrain"}': 3}
    steps = {'training_iterations_total{cluster="c",job_name="pretrain"}': 30}
    source = engine({**SILENT, AGE: 90, **pace, **steps}, before=steps, earlier_seconds=119)
    line = next(line for line in board.make_board(source, NOW, board.BoardInputs()).lines if line.id == "4711")
    assert line.state == "stalled"
    made = report.make_report(source, NOW, report_inputs(board.make_board(source, NOW, board.BoardInputs()), "4711"))
    assert [(lost.reason, lost.seconds > 60) for lost in made.goodput.lost] == [(jobs.LostReason.STALL, True)]


@pytest.mark.parametrize(("idle_seconds", "state"), [(0, "unknown"), (90, "stalled")])
def test_a_job_whose_ranks_have_ended_is_not_running_because_its_gpus_worked_this_hour(
    idle_seconds: float, state: str
) -> None:
    ranks = {row: value for row, value in {**SERIES, **RANKS}.items() if row.startswith("training_") or row == AGE}
    left = {row: value for row, value in {**SERIES, **RANKS}.items() if row not in ranks}
    idle = {f"watchkeeper:job_idle:seconds{{{SLURM}}}": idle_seconds}
    source = engine({**left, **dict.fromkeys(ranks, STALE), **idle}, before=ranks)
    line = next(line for line in board.make_board(source, NOW, board.BoardInputs()).lines if line.id == "4711")
    assert (line.state, line.name, line.used) == (state, "pretrain", 0.8)
    assert line.stalled_since == (NOW - timedelta(seconds=64) if state == "stalled" else None)


def test_gpus_that_heat_slows_down_bind_the_job_in_the_list_and_on_its_page() -> None:
    hot = {
        f'DCGM_FI_DEV_CLOCKS_EVENT_REASONS{{cluster="c",Hostname="n1",UUID="GPU-{at}",gpu="{at}"}}': 0x24
        for at in (1, 3)
    }
    source = engine(SERIES, RANKS, hot)
    jobs_board = board.make_board(source, NOW, board.BoardInputs())
    made = report.make_report(source, NOW, report_inputs(jobs_board, "4711"))
    assert next(line for line in jobs_board.lines if line.id == "4711").bound_by is jobs.BoundBy.POWER_OR_HEAT
    assert (made.job.bound_by, made.efficiency.bound_by) == (jobs.BoundBy.POWER_OR_HEAT, jobs.BoundBy.POWER_OR_HEAT)
    assert made.efficiency.fixes[0].why == "2 of its GPUs are throttled"


def test_all_jobs_with_problems_are_listed_beyond_the_inspection_limit() -> None:
    stuck: dict[str, float] = {}
    for at in range(2 * board.MAX_INSPECTED_JOBS):
        own = f'cluster="c",workload_kind="slurm_job",job_name="{at}"'
        stuck |= {
            f"watchkeeper:job_gpus:sum{{{own}}}": 4.0,
            f'ALERTS{{alertname="JobHung",alertstate="firing",{own}}}': 1.0,
        }
    jobs_board = board.make_board(engine(stuck), NOW, board.BoardInputs())
    assert {line.state for line in jobs_board.lines} == {jobs.JobState.HUNG}
    assert len(jobs_board.lines) == 2 * board.MAX_INSPECTED_JOBS
    assert jobs_board.problems[0].startswith(
        f"the ranks of {board.MAX_INSPECTED_JOBS} more jobs with problems were not inspected"
    )


def test_a_nan_carries_the_xid_of_its_rank_and_not_that_of_another_job_s_gpu() -> None:
    series = {
        'training_event_timestamp_seconds{cluster="c",job_name="pretrain",rank="0",kind="nan_loss"}': NOW.timestamp()
        - 60,
        'training_run_info{cluster="c",job_name="pretrain",run_url="https://wandb.example/r/1"}': 1,
    }
    happened = [xid("GPU-3", 94), xid("GPU-9", 48)]
    source = engine(SERIES, RANKS, series)
    made = report.make_report(
        source, NOW, report_inputs(board.make_board(source, NOW, board.BoardInputs()), "4711", happened)
    )
    [loss] = made.losses
    assert loss.what == "nan loss"
    assert [(event.rank, event.kind, event.code) for event in loss.hardware] == [(3, "xid", "94")]
    assert len(made.hardware) == 2
    assert made.run_url == "https://wandb.example/r/1"


@pytest.mark.parametrize("url", ["javascript:alert(1)", "data:text/html,x", "//tracker.example/r", "http:///r", "r/1"])
def test_a_run_that_is_no_web_address_is_not_linked(url: str) -> None:
    source = engine(SERIES, RANKS, {f'training_run_info{{{RANK},run_url="{url}"}}': 1})
    assert (
        report.make_report(
            source, NOW, report_inputs(board.make_board(source, NOW, board.BoardInputs()), "4711")
        ).run_url
        is None
    )


def test_jobs_whose_gpus_the_rules_have_not_put_together_yet_say_why_little_is_known() -> None:
    jobs_board = board.make_board(
        engine({'training_world_size{cluster="c",job_name="pretrain"}': 4}), NOW, board.BoardInputs()
    )
    assert ([line.gpus for line in jobs_board.lines], jobs_board.problems) == ([4], (board.NO_HOLDERS_YET,))


def test_a_failed_query_is_reported_and_the_others_are_used() -> None:
    # Two GPUs for one rank cannot be joined.
    twice = {
        f'training_rank_info{{{RANK},rank="0",UUID="a"}}': 1.0,
        f'training_rank_info{{{RANK},rank="0",UUID="b"}}': 1.0,
        f'watchkeeper:training_rank_slow:ratio{{{RANK},rank="0"}}': 0.2,
    }
    jobs_board = board.make_board(engine(SERIES, twice), NOW, board.BoardInputs())
    assert len(jobs_board.lines) == 3
    assert [problem.partition(" of ")[0] for problem in jobs_board.problems] == ["the query for slow ranks"]


@pytest.mark.parametrize(("text", "is_it"), [("4711", True), ("web/4711", False), ("4712", False)])
def test_a_job_answers_to_its_id(text: str, is_it: bool) -> None:
    assert identity.JobKey("c", jobs.JobKind.SLURM, "", "4711").matches(text, None) is is_it


def test_what_one_job_exports_amiss_costs_no_other_its_line() -> None:
    odd = {
        # Milliseconds instead of seconds, so that its last step lies in the year 55000.
        'watchkeeper:training_last_step_age:seconds{cluster="c",job_name="odd"}': -1.7e12,
        'ALERTS{alertname="JobHung",alertstate="firing",cluster="c",job_name="odd"}': 1,
        f'watchkeeper:training_rank_slow:ratio{{cluster="c",job_name="odd",rank="{"9" * 20}"}}': 0.5,
        'ALERTS{alertname="TrainingRankSlow",alertstate="firing",cluster="c",job_name="odd"}': 1,
        'training_world_size{cluster="c",job_name="odd"}': float("inf"),
    }
    jobs_board = board.make_board(engine(SERIES, odd), NOW, board.BoardInputs())
    line = next(line for line in jobs_board.lines if line.id == "odd")
    assert (line.state, line.stalled_since) == ("hung", None)
    assert line.straggler is not None
    assert line.straggler.rank is None
    assert {"4711", "web/chat", "alone"} < {line.id for line in jobs_board.lines}


@pytest.mark.parametrize("world", [1e12, float("inf"), float("nan"), -1.0])
def test_a_number_of_ranks_that_no_job_has_is_not_believed(world: float) -> None:
    series = {f"training_world_size{{{RANK}}}": world}
    made = engine({**SERIES, **series}, RANKS)
    jobs_board = board.make_board(made, NOW, board.BoardInputs())
    assert [rank.rank for rank in report.make_report(made, NOW, report_inputs(jobs_board, "4711")).ranks] == [
        0,
        1,
        2,
        3,
    ]


def test_a_time_that_no_calendar_has_is_no_loss() -> None:
    series = {f'training_event_timestamp_seconds{{{RANK},kind="loss_not_finite"}}': 1e18}
    made = engine(SERIES, RANKS, series)
    jobs_board = board.make_board(made, NOW, board.BoardInputs())
    assert report.make_report(made, NOW, report_inputs(jobs_board, "4711")).losses == ()
