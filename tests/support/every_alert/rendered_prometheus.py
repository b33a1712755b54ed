"""A fleet in trouble and a real Prometheus with the files that `render prometheus` writes.

The fleet is a simulator, two nodes with agents, a simulated InfiniBand fabric, a Slurm cluster and a hub over all of
them. They are healthy until `break_down`.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import resource
import shutil
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen
from typing import Any

import yaml

from tests import servers
from tests.support.clusters import ibsim, slurm_cluster
from tests.support.every_alert import sick_nodes
from tests.support.every_alert.simulated_history import notation
from tests.support.running_product import WATCHKEEPER, await_that
from watchkeeper.config import loading
from watchkeeper.drill.monitored_fleet import SHIPPED_RULES
from watchkeeper.kit import files
from watchkeeper.render import operator, prometheus

# Routes and a rule file that can be broken while the hub runs.
HUB = """
[hub]
data = "data"
[fleet]
cluster = "sim"
scrape_interval = "2s"
scrape_timeout = "2s"
sd_urls = ["{simulator}/sd"]
sd_files = ["{folder}/agents.json"]
slurm = true
slurm_interval = "1s"
slurm_agent_port = 0
[fabric]
sweep = true
interval = "2s"
[rules]
files = [{rules}]
[notify]
via = "receivers"
routes = "notify.toml"
[render]
hub_url = "{hub}"
"""
ROUTES = '[[receivers]]\nname = "oncall"\nwebhook = "http://127.0.0.1:{closed}"\n[[routes]]\nreceivers = ["oncall"]\n'
SCRAPE_SECONDS = 2
# The links of the fabric that break: one counts errors, and one is dark until it trains with a lane of four.
PLAN = ibsim.Plan(slow_host=ibsim.Plan().host_id(2, 1))
ERRORS_LINK, SLOW_LINK = (f'"{PLAN.leaf_id(0, 0)}"[2]', f'"{PLAN.leaf_id(0, 1)}"[3]')
DOWN_NODE = "n2"
HEALTHY = (
    'watchkeeper_scheduler_up{source="slurm"} == 1',
    "watchkeeper_fabric_port_errors_total",
    "DCGM_FI_DEV_RETIRED_PENDING == 0",
    'watchkeeper_pcie_aer_errors_total{severity="fatal"} == 0',
    "watchkeeper_agent_kernel_log_readable == 1",
    "watchkeeper_host_next_boot_has_driver == 1",
    "watchkeeper_hub_loop_failures_total",
)
TROUBLE = (
    "watchkeeper_rules_last_reload_successful == 0",
    "watchkeeper_notify_routes_broken == 1",
    f'watchkeeper_scheduler_node_state{{Hostname="{DOWN_NODE}",state=~"down.*"}}',
    'watchkeeper_fabric_port_errors_total{counter="SymbolErrorCounter"} > 1000',
    'watchkeeper_fabric_port_errors_total{counter="VL15Dropped"} > 1000',
    # For as many scrapes as its alert holds: a hub with a full disk has no fabric.
    f"count_over_time((watchkeeper_fabric_port_slow == 1)[2m:{SCRAPE_SECONDS}s]) > 12",
    "DCGM_FI_DEV_RETIRED_PENDING == 1",
    'watchkeeper_pcie_aer_errors_total{severity="fatal"} > 0',
    "watchkeeper_infiniband_read_stalled == 1",
    "watchkeeper_diag_result == 2",
    "watchkeeper_agent_events_lost_total > 0",
    "watchkeeper_agent_kernel_log_readable == 0",
    "watchkeeper_host_next_boot_has_driver == 0",
    f'watchkeeper_gpu_fault{{cause="driver_not_loaded",Hostname="{sick_nodes.BARE}"}}',
)
MORE_DROPS = 'watchkeeper_fabric_port_errors_total{counter="VL15Dropped"} > 4000'
UNREACHABLE = 'watchkeeper_scheduler_up{source="slurm"} == 0'
FULL_DISK = (
    "watchkeeper_store_damages > 0",
    'watchkeeper_hub_loop_failures_total{loop="samples"} > 10',
)


@dataclass(frozen=True, slots=True)
class RenderedPrometheus:
    """`folder` has the rendered files; `hub` and `url` are addresses."""

    folder: Path
    hub: str
    url: str
    hub_server: Popen[bytes]
    nodes: sick_nodes.SickNodes
    fabric: ibsim.Fabric
    slurm: slurm_cluster.Cluster

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

    def await_all(self, *exprs: str) -> None:
        for expr in exprs:
            await_that(functools.partial(self.query, expr), what=expr)

    def break_down(self) -> tuple[float, float]:
        """Break everything that can break; the times at which all was healthy and at which all is broken."""
        self.await_all(*HEALTHY)
        healthy_at = time.time()
        for name in ("rules/capacity.yaml", "notify.toml"):
            # The hub refuses them; it reads changed files by itself.
            (self.folder.parent / name).write_text("not: [valid\n")
        for counter in ("SymbolErrorCounter", "VL15Dropped"):
            self.fabric.say(f"PerformanceSet {ERRORS_LINK} PortCounters.{counter}=1234")
        self.fabric.say(f"ReLink {SLOW_LINK}")
        self.slurm.ask("scontrol", "update", f"nodename={DOWN_NODE}", "state=down", "reason=test")
        self.nodes.break_down()
        self.await_all(*TROUBLE)
        # ibqueryerrors does not list a counter that is 0, so its first value is no growth.
        self.fabric.say(f"PerformanceSet {ERRORS_LINK} PortCounters.VL15Dropped=4321")
        self.await_all(MORE_DROPS)
        # No command of Slurm starts with it; without slurmctld each would wait for half a minute.
        (self.slurm.folder / "slurm.conf").write_text("broken\n")
        self.await_all(UNREACHABLE)
        # As on a full disk: no file takes more bytes.
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.prlimit(self.hub_server.pid, resource.RLIMIT_FSIZE, (0, most))
        self.await_all(*FULL_DISK)
        return healthy_at, time.time()

    def series(self, selector: str, since: float, until: float) -> Iterator[tuple[Mapping[str, str], str]]:
        """Each series in promtool's notation: one value for each scrape."""
        times = [since + SCRAPE_SECONDS * at for at in range(int((until - since) / SCRAPE_SECONDS) + 1)]
        asked = {"query": selector, "start": f"{times[0]:.3f}", "end": f"{times[-1]:.3f}", "step": str(SCRAPE_SECONDS)}
        for series in self.get("query_range", **asked)["result"]:
            values = {round((at - since) / SCRAPE_SECONDS): float(value) for at, value in series["values"]}
            steps = range(len(times))
            yield series["metric"], notation([values.get(at, 0.0) for at in steps], [at in values for at in steps])


