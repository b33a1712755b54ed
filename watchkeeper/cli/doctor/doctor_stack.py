"""`watchkeeper doctor stack`: check the monitoring itself, and the steps that lead to it, and print both."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from watchkeeper.cli import options
from watchkeeper.config import settings as config
from watchkeeper.doctor.stack import examine, facts, gather, steps
from watchkeeper.errors import CollectError, StoreError
from watchkeeper.kit import wire
from watchkeeper.net import http
from watchkeeper.query.remote.http import Request, ServerClient
from watchkeeper.readers import grafana_dashboard
from watchkeeper.readers.clusters import kubeconfig
from watchkeeper.readers.node import kubernetes_node, local_commands

PATH = click.Path(exists=True, path_type=Path)
KUBECONFIG_HELP = "kubeconfig file of the cluster that runs the monitoring."
# A busy Prometheus may need seconds to list its series.
TIMEOUT = "20s"
STYLES: dict[facts.StepState, dict[str, Any]] = {
    facts.StepState.PASSED: {"fg": "green"},
    facts.StepState.FAILED: {"fg": "red", "bold": True},
    facts.StepState.UNKNOWN: {"fg": "yellow"},
}


@click.command("stack")
@click.option(
    "--prometheus", "url", metavar="URL", help="URL of a running Prometheus, for example http://127.0.0.1:9090."
)
@click.option("--bearer-token-file", metavar="FILE", type=PATH, help="File with the bearer token for --prometheus.")
@click.option("--kubeconfig", "kubeconfig_file", metavar="FILE", type=PATH, help=KUBECONFIG_HELP)
@click.option("--namespace", "-n", metavar="NAME", help="Read only this namespace, if you may not read all namespaces.")
@click.option("--dashboards", metavar="DIR", type=PATH, help="Folder of Grafana dashboards (JSON) to check too.")
@click.option("--steps", "with_steps", is_flag=True, help="Print the steps from bare machines to the running stack.")
@click.option(
    "--node", "with_node", is_flag=True, help="Check the steps of this machine too. Implies --steps; as root."
)
@options.as_json
def command(
    url: str | None, kubeconfig_file: Path | None, dashboards: Path | None, as_json: bool, **choices: Any
) -> None:
    """Check the monitoring itself: targets without scrapes, rules that can never fire, empty panels.

    Reads from a running Prometheus, its Kubernetes objects, and dashboards. With --steps or --node, checks each step
    from bare machines to the running stack, and names the next one. Exit codes: 0 no problem found, 1 problem found or
    step failed, 2 usage error, 3 unknown.

    \b
    watchkeeper doctor stack --prometheus http://127.0.0.1:9090 --dashboards grafana/
    watchkeeper doctor stack --prometheus http://127.0.0.1:9090 --kubeconfig ~/.kube/config
    sudo watchkeeper doctor stack --node
    watchkeeper doctor stack --steps --kubeconfig ~/.kube/config
    """
    with_steps = choices["with_steps"] or choices["with_node"]
    if url is None and kubeconfig_file is None and not with_steps:
        raise click.UsageError("give --prometheus URL, --kubeconfig FILE, --node, or several of them")
    panels = list(_read_panels(dashboards)) if dashboards is not None else []
    stack, problems = facts.Stack(panels=tuple(panels)), list[str]()
    if url is not None:
        try:
            stack = _read_prometheus(url, choices["bearer_token_file"], panels)
        except StoreError as error:
            problems.append(str(error))
    if kubeconfig_file is not None:
        stack = replace(stack, kubernetes=asyncio.run(_read_kubernetes(kubeconfig_file, choices["namespace"])))
    if choices["with_node"]:
        stack = replace(stack, node=_read_node())
    raise SystemExit(_print_result(stack, problems, with_steps=with_steps, as_json=as_json))


def _print_result(stack: facts.Stack, problems: list[str], *, with_steps: bool, as_json: bool) -> int:
    """Print findings, and steps if they were asked for; return the exit code."""
    findings, sources, cluster = examine.examine(stack), examine.list_sources(stack), stack.kubernetes
    step_list = steps.check(stack)
    states = {step.state for step in step_list if step.was_read} if with_steps else set()
    is_unknown = bool(problems) or (cluster is not None and len(cluster.unread) == len(gather.KINDS))
    is_unknown = is_unknown or facts.StepState.UNKNOWN in states or (with_steps and not states)
    lines = [*sources, *(f"not read: {problem}" for problem in problems)]
    lines += _step_lines(step_list) if with_steps else []
    for number, finding in enumerate(findings, 1):
        lines += ["", click.style(f"{number}. {finding.title}", bold=True) + f"  [{finding.check}]"]
        lines += [*(click.style(f"   {line}", dim=True) for line in finding.evidence), f"   action: {finding.fix}"]
    if not findings and not with_steps:
        lines.append("Unknown: nothing could be read." if is_unknown else "No problem found.")
    next_step = steps.next_step(step_list)
    plain = {"findings": wire.to_plain(findings), "looked_at": sources, "unread": problems}
    plain |= {"steps": wire.to_plain(step_list), "next_step": None if next_step is None else next_step.step}
    options.print_result(plain, lines, as_json=as_json)
    return 1 if findings or facts.StepState.FAILED in states else 3 if is_unknown else 0


def _step_lines(step_list: Sequence[steps.StackStep]) -> Iterator[str]:
    """The table of steps, what checks those that cannot be checked from here, and the next one with what to do."""
    for number, step in enumerate(step_list, 1):
        now = step.now if step.was_read else f"{step.now}; by hand: {step.by_hand}"
        yield f"{number:>2}  {click.style(f'{step.state.value:<7}', **STYLES[step.state])}  {step.title}"
        yield click.style(f"             {now}", dim=True)
    yield ""
    yield from dict.fromkeys(step.action for step in step_list if not step.was_read)
    next_step = steps.next_step(step_list)
    if next_step is None:
        yield "All steps passed."
        return
    number = step_list.index(next_step) + 1
    yield click.style(f"Next: step {number}: {next_step.title}", bold=True) + f"  [{next_step.step}]"
    yield f"   now: {next_step.now}"
    yield f"   action: {next_step.action}"
    yield "   how: docs/howto/bare-metal.md"


def _read_node() -> kubernetes_node.KubernetesNode:
    outputs = local_commands.run_commands(kubernetes_node.COMMANDS)
    texts = {output.command: output.text.decode(errors="replace") for output in outputs}
    return kubernetes_node.read(texts, is_root=os.geteuid() == 0)


def _read_prometheus(url: str, token: Path | None, panels: Sequence[facts.Panel]) -> facts.Stack:
    access = config.QuerySettings(timeout=TIMEOUT, retries=0, bearer_token_file=None if token is None else str(token))
    client = ServerClient(access, url, key="--prometheus")

    def get(path: str) -> Any:
        response = client.send(Request("GET", path))
        try:
            answer = json.loads(response.body)
        except (ValueError, RecursionError) as error:
            raise StoreError(f"{path}: response {response.status} is not JSON", where=client.url) from error
        if response.status != 200 or not isinstance(answer, dict) or answer.get("status") != "success":
            message = answer.get("error", "") if isinstance(answer, dict) else ""
            raise StoreError(f"{path.partition('?')[0]} answered {response.status} {message}".strip(), where=client.url)
        return answer.get("data")

    try:
        return gather.gather_prometheus(get, client.url, panels, now=datetime.now(UTC))
    finally:
        client.close()


async def _read_kubernetes(path: Path, namespace: str | None) -> facts.KubernetesObjects:
    server = kubeconfig.load_kubeconfig(path)
    loop = asyncio.get_running_loop()
    connection = http.Connection(timeout_seconds=20.0, max_body_bytes=64 * 2**20, access=server.access)

    async def get(path: str) -> Any:
        headers = {"Accept": "application/json", **await server.access.request_headers()}
        response = await connection.send(http.HttpRequest(f"{server.url}{path}", headers=headers))
        if response.status != 200:
            raise CollectError(f"answered {response.status}", where=path)
        try:
            return json.loads(response.body)
        except (ValueError, RecursionError) as error:
            raise CollectError("the response is not JSON", where=path) from error

    def get_blocking(path: str) -> Any:
        return asyncio.run_coroutine_threadsafe(get(path), loop).result()

    try:
        return await asyncio.to_thread(gather.gather_kubernetes, get_blocking, namespace)
    finally:
        await connection.aclose()


def _read_panels(folder: Path) -> Iterator[facts.Panel]:
    for path in sorted(folder.rglob("*.json")) if folder.is_dir() else [folder]:
        try:
            dashboard = grafana_dashboard.read_dashboard(path.read_text(encoding="utf-8"))
        except (grafana_dashboard.InvalidDashboard, OSError, UnicodeDecodeError) as error:
            click.echo(f"note: {path}: {error}", err=True)
            continue
        for query in dashboard.queries:
            if query.expr is not None:
                yield facts.Panel(dashboard.title, query.panel, grafana_dashboard.fill_variables(query.expr))
