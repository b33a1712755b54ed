"""The simulated fleet in one object: it advances by whole seconds and answers what machines would say.

server.py puts a clock and HTTP around it; drills and tests use it as it is. The same settings and the
same calls give the same bytes, because every random number comes from the seed and reading draws none.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

from watchkeeper.errors import CollectError
from watchkeeper.model import fleet as fleet_model
from watchkeeper.sim import effects, fleet, scenario
from watchkeeper.sim.cluster import SimCluster
from watchkeeper.sim.exporter import FAULT_HEAD, DcgmExporter
from watchkeeper.sim.faults import FaultInjector, SimFault, SimMachines
from watchkeeper.sim.host import Hosts
from watchkeeper.sim.jobs import SimJobs
from watchkeeper.sim.kernel_log import SimKernelLog, SimKernelRecord
from watchkeeper.sim.kubernetes import KubeStatePage
from watchkeeper.sim.physics import Physics
from watchkeeper.sim.readings import DcgmReadings
from watchkeeper.sim.workloads import STEP_SECONDS, Workloads

# A Monday morning: serving wakes up. Used when nobody says when the simulation begins.
DEFAULT_EPOCH_SECONDS = datetime(2026, 1, 5, 9, 0, tzinfo=UTC).timestamp()
# Three thermal time constants, so that the first page shows a fleet that has been working.
WARM_UP_SECONDS = 180


@dataclass(frozen=True, slots=True)
class SimSettings:
    """`epoch_seconds` None means: now for a server, a fixed Monday for a simulation by itself."""

    gpus: int = 512
    seed: int = 1
    host: str = "127.0.0.1"
    port: int = 9481
    speed: float = 1.0
    epoch_seconds: float | None = None
    scenarios: tuple[str, ...] = ()
    scenarios_after_seconds: int = 0
    cluster: str = "sim"


class Simulation:
    """A fleet at one moment, `second` (since 1970)."""

    def __init__(self, settings: SimSettings) -> None:
        self.settings = settings
        epoch = DEFAULT_EPOCH_SECONDS if settings.epoch_seconds is None else settings.epoch_seconds
        self.second = int(epoch) - WARM_UP_SECONDS
        seed = settings.seed
        self.layout = fleet.build(gpus=settings.gpus, seed=seed)
        self.scenarios = scenario.load_all()
        # One stream per subject: a fault more must not change what the jobs do. Boot ids differ from run to run,
        # because the product takes an event of the same boot and number for the same event.
        jobs = SimJobs(self.layout, random.Random(f"{seed}/jobs"))
        physics = Physics(self.layout, np.random.default_rng(seed % 2**64))
        exporter = DcgmExporter(self.layout, DcgmReadings(self.layout, physics), jobs)
        kernel = SimKernelLog(self.layout, random.Random(f"{seed}/{epoch}/kernel"), self.now)
        self.machines = SimMachines(self.layout, jobs, physics, exporter, kernel)
        self.faults = FaultInjector(self.machines, random.Random(f"{seed}/faults"))
        self.cluster = SimCluster(self.machines, self.faults)
        self.hosts = Hosts(self.layout, physics, self.second)
        self.kubernetes = KubeStatePage(self.layout, jobs)
        self.workloads = Workloads(jobs, physics, random.Random(f"{seed}/workloads"))
        self._planned: tuple[str, ...] = ()
        self._planned_at = 0
        jobs.fill(self.second)
        self.advance(WARM_UP_SECONDS)
        # The warm-up is before anybody looked; a boot dated there would not end a fault of three minutes ago.
        kernel.start(self.now)
        self._planned, self._planned_at = settings.scenarios, self.second + settings.scenarios_after_seconds
        self._start_planned()

    @property
    def now(self) -> datetime:
        return datetime.fromtimestamp(self.second, UTC)

    def advance(self, seconds: int) -> None:
        for _ in range(seconds):
            self._step()

    def _step(self) -> None:
        self.second += 1
        self.cluster.step(self.second)
        self._start_planned()
        self.faults.step(self.second)
        jobs, physics = self.machines.jobs, self.machines.physics
        jobs.step(self.second)
        total = self.faults.totals
        wish = jobs.activity(self.second) * total.load
        wish[:3] *= jobs.pace(physics.clock_share)
        physics.step(wish, jobs.is_occupied(), jobs.memory_share, environment=total.environment)
        self.hosts.step(total)
        if self.second % STEP_SECONDS == 0:
            self.workloads.step(total, self.second)
        self.machines.kernel.chatter(self.now, self.cluster.is_up)

    def service_discovery(self, address: str) -> list[dict[str, Any]]:
        """Every page of the fleet as Prometheus http_sd lists them, all at one address."""
        pages = [one for node in self.layout.nodes for one in self._pages_of(node)]
        cluster = {"__meta_watchkeeper_cluster": self.settings.cluster}
        pages += [
            {"__metrics_path__": "/cluster/metrics", "job": "kube-state-metrics", **cluster},
            {"__metrics_path__": "/workloads/metrics", "job": "workloads", **cluster},
        ]
        return [{"targets": [address], "labels": labels} for labels in pages]

    def _pages_of(self, node: fleet.SimNode) -> list[dict[str, str]]:
        about = {
            "__meta_watchkeeper_cluster": self.settings.cluster,
            "__meta_watchkeeper_node": node.name,
            "__meta_watchkeeper_pool": node.pool.name,
            "__meta_watchkeeper_expected_gpus": str(len(node.gpus)),
            "__meta_watchkeeper_domain_rack": node.rack,
            "__meta_watchkeeper_domain_leaf": node.leaf,
        }
        return [
            {"__metrics_path__": f"/nodes/{node.name}/metrics", **about},
            {"__metrics_path__": f"/nodes/{node.name}/host/metrics", "job": "node", **about},
        ]

    def page_at(self, path: str) -> bytes:
        """The page at a path that `service_discovery` names; CollectError while nothing answers there."""
        match path.strip("/").split("/"):
            case ["nodes", node, "metrics"]:
                return self.page(node)
            case ["nodes", node, "host", "metrics"]:
                return self.hosts.page(self._up(node), self.faults.totals, now=self.second)
            case ["cluster", "metrics"]:
                up = {node.row for node in self.layout.nodes if self._is_up(node)}
                return self.kubernetes.page(self.faults.totals, up=up, now=self.second)
            case ["workloads", "metrics"]:
                return self.workloads.page(self.faults.totals)
        raise fleet.UnknownName(f"there is no page at {path[:80]}")

    def _start_planned(self) -> None:
        if self._planned and self.second >= self._planned_at:
            planned, self._planned = self._planned, ()
            for name in planned:
                self.inject(name)

    def page(self, node: str) -> bytes:
        """One node's exporter page; CollectError while the node or its exporter is down."""
        found, total = self._up(node), self.faults.totals
        exporter, words = total.exporters.get(found.row), total.agent_faults.get(found.row)
        if exporter is effects.ExporterFault.DOWN:
            raise CollectError("nothing answers at the exporter's port", where=node)
        if exporter is effects.ExporterFault.EMPTY:
            return f'{FAULT_HEAD}watchkeeper_gpu_fault{{cause="{words}",Hostname="{node}"}} 1\n'.encode()
        return self.machines.exporter.page(found, self.second, fault=words)

    def inventory(self, node: str) -> dict[str, Any]:
        """What the node's driver lists: the GPUs that it found when it was loaded, a lost one among them."""
        found = self._up(node)
        gpus = [
            {"uuid": gpu.uuid, "index": gpu.index, "pci": gpu.kernel_pci, "model": found.model.name}
            for gpu in found.gpus
            if gpu.row not in self.faults.totals.hidden
        ]
        return {"node": node, "boot": self.machines.kernel.boot_of(node), "gpus": gpus}

    def kernel_records_since(self, seq: int, *, limit: int = 1000) -> list[SimKernelRecord]:
        return self.machines.kernel.since(seq, limit=limit)

    def inject(self, name: str, *, node: str | None = None, gpu: int | None = None) -> SimFault:
        """Start a fault; `node` and `gpu` (its index) are chosen from the seed when they are None."""
        return self.faults.inject(
            scenario.find(self.scenarios, name),
            self.second,
            node=None if node is None else self.layout.node(node),
            gpu=gpu,
            is_up=self.cluster.is_up,
        )

    def end_fault(self, fault_id: str) -> SimFault:
        """A person has repaired it by other means."""
        fault = self.faults.find(fault_id)
        self.faults.end(fault)
        return fault

    def _up(self, node: str) -> fleet.SimNode:
        found = self.layout.node(node)
        if not self._is_up(found):
            raise CollectError("the node is down or rebooting and does not answer", where=node)
        return found

    def _is_up(self, node: fleet.SimNode) -> bool:
        return self.cluster.is_up(node) and node.row not in self.faults.totals.hosts_down

    def fault_place(self, fault: SimFault) -> fleet_model.Place:
        return fault.place(self.settings.cluster)
