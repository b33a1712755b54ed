"""`watchkeeper nodes`: every node with its state, expected and reporting GPUs, scheduler state and holders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

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
        if nodes:
            header = ["node", "pool", "rack", "state", "scheduler", "gpus", "holders", "last seen", "why"]
            options.print_table(header, [_format_row(node, with_cluster=has_clusters) for node in nodes])
        click.echo("\n".join(_summary_lines(answer)))
    if any(node.state != UP for node in nodes):
        ctx.exit(1)


def _format_row(node: NodeLine, *, with_cluster: bool) -> list[str]:
    service = [] if node.service is None or not node.service.text else [node.service.text]
    scheduler_states = [*service, *(f"{report.state} ({report.source})" for report in node.scheduler)]
    more = len(node.holders) - MAX_HOLDERS
    return [
        f"{node.cluster}/{node.name}" if with_cluster else node.name,
        node.pool or UNMAPPED,
        node.rack or UNMAPPED,
        node.state.replace("_", " "),
        ", ".join(scheduler_states) or "-",
        f"{node.gpus_seen}/{'?' if node.gpus_expected is None else node.gpus_expected}",
        ", ".join(node.holders[:MAX_HOLDERS]) + (f" and {more} more" if more > 0 else "") or "-",
        "never" if node.last_seen is None else times.utc(node.last_seen),
        _format_reason(node),
    ]


def _format_reason(node: NodeLine) -> str:
    reasons = [node.why] if node.state != UP else []
    for report in node.scheduler:
        reasons += [report.reason + (f" (by {report.by})" if report.by else "")] if report.reason else []
    if node.incidents:
        reasons.append("incident " + ", ".join(node.incidents[:3]))
    return "; ".join(reasons) or "-"


def _summary_lines(answer: answers.NodeList) -> Iterator[str]:
    states = Counter(node.state for node in answer.nodes)
    counts = ", ".join(f"{count} {state.replace('_', ' ')}" for state, count in sorted(states.items()))
    yield f"{len(answer.nodes)} of {answer.total} nodes" + (f": {counts}" if counts else "")
    yield from options.gpu_lines(answer)
    yield from options.unmapped_lines(answer.unmapped)
    for scheduler in answer.schedulers:
        if scheduler.problem:
            yield f"{scheduler.source} does not answer: {scheduler.problem}"
    if answer.problem:
        yield f"Holders are unknown: {answer.problem}"
