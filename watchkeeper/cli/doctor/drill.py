"""`watchkeeper drill`: run all simulated faults and a healthy fleet through the real pipeline and score the result."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import click

from watchkeeper.cli import options
from watchkeeper.cli.terminal import Progress

if TYPE_CHECKING:
    from watchkeeper.client.hub import Client
    from watchkeeper.drill import game_day

LOG_SECONDS = 60.0
HOURS, HOURS_HELP = click.FloatRange(0, 10_000), "Hours of a healthy fleet to simulate; 0 skips it."
GPUS_HELP = "GPUs of the healthy fleet, split into one fleet per core."


@click.command("drill")
@click.option("--scenario", "names", metavar="NAME", multiple=True, help="Run only this fault; repeatable.")
@click.option("--hours", "--healthy-hours", "healthy_hours", type=HOURS, default=1.0, help=HOURS_HELP)
@click.option("--gpus", "--healthy-gpus", "healthy_gpus", type=click.IntRange(1, 20_000), default=256, help=GPUS_HELP)
@click.option("--pairs", is_flag=True, help="Also inject two faults at once on one node; each must be diagnosed.")
@click.option("--workers", type=click.IntRange(1, 256), help="Number of processes.  [default: one per core]")
@click.option("--consistency", is_flag=True, help="Ask every page, endpoint and command, and list contradictions.")
@click.option("--long", "is_long", is_flag=True, help="With --consistency: all pairs of faults, and random steps.")
@options.path_option("--progress", "progress_file", metavar="FILE", help="With --consistency: continue from this file.")
@click.option("--tell", is_flag=True, help="Send the score to the hub, for its drills page and metrics.")
@options.with_hub_and_json
def command(
    names: tuple[str, ...],
    hub: Client,
    tell: bool,
    pairs: bool,
    as_json: bool,
    consistency: bool,
    is_long: bool,
    progress_file: Path | None,
    **size: Any,
) -> None:
    """Run simulated faults through the real pipeline at full speed and score detection and diagnosis.

    Opens no port and changes no machine: samples, kernel logs, rules, incidents, diagnoses and dry runs stay in this
    process. Exit code 0 if every fault was detected in time with the right place, severity and cause, and no healthy
    part caused a page; else 1.

    With --consistency, whole hubs run in this process, and before, during and after each repair every answer is
    compared with all others. Exit code 0 if nothing contradicts.
    """
    if consistency:
        from watchkeeper.cli.doctor import drill_consistency

        workers = size["workers"]
        drill_consistency.check(names, is_long=is_long, workers=workers, progress_file=progress_file, as_json=as_json)
        return
    if is_long or progress_file is not None:
        raise click.UsageError("--long and --progress need --consistency")
    from watchkeeper.drill import game_day
    from watchkeeper.drill.score import PAIRS
    from watchkeeper.kit import wire
    from watchkeeper.sim import scenario

    scenarios = scenario.load_scenarios()
    selected = tuple(scenario.find_scenario(scenarios, name).name for name in names) or tuple(scenarios)
    began = perf_counter()
    plan = game_day.GameDayPlan(selected, **size, pairs=PAIRS if pairs else ())
    progress = Progress(log_seconds=LOG_SECONDS)
    try:
        day = game_day.run(plan, on_progress=progress.update)
    finally:
        progress.clear()
    plain = wire.to_plain(day.score)
    options.print_json(plain) if as_json else _print_score(day, seconds=perf_counter() - began)
    if tell:
        hub.submit_drill_score(plain)
        click.echo("Score sent to the hub; `watchkeeper accuracy` shows it by cause.", err=True)
    if not day.score.is_right:
        raise SystemExit(1)


def _print_score(day: game_day.GameDayResult, *, seconds: float) -> None:
    score, rows = day.score, []
    for result in score.scenarios:
        after = "" if result.seconds_to_detect is None else f"{result.seconds_to_detect:g} s"
        allowed = "" if result.budget_seconds is None else f"{result.budget_seconds:g} s"
        allowed += " LATE" if allowed and not result.within_budget else ""
        right = (result.detected, result.place_right, result.severity_right, result.diagnosed)
        detected, *others = ("yes" if is_right else "NO" for is_right in right)
        rows.append([result.name, detected, after, allowed, *others])
    options.print_table(["scenario", "detected", "after", "allowed", "place", "severity", "cause"], rows)
    for mistake in score.mistakes:
        click.echo(f"mistake: {mistake}")
    right_count = sum(result.is_right for result in score.scenarios)
    click.echo(
        f"{right_count} of {len(score.scenarios)} right; {score.false_pages} false pages; "
        f"{score.false_alarms_per_1000_gpu_hours:g} false alarms per 1,000 GPU-hours over {day.healthy.gpu_hours:g} "
        f"GPU-hours; {seconds:.0f} s"
    )
