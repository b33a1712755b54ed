"""`watchkeeper drill`: every shipped fault, and healthy hours, against the real pipeline, with a score."""

from __future__ import annotations

import sys
from time import perf_counter
from typing import TYPE_CHECKING

import click

from watchkeeper.cli import options

if TYPE_CHECKING:
    from watchkeeper.client.hub import Client
    from watchkeeper.drill import game_day

LINE_SECONDS = 60.0


@click.command("drill")
@click.option("--scenario", "names", metavar="NAME", multiple=True, help="Only this fault; may be given several times.")
@click.option(
    "--hours",
    "--healthy-hours",
    "healthy_hours",
    type=click.FloatRange(0, 10_000),
    default=1.0,
    help="Hours without a fault; 0: none.",
)
@click.option(
    "--gpus",
    "--healthy-gpus",
    "healthy_gpus",
    type=click.IntRange(1, 20_000),
    default=256,
    help="GPUs without a fault, as one fleet for each core; each lives through all the hours.",
)
@click.option("--pairs", is_flag=True, help="Also two faults at once on one node, each to be found by itself.")
@click.option("--workers", type=click.IntRange(1, 256), help="Processes to use; one for each core by default.")
@click.option("--tell", is_flag=True, help="Hand the score to the hub, for its page and metrics.")
@options.as_json
@options.with_hub
def command(
    names: tuple[str, ...],
    *,
    hub: Client,
    tell: bool,
    healthy_hours: float,
    healthy_gpus: int,
    pairs: bool,
    workers: int | None,
    as_json: bool,
) -> None:
    """Run simulated faults through the real pipeline, as fast as this machine can, and score what came of it.

    Nothing is listened to and nothing is touched: samples, kernel records, rules, incidents, diagnoses and
    dry runs stay inside this command. Exit code 0 when every fault was found, placed, rated and diagnosed
    right and in time, and nothing was paged for that is well; 1 otherwise.
    """
    from watchkeeper.drill import game_day
    from watchkeeper.drill.pairs import PAIRS
    from watchkeeper.kit import wire
    from watchkeeper.sim import scenario

    known = scenario.load_all()
    chosen = tuple(scenario.find(known, name).name for name in names) or tuple(known)
    began = perf_counter()
    plan = game_day.GameDayPlan(chosen, healthy_hours, healthy_gpus, workers=workers, pairs=PAIRS if pairs else ())
    with DrillProgress() as progress:
        day = game_day.run(plan, on_progress=progress.say)
    plain = wire.to_plain(day.score)
    options.print_json(plain) if as_json else _print(day, seconds=perf_counter() - began)
    if tell:
        hub.submit_drill_score(plain)
        click.echo("Told to the hub: `watchkeeper accuracy` counts it by cause.", err=True)
    if not day.score.is_right:
        raise SystemExit(1)


class DrillProgress:
    """One line that is written over; where nobody watches, a line a minute for whoever reads the log."""

    def __init__(self) -> None:
        self._is_watched, self._said_at = sys.stderr.isatty(), perf_counter()

    def say(self, text: str) -> None:
        if self._is_watched:
            click.echo(f"\r\x1b[K{text}", nl=False, err=True)
        elif perf_counter() - self._said_at >= LINE_SECONDS:
            self._said_at = perf_counter()
            click.echo(text, err=True)

    def __enter__(self) -> DrillProgress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_watched:
            click.echo("\r\x1b[K", nl=False, err=True)


def _print(day: game_day.GameDayResult, *, seconds: float) -> None:
    def yes(is_so: bool) -> str:
        return "yes" if is_so else "NO"

    result = day.score
    rows = [
        [
            one.name,
            yes(one.detected),
            "" if one.seconds_to_detect is None else f"{one.seconds_to_detect:g} s",
            "" if one.budget_seconds is None else f"{one.budget_seconds:g} s{'' if one.within_budget else ' LATE'}",
            yes(one.place_right),
            yes(one.severity_right),
            yes(one.diagnosed),
        ]
        for one in result.scenarios
    ]
    options.print_table(["scenario", "detected", "after", "allowed", "place", "severity", "cause"], rows)
    for words in result.mistakes:
        click.echo(f"for nothing: {words}")
    right = sum(one.is_right for one in result.scenarios)
    click.echo(
        f"{right} of {len(result.scenarios)} right; {result.false_pages} false pages; "
        f"{result.false_alarms_per_1000_gpu_hours:g} false alarms per 1,000 GPU hours over {day.healthy.gpu_hours:g} "
        f"GPU hours; {seconds:.0f} s"
    )
