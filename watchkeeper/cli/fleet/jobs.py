"""`watchkeeper jobs`: list jobs, show one job, and recommend replicas for each model."""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from typing import Any

import click

from watchkeeper.cli import options, terminal, times
from watchkeeper.client import answers
from watchkeeper.client.hub import Client
from watchkeeper.kit import wire
from watchkeeper.model.jobs import Efficiency, Goodput, JobLine, JobReport, Money

# A job in one of these states gives exit code 1.
PROBLEM_STATES = frozenset({"hung", "stalled", "diverged", "slow"})
COLUMNS = (
    "id", "kind", "cluster", "name", "namespace", "user", "team", "state", "nodes", "gpus", "started_at", "gpu_hours",
    "used", "memory_used", "bound_by", "goodput", "stalled_since",
)  # fmt: skip
UNKNOWN, UNMAPPED = "-", "unmapped"
MAX_RANKS = 32


class JobsGroup(options.FullHelpGroup):
    """`jobs ID` is short for `jobs show ID`: an argument that is not a command is the id of a job."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands:
            args = ["show", *args]
        return super().resolve_command(ctx, args)


@click.group("jobs", cls=JobsGroup, invoke_without_command=True)
@click.option("--state", help="Show only jobs in this state, for example stalled, slow or idle.")
@click.option("--team", help="Show only jobs of this team; `unmapped` for jobs without a team.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=500, help="Show at most this many jobs.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@options.with_hub_and_json
@click.pass_context
def command(
    ctx: click.Context, hub: Client, state: str | None, team: str | None, limit: int, as_csv: bool, as_json: bool
) -> None:
    """List jobs: GPU use, bottleneck, goodput, and what each is blocked on.

    \b
    watchkeeper jobs                    every job, the most severe first
    watchkeeper jobs 4711               one job in full: efficiency, goodput, ranks, hardware events
    watchkeeper jobs research/llm-70b   a Kubernetes job
    watchkeeper jobs replicas           how many replicas each model needs

    Exit code 1 if a job is hung, stalled, diverged or slow.
    """
    if ctx.invoked_subcommand is not None:
        return
    answer = hub.jobs(state=state, team=team, limit=limit)
    lines = answer.jobs
    if as_json:
        options.print_json(answer.plain)
    elif as_csv:
        _print_csv(lines)
    else:
        _print_list(lines, answer)
    if any(job.state in PROBLEM_STATES for job in lines):
        ctx.exit(1)


@command.command("show")
@click.argument("id", metavar="ID|[NAMESPACE/]NAME")
@click.option("--cluster", help="Cluster of the job, if several clusters have a job with this id.")
@options.with_hub_and_json
def show(hub: Client, id: str, cluster: str | None, as_json: bool) -> None:
    """Show one job: use of its GPUs, bottleneck and fix, goodput, ranks, hardware events, training loss problems."""
    answer = hub.job(id, cluster=cluster)
    options.print_result(as_plain(answer), report_lines(answer), as_json=as_json)
    if answer.job.state in PROBLEM_STATES:
        click.get_current_context().exit(1)


@command.command("replicas")
@click.argument("model", required=False)
@click.option("--cluster", help="Cluster of the model, if several clusters serve it.")
@click.option("--window", default="1d", help="With MODEL: replay the advice over this time.")
@options.with_hub_and_json
def replicas(hub: Client, model: str | None, cluster: str | None, window: str, as_json: bool) -> None:
    """Recommend replicas for each model from its queue, load and latency objective; changes nothing.

    With MODEL, also replay the advice on recorded data. `watchkeeper render keda` gives an autoscaler the same numbers.
    """
    answer = hub.replicas(model=model, cluster=cluster, window=window if model else None)
    rows = [[need.model, str(need.replicas), _format_known(need.wanted, "d"), need.why] for need in answer.replicas]
    empty = "No inference server reports its requests; see docs/howto/autoscale.md."
    header = ["model", "replicas", "recommended", "reason"]
    options.print_rows(answer.plain, header, rows, as_json=as_json, empty=empty)
    if as_json:
        return
    if model:
        _print_replay(answer.past, window)
    _print_problems(answer)


def as_plain(answer: JobReport) -> dict[str, Any]:
    return {"ok": True, **wire.to_plain(answer)}


def report_lines(answer: JobReport, *, max_ranks: int = MAX_RANKS) -> list[str]:
    job = answer.job
    cost = job.cost
    money = "" if cost is None or cost.amount is None else f", {cost.amount:,.2f} {cost.currency}"
    hours = "unknown GPU-hours" if job.gpu_hours is None else f"{job.gpu_hours:,.1f} GPU-hours"
    allocation = (
        f"{terminal.format_count(job.gpus, 'GPU')} on {terminal.format_count(job.nodes, 'node')}, {hours}{money}"
    )
    is_waiting = job.state == "pending"
    lines = [
        f"{job.id}: {answer.why if answer.verdict is None else answer.verdict.sentence}",
        f"{job.id} ({job.name}): {job.state}" + ("" if is_waiting else f"; {allocation}"),
        f"  why        {answer.why}",
        *_efficiency_lines(answer.efficiency),
        *([] if is_waiting else [f"  goodput    {_format_goodput(job)}", *_time_lines(answer.goodput)]),
    ]
    lines += [f"  run        {answer.run_url}"] if answer.run_url else []
    lines += [f"  incident   {incident}" for incident in job.incidents]
    for loss in answer.losses:
        nearby = "; ".join(f"{event.place}: {event.text}" for event in loss.hardware[:4])
        lines.append(
            f"  loss       {times.utc(loss.at)} {loss.what}; {nearby or 'no hardware event on its GPUs near that time'}"
        )
    lines += [f"  hardware   {times.utc(event.at)} {event.place}: {event.text}" for event in answer.hardware[-8:]]
    lines += _rank_lines(answer, max_ranks)
    return lines + [f"  no data    {gap}" for gap in (*answer.efficiency.unmeasured, *answer.notes)]


def _efficiency_lines(efficiency: Efficiency) -> list[str]:
    lines = [f"  bound by   {efficiency.why}"]
    for use in efficiency.uses:
        if use.held is None and use.used is None:
            lines.append(f"  {use.what:<10} not measured")
            continue
        held, used = _format_amount(use.held, use.unit), _format_amount(use.used, use.unit)
        lines.append(f"  {use.what:<10} {used} used of {held} allocated ({_format_known(use.share, '.0%')})")
    fixes = ((f"{fix.do}: {fix.why}", f" [{fix.command}]" if fix.command else "") for fix in efficiency.fixes)
    return lines + [f"  fix        {text}{command}" for text, command in fixes]


def _format_goodput(job: JobLine) -> str:
    if job.goodput is None:
        return "unknown: the job does not report its steps (training_iterations_total), or not for five minutes yet"
    return f"{job.goodput:.0%} of the last hour"


def _time_lines(goodput: Goodput) -> list[str]:
    if goodput.share is None or goodput.steps is None or goodput.step_seconds is None:
        return []
    lost = ", ".join(f"{loss.reason} {_format_seconds(loss.seconds)}" for loss in goodput.lost) or "nothing"
    steps = f"{goodput.steps:,.0f} steps of {goodput.step_seconds:.3g} s"
    wall = _format_seconds(goodput.wall_seconds)
    return [f"  time       productive {goodput.share:.0%} of {wall}: {steps}; lost to {lost}"]


def _rank_lines(answer: JobReport, max_ranks: int) -> list[str]:
    """A table of ranks: those with a problem first, the others in their order."""
    rows = sorted(answer.ranks, key=lambda rank: rank.state in ("works", "unknown"))
    if not rows:
        return []
    columns = f"{'SM':>5} {'util':>5} {'watts':>6} {'links':>9} {'step':>8} {'score':>6}"
    lines = [f"  {'rank':>6}  {'node':<16} {'GPU':<4} {columns}  state"]
    for row in rows[:max_ranks]:
        rate = row.link_bytes_per_second
        link = _format_known(rate and rate / 1e9, ".1f", " GB/s")
        if rate is not None and rate < 1e9:
            link = f"{rate / 1e6:.0f} MB/s"
        util, power = _format_known(row.utilisation_percent, ".0f", "%"), _format_known(row.power_watts, ".0f")
        step, score = _format_known(row.step_seconds, ".3g", " s"), _format_known(row.score, "+.0%")
        place = f"{_format_known(row.rank, 'd'):>6}  {row.node:<16} {row.gpu:<4}"
        use = f"{_format_known(row.sm_active, '.0%'):>5} {util:>5} {power:>6}"
        lines.append(f"  {place} {use} {link:>9} {step:>8} {score:>6}  {row.state}")
    more = len(answer.ranks) - max_ranks + answer.omitted_ranks
    return [*lines, f"  and {more} more"] if more > 0 else lines


def _print_list(lines: Sequence[JobLine], answer: answers.JobList) -> None:
    rows = [
        [
            job.id, job.name if job.name not in job.id else "", job.team or UNMAPPED, job.state,
            str(job.gpus), str(job.nodes), _format_known(job.used, ".0%"), _format_known(job.memory_used, ".0%"),
            job.bound_by.replace("_", " "), _format_known(job.goodput, ".0%"), _format_cost(job.cost), format_note(job),
        ]
        for job in lines
    ]  # fmt: skip
    if rows:
        header = ["job", "name", "team", "state", "GPUs", "nodes", "used", "memory", "bound by", "goodput"]
        options.print_table([*header, "cost so far", "note"], rows)
    else:
        click.echo("No jobs: no scheduler, exporter or program reports one, or recording rules have not run yet.")
    if answer.total > len(lines):
        click.echo(f"{answer.total - len(lines)} more jobs; show them with --limit")
    for line in options.gpu_lines(answer):
        click.echo(line)
    unmapped = answer.unmapped
    if unmapped["jobs"]:
        jobs = f"{terminal.format_count(unmapped['jobs'], 'job')} with {terminal.format_count(unmapped['gpus'], 'GPU')}"
        click.echo(f"Unmapped: {jobs} without a team. Set it in the inventory file (`fleet.inventory`)")
    _print_problems(answer)


def format_note(job: JobLine) -> str:
    """Since when a job is stalled, which rank blocks it, and its incidents."""
    parts = [f"stalled since {job.stalled_since:%H:%M:%SZ}"] if job.stalled_since else []
    straggler = job.straggler
    if straggler is not None:
        place = [f"rank {straggler.rank}"] if straggler.rank is not None else []
        place += [f"GPU {straggler.gpu}"] if straggler.gpu else []
        score = "" if straggler.score is None else f" {straggler.score:+.0%}"
        where = f"{', '.join(place)} on " if place else ""
        parts.append(f"blocked by {where}{straggler.node or 'an unknown node'}{score}")
    return "; ".join([*parts, *([" ".join(job.incidents)] if job.incidents else [])])


def _print_csv(lines: Sequence[JobLine]) -> None:
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow([*COLUMNS, "cost", "currency"])
    for job in lines:
        plain, cost = wire.to_plain(job), job.cost or Money(None, "")
        out.writerow([*(_escape_formula(plain[name]) for name in COLUMNS), _escape_formula(cost.amount), cost.currency])


def _escape_formula(value: Any) -> Any:
    """Quote a CSV cell that a spreadsheet would evaluate, such as a job named like a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in "=+-@\t\r" and value else value


