"""The `watchkeeper` command; it imports the module of a subcommand only when it runs, which keeps start-up fast."""

from __future__ import annotations

import difflib
import errno
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import click
from click import shell_completion

from watchkeeper import __version__, errors

# Name, module and one line for --help; the rest of a command's help is in its module.
COMMANDS: dict[str, tuple[str, str]] = {
    "up": ("watchkeeper.cli.hub.up", "Start a hub with a simulated fleet on this machine."),
    "hub": ("watchkeeper.cli.hub.hub", "Run the hub: scrape, store, alert, diagnose, serve the console."),
    "agent": ("watchkeeper.cli.node.agent", "Run the agent of a GPU node: /metrics, and events for the hub."),
    "scan": ("watchkeeper.cli.node.scan", "Check the health of this node once; also for Slurm and Kubernetes."),
    "gpus": ("watchkeeper.cli.node.gpus", "List the GPUs of this node and how they are connected."),
    "diag": ("watchkeeper.cli.node.diag", "Test the GPUs of this node: setup, speed, correctness, full load."),
    "preflight": ("watchkeeper.cli.node.preflight", "Check nodes and the links between them before a job starts."),
    "top": ("watchkeeper.cli.fleet.top", "Show GPUs, holders and incidents live, of this node or a hub."),
    "dmon": ("watchkeeper.cli.node.dmon", "Print metrics of this node's GPUs repeatedly, like dcgmi dmon."),
    "profile": ("watchkeeper.cli.node.profile", "Record GPUs during a workload and find its bottleneck."),
    "nodes": ("watchkeeper.cli.fleet.nodes", "List nodes: state, GPUs, scheduler state and holders."),
    "who": ("watchkeeper.cli.fleet.who", "Show who holds a GPU or node, or what a job, pod or user holds."),
    "jobs": ("watchkeeper.cli.fleet.jobs", "List jobs: GPU use, progress, and what each is blocked on."),
    "query": ("watchkeeper.cli.hub.query", "Run a PromQL query on a hub."),
    "topology": ("watchkeeper.cli.fleet.topology", "Show racks, leaves, nodes, GPUs and links with their states."),
    "fabric": ("watchkeeper.cli.node.fabric", "Read the InfiniBand fabric: switches, links, rates and errors."),
    "incidents": ("watchkeeper.cli.fleet.incidents", "List open incidents, show cause and fix, work on them."),
    "act": ("watchkeeper.cli.fleet.act", "Explain, approve, reject or stop repairs; show the audit log."),
    "bundle": ("watchkeeper.cli.node.bundle", "Collect evidence of an incident or node in one file, as for an RMA."),
    "silence": ("watchkeeper.cli.fleet.silence", "Silence notifications, or plan maintenance windows."),
    "doctor": ("watchkeeper.cli.doctor.doctor", "Diagnose logs or command output: cause, place, evidence, fix."),
    "explain": ("watchkeeper.cli.fleet.explain", "Explain an Xid or metric, or the state of a pod, node or job."),
    "lemons": ("watchkeeper.cli.fleet.lemons", "Rank nodes by repeated hardware faults."),
    "accuracy": ("watchkeeper.cli.fleet.accuracy", "Show how often diagnosed causes were right."),
    "slo": ("watchkeeper.cli.hub.slo", "List SLOs with error budget left and burn rate."),
    "usage": ("watchkeeper.cli.accounting.usage", "Report GPU-hours by owner: allocated, used, wasted, idle, lost."),
    "cost": ("watchkeeper.cli.accounting.cost", "Report GPU cost, write monthly statements, check budgets."),
    "capacity": ("watchkeeper.cli.accounting.capacity", "Forecast demand, show free GPUs, try a different fleet."),
    "rules": ("watchkeeper.cli.hub.rules", "Check, test or replay Prometheus rule files."),
    "render": ("watchkeeper.cli.hub.render", "Write files for Prometheus, Grafana, Kubernetes, systemd, Slurm …"),
    "migrate": ("watchkeeper.cli.doctor.migrate", "Check which counters, rules and dashboards work with Watchkeeper."),
    "mcp": ("watchkeeper.cli.mcp.mcp", "Serve a hub to an AI assistant, over the Model Context Protocol."),
    "record": ("watchkeeper.cli.hub.record", "Save a time range of a hub in one file."),
    "play": ("watchkeeper.cli.hub.play", "Show a recording in the console."),
    "store": ("watchkeeper.cli.hub.store", "Back up, restore, verify or export the data of a hub."),
    "users": ("watchkeeper.cli.hub.users", "Manage users who log in with a password, and their roles."),
    "drill": ("watchkeeper.cli.doctor.drill", "Inject all simulated faults into the real pipeline and score it."),
    "learn": ("watchkeeper.cli.doctor.learn", "Answer a quiz about GPUs, and learn in eight weeks with checks."),
    "sim": ("watchkeeper.cli.hub.sim", "Run a simulated fleet, list scenarios, inject faults."),
}
EXIT_UNKNOWN = 3
# The shell's exit code after SIGPIPE: the result is unknown because the reader closed the pipe.
EXIT_BROKEN_PIPE = 141
WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
# Import names of the packages in the extra `hub`.
HUB_MODULES = frozenset(
    {"apprise", "argon2", "backports", "cramjam", "httptools", "numpy", "orjson", "re2", "rich", "starlette"}
    | {"uvicorn", "websockets", "yaml"}
)


