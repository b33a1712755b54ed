"""`watchkeeper explain pod|node|job`: why it is as it is, from a hub, or for a pod from pasted kubectl output."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, TextIO

import click

from watchkeeper.cli import options
from watchkeeper.cli.fleet import jobs
from watchkeeper.client import answers
from watchkeeper.client.hub import Client
from watchkeeper.diagnose import explained
from watchkeeper.diagnose import pod as pods
from watchkeeper.errors import HubError
from watchkeeper.kit import wire

MOST_BYTES = 64 * 1024 * 1024


@click.command("pod")
@click.argument("name", metavar="[NAMESPACE/]NAME")
@click.option(
    "--file",
    "file",
    type=click.File("r", encoding="utf-8", errors="replace"),
    help="Output of kubectl instead of a hub; - is the standard input.",
)
@options.as_json
@options.with_hub
def pod(hub: Client, name: str, file: TextIO | None, as_json: bool) -> None:
    """Say why a pod waits, does not start, or has no GPU; each node's reason, and the smallest change that would help.

    \b
    watchkeeper explain pod ml/train-0
    kubectl get pod,node -A -o json | watchkeeper explain pod ml/train-0 --file -

    Exits with 1 when something is wrong with it.
    """
    namespace, slash, short = name.partition("/")
    namespace, short = (namespace, short) if slash else ("default", name)
    if file is None:
        _print_answer(hub.explain("pod", name), as_json=as_json)
        return
    found = pods.explain_pasted(file.read(MOST_BYTES), namespace, short)
    if found is None:
        raise click.UsageError(
            f"the text names no pod {namespace}/{short} and holds no word of a scheduler. "
            "Paste `kubectl get pod,node -A -o json` or `kubectl describe pod`"
        )
    _print(wire.to_plain(found), explained.as_text(found), as_json=as_json)


@click.command("node")
@click.argument("name")
@options.as_json
@options.with_hub
def node(hub: Client, name: str, as_json: bool) -> None:
    """Say what is so about a node: its schedulers' words, GPUs, holders, incidents and recent changes."""
    _print_answer(hub.explain("node", name), as_json=as_json)


@click.command("job")
@click.argument("name", metavar="[NAMESPACE/]NAME|ID")
@options.as_json
@options.with_hub
def job(hub: Client, name: str, as_json: bool) -> None:
    """Say how a job gets on: who is missing, slow or starved, hardware events in its time, and what to do.

    Then what `watchkeeper jobs` shows of it: used against held, goodput, and its ranks side by side.
    """
    answer = hub.explain("job", name)
    try:
        report = hub.job(name)
    except HubError as error:
        # One that waits, or that only a scheduler of another hub knows, has no report yet.
        if error.status != 404:
            raise
        report = None
    found = answer.explained.plain
    if as_json:
        _print({**found, "report": None if report is None else jobs.as_plain(report)}, [], as_json=True)
        return
    # Its state and why are in the headline.
    lines = [] if report is None else jobs.report_lines(report, most_ranks=8)[2:]
    _print(found, [answer.text, *lines], as_json=False)


def _print_answer(answer: answers.ExplainAnswer, *, as_json: bool) -> None:
    _print(answer.explained.plain, [answer.text], as_json=as_json)


def _print(found: Mapping[str, Any], lines: Iterable[str], *, as_json: bool) -> None:
    click.echo(json.dumps(found, indent=2, ensure_ascii=False) if as_json else "\n".join(lines))
    if found["cause"]:
        click.get_current_context().exit(1)
