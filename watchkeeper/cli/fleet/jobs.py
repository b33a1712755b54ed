"""`watchkeeper jobs`: every job in one line, one job in full, and how many replicas a model needs."""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from typing import Any

import click

from watchkeeper.cli import groups, options, times
from watchkeeper.client import answers
from watchkeeper.client.hub import Client
from watchkeeper.kit import wire
from watchkeeper.model.jobs import Efficiency, Goodput, JobLine, JobReport, Money, Straggler

# Worth an exit code other than 0.
TROUBLE = frozenset({"hung", "stalled", "diverged", "slow"})
COLUMNS = (
    "id", "kind", "cluster", "name", "namespace", "user", "team", "state", "nodes", "gpus", "started_at", "gpu_hours",
    "used", "memory_used", "bound_by", "goodput", "stalled_since",
)  # fmt: skip
UNKNOWN, UNMAPPED = "-", "unmapped"
MOST_RANKS = 32


class JobsGroup(groups.FullHelpGroup):
    """`jobs` lists, `jobs ID` shows one: whatever is not a command is the id of a job."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands:
            args = ["show", *args]
        return super().resolve_command(ctx, args)


@click.group("jobs", cls=JobsGroup, invoke_without_command=True)
@click.option("--state", help="Only jobs of this state, such as stalled, slow or idle.")
@click.option("--team", help="Only this team's jobs; `unmapped` for those without one.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=500, help="At most so many lines.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, for a spreadsheet.")
@options.as_json
@options.with_hub
@click.pass_context
def command(
    ctx: click.Context, hub: Client, state: str | None, team: str | None, limit: int, as_csv: bool, as_json: bool
) -> None:
    """List jobs: what they hold and use, what they are bound by, goodput, and who holds them up.

    \b
    watchkeeper jobs                    every job, the gravest first
    watchkeeper jobs 4711               one job in full: efficiency, goodput, ranks, hardware events
    watchkeeper jobs research/llm-70b   a Kubernetes job
    watchkeeper jobs replicas           how many replicas each model needs

    Exits with 1 when a job is hung, stalled, diverged or slow.
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
    if any(one.state in TROUBLE for one in lines):
        ctx.exit(1)


@command.command("show")
@click.argument("id", metavar="ID|[NAMESPACE/]NAME")
@click.option("--cluster", help="Of this cluster, where several have it.")
@options.as_json
@options.with_hub
def show(hub: Client, id: str, cluster: str | None, as_json: bool) -> None:
    """Show one job: used against held, what it is bound by and the fix, goodput, ranks, hardware events, losses."""
    answer = hub.job(id, cluster=cluster)
    if as_json:
        options.print_json(as_plain(answer))
    else:
        for line in report_lines(answer):
            click.echo(line)
    if answer.job.state in TROUBLE:
        click.get_current_context().exit(1)


@command.command("replicas")
@click.argument("model", required=False)
@click.option("--cluster", help="Of this cluster, where several serve it.")
@click.option("--window", default="1d", help="With MODEL: how far back to look what the advice would have done.")
@options.as_json
@options.with_hub
def replicas(hub: Client, model: str | None, cluster: str | None, window: str, as_json: bool) -> None:
    """How many replicas each model needs by its queue, load and latency objective; nothing is changed.

    With MODEL also what following the advice would have done over the recorded past. `render keda` gives the same
    numbers to an autoscaler.
    """
    answer = hub.replicas(model=model, cluster=cluster, window=window if model else None)
    if as_json:
        options.print_json(answer.plain)
        return
    rows = [
        [one.model, str(one.replicas), UNKNOWN if one.wanted is None else str(one.wanted), one.why]
        for one in answer.replicas
    ]
    if rows:
        options.print_table(["model", "replicas", "would do", "because"], rows)
    else:
        click.echo("No program tells of its requests; see docs/howto/autoscale.md.")
    if model:
        _print_past(answer.past, window)
    _problems(answer)


def as_plain(answer: JobReport) -> dict[str, Any]:
    """The report as the hub wrote it."""
    return {"ok": True, **wire.to_plain(answer)}


