"""`watchkeeper diag`: active tests of this node's GPUs, against what each model reaches and against each other.

It gathers what is known of the node (`agent.node_facts`), lets `probe.diag.diag_run` work and judge, prints, and leaves
the newest results where the agent shows them as series.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from watchkeeper.agent import diag_page, node_facts
from watchkeeper.cli import groups
from watchkeeper.cli.node import diag_fabric
from watchkeeper.cli.node.gpu_choice import with_gpus
from watchkeeper.cli.node.profiling import SPOOL
from watchkeeper.cli.options import as_json, print_json
from watchkeeper.errors import CollectError
from watchkeeper.kit import clock, durations, logs, wire
from watchkeeper.model import diag, gpu_selectors
from watchkeeper.probe.diag import plan, runner

EXIT_CODES = {diag.DiagOutcome.PASSED: 0, diag.DiagOutcome.FAILED: 1, diag.DiagOutcome.CANNOT_TELL: 3}
ORDER = list(diag.DiagVerdict)


def _bent(body: Callable[..., Any]) -> Callable[..., Any]:
    """Options about how GPUs are tested."""
    for option in (
        click.option("--no-keep", is_flag=True, help="Leave nothing for the agent's page."),
        click.option(
            "--spool", type=click.Path(path_type=Path), default=SPOOL, help="The agent's --spool, for its page."
        ),
        click.option(
            "--python", metavar="PATH", default=sys.executable, show_default=False, help="The interpreter with torch."
        ),
        click.option(
            "--with",
            "engine",
            type=click.Choice(runner.ENGINES),
            default=runner.AUTO,
            help="Who tests at -r 2 and more: dcgmi where it is installed, else torch; or the one you name, or both.",
        ),
        click.option("--expected-gpus", type=click.IntRange(0, 1024), help="How many GPUs there should be."),
        click.option("--for", "length", metavar="DURATION", help="How long -r 3 and 4 load the GPUs; else 3m and 4h."),
        click.option("--busy-ok", is_flag=True, help="Test GPUs too that somebody is using."),
    ):
        body = option(body)
    return body


@click.group("diag", cls=groups.FullHelpGroup, invoke_without_command=True)
@click.option(
    "-r",
    "--run",
    "level",
    type=click.IntRange(1, 4),
    default=1,
    help="1 software and configuration; 2 adds speed and correctness; 3 adds full load; 4 full load for hours.",
)
@as_json
@with_gpus
@_bent
def command(
    level: int,
    as_json: bool,
    busy_ok: bool,
    length: str | None,
    expected_gpus: int | None,
    engine: str,
    python: str,
    spool: Path,
    no_keep: bool,
    chosen: gpu_selectors.GpuSelection | None,
) -> None:
    """Test this node's GPUs. Nothing is changed on them; a GPU that is in use is left alone.

    Exit codes: 0 all passed, perhaps with warnings; 1 a test failed; 2 wrong use; 3 cannot tell, for example without
    torch, or because a GPU is busy. Ctrl-C stops everything at once.
    """
    if click.get_current_context().invoked_subcommand is not None:
        return
    logs.configure(level="critical")
    options = runner.DiagOptions(
        _seconds(level, length), chosen, is_busy_ok=busy_ok, expected_gpus=expected_gpus, engine=engine, python=python
    )
    report = _run(level, options)
    if as_json:
        print_json(as_plain(report))
    else:
        _print(report)
    if not no_keep:
        _keep(report, spool)
    sys.exit(EXIT_CODES[report.exit])


command.add_command(diag_fabric.command)


def _run(level: int, options: runner.DiagOptions) -> diag.DiagReport:
    progress, now = _Progress(), clock.ScaledClock().now()
    try:
        return runner.run(
            level, now=now, node=node_facts.NodeReader().read(), options=options, report_progress=progress.tell
        )
    except KeyboardInterrupt:
        click.echo("\nStopped: no test runs any more, and nothing is kept.", err=True)
        raise
    finally:
        progress.done()


def as_plain(report: diag.DiagReport) -> dict[str, object]:
    """The documented shape of `diag --json`; keys are added, never renamed."""
    return {"verdict": report.exit.value, **wire.to_plain(report)}


def _seconds(level: int, length: str | None) -> float | None:
    if length is None:
        return None
    if level < 3:
        raise click.UsageError(f"--for is the length of full load, which -r 3 and -r 4 have and -r {level} has not")
    try:
        seconds = durations.parse_seconds(length)
    except ValueError as error:
        raise click.UsageError(f"--for: {error}") from error
    if not 1 <= seconds <= plan.MAX_SECONDS:
        raise click.UsageError(f"--for {length}: from 1s to {plan.MAX_SECONDS / 86400:g}d")
    return seconds


class _Progress:
    """On a terminal one line that is written over; elsewhere a line for each test as it begins."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._now: dict[str, str] = {}

    def tell(self, who: str, test: str, done: float, facts: Mapping[str, Any]) -> None:
        if not self._is_terminal:
            if done == 0.0 and not facts:
                click.echo(f"{who}: {test}", err=True)
            return
        rate = f" {facts['rate']:.0f} TFLOP/s" if "rate" in facts else ""
        self._now[who] = f"{test} {done:.0%}{rate}" if done else test
        line = " · ".join(f"{name}: {words}" for name, words in self._now.items())
        click.echo(f"\r\033[K{line[:150]}", err=True, nl=False)

    def done(self) -> None:
        if self._is_terminal:
            click.echo("\r\033[K", err=True, nl=False)


def _print(report: diag.DiagReport) -> None:
    places: dict[str | None, str] = {None: "node"} | {gpu.uuid: f"gpu {gpu.index}" for gpu in report.gpus}
    order = list(places)
    for gpu in report.gpus:
        click.echo(f"gpu {gpu.index}  {gpu.model}  {gpu.uuid}")

    def rank(result: diag.TestResult) -> tuple[int, int]:
        return -ORDER.index(result.verdict), order.index(result.gpu) if result.gpu in places else len(order)

    for result in sorted(report.results, key=rank):
        place = places.get(result.gpu, result.gpu)
        click.echo(f"  {result.verdict:<5} {place:<6} {result.test:<18} {result.why}")
    counts = ", ".join(
        f"{count} {verdict}"
        for verdict in ORDER
        if (count := sum(result.verdict is verdict for result in report.results))
    )
    click.echo(f"{report.exit.value.capitalize()}: {counts or 'nothing was tested'}, in {report.seconds:.1f} s.")
    if report.stopped:
        click.echo(f"Stopped early: {report.stopped}")


def _keep(report: diag.DiagReport, spool: Path) -> None:
    """Where no agent has its directory, nobody would read it."""
    if not spool.is_dir():
        return
    try:
        diag_page.ResultFile(spool).add(report)
    except CollectError as error:
        click.echo(f"The agent's page will not show this run: {error}", err=True)
