"""`watchkeeper diag`: test this node's GPUs against the reference of their model and against each other.

It reads facts about the node (`agent.node_facts`), `probe.diag.runner` tests and judges, and the result is printed
and saved for the agent's /metrics.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from watchkeeper.agent import diag_page, node_facts
from watchkeeper.cli.node import diag_fabric
from watchkeeper.cli.node.gpu_choice import with_gpus
from watchkeeper.cli.options import FullHelpGroup, as_json, busy_ok, expected_gpus, print_result, python, spool
from watchkeeper.cli.terminal import Progress
from watchkeeper.errors import CollectError
from watchkeeper.kit import clock, durations, logs, wire
from watchkeeper.model import diag
from watchkeeper.probe.diag import plan, runner

EXIT_CODES = {diag.DiagOutcome.PASSED: 0, diag.DiagOutcome.FAILED: 1, diag.DiagOutcome.CANNOT_TELL: 3}
LEVEL_HELP = (
    "Test level: 1 software and configuration; 2 adds speed and correctness; 3 adds full load; 4 loads for hours."
)
ENGINE_HELP = "Test engine at -r 2 and above; auto uses dcgmi if it is installed, else torch."
VERDICT_ORDER = list(diag.DiagVerdict)


@click.group("diag", cls=FullHelpGroup, invoke_without_command=True)
@click.option("-r", "--run", "level", type=click.IntRange(1, 4), default=1, help=LEVEL_HELP)
@as_json
@with_gpus
@busy_ok
@click.option("--for", "length", metavar="DURATION", help="Length of full load.  [default: 3m at -r 3, 4h at -r 4]")
@expected_gpus
@click.option("--with", "engine", type=click.Choice(runner.ENGINES), default=runner.AUTO, help=ENGINE_HELP)
@python
@spool
@click.option("--no-keep", is_flag=True, help="Do not save the result for the agent's /metrics, in --spool.")
def command(level: int, as_json: bool, length: str | None, spool: Path, no_keep: bool, **test_options: Any) -> None:
    """Test the GPUs of this node; changes nothing on them and skips GPUs that are in use.

    Exit codes: 0 all tests passed, perhaps with warnings; 1 a test failed; 2 usage error; 3 unknown, for example
    without torch or because a GPU is busy. Ctrl-C stops all tests.
    """
    if click.get_current_context().invoked_subcommand is not None:
        return
    logs.configure(level="critical")
    options = runner.DiagOptions(_parse_load_seconds(level, length), **test_options)
    report = _run(level, options)
    # The documented shape: keys are added, never renamed.
    print_result({"verdict": report.exit.value, **wire.to_plain(report)}, _describe(report), as_json=as_json)
    # Without a spool no agent runs here.
    if not no_keep and spool.is_dir():
        try:
            diag_page.ResultFile(spool).add(report)
        except CollectError as error:
            click.echo(f"The agent's /metrics will not show this run: {error}", err=True)
    sys.exit(EXIT_CODES[report.exit])


command.add_command(diag_fabric.command)


def _run(level: int, options: runner.DiagOptions) -> diag.DiagReport:
    progress, now = _DiagProgress(), clock.ScaledClock().now()
    try:
        node = node_facts.NodeReader().read()
        return runner.run(level, now=now, node=node, options=options, report_progress=progress.update)
    except KeyboardInterrupt:
        click.echo("\nStopped all tests; no result is saved.", err=True)
        raise
    finally:
        progress.clear()


def _parse_load_seconds(level: int, length: str | None) -> float | None:
    if length is None:
        return None
    if level < 3:
        raise click.UsageError(f"--for sets the length of full load, which needs -r 3 or -r 4, not -r {level}")
    try:
        seconds = durations.parse_seconds(length)
    except ValueError as error:
        raise click.UsageError(f"--for: {error}") from error
    if not 1 <= seconds <= plan.MAX_SECONDS:
        raise click.UsageError(f"--for {length}: must be from 1s to {plan.MAX_SECONDS / 86400:g}d")
    return seconds


class _DiagProgress:
    """A progress line on a terminal; elsewhere one line when each test starts."""

    def __init__(self) -> None:
        self._progress = Progress()
        self._status_by_runner: dict[str, str] = {}
        self.clear = self._progress.clear

    def update(self, runner_name: str, test: str, done: float, facts: Mapping[str, Any]) -> None:
        if not self._progress.is_terminal:
            if done == 0.0 and not facts:
                click.echo(f"{runner_name}: {test}", err=True)
            return
        rate = f" {facts['rate']:.0f} TFLOP/s" if "rate" in facts else ""
        self._status_by_runner[runner_name] = f"{test} {done:.0%}{rate}" if done else test
        self._progress.update(" · ".join(f"{name}: {text}" for name, text in self._status_by_runner.items())[:150])


def _describe(report: diag.DiagReport) -> Iterator[str]:
    places: dict[str | None, str] = {None: "node"} | {gpu.uuid: f"gpu {gpu.index}" for gpu in report.gpus}
    place_order = list(places)
    for gpu in report.gpus:
        yield f"gpu {gpu.index}  {gpu.model}  {gpu.uuid}"

    def rank(result: diag.TestResult) -> tuple[int, int]:
        place_rank = place_order.index(result.gpu) if result.gpu in places else len(place_order)
        return -VERDICT_ORDER.index(result.verdict), place_rank

    for result in sorted(report.results, key=rank):
        place = places.get(result.gpu, result.gpu)
        yield f"  {result.verdict:<5} {place:<6} {result.test:<18} {result.why}"
    counted = Counter(result.verdict for result in report.results)
    counts = ", ".join(f"{counted[verdict]} {verdict}" for verdict in VERDICT_ORDER if counted[verdict])
    yield f"{report.exit.value.capitalize()}: {counts or 'nothing was tested'}, in {report.seconds:.1f} s."
    if report.stopped:
        yield f"Stopped early: {report.stopped}"
