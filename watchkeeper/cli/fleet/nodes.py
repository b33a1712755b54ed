"""`watchkeeper nodes`: every node, what it should have and has, what its scheduler says, and who holds it."""

from __future__ import annotations

import click

from watchkeeper.cli import options, times
from watchkeeper.client import answers
from watchkeeper.client.hub import Client
from watchkeeper.model.node_list import NodeLine

UNMAPPED = "unmapped"
WELL = "up"
# A node may have as many holders as GPUs, or more; the rest is counted.
SHOWN_HOLDERS = 2


@click.command("nodes")
@click.option("--state", help="Only nodes in this state: ours (up, short, silent, …) or the scheduler's (drained, …).")
@click.option("--pool", help="Only nodes of this pool; `unmapped` for those without one.")
@options.as_json
@options.with_hub
@click.pass_context
def command(ctx: click.Context, /, hub: Client, state: str | None, pool: str | None, as_json: bool) -> None:
    """List the fleet's nodes, those that fell silent, were never seen or are gone included.

    Exits with 0 when every node that is listed is up, and with 1 when one is not, so that scripts can ask.
    """
    answer = hub.list_nodes(state=state, pool=pool)
    nodes = answer.nodes
    if as_json:
        options.print_json(options.fields(answer))
    else:
        has_clusters = len({node.cluster for node in nodes}) > 1
        rows = [row(node, with_cluster=has_clusters) for node in nodes]
        if rows:
            header = ["node", "pool", "rack", "state", "scheduler", "gpus", "holders", "last seen", "why"]
            options.print_table(header, rows)
        for line in summary(answer):
            click.echo(line)
    if any(node.state != WELL for node in nodes):
        ctx.exit(1)


def row(node: NodeLine, *, with_cluster: bool = False) -> list[str]:
    words = [f"{word.state} ({word.source})" for word in node.scheduler]
    expected = node.gpus_expected
    gpus = f"{node.gpus_seen}/{'?' if expected is None else expected}"
    shown = node.holders[:SHOWN_HOLDERS]
    more = len(node.holders) - len(shown)
    return [
        f"{node.cluster}/{node.name}" if with_cluster else node.name,
        node.pool or UNMAPPED,
        node.rack or UNMAPPED,
        node.state.replace("_", " "),
        ", ".join(words) or "-",
        gpus,
        ", ".join(shown) + (f" and {more} more" if more else "") or "-",
        "never" if node.last_seen is None else times.utc(node.last_seen),
        why(node),
    ]


def why(node: NodeLine) -> str:
    """Our own sentence and the scheduler's, as far as there is something to say."""
    said = [node.why] if node.state != WELL else []
    said += [word.reason + (f" (by {word.by})" if word.by else "") for word in node.scheduler if word.reason]
    if node.incidents:
        said.append("incident " + ", ".join(node.incidents[:3]))
    return "; ".join(said) or "-"


def summary(answer: answers.NodeList) -> list[str]:
    """What a table cannot say: how many there are, what nobody has mapped, and which scheduler is not heard."""
    nodes, total = answer.nodes, answer.total
    states: dict[str, int] = {}
    for node in nodes:
        states[node.state] = states.get(node.state, 0) + 1
    counted = ", ".join(f"{count} {state.replace('_', ' ')}" for state, count in sorted(states.items()))
    lines = [f"{len(nodes)} of {total} nodes" + (f": {counted}" if counted else "")]
    lines += options.unmapped(answer.unmapped)
    lines += [f"{one.source} is not heard: {one.problem}" for one in answer.schedulers if one.problem]
    if answer.problem:
        lines.append(f"Holders are unknown: {answer.problem}")
    return lines
