"""`watchkeeper explain pod|node|job`: explain its state from a hub, or a pod from pasted kubectl output."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TextIO

import click

from watchkeeper.cli import options
from watchkeeper.cli.fleet import jobs
from watchkeeper.client import answers
from watchkeeper.client.hub import Client
from watchkeeper.diagnose import explain_result
from watchkeeper.diagnose import pod as pods
from watchkeeper.errors import HubError
from watchkeeper.kit import wire

MAX_PASTED_BYTES = 64 * 1024 * 1024


@click.command("pod")
@click.argument("name", metavar="[NAMESPACE/]NAME")
@click.option(
    "--file",
    "file",
    type=click.File("r", encoding="utf-8", errors="replace"),
    help="Read output of kubectl from this file instead of a hub; `-` is standard input.",
)
@options.with_hub_and_json
def pod(hub: Client, name: str, file: TextIO | None, as_json: bool) -> None:
    """Explain why a pod is pending, does not start, or has no GPU: the reason of each node, and the smallest fix.

    \b
    watchkeeper explain pod ml/train-0
    kubectl get pod,node -A -o json | watchkeeper explain pod ml/train-0 --file -

    Exit code 1 if the pod has a problem.
    """
    namespace, slash, pod_name = name.partition("/")
    namespace, pod_name = (namespace, pod_name) if slash else ("default", name)
    if file is None:
        _print_answer(hub.explain("pod", name), as_json=as_json)
        return
    explanation = pods.explain_pasted(file.read(MAX_PASTED_BYTES), namespace, pod_name)
    if explanation is None:
        raise click.UsageError(
            f"the text has no pod {namespace}/{pod_name} and no scheduler message. "
            "Paste `kubectl get pod,node -A -o json` or `kubectl describe pod`"
        )
    _print_explanation(wire.to_plain(explanation), explain_result.as_text(explanation), as_json=as_json)


@click.command("node")
@click.argument("name")
@options.with_hub_and_json
def node(hub: Client, name: str, as_json: bool) -> None:
    """Explain the state of a node: scheduler states, GPUs, holders, incidents and recent changes."""
    _print_answer(hub.explain("node", name), as_json=as_json)


@click.command("job")
@click.argument("name", metavar="[NAMESPACE/]NAME|ID")
@options.with_hub_and_json
def job(hub: Client, name: str, as_json: bool) -> None:
    """Explain the state of a job: missing, slow or starved ranks, hardware events, and what to do.

    Also prints the report of `watchkeeper jobs`: use of its GPUs, goodput and ranks.
    """
    answer = hub.explain("job", name)
    try:
        report = hub.job(name)
    except HubError as error:
        # A pending job, or one that only the scheduler of another hub lists, has no report.
        if error.status != 404:
            raise
        report = None
    explanation = {**answer.explained.plain, "report": None if report is None else jobs.as_plain(report)}
    # The first two lines repeat the state and the reason.
    lines = [] if report is None else jobs.report_lines(report, max_ranks=8)[2:]
    _print_explanation(explanation, [answer.text, *lines], as_json=as_json)


def _print_answer(answer: answers.ExplainAnswer, *, as_json: bool) -> None:
    _print_explanation(answer.explained.plain, [answer.text], as_json=as_json)


def _print_explanation(explanation: Mapping[str, Any], lines: Iterable[str], *, as_json: bool) -> None:
    options.print_result(explanation, lines, as_json=as_json)
    if explanation["cause"]:
        click.get_current_context().exit(1)
