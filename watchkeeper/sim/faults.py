"""Inject faults: choose the place, apply kernel lines and effects over time, and end the fault.

Effects are never undone individually: their sum is computed again from the faults that are still active, so that a
repaired fault leaves only its counters.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice

import numpy as np

from watchkeeper.errors import SettingsError
from watchkeeper.kit import durations
from watchkeeper.model import fleet as fleet_model
from watchkeeper.sim.effects import ActiveEffect, Effect, EffectScope, Rows, sum_effects
from watchkeeper.sim.exporter import FABRIC_COMPLETED, FABRIC_NOT_STARTED, DcgmExporter
from watchkeeper.sim.fleet import FleetLayout, SimGpu, SimNode, UnknownName
from watchkeeper.sim.jobs import RESERVATION, SILENT_TRAINING, TEMPLATES, JobTemplate, SimJob, SimJobKind, SimJobs
from watchkeeper.sim.kernel_log import WARNING, SimKernelLog
from watchkeeper.sim.physics import Physics
from watchkeeper.sim.scenario import FaultRepair, FaultTarget, KernelLine, RequiredWork, Scenario

# The owner of pods and quotas that a fault creates.
OWNER = "vision"
JOB_TARGETS = (FaultTarget.JOB, FaultTarget.SERVICE)
MAX_ACTIVE_FAULTS = 1000
# The number of nodes of a wide training job.
WIDE_NODES = 4
# The job of a fault must not end before the fault.
KEEP_JOB_SECONDS = 7 * 86_400


@dataclass(slots=True)
class SimFault:
    """One scenario at one place; `gpu` is None if the fault affects more than one GPU or none."""

    id: str
    scenario: Scenario
    node: SimNode
    gpu: SimGpu | None
    at: int
    until: int | None
    job: SimJob | None = None
    pending: list[tuple[int, Effect | KernelLine]] = field(default_factory=list)
    effects: list[ActiveEffect] = field(default_factory=list)

    @property
    def rows(self) -> Rows:
        if self.scenario.strikes in JOB_TARGETS and self.job is not None:
            return list(self.job.rows)
        return [gpu.row for gpu in self.node.gpus] if self.gpu is None else [self.gpu.row]

    @property
    def pod(self) -> str:
        return f"{self.scenario.name}-{self.id}"

    @property
    def _pod_place(self) -> str:
        """The pod that the fault creates, or the pod on its node of the job that it strikes."""
        if self.job is None or self.scenario.work is None:
            return f"{OWNER}/{self.pod}"
        return f"{self.job.template.namespace}/{self.job.pod_names[self.node.row]}"

    def place(self, cluster: str) -> fleet_model.Place:
        """The place that a correct diagnosis has."""
        strikes = self.scenario.truth.place
        if strikes is FaultTarget.GPU and self.gpu is not None:
            return fleet_model.Place(cluster, node=self.node.name, gpu=self.gpu.uuid)
        names = {
            FaultTarget.RACK: f"rack={self.node.rack}",
            FaultTarget.JOB: f"job={self.job.name if self.job else ''}",
            FaultTarget.SERVICE: f"model={self.job.name if self.job else ''}",
            FaultTarget.POD: f"pod={self._pod_place}",
            FaultTarget.NAMESPACE: f"namespace={OWNER}",
        }
        if strikes in names:
            return fleet_model.Place(cluster, domain=names[strikes])
        return fleet_model.Place(cluster, node=self.node.name)


@dataclass(frozen=True, slots=True)
class SimMachines:
    layout: FleetLayout
    jobs: SimJobs
    physics: Physics
    exporter: DcgmExporter
    kernel: SimKernelLog


class FaultInjector:
    def __init__(self, machines: SimMachines, rng: random.Random) -> None:
        self.machines = machines
        self.active: dict[str, SimFault] = {}
        self._rng = rng
        self._next_id = 1
        self._update_totals()

    def inject(
        self, scenario: Scenario, now: int, *, node: SimNode | None, gpu: int | None, is_up: Callable[[SimNode], bool]
    ) -> SimFault:
        """Plan a fault; without a given place, choose one by the seed."""
        if len(self.active) >= MAX_ACTIVE_FAULTS:
            limit = f"the limit is {MAX_ACTIVE_FAULTS}; end some first"
            raise SettingsError(f"{len(self.active)} faults are active, {limit}")
        if gpu is not None and node is None:
            raise SettingsError(f"gpu {gpu} needs a node")
        node, target_gpu = self._choose_place(scenario, node, gpu, is_up=is_up)
        at = now + _seconds(scenario.after)
        until = None if scenario.lasts is None else at + _seconds(scenario.lasts)
        fault = SimFault(f"f{self._next_id}", scenario, node, target_gpu, at, until)
        entries: list[Effect | KernelLine] = [*scenario.kernel_lines, *scenario.effects]
        fault.pending = sorted(((at + _seconds(entry.after), entry) for entry in entries), key=lambda item: item[0])
        self._next_id += 1
        self.active[fault.id] = fault
        if scenario.work is RequiredWork.MUTE_TRAINING:
            fault.job = self._provide_work(fault, now)
        self.step(now)
        return fault

    def find(self, fault_id: str) -> SimFault:
        try:
            return self.active[fault_id]
        except KeyError:
            active_ids = ", ".join(list(self.active)[:20]) or "none"
            raise UnknownName(f"no active fault `{fault_id[:80]}`", now=f"Active: {active_ids}") from None

    def step(self, now: int) -> None:
        for fault in list(self.active.values()):
            while fault.pending and fault.pending[0][0] <= now:
                if fault.job is None:
                    fault.job = self._provide_work(fault, now)
                _, entry = fault.pending.pop(0)
                if isinstance(entry, KernelLine):
                    self._write_kernel_line(fault, entry, now)
                else:
                    self._apply_effect(fault, entry, now)
            if fault.until is not None and fault.until <= now:
                self.end(fault)

    def end(self, fault: SimFault) -> None:
        """End a fault; a stalled or crashed job at its place restarts."""
        self.active.pop(fault.id, None)
        if fault.gpu is not None and FaultRepair.RESET_GPU in fault.scenario.repaired_by:
            # The repair included a reset, so volatile counters restart.
            self.machines.physics.reload_driver([fault.gpu.row])
        jobs = self.machines.jobs
        if fault.job is not None and fault.job.number in jobs.running:
            rows = list(fault.job.rows)
            jobs.is_stalled[rows] = jobs.is_down[rows] = False
            if fault.scenario.work is RequiredWork.RESERVATION:
                jobs.end(fault.job)
        self._update_totals()

    def repair(self, by: FaultRepair, node: SimNode, *, gpu: SimGpu | None = None) -> list[SimFault]:
        """End the faults at this place that this repair fixes; `gpu` None means the whole node."""
        at_place = [fault for fault in self.active.values() if fault.node is node and gpu in (None, fault.gpu)]
        cured = [fault for fault in at_place if by in fault.scenario.repaired_by]
        for fault in cured:
            self.end(fault)
        return cured

    def _choose_place(
        self, scenario: Scenario, node: SimNode | None, gpu: int | None, *, is_up: Callable[[SimNode], bool]
    ) -> tuple[SimNode, SimGpu | None]:
        if node is None:
            faulty = {fault.node.row for fault in self.active.values()}
            nodes = self.machines.layout.nodes
            in_pools = [node for node in nodes if not scenario.pools or node.pool.name in scenario.pools]
            healthy = [node for node in in_pools if node.row not in faulty and is_up(node)]
            suitable = [node for node in healthy if self._has_required_work(scenario, node)]
            node = self._rng.choice(suitable or healthy or nodes)
        if scenario.strikes is not FaultTarget.GPU:
            if gpu is not None:
                raise SettingsError(f"scenario {scenario.name} affects a whole {scenario.strikes}; omit gpu {gpu}")
            return node, None
        if gpu is None:
            present = [sim_gpu for sim_gpu in node.gpus if self.machines.exporter.is_present[sim_gpu.row]]
            serving = [sim_gpu for sim_gpu in present if self.machines.jobs.kind[sim_gpu.row] == SimJobKind.SERVING]
            candidates = serving if scenario.work is RequiredWork.SERVING and serving else present
            gpu = self._rng.choice([sim_gpu.index for sim_gpu in candidates] or [0])
        if not 0 <= gpu < len(node.gpus):
            raise UnknownName(f"node {node.name} has no GPU {gpu}", now=f"It has GPUs 0 to {len(node.gpus) - 1}")
        return node, node.gpus[gpu]

    def _has_required_work(self, scenario: Scenario, node: SimNode) -> bool:
        """Whether the work that the scenario needs already runs on this node, so that no job must move."""
        jobs = self.machines.jobs
        if scenario.work is RequiredWork.TRAINING:
            return bool((jobs.kind[node.rows] == SimJobKind.TRAINING).all()) and len(jobs.jobs_on_node(node)) == 1
        if scenario.work is RequiredWork.WIDE_TRAINING:
            node_jobs = jobs.jobs_on_node(node)
            is_wide = len(node_jobs) == 1 and len(node_jobs[0].pod_names) > 1
            is_training = is_wide and node_jobs[0].template.kind is SimJobKind.TRAINING
            return is_training and not jobs.is_down[node.rows].any()
        if scenario.work is RequiredWork.SERVING:
            return bool((jobs.kind[node.rows] == SimJobKind.SERVING).any())
        if scenario.work is RequiredWork.MUTE_TRAINING:
            return bool((jobs.kind[node.rows] == SimJobKind.NONE).all())
        return scenario.work is not RequiredWork.RESERVATION or bool((jobs.kind[node.rows] == SimJobKind.NONE).any())

    def _provide_work(self, fault: SimFault, now: int) -> SimJob | None:
        jobs, rows, work = self.machines.jobs, fault.rows, fault.scenario.work
        node_rows = tuple(gpu.row for gpu in fault.node.gpus)
        if work is None:
            return jobs.job_on_gpu(rows[0])
        if work is RequiredWork.RESERVATION:
            return jobs.place(RESERVATION, tuple(rows), now)
        if work is RequiredWork.MUTE_TRAINING:
            mute_job = jobs.place(SILENT_TRAINING, node_rows, now)
            jobs.extend(mute_job, now + KEEP_JOB_SECONDS)
            return mute_job
        if work is RequiredWork.SERVING:
            return self._provide_service(fault, now)
        job, training = jobs.job_on_gpu(rows[0]), _template_of_kind(SimJobKind.TRAINING)
        if work is RequiredWork.WIDE_TRAINING and not self._has_required_work(fault.scenario, fault.node):
            pool_nodes = (node for node in self.machines.layout.nodes if node.pool is fault.node.pool)
            nodes = [fault.node, *islice((node for node in pool_nodes if node is not fault.node), WIDE_NODES - 1)]
            job = jobs.place(training, tuple(gpu.row for node in nodes for gpu in node.gpus), now)
        elif job is None or not (jobs.kind[rows] == SimJobKind.TRAINING).all() or jobs.is_down[rows].any():
            job = jobs.place(training, node_rows, now)
        for number in set(jobs.job_of_gpu[rows].tolist()):
            jobs.extend(jobs.running[number], now + KEEP_JOB_SECONDS)
        return job

    def _provide_service(self, fault: SimFault, now: int) -> SimJob:
        jobs = self.machines.jobs
        gpu_job = jobs.job_on_gpu(fault.rows[0]) if fault.gpu is not None else None
        candidates = [job for job in [gpu_job, *jobs.jobs_on_node(fault.node)] if job is not None]
        service = next((job for job in candidates if job.template.kind is SimJobKind.SERVING), None)
        if service is None:
            rows = tuple(gpu.row for gpu in fault.node.gpus[:2])
            service = jobs.place(_template_of_kind(SimJobKind.SERVING), rows, now)
        jobs.extend(service, now + KEEP_JOB_SECONDS)
        return service

    def _write_kernel_line(self, fault: SimFault, line: KernelLine, now: int) -> None:
        gpu, kernel, at = fault.gpu, self.machines.kernel, datetime.fromtimestamp(now, UTC)
        rng = random.Random(f"{fault.id}/{fault.node.name}/{gpu.uuid if gpu else ''}")
        text = line.text.format(
            pci=gpu.kernel_pci if gpu else "",
            uuid=gpu.uuid if gpu else "",
            serial=gpu.serial if gpu else "",
            process="python3",
            pid=rng.randrange(2000, 4_000_000),
            channel=f"{rng.getrandbits(16):08x}",
            address=f"{rng.getrandbits(36):09x}",
            row=f"{rng.getrandbits(64):016x}",
        )
        if gpu is None:
            kernel.write(fault.node, text, at, priority=WARNING)
            return
        code = kernel.write_from_driver(fault.node, gpu, text, now=at)
        if code is not None:
            self.machines.exporter.record_xid(gpu, code)

    def _apply_effect(self, fault: SimFault, effect: Effect, now: int) -> None:
        rows = self._affected_rows(fault, effect)
        jobs, physics = self.machines.jobs, self.machines.physics
        physics.sbe[rows] += effect.ecc_sbe
        physics.sbe_lifetime[rows] += effect.ecc_sbe
        physics.dbe[rows] += effect.ecc_dbe
        physics.dbe_lifetime[rows] += effect.ecc_dbe
        physics.remapped_rows[rows] += effect.remapped_rows
        physics.pcie_replays[rows] += effect.pcie_replays
        physics.nvlink_errors[rows] += effect.nvlink_errors
        physics.remap_pending[rows] |= effect.remap_pending
        physics.remap_failure[rows] |= effect.remap_failure
        physics.recovery_action[rows] = np.maximum(physics.recovery_action[rows], effect.recovery_action)
        if fault.job is not None and fault.job.number in jobs.running:
            if effect.stall:
                jobs.is_stalled[list(fault.job.rows)] = True
            if effect.app_crash:
                restart = None if effect.restart_after is None else _seconds(effect.restart_after)
                jobs.crash(fault.job, now, restart_seconds=restart)
        nodes = sorted({int(self.machines.layout.node_of_gpu[row]) for row in rows})
        job = None if fault.job is None else fault.job.number
        fault.effects.append(ActiveEffect(effect, rows, nodes, job=job, pod=fault.pod, namespace=OWNER))
        self._update_totals()

    def _affected_rows(self, fault: SimFault, effect: Effect) -> Rows:
        if effect.reach is EffectScope.NODE:
            return [gpu.row for gpu in fault.node.gpus]
        if effect.reach is EffectScope.RACK or fault.scenario.strikes is FaultTarget.RACK:
            nodes = (node for node in self.machines.layout.nodes if node.rack == fault.node.rack)
            return [gpu.row for node in nodes for gpu in node.gpus]
        if effect.reach is EffectScope.GANG and fault.job is not None:
            return list(fault.job.rows)
        if effect.reach is EffectScope.RANK and fault.job is not None:
            return [fault.job.rows[-1]]
        return fault.rows

    def _update_totals(self) -> None:
        active_effects = (active for fault in self.active.values() for active in fault.effects)
        exporter, layout = self.machines.exporter, self.machines.layout
        self.totals = sum_effects(active_effects, layout)
        self.machines.jobs.nodes_down = self.totals.hosts_down
        exporter.readings.lanes = self.totals.pcie_width
        down = np.isin(layout.node_of_gpu, list(self.totals.fabric_down))
        exporter.readings.fabric_state = np.where(down, FABRIC_NOT_STARTED, FABRIC_COMPLETED)
        changed: Sequence[int] = np.flatnonzero(self.totals.present != exporter.is_present).tolist()
        exporter.is_present = self.totals.present
        for node_row in {int(layout.node_of_gpu[row]) for row in changed}:
            exporter.invalidate_labels(node_row)


def _template_of_kind(kind: SimJobKind) -> JobTemplate:
    return next(template for template in TEMPLATES if template.kind is kind)


def _seconds(text: str) -> int:
    return round(durations.parse_seconds(text))
