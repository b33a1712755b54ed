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
from watchkeeper.sim import fleet, scenario
from watchkeeper.sim.cluster import Cluster
from watchkeeper.sim.exporter import Exporter
from watchkeeper.sim.faults import Fault, Faults, Machines
from watchkeeper.sim.jobs import Jobs
from watchkeeper.sim.kernel_log import KernelLog, Record
from watchkeeper.sim.physics import Physics
from watchkeeper.sim.readings import Readings

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
        jobs = Jobs(self.layout, random.Random(f"{seed}/jobs"))
        physics = Physics(self.layout, np.random.default_rng(seed % 2**64))
        exporter = Exporter(self.layout, Readings(self.layout, physics), jobs)
        kernel = KernelLog(self.layout, random.Random(f"{seed}/{epoch}/kernel"), self.now)
        self.machines = Machines(self.layout, jobs, physics, exporter, kernel)
        self.faults = Faults(self.machines, random.Random(f"{seed}/faults"))
        self.cluster = Cluster(self.machines, self.faults)
        jobs.fill(self.second)
        self.advance(WARM_UP_SECONDS)
        for name in settings.scenarios:
            self.inject(name, in_seconds=settings.scenarios_after_seconds)

    @property
    def now(self) -> datetime:
        return datetime.fromtimestamp(self.second, UTC)

    def advance(self, seconds: int) -> None:
        for _ in range(seconds):
            self._step()

    def _step(self) -> None:
        self.second += 1
        self.cluster.step(self.second)
        self.faults.step(self.second)
        jobs, physics = self.machines.jobs, self.machines.physics
        jobs.step(self.second)
        wish = jobs.activity(self.second) * self.faults.load
        wish[:3] *= jobs.pace(physics.clock_share)
        physics.step(wish, jobs.is_occupied(), jobs.memory_share, around=self.faults.around)
        self.machines.kernel.chatter(self.now, self.cluster.is_up)

    def page(self, node: str) -> bytes:
        """One node's exporter page; CollectError while the node is down."""
        return self.machines.exporter.page(self._up(node), self.second)

    def inventory(self, node: str) -> dict[str, Any]:
        """What the node's driver lists now; a lost GPU is not in it."""
        found = self._up(node)
        gpus = [
            {"uuid": gpu.uuid, "index": gpu.index, "pci": gpu.kernel_pci, "model": found.model.name}
            for gpu in found.gpus
            if self.machines.exporter.is_present[gpu.row]
        ]
        return {"node": node, "boot": self.machines.kernel.boot_of(node), "gpus": gpus}

    def kernel_records_since(self, seq: int, *, limit: int = 1000) -> list[Record]:
        return self.machines.kernel.since(seq, limit=limit)

    def inject(self, name: str, *, node: str | None = None, gpu: int | None = None, in_seconds: int = 0) -> Fault:
        """Start a fault; `node` and `gpu` (its index) are chosen from the seed when they are None."""
        return self.faults.inject(
            scenario.find(self.scenarios, name),
            self.second + in_seconds,
            node=None if node is None else self.layout.node(node),
            gpu=gpu,
            is_up=self.cluster.is_up,
        )

    def end_fault(self, fault_id: str) -> Fault:
        """A person has repaired it by other means."""
        fault = self.faults.find(fault_id)
        self.faults.end(fault)
        return fault

    def _up(self, node: str) -> fleet.SimNode:
        found = self.layout.node(node)
        if not self.cluster.is_up(found):
            raise CollectError("the node is rebooting and its exporter does not answer", where=node)
        return found
