"""The hub over a real Prometheus: samples live there, and rules belong to either side."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests import servers
from tests.support.running_product import WATCHKEEPER, Product, await_that

pytestmark = pytest.mark.servers

SERVER_RULE = """
groups:
  - name: theirs
    interval: 1s
    rules:
      - alert: TheirGpuIsLost
        expr: max by (cluster, Hostname, UUID) (DCGM_FI_DEV_GPU_TEMP{Hostname="gpu-r01-01", gpu="0"}) > 0
        labels: {severity: critical, cause: gpu_missing}
        annotations: {summary: "their Prometheus says so"}
"""


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as running:
        yield running


def start_prometheus(stack: ExitStack, folder: Path) -> str:
    port = servers.free_port()
    (folder / "rules.yml").write_text(SERVER_RULE)
    (folder / "prometheus.yml").write_text("global: {evaluation_interval: 1s}\nrule_files: [rules.yml]\n")
    url = f"http://127.0.0.1:{port}"
    line = [
        servers.require("prometheus"),
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/tsdb",
        f"--web.listen-address=127.0.0.1:{port}",
        "--web.enable-remote-write-receiver",
    ]
    stack.enter_context(servers.running(line, ready_url=f"{url}/-/ready", log=folder / "prometheus.log"))
    return url


def start_fleet(stack: ExitStack, folder: Path) -> str:
    port = servers.free_port()
    line = [*WATCHKEEPER, "sim", "run", "--gpus", "16", "--port", str(port)]
    url = f"http://127.0.0.1:{port}"
    stack.enter_context(servers.running(line, ready_url=f"{url}/-/ready", log=folder / "sim.log"))
    return url


def start_hub(stack: ExitStack, folder: Path, *, settings: str) -> Product:
    port = servers.free_port()
    (folder / "hub.toml").write_text(settings)
    line = [*WATCHKEEPER, "hub", "--config", str(folder / "hub.toml"), "--port", str(port)]
    url, log = f"http://127.0.0.1:{port}", folder / "hub.log"
    server = stack.enter_context(servers.running(line, ready_url=f"{url}/-/ready", log=log))
    return Product(url, server, log)


def settings_of(prometheus: str, fleet: str, *, owner: str) -> str:
    return f"""
[hub]
data = "kept"
[fleet]
cluster = "sim"
sd_urls = ["{fleet}/sd"]
scrape_interval = "1s"
[query]
engine = "prometheus"
url = "{prometheus}"
write_url = "{prometheus}/api/v1/write"
[rules]
owner = "{owner}"
interval = "1s"
"""


def ask(url: str, expr: str) -> list[Any]:
    query = urllib.parse.urlencode({"query": expr})
    with urllib.request.urlopen(f"{url}/api/v1/query?{query}", timeout=60) as answer:
        series: list[Any] = json.loads(answer.read())["data"]["result"]
        return series


def test_our_rules_run_over_a_prometheus_and_are_written_back_to_it(stack: ExitStack, tmp_path: Path) -> None:
    prometheus, fleet = start_prometheus(stack, tmp_path), start_fleet(stack, tmp_path)
    hub = start_hub(stack, tmp_path, settings=settings_of(prometheus, fleet, owner="watchkeeper"))
    await_that(lambda: ask(prometheus, "count(DCGM_FI_DEV_GPU_TEMP) == 16"))
    assert ask(hub.url, "count(DCGM_FI_DEV_GPU_TEMP)")[0]["value"][1] == "16"
    await_that(lambda: ask(prometheus, '{__name__=~"watchkeeper:.+"}'))
    assert "Traceback" not in hub.log.read_text()


def test_alerts_of_a_server_that_owns_the_rules_become_incidents(stack: ExitStack, tmp_path: Path) -> None:
    prometheus, fleet = start_prometheus(stack, tmp_path), start_fleet(stack, tmp_path)
    hub = start_hub(stack, tmp_path, settings=settings_of(prometheus, fleet, owner="server"))
    incidents = await_that(hub.incidents)
    assert [(incident["cause"], incident["severity"]) for incident in incidents] == [("gpu_missing", "critical")]
    assert "gpu-r01-01" in incidents[0]["title"]


def test_a_hub_that_reads_nothing_itself_knows_the_gpus_that_the_server_has_samples_of(
    stack: ExitStack, tmp_path: Path
) -> None:
    prometheus, fleet = start_prometheus(stack, tmp_path), start_fleet(stack, tmp_path)
    first, second = tmp_path / "reads", tmp_path / "asks"
    first.mkdir()
    second.mkdir()
    settings = settings_of(prometheus, fleet, owner="server")
    start_hub(stack, first, settings=settings)
    await_that(lambda: ask(prometheus, "count(DCGM_FI_DEV_GPU_TEMP) == 16"))
    own = settings.replace('scrape_interval = "1s"', "scrape = false").replace("write_url", "# write_url")
    hub = start_hub(stack, second, settings=own)
    await_that(lambda: len(gpus_of(hub.url)) == 16)
    with urllib.request.urlopen(f"{hub.url}/api/v1/targets", timeout=60) as answer:
        assert json.loads(answer.read())["data"]["activeTargets"] == []


def gpus_of(url: str) -> list[Any]:
    with urllib.request.urlopen(f"{url}/api/fleet?max_age=0", timeout=60) as answer:
        return [gpu for node in json.loads(answer.read())["nodes"] for gpu in node["gpus"] if gpu is not None]
