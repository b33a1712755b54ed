"""Effects of faults on the simulated fleet, and their sum.

`scenario` reads effects from packs/scenarios; `faults` decides when and where each starts, and adds counters once. All
lasting effects are summed up here after each change, so that a repaired fault has no remaining effect.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from watchkeeper.kit import durations
from watchkeeper.sim.fleet import FleetLayout
from watchkeeper.sim.physics import Environment

Rows = list[int]


class EffectScope(StrEnum):
    """The GPUs of an effect: those of the fault, its node or rack, all ranks of its job, or the last rank."""

    PLACE = "place"
    NODE = "node"
    RACK = "rack"
    GANG = "gang"
    RANK = "rank"


class BusFault(StrEnum):
    LOST = "lost"


class ExporterFault(StrEnum):
    """`down`: the exporter's port does not answer. `empty`: it answers without GPU metrics."""

    DOWN = "down"
    EMPTY = "empty"


class LossFault(StrEnum):
    """`overfit`: the loss no longer falls, and the validation loss rises above it."""

    NAN = "nan"
    RISING = "rising"
    OVERFIT = "overfit"


@dataclass(frozen=True, slots=True)
class TrainingEffect:
    """How a fault changes a training job; shares refer to its normal speed."""

    pace: float | None = None
    data_wait: float = 0.0
    slow_rank: float = 1.0
    dead_rank: bool = False
    loss: LossFault | None = None
    checkpoints_fail: bool = False
    ooms: bool = False


@dataclass(frozen=True, slots=True)
class ServingEffect:
    """How a fault changes a service; `demand` is the request rate divided by its capacity."""

    demand: float | None = None
    # Its page does not answer.
    is_down: bool = False


@dataclass(frozen=True, slots=True)
class PodFault:
    """A pod that exists only because of the fault; it runs on the node of the fault unless it is pending."""

    # The number of such pods.
    replicas: int = 1
    pending: bool = False
    # More than any node has: the pod stays pending. None: it requests no GPU.
    gpus: int | None = 1
    tolerates_gpu_taint: bool = True
    node_selector: str | None = None
    runtime_class: str | None = None
    is_ready: bool = True
    exit_reason: str | None = None
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class Effect:
    """One change to the fleet; counters are added once, everything else lasts until the fault ends."""

    after: str = "0s"
    reach: EffectScope = EffectScope.PLACE
    # The GPU has no metrics: `lost` from the bus but still listed by the driver, or `hidden` from the driver too.
    bus: BusFault | None = None
    hidden: bool = False
    # Shares of the values of healthy hardware.
    fan: float | None = None
    power_cap: float | None = None
    clock: float | None = None
    load: float | None = None
    inlet_celsius: float = 0.0
    power_brake: bool = False
    pcie_width: int | None = None
    # `hold` keeps memory and does nothing; `stall` spins in a collective that never ends.
    hold: bool = False
    stall: bool = False
    app_crash: bool = False
    restart_after: str | None = None
    leak_mib_per_minute: float = 0.0
    ecc_sbe: int = 0
    ecc_sbe_per_second: float = 0.0
    ecc_dbe: int = 0
    remapped_rows: int = 0
    pcie_replays: int = 0
    pcie_replays_per_second: float = 0.0
    nvlink_errors: int = 0
    remap_pending: bool = False
    remap_failure: bool = False
    recovery_action: int = 0
    # The node.
    exporter: ExporterFault | None = None
    host_down: bool = False
    # A cause that our agent exports (`watchkeeper_gpu_fault`).
    agent_says: str | None = None
    fabric_manager_down: bool = False
    ib_symbol_errors_per_second: float = 0.0
    ib_recoveries_per_minute: float = 0.0
    ib_port_down: bool = False
    # The share of its CPUs that is busy.
    cpu_busy: float | None = None
    device_plugin_gone: bool = False
    mig_layout_lost: bool = False
    # Workloads.
    training: TrainingEffect | None = None
    serving: ServingEffect | None = None
    pod: PodFault | None = None
    quota_full: bool = False

    def __post_init__(self) -> None:
        durations.parse_ms(self.after)
        if self.restart_after is not None:
            durations.parse_ms(self.restart_after)
        for name in ("fan", "power_cap", "clock", "load", "cpu_busy"):
            share = getattr(self, name)
            if share is not None and not 0.0 <= share <= 1.0:
                raise ValueError(f"`{name}: {share}` is not a share between 0 and 1")
        framing = {"after", "reach", "restart_after"}
        if all(getattr(self, part.name) == part.default for part in fields(self) if part.name not in framing):
            raise ValueError("an effect must change something, for example `bus: lost` or `fan: 0.0`")


