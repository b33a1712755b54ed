"""A fleet that is larger than the store: what finds no room is not taken for broken."""

from __future__ import annotations

import asyncio
from pathlib import Path

from watchkeeper.drill.watch import Watch
from watchkeeper.kit import clock
from watchkeeper.sim.simulation import SimSettings, Simulation
from watchkeeper.store.head import Head


def test_nodes_whose_pages_find_no_room_are_neither_down_nor_without_their_gpus(tmp_path: Path) -> None:
    simulation = Simulation(SimSettings(gpus=64, seed=7))
    store = Head(max_series=2500)
    watch = Watch(simulation, tmp_path, store=store)
    asyncio.run(watch.advance(200))
    assert len(store) == store.max_series
    up = watch.engine.instant("up", clock.to_ms(simulation.now)).latest()
    assert 0 < len(up) < len(watch._loops)
    assert set(up.values()) == {1.0}
    assert watch.incidents() == []
    watch.close()
