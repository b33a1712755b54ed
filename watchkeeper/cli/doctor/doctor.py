"""`watchkeeper doctor`: diagnose logs or command output and print cause, place, evidence and fix."""

from __future__ import annotations

import io
import select
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from os import fstat
from pathlib import Path
from typing import Any

import click

from watchkeeper.cli import options
from watchkeeper.doctor import examine, recognise, report
from watchkeeper.readers import bundles
from watchkeeper.readers.node import local_commands

MAX_EVIDENCE = 5
CERTAIN, LIKELY = 0.8, 0.5


class DoctorGroup(options.FullHelpGroup):
    """Takes files like a plain command; `stack` as the first argument runs that subcommand."""

    # Options may follow arguments, as in a plain command: `doctor FILE --json`.
    allow_interspersed_args = True

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return ["stack"]

    def get_command(self, ctx: click.Context | None, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        from watchkeeper.cli.doctor import doctor_stack

        return doctor_stack.command if cmd_name == "stack" else None

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args[:1] == ["stack"] and (stack := self.get_command(parent, "stack")):
            return stack.make_context(f"{info_name} stack", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        return super().invoke(ctx) if ctx.command is self else ctx.command.invoke(ctx)


@click.command("doctor", cls=DoctorGroup, invoke_without_command=True)
@click.argument("files", nargs=-1, metavar="[FILE|FOLDER|-]...", type=click.Path(exists=True, allow_dash=True))
@options.as_json
def command(files: Sequence[str], as_json: bool) -> None:
    """Diagnose logs or command output: what is wrong, where, why, and how to fix it.

    Reads kernel logs, nvidia-smi, dcgmi, NCCL and training logs of one or many ranks, flight-recorder dumps, kubectl,
    Slurm and InfiniBand output, as files, folders, gzip, tar or zip; `-` is standard input. Without arguments, runs
    read-only commands on this node. `doctor stack` checks the monitoring instead; write ./stack for a file of that
    name. Exit codes: 0 no problem found, 1 problem found, 2 usage error, 3 unknown.
    """
    paths = [Path(name) for name in files if name != "-"]
    examines_node = not files and not _has_input(sys.stdin.fileno())
    outputs = local_commands.run_commands() if examines_node else ()
    node_streams = (bundles.Stream(output.command, io.BytesIO(output.text)) for output in outputs)
    streams = node_streams if examines_node else _open_streams(files, paths)
    with _progress(paths) as bar:
        answer = examine.examine(streams, bar.update if bar is not None else lambda _: None)
    if examines_node and (missing_commands := local_commands.find_missing_commands()):
        answer = replace(answer, notes=(*answer.notes, *missing_commands), is_partial=True)
    if as_json:
        options.print_json(report.as_plain(answer))
    else:
        _print_report(answer)
    sys.exit(int(answer.verdict))


def _open_streams(files: Sequence[str], paths: Sequence[Path]) -> Iterator[bundles.Stream]:
    if "-" in files or not files:
        yield from bundles.open_stream("-", sys.stdin.buffer)
    yield from bundles.open_all(paths)


def _has_input(descriptor: int) -> bool:
    """Whether a file or pipe is standard input; an idle pipe of a parent process does not count."""
    mode = fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return True
    return stat.S_ISFIFO(mode) and bool(select.select([descriptor], [], [], 0.5)[0])


def _progress(paths: Sequence[Path]) -> Any:
    """A progress bar on a terminal if the size is known, else nothing."""
    if not paths or not sys.stderr.isatty():
        return nullcontext(None)
    return click.progressbar(length=bundles.total_bytes(paths), label="reading", file=sys.stderr)


def _print_report(answer: report.DoctorReport) -> None:
    for source in answer.inputs:
        problem = f" ({source.problem})" if source.problem else ""
        click.echo(f"{source.name}: {recognise.title_of(source.kind)}{problem}")
    if answer.events:
        click.echo(f"{len(answer.events):,} event{'s' if len(answer.events) > 1 else ''}")
    if not answer.findings:
        click.echo(
            "No problem found in the input."
            if answer.verdict == 0 or answer.is_partial
            else "Unknown: nothing in the input can be judged."
        )
    problems = {f"{source.name}: {source.problem}" for source in answer.inputs}
    for note in answer.notes:
        if note not in problems:
            click.echo(f"note: {note}")
    for number, finding in enumerate(answer.findings, 1):
        click.echo()
        _print_finding(number, finding)


def _print_finding(number: int, finding: report.DoctorFinding) -> None:
    certainty = "certain" if finding.confidence >= CERTAIN else "likely" if finding.confidence >= LIKELY else "possible"
    click.echo(
        click.style(f"{number}. {finding.title}", bold=True)
        + f"  [{finding.cause}, {certainty}, {finding.confidence:.2f}]"
    )
    if finding.where:
        click.echo("   where: " + ", ".join(f"{name} {_format_value(value)}" for name, value in finding.where.items()))
    click.echo(f"   why: {finding.why}")
    for evidence in finding.evidence[:MAX_EVIDENCE]:
        click.echo(click.style(f"   {evidence.input}:{evidence.line}: {evidence.text[:160]}", dim=True))
    for step in finding.actions:
        risk = "" if step.risk.value == "none" else f"  (risk: {step.risk.value})"
        click.echo(f"   action: {step.do}{risk}" + (f"\n       {step.command}" if step.command else ""))
    for text in finding.ruled_out[:3]:
        click.echo(f"   excluded: {text}")


def _format_value(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
