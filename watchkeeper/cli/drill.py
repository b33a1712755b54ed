"""`watchkeeper drill`: every shipped fault, and healthy hours, against the real pipeline, with a score."""

from __future__ import annotations

import sys
from time import perf_counter
from typing import TYPE_CHECKING

import click

from watchkeeper.cli import options

if TYPE_CHECKING:
    from watchkeeper.drill import game_day


@click.command("drill")
@click.option("--scenario", "names", metavar="NAME", multiple=True, help="Only this fault; may be given several times.")
@click.option("--healthy-hours", type=click.FloatRange(0, 10_000), default=1.0, help="Hours without a fault; 0: none.")
@click.option("--healthy-gpus", type=click.IntRange(1, 20_000), default=256, help="GPUs in the fleet without a fault.")
@click.option("--workers", type=click.IntRange(1, 256), help="Processes to use; one for each core by default.")
@options.as_json
def command(
    names: tuple[str, ...], healthy_hours: float, healthy_gpus: int, workers: int | None, as_json: bool
) -> None:
    """Run simulated faults through the real pipeline, as fast as this machine can, and score what came of it.

    Nothing is listened to and nothing is touched: samples, kernel records, rules, incidents, diagnoses and
    dry runs stay inside this command. Exit code 0 when every fault was found, placed, rated and diagnosed
    right and nothing was paged for that is well; 1 otherwise.
    """
    from watchkeeper.drill import game_day
    from watchkeeper.kit import wire
    from watchkeeper.sim import scenario

    known = scenario.load_all()
    chosen = tuple(scenario.find(known, name).name for name in names) or tuple(known)
    began = perf_counter()
    plan = game_day.Plan(chosen, healthy_hours, healthy_gpus, workers=workers)
    day = game_day.run(plan, say=_progress)
    _progress("")
    if as_json:
        options.print_json(wire.to_plain(day.score))
    else:
        _print(day, seconds=perf_counter() - began)
    if not day.score.is_right:
        raise SystemExit(1)


def _progress(text: str) -> None:
    """One line that is written over; nothing where nobody watches."""
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{text}", nl=False, err=True)


def _print(day: game_day.GameDay, *, seconds: float) -> None:
    def yes(is_so: bool) -> str:
        return "yes" if is_so else "NO"

    result = day.score
    rows = [
        [
            one.name,
            yes(one.detected),
            "" if one.seconds_to_detect is None else f"{one.seconds_to_detect:g} s",
            yes(one.place_right),
            yes(one.severity_right),
            yes(one.diagnosed),
        ]
        for one in result.scenarios
    ]
    options.print_table(["scenario", "detected", "after", "place", "severity", "cause"], rows)
    for incident in [*(page for one in day.verdicts for page in one.false_pages), *day.healthy.alarms]:
        click.echo(f"for nothing: {incident.severity} {incident.title} ({incident.cause}, {incident.opened_at:%H:%M})")
    right = sum(one.is_right for one in result.scenarios)
    click.echo(
        f"{right} of {len(result.scenarios)} right; {result.false_pages} false pages; "
        f"{result.false_alarms_per_1000_gpu_hours:g} false alarms per 1,000 GPU hours over {day.healthy.gpu_hours:g} "
        f"GPU hours; {seconds:.0f} s"
    )