def report_lines(answer: JobReport, *, most_ranks: int = MOST_RANKS) -> list[str]:
    """A job's report for a terminal; `explain job` prints it too."""
    job = answer.job
    cost = job.cost
    money = "" if cost is None or cost.amount is None else f", {cost.amount:,.2f} {cost.currency}"
    hours = "unknown GPU-hours" if job.gpu_hours is None else f"{job.gpu_hours:,.1f} GPU-hours"
    held = f"{_count(job.gpus, 'GPU')} on {_count(job.nodes, 'node')}, {hours}{money}"
    is_waiting = job.state == "pending"
    said = [
        f"{job.id} ({job.name}): {job.state}" + ("" if is_waiting else f"; {held}"),
        f"  why        {answer.why}",
        *_efficiency(answer.efficiency),
        *([] if is_waiting else _goodput(answer.goodput)),
    ]
    said += [f"  run        {answer.run_url}"] if answer.run_url else []
    said += [f"  incident   {one}" for one in job.incidents]
    for loss in answer.losses:
        near = "; ".join(f"{one.place}: {one.text}" for one in loss.hardware[:4])
        said.append(
            f"  loss       {times.utc(loss.at)} {loss.what}; {near or 'no hardware event of its GPUs was seen then'}"
        )
    said += [f"  hardware   {times.utc(one.at)} {one.place}: {one.text}" for one in answer.hardware[-8:]]
    said += _ranks(answer, most_ranks)
    return said + [f"  not seen   {one}" for one in (*answer.efficiency.unmeasured, *answer.notes)]


def _efficiency(found: Efficiency) -> list[str]:
    said = [f"  bound by   {found.why}"]
    for one in found.uses:
        if one.held is None and one.used is None:
            said.append(f"  {one.what:<10} not measured")
            continue
        held = UNKNOWN if one.held is None else _amount(one.held, one.unit)
        used = UNKNOWN if one.used is None else _amount(one.used, one.unit)
        said.append(f"  {one.what:<10} {used} used of {held} held ({_share(one.share)})")
    return said + [
        f"  fix        {one.do}: {one.why}" + (f" [{one.command}]" if one.command else "") for one in found.fixes
    ]


def _goodput(found: Goodput) -> list[str]:
    if found.share is None or found.steps is None or found.step_seconds is None:
        return ["  goodput    unknown: the job does not tell of its steps (training_iterations_total)"]
    lost = ", ".join(f"{one.reason} {_seconds(one.seconds)}" for one in found.lost) or "nothing"
    steps = f"{found.steps:,.0f} steps of {found.step_seconds:.3g} s"
    return [f"  goodput    {_share(found.share)} of {_seconds(found.wall_seconds)}: {steps}; lost to {lost}"]


def _ranks(answer: JobReport, most: int) -> list[str]:
    """Those that stand out first, the others in their order."""
    rows = sorted(answer.ranks, key=lambda one: one.state in ("works", "unknown"))
    if not rows:
        return []
    numbers = f"{'SM':>5} {'util':>5} {'watts':>6} {'links':>9} {'step':>8} {'score':>6}"
    said = [f"  {'rank':>6}  {'node':<16} {'GPU':<4} {numbers}  state"]
    for one in rows[:most]:
        number = UNKNOWN if one.rank is None else str(one.rank)
        step = UNKNOWN if one.step_seconds is None else f"{one.step_seconds:.3g} s"
        score = UNKNOWN if one.score is None else f"{one.score:+.0%}"
        power = UNKNOWN if one.power_watts is None else f"{one.power_watts:.0f}"
        util = UNKNOWN if one.utilisation_percent is None else f"{one.utilisation_percent:.0f}%"
        link = UNKNOWN if one.link_bytes_per_second is None else _rate(one.link_bytes_per_second)
        said.append(
            f"  {number:>6}  {one.node:<16} {one.gpu:<4} {_share(one.sm_active):>5} {util:>5} {power:>6} "
            f"{link:>9} {step:>8} {score:>6}  {one.state}"
        )
    more = len(answer.ranks) - most + answer.omitted_ranks
    return [*said, f"  and {more} more"] if more > 0 else said


