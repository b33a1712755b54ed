"""The same prometheus.yml read by Debian's Prometheus and by us: the same targets, labels and series."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests import servers
from tests.support.scraped import Kept
from tests.support.waiting import PROGRAM_SECONDS, until
from watchkeeper.scrape.discovery import DiscoveredTargets, Discovery
from watchkeeper.scrape.fleet import ScrapedInventory
from watchkeeper.scrape.target_loop import SYNTHESISED, ScrapeSettings, TargetLoop

pytestmark = pytest.mark.servers
NOW = datetime(2026, 3, 1, tzinfo=UTC)
PAGE = """# HELP temp Heat.
# TYPE temp gauge
temp{gpu="0",job="theirs",exported_job="x",Team="Red"} 41
temp{gpu="1",job="theirs",Team="Blue"} 42.5 1700000000000
go_threads 7
noise_total{a="1"} 1
same{x="1"} 1
same{x="2"} 1
"""
FILE = r"""
global: {scrape_interval: 1s}
scrape_configs:
- job_name: plain
  metrics_path: /m
  honor_timestamps: false
  params: {'collect[]': [a, b], q: ['x y']}
  static_configs:
  - {targets: [ADDRESS, 'gone:1'], labels: {env: prod, __meta_rack: r7, empty: ''}}
  - {targets: ['other.example:9100'], labels: {env: test}}
  relabel_configs:
  - {source_labels: [__address__], regex: 'gone:.*', action: drop}
  - source_labels: [env, __meta_rack]
    separator: '@'
    regex: '(.+)@(r)(\d+)'
    target_label: 'at_$2'
    replacement: '${3}-$1-$$'
  - {source_labels: [env], target_label: ENV, action: uppercase}
  - {source_labels: [__address__], modulus: 7, target_label: __tmp_shard, action: hashmod}
  - {source_labels: [__tmp_shard], target_label: shard}
  - {regex: '__meta_(.*)', replacement: 'meta_$1', action: labelmap}
  - {source_labels: [__param_q], target_label: __param_q, replacement: 'z'}
  - {source_labels: [nothing], regex: '', target_label: filled, replacement: yes}
  - {source_labels: [env], target_label: meta_rack, regex: test, replacement: ''}
  metric_relabel_configs:
  - {source_labels: [__name__], regex: 'go_.*', action: drop}
  - {source_labels: [Team], target_label: team, action: lowercase}
  - {regex: 'Team|a', action: labeldrop}
  - {source_labels: [gpu, env], regex: '(.);(.*)', target_label: __name__, replacement: 'temp_$2'}
- job_name: kept
  honor_labels: true
  honor_timestamps: false
  metrics_path: /m
  scheme: http
  static_configs: [{targets: [ADDRESS], labels: {job: renamed, instance: here, Team: ours}}]
  metric_relabel_configs:
  - {source_labels: [__name__], regex: 'temp|same', action: keep}
  - {source_labels: [x], target_label: gpu, action: dropequal}
  - {source_labels: [nothing], target_label: a, action: keepequal}
  - {regex: '__name__|gpu|job|instance|Team', action: labelkeep}
"""


class Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(PAGE.encode())

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as exporter:
        thread = threading.Thread(target=exporter.serve_forever, daemon=True)
        thread.start()
        yield f"127.0.0.1:{exporter.server_address[1]}"
        exporter.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def config(address: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / "prometheus.yml"
    path.write_text(FILE.replace("ADDRESS", f"'{address}'"))
    return path


@pytest.fixture(scope="module")
def theirs(config: Path) -> Iterator[str]:
    port = servers.free_port()
    url = f"http://127.0.0.1:{port}"
    line = [servers.require("prometheus"), f"--config.file={config}", f"--web.listen-address=127.0.0.1:{port}"]
    line.append(f"--storage.tsdb.path={config.parent / 'stored'}")
    with servers.running(line, ready_url=f"{url}/-/ready", log=config.parent / "log"):
        yield url


@pytest.fixture(scope="module")
def discovered(config: Path) -> DiscoveredTargets:
    return asyncio.run(Discovery([], config=config).refresh(NOW))


def by_labels(labels: dict[str, str]) -> list[tuple[str, str]]:
    return sorted(labels.items())


def ask(url: str, path: str, **form: str) -> Any:
    with urllib.request.urlopen(f"{url}/api/v1/{path}?{urllib.parse.urlencode(form)}", timeout=60) as answer:
        return json.loads(answer.read())["data"]


def awaited(url: str, path: str, **form: str) -> Any:
    """The answer, once there is one: Prometheus finds and reads its targets in the first seconds."""

    def whole() -> Any:
        with contextlib.suppress(OSError):
            answer = ask(url, path, **form)
            return answer if isinstance(answer, list) or answer.get("activeTargets") else None

    return until(whole, what=f"{path} is filled", interval_seconds=PROGRAM_SECONDS)


def test_the_same_file_gives_the_same_targets(theirs: str, discovered: DiscoveredTargets) -> None:
    listed = awaited(theirs, "targets")
    expected = {(target["scrapePool"], target["scrapeUrl"]): target["labels"] for target in listed["activeTargets"]}
    ours = {(target.job_name, target.url): dict(target.labels.without("cluster")) for target in discovered.targets}
    assert ours == expected
    gone = [target["discoveredLabels"]["__address__"] for target in listed["droppedTargets"]]
    assert [target.discovered["__address__"] for target in discovered.dropped] == gone


def test_the_same_page_gives_the_same_series(theirs: str, discovered: DiscoveredTargets, address: str) -> None:
    for target in (target for target in discovered.targets if target.address == address):
        sink = Kept()

        async def read(target: Any = target, sink: Kept = sink) -> None:
            plain = replace(target, labels=target.labels.without("cluster"))
            loop = TargetLoop(plain, ScrapeSettings(), sink=sink, inventory=ScrapedInventory())
            state = await loop.scrape(1000)
            assert state.error is None
            await loop.close(2000)

        asyncio.run(read())
        job, instance = target.labels["job"], target.labels["instance"]
        selector = f'{{job=~"{job}|theirs",instance="{instance}"}}'
        expected = [
            series
            for series in awaited(theirs, "series", **{"match[]": selector})
            if series["__name__"] not in SYNTHESISED
        ]
        ours = [dict(labels) for labels in sink.known if labels.name not in SYNTHESISED]
        assert len(ours) >= 3
        assert sorted(ours, key=by_labels) == sorted(expected, key=by_labels)
