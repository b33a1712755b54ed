"""A fleet larger than the store: nodes and GPUs whose series exceed the limit are not reported as broken."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from watchkeeper.drill.monitored_fleet import MonitoredFleet
from watchkeeper.kit import clock
from watchkeeper.sim.simulation import SimSettings, Simulation
from watchkeeper.store.head.head import Head


@pytest.mark.slow
def test_nodes_whose_pages_exceed_the_series_limit_are_not_down_and_miss_no_gpu(tmp_path: Path) -> None:
    simulation = Simulation(SimSettings(gpus=64, seed=7))
    store = Head(max_series=2500)
    monitored = MonitoredFleet(simulation, tmp_path, store=store)
    asyncio.run(monitored.advance(200))
    assert len(store) == store.max_series
    up = monitored.engine.instant("up", clock.to_ms(simulation.now)).latest()
    assert 0 < len(up) < len(monitored._target_loops)
    assert set(up.values()) == {1.0}
    assert monitored.incidents() == []
    monitored.close()


@pytest.mark.slow
def test_a_gpu_that_appears_when_the_store_is_full_is_not_missing(tmp_path: Path) -> None:
    simulation = Simulation(SimSettings(gpus=64, seed=7))
    absent = simulation.inject("gpu-missing", node="gpu-r01-02", gpu=3)
    store = Head()
    monitored = MonitoredFleet(simulation, tmp_path, store=store)
    asyncio.run(monitored.advance(25))
    store.max_series = len(store)
    simulation.end_fault(absent.id)
    asyncio.run(monitored.advance(200))
    assert monitored.incidents() == []
    monitored.close()


@pytest.mark.slow
def test_gpus_of_a_new_job_are_not_missing_when_the_store_is_full(tmp_path: Path) -> None:
    simulation = Simulation(SimSettings(gpus=64, seed=7))
    store = Head()
    monitored = MonitoredFleet(simulation, tmp_path, store=store)
    asyncio.run(monitored.advance(60))
    store.max_series = len(store)
    taken = next(node for node in simulation.layout.nodes if simulation.machines.jobs.jobs_on_node(node))
    simulation.cluster.drain(taken, "a person")
    asyncio.run(monitored.advance(200))
    assert monitored.incidents() == []
    monitored.close()
