"""Two faults at once in one simulated fleet: each is diagnosed with its own cause at its own place."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from watchkeeper.drill.monitored_fleet import MonitoredFleet
from watchkeeper.sim.simulation import SimSettings, Simulation

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
LOOK_SECONDS = 15
PATIENCE_SECONDS = 240


async def live_through(names: tuple[str, str], folder: Path, *, node: str | None) -> set[str]:
    """The faults that were named right, with the right place, in the first minutes."""
    simulation = Simulation(SimSettings(gpus=128, seed=7))
    watch = MonitoredFleet(simulation, folder)
    try:
        await watch.advance(2 * LOOK_SECONDS)
        faults = [simulation.inject(name, node=node) for name in names]
        right: set[str] = set()
        for _ in range(0, PATIENCE_SECONDS, LOOK_SECONDS):
            await watch.advance(LOOK_SECONDS)
            diagnoses = [(incident.place, watch.journal.diagnosis(incident.id)) for incident in watch.incidents()]
            for fault in faults:
                place, truth = simulation.fault_place(fault), fault.scenario.truth
                right |= {
                    fault.scenario.name
                    for at, diagnosis in diagnoses
                    if diagnosis is not None and diagnosis.best is not None and diagnosis.best.cause == truth.cause
                    and place in (at, diagnosis.best.place)
                }  # fmt: skip
            if len(right) == len(names):
                break
        return right
    finally:
        watch.close()


@pytest.mark.parametrize(
    ("names", "node"),
    [
        (("xid-48", "xid-31"), "gpu-r01-02"),
        (("xid-79", "xid-31"), None),
        (("node-down", "xid-79"), None),
        (("host-oom", "xid-94"), None),
        (("pod-pending-taint", "pod-pending-capacity"), None),
        (("driver-mismatch", "xid-119"), None),
    ],
)
def test_two_concurrent_faults_are_both_diagnosed(names: tuple[str, str], node: str | None, tmp_path: Path) -> None:
    assert asyncio.run(live_through(names, tmp_path, node=node)) == set(names)