@contextlib.contextmanager
def running(folder: Path, *, gpus: int, library: Path) -> Iterator[RenderedPrometheus]:
    """All of it, until the block ends; `library` is the fake NVML."""
    simulator, hub, url = (f"http://127.0.0.1:{servers.free_port()}" for _ in range(3))
    settings = _write_settings(folder, simulator=simulator, hub=hub)
    for name in ("fabric", "slurm", "programs"):
        (folder / name).mkdir()
    # What the disk has left of the hub's last run.
    directory = files.DataDirectory(folder / "data")
    directory.claim()
    directory.release()
    (folder / "data/samples/wal").mkdir(parents=True)
    (folder / "data/samples/wal/0000000001.wal").write_bytes(b"\xff" * 4096)
    simulated = [*WATCHKEEPER, "sim", "run", "--gpus", str(gpus), "--port", simulator.rpartition(":")[2]]
    monitored = [*WATCHKEEPER, "hub", "--config", str(settings), "--port", hub.rpartition(":")[2]]
    scraping = [servers.require("prometheus"), f"--config.file={folder / 'out' / 'prometheus.yml'}"]
    scraping += [f"--storage.tsdb.path={folder / 'tsdb'}", f"--web.listen-address={url.removeprefix('http://')}"]
    with contextlib.ExitStack() as started:
        fabric = started.enter_context(ibsim.running(PLAN, folder / "fabric"))
        fabric.say(f"Unlink {SLOW_LINK}")
        slurm = started.enter_context(slurm_cluster.running(folder / "slurm"))
        nodes = started.enter_context(
            sick_nodes.running(folder, library=library, hub=hub, counters=folder / "counters.csv")
        )

        def start(command: list[Any], address: str, path: str, environment: Mapping[str, str]) -> Popen[bytes]:
            log = folder / f"{path.strip('/-')}-{address.rpartition(':')[2]}.log"
            server = servers.running(command, ready_url=f"{address}{path}", log=log, environment=environment)
            return started.enter_context(server)

        start(simulated, simulator, "/sd", os.environ)
        sweeping = {**slurm.environment, "PATH": fabric.programs(folder / "programs")}
        hub_server = start(monitored, hub, "/-/ready", sweeping)
        start(scraping, url, "/-/ready", os.environ)
        yield RenderedPrometheus(folder / "out", hub, url, hub_server, nodes, fabric, slurm)


def _write_settings(folder: Path, *, simulator: str, hub: str) -> Path:
    """The hub's settings, its rules and routes, and what is rendered from them."""
    rules = sorted(Path(path).name for path in shutil.copytree(SHIPPED_RULES, folder / "rules").glob("*.yaml"))
    (folder / "notify.toml").write_text(ROUTES.format(closed=servers.free_port()))
    listed = ", ".join(f'"rules/{name}"' for name in rules)
    path = folder / "hub.toml"
    path.write_text(HUB.format(simulator=simulator, folder=folder, rules=listed, hub=hub))
    settings = loading.load(path)
    for file in prometheus.files(settings):
        (folder / "out" / file.path).parent.mkdir(parents=True, exist_ok=True)
        (folder / "out" / file.path).write_text(file.text)
    [fields] = [file for file in operator.files(settings) if file.path.endswith("dcgm-metrics.yaml")]
    (folder / "counters.csv").write_text(yaml.safe_load(fields.text)["data"]["dcgm-metrics.csv"])
    return path
