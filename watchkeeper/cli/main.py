"""The `watchkeeper` command: finds a command's module only when it is asked for, so that start-up stays quick."""

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
    "up": ("watchkeeper.cli.hub.up", "Everything on this machine, with a simulated fleet."),
    "hub": ("watchkeeper.cli.hub.hub", "The fleet's side: collect, store, detect, diagnose, show."),
    "agent": ("watchkeeper.cli.node.agent", "A GPU node's side: GPUs, kernel log and host; /metrics and events."),
    "scan": ("watchkeeper.cli.node.scan", "Is this node healthy? For people, Slurm and Kubernetes."),
    "gpus": ("watchkeeper.cli.node.gpus", "The GPUs of this node and how they are connected."),
    "diag": ("watchkeeper.cli.node.diag", "Is each GPU as fast and as right as it should be? Active tests."),
    "preflight": ("watchkeeper.cli.node.preflight", "Go or no-go before a job: its nodes, and the links between them."),
    "top": ("watchkeeper.cli.fleet.top", "GPUs, their holders and incidents, live: this node or a whole hub."),
    "dmon": ("watchkeeper.cli.node.dmon", "Numbers of this node's GPUs, line by line."),
    "profile": ("watchkeeper.cli.node.profile", "Record a workload and say what it is bound by; judge recordings."),
    "nodes": ("watchkeeper.cli.fleet.nodes", "The fleet's nodes: what they should have, have, and who holds them."),
    "who": ("watchkeeper.cli.fleet.who", "Who holds this GPU or node, and what does this job or pod hold?"),
    "jobs": (
        "watchkeeper.cli.fleet.jobs",
        "Jobs: what they use, how they get on, whom they wait for; replicas of models.",
    ),
    "query": ("watchkeeper.cli.hub.query", "Ask a hub a PromQL question."),
    "topology": ("watchkeeper.cli.fleet.topology", "Racks, leaves, nodes, GPUs and links, with their states."),
    "fabric": (
        "watchkeeper.cli.node.fabric",
        "The InfiniBand fabric: switches, links, rates and errors, seen from here.",
    ),
    "incidents": ("watchkeeper.cli.fleet.incidents", "What is wrong now, why, and what to do."),
    "act": ("watchkeeper.cli.fleet.act", "Repairs: what would be done and why; approve, reject, stop, and the audit."),
    "bundle": (
        "watchkeeper.cli.node.bundle",
        "Evidence about an incident or a node as one file, for a repair or an RMA.",
    ),
    "silence": ("watchkeeper.cli.fleet.silence", "Silences and maintenance windows: for how long, by whom, and why."),
    "doctor": ("watchkeeper.cli.doctor.doctor", "Logs or command output in; cause, place, evidence and fix out."),
    "explain": (
        "watchkeeper.cli.fleet.explain",
        "What an Xid code or a metric means; why a pod, node or job is as it is.",
    ),
    "lemons": ("watchkeeper.cli.fleet.lemons", "Nodes that break again and again, or are on their way there."),
    "accuracy": ("watchkeeper.cli.fleet.accuracy", "How often the causes that were named are right, by people's word."),
    "slo": ("watchkeeper.cli.hub.slo", "What is left of each error budget, and how fast it burns."),
    "usage": ("watchkeeper.cli.accounting.usage", "Who held which GPUs, used them, wasted them; idle, lost, unknown."),
    "cost": ("watchkeeper.cli.accounting.cost", "What it cost: reports, monthly statements, budgets."),
    "capacity": (
        "watchkeeper.cli.accounting.capacity",
        "When is the fleet full, what is true about it now, and what if?",
    ),
    "rules": ("watchkeeper.cli.hub.rules", "Check and test Prometheus rule files, and try them on history."),
    "render": (
        "watchkeeper.cli.hub.render",
        "Files for Prometheus, Alertmanager, Grafana, Kubernetes, systemd, Slurm …",
    ),
    "migrate": ("watchkeeper.cli.doctor.migrate", "What of your exporter's counters, rules and dashboards works here."),
    "mcp": ("watchkeeper.cli.mcp.mcp", "Let an assistant ask this fleet, over the Model Context Protocol."),
    "record": ("watchkeeper.cli.hub.record", "Keep a time window of a hub as one file."),
    "play": ("watchkeeper.cli.hub.play", "Show a recording in the console."),
    "store": ("watchkeeper.cli.hub.store", "Back up, restore and verify what a hub keeps."),
    "users": ("watchkeeper.cli.hub.users", "People who may sign in with a password, and their roles."),
    "drill": (
        "watchkeeper.cli.doctor.drill",
        "Game days: every shipped fault against the real pipeline, with a score.",
    ),
    "sim": ("watchkeeper.cli.hub.sim", "The simulated fleet: run it, list scenarios, inject faults."),
}
CANNOT_TELL = 3
# As the shell counts a program that SIGPIPE ended: neither fine nor trouble, nobody has read to the end.
READER_LEFT = 141
CANNOT_BE_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
# What the extra `hub` brings, by the names under which it is imported.
HUB_MODULES = frozenset(
    {"apprise", "argon2", "backports", "cramjam", "httptools", "numpy", "orjson", "re2", "rich", "starlette"}
    | {"uvicorn", "websockets", "yaml"}
)


