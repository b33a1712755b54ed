"""A simulated fleet, a hub over it in trouble, and a real Prometheus with the files that `render prometheus` writes."""

from __future__ import annotations

import contextlib
import json
import shutil
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import servers
from tests.support.running_product import WATCHKEEPER
from watchkeeper.config import loading
from watchkeeper.drill.monitored_fleet import SHIPPED_RULES
from watchkeeper.render import prometheus

# A slurmrestd that is down, routes and a rule file that can be broken while the hub runs.
HUB = """
[hub]
data = "data"
[fleet]
cluster = "sim"
scrape_interval = "2s"
scrape_timeout = "2s"
sd_urls = ["{simulator}/sd"]
slurm = true
slurm_rest_url = "http://127.0.0.1:{closed}"
[rules]
files = [{rules}]
[notify]
via = "receivers"
routes = "notify.toml"
[render]
hub_url = "{hub}"
"""
ROUTES = '[[receivers]]\nname = "oncall"\nwebhook = "http://127.0.0.1:{closed}"\n[[routes]]\nreceivers = ["oncall"]\n'


@dataclass(frozen=True, slots=True)
class RenderedPrometheus:
    """`folder` has the rendered files; `hub` and `url` are addresses."""

    folder: Path
    hub: str
    url: str

    def get(self, path: str, **parameters: str) -> Any:
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=60) as answer:
            return json.load(answer)["data"]

    def query(self, expr: str) -> list[dict[str, Any]]:
        result: list[dict[str, Any]] = self.get("query", query=expr)["result"]
        return result

    def targets(self) -> list[dict[str, Any]]:
        active: list[dict[str, Any]] = self.get("targets", state="active")["activeTargets"]
        return active

    def break_files(self) -> None:
        """Rules and routes that the hub refuses; it reads changed files by itself."""
        for name in ("rules/capacity.yaml", "notify.toml"):
            (self.folder.parent / name).write_text("not: [valid\n")


@contextlib.contextmanager
def running(folder: Path, *, gpus: int) -> Iterator[RenderedPrometheus]:
    simulator, hub, url = (f"http://127.0.0.1:{servers.free_port()}" for _ in range(3))
    rules = sorted(Path(path).name for path in shutil.copytree(SHIPPED_RULES, folder / "rules").glob("*.yaml"))
    closed = servers.free_port()
    (folder / "notify.toml").write_text(ROUTES.format(closed=closed))
    listed = ", ".join(f'"rules/{name}"' for name in rules)
    settings = folder / "hub.toml"
    settings.write_text(HUB.format(simulator=simulator, closed=closed, rules=listed, hub=hub))
    for file in prometheus.files(loading.load(settings)):
        (folder / "out" / file.path).parent.mkdir(parents=True, exist_ok=True)
        (folder / "out" / file.path).write_text(file.text)
    simulated = [*WATCHKEEPER, "sim", "run", "--gpus", str(gpus), "--port", simulator.rpartition(":")[2]]
    monitored = [*WATCHKEEPER, "hub", "--config", str(settings), "--port", hub.rpartition(":")[2]]
    scraping = [servers.require("prometheus"), f"--config.file={folder / 'out' / 'prometheus.yml'}"]
    scraping += [f"--storage.tsdb.path={folder / 'tsdb'}", f"--web.listen-address={url.removeprefix('http://')}"]
    with (
        servers.running(simulated, ready_url=f"{simulator}/sd", log=folder / "simulator.log"),
        servers.running(monitored, ready_url=f"{hub}/-/ready", log=folder / "hub.log"),
        servers.running(scraping, ready_url=f"{url}/-/ready", log=folder / "prometheus.log"),
    ):
        yield RenderedPrometheus(folder / "out", hub, url)
