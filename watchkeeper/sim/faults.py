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

import numpy as np
from numpy.typing import NDArray

from watchkeeper.errors import SettingsError
from watchkeeper.kit import durations
from watchkeeper.sim.exporter import Exporter
from watchkeeper.sim.fleet import Layout, SimGpu, SimNode, UnknownName
from watchkeeper.sim.jobs import RECIPES, RESERVATION, Job, Jobs, Kind
from watchkeeper.sim.kernel_log import KernelLog
from watchkeeper.sim.physics import Physics, Surroundings
from watchkeeper.sim.scenario import Effect, KernelLine, Reach, Repair, Scenario, Strikes, Work

Rows = list[int]
ACTIVE_LIMIT = 1000
# The job at the place must not end by itself while its fault is being looked at.
KEEP_JOB_SECONDS = 7 * 86_400


@dataclass(slots=True)
class Fault:
    """One scenario at one place; `gpu` is None when the whole node is struck."""

    id: str
    scenario: Scenario
    node: SimNode
    gpu: SimGpu | None
    at: int
    until: int | None
    job: Job | None = None
    due: list[tuple[int, Effect | KernelLine]] = field(default_factory=list)
    lasting: list[tuple[Effect, Rows]] = field(default_factory=list)

    @property
    def rows(self) -> Rows:
        return [gpu.row for gpu in self.node.gpus] if self.gpu is None else [self.gpu.row]


@dataclass(frozen=True, slots=True)
class Machines:
    """What faults act upon."""

    layout: Layout
    jobs: Jobs
    physics: Physics
    exporter: Exporter
    kernel: KernelLog


