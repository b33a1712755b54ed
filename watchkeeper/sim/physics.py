"""Simulate power, temperature, clocks and counters of all GPUs.

One `step` is one second. Load draws power, the power cap reduces clocks, power heats the GPU, fans cool it, heat
reduces clocks, and lower clocks draw less power. All arrays have one entry for each GPU row of the layout.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from watchkeeper.model.clock_reasons import HW_SLOWDOWN, HW_THERMAL, IDLE, POWER_BRAKE, POWER_CAP, SW_THERMAL, THERMAL
from watchkeeper.sim.fleet import FleetLayout

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

# Fitted to the H200 recording of 2026-11-15: 120 W awake without work, 692 W cap, dense bf16 matmul
# at 1470 instead of 1980 MHz, 600 W for a memory-bound copy, 57 °C at full power.
AWAKE_SHARE = 120 / 700
CAP_SHARE = 692 / 700
SM_WEIGHT, TENSOR_WEIGHT, DRAM_WEIGHT = 0.45, 1.40, 0.47
FULL_POWER_RISE_CELSIUS = 31.0
TIME_CONSTANT_SECONDS = 60.0
# The cooling that remains without fans, by convection and airflow of neighbours. With it, a GPU at its lowest clocks
# stays just at its operating limit.
STILL_AIR_COOLING = 0.12
# The air warms up along the GPUs of a node.
POSITION_CELSIUS = 5.0
INLET_CELSIUS = 25.0
# The lowest clock: 345 of 1980 MHz.
LOWEST_CLOCK_SHARE = 345 / 1980
CLOCK_STEP_MHZ = 15
# After its last process exits, a GPU keeps full clocks for this time (measured on an H200).
AWAKE_SECONDS = 30
IDLE_MEMORY_MIB = 4
RESERVED_SHARE = 0.0045
# Corrected errors are normal: about one per GPU and month.
CORRECTED_ERRORS_PER_SECOND = 1 / (30 * 86_400)

# The brake halves the clocks at least twice (NVML: hardware slowdown is a factor of two or more).
BRAKE_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Environment:
    """The effect of faults on hardware; without faults, shares are 1 and all other values 0."""

    fan: Floats
    power_cap: Floats
    clock: Floats
    inlet: Floats
    brake: Flags
    sbe_per_second: Floats
    pcie_replays_per_second: Floats
    leak_mib_per_second: Floats

    @staticmethod
    def healthy(count: int) -> Environment:
        return Environment(
            fan=np.ones(count),
            power_cap=np.ones(count),
            clock=np.ones(count),
            inlet=np.zeros(count),
            brake=np.zeros(count, dtype=bool),
            sbe_per_second=np.zeros(count),
            pcie_replays_per_second=np.zeros(count),
            leak_mib_per_second=np.zeros(count),
        )


class Physics:
    def __init__(self, layout: FleetLayout, rng: np.random.Generator) -> None:
        self.rng = rng
        nodes = layout.nodes
        per_gpu = layout.node_of_gpu

        def column(values: list[float]) -> Floats:
            return np.array(values, dtype=np.float64)[per_gpu]

        self.tdp = column([node.model.tdp_watts for node in nodes])
        self.idle_watts = column([node.model.idle_watts for node in nodes])
        self.max_mhz = column([node.model.max_sm_mhz for node in nodes])
        self.idle_mhz = column([node.model.idle_sm_mhz for node in nodes])
        self.max_operating = column([node.model.max_operating_celsius for node in nodes])
        self.slowdown = column([node.model.slowdown_celsius for node in nodes])
        self.memory_mib = column([node.model.memory_mib for node in nodes])
        self.reserved_mib = np.round(self.memory_mib * RESERVED_SHARE)
        self._resistance = FULL_POWER_RISE_CELSIUS / (self.tdp * CAP_SHARE)
        self._capacity = TIME_CONSTANT_SECONDS / self._resistance
        position = np.arange(layout.gpu_count) % 8 / 7
        rack_inlet = INLET_CELSIUS + rng.uniform(-1.5, 2.5, int(layout.rack_of_node.max()) + 1)
        self.inlet = rack_inlet[layout.rack_of_node][per_gpu] + POSITION_CELSIUS * position
        self._reset_state(layout.gpu_count)

    def _reset_state(self, count: int) -> None:
        self.temperature = self.inlet + self.idle_watts * self._resistance
        self.power = self.idle_watts.copy()
        self.clock_share = np.ones(count)
        self.clock_mhz = self.idle_mhz.copy()
        self.reasons = np.full(count, IDLE, dtype=np.int64)
        self.memory_used = np.full(count, float(IDLE_MEMORY_MIB))
        self.activity = np.zeros((9, count))
        self.recovery_action = np.zeros(count, dtype=np.int64)
        self.remap_pending, self.remap_failure = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
        self.remapped_rows = np.zeros(count, dtype=np.int64)
        self.sbe, self.dbe = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
        # These GPUs have been in use before, so lifetime counters do not start at 0.
        self.sbe_lifetime, self.dbe_lifetime = self.rng.poisson(0.4, count), np.zeros(count, dtype=np.int64)
        self.pcie_replays = self.rng.poisson(0.2, count)
        self.energy_mj = self.rng.uniform(1e9, 2e12, count).round()
        self.power_violation_ns, self.thermal_violation_ns = np.zeros(count), np.zeros(count)
        self.nvlink_errors, self._leaked_mib = np.zeros(count, dtype=np.int64), np.zeros(count)
        # The power limit that was set, as a share of the default one.
        self.power_limit = np.ones(count)
        self.enforced_watts = self.tdp.copy()
        self._thermal_share, self._idle_seconds = np.ones(count), np.full(count, float(AWAKE_SECONDS))

    def step(self, demand: Floats, is_occupied: Flags, memory_share: Floats, *, environment: Environment) -> None:
        """Simulate one second; `demand` is the result of SimJobs.activity."""
        noise = self.rng.standard_normal((2, len(self.tdp)))
        busy = demand[0] > 0
        self._idle_seconds = np.where(is_occupied | busy, 0.0, self._idle_seconds + 1.0)
        awake = self._idle_seconds < AWAKE_SECONDS
        noise_factor = 1.0 + 0.02 * noise[0]
        self.activity = np.clip(demand * noise_factor, 0.0, 1.0)
        self._update_clocks(awake, environment)
        self._update_temperature(environment, noise[1])
        self._leaked_mib = np.where(is_occupied & (environment.leak_mib_per_second > 0), self._leaked_mib, 0.0)
        self._leaked_mib += environment.leak_mib_per_second
        self._update_memory(is_occupied, memory_share)
        self._update_counters()
        if environment.pcie_replays_per_second.any():
            self.pcie_replays += self.rng.poisson(environment.pcie_replays_per_second)
        affected = environment.sbe_per_second > 0
        if affected.any():
            errors = self.rng.poisson(environment.sbe_per_second[affected])
            self.sbe[affected] += errors
            self.sbe_lifetime[affected] += errors

    def _update_clocks(self, awake: Flags, environment: Environment) -> None:
        sm, tensor, dram = self.activity[0], self.activity[1], self.activity[2]
        self.enforced_watts = self.tdp * environment.power_cap * self.power_limit
        cap = CAP_SHARE * self.enforced_watts
        base_watts = np.where(awake, self.tdp * AWAKE_SHARE, self.idle_watts)
        # Dynamic power at full clocks. It is proportional to the square of the clock, because voltage changes too.
        dynamic_watts = self.tdp * (1 - AWAKE_SHARE) * (SM_WEIGHT * sm + TENSOR_WEIGHT * tensor + DRAM_WEIGHT * dram)
        headroom = np.maximum(cap - base_watts, 1.0)
        power_share = np.sqrt(np.minimum(1.0, headroom / np.maximum(dynamic_watts, 1.0)))
        over_limit = self.temperature - self.max_operating
        # Clocks fall fast with heat and recover slowly, from one degree below the limit.
        change = np.where(over_limit > 0, -0.01 * over_limit, np.where(over_limit < -1, 0.005, 0.0))
        self._thermal_share = np.clip(self._thermal_share + change, LOWEST_CLOCK_SHARE, 1.0)
        is_hw_hot = self.temperature >= self.slowdown
        limit = np.minimum(np.minimum(self._thermal_share, environment.clock), np.where(is_hw_hot, 0.5, 1.0))
        limit = np.where(environment.brake, np.minimum(limit, BRAKE_SHARE), limit)
        share = np.maximum(LOWEST_CLOCK_SHARE, np.minimum(power_share, limit))
        self.clock_share = share
        self.power = base_watts + dynamic_watts * share**2
        active_mhz = np.round(self.max_mhz * share / CLOCK_STEP_MHZ) * CLOCK_STEP_MHZ
        self.clock_mhz = np.where(awake, active_mhz, self.idle_mhz)
        reasons = np.where(awake, 0, IDLE)
        reasons |= np.where((power_share < 1.0) & (power_share <= limit), POWER_CAP, 0)
        reasons |= np.where(awake & (self._thermal_share < 1.0), SW_THERMAL, 0)
        reasons |= np.where(awake & is_hw_hot, HW_SLOWDOWN | HW_THERMAL, 0)
        reasons |= np.where(environment.brake, HW_SLOWDOWN | POWER_BRAKE, 0)
        self.reasons = reasons

    def _update_temperature(self, environment: Environment, noise: Floats) -> None:
        # Regulation of the board adds a watt of noise, which the energy counter includes.
        self.power = np.maximum(self.power + 1.2 * noise, 10.0)
        cooling = STILL_AIR_COOLING + (1 - STILL_AIR_COOLING) * environment.fan
        removed_watts = (self.temperature - self.inlet - environment.inlet) * cooling / self._resistance
        self.temperature += (self.power - removed_watts) / self._capacity

    def _update_memory(self, is_occupied: Flags, memory_share: Floats) -> None:
        usable = self.memory_mib - self.reserved_mib - IDLE_MEMORY_MIB
        target_mib = IDLE_MEMORY_MIB + np.where(is_occupied, memory_share, 0.0) * usable
        target_mib = np.minimum(target_mib + self._leaked_mib, IDLE_MEMORY_MIB + usable)
        # Loading weights takes a few seconds; freeing memory is immediate.
        grown_mib = self.memory_used + np.maximum(0.25 * (target_mib - self.memory_used), 1.0)
        self.memory_used = np.minimum(target_mib, grown_mib)

    def _update_counters(self) -> None:
        self.energy_mj += self.power * 1000.0
        self.power_violation_ns += np.where(self.reasons & POWER_CAP, 1e9, 0.0)
        self.thermal_violation_ns += np.where(self.reasons & THERMAL, 1e9, 0.0)
        for row in self.rng.integers(0, len(self.tdp), self.rng.poisson(CORRECTED_ERRORS_PER_SECOND * len(self.tdp))):
            self.sbe[row] += 1
            self.sbe_lifetime[row] += 1

    def reload_driver(self, rows: slice | list[int]) -> None:
        """Reset volatile counters and complete pending row remaps, as after a reset or reboot."""
        self.power_limit[rows] = 1.0
        for counter in (self.sbe, self.dbe, self.remap_pending, self.recovery_action, self.pcie_replays):
            counter[rows] = 0
        for total in (self.energy_mj, self.power_violation_ns, self.thermal_violation_ns):
            total[rows] = 0.0
