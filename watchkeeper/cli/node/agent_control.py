"""Options of `watchkeeper agent` for work orders, logs and the baseboard management controller; its subcommands."""

from __future__ import annotations

import importlib
import shutil
import sys
from pathlib import Path
from typing import Any

import click

from watchkeeper.agent import chassis, control, node_facts
from watchkeeper.agent.orders import order_context
from watchkeeper.catalogue import pack
from watchkeeper.cli.options import FullHelpGroup, combined, option_group, path_option
from watchkeeper.kit import files
from watchkeeper.model import orders

NO_ORDERS = "none"
UNIT = "watchkeeper-agent.service"
PROGRAMS = {"nvidia-smi": "nvidia_smi", "systemctl": "systemctl", "nvidia-mig-parted": "mig_parted"}
COMMANDS = {
    "order": ("watchkeeper.cli.node.agent_order", "command"),
    "order-key": ("watchkeeper.cli.node.agent_control", "order_key"),
    "policy": ("watchkeeper.cli.node.policy", "command"),
    "profiling": ("watchkeeper.cli.node.profiling", "command"),
    "unit": ("watchkeeper.cli.node.agent_control", "unit"),
}


class AgentCommands(FullHelpGroup):
    """The subcommands, imported when used: a running agent does not need the hub's client."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module, name = COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), name)
        return command


# What work orders may use on this node; `take_control` makes settings of it.
with_control = option_group(
    path_option(
        "--order-key", envvar="WATCHKEEPER_ORDER_KEY", help="Key for work orders; without it, the agent accepts none."
    ),
    click.option(
        "--allow-order", "allowed", multiple=True, type=click.Choice([*orders.KINDS, NO_ORDERS]),
        default=orders.HARMLESS,
        help="Kind of work order that this node accepts; repeatable, replaces the default list.",
    ),
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
    click.option("--log-gpu-context", is_flag=True, help="Log as JSON, with the state of the GPUs in each message."),
)  # fmt: skip


def take_control(options: dict[str, Any]) -> control.ControlSettings:
    """Remove the options for work orders and logs, and return them as settings."""
    tools, node = _pop_tools(options), None
    order_key, allowed, logs_gpu_context = (options.pop(name) for name in ("order_key", "allowed", "log_gpu_context"))
    if order_key is not None and click.get_current_context().invoked_subcommand is None:
        from watchkeeper.agent.orders import orders as work_orders

        key, kinds = files.read_key_file(order_key), frozenset(allowed) - {NO_ORDERS}
        node = work_orders.AgentIdentity(options["cluster"], options["node"], key, kinds)
    # A scan that is run by a work order uses the same paths and GPU count as this agent.
    root, expected = options["host_root"], options["expected_gpus"]
    expected_options = () if expected is None else ("--expected-gpus", str(expected))
    scan_options = ("--host-root", str(root), "--kmsg", str(options["kmsg"]), *expected_options)
    roots = node_facts.Roots(root / "proc", root / "sys", root)
    return control.ControlSettings(node, logs_gpu_context, scan_options, tools, roots)


def _pop_tools(options: dict[str, Any]) -> order_context.NodeTools:
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


def _chassis_settings(
    redfish_url: str | None, secret: Path | None, ca_file: Path | None, is_insecure: bool, no_ipmi: bool
) -> chassis.ChassisSettings:
    access = chassis.load_access(secret, ca_file, is_insecure=is_insecure)
    return chassis.ChassisSettings(redfish_url, access, reads_ipmi=not no_ipmi)


# For reading the baseboard management controller (BMC).
with_chassis = combined(
    "chassis",
    _chassis_settings,
    click.option("--redfish-url", metavar="URL", help="Redfish URL of the BMC, to read fans and power supplies."),
    path_option("--redfish-credentials", "secret", help="File with one line `user:password` for --redfish-url."),
    path_option("--redfish-ca", "ca_file", help="CA certificates that verify the BMC, instead of the system's."),
    click.option("--redfish-insecure", "is_insecure", is_flag=True, help="Do not verify the certificate of the BMC."),
    click.option("--no-ipmi", is_flag=True, help="Do not read the BMC with ipmitool."),
)


@click.command("unit")
def unit() -> None:
    """Print the systemd unit of the agent, with the path of this command.

    \b
    watchkeeper agent unit | sudo tee /etc/systemd/system/watchkeeper-agent.service
    sudo systemctl enable --now watchkeeper-agent
    """
    click.echo(pack.text_of(f"systemd/{UNIT}").replace("@WATCHKEEPER@", find_own_path()), nl=False)


def find_own_path() -> str:
    """The path of the installed command: a systemd unit does not have a user's PATH."""
    sibling = Path(sys.executable).with_name("watchkeeper")
    return str(sibling) if sibling.exists() else shutil.which("watchkeeper") or "/usr/bin/watchkeeper"


@click.command("order-key")
@click.argument("hub_key", metavar="HUB_KEY_FILE", type=click.Path(path_type=Path))
@click.option("--node", required=True, help="Node that gets the key.")
@click.option("--cluster", default="main", help="Cluster of the node.")
def order_key(hub_key: Path, node: str, cluster: str) -> None:
    """Print the key of one node for work orders, derived from the hub's key.

    Run it on the hub, with its [hub] order_key_file. Write the output to the --order-key file of that node. The key is
    valid for orders to that node only.
    """
    click.echo(orders.node_key(files.read_key_file(hub_key), cluster, node).decode())
