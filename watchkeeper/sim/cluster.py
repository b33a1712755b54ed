"""A simulated cluster: cordon, uncordon, drain and reboot nodes, and reset GPUs, as with Kubernetes or Slurm.

Every call is idempotent and returns what it did. A cordon stores the mark of its caller, and only the same mark can
uncordon the node. `server` provides these calls over HTTP; drills call them directly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from watchkeeper.errors import ActionRefused
from watchkeeper.sim.faults import FaultInjector, SimMachines
from watchkeeper.sim.fleet import SimGpu, SimNode
from watchkeeper.sim.scenario import FaultRepair

REBOOT_SECONDS = 90
# Of the default power limit; an H100 allows 200 of 700 W.
MIN_LIMIT_PERCENT = 30.0
# Marks of completed reboots and resets, by which retried calls are recognised.
MAX_MARKS = 10_000


class SimNodeState(StrEnum):
    READY = "ready"
    REBOOTING = "rebooting"


@dataclass(frozen=True, slots=True)
class SimNodeView:
    name: str
    exists: bool
    schedulable: bool
    cordoned_by: str | None
    workloads: tuple[str, ...]
    state: SimNodeState


@dataclass(frozen=True, slots=True)
class ActionOutcome:
    """The result of a call: `done` or `already_so`."""

    result: str
    text: str
    node: SimNodeView


class SimCluster:
    def __init__(self, machines: SimMachines, faults: FaultInjector) -> None:
        self.machines = machines
        self.faults = faults
        self._cordons: dict[str, str] = {}
        # Rises whenever the state of a node may have changed.
        self.revision = 0
        self._down_until: dict[str, int] = {}
        self._marks: deque[tuple[str, str]] = deque(maxlen=MAX_MARKS)

    @property
    def cordoned(self) -> set[str]:
        return set(self._cordons)

    def is_up(self, node: SimNode) -> bool:
        return node.name not in self._down_until

    def view(self, node: SimNode) -> SimNodeView:
        return SimNodeView(
            name=node.name,
            exists=True,
            schedulable=bool(self.machines.jobs.is_schedulable[node.row]),
            cordoned_by=self._cordons.get(node.name),
            workloads=tuple(job.workload(node.row) for job in self.machines.jobs.jobs_on_node(node)),
            state=SimNodeState.READY if self.is_up(node) else SimNodeState.REBOOTING,
        )

    def list_nodes(self, nodes: Iterable[SimNode]) -> list[dict[str, str | None]]:
        return [
            {
                "name": node.name,
                "scheduler": node.pool.scheduler,
                "cordoned_by": self._cordons.get(node.name),
                "state": SimNodeState.READY if self.is_up(node) else SimNodeState.REBOOTING,
            }
            for node in nodes
        ]

    def cordon(self, node: SimNode, by: str) -> ActionOutcome:
        owner = self._cordons.get(node.name)
        if owner is not None:
            return self._unchanged(node, f"{node.name} is cordoned by {owner}")
        self._cordons[node.name] = by
        self._update_schedulable(node)
        return self._done(node, f"cordoned {node.name}")

    def uncordon(self, node: SimNode, by: str) -> ActionOutcome:
        owner = self._cordons.get(node.name)
        if owner is None:
            return self._unchanged(node, f"{node.name} is not cordoned")
        if owner != by:
            raise ActionRefused(
                f"the cordon belongs to {owner}, not to {by}",
                where=node.name,
                now="The node stays cordoned",
                remedy="Uncordon with the mark that set the cordon",
            )
        del self._cordons[node.name]
        self._update_schedulable(node)
        return self._done(node, f"uncordoned {node.name}")

    def drain(self, node: SimNode, by: str) -> ActionOutcome:
        """Cordon the node if it is not cordoned, and move its workloads elsewhere."""
        was_cordoned = node.name in self._cordons
        self._cordons.setdefault(node.name, by)
        self._update_schedulable(node)
        jobs = self.machines.jobs.jobs_on_node(node)
        names = [job.workload(node.row) for job in jobs]
        for job in jobs:
            self.machines.jobs.evict(job)
        self.faults.repair(FaultRepair.DRAIN, node)
        if was_cordoned and not names:
            return self._unchanged(node, f"{node.name} is drained")
        return self._done(node, f"drained {node.name}: moved {', '.join(names) or 'nothing'}")

    def reboot(self, node: SimNode, by: str, *, now: int) -> ActionOutcome:
        if not self.is_up(node):
            return self._unchanged(node, f"{node.name} is rebooting")
        if not self._is_new_mark(f"reboot {node.name}", by):
            return self._unchanged(node, f"{node.name} was rebooted for {by}")
        self._down_until[node.name] = now + REBOOT_SECONDS
        self._update_schedulable(node)
        for job in self.machines.jobs.jobs_on_node(node):
            self.machines.jobs.evict(job)
        return self._done(node, f"rebooting {node.name}")

    def reset_gpu(self, node: SimNode, gpu: SimGpu, by: str) -> ActionOutcome:
        """Reset one GPU, under the same conditions as `nvidia-smi --gpu-reset`: reachable and unused."""
        if not self.is_up(node):
            raise ActionRefused("the node is rebooting", where=node.name, remedy="Try again when it is ready")
        if not self.machines.exporter.is_present[gpu.row]:
            problem = f"{gpu.uuid} is not on the PCIe bus and cannot be reset"
            raise ActionRefused(problem, where=node.name, remedy="Reboot the node")
        job = self.machines.jobs.job_on_gpu(gpu.row)
        if job is not None:
            problem = f"{gpu.uuid} is in use by {job.workload(node.row)}"
            raise ActionRefused(problem, where=node.name, remedy="Drain the node first")
        if not self._is_new_mark(f"reset {gpu.uuid}", by):
            return self._unchanged(node, f"{gpu.uuid} was reset for {by}")
        self.machines.physics.reload_driver([gpu.row])
        self.faults.repair(FaultRepair.RESET_GPU, node, gpu=gpu)
        return self._done(node, f"reset {gpu.uuid} on {node.name}")

    def lower_power(self, node: SimNode, gpu: SimGpu | None, percent: float) -> ActionOutcome:
        """Set the power limit of one GPU or of all, in percent of the default one; 100 restores it."""
        if not MIN_LIMIT_PERCENT <= percent <= 100:
            problem = f"{percent:g} % of the power limit, the boards allow {MIN_LIMIT_PERCENT:g} to 100 %"
            raise ActionRefused(problem, where=node.name)
        if not self.is_up(node):
            raise ActionRefused("the node is rebooting", where=node.name, remedy="Try again when it is ready")
        rows = node.rows if gpu is None else slice(gpu.row, gpu.row + 1)
        limits, subject = self.machines.physics.power_limit, node.name if gpu is None else gpu.uuid
        if (limits[rows] == percent / 100).all():
            return self._unchanged(node, f"{subject} has {percent:g} % of its power limit already")
        limits[rows] = percent / 100
        return self._done(node, f"{subject} has {percent:g} % of its power limit")

    def warn_holder(self, node: SimNode, gpu: SimGpu, by: str) -> ActionOutcome:
        """Notify the owner of the workload that holds the GPU, once for each mark."""
        job = self.machines.jobs.job_on_gpu(gpu.row)
        if job is None:
            return self._unchanged(node, f"{gpu.uuid} is not in use")
        owner = f"the owner of {job.workload(node.row)}"
        if not self._is_new_mark(f"warn {gpu.uuid}", by):
            return self._unchanged(node, f"{owner} was already notified")
        return self._done(node, f"notified {owner}")

    def reclaim(self, node: SimNode, gpu: SimGpu) -> ActionOutcome:
        job = self.machines.jobs.job_on_gpu(gpu.row)
        if job is None:
            return self._unchanged(node, f"{gpu.uuid} is not in use")
        name = job.workload(node.row)
        self.faults.repair(FaultRepair.RESTART_APP, node, gpu=gpu)
        if self.machines.jobs.job_on_gpu(gpu.row) is job:
            self.machines.jobs.end(job)
        return self._done(node, f"scaled {name} down")

    def step(self, now: int) -> list[SimNode]:
        """Finish the reboots that are due: a new kernel, reset counters, and faults that a reboot repairs end.

        Return the nodes that booted.
        """
        booted = []
        for name, until in list(self._down_until.items()):
            if until <= now:
                del self._down_until[name]
                node = self.machines.layout.node(name)
                self.machines.physics.reload_driver(node.rows)
                self.machines.exporter.last_xid[node.rows] = 0
                self.machines.exporter.invalidate_labels(node.row)
                self.machines.kernel.reboot(node, datetime.fromtimestamp(now, UTC))
                self.faults.repair(FaultRepair.REBOOT, node)
                self._update_schedulable(node)
                booted.append(node)
        return booted

    def _is_new_mark(self, action: str, by: str) -> bool:
        if (action, by) in self._marks:
            return False
        self._marks.append((action, by))
        return True

    def _update_schedulable(self, node: SimNode) -> None:
        self.revision += 1
        self.machines.jobs.is_schedulable[node.row] = node.name not in self._cordons and self.is_up(node)

    def _done(self, node: SimNode, text: str) -> ActionOutcome:
        return ActionOutcome("done", text, self.view(node))

    def _unchanged(self, node: SimNode, text: str) -> ActionOutcome:
        return ActionOutcome("already_so", text, self.view(node))
