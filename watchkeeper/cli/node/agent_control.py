"""What `watchkeeper agent` has beside running: options for orders and logs, and its commands for keys and systemd."""

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
from watchkeeper.kit import secret_file
from watchkeeper.model import orders

NOTHING = "none"
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
    """The commands beside running, each imported on use: a running agent has no need of a client of the hub."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module, name = COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), name)
        return command


# What an order may use of this node, beside its kind.
TOOL_OPTIONS = (
    click.option(
        "--allow-unit",
        "units",
        multiple=True,
        metavar="UNIT",
        default=order_context.UNITS,
        show_default=True,
        help="A service that `restart_service` may restart; repeatable, and then only those.",
    ),
    click.option(
        "--mig-config",
        type=PATH,
        default=order_context.MIG_CONFIG,
        show_default=True,
        help="The layouts that `apply_mig` may apply, a file of nvidia-mig-parted.",
    ),
    click.option("--mig-layout", metavar="NAME", help="The layout of that file which this node has."),
    click.option(
        "--tool",
        "tools",
        multiple=True,
        metavar="NAME=PATH",
        help=f"Where a program lies that orders run, where not on PATH: {', '.join(PROGRAMS)}.",
    ),
)


def _with_tools(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(TOOL_OPTIONS):
        command = option(command)
    return command


def with_control(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of `agent.control`, and hand them to the agent's command as one `control`."""

    @click.option(
        "--order-key",
        type=PATH,
        envvar="WATCHKEEPER_ORDER_KEY",
        help="File of this node's key for work orders; without it the agent fetches none.",
    )
    @click.option(
        "--allow-order",
        "allowed",
        multiple=True,
        type=click.Choice([*orders.KINDS, NOTHING]),
        default=orders.HARMLESS,
        show_default=True,
        help="A kind of order that this node takes; repeatable, and then only those.",
    )
    @_with_tools
    @click.option(
        "--log-gpu-context", is_flag=True, help="Log as JSON, with the state of the GPUs that a line is about."
    )
    @functools.wraps(command)
    def wrapper(
        *given: Any, order_key: Path | None, allowed: tuple[str, ...], log_gpu_context: bool, **options: Any
    ) -> Any:
        tools = _tools(options)
        node = None
        if order_key is not None and click.get_current_context().invoked_subcommand is None:
            from watchkeeper.agent.orders import orders as work_orders

            key, kinds = secret_file.read_key_file(order_key), frozenset(allowed) - {NOTHING}
            node = work_orders.AgentIdentity(options["cluster"], options["node"], key, kinds)
        root = options["host_root"]
        roots = node_facts.Roots(root / "proc", root / "sys", root)
        wanted = control.ControlSettings(node, log_gpu_context, scan_options(options), tools, roots)
        return command(*given, control=wanted, **options)

    return wrapper


def _tools(options: dict[str, Any]) -> order_context.NodeTools:
    """Takes what is only about orders out of the options."""
    programs = {}
    for text in options.pop("tools"):
        name, equals, path = text.partition("=")
        if not equals or not path or name not in PROGRAMS:
            raise click.UsageError(f"--tool {text[:60]}: NAME=PATH is needed, with one of {', '.join(PROGRAMS)}")
        programs[PROGRAMS[name]] = path
    return order_context.NodeTools(
        **programs,
        mig_config=options.pop("mig_config"),
        mig_layout=options.pop("mig_layout"),
        units=tuple(unit.removesuffix(".service") for unit in options.pop("units")),
    )


def scan_options(options: dict[str, Any]) -> tuple[str, ...]:
    """How an ordered scan looks at the same machine as this agent."""
    expected = options["expected_gpus"]
    counted = () if expected is None else ("--expected-gpus", str(expected))
    return ("--host-root", str(options["host_root"]), "--kmsg", str(options["kmsg"]), *counted)


@click.command("unit")
def unit() -> None:
    """Print the systemd unit of the agent, with the path of this command.

    \b
    watchkeeper agent unit | sudo tee /etc/systemd/system/watchkeeper-agent.service
    sudo systemctl enable --now watchkeeper-agent
    """
    text = resources.files("watchkeeper").joinpath("packs", "systemd", UNIT).read_text(encoding="utf-8")
    click.echo(text.replace("@WATCHKEEPER@", own_path()), nl=False)


def own_path() -> str:
    """Where the installed command is: a unit has no PATH of a person."""
    beside = Path(sys.executable).with_name("watchkeeper")
    return str(beside) if beside.exists() else shutil.which("watchkeeper") or "/usr/bin/watchkeeper"


@click.command("order-key")
@click.argument("hub_key", metavar="HUB_KEY_FILE", type=PATH)
@click.option("--node", required=True, help="The node whose agent gets the key.")
@click.option("--cluster", default="main", show_default=True, help="Its cluster.")
def order_key(hub_key: Path, node: str, cluster: str) -> None:
    """Print one node's key for work orders, derived from the hub's.

    Run it where the hub's [hub] order_key_file is; what it prints goes into the file of --order-key on that node. It
    opens the orders of that node only.
    """
    click.echo(orders.node_key(secret_file.read_key_file(hub_key), cluster, node).decode())
