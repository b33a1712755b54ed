"""`watchkeeper agent order`: send a work order to the agent of a node, and print its receipt."""

from __future__ import annotations

import sys
import time

import click

from watchkeeper.cli import options
from watchkeeper.client import answers
from watchkeeper.client.hub import Client
from watchkeeper.errors import HubError
from watchkeeper.model import orders

# Time for an idle agent to fetch an order, before the time limit of the order.
FETCH_SECONDS = 20.0
POLL_SECONDS = 0.5
REMEDY = "It stays valid for ten minutes. The agent needs --order-key, and --cluster must be its cluster"
SUCCESS_RESULTS = ("done", "already_so")


@click.command("order")
@click.argument("node")
@click.argument("kind", type=click.Choice(list(orders.KINDS)))
@click.argument("arguments", nargs=-1, metavar="[NAME=VALUE]…")
@options.node_cluster
@options.with_hub_and_json
def command(node: str, kind: str, arguments: tuple[str, ...], cluster: str | None, as_json: bool, hub: Client) -> None:
    """Send a harmless work order to the agent of a node, wait, and print the result, for example a scan report.

    Exit codes: 0 done, 1 refused, failed or no answer, 2 usage error, 3 no hub. See docs/howto/work-orders.md.
    """
    pairs = [text.partition("=") for text in arguments]
    if any(not equals for _, equals, _ in pairs):
        raise click.UsageError(f"{' '.join(arguments)[:60]}: write arguments as NAME=VALUE")
    order_arguments = {name: value for name, _, value in pairs}
    status, receipt = send_and_wait(hub, node, kind, arguments=order_arguments, cluster=cluster)
    if as_json:
        options.print_json(status.plain)
    else:
        click.echo(receipt.output or format_receipt(node, receipt), nl=not receipt.output.endswith("\n"))
    sys.exit(0 if receipt.result in SUCCESS_RESULTS else 1)


def send_and_wait(
    hub: Client, node: str, kind: str, *, arguments: dict[str, str], cluster: str | None
) -> tuple[answers.OrderStatus, orders.Receipt]:
    """Send an order and wait for its receipt; HubError after a timeout."""
    status = hub.create_order(node, kind, arguments, cluster=cluster)
    id, started = status.order.id, time.monotonic()
    while (receipt := status.receipt) is None:
        is_fetched = status.state != "waiting"
        timeout_seconds = FETCH_SECONDS + (orders.KINDS[kind].seconds if is_fetched else 0.0)
        if time.monotonic() - started > timeout_seconds:
            verb = "answer" if is_fetched else "fetch"
            problem = f"the agent of {node} did not {verb} {id} within {timeout_seconds:g} s"
            raise HubError(problem, where=hub.url, remedy=REMEDY, status=504)
        time.sleep(POLL_SECONDS)
        status = hub.order(id)
    return status, receipt


def format_receipt(node: str, receipt: orders.Receipt) -> str:
    return f"{node}: {receipt.result}: {receipt.text}"