def _print_list(lines: Sequence[JobLine], answer: answers.JobList) -> None:
    rows = [
        [
            one.id, one.name if one.name not in one.id else "", one.team or UNMAPPED, one.state,
            str(one.gpus), str(one.nodes), _share(one.used), _share(one.memory_used),
            one.bound_by.replace("_", " "), _share(one.goodput), _money(one.cost), note(one),
        ]
        for one in lines
    ]  # fmt: skip
    if rows:
        header = ["job", "name", "team", "state", "GPUs", "nodes", "used", "memory", "bound by", "goodput"]
        options.print_table([*header, "cost so far", ""], rows)
    else:
        click.echo("No job is known: no scheduler, exporter or program names one, or rules have not run for a minute.")
    if answer.total > len(lines):
        click.echo(f"{answer.total - len(lines)} more; --limit shows them")
    without = answer.unmapped
    if without["jobs"]:
        held = f"{_count(without['jobs'], 'job')} with {_count(without['gpus'], 'GPU')}"
        click.echo(f"Unmapped: {held} of no team. Say it in the file of `fleet.inventory`")
    _problems(answer)


def note(one: JobLine) -> str:
    """Since when it stands still, whom it waits for, and its incidents."""
    said = [f"stands still since {one.stalled_since:%H:%M:%SZ}"] if one.stalled_since else []
    slow = one.straggler
    if slow is not None:
        late = "" if slow.score is None else f" {slow.score:+.0%}"
        said.append(f"waits for {_whom(slow)}{late}")
    return "; ".join([*said, *([" ".join(one.incidents)] if one.incidents else [])])


def _whom(slow: Straggler) -> str:
    parts = [
        *([f"rank {slow.rank}"] if slow.rank is not None else []),
        *([f"GPU {slow.gpu}"] if slow.gpu else []),
    ]
    where = slow.node or "an unknown node"
    return f"{', '.join(parts)} on {where}" if parts else where


def _print_csv(lines: Sequence[JobLine]) -> None:
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow([*COLUMNS, "cost", "currency"])
    for one in lines:
        plain, cost = wire.to_plain(one), one.cost or Money(None, "")
        out.writerow([*(_plain(plain[name]) for name in COLUMNS), _plain(cost.amount), cost.currency])


def _plain(value: Any) -> Any:
    """A cell that a spreadsheet reads as text even where somebody named a job like a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in "=+-@\t\r" and value else value


def _print_past(past: answers.ReplicasReplay | None, window: str) -> None:
    if past is None:
        click.echo(f"Of the last {window} too little is recorded to say what following the advice would have done.")
        return
    seen, whole = past.seen_seconds, past.until - past.since
    hole = f"; of {_seconds(whole - seen)} between nothing is recorded" if seen < whole else ""
    click.echo(f"Over {_seconds(seen)}, looked at every {_seconds(past.step_seconds)}{hole}:")
    late, would = past.late_seconds, past.would_late_seconds
    rows = [
        ["replica-hours", f"{past.had_replica_hours:.1f}", f"{past.would_replica_hours:.1f}"],
        ["changes of replicas", str(past.had_changes), str(past.changes)],
        ["too many waited", _seconds(past.crowded_seconds), _seconds(past.would_crowded_seconds)],
        [
            "too many were late",
            *(2 * [UNKNOWN] if late is None or would is None else [_seconds(late), _seconds(would)]),
        ],
    ]
    options.print_table(["", "as it was", "with the advice"], rows)
    click.echo("At best: more replicas are taken to serve at once and to cure their queue.")


def _problems(answer: answers.JobList | answers.ReplicaList) -> None:
    for problem in answer.problems:
        click.echo(f"note: {problem}", err=True)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _share(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.0%}"


def _money(cost: Money | None) -> str:
    return UNKNOWN if cost is None or cost.amount is None else f"{cost.amount:,.0f} {cost.currency}"


def _amount(value: float, unit: str) -> str:
    return f"{value / 2**30:,.0f} GiB" if unit == "bytes" else f"{value:,.1f} {unit}"


def _rate(value: float) -> str:
    return f"{value / 1e9:.1f} GB/s" if value >= 1e9 else f"{value / 1e6:.0f} MB/s"


def _seconds(value: float) -> str:
    if value >= 5400:
        return f"{value / 3600:.1f} h"
    return f"{value / 60:.1f} min" if value >= 90 else f"{value:.0f} s"