class LazyGroup(click.Group):
    """A group whose commands are imported on use; `module.command` is the click command."""

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
        """As click does it for commands that it knows: a mistyped name is answered with the one that is meant."""
        if args[0] not in COMMANDS and (near := difflib.get_close_matches(args[0], COMMANDS, n=1)):
            raise click.UsageError(f"No such command '{args[0]}'. Did you mean '{near[0]}'?", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; where the reader of a pipe left early (`| head`), click would leave with 1: trouble found."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            _forget_output()
            sys.exit(READER_LEFT)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[shell_completion.CompletionItem]:
        """Names of commands without importing them: a shell asks at each press of the tab key."""
        names = [(name, line) for name, (_, line) in COMMANDS.items() if name.startswith(incomplete)]
        found = [shell_completion.CompletionItem(name, help=line) for name, line in names]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True},
)
@click.version_option(__version__, message="watchkeeper %(version)s")
def watchkeeper() -> None:
    """Watchkeeper sees every GPU, says what is wrong and why, and proposes what to do.

    Without a GPU, start with `watchkeeper up`. Exit codes: 0 fine, 1 trouble found or the work failed,
    2 wrong use or a file that cannot be read, 3 cannot tell: no hub or no right to ask it, no driver, nothing to read.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command; our own errors become one clear message, never a traceback."""
    try:
        code = watchkeeper.main(args=arguments, prog_name="watchkeeper", standalone_mode=False)
        # click gives back what `ctx.exit` was told, instead of leaving with it.
        if isinstance(code, int) and code:
            sys.exit(code)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (errors.SettingsError, errors.StartRefused, errors.InputError) as error:
        _say(error)
        sys.exit(2)
    except errors.HubError as error:
        _say(error)
        sys.exit(1 if error.has_answered else CANNOT_TELL)
    except errors.WatchkeeperError as error:
        _say(error)
        sys.exit(1)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in HUB_MODULES:
            raise
        needed = f"this needs the package {error.name}, which the agent's install leaves out"
        click.echo(f"watchkeeper: {needed}. Install the hub as well: pip install 'watchkeeper[hub]'", err=True)
        sys.exit(2)
    except OSError as error:
        if error.errno not in CANNOT_BE_WRITTEN:
            raise
        _forget_output()
        click.echo(f"watchkeeper: {error.filename or 'the output'}: cannot be written: {error.strerror}", err=True)
        sys.exit(1)


def _forget_output() -> None:
    """Let what is left to be written go nowhere: Python would try again at exit, and complain."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _say(error: errors.WatchkeeperError) -> None:
    click.echo(f"watchkeeper: {error}", err=True)


if __name__ == "__main__":
    main()
