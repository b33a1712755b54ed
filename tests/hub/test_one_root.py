"""A fault under a job: what its GPUs, ranks and pods show belongs to one incident, however long the job hangs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from watchkeeper.drill.monitored_fleet import MonitoredFleet
from watchkeeper.model.incidents import Incident
from watchkeeper.sim.simulation import SimSettings, Simulation

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
HANG_SECONDS = 27 * 60


async def hang_job(folder: Path) -> tuple[str, list[Incident]]:
    """The incidents after a GPU of a job fell off the bus, and a port of its other node got errors."""
    simulation = Simulation(SimSettings(gpus=64, seed=7))
    watch = MonitoredFleet(simulation, folder)
    try:
        layout, jobs = simulation.layout, simulation.machines.jobs.running.values()
        job = next(job for job in jobs if len(job.rows) == 16)
        first, second = dict.fromkeys(layout.nodes[int(layout.node_of_gpu[row])].name for row in job.rows)
        await watch.advance(60)
        simulation.inject("xid-79", node=first, gpu=3)
        simulation.inject("ib-symbol-errors", node=second)
        await watch.advance(HANG_SECONDS)
        return job.name, [incident for incident in watch.incidents() if incident.is_open]
    finally:
        watch.close()


def test_a_job_that_hangs_for_long_has_one_incident_beside_the_bad_port(tmp_path: Path) -> None:
    job, opened = asyncio.run(hang_job(tmp_path))
    assert sorted(incident.cause for incident in opened) == ["gpu_fell_off_bus", "ib_link_degraded"]
    root = next(incident for incident in opened if incident.cause == "gpu_fell_off_bus")
    port = next(incident for incident in opened if incident.cause == "ib_link_degraded")
    assert (root.root, port.root) == (None, root.id)
    assert {place.node for place in root.places if place.node} == {root.place.node, port.place.node}
    of_workloads = {member.place.domain: member.cause for member in root.members if member.place.domain}
    assert of_workloads[f"job={job}"] == "training_stalled"
    pods = [cause for domain, cause in of_workloads.items() if (domain or "").startswith("pod=")]
    assert pods == ["gpu_underused", "gpu_underused"], "utilisation reads 100 %, so they are not idle"