class Faults:
    """The active faults and their sum."""

    def __init__(self, machines: Machines, draw: random.Random) -> None:
        self.machines = machines
        self.active: dict[str, Fault] = {}
        self._draw = draw
        self._next_id = 1
        self._fold()

    def inject(
        self, scenario: Scenario, now: int, *, node: SimNode | None, gpu: int | None, is_up: Callable[[SimNode], bool]
    ) -> Fault:
        """Plan a fault; the place is chosen from the seed where it is not given."""
        if len(self.active) >= ACTIVE_LIMIT:
            raise SettingsError(f"{len(self.active)} faults are active, the limit is {ACTIVE_LIMIT}; end some first")
        if gpu is not None and node is None:
            raise SettingsError(f"gpu {gpu} was named without its node")
        node, struck = self._choose(scenario, node, gpu, is_up=is_up)
        at = now + _seconds(scenario.after)
        until = None if scenario.lasts is None else at + _seconds(scenario.lasts)
        fault = Fault(f"f{self._next_id}", scenario, node, struck, at, until)
        moments: list[Effect | KernelLine] = [*scenario.kernel_lines, *scenario.effects]
        fault.due = sorted(((at + _seconds(moment.after), moment) for moment in moments), key=lambda due: due[0])
        self._next_id += 1
        self.active[fault.id] = fault
        self.step(now)
        return fault

    def find(self, fault_id: str) -> Fault:
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

    def end(self, fault: Fault) -> None:
        """The place is whole again; a stalled or dead job there starts anew."""
        self.active.pop(fault.id, None)
        jobs = self.machines.jobs
        if fault.job is not None and fault.job.number in jobs.running:
            rows = list(fault.job.rows)
            jobs.is_stalled[rows] = jobs.is_down[rows] = False
            if fault.scenario.work is Work.RESERVATION:
                jobs.end(fault.job)
        self._fold()

    def repair(self, by: Repair, node: SimNode, *, gpu: SimGpu | None = None) -> list[Fault]:
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
            healthy = [one for one in self.machines.layout.nodes if one.row not in struck and is_up(one)]
            fitting = [one for one in healthy if self._suits(scenario, one)]
            node = self._draw.choice(fitting or healthy or self.machines.layout.nodes)
        if scenario.strikes is Strikes.NODE:
            if gpu is not None:
                raise SettingsError(f"scenario {scenario.name} strikes a whole node; leave out gpu {gpu}")
            return node, None
        if gpu is None:
            present = [one.index for one in node.gpus if self.machines.exporter.is_present[one.row]]
            gpu = self._draw.choice(present or [0])
        if not 0 <= gpu < len(node.gpus):
            raise UnknownName(f"node {node.name} has no GPU {gpu}", now=f"It has GPUs 0 to {len(node.gpus) - 1}")
        return node, node.gpus[gpu]

    def _suits(self, scenario: Scenario, node: SimNode) -> bool:
        """True when the work that the scenario needs is there already, so that nobody must make room."""
        jobs = self.machines.jobs
        if scenario.work is Work.TRAINING:
            return bool((jobs.kind[node.rows] == Kind.TRAINING).all()) and len(jobs.on_node(node)) == 1
        return scenario.work is not Work.RESERVATION or bool((jobs.kind[node.rows] == Kind.NONE).any())

    def _provide_work(self, fault: Fault, now: int) -> Job | None:
        jobs, rows, work = self.machines.jobs, fault.rows, fault.scenario.work
        if work is None:
            return jobs.of_gpu(rows[0])
        if work is Work.RESERVATION:
            return jobs.place(RESERVATION, tuple(rows), now)
        job = jobs.of_gpu(rows[0])
        if job is None or not (jobs.kind[rows] == Kind.TRAINING).all() or jobs.is_down[rows].any():
            recipe = next(one for one in RECIPES if one.kind is Kind.TRAINING)
            job = jobs.place(recipe, tuple(gpu.row for gpu in fault.node.gpus), now)
        for number in {int(one) for one in jobs.job_of_gpu[rows]}:
            jobs.keep(jobs.running[number], now + KEEP_JOB_SECONDS)
        return job

    def _say(self, fault: Fault, line: KernelLine, now: int) -> None:
        gpu = fault.gpu
        assert gpu is not None, "scenario.py refuses kernel lines for a node"
        words = random.Random(f"{fault.id}/{gpu.uuid}")
        text = line.text.format(
            pci=gpu.kernel_pci,
            uuid=gpu.uuid,
            serial=gpu.serial,
            process="python3",
            pid=words.randrange(2000, 4_000_000),
            channel=f"{words.getrandbits(16):08x}",
            address=f"{words.getrandbits(36):09x}",
            row=f"{words.getrandbits(64):016x}",
        )
        code = self.machines.kernel.write_from_driver(fault.node, gpu, text, now=datetime.fromtimestamp(now, UTC))
        if code is not None:
            self.machines.exporter.see_xid(gpu, code)

    def _apply(self, fault: Fault, effect: Effect, now: int) -> None:
        rows = self._reach(fault, effect)
        jobs, physics = self.machines.jobs, self.machines.physics
        physics.sbe[rows] += effect.ecc_sbe
        physics.sbe_lifetime[rows] += effect.ecc_sbe
        physics.dbe[rows] += effect.ecc_dbe
        physics.dbe_lifetime[rows] += effect.ecc_dbe
        physics.remapped_rows[rows] += effect.remapped_rows
        physics.pcie_replays[rows] += effect.pcie_replays
        physics.remap_pending[rows] |= effect.remap_pending
        physics.remap_failure[rows] |= effect.remap_failure
        physics.recovery_action[rows] = np.maximum(physics.recovery_action[rows], effect.recovery_action)
        if fault.job is not None and fault.job.number in jobs.running:
            if effect.stall:
                jobs.is_stalled[list(fault.job.rows)] = True
            if effect.app_crash:
                restart = None if effect.restart_after is None else _seconds(effect.restart_after)
                jobs.crash(fault.job, now, restart_seconds=restart)
        fault.lasting.append((effect, rows))
        self._fold()

    def _reach(self, fault: Fault, effect: Effect) -> Rows:
        if effect.reach is Reach.NODE:
            return [gpu.row for gpu in fault.node.gpus]
        if effect.reach is Reach.GANG and fault.job is not None:
            return list(fault.job.rows)
        return fault.rows

    def _fold(self) -> None:
        """Sum up every lasting effect of every active fault."""
        count = self.machines.layout.gpu_count
        fan, power_cap, clock, load = (np.ones(count) for _ in range(4))
        present = np.ones(count, dtype=bool)
        for fault in self.active.values():
            for effect, rows in fault.lasting:
                _lower(fan, rows, effect.fan)
                _lower(power_cap, rows, effect.power_cap)
                _lower(clock, rows, effect.clock)
                _lower(load, rows, 0.0 if effect.hold or effect.bus is not None else effect.load)
                if effect.hidden or effect.bus is not None:
                    present[rows] = False
        self.around = Surroundings(fan=fan, power_cap=power_cap, clock=clock)
        self.load = load
        self._show(present)

    def _show(self, present: NDArray[np.bool_]) -> None:
        exporter, layout = self.machines.exporter, self.machines.layout
        changed: Sequence[int] = np.flatnonzero(present != exporter.is_present).tolist()
        exporter.is_present = present
        for node_row in {int(layout.node_of_gpu[row]) for row in changed}:
            exporter.forget_labels(node_row)


def _lower(values: NDArray[np.float64], rows: Rows, share: float | None) -> None:
    if share is not None:
        values[rows] = np.minimum(values[rows], share)


def _seconds(text: str) -> int:
    return round(durations.parse_seconds(text))
