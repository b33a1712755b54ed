"""`watchkeeper doctor`: logs or command output in; cause, place, evidence and fix out."""

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

from watchkeeper.cli import groups, options
from watchkeeper.doctor import examine, recognise, report
from watchkeeper.readers import bundles
from watchkeeper.readers.node import local_commands

SHOWN_EVIDENCE = 5
CERTAIN, LIKELY = 0.8, 0.5


class DoctorGroup(groups.FullHelpGroup):
    """Takes files as a plain command does; the word `stack` as the first one means the command of that name."""

    # As for a plain command: `doctor FILE --json`.
    allow_interspersed_args = True

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return ["stack"]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        from watchkeeper.cli.doctor import doctor_stack

        return doctor_stack.command if cmd_name == "stack" else None

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args[:1] == ["stack"]:
            from watchkeeper.cli.doctor import doctor_stack

            return doctor_stack.command.make_context(f"{info_name} stack", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        return super().invoke(ctx) if ctx.command is self else ctx.command.invoke(ctx)


@click.command("doctor", cls=DoctorGroup, invoke_without_command=True)
@click.argument("files", nargs=-1, metavar="[FILE|FOLDER|-]...", type=click.Path(exists=True, allow_dash=True))
@options.as_json
def command(files: Sequence[str], as_json: bool) -> None:
    """Say what is wrong, where and why, from anything an operator would paste.

    Takes kernel logs, nvidia-smi, dcgmi, NCCL and training logs of one or many ranks, flight-recorder dumps, kubectl,
    Slurm and InfiniBand output, as files, folders, gzip, tar or zip; `-` is standard input. Without arguments it
    asks this node itself, reading only. `doctor stack` looks at the monitoring instead; a file of that name is ./stack.
    Exit codes: 0 nothing wrong found, 1 something found, 2 wrong use, 3 cannot tell.
    """
    paths = [Path(name) for name in files if name != "-"]
    asks_itself = not files and not _is_given(sys.stdin.fileno())
    streams = _of_this_node() if asks_itself else _streams(files, paths)
    with _progress(paths) as bar:
        answer = examine.examine(streams, bar.update if bar is not None else lambda _: None)
    if asks_itself and (unseen := local_commands.missing_commands()):
        answer = replace(answer, notes=(*answer.notes, *unseen), is_partial=True)
    if as_json:
        options.print_json(report.as_plain(answer))
    else:
        _print(answer)
    sys.exit(int(answer.verdict))


def _streams(files: Sequence[str], paths: Sequence[Path]) -> Iterator[bundles.Stream]:
    if "-" in files or not files:
        yield from bundles.open_stream("-", sys.stdin.buffer)
    yield from bundles.open_all(paths)


def _of_this_node() -> Iterator[bundles.Stream]:
    for answer in local_commands.run_commands():
        yield bundles.Stream(answer.command, io.BytesIO(answer.text))


def _is_given(descriptor: int) -> bool:
    """Whether something was redirected or piped into the command; an idle pipe of a parent is not."""
    mode = fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return True
    return stat.S_ISFIFO(mode) and bool(select.select([descriptor], [], [], 0.5)[0])


def _progress(paths: Sequence[Path]) -> Any:
    """A bar on a terminal, for what has a known size; nothing in a pipe."""
    if not paths or not sys.stderr.isatty():
        return nullcontext(None)
    return click.progressbar(length=bundles.total_bytes(paths), label="reading", file=sys.stderr)


def _print(answer: report.DoctorReport) -> None:
    for given in answer.inputs:
        click.echo(f"{given.name}: {recognise.title_of(given.kind)}" + (f" ({given.problem})" if given.problem else ""))
    if answer.events:
        click.echo(f"{len(answer.events):,} event{'s' if len(answer.events) > 1 else ''}")
    if not answer.findings:
        click.echo(
            "Nothing wrong was found in what was read."
            if answer.verdict == 0 or answer.is_partial
            else "Nothing here could be judged."
        )
    problems = {f"{given.name}: {given.problem}" for given in answer.inputs}
    for note in answer.notes:
        if note not in problems:
            click.echo(f"note: {note}")
    for number, finding in enumerate(answer.findings, 1):
        click.echo()
        _print_finding(number, finding)


def _print_finding(number: int, finding: report.DoctorFinding) -> None:
    sure = "certain" if finding.confidence >= CERTAIN else "likely" if finding.confidence >= LIKELY else "possible"
    click.echo(
        click.style(f"{number}. {finding.title}", bold=True) + f"  [{finding.cause}, {sure}, {finding.confidence:.2f}]"
    )
    if finding.where:
        click.echo("   where: " + ", ".join(f"{name} {_words(value)}" for name, value in finding.where.items()))
    click.echo(f"   why: {finding.why}")
    for seen in finding.evidence[:SHOWN_EVIDENCE]:
        click.echo(click.style(f"   {seen.input}:{seen.line}: {seen.text[:160]}", dim=True))
    for step in finding.actions:
        risk = "" if step.risk.value == "none" else f"  (may cost: {step.risk.value})"
        click.echo(f"   do: {step.do}{risk}" + (f"\n       {step.command}" if step.command else ""))
    for text in finding.ruled_out[:3]:
        click.echo(f"   not: {text}")


def _words(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
