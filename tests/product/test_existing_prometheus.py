"""`watchkeeper hub` beside an existing prometheus.yml: its targets and rules count, the rest is said."""

from __future__ import annotations

import contextlib
import json
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests import servers
from tests.support.running_product import WATCHKEEPER, await_that

CONFIG = """
global: {scrape_interval: 1s, external_labels: {cluster: blue}}
rule_files: [mine.yml]
scrape_configs:
- job_name: dcgm
  static_configs: [{targets: ['ADDRESS', '127.0.0.1:1']}]
  relabel_configs: [{source_labels: [__address__], regex: '.*:1', action: drop}]
  metric_relabel_configs: [{source_labels: [__name__], regex: noise, action: drop}]
- job_name: pods
  kubernetes_sd_configs: [{role: pod}]
"""
RULES = "groups: [{name: mine, interval: 1s, rules: [{alert: Warm, expr: 'DCGM_FI_DEV_GPU_TEMP > 40'}]}]"
PAGE = b'DCGM_FI_DEV_GPU_TEMP_CELSIUS{gpu="0",UUID="GPU-1",hostname="n1"} 41\nnoise 1\n'


class Exporter(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(PAGE)))
        self.end_headers()
        self.wfile.write(PAGE)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    folder, port = tmp_path_factory.mktemp("existing"), servers.free_port()
    with ThreadingHTTPServer(("127.0.0.1", 0), Exporter) as exporter, contextlib.ExitStack() as ending:
        ending.callback(exporter.shutdown)
        threading.Thread(target=exporter.serve_forever, daemon=True).start()
        (folder / "p.yml").write_text(CONFIG.replace("ADDRESS", f"127.0.0.1:{exporter.server_address[1]}"))
        (folder / "mine.yml").write_text(RULES)
        (folder / "hub.toml").write_text(f'[hub]\nport = {port}\ndata = "kept"\n[fleet]\nprometheus_config = "p.yml"\n')
        url, log = f"http://127.0.0.1:{port}", folder / "log"
        line = [*WATCHKEEPER, "hub", "--config", str(folder / "hub.toml")]
        with servers.running(line, ready_url=f"{url}/-/ready", log=log):
            yield url, log


def ask(url: str, path: str, **form: str) -> Any:
    with urllib.request.urlopen(f"{url}/api/v1/{path}?{urllib.parse.urlencode(form)}", timeout=60) as answer:
        return json.loads(answer.read())["data"]


@pytest.mark.slow
def test_its_targets_are_scraped_and_stored_in_the_usual_names(hub: tuple[str, Path]) -> None:
    url, log = hub
    series = await_that(lambda: ask(url, "query", query="DCGM_FI_DEV_GPU_TEMP")["result"])
    assert series[0]["metric"] | {"instance": ""} == {
        "__name__": "DCGM_FI_DEV_GPU_TEMP",
        "gpu": "0",
        "UUID": "GPU-1",
        "Hostname": "n1",
        "job": "dcgm",
        "cluster": "blue",
        "instance": "",
    }
    assert ask(url, "query", query="noise")["result"] == []
    assert ask(url, "targets")["droppedTargetCounts"] == {"dcgm": 1}
    assert "p.yml:10: job pods: kubernetes_sd is not supported and skipped" in log.read_text()


@pytest.mark.slow
def test_its_rules_are_evaluated_beside_ours(hub: tuple[str, Path]) -> None:
    url, _ = hub
    await_that(lambda: any(alert["labels"]["alertname"] == "Warm" for alert in ask(url, "alerts")["alerts"]))
    groups = [group["name"] for group in ask(url, "rules")["groups"]]
    assert "mine" in groups
    assert len(groups) > 1