class LazyGroup(click.Group):
    """A group that imports a command when it is used; `module.command` is the click command."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(COMMANDS[cmd_name][0]).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and (similar := difflib.get_close_matches(args[0], COMMANDS, n=1)):
            raise click.UsageError(f"No such command '{args[0]}'. Did you mean '{similar[0]}'?", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; after a closed pipe (`| head`) click would exit with 1, which means a problem was found."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            _discard_output()
            sys.exit(EXIT_BROKEN_PIPE)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[shell_completion.CompletionItem]:
        names = [(name, line) for name, (_, line) in COMMANDS.items() if name.startswith(incomplete)]
        items = [shell_completion.CompletionItem(name, help=line) for name, line in names]
        return [*items, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True},
)
@click.version_option(__version__, message="watchkeeper %(version)s")
def watchkeeper() -> None:
    """Watchkeeper monitors GPU fleets: it finds faults, diagnoses the cause and proposes the fix.

    To try it without a GPU, run `watchkeeper up`. Exit codes: 0 no problem, 1 problem found or command failed,
    2 usage error or unreadable file, 3 unknown: no hub, no permission, no driver or no data.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command; errors of Watchkeeper are printed as one message, without a traceback."""
    try:
        code = watchkeeper.main(args=arguments, prog_name="watchkeeper", standalone_mode=False)
        # click returns the code of `ctx.exit` instead of exiting.
        if isinstance(code, int) and code:
            sys.exit(code)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except errors.WatchkeeperError as error:
        click.echo(f"watchkeeper: {error}", err=True)
        if isinstance(error, (errors.SettingsError, errors.StartRefused, errors.InputError)):
            sys.exit(2)
        sys.exit(EXIT_UNKNOWN if isinstance(error, errors.HubError) and not error.has_answered else 1)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in HUB_MODULES:
            raise
        problem = f"the package {error.name} is missing: only the agent is installed"
        click.echo(f"watchkeeper: {problem}. Install the hub too: pip install 'watchkeeper[hub]'", err=True)
        sys.exit(2)
    except OSError as error:
        if error.errno not in WRITE_ERRORS:
            raise
        _discard_output()
        click.echo(f"watchkeeper: {error.filename or 'the output'}: cannot be written: {error.strerror}", err=True)
        sys.exit(1)


def _discard_output() -> None:
    """Discard buffered output: Python would try to write it again at exit and print an error."""
    null_file = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_file, sys.stdout.fileno())
    os.close(null_file)


if __name__ == "__main__":
    main()