def _print_replay(replay: answers.ReplicasReplay | None, window: str) -> None:
    if replay is None:
        click.echo(f"Too little data in the last {window} to replay the advice.")
        return
    recorded, total = replay.seen_seconds, replay.until - replay.since
    gap = f"; {_format_seconds(total - recorded)} have no data" if recorded < total else ""
    click.echo(f"Replay of {_format_seconds(recorded)} in steps of {_format_seconds(replay.step_seconds)}{gap}:")
    late = (replay.late_seconds, replay.would_late_seconds)
    rows = [
        ["replica-hours", f"{replay.had_replica_hours:.1f}", f"{replay.would_replica_hours:.1f}"],
        ["replica changes", str(replay.had_changes), str(replay.changes)],
        ["queue too long", _format_seconds(replay.crowded_seconds), _format_seconds(replay.would_crowded_seconds)],
        ["latency objective missed", *(UNKNOWN if None in late else _format_seconds(value or 0.0) for value in late)],
    ]
    options.print_table(["", "recorded", "with advice"], rows)
    click.echo("This is the best case: new replicas are assumed to serve at once and to clear the queue.")


def _print_problems(answer: answers.JobList | answers.ReplicaList) -> None:
    for problem in answer.problems:
        click.echo(f"note: {problem}", err=True)


def _format_cost(cost: Money | None) -> str:
    return UNKNOWN if cost is None else _format_known(cost.amount, ",.0f", f" {cost.currency}")


def _format_known(value: float | None, form: str, unit: str = "") -> str:
    return UNKNOWN if value is None else f"{value:{form}}{unit}"


def _format_amount(value: float | None, unit: str) -> str:
    return (
        _format_known(value and value / 2**30, ",.0f", " GiB")
        if unit == "bytes"
        else _format_known(value, ",.1f", f" {unit}")
    )


def _format_seconds(value: float) -> str:
    if value >= 5400:
        return f"{value / 3600:.1f} h"
    return f"{value / 60:.1f} min" if value >= 90 else f"{value:.0f} s"
