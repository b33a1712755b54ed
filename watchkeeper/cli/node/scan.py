"""`watchkeeper scan`: check the health of this node once, for people, Slurm and Kubernetes.

It reads facts (`agent.gpus.scan_readings`, `agent.node_facts`), `diagnose.scan` judges, and output and exit code
suit the caller. Nothing is changed on the node unless `--drain` is given.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import click

from watchkeeper.agent import node_facts
from watchkeeper.agent.gpus import scan_readings
from watchkeeper.cli import options
from watchkeeper.cli.node.gpu_choice import with_gpus
from watchkeeper.diagnose.scan import examine, verdicts
from watchkeeper.errors import CollectError
from watchkeeper.kit import clock, commands, logs, wire
from watchkeeper.model import fleet
from watchkeeper.readers.nvml import choice

# node-problem-detector's default limit of a message.
NPD_CHARACTERS = 80
DRAIN_SECONDS = 20.0


class Caller(StrEnum):
    """What reads the exit code."""

    PERSON = "person"
    SLURM_PROLOG = "slurm-prolog"
    SLURM_EPILOG = "slurm-epilog"
    SLURM_HEALTH = "slurm-health"
    PROBE = "probe"
    NPD = "npd"


# A prolog or epilog that fails drains the node, so only a certain fault may fail it. A health program of Slurm drains
# the node itself. A probe asks whether the GPUs can be used: unknown is no.
EXIT_CODES: Mapping[Caller, Mapping[verdicts.ScanVerdict, int]] = {
    caller: dict(zip(verdicts.ScanVerdict, codes, strict=True))
    for caller, codes in {
        #                    healthy, unknown, degraded, unhealthy
        Caller.PERSON: (0, 3, 1, 1),
        Caller.SLURM_PROLOG: (0, 0, 0, 1),
        Caller.SLURM_EPILOG: (0, 0, 0, 1),
        Caller.SLURM_HEALTH: (0, 0, 0, 0),
        Caller.PROBE: (0, 1, 0, 1),
        Caller.NPD: (0, 2, 1, 1),
    }.items()
}
CALLER_HELP = {
    Caller.SLURM_PROLOG: "As Slurm's Prolog: exit code 1 only if unhealthy; Slurm then drains the node.",
    Caller.SLURM_EPILOG: "As Slurm's Epilog: exit code 1 only if unhealthy; Slurm then drains the node.",
    Caller.SLURM_HEALTH: "As Slurm's HealthCheckProgram: always exit code 0; add --drain to drain the node.",
    Caller.PROBE: "As an exec probe of Kubernetes: exit code 1 if unhealthy or unknown.",
    Caller.NPD: "As a node-problem-detector plug-in: one line; exit code 0 healthy, 1 problem, 2 unknown.",
}
with_caller = options.option_group(
    *(click.option(f"--{caller}", "caller", flag_value=caller.value, help=text) for caller, text in CALLER_HELP.items())
)


@click.command("scan")
@options.as_json
@with_caller
@click.option("--drain", is_flag=True, help="With --slurm-health: drain this node with scontrol if it is unhealthy.")
@with_gpus
@options.expected_gpus
@click.option(
    "--watch", "seconds", type=click.FloatRange(0, 600), default=2.0, help="Watch counters this many seconds."
)
@click.option(
    "--since", "minutes", type=click.FloatRange(0), default=60.0, help="Read this many minutes of kernel log."
)
@click.option("--without", "disabled", multiple=True, metavar="CHECK", help="Skip this check; repeatable.")
@options.path_option("--kmsg", default="/dev/kmsg", help="Path of the kernel log.")
@options.path_option("--host-root", default="/", help="Where the node's root file system is mounted.")
def command(
    as_json: bool, caller: str | None, drain: bool, disabled: tuple[str, ...], selection: Any, **facts_options: Any
) -> None:
    """Check the health of this node once.

    Exit codes: 0 healthy, 1 degraded or unhealthy, 2 usage error, 3 unknown, for example without a driver. Checks and
    limits are those of DCGM's health systems. After a GPU reset, use `--since 0` to ignore old Xids.
    """
    # The report has all problems; the log would repeat them.
    logs.configure(level="critical")
    reader = Caller(caller or Caller.PERSON)
    unknown = set(disabled) - set(examine.check_names())
    if unknown:
        checks = ", ".join(examine.check_names())
        raise click.UsageError(f"no such check: {', '.join(sorted(unknown))}; checks: {checks}")
    if drain and reader is not Caller.SLURM_HEALTH:
        raise click.UsageError("--drain needs --slurm-health")
    facts = _gather_facts(**facts_options)
    if selection is not None:
        facts = examine.select_gpus(facts, selection)
    report = examine.examine(facts, disabled=disabled)
    if reader is Caller.NPD:
        lines = [format_line(report)[:NPD_CHARACTERS]]
    else:
        is_unknown = report.verdict is verdicts.ScanVerdict.UNKNOWN
        lines = ["The health of this node is unknown." if is_unknown else f"This node is {report.verdict}."]
        for result in report.results if reader is Caller.PERSON else report.problems:
            place = f" {result.gpu}" if result.gpu else ""
            lines.append(f"  {result.verdict:<10} {result.system:<8} {result.check:<20} {result.detail}{place}")
    options.print_result(as_plain(report, facts), lines, as_json=as_json)
    if drain and report.verdict is verdicts.ScanVerdict.UNHEALTHY and not _drain_node(format_line(report)):
        sys.exit(1)
    sys.exit(EXIT_CODES[reader][report.verdict])


def _gather_facts(
    *, host_root: Path, kmsg: Path, seconds: float, minutes: float, expected_gpus: int | None
) -> verdicts.ScanFacts:
    reading = scan_readings.ReadingOptions(choice.choose_families(), interval_seconds=max(0.5, seconds / 2))
    readings = scan_readings.watch_gpus(reading, seconds, clock.ScaledClock())
    kernel, problem = None, ""
    try:
        kernel = scan_readings.read_kernel_log(kmsg, since_seconds=minutes * 60)
    except CollectError as error:
        problem = str(error)
    roots = node_facts.Roots(host_root / "proc", host_root / "sys", host_root)
    return verdicts.ScanFacts(
        node_facts.NodeReader(roots).read(),
        tuple(
            verdicts.GpuFacts(
                gpu.identity["uuid"],
                gpu.index,
                fleet.normalise_pci(gpu.identity["pci"]),
                gpu.values,
                readings.measure_increases(gpu.identity["uuid"]),
                {part.uuid: part.id for part in gpu.mig_instances if part.uuid},
            )
            for gpu in readings.last.gpus
            if gpu.values
        ),
        tuple(verdicts.ScanFault(fault.cause, fault.evidence, fault.place.gpu) for fault in readings.faults),
        watched_seconds=readings.seconds,
        expected_gpus=expected_gpus,
        kernel=kernel,
        kernel_problem=problem,
    )


def as_plain(report: examine.ScanReport, facts: verdicts.ScanFacts) -> dict[str, object]:
    """The documented shape of `scan --json`; keys are added, never renamed."""
    return {
        "verdict": report.verdict.value,
        "node": os.uname().nodename,
        "gpus": [{"uuid": gpu.uuid, "index": gpu.index, "pci": gpu.pci} for gpu in facts.gpus],
        "watched_seconds": round(facts.watched_seconds, 3),
        "results": wire.to_plain(report.results),
        "unread": list(facts.node.unread),
    }


def format_line(report: examine.ScanReport) -> str:
    first = report.problems[0].detail if report.problems else f"{len(report.results)} checks"
    return f"{report.verdict}: {first}".replace("\n", " ")


def _drain_node(reason: str) -> bool:
    """Drain this node in Slurm, unless it is drained; print the command before and the result after."""
    name = os.environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]
    runner = commands.CommandRunner(timeout_seconds=DRAIN_SECONDS)
    # A second drain would replace the reason, such as the mark of a repair.
    shown = runner.run(["scontrol", "show", "node", name])
    if re.search(r"\bState=\S*DRAIN", shown.text):
        click.echo(f"{name} is already drained", err=True)
        return True
    line = ["scontrol", "update", f"NodeName={name}", "State=DRAIN", f"Reason=watchkeeper: {reason[:200]}"]
    click.echo(f"Draining {name}: {' '.join(line)}", err=True)
    answer = runner.run(line)
    is_done = answer.outcome is commands.CommandOutcome.ANSWERED
    click.echo(f"Drained {name}" if is_done else f"Draining {name} failed: {answer.text.strip()}", err=True)
    return is_done