@dataclass(frozen=True, slots=True)
class ActiveEffect:
    effect: Effect
    rows: Rows
    nodes: Rows
    job: int | None = None
    pod: str | None = None
    namespace: str = ""


@dataclass(slots=True)
class EffectTotals:
    """The sum of all active effects; GPUs and nodes are rows, jobs are job numbers."""

    environment: Environment
    load: NDArray[np.float64]
    present: NDArray[np.bool_]
    pcie_width: NDArray[np.int64]
    hidden: set[int] = field(default_factory=set)
    exporters: dict[int, ExporterFault] = field(default_factory=dict)
    hosts_down: set[int] = field(default_factory=set)
    agent_faults: dict[int, str] = field(default_factory=dict)
    fabric_down: set[int] = field(default_factory=set)
    ib_errors: dict[int, float] = field(default_factory=dict)
    ib_recoveries: dict[int, float] = field(default_factory=dict)
    ib_ports_down: set[int] = field(default_factory=set)
    cpu_busy: dict[int, float] = field(default_factory=dict)
    plugin_gone: set[int] = field(default_factory=set)
    mig_lost: set[int] = field(default_factory=set)
    training: dict[int, TrainingEffect] = field(default_factory=dict)
    serving: dict[int, ServingEffect] = field(default_factory=dict)
    pods: dict[str, tuple[ActiveEffect, PodFault]] = field(default_factory=dict)
    full_quotas: set[str] = field(default_factory=set)


def sum_effects(active_effects: Iterable[ActiveEffect], layout: FleetLayout) -> EffectTotals:
    count = layout.gpu_count
    load, present, pcie_width = np.ones(count), np.ones(count, dtype=bool), np.full(count, 16)
    total = EffectTotals(Environment.healthy(count), load, present, pcie_width)
    for active in active_effects:
        _add_to_gpus(total, active)
        _add_to_nodes(total, active)
        effect = active.effect
        if effect.training is not None and active.job is not None:
            total.training[active.job] = effect.training
        if effect.serving is not None and active.job is not None:
            total.serving[active.job] = effect.serving
        if effect.pod is not None and active.pod is not None:
            total.pods[active.pod] = (active, effect.pod)
        if effect.quota_full:
            total.full_quotas.add(active.namespace)
    return total


def _add_to_gpus(total: EffectTotals, active: ActiveEffect) -> None:
    effect, rows, environment = active.effect, active.rows, total.environment
    _lower(environment.fan, rows, effect.fan)
    _lower(environment.power_cap, rows, effect.power_cap)
    _lower(environment.clock, rows, effect.clock)
    _lower(total.load, rows, 0.0 if effect.hold or effect.bus is not None else effect.load)
    environment.inlet[rows] += effect.inlet_celsius
    environment.brake[rows] |= effect.power_brake
    environment.sbe_per_second[rows] += effect.ecc_sbe_per_second
    environment.pcie_replays_per_second[rows] += effect.pcie_replays_per_second
    environment.leak_mib_per_second[rows] += effect.leak_mib_per_minute / 60
    if effect.pcie_width is not None:
        total.pcie_width[rows] = np.minimum(total.pcie_width[rows], effect.pcie_width)
    if effect.hidden or effect.bus is not None:
        total.present[rows] = False
    if effect.hidden:
        total.hidden.update(rows)


def _add_to_nodes(total: EffectTotals, active: ActiveEffect) -> None:
    effect = active.effect
    for node in active.nodes:
        if effect.exporter is not None:
            total.exporters[node] = effect.exporter
        if effect.agent_says is not None:
            total.agent_faults[node] = effect.agent_says
        for rate, rates in (
            (effect.ib_symbol_errors_per_second, total.ib_errors),
            (effect.ib_recoveries_per_minute / 60, total.ib_recoveries),
        ):
            if rate:
                rates[node] = rates.get(node, 0.0) + rate
        if effect.cpu_busy is not None:
            total.cpu_busy[node] = max(total.cpu_busy.get(node, 0.0), effect.cpu_busy)
        for is_set, nodes in (
            (effect.host_down, total.hosts_down),
            (effect.fabric_manager_down, total.fabric_down),
            (effect.device_plugin_gone, total.plugin_gone),
            (effect.mig_layout_lost, total.mig_lost),
            (effect.ib_port_down, total.ib_ports_down),
        ):
            if is_set:
                nodes.add(node)


def _lower(values: NDArray[np.float64], rows: Rows, share: float | None) -> None:
    if share is not None:
        values[rows] = np.minimum(values[rows], share)
