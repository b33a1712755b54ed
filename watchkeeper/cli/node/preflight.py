"""`watchkeeper preflight`: decide go or no-go for the nodes of a job, with `diag -r 1` on each and a link test.

It selects nodes and transport, and `probe.preflight` judges. Nothing on a node is changed.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from watchkeeper.cli import options
from watchkeeper.cli.node import agent_order
from watchkeeper.cli.terminal import Progress
from watchkeeper.client.hub import Client
from watchkeeper.errors import HubError
from watchkeeper.kit import logs, wire
from watchkeeper.probe.preflight import judge, transports
from watchkeeper.readers.clusters import hostlist

EXIT_CODES = {judge.PreflightVerdict.GO: 0, judge.PreflightVerdict.NO_GO: 1, judge.PreflightVerdict.CANNOT_TELL: 3}
# The nodes, and their Slurm job if there is one.
JobNodes = tuple[list[str], str | None]
# More nodes are a mistake: they exceed the size of a fleet.
MAX_NODES = 20_000
# The work order runs the same tests as the command.
DIAG_COMMAND, ORDER_KIND = ("diag", "-r", "1", "--json", "--no-keep"), "diag_software"


@dataclass(frozen=True, slots=True)
class WorkOrderAccess:
    """Runs commands by work orders of the hub. It cannot test links: all nodes would have to start at once."""

    hub: Client
    cluster: str | None
    name: str = "work orders"

    def run_on_node(self, node: str, arguments: Sequence[str]) -> judge.CommandOutput:  # noqa: ARG002
        try:
            _, receipt = agent_order.send_and_wait(self.hub, node, ORDER_KIND, arguments={}, cluster=self.cluster)
        except HubError as error:
            return judge.CommandOutput(None, str(error))
        if receipt.result not in agent_order.SUCCESS_RESULTS or not receipt.output:
            return judge.CommandOutput(None, f"its agent: {receipt.result}: {receipt.text}")
        return judge.CommandOutput(receipt.output)

    def run_on_all(self, nodes: Sequence[str], arguments: Sequence[str]) -> judge.CommandOutput:  # noqa: ARG002
        problem = "work orders cannot test links; run inside an allocation, or use --ssh or --no-bandwidth"
        return judge.CommandOutput(None, problem)


def _select_nodes(nodes: str | None, slurm_job: str | None, selector: str | None, context: str | None) -> JobNodes:
    """Select from the options or the current allocation, which --nodes restricts."""
    if selector is not None and (nodes or slurm_job) is not None:
        raise click.UsageError("--selector cannot be combined with --nodes or --slurm-job")
    try:
        listed_nodes = None if nodes is None else list(dict.fromkeys(hostlist.expand(nodes)))
    except hostlist.BadHostlist as error:
        raise click.UsageError(f"--nodes: {error}") from error
    names, job = listed_nodes or [], slurm_job
    if selector is not None:
        names = transports.labelled_nodes(selector, context)
    elif job is not None or "SLURM_JOB_ID" in os.environ:
        job, job_nodes = transports.slurm_nodes(job, os.environ)
        foreign_nodes = [name for name in names if name not in job_nodes]
        if foreign_nodes:
            raise click.UsageError(f"--nodes: {foreign_nodes[0]} is not one of the {len(job_nodes)} nodes of job {job}")
        names = job_nodes if listed_nodes is None else names
    elif listed_nodes is None:
        raise click.UsageError("no nodes: use --nodes, --slurm-job or --selector, or run inside a Slurm allocation")
    if not 0 < len(names) <= MAX_NODES:
        raise click.UsageError(f"{len(names)} nodes selected; must be 1 to {MAX_NODES:,}")
    return names, job


with_nodes = options.combined(
    "selection",
    _select_nodes,
    click.option("--nodes", metavar="LIST", help="Check these nodes; names or Slurm's short form gpu-[01-16],gpu-20."),
    click.option("--slurm-job", metavar="ID", help="Check the nodes of this Slurm job.  [default: the current job]"),
    click.option("--selector", metavar="LABELS", help="Check Kubernetes nodes with these labels, as kubectl -l."),
    click.option("--context", metavar="NAME", help="kubectl context for --selector."),
)


def _link_command(bandwidth: bool, python: str | None, expected: float | None) -> list[str] | None:
    """The command line of the link test; None to skip the test."""
    fabric_command = ["diag", "fabric", "--json"]
    fabric_command += [] if python is None else [f"--python={python}"]
    fabric_command += [] if expected is None else [f"--expected={expected:g}"]
    return fabric_command if bandwidth else None


with_links = options.combined(
    "links",
    _link_command,
    click.option("--bandwidth/--no-bandwidth", default=True, help="Test the links between the nodes, pair by pair."),
    click.option("--python", metavar="PATH", help="Python interpreter with torch on the nodes, for the link test."),
    options.expected_bandwidth,
)


@click.command("preflight")
@with_nodes
@click.option("--ssh", "by_ssh", is_flag=True, help="Run the checks on the nodes through ssh.")
@click.option("--command", "program", default="watchkeeper", help="Command that srun and ssh run on the nodes.")
@with_links
@options.expected_gpus
@click.option("--timeout", "seconds", type=click.FloatRange(1, 3600), default=180.0, help="Seconds for each command.")
@options.node_cluster
@options.with_hub_and_json
def command(
    selection: JobNodes, by_ssh: bool, program: str, seconds: float, cluster: str | None, hub: Client, **params: Any
) -> None:
    """Decide go or no-go before a job starts: diag -r 1 on every node, then the bandwidth of every pair.

    Checks the nodes of --nodes, --slurm-job or --selector, or of the current Slurm allocation. Uses srun for a Slurm
    job, ssh with --ssh, else work orders of the hub. Exit codes: 0 go, 1 no-go, 2 usage error, 3 unknown: a node that
    does not answer is never go.
    """
    logs.configure(level="critical")
    programs, program_words = transports.RunningCommands(), shlex.split(program)
    transport: transports.Transport = WorkOrderAccess(hub, cluster)
    nodes, job = selection
    if by_ssh:
        transport = transports.Ssh(program_words, seconds, programs)
    elif job is not None:
        transport = transports.Srun(job, program_words, seconds, programs)
    try:
        report = _run_checks(transport, nodes, expected_gpus=params["expected_gpus"], links=params["links"])
    except KeyboardInterrupt:
        programs.terminate_all()
        click.echo("\nStopped the checks on all nodes that can be reached.", err=True)
        # sys.exit would wait for threads that wait for nodes.
        os._exit(130)
    if params["as_json"]:
        # The documented shape: keys are added, never renamed.
        plain = {"verdict": report.verdict.value, "by": transport.name, "nodes": wire.to_plain(report.nodes)}
        options.print_json({**plain, "links": wire.to_plain(report.links)})
    else:
        _print_report(report, transport.name)
    sys.exit(EXIT_CODES[report.verdict])


def _run_checks(
    transport: transports.Transport, nodes: Sequence[str], *, expected_gpus: int | None, links: Sequence[str] | None
) -> judge.PreflightReport:
    """Check all nodes, then the links between the nodes that are go, if these have more than one GPU."""
    progress, checked_count = Progress(), 0

    def update(node: str) -> None:
        nonlocal checked_count
        checked_count += 1
        progress.update(f"diag -r 1: {checked_count} of {len(nodes)} nodes, last {node}")

    answers = transports.run_on_each(transport, nodes, DIAG_COMMAND, report_node=update)
    nodes_checked = judge.judge_nodes(answers, expected_gpus=expected_gpus)
    ready = [checked for checked in nodes_checked if checked.verdict is judge.PreflightVerdict.GO]
    links_checked = None
    if links is not None and sum(checked.gpus or 0 for checked in ready) > 1:
        progress.update(f"links between {len(ready)} nodes")
        links_checked = judge.judge_links(transport.run_on_all([checked.name for checked in ready], links))
    progress.clear()
    return judge.PreflightReport(nodes_checked, links_checked)


def _print_report(report: judge.PreflightReport, transport_name: str) -> None:
    order = list(judge.PreflightVerdict)
    rows = []
    nodes = sorted(report.nodes, key=lambda checked: -order.index(checked.verdict))
    for checked in (*nodes, *([report.links] if report.links is not None else [])):
        why = "; ".join([*checked.reasons, *(f"warning: {text}" for text in checked.warnings)])
        rows.append([checked.name, checked.verdict.value, "" if checked.gpus is None else str(checked.gpus), why])
    options.print_table(["NODE", "VERDICT", "GPUS", "WHY"], rows)
    counts = ", ".join(f"{sum(node.verdict is verdict for node in nodes)} {verdict.value}" for verdict in order)
    links = "links not tested" if report.links is None else f"links: {report.links.verdict.value}"
    click.echo(f"{report.verdict.value.capitalize()}: {len(nodes)} nodes by {transport_name}: {counts}; {links}.")
