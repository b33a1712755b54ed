"""`watchkeeper doctor stack`: check the monitoring itself through Prometheus and Kubernetes, and print findings."""

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
KUBECONFIG_HELP = "kubeconfig file of the cluster that runs the monitoring."
# A busy Prometheus may need seconds to list its series.
TIMEOUT = "20s"


@click.command("stack")
@click.option(
    "--prometheus", "url", metavar="URL", help="URL of a running Prometheus, for example http://127.0.0.1:9090."
)
@click.option("--bearer-token-file", metavar="FILE", type=PATH, help="File with the bearer token for --prometheus.")
@click.option("--kubeconfig", "kubeconfig_file", metavar="FILE", type=PATH, help=KUBECONFIG_HELP)
@click.option("--namespace", "-n", metavar="NAME", help="Read only this namespace, if you may not read all namespaces.")
@click.option("--dashboards", metavar="DIR", type=PATH, help="Folder of Grafana dashboards (JSON) to check too.")
@options.as_json
def command(
    url: str | None, kubeconfig_file: Path | None, dashboards: Path | None, as_json: bool, **access: Any
) -> None:
    """Check the monitoring itself: targets without scrapes, rules that can never fire, empty panels.

    Reads from a running Prometheus, its Kubernetes objects, and dashboards. Exit codes: 0 no problem found, 1 problem
    found, 2 usage error, 3 unknown.

    \b
    watchkeeper doctor stack --prometheus http://127.0.0.1:9090 --dashboards grafana/
    watchkeeper doctor stack --prometheus http://127.0.0.1:9090 --kubeconfig ~/.kube/config
    """
    if url is None and kubeconfig_file is None:
        raise click.UsageError("give --prometheus URL, --kubeconfig FILE, or both")
    panels = list(_read_panels(dashboards)) if dashboards is not None else []
    stack, problems = facts.Stack(panels=tuple(panels)), list[str]()
    if url is not None:
        try:
            stack = _read_prometheus(url, access["bearer_token_file"], panels)
        except StoreError as error:
            problems.append(str(error))
    if kubeconfig_file is not None:
        stack = replace(stack, kubernetes=asyncio.run(_read_kubernetes(kubeconfig_file, access["namespace"])))
    findings, sources = examine.examine(stack), examine.list_sources(stack)
    cluster = stack.kubernetes
    is_unknown = bool(problems) or (cluster is not None and len(cluster.unread) == len(gather.KINDS))
    lines = [*sources, *(f"not read: {problem}" for problem in problems)]
    for number, finding in enumerate(findings, 1):
        lines += ["", click.style(f"{number}. {finding.title}", bold=True) + f"  [{finding.check}]"]
        lines += [*(click.style(f"   {line}", dim=True) for line in finding.evidence), f"   action: {finding.fix}"]
    if not findings:
        lines.append("Unknown: nothing could be read." if is_unknown else "No problem found.")
    plain = {"findings": wire.to_plain(findings), "looked_at": sources, "unread": problems}
    options.print_result(plain, lines, as_json=as_json)
    raise SystemExit(1 if findings else 3 if is_unknown else 0)


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
