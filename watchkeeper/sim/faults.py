"""Faults in play: where a scenario strikes, what it does second by second, and when it is over.

`inject` chooses the place and writes the fault's timeline; `step` plays what is due. Lasting effects
are never undone piece by piece: what surrounds the GPUs is folded anew from the faults that are still
active, so a repaired fault leaves nothing behind but its counters.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from watchkeeper.errors import SettingsError
from watchkeeper.kit import durations
from watchkeeper.model import fleet as fleet_model
from watchkeeper.sim.effects import ActiveEffect, Effect, EffectReach, Rows, sum_effects
from watchkeeper.sim.exporter import DcgmExporter
from watchkeeper.sim.fleet import FleetLayout, SimGpu, SimNode, UnknownName
from watchkeeper.sim.jobs import RESERVATION, SILENT_TRAINING, TEMPLATES, JobTemplate, SimJob, SimJobKind, SimJobs
from watchkeeper.sim.kernel_log import WARNING, SimKernelLog
from watchkeeper.sim.physics import Physics
from watchkeeper.sim.readings import FABRIC_COMPLETED, FABRIC_NOT_STARTED
from watchkeeper.sim.scenario import FaultRepair, FaultTarget, KernelLine, RequiredWork, Scenario

# Who owns what a fault brings along.
OWNER = "vision"
OF_A_JOB = (FaultTarget.JOB, FaultTarget.SERVICE)
ACTIVE_LIMIT = 1000
# How many nodes a job gets that must have several.
WIDE_NODES = 4
# The job at the place must not end by itself while its fault is being looked at.
KEEP_JOB_SECONDS = 7 * 86_400


@dataclass(slots=True)
class SimFault:
    """One scenario at one place; `gpu` is None when the whole node, or something larger or else, is struck."""

    id: str
    scenario: Scenario
    node: SimNode
    gpu: SimGpu | None
    at: int
    until: int | None
    job: SimJob | None = None
    due: list[tuple[int, Effect | KernelLine]] = field(default_factory=list)
    effects: list[ActiveEffect] = field(default_factory=list)

    @property
    def rows(self) -> Rows:
        if self.scenario.strikes in OF_A_JOB and self.job is not None:
            return list(self.job.rows)
        return [gpu.row for gpu in self.node.gpus] if self.gpu is None else [self.gpu.row]

    @property
    def pod(self) -> str:
        """The pod that the fault brings along."""
        return f"{self.scenario.name}-{self.id}"

    def place(self, cluster: str) -> fleet_model.Place:
        """What is struck, by the name that the product should find."""
        strikes = self.scenario.truth.place
        if strikes is FaultTarget.GPU and self.gpu is not None:
            return fleet_model.Place(cluster, node=self.node.name, gpu=self.gpu.uuid)
        names = {
            FaultTarget.RACK: f"rack={self.node.rack}",
            FaultTarget.JOB: f"job={self.job.name if self.job else ''}",
            FaultTarget.SERVICE: f"model={self.job.name if self.job else ''}",
            FaultTarget.POD: f"pod={OWNER}/{self.pod}",
            FaultTarget.NAMESPACE: f"namespace={OWNER}",
        }
        if strikes in names:
            return fleet_model.Place(cluster, domain=names[strikes])
        return fleet_model.Place(cluster, node=self.node.name)


@dataclass(frozen=True, slots=True)
class SimMachines:
    """What faults act upon."""

    layout: FleetLayout
    jobs: SimJobs
    physics: Physics
    exporter: DcgmExporter
    kernel: SimKernelLog


class FaultInjector:
    """The active faults and their sum."""

    def __init__(self, machines: SimMachines, draw: random.Random) -> None:
        self.machines = machines
        self.active: dict[str, SimFault] = {}
        self._draw = draw
        self._next_id = 1
        self._fold()

    def inject(
        self, scenario: Scenario, now: int, *, node: SimNode | None, gpu: int | None, is_up: Callable[[SimNode], bool]
    ) -> SimFault:
        """Plan a fault; the place is chosen from the seed where it is not given."""
        if len(self.active) >= ACTIVE_LIMIT:
            raise SettingsError(f"{len(self.active)} faults are active, the limit is {ACTIVE_LIMIT}; end some first")
        if gpu is not None and node is None:
            raise SettingsError(f"gpu {gpu} was named without its node")
        node, struck = self._choose(scenario, node, gpu, is_up=is_up)
        at = now + _seconds(scenario.after)
        until = None if scenario.lasts is None else at + _seconds(scenario.lasts)
        fault = SimFault(f"f{self._next_id}", scenario, node, struck, at, until)
        moments: list[Effect | KernelLine] = [*scenario.kernel_lines, *scenario.effects]
        fault.due = sorted(((at + _seconds(moment.after), moment) for moment in moments), key=lambda due: due[0])
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
            known = ", ".join(list(self.active)[:20]) or "none"
            raise UnknownName(f"there is no active fault `{fault_id[:80]}`", now=f"Active: {known}") from None

    def step(self, now: int) -> None:
        """Play what is due, and end what has lasted long enough."""
        for fault in list(self.active.values()):
            while fault.due and fault.due[0][0] <= now:
                if fault.job is None:
                    fault.job = self._provide_work(fault, now)
                _, moment = fault.due.pop(0)
                if isinstance(moment, KernelLine):
                    self._say(fault, moment, now)
                else:
                    self._apply(fault, moment, now)
            if fault.until is not None and fault.until <= now:
                self.end(fault)

    def end(self, fault: SimFault) -> None:
        """The place is whole again; a stalled or dead job there starts anew."""
        self.active.pop(fault.id, None)
        if fault.gpu is not None and FaultRepair.RESET_GPU in fault.scenario.repaired_by:
            # Whoever repaired it has reset it: counters since the driver came up start anew.
            self.machines.physics.reload_driver([fault.gpu.row])
        jobs = self.machines.jobs
        if fault.job is not None and fault.job.number in jobs.running:
            rows = list(fault.job.rows)
            jobs.is_stalled[rows] = jobs.is_down[rows] = False
            if fault.scenario.work is RequiredWork.RESERVATION:
                jobs.end(fault.job)
        self._fold()

    def repair(self, by: FaultRepair, node: SimNode, *, gpu: SimGpu | None = None) -> list[SimFault]:
        """End the faults at this place that such a repair cures; `gpu` None means the whole node."""
        cured = [
            fault
            for fault in self.active.values()
            if fault.node is node and by in fault.scenario.repaired_by and (gpu is None or fault.gpu is gpu)
        ]
        for fault in cured:
            self.end(fault)
        return cured

    def _choose(
        self, scenario: Scenario, node: SimNode | None, gpu: int | None, *, is_up: Callable[[SimNode], bool]
    ) -> tuple[SimNode, SimGpu | None]:
        if node is None:
            struck = {fault.node.row for fault in self.active.values()}
            pools = scenario.pools or tuple({one.pool.name for one in self.machines.layout.nodes})
            healthy = [
                one
                for one in self.machines.layout.nodes
                if one.row not in struck and is_up(one) and one.pool.name in pools
            ]
            fitting = [one for one in healthy if self._suits(scenario, one)]
            node = self._draw.choice(fitting or healthy or self.machines.layout.nodes)
        if scenario.strikes is not FaultTarget.GPU:
            if gpu is not None:
                raise SettingsError(f"scenario {scenario.name} strikes a whole {scenario.strikes}; leave out gpu {gpu}")
            return node, None
        if gpu is None:
            present = [one for one in node.gpus if self.machines.exporter.is_present[one.row]]
            served = [one for one in present if self.machines.jobs.kind[one.row] == SimJobKind.SERVING]
            fitting_gpus = served if scenario.work is RequiredWork.SERVING and served else present
            gpu = self._draw.choice([one.index for one in fitting_gpus] or [0])
        if not 0 <= gpu < len(node.gpus):
            raise UnknownName(f"node {node.name} has no GPU {gpu}", now=f"It has GPUs 0 to {len(node.gpus) - 1}")
        return node, node.gpus[gpu]

    def _suits(self, scenario: Scenario, node: SimNode) -> bool:
        """True when the work that the scenario needs is there already, so that nobody must make room."""
        jobs = self.machines.jobs
        if scenario.work is RequiredWork.TRAINING:
            return bool((jobs.kind[node.rows] == SimJobKind.TRAINING).all()) and len(jobs.jobs_on_node(node)) == 1
        if scenario.work is RequiredWork.WIDE_TRAINING:
            here = jobs.jobs_on_node(node)
            return len(here) == 1 and _is_wide(here[0]) and not jobs.is_down[node.rows].any()
        if scenario.work is RequiredWork.SERVING:
            return bool((jobs.kind[node.rows] == SimJobKind.SERVING).any())
        if scenario.work is RequiredWork.MUTE_TRAINING:
            return bool((jobs.kind[node.rows] == SimJobKind.NONE).all())
        return scenario.work is not RequiredWork.RESERVATION or bool((jobs.kind[node.rows] == SimJobKind.NONE).any())

    def _provide_work(self, fault: SimFault, now: int) -> SimJob | None:
        jobs, rows, work = self.machines.jobs, fault.rows, fault.scenario.work
        if work is None:
            return jobs.job_on_gpu(rows[0])
        if work is RequiredWork.RESERVATION:
            return jobs.place(RESERVATION, tuple(rows), now)
        if work is RequiredWork.MUTE_TRAINING:
            mute = jobs.place(SILENT_TRAINING, tuple(gpu.row for gpu in fault.node.gpus), now)
            jobs.keep(mute, now + KEEP_JOB_SECONDS)
            return mute
        if work is RequiredWork.SERVING:
            return self._provide_service(fault, now)
        job = jobs.job_on_gpu(rows[0])
        if work is RequiredWork.WIDE_TRAINING and not self._suits(fault.scenario, fault.node):
            others = (
                one for one in self.machines.layout.nodes if one.pool is fault.node.pool and one is not fault.node
            )
            nodes = [fault.node, *islice(others, WIDE_NODES - 1)]
            job = jobs.place(_recipe(SimJobKind.TRAINING), tuple(gpu.row for node in nodes for gpu in node.gpus), now)
        elif job is None or not (jobs.kind[rows] == SimJobKind.TRAINING).all() or jobs.is_down[rows].any():
            job = jobs.place(_recipe(SimJobKind.TRAINING), tuple(gpu.row for gpu in fault.node.gpus), now)
        for number in {int(one) for one in jobs.job_of_gpu[rows]}:
            jobs.keep(jobs.running[number], now + KEEP_JOB_SECONDS)
        return job

    def _provide_service(self, fault: SimFault, now: int) -> SimJob:
        jobs = self.machines.jobs
        struck = jobs.job_on_gpu(fault.rows[0]) if fault.gpu is not None else None
        here = [
            one for one in [struck, *jobs.jobs_on_node(fault.node)] if one and one.template.kind is SimJobKind.SERVING
        ]
        rows = tuple(gpu.row for gpu in fault.node.gpus[:2])
        service = here[0] if here else jobs.place(_recipe(SimJobKind.SERVING), rows, now)
        jobs.keep(service, now + KEEP_JOB_SECONDS)
        return service

    def _say(self, fault: SimFault, line: KernelLine, now: int) -> None:
        gpu, kernel, at = fault.gpu, self.machines.kernel, datetime.fromtimestamp(now, UTC)
        words = random.Random(f"{fault.id}/{fault.node.name}/{gpu.uuid if gpu else ''}")
        text = line.text.format(
            pci=gpu.kernel_pci if gpu else "",
            uuid=gpu.uuid if gpu else "",
            serial=gpu.serial if gpu else "",
            process="python3",
            pid=words.randrange(2000, 4_000_000),
            channel=f"{words.getrandbits(16):08x}",
            address=f"{words.getrandbits(36):09x}",
            row=f"{words.getrandbits(64):016x}",
        )
        if gpu is None:
            kernel.write(fault.node, text, at, priority=WARNING)
            return
        code = kernel.write_from_driver(fault.node, gpu, text, now=at)
        if code is not None:
            self.machines.exporter.record_xid(gpu, code)

    def _apply(self, fault: SimFault, effect: Effect, now: int) -> None:
        rows = self._reach(fault, effect)
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
        self._fold()

    def _reach(self, fault: SimFault, effect: Effect) -> Rows:
        if effect.reach is EffectReach.NODE:
            return [gpu.row for gpu in fault.node.gpus]
        if effect.reach is EffectReach.RACK or fault.scenario.strikes is FaultTarget.RACK:
            nodes = (node for node in self.machines.layout.nodes if node.rack == fault.node.rack)
            return [gpu.row for node in nodes for gpu in node.gpus]
        if effect.reach is EffectReach.GANG and fault.job is not None:
            return list(fault.job.rows)
        if effect.reach is EffectReach.RANK and fault.job is not None:
            return [fault.job.rows[-1]]
        return fault.rows

    def _fold(self) -> None:
        """Sum up every lasting effect of every active fault, and show what readings and pages need of it."""
        lasting = (one for fault in self.active.values() for one in fault.effects)
        self.totals = sum_effects(lasting, self.machines.layout)
        readings, layout = self.machines.exporter.readings, self.machines.layout
        readings.lanes = self.totals.pcie_width
        down = np.isin(layout.node_of_gpu, list(self.totals.fabric_down))
        readings.fabric_state = np.where(down, FABRIC_NOT_STARTED, FABRIC_COMPLETED)
        self._show(self.totals.present)

    def _show(self, present: NDArray[np.bool_]) -> None:
        exporter, layout = self.machines.exporter, self.machines.layout
        changed: Sequence[int] = np.flatnonzero(present != exporter.is_present).tolist()
        exporter.is_present = present
        for node_row in {int(layout.node_of_gpu[row]) for row in changed}:
            exporter.forget_labels(node_row)


def _is_wide(job: SimJob) -> bool:
    return job.template.kind is SimJobKind.TRAINING and len(job.members) > 1


def _recipe(kind: SimJobKind) -> JobTemplate:
    return next(one for one in TEMPLATES if one.kind is kind)


def _seconds(text: str) -> int:
    return round(durations.parse_seconds(text))
