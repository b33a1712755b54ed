"""`watchkeeper scan`: one-shot health of this node, for people, for Slurm, for Kubernetes.

It reads (`agent.gpus.scan_readings`, `agent.node_facts`), lets `diagnose.scan` judge, and says the verdict in the way
that whoever calls it understands. Nothing is changed on the machine unless `--drain` is given.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import click

from watchkeeper.agent import node_facts
from watchkeeper.agent.gpus import scan_readings
from watchkeeper.cli.node.gpu_choice import with_gpus
from watchkeeper.cli.options import print_json
from watchkeeper.diagnose.scan import examine, gpu_selection, verdicts
from watchkeeper.errors import CollectError
from watchkeeper.kit import clock, commands, logs, wire
from watchkeeper.model import fleet, gpu_selectors
from watchkeeper.readers.nvml import choice

F = TypeVar("F", bound=Callable[..., Any])
# node-problem-detector cuts a message off here unless it is told otherwise.
NPD_CHARACTERS = 80
DRAIN_SECONDS = 20.0


class Caller(StrEnum):
    """Who reads the exit code."""

    PERSON = "person"
    SLURM_PROLOG = "slurm-prolog"
    SLURM_EPILOG = "slurm-epilog"
    SLURM_HEALTH = "slurm-health"
    PROBE = "probe"
    NPD = "npd"


# Any non-zero prolog or epilog drains the node, so there only a sure fault may be one. A health program of Slurm drains
# by itself. A probe asks whether GPUs can be used, and where nobody can tell they cannot.
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


def _mode(caller: Caller, name: str, help: str) -> Callable[[F], F]:
    return click.option(name, "caller", flag_value=caller.value, help=help)


@click.command("scan")
@click.option("--json", "as_json", is_flag=True, help="Print JSON with a stable shape.")
@_mode(Caller.SLURM_PROLOG, "--slurm-prolog", "As Slurm's Prolog: 1 only if unhealthy, because that drains the node.")
@_mode(Caller.SLURM_EPILOG, "--slurm-epilog", "As Slurm's Epilog: the same.")
@_mode(Caller.SLURM_HEALTH, "--slurm-health", "As Slurm's HealthCheckProgram: prints, exits with 0.")
@_mode(Caller.PROBE, "--probe", "As an exec probe of Kubernetes: 1 if unhealthy or if nobody can tell.")
@_mode(Caller.NPD, "--npd", "As a node-problem-detector plug-in: 0 fine, 1 problem, 2 unknown; one line.")
@click.option("--drain", is_flag=True, help="With --slurm-health: drain this node with scontrol if it is unhealthy.")
@with_gpus
@click.option("--expected-gpus", type=click.IntRange(0, 1024), help="How many GPUs there should be.")
@click.option("--watch", "seconds", type=click.FloatRange(0, 600), default=2.0, help="Seconds to watch counters.")
@click.option("--since", "minutes", type=click.FloatRange(0), default=60.0, help="Minutes of kernel log to judge.")
@click.option("--without", "disabled", multiple=True, metavar="CHECK", help="Leave a check out; repeatable.")
@click.option("--kmsg", type=click.Path(path_type=Path), default=Path("/dev/kmsg"), help="The kernel log.")
@click.option("--host-root", type=click.Path(path_type=Path), default=Path("/"), help="Where the node's root is.")
def command(
    as_json: bool,
    caller: str | None,
    drain: bool,
    expected_gpus: int | None,
    seconds: float,
    minutes: float,
    disabled: tuple[str, ...],
    kmsg: Path,
    host_root: Path,
    chosen: gpu_selectors.GpuSelection | None,
) -> None:
    """Look at this node once and say whether it is healthy.

    Exit codes: 0 healthy, 1 degraded or unhealthy, 2 wrong use, 3 cannot tell, for example without a driver.
    Limits and checks are those of DCGM's health systems; after a GPU reset, `--since 0` forgets old Xids.
    """
    # What is wrong stands in the report; the log would only say it twice.
    logs.configure(level="critical")
    who = Caller(caller or Caller.PERSON)
    unknown = set(disabled) - set(examine.check_names())
    if unknown:
        raise click.UsageError(
            f"no such check: {', '.join(sorted(unknown))}; known: {', '.join(examine.check_names())}"
        )
    if drain and who is not Caller.SLURM_HEALTH:
        raise click.UsageError("--drain needs --slurm-health")
    roots = node_facts.Roots(host_root / "proc", host_root / "sys", host_root)
    facts = gather(roots, kmsg, seconds=seconds, since_seconds=minutes * 60, expected_gpus=expected_gpus)
    if chosen is not None:
        facts = gpu_selection.select_gpus(facts, chosen)
    report = examine.examine(facts, disabled=disabled)
    if as_json:
        print_json(as_plain(report, facts))
    elif who is Caller.NPD:
        click.echo(one_line(report)[:NPD_CHARACTERS])
    else:
        _print(report, is_brief=who is not Caller.PERSON)
    if drain and report.verdict is verdicts.ScanVerdict.UNHEALTHY and not _drain(one_line(report)):
        sys.exit(1)
    sys.exit(EXIT_CODES[who][report.verdict])


def gather(
    roots: node_facts.Roots, kmsg: Path, *, seconds: float, since_seconds: float, expected_gpus: int | None
) -> verdicts.ScanFacts:
    """Read everything that the checks look at."""
    look = scan_readings.ReadingOptions(choice.choose_families(), interval_seconds=max(0.5, seconds / 2))
    readings = scan_readings.watch_gpus(look, seconds, clock.ScaledClock())
    kernel, problem = None, ""
    try:
        kernel = scan_readings.read_kernel_log(kmsg, since_seconds=since_seconds)
    except CollectError as error:
        problem = str(error)
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


def one_line(report: examine.ScanReport) -> str:
    first = report.problems[0].detail if report.problems else f"{len(report.results)} checks"
    return f"{report.verdict}: {first}".replace("\n", " ")


def _print(report: examine.ScanReport, *, is_brief: bool) -> None:
    click.echo(
        f"This node is {report.verdict}." if report.verdict is not verdicts.ScanVerdict.UNKNOWN else "Cannot tell."
    )
    for result in report.problems if is_brief else report.results:
        where = f" {result.gpu}" if result.gpu else ""
        click.echo(f"  {result.verdict:<10} {result.system:<8} {result.check:<20} {result.detail}{where}")


def _drain(reason: str) -> bool:
    """Touches the cluster: says so before, and says what came of it."""
    name = os.environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]
    line = ["scontrol", "update", f"NodeName={name}", "State=DRAIN", f"Reason=watchkeeper: {reason[:200]}"]
    click.echo(f"Draining {name}: {' '.join(line)}", err=True)
    answer = commands.CommandRunner(timeout_seconds=DRAIN_SECONDS).run(line)
    is_done = answer.outcome is commands.CommandOutcome.ANSWERED
    click.echo(f"Drained {name}" if is_done else f"{name} was not drained: {answer.text.strip()}", err=True)
    return is_done
