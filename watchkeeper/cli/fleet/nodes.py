"""`watchkeeper nodes`: every node with its state, expected and reporting GPUs, scheduler state and holders."""

from __future__ import annotations

import click

from watchkeeper.cli import options, times
from watchkeeper.client import answers
from watchkeeper.client.hub import Client
from watchkeeper.model.node_list import NodeLine

UNMAPPED = "unmapped"
UP = "up"
# More holders of a node are counted.
MAX_HOLDERS = 2


@click.command("nodes")
@click.option(
    "--state", help="Show only nodes in this state: up, short, silent, …, or a scheduler state such as drained."
)
@click.option("--pool", help="Show only nodes of this pool; `unmapped` for nodes without a pool.")
@options.with_hub_and_json
@click.pass_context
def command(ctx: click.Context, /, hub: Client, state: str | None, pool: str | None, as_json: bool) -> None:
    """List nodes with state, GPUs, scheduler state and holders, including silent and gone nodes.

    Exit code 0 if all listed nodes are up, 1 if one is not.
    """
    answer = hub.list_nodes(state=state, pool=pool)
    nodes = answer.nodes
    if as_json:
        options.print_json(options.answer_fields(answer))
    else:
        has_clusters = len({node.cluster for node in nodes}) > 1
        rows = [format_row(node, with_cluster=has_clusters) for node in nodes]
        if rows:
            header = ["node", "pool", "rack", "state", "scheduler", "gpus", "holders", "last seen", "why"]
            options.print_table(header, rows)
        for line in summary_lines(answer):
            click.echo(line)
    if any(node.state != UP for node in nodes):
        ctx.exit(1)


def format_row(node: NodeLine, *, with_cluster: bool = False) -> list[str]:
    scheduler_states = [f"{report.state} ({report.source})" for report in node.scheduler]
    expected = node.gpus_expected
    gpus = f"{node.gpus_seen}/{'?' if expected is None else expected}"
    shown = node.holders[:MAX_HOLDERS]
    more = len(node.holders) - len(shown)
    return [
        f"{node.cluster}/{node.name}" if with_cluster else node.name,
        node.pool or UNMAPPED,
        node.rack or UNMAPPED,
        node.state.replace("_", " "),
        ", ".join(scheduler_states) or "-",
        gpus,
        ", ".join(shown) + (f" and {more} more" if more else "") or "-",
        "never" if node.last_seen is None else times.utc(node.last_seen),
        format_reason(node),
    ]


def format_reason(node: NodeLine) -> str:
    """The reasons of Watchkeeper and of the schedulers, and open incidents."""
    reasons = [node.why] if node.state != UP else []
    reasons += [
        report.reason + (f" (by {report.by})" if report.by else "") for report in node.scheduler if report.reason
    ]
    if node.incidents:
        reasons.append("incident " + ", ".join(node.incidents[:3]))
    return "; ".join(reasons) or "-"


def summary_lines(answer: answers.NodeList) -> list[str]:
    """Lines below the table: nodes by state, missing facts, schedulers without an answer."""
    nodes, total = answer.nodes, answer.total
    states: dict[str, int] = {}
    for node in nodes:
        states[node.state] = states.get(node.state, 0) + 1
    counts = ", ".join(f"{count} {state.replace('_', ' ')}" for state, count in sorted(states.items()))
    lines = [f"{len(nodes)} of {total} nodes" + (f": {counts}" if counts else "")]
    lines += options.unmapped_lines(answer.unmapped)
    lines += [
        f"{scheduler.source} does not answer: {scheduler.problem}"
        for scheduler in answer.schedulers
        if scheduler.problem
    ]
    if answer.problem:
        lines.append(f"Holders are unknown: {answer.problem}")
    return lines
