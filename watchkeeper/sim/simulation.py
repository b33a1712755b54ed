"""The simulated fleet in one object: it advances by seconds and returns the pages and logs of nodes.

`server` adds a clock and HTTP; drills and tests use it directly. The same settings and calls give the same bytes,
because every random number comes from the seed and reading uses none.
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
from watchkeeper.sim.exporter import DcgmExporter, DcgmReadings, format_agent_fault
from watchkeeper.sim.faults import FaultInjector, SimFault, SimMachines
from watchkeeper.sim.host import SimHosts
from watchkeeper.sim.jobs import SimJobs
from watchkeeper.sim.kernel_log import SimKernelLog, SimKernelRecord
from watchkeeper.sim.kubernetes import KubeStatePage
from watchkeeper.sim.physics import Physics
from watchkeeper.sim.serving import ModelServer
from watchkeeper.sim.workloads import STEP_SECONDS, SimWorkloads

# The default start: a Monday morning, when request rates rise.
DEFAULT_EPOCH_SECONDS = datetime(2026, 1, 5, 9, 0, tzinfo=UTC).timestamp()
# Three thermal time constants, so that the first page shows a fleet under load.
WARM_UP_SECONDS = 180


@dataclass(frozen=True, slots=True)
class SimSettings:
    """Settings of a simulation; `epoch_seconds` None means now for a server, else a fixed Monday."""

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
    def __init__(self, settings: SimSettings) -> None:
        self.settings = settings
        epoch = DEFAULT_EPOCH_SECONDS if settings.epoch_seconds is None else settings.epoch_seconds
        self.second = int(epoch) - WARM_UP_SECONDS
        seed = settings.seed
        self.layout = fleet.build_layout(gpus=settings.gpus, seed=seed)
        self.scenarios = scenario.load_scenarios()
        # Separate random streams: another fault must not change the jobs. Boot ids depend on the start time, because
        # the product takes events with the same boot id and sequence number for the same event.
        jobs = SimJobs(self.layout, random.Random(f"{seed}/jobs"))
        physics = Physics(self.layout, np.random.default_rng(seed % 2**64))
        exporter = DcgmExporter(self.layout, DcgmReadings(self.layout, physics), jobs)
        kernel = SimKernelLog(self.layout, random.Random(f"{seed}/{epoch}/kernel"), self.now)
        self.machines = SimMachines(self.layout, jobs, physics, exporter, kernel)
        self.faults = FaultInjector(self.machines, random.Random(f"{seed}/faults"))
        self.cluster = SimCluster(self.machines, self.faults)
        self.hosts = SimHosts(self.layout, physics, self.second)
        self.kubernetes = KubeStatePage(self.layout, jobs)
        self.workloads = SimWorkloads(jobs, physics, random.Random(f"{seed}/workloads"))
        self._planned_scenarios: tuple[str, ...] = ()
        self._planned_at = 0
        jobs.fill(self.second)
        self.advance(WARM_UP_SECONDS)
        # Boot after the warm-up: a boot before it would not end a fault of three minutes ago.
        kernel.boot_all(self.now)
        self._planned_scenarios, self._planned_at = settings.scenarios, self.second + settings.scenarios_after_seconds
        self._start_planned()

    @property
    def now(self) -> datetime:
        return datetime.fromtimestamp(self.second, UTC)

    def advance(self, seconds: int) -> None:
        for _ in range(seconds):
            self._step()

    def _step(self) -> None:
        self.second += 1
        for node in self.cluster.step(self.second):
            self.hosts.boot(node, self.second)
        self._start_planned()
        self.faults.step(self.second)
        jobs, physics = self.machines.jobs, self.machines.physics
        jobs.step(self.second)
        total = self.faults.totals
        demand = jobs.activity(self.second) * total.load
        demand[:3] *= jobs.gang_speed(physics.clock_share)
        physics.step(demand, jobs.is_occupied(), jobs.memory_share, environment=total.environment)
        self.hosts.step(total)
        if self.second % STEP_SECONDS == 0:
            self.workloads.step(total, self.second)
        self.machines.kernel.write_routine_lines(self.now, self.cluster.is_up)

    def service_discovery(self, address: str) -> list[dict[str, Any]]:
        """All pages as targets in the format of Prometheus http_sd, at one address."""
        targets, cluster = list[dict[str, str]](), {"__meta_watchkeeper_cluster": self.settings.cluster}
        for node in self.layout.nodes:
            labels = {
                **cluster,
                "__meta_watchkeeper_node": node.name,
                "__meta_watchkeeper_pool": node.pool.name,
                "__meta_watchkeeper_expected_gpus": str(len(node.gpus)),
                "__meta_watchkeeper_domain_rack": node.rack,
                "__meta_watchkeeper_domain_leaf": node.leaf,
            }
            targets.append({"__metrics_path__": f"/nodes/{node.name}/metrics", **labels})
            targets.append({"__metrics_path__": f"/nodes/{node.name}/host/metrics", "job": "node", **labels})
        targets.append({"__metrics_path__": "/cluster/metrics", "job": "kube-state-metrics", **cluster})
        targets.append({"__metrics_path__": "/workloads/metrics", "job": "workloads", **cluster})
        for server in self.serving():
            targets.append(
                {"__metrics_path__": f"/serving/{server.job.name}/metrics", **server.target_labels(), **cluster}
            )
        return [{"targets": [address], "labels": labels} for labels in targets]

    def serving(self) -> list[ModelServer]:
        return [server for server in self.workloads.servers.values() if server.ended_at is None]

    def page_at(self, path: str) -> bytes:
        """The page at a path of `service_discovery`; CollectError if its node or exporter is down."""
        match path.strip("/").split("/"):
            case ["nodes", node, "metrics"]:
                return self.node_page(node)
            case ["nodes", node, "host", "metrics"]:
                return self.hosts.page(self._require_up(node), self.faults.totals, now=self.second)
            case ["cluster", "metrics"]:
                up = {node.row for node in self.layout.nodes if self._is_up(node)}
                return self.kubernetes.page(self.faults.totals, up=up, cordoned=self.cluster.cordoned, now=self.second)
            case ["workloads", "metrics"]:
                return self.workloads.page(self.faults.totals)
            case ["serving", model, "metrics"] if model in self.workloads.servers:
                server = self.workloads.servers[model]
                effect = self.faults.totals.serving.get(server.job.number)
                if effect is not None and effect.is_down:
                    raise CollectError("the server does not answer", where=model)
                return server.page()
            case ["serving", model, "metrics"]:
                raise CollectError("the server has ended", where=model)
        raise fleet.UnknownName(f"no page at {path[:80]}")

    def _start_planned(self) -> None:
        if self._planned_scenarios and self.second >= self._planned_at:
            planned, self._planned_scenarios = self._planned_scenarios, ()
            for name in planned:
                self.inject(name)

    def node_page(self, node: str) -> bytes:
        sim_node, total = self._require_up(node), self.faults.totals
        exporter, agent_fault = total.exporters.get(sim_node.row), total.agent_faults.get(sim_node.row)
        if exporter is effects.ExporterFault.DOWN:
            raise CollectError("the exporter does not answer", where=node)
        if exporter is effects.ExporterFault.EMPTY:
            return format_agent_fault(agent_fault, node)
        return self.machines.exporter.page(sim_node, self.second, agent_fault=agent_fault)

    def inventory(self, node: str) -> dict[str, Any]:
        """The GPUs that the driver of a node lists, including lost ones."""
        sim_node = self._require_up(node)
        gpus = [
            {"uuid": gpu.uuid, "index": gpu.index, "pci": gpu.kernel_pci, "model": sim_node.model.name}
            for gpu in sim_node.gpus
            if gpu.row not in self.faults.totals.hidden
        ]
        return {"node": node, "boot": self.machines.kernel.boot_of(node), "gpus": gpus}

    def kernel_records_since(self, seq: int, *, limit: int = 1000) -> list[SimKernelRecord]:
        return self.machines.kernel.records_since(seq, limit=limit)

    def inject(self, name: str, *, node: str | None = None, gpu: int | None = None) -> SimFault:
        """Start a fault; without `node` and `gpu` (an index), the seed selects them."""
        return self.faults.inject(
            scenario.find_scenario(self.scenarios, name),
            self.second,
            node=None if node is None else self.layout.node(node),
            gpu=gpu,
            is_up=self.cluster.is_up,
        )

    def end_fault(self, fault_id: str) -> SimFault:
        """End a fault as if a person had repaired it."""
        fault = self.faults.find(fault_id)
        self.faults.end(fault)
        return fault

    def _require_up(self, node: str) -> fleet.SimNode:
        sim_node = self.layout.node(node)
        if not self._is_up(sim_node):
            raise CollectError("the node is down or rebooting", where=node)
        return sim_node

    def _is_up(self, node: fleet.SimNode) -> bool:
        return self.cluster.is_up(node) and node.row not in self.faults.totals.hosts_down

    def fault_place(self, fault: SimFault) -> fleet_model.Place:
        return fault.place(self.settings.cluster)
