"""From a rendered prometheus.yml to a rendered alertmanager.yml, with both servers: labels, routes and inhibition."""

from __future__ import annotations

import http.server
import json
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import servers
from tests.render import fleet_settings
from tests.support.waiting import PROGRAM_SECONDS, until
from watchkeeper.config import loading
from watchkeeper.render import alertmanager, prometheus

PAGE = b'DCGM_FI_DEV_GPU_TEMP_CELSIUS{gpu="3",UUID="GPU-1",hostname="gpu-01",namespace="research-7"} 41\n'
RULES = """
groups:
  - name: always
    rules:
      - {alert: Link, expr: DCGM_FI_DEV_GPU_TEMP > 0, labels: {severity: critical, cause: nvlink_error}}
      - {alert: Down, expr: DCGM_FI_DEV_GPU_TEMP > 0, labels: {severity: critical, cause: node_down}}
"""
MORE = """
[rules]
files = ["rules.yaml"]
interval = "1s"
"""


class Exporter(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(PAGE)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def exporter() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Exporter) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def wait_for_alerts(url: str) -> dict[str, dict[str, Any]]:
    """Alertmanager's alerts by name, once both are there and judged."""

    def arrived() -> dict[str, Any]:
        with urllib.request.urlopen(f"{url}/api/v2/alerts", timeout=60) as answer:
            found = {alert["labels"]["alertname"]: alert for alert in json.load(answer)}
        is_whole = len(found) == 2 and "unprocessed" not in {alert["status"]["state"] for alert in found.values()}
        return found if is_whole else {}

    return until(arrived, what="both alerts", timeout_seconds=90, interval_seconds=PROGRAM_SECONDS)


@pytest.mark.servers
def test_an_alert_arrives_with_the_hubs_labels_and_a_cause_silences_its_effect(tmp_path: Path, exporter: str) -> None:
    (tmp_path / "rules.yaml").write_text(RULES)
    path = fleet_settings.write(tmp_path, MORE)
    manager = f"http://127.0.0.1:{servers.free_port()}"
    text = path.read_text().replace("http://alertmanager:9093/am", manager).replace("a[1-2]:9400", exporter)
    path.write_text(text.replace('cluster = "east"', 'cluster = "east"\nscrape_interval = "1s"\nscrape_timeout = "1s"'))
    for file in (*prometheus.files(loading.load(path)), *alertmanager.files(loading.load(path))):
        (tmp_path / "out" / file.path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "out" / file.path).write_text(file.text)
    (out, data), port = (tmp_path / "out", tmp_path / "data"), int(manager.rpartition(":")[2]) + 1
    listen = [f"--web.listen-address={manager.removeprefix('http://')}", "--cluster.listen-address="]
    told = [servers.require("alertmanager"), f"--config.file={out}/alertmanager.yml", f"--storage.path={data}", *listen]
    asks = [servers.require("prometheus"), f"--config.file={out}/prometheus.yml", f"--storage.tsdb.path={data}/p"]
    asks += [f"--web.listen-address=127.0.0.1:{port}"]
    with (
        servers.running(told, ready_url=f"{manager}/-/ready", log=tmp_path / "a.log"),
        servers.running(asks, ready_url=f"http://127.0.0.1:{port}/-/ready", log=tmp_path / "p.log"),
    ):
        found = wait_for_alerts(manager)
    labels = {name: found["Link"]["labels"][name] for name in ("cluster", "node", "gpu", "team")}
    assert labels == {"cluster": "east", "node": "gpu-01", "gpu": "GPU-1", "team": "language"}
    assert found["Link"]["receivers"][0]["name"] == "oncall"
    assert found["Link"]["status"]["inhibitedBy"] == [found["Down"]["fingerprint"]]
