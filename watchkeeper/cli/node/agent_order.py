"""`watchkeeper agent order`: have another node's agent do something, and print what came of it."""

from __future__ import annotations

import sys
import time

import click

from watchkeeper.cli.options import as_json, print_json, with_hub
from watchkeeper.client import answers
from watchkeeper.client.hub import Client
from watchkeeper.errors import HubError
from watchkeeper.model import orders

# How long an idle agent may take to fetch an order, on top of what the work may take.
FETCH_SECONDS = 20.0
LOOK_SECONDS = 0.5
DONE = ("done", "already_so")


@click.command("order")
@click.argument("node")
@click.argument("kind", type=click.Choice(list(orders.KINDS)))
@click.argument("arguments", nargs=-1, metavar="[NAME=VALUE]…")
@click.option("--cluster", metavar="NAME", help="The node's cluster, if it is not the hub's own.")
@as_json
@with_hub
def command(node: str, kind: str, arguments: tuple[str, ...], cluster: str | None, as_json: bool, hub: Client) -> None:
    """Order something harmless from a node's agent, wait, and print what it says; a scan's report, for example.

    Exit codes: 0 done, 1 refused, failed or not answered, 2 wrong use, 3 no hub. See docs/howto/work-orders.md.
    """
    pairs = [text.partition("=") for text in arguments]
    if any(not equals for _, equals, _ in pairs):
        raise click.UsageError(f"{' '.join(arguments)[:60]}: write NAME=VALUE")
    arguments_of = {name: value for name, _, value in pairs}
    given, receipt = give_and_wait(hub, node, kind, arguments=arguments_of, cluster=cluster)
    if as_json:
        print_json(given.plain)
    else:
        click.echo(receipt.output or said(node, receipt), nl=not receipt.output.endswith("\n"))
    sys.exit(0 if receipt.result in DONE else 1)


def give_and_wait(
    hub: Client, node: str, kind: str, *, arguments: dict[str, str], cluster: str | None
) -> tuple[answers.OrderStatus, orders.Receipt]:
    """The order with its receipt; HubError if none comes in time."""
    given = hub.create_order(node, kind, arguments, cluster=cluster)
    id, began = given.order.id, time.monotonic()
    while (receipt := given.receipt) is None:
        is_fetched = given.state != "waiting"
        patience = FETCH_SECONDS + (orders.KINDS[kind].seconds if is_fetched else 0.0)
        if time.monotonic() - began > patience:
            raise HubError(
                f"the agent of {node} has not {'answered' if is_fetched else 'fetched'} {id} within {patience:g} s",
                where=hub.url,
                remedy="It stays valid for ten minutes. The agent needs --order-key, and --cluster must be its cluster",
                status=504,
            )
        time.sleep(LOOK_SECONDS)
        given = hub.order(id)
    return given, receipt


def said(node: str, receipt: orders.Receipt) -> str:
    return f"{node}: {receipt.result}: {receipt.text}"
