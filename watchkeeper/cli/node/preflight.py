"""`watchkeeper preflight`: go or no-go for a job's nodes, by `diag -r 1` on each and by the links between them.

It finds the nodes, chooses a way to them, lets `probe.preflight.preflight` judge, and prints. Nothing on a node is
changed.
"""

from __future__ import annotations

import functools
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import click

from watchkeeper.cli.node import agent_order
from watchkeeper.cli.options import as_json, print_json, print_table, with_hub
from watchkeeper.cli.progress import Progress
from watchkeeper.client.hub import Client
from watchkeeper.errors import HubError
from watchkeeper.kit import logs, wire
from watchkeeper.probe.preflight import judge, transports
from watchkeeper.readers.clusters import hostlist

EXIT_CODES = {judge.PreflightVerdict.GO: 0, judge.PreflightVerdict.NO_GO: 1, judge.PreflightVerdict.CANNOT_TELL: 3}
# More nodes than one hub is meant for are a slip of the pen.
MOST_NODES = 20_000
# What an agent does when it is ordered this is the same.
DIAG, ORDER = ("diag", "-r", "1", "--json", "--no-keep"), "diag_software"
FABRIC = ("diag", "fabric", "--json")


@dataclass(frozen=True, slots=True)
class WorkOrderAccess:
    """By the hub: each node's agent does it. Links are beyond an agent, because all nodes must meet at once."""

    hub: Client
    cluster: str | None
    name: str = "work orders"

    def run_on_node(self, node: str, arguments: Sequence[str]) -> judge.CommandOutput:  # noqa: ARG002
        try:
            _, receipt = agent_order.give_and_wait(self.hub, node, ORDER, arguments={}, cluster=self.cluster)
        except HubError as error:
            return judge.CommandOutput(None, str(error))
        if receipt.result not in agent_order.DONE or not receipt.output:
            return judge.CommandOutput(None, f"its agent: {receipt.result}: {receipt.text}")
        return judge.CommandOutput(receipt.output)

    def run_on_all(self, nodes: Sequence[str], arguments: Sequence[str]) -> judge.CommandOutput:  # noqa: ARG002
        why = "work orders cannot try links; run it inside an allocation or with --ssh, or leave them out"
        return judge.CommandOutput(None, f"{why} with --no-bandwidth")


@dataclass(frozen=True, slots=True)
class NodeSelection:
    """The nodes, and the Slurm job that they belong to, if there is one."""

    nodes: Sequence[str]
    job: str | None


def with_nodes(body: Callable[..., Any]) -> Callable[..., Any]:
    """Options that name nodes; the command gets them as `asked`."""

    @click.option("--nodes", metavar="LIST", help="Nodes by name, also in Slurm's short form: gpu-[01-16],gpu-20.")
    @click.option("--slurm-job", metavar="ID", help="Nodes of a job that runs.  [default: the allocation we are in]")
    @click.option("--selector", metavar="LABELS", help="Kubernetes nodes with these labels, as `kubectl get nodes -l`.")
    @click.option("--context", metavar="NAME", help="kubectl's context for --selector.")
    @functools.wraps(body)
    def wrapper(
        *args: Any,
        nodes: str | None,
        slurm_job: str | None,
        selector: str | None,
        context: str | None,
        **kwargs: Any,
    ) -> Any:
        if selector is not None and (nodes or slurm_job) is not None:
            raise click.UsageError("--selector does not go with --nodes or --slurm-job")
        return body(*args, asked=_nodes(nodes, slurm_job, selector=selector, context=context), **kwargs)

    return wrapper


def with_links(body: Callable[..., Any]) -> Callable[..., Any]:
    """Options about links; the command gets the words that try them as `links`, None: they are left out."""

    @click.option("--bandwidth/--no-bandwidth", default=True, help="Try the links between the nodes, pair by pair.")
    @click.option("--python", metavar="PATH", help="The interpreter with torch on the nodes, for the links.")
    @click.option(
        "--expected", type=click.FloatRange(0, min_open=True), help="GB/s bus bandwidth that all-reduce must reach."
    )
    @functools.wraps(body)
    def wrapper(*args: Any, bandwidth: bool, python: str | None, expected: float | None, **kwargs: Any) -> Any:
        words = [*FABRIC]
        words += [] if python is None else [f"--python={python}"]
        words += [] if expected is None else [f"--expected={expected:g}"]
        return body(*args, links=words if bandwidth else None, **kwargs)

    return wrapper


