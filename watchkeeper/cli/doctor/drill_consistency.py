"""`watchkeeper drill --consistency`: ask every page of simulated fleets, and list what contradicts."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from watchkeeper.cli import options
from watchkeeper.cli.terminal import Progress

if TYPE_CHECKING:
    from watchkeeper.drill.consistency import checking

MAX_VALUE_LENGTH = 200


def check(
    names: tuple[str, ...], *, is_long: bool, workers: int | None, progress_file: Path | None, as_json: bool
) -> None:
    """Run the stories of these scenarios, of all without names; exit code 1 if anything contradicts."""
    from watchkeeper.drill.consistency import checking
    from watchkeeper.kit import wire
    from watchkeeper.sim import scenario

    scenarios = scenario.load_scenarios()
    selected = [scenario.find_scenario(scenarios, name).name for name in names] or list(scenarios)
    stories = checking.list_stories(selected, is_long=is_long, with_all=not names)
    plan = checking.ConsistencyPlan(stories, run_command, workers, progress_file)
    progress = Progress(log_seconds=60.0)
    try:
        report = checking.run(plan, on_progress=progress.update)
    finally:
        progress.clear()
    options.print_json(wire.to_plain(report)) if as_json else _print_report(report)
    if report.violations:
        raise SystemExit(1)


def _print_report(report: checking.ConsistencyReport) -> None:
    for violation in report.violations:
        click.echo(f"{violation.invariant}: {violation.sentence}")
        click.echo(f"  {violation.where}, in {violation.story}, {violation.moment} ({violation.at:%H:%M:%S}Z)")
        for source, value in violation.values.items():
            click.echo(f"    {source}: {str(value)[:MAX_VALUE_LENGTH]}")
    click.echo(
        f"{len(report.violations)} violations of {report.invariants} invariants; "
        f"{report.looks} looks in {report.stories} stories"
    )


def run_command(line: Sequence[str]) -> tuple[int, str]:
    """Run a command in this process, as a user would; its exit code and its output."""
    from watchkeeper.cli import main

    output, code = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True), 0
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            main.main(line)
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
    buffer = output.buffer
    assert isinstance(buffer, io.BytesIO)
    return code, buffer.getvalue().decode()
