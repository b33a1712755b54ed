"""`watchkeeper doctor stack`: is my monitoring itself right? Asks Prometheus and Kubernetes, and prints findings."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from watchkeeper.cli import options
from watchkeeper.config import settings as config
from watchkeeper.doctor.stack import examine, facts, gather
from watchkeeper.errors import CollectError, StoreError
from watchkeeper.kit import wire
from watchkeeper.net import http
from watchkeeper.query.remote.http import Request, ServerClient
from watchkeeper.readers import grafana_dashboard
from watchkeeper.readers.clusters import kubeconfig

PATH = click.Path(exists=True, path_type=Path)
# A busy Prometheus may take seconds for the list of its series.
TIMEOUT = "20s"


@click.command("stack")
@click.option("--prometheus", "url", metavar="URL", help="A running Prometheus, such as http://127.0.0.1:9090.")
@click.option("--bearer-token-file", metavar="FILE", type=PATH, help="Token for that Prometheus.")
@click.option("--kubeconfig", "kubeconfig_file", metavar="FILE", type=PATH, help="The cluster that it runs in.")
@click.option("--namespace", "-n", metavar="NAME", help="Look at this namespace only, where not all may be read.")
@click.option("--dashboards", metavar="DIR", type=PATH, help="Folder of Grafana dashboards (JSON) to look at as well.")
@options.as_json
def command(
    url: str | None,
    bearer_token_file: Path | None,
    kubeconfig_file: Path | None,
    namespace: str | None,
    dashboards: Path | None,
    as_json: bool,
) -> None:
    """Say what is wrong with the monitoring itself: nobody scraped, rules that can never fire, empty panels.

    Looks at a running Prometheus, at the Kubernetes objects around it, and at dashboards; only reads. Exit codes: 0
    nothing wrong found, 1 something found, 2 wrong use, 3 cannot tell.

    \b
    watchkeeper doctor stack --prometheus http://127.0.0.1:9090 --dashboards grafana/
    watchkeeper doctor stack --prometheus http://127.0.0.1:9090 --kubeconfig ~/.kube/config
    """
    if url is None and kubeconfig_file is None:
        raise click.UsageError("give --prometheus URL, --kubeconfig FILE, or both")
    panels = list(_panels(dashboards)) if dashboards is not None else []
    stack = facts.Stack(panels=tuple(panels))
    unread: list[str] = []
    if url is not None:
        try:
            stack = _ask_prometheus(url, bearer_token_file, panels)
        except StoreError as error:
            unread.append(str(error))
    if kubeconfig_file is not None:
        stack = replace(stack, kubernetes=asyncio.run(_ask_kubernetes(kubeconfig_file, namespace)))
    _report(stack, unread, as_json=as_json)


def _report(stack: facts.Stack, unread: Sequence[str], *, as_json: bool) -> None:
    found, seen = examine.examine(stack), examine.list_sources(stack)
    cluster = stack.kubernetes
    is_blind = bool(unread) or (cluster is not None and len(cluster.unread) == len(gather.KINDS))
    if as_json:
        options.print_json({"findings": wire.to_plain(found), "looked_at": seen, "unread": list(unread)})
    else:
        for line in [*seen, *(f"not read: {problem}" for problem in unread)]:
            click.echo(line)
        for number, finding in enumerate(found, 1):
            click.echo()
            click.echo(click.style(f"{number}. {finding.title}", bold=True) + f"  [{finding.check}]")
            for line in finding.evidence:
                click.echo(click.style(f"   {line}", dim=True))
            click.echo(f"   do: {finding.fix}")
        if not found:
            click.echo("Nothing here could be judged." if is_blind else "Nothing wrong was found in what was read.")
    raise SystemExit(1 if found else 3 if is_blind else 0)


def _ask_prometheus(url: str, token: Path | None, panels: Sequence[facts.Panel]) -> facts.Stack:
    access = config.QuerySettings(timeout=TIMEOUT, retries=0, bearer_token_file=None if token is None else str(token))
    client = ServerClient(access, url, key="--prometheus")

    def ask(path: str) -> Any:
        response = client.send(Request("GET", path))
        try:
            answer = json.loads(response.body)
        except (ValueError, RecursionError) as error:
            raise StoreError(f"{path} answered {response.status} and no JSON", where=client.url) from error
        if response.status != 200 or not isinstance(answer, dict) or answer.get("status") != "success":
            said = answer.get("error", "") if isinstance(answer, dict) else ""
            raise StoreError(f"{path.partition('?')[0]} answered {response.status} {said}".strip(), where=client.url)
        return answer.get("data")

    try:
        return gather.gather_prometheus(ask, client.url, panels, now=datetime.now(UTC))
    finally:
        client.close()


async def _ask_kubernetes(path: Path, namespace: str | None) -> facts.KubernetesObjects:
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
            raise CollectError("answered no JSON", where=path) from error

    def ask(path: str) -> Any:
        return asyncio.run_coroutine_threadsafe(get(path), loop).result()

    try:
        return await asyncio.to_thread(gather.gather_kubernetes, ask, namespace)
    finally:
        await connection.aclose()


def _panels(folder: Path) -> Iterator[facts.Panel]:
    for path in sorted(folder.rglob("*.json")) if folder.is_dir() else [folder]:
        try:
            dashboard = grafana_dashboard.read_dashboard(path.read_text(encoding="utf-8"))
        except (grafana_dashboard.NotADashboard, OSError, UnicodeDecodeError) as error:
            click.echo(f"note: {path}: {error}", err=True)
            continue
        for question in dashboard.queries:
            if question.expr is not None:
                yield facts.Panel(dashboard.title, question.panel, grafana_dashboard.fill_variables(question.expr))
