"""The cluster that can be cordoned, drained, rebooted and reset, like Kubernetes or Slurm would allow.

Every call is idempotent and answers what it did. A cordon carries the mark of whoever set it, and only
that mark takes it off again. server.py puts HTTP in front; drills call it directly.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from watchkeeper.errors import ActionRefused
from watchkeeper.sim.faults import FaultInjector, SimMachines
from watchkeeper.sim.fleet import SimGpu, SimNode
from watchkeeper.sim.scenario import FaultRepair

REBOOT_SECONDS = 90
# Marks of reboots and resets that were carried out; a retried call finds its own here.
REMEMBERED_MARKS = 10_000


class SimNodeState(StrEnum):
    READY = "ready"
    REBOOTING = "rebooting"


@dataclass(frozen=True, slots=True)
class SimNodeView:
    """What the cluster says about a node."""

    name: str
    exists: bool
    schedulable: bool
    cordoned_by: str | None
    workloads: tuple[str, ...]
    state: SimNodeState


@dataclass(frozen=True, slots=True)
class ActionOutcome:
    """What a call did; `result` is `done` or `already_so`."""

    result: str
    text: str
    node: SimNodeView


class SimCluster:
    """Cordons and reboots of all nodes."""

    def __init__(self, machines: SimMachines, faults: FaultInjector) -> None:
        self.machines = machines
        self.faults = faults
        self._cordons: dict[str, str] = {}
        self._down_until: dict[str, int] = {}
        self._marks: deque[tuple[str, str]] = deque(maxlen=REMEMBERED_MARKS)

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

    def cordon(self, node: SimNode, by: str) -> ActionOutcome:
        owner = self._cordons.get(node.name)
        if owner is not None:
            return self._already(node, f"{node.name} is cordoned by {owner}")
        self._cordons[node.name] = by
        self._update(node)
        return self._done(node, f"cordoned {node.name}")

    def uncordon(self, node: SimNode, by: str) -> ActionOutcome:
        owner = self._cordons.get(node.name)
        if owner is None:
            return self._already(node, f"{node.name} is not cordoned")
        if owner != by:
            raise ActionRefused(
                f"the cordon belongs to {owner}, not to {by}",
                where=node.name,
                now="The node stays cordoned",
                remedy="Only the mark that set a cordon may take it off",
            )
        del self._cordons[node.name]
        self._update(node)
        return self._done(node, f"uncordoned {node.name}")

    def drain(self, node: SimNode, by: str) -> ActionOutcome:
        """Cordon the node if nobody has, and move its workloads elsewhere."""
        was_cordoned = node.name in self._cordons
        self._cordons.setdefault(node.name, by)
        self._update(node)
        jobs = self.machines.jobs.jobs_on_node(node)
        names = [job.workload(node.row) for job in jobs]
        for job in jobs:
            self.machines.jobs.evict(job)
        self.faults.repair(FaultRepair.DRAIN, node)
        if was_cordoned and not names:
            return self._already(node, f"{node.name} is drained")
        return self._done(node, f"drained {node.name}: moved {', '.join(names) or 'nothing'}")

    def reboot(self, node: SimNode, by: str, *, now: int) -> ActionOutcome:
        if not self.is_up(node):
            return self._already(node, f"{node.name} is rebooting")
        if not self._is_first(f"reboot {node.name}", by):
            return self._already(node, f"{node.name} was rebooted for {by}")
        self._down_until[node.name] = now + REBOOT_SECONDS
        self._update(node)
        for job in self.machines.jobs.jobs_on_node(node):
            self.machines.jobs.evict(job)
        return self._done(node, f"rebooting {node.name}")

    def reset_gpu(self, node: SimNode, gpu: SimGpu, by: str) -> ActionOutcome:
        """Reset one GPU, under the same conditions as `nvidia-smi --gpu-reset`: reachable and unused."""
        self._refuse_reset(node, gpu)
        if not self._is_first(f"reset {gpu.uuid}", by):
            return self._already(node, f"{gpu.uuid} was reset for {by}")
        self.machines.physics.reload_driver([gpu.row])
        self.faults.repair(FaultRepair.RESET_GPU, node, gpu=gpu)
        return self._done(node, f"reset {gpu.uuid} on {node.name}")

    def warn_holder(self, node: SimNode, gpu: SimGpu, by: str) -> ActionOutcome:
        """Tell whoever holds the GPU that it will be taken back; once for each mark."""
        job = self.machines.jobs.job_on_gpu(gpu.row)
        if job is None:
            return self._already(node, f"nobody holds {gpu.uuid}")
        said = f"the owner of {job.workload(node.row)}"
        if not self._is_first(f"warn {gpu.uuid}", by):
            return self._already(node, f"told {said} before")
        return self._done(node, f"told {said}")

    def reclaim(self, node: SimNode, gpu: SimGpu) -> ActionOutcome:
        """End what holds the GPU; its owner starts it again."""
        job = self.machines.jobs.job_on_gpu(gpu.row)
        if job is None:
            return self._already(node, f"nobody holds {gpu.uuid}")
        name = job.workload(node.row)
        self.faults.repair(FaultRepair.RESTART_APP, node, gpu=gpu)
        if self.machines.jobs.job_on_gpu(gpu.row) is job:
            self.machines.jobs.end(job)
        return self._done(node, f"scaled {name} down")

    def step(self, now: int) -> None:
        """Bring up what has been down for long enough: a new kernel, fresh counters, cured faults."""
        for name, until in list(self._down_until.items()):
            if until <= now:
                del self._down_until[name]
                node = self.machines.layout.node(name)
                self.machines.physics.reload_driver(node.rows)
                self.machines.exporter.last_xid[node.rows] = 0
                self.machines.exporter.forget_labels(node.row)
                self.machines.kernel.reboot(node, datetime.fromtimestamp(now, UTC))
                self.faults.repair(FaultRepair.REBOOT, node)
                self._update(node)

    def _refuse_reset(self, node: SimNode, gpu: SimGpu) -> None:
        if not self.is_up(node):
            raise ActionRefused("the node is rebooting", where=node.name, remedy="Try again when it is ready")
        if not self.machines.exporter.is_present[gpu.row]:
            raise ActionRefused(
                f"{gpu.uuid} does not answer on the bus, so a reset cannot reach it",
                where=node.name,
                remedy="Reboot the node",
            )
        job = self.machines.jobs.job_on_gpu(gpu.row)
        if job is not None:
            raise ActionRefused(
                f"{gpu.uuid} is in use by {job.workload(node.row)}", where=node.name, remedy="Drain the node first"
            )

    def _is_first(self, what: str, by: str) -> bool:
        if (what, by) in self._marks:
            return False
        self._marks.append((what, by))
        return True

    def _update(self, node: SimNode) -> None:
        self.machines.jobs.is_schedulable[node.row] = node.name not in self._cordons and self.is_up(node)

    def _done(self, node: SimNode, text: str) -> ActionOutcome:
        return ActionOutcome("done", text, self.view(node))

    def _already(self, node: SimNode, text: str) -> ActionOutcome:
        return ActionOutcome("already_so", text, self.view(node))
