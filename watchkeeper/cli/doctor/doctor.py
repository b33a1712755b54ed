"""`watchkeeper doctor`: diagnose logs or command output and print cause, place, evidence and fix."""

from __future__ import annotations

import io
import select
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain
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
    if examines_node:
        outputs = local_commands.run_commands()
        streams: Iterable[bundles.Stream] = (
            bundles.Stream(output.command, io.BytesIO(output.text)) for output in outputs
        )
    else:
        piped = bundles.open_stream("-", sys.stdin.buffer) if "-" in files or not files else ()
        streams = chain(piped, bundles.open_all(paths))
    # A progress bar on a terminal if the size is known.
    is_shown = bool(paths) and sys.stderr.isatty()
    length = bundles.total_bytes(paths) if is_shown else 0
    with click.progressbar(length=length, label="reading", file=sys.stderr) if is_shown else nullcontext() as bar:
        answer = examine.examine(streams, bar.update if bar is not None else lambda _: None)
    if examines_node and (missing_commands := local_commands.find_missing_commands()):
        answer = replace(answer, notes=(*answer.notes, *missing_commands), is_partial=True)
    options.print_result(report.as_plain(answer), _describe(answer), as_json=as_json)
    sys.exit(int(answer.verdict))


def _has_input(descriptor: int) -> bool:
    """Whether a file or pipe is standard input; an idle pipe of a parent process does not count."""
    mode = fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return True
    return stat.S_ISFIFO(mode) and bool(select.select([descriptor], [], [], 0.5)[0])


def _describe(answer: report.DoctorReport) -> Iterator[str]:
    for source in answer.inputs:
        problem = f" ({source.problem})" if source.problem else ""
        yield f"{source.name}: {recognise.title_of(source.kind)}{problem}"
    if answer.events:
        yield f"{len(answer.events):,} event{'s' if len(answer.events) > 1 else ''}"
    if not answer.findings:
        is_healthy = answer.verdict == 0 or answer.is_partial
        yield "No problem found in the input." if is_healthy else "Unknown: nothing in the input can be judged."
    problems = {f"{source.name}: {source.problem}" for source in answer.inputs}
    yield from (f"note: {note}" for note in answer.notes if note not in problems)
    for number, finding in enumerate(answer.findings, 1):
        yield ""
        yield from _describe_finding(number, finding)


def _describe_finding(number: int, finding: report.DoctorFinding) -> Iterator[str]:
    certainty = "certain" if finding.confidence >= CERTAIN else "likely" if finding.confidence >= LIKELY else "possible"
    title = click.style(f"{number}. {finding.title}", bold=True)
    yield f"{title}  [{finding.cause}, {certainty}, {finding.confidence:.2f}]"
    if finding.where:
        places = ((name, value if isinstance(value, list) else [value]) for name, value in finding.where.items())
        yield "   where: " + ", ".join(f"{name} {', '.join(map(str, values))}" for name, values in places)
    yield f"   why: {finding.why}"
    for evidence in finding.evidence[:MAX_EVIDENCE]:
        yield click.style(f"   {evidence.input}:{evidence.line}: {evidence.text[:160]}", dim=True)
    for step in finding.actions:
        risk = "" if step.risk.value == "none" else f"  (risk: {step.risk.value})"
        yield f"   action: {step.do}{risk}" + (f"\n       {step.command}" if step.command else "")
    yield from (f"   excluded: {text}" for text in finding.ruled_out[:3])
