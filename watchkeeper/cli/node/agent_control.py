"""Options of `watchkeeper agent` for work orders and logs, and its subcommands."""

from __future__ import annotations

import functools
import importlib
import shutil
import sys
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import click

from watchkeeper.agent import control, node_facts
from watchkeeper.agent.orders import order_context
from watchkeeper.cli import groups
from watchkeeper.cli.options import option_group, path_option
from watchkeeper.kit import files
from watchkeeper.model import orders

NO_ORDERS = "none"
UNIT = "watchkeeper-agent.service"
PROGRAMS = {"nvidia-smi": "nvidia_smi", "systemctl": "systemctl", "nvidia-mig-parted": "mig_parted"}
PATH = click.Path(path_type=Path)
COMMANDS = {
    "order": ("watchkeeper.cli.node.agent_order", "command"),
    "order-key": ("watchkeeper.cli.node.agent_control", "order_key"),
    "profiling": ("watchkeeper.cli.node.profiling", "command"),
    "unit": ("watchkeeper.cli.node.agent_control", "unit"),
}


class AgentCommands(groups.FullHelpGroup):
    """The subcommands, imported when used: a running agent does not need the hub's client."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module, name = COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), name)
        return command


# What work orders may use on this node.
with_tools = option_group(
    click.option(
        "--allow-unit", "units", multiple=True, metavar="UNIT", default=order_context.UNITS,
        help="Service that the order `restart_service` may restart; repeatable, replaces the default list.",
    ),
    path_option(
        "--mig-config", default=order_context.MIG_CONFIG,
        help="nvidia-mig-parted file with the layouts that the order `apply_mig` may apply.",
    ),
    click.option("--mig-layout", metavar="NAME", help="Layout in --mig-config that this node should have."),
    click.option(
        "--tool", "tools", multiple=True, metavar="NAME=PATH",
        help=f"Path of a program that orders run, if it is not on PATH; NAME is one of {', '.join(PROGRAMS)}.",
    ),
)  # fmt: skip


def with_control(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for work orders and logs, and pass them to the command as `control`."""

    @path_option(
        "--order-key", envvar="WATCHKEEPER_ORDER_KEY", help="Key for work orders; without it, the agent accepts none."
    )
    @click.option(
        "--allow-order",
        "allowed",
        multiple=True,
        type=click.Choice([*orders.KINDS, NO_ORDERS]),
        default=orders.HARMLESS,
        help="Kind of work order that this node accepts; repeatable, replaces the default list.",
    )
    @with_tools
    @click.option("--log-gpu-context", is_flag=True, help="Log as JSON, with the state of the GPUs in each message.")
    @functools.wraps(command)
    def wrapper(
        *args: Any, order_key: Path | None, allowed: tuple[str, ...], log_gpu_context: bool, **options: Any
    ) -> Any:
        tools = _pop_tools(options)
        node = None
        if order_key is not None and click.get_current_context().invoked_subcommand is None:
            from watchkeeper.agent.orders import orders as work_orders

            key, kinds = files.read_key_file(order_key), frozenset(allowed) - {NO_ORDERS}
            node = work_orders.AgentIdentity(options["cluster"], options["node"], key, kinds)
        root = options["host_root"]
        roots = node_facts.Roots(root / "proc", root / "sys", root)
        settings = control.ControlSettings(node, log_gpu_context, scan_options(options), tools, roots)
        return command(*args, control=settings, **options)

    return wrapper


def _pop_tools(options: dict[str, Any]) -> order_context.NodeTools:
    """Remove the options that are only about work orders, and return them as tools."""
    programs = {}
    for text in options.pop("tools"):
        name, equals, path = text.partition("=")
        if not equals or not path or name not in PROGRAMS:
            raise click.UsageError(f"--tool {text[:60]} is not NAME=PATH, where NAME is one of {', '.join(PROGRAMS)}")
        programs[PROGRAMS[name]] = path
    return order_context.NodeTools(
        **programs,
        mig_config=options.pop("mig_config"),
        mig_layout=options.pop("mig_layout"),
        units=tuple(unit.removesuffix(".service") for unit in options.pop("units")),
    )


def scan_options(options: dict[str, Any]) -> tuple[str, ...]:
    """Options of a scan that is run by a work order: the same paths and GPU count as this agent."""
    expected = options["expected_gpus"]
    expected_options = () if expected is None else ("--expected-gpus", str(expected))
    return ("--host-root", str(options["host_root"]), "--kmsg", str(options["kmsg"]), *expected_options)


@click.command("unit")
def unit() -> None:
    """Print the systemd unit of the agent, with the path of this command.

    \b
    watchkeeper agent unit | sudo tee /etc/systemd/system/watchkeeper-agent.service
    sudo systemctl enable --now watchkeeper-agent
    """
    text = resources.files("watchkeeper").joinpath("packs", "systemd", UNIT).read_text(encoding="utf-8")
    click.echo(text.replace("@WATCHKEEPER@", find_own_path()), nl=False)


def find_own_path() -> str:
    """The path of the installed command: a systemd unit does not have a user's PATH."""
    sibling = Path(sys.executable).with_name("watchkeeper")
    return str(sibling) if sibling.exists() else shutil.which("watchkeeper") or "/usr/bin/watchkeeper"


@click.command("order-key")
@click.argument("hub_key", metavar="HUB_KEY_FILE", type=PATH)
@click.option("--node", required=True, help="Node that gets the key.")
@click.option("--cluster", default="main", help="Cluster of the node.")
def order_key(hub_key: Path, node: str, cluster: str) -> None:
    """Print the key of one node for work orders, derived from the hub's key.

    Run it on the hub, with its [hub] order_key_file. Write the output to the --order-key file of that node. The key is
    valid for orders to that node only.
    """
    click.echo(orders.node_key(files.read_key_file(hub_key), cluster, node).decode())