@click.command("preflight")
@with_nodes
@click.option("--ssh", "by_ssh", is_flag=True, help="Reach the nodes by ssh, as you.")
@click.option("--command", "program", default="watchkeeper", help="How srun and ssh call watchkeeper on the nodes.")
@with_links
@click.option("--expected-gpus", type=click.IntRange(0, 1024), help="How many GPUs each node should have.")
@click.option("--timeout", "seconds", type=click.FloatRange(1, 3600), default=180.0, help="Seconds for each command.")
@click.option("--cluster", metavar="NAME", help="The nodes' cluster, if it is not the hub's own.")
@as_json
@with_hub
def command(
    asked: NodeSelection,
    by_ssh: bool,
    program: str,
    links: Sequence[str] | None,
    expected_gpus: int | None,
    seconds: float,
    cluster: str | None,
    as_json: bool,
    hub: Client,
) -> None:
    """Go or no-go before a job starts: diag -r 1 on every node, then the bandwidth of every pair.

    The nodes are those of --nodes, --slurm-job or --selector, or of the allocation that this runs in. They are reached
    by srun where there is a job, by ssh with --ssh, otherwise by work orders of the hub. Exit codes: 0 go, 1 no-go,
    2 wrong use, 3 cannot tell: a node that does not answer is never a go.
    """
    logs.configure(level="critical")
    programs, words = transports.RunningCommands(), shlex.split(program)
    way: transports.Transport = WorkOrderAccess(hub, cluster)
    if by_ssh:
        way = transports.Ssh(words, seconds, programs)
    elif asked.job is not None:
        way = transports.Srun(asked.job, words, seconds, programs)
    try:
        found = check(way, asked.nodes, expected_gpus=expected_gpus, links=links)
    except KeyboardInterrupt:
        programs.terminate_all()
        click.echo("\nStopped: nothing runs on the nodes any more, as far as they can be reached.", err=True)
        # Not sys.exit: it would wait for threads that wait for nodes.
        os._exit(130)
    if as_json:
        print_json(as_plain(found, way.name))
    else:
        show(found, way.name)
    sys.exit(EXIT_CODES[found.verdict])


def _nodes(listed: str | None, job: str | None, *, selector: str | None, context: str | None) -> NodeSelection:
    """Of an allocation only those that --nodes names."""
    try:
        named = None if listed is None else list(dict.fromkeys(hostlist.expand(listed)))
    except hostlist.BadHostlist as error:
        raise click.UsageError(f"--nodes: {error}") from error
    names: list[str] = named or []
    if selector is not None:
        names, job = transports.labelled_nodes(selector, context), None
    elif job is not None or "SLURM_JOB_ID" in os.environ:
        job, own = transports.slurm_nodes(job, os.environ)
        strangers = [name for name in names if name not in own]
        if strangers:
            raise click.UsageError(f"--nodes: {strangers[0]} is not among the {len(own)} nodes of job {job}")
        names = own if named is None else names
    elif named is None:
        raise click.UsageError("which nodes? --nodes, --slurm-job, --selector, or run it inside a Slurm allocation")
    if not 0 < len(names) <= MOST_NODES:
        raise click.UsageError(f"{len(names)} nodes are named, possible are 1 to {MOST_NODES:,}")
    return NodeSelection(names, job)


def check(
    way: transports.Transport, nodes: Sequence[str], *, expected_gpus: int | None = None, links: Sequence[str] | None
) -> judge.PreflightReport:
    """All nodes; then, among those that may go, the links, if there is more than one GPU to try them with."""
    progress, done = Progress(), 0

    def tell(node: str) -> None:
        nonlocal done
        done += 1
        progress.update(f"diag -r 1: {done} of {len(nodes)} nodes, last {node}")

    answers = transports.run_on_each(way, nodes, DIAG, report_node=tell)
    found = judge.judge_nodes(answers, expected_gpus=expected_gpus)
    well = [checked.name for checked in found if checked.verdict is judge.PreflightVerdict.GO]
    gpus = sum(checked.gpus or 0 for checked in found if checked.verdict is judge.PreflightVerdict.GO)
    tried = None
    if links is not None and gpus > 1:
        progress.update(f"links between {len(well)} nodes")
        tried = judge.judge_links(way.run_on_all(well, links))
    progress.clear()
    return judge.PreflightReport(found, tried)


def as_plain(found: judge.PreflightReport, way: str) -> dict[str, object]:
    """The documented shape of `preflight --json`; keys are added, never renamed."""
    return {
        "verdict": found.verdict.value,
        "by": way,
        "nodes": wire.to_plain(found.nodes),
        "links": None if found.links is None else wire.to_plain(found.links),
    }


def show(found: judge.PreflightReport, way: str) -> None:
    order = list(judge.PreflightVerdict)
    rows = sorted(found.nodes, key=lambda checked: -order.index(checked.verdict))
    cells = [
        [
            checked.name,
            checked.verdict.value,
            "" if checked.gpus is None else str(checked.gpus),
            "; ".join([*checked.reasons, *(f"warning: {text}" for text in checked.warnings)]),
        ]
        for checked in (*rows, *([found.links] if found.links is not None else []))
    ]
    print_table(["NODE", "VERDICT", "GPUS", "WHY"], cells)
    counts = ", ".join(f"{sum(node.verdict is word for node in found.nodes)} {word.value}" for word in order)
    links = "links were not tried" if found.links is None else f"links: {found.links.verdict.value}"
    click.echo(f"{found.verdict.value.capitalize()}: {len(found.nodes)} nodes by {way}: {counts}; {links}.")
