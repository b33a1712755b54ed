"""Power, temperature and clocks are consistent."""

from __future__ import annotations

import dataclasses

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.properties import examples
from watchkeeper.sim import fleet, physics

WORK = np.array([0.95, 0.92, 0.17, 0.14, 0.98, 0.99, 0.001, 0.001, 0.1])


class Bench:
    """Eight H200s under a given load."""

    def __init__(self, *, seed: int = 1) -> None:
        self.state = physics.Physics(fleet.build_layout(gpus=8, seed=seed), np.random.default_rng(seed))
        self.fan = np.ones(8)

    def run(self, seconds: int, *, load: float) -> physics.Physics:
        environment = dataclasses.replace(physics.Environment.healthy(8), fan=self.fan)
        demand = np.repeat(WORK[:, None] * load, 8, axis=1)
        for _ in range(seconds):
            self.state.step(demand, np.full(8, load > 0), np.full(8, 0.5), environment=environment)
        return self.state


@examples(20)
@given(loads=st.lists(st.floats(0, 1), min_size=1, max_size=20), seed=st.integers(0, 2**31))
def test_energy_is_the_integral_of_power(loads: list[float], seed: int) -> None:
    bench = Bench(seed=seed)
    before, joules = bench.state.energy_mj.copy(), np.zeros(8)
    for load in loads:
        joules += bench.run(1, load=load).power
    assert np.allclose(bench.state.energy_mj - before, joules * 1000)


def test_dense_matmul_reaches_the_power_cap_like_the_recorded_h200() -> None:
    state = Bench().run(300, load=1.0)
    assert np.all(np.abs(state.power - 692) < 8)
    assert np.all((state.clock_mhz > 1380) & (state.clock_mhz < 1560))
    assert np.all(state.reasons == physics.POWER_CAP)
    assert np.all((state.temperature > 52) & (state.temperature < 66))


def test_temperature_settles_within_a_few_time_constants() -> None:
    bench = Bench()
    early = bench.run(300, load=1.0).temperature.copy()
    assert np.all(np.abs(bench.run(300, load=1.0).temperature - early) < 1.0)


def test_a_gpu_without_load_cools_down_and_goes_to_idle_clocks() -> None:
    bench = Bench()
    cold = bench.state.temperature.copy()
    hot = bench.run(300, load=1.0).temperature.copy()
    state = bench.run(600, load=0.0)
    assert np.all(hot > cold + 20)
    assert np.all(np.abs(state.temperature - cold) < 1.5)
    assert np.all(state.clock_mhz == 345)
    assert np.all(state.reasons == physics.IDLE)


def test_without_fans_clocks_fall_and_the_temperature_stays_below_shutdown() -> None:
    bench = Bench()
    cool_mhz = bench.run(300, load=1.0).clock_mhz.copy()
    bench.fan[:] = 0.0
    state = bench.run(180, load=1.0)
    assert np.all(state.temperature > state.max_operating)
    assert np.all(state.clock_mhz < cool_mhz / 2)
    assert np.all(state.reasons & physics.SW_THERMAL)
    assert np.all(bench.run(1800, load=1.0).temperature < 95)
    assert np.all(state.thermal_violation_ns > 60e9)


def test_a_reset_clears_volatile_counters_and_keeps_lifetime_counters() -> None:
    state = Bench().state
    state.dbe[3] = state.dbe_lifetime[3] = state.remap_pending[3] = 1
    state.reload_driver([3])
    assert (state.dbe[3], state.remap_pending[3], state.dbe_lifetime[3]) == (0, 0, 1)
