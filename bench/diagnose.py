"""How long a diagnosis takes on a large fleet, and how many questions it asks, for each kind of place.

A simulated fleet is scraped into the embedded engine, or written to a real VictoriaMetrics, until rates can be
answered; then incidents of a GPU, a node, a rack, a job and a pod are diagnosed, evidence and all, as the pipeline does
it. The limits are 1 s and 20 questions.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import tempfile
import time
from datetime import datetime
from pathlib import Path
from statistics import median

from bench import remote
from watchkeeper.diagnose import evidence, explain
from watchkeeper.drill.monitored_fleet import FleetIntervals, MonitoredFleet
from watchkeeper.model import alerts, fleet, incidents
from watchkeeper.query import engine
from watchkeeper.sim.simulation import SimSettings, Simulation

WARM_INTERVALS = 6
PACE = FleetIntervals(scrape_seconds=30, rule_seconds=30)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gpus", type=int, default=10_000, help="simulated GPUs")
    parser.add_argument("--engine", choices=["embedded", "victoria-metrics"], default="embedded")
    parser.add_argument("--repeats", type=int, default=5, help="diagnoses of each kind")


class Counting:
    """An engine that counts its questions."""

    def __init__(self, inner: engine.InstantEngine) -> None:
        self._inner, self.asked = inner, 0

    def instant(self, expr: str, at_ms: int) -> engine.QueryResult:
        self.asked += 1
        return self._inner.instant(expr, at_ms)


def measure(options: argparse.Namespace) -> dict[str, float]:
    simulation = Simulation(SimSettings(gpus=options.gpus, seed=7))
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as ends:
        folder = Path(name)
        if options.engine == "embedded":
            watch = MonitoredFleet(simulation, folder, intervals=PACE)
            ends.callback(watch.close)
            asyncio.run(watch.advance(WARM_INTERVALS * remote.INTERVAL_SECONDS, with_rules=False))
            assert watch.engine.local is not None
            series = len(watch.engine.local.head)
        else:
            url, _ = ends.enter_context(remote.victoria_metrics(folder))
            server = remote.engine_of(url, options.gpus)
            ends.callback(server.close)
            watch = MonitoredFleet(simulation, folder, intervals=PACE, remote=server)
            ends.callback(watch.close)
            asyncio.run(remote.spend(watch, url, WARM_INTERVALS, with_rules=False))
            remote.show(url)
            series = len(server.remote._numbered)
        numbers: dict[str, float] = {"gpus": options.gpus, "series": series}
        for name, (cause, place) in _places(watch).items():
            seconds, asked = _time(watch, cause, place, repeats=options.repeats)
            numbers |= {f"{name}_seconds": seconds, f"{name}_questions": asked}
        return numbers


def _places(watch: MonitoredFleet) -> dict[str, tuple[str, fleet.Place]]:
    cluster, layout = watch.simulation.settings.cluster, watch.simulation.layout
    node = layout.nodes[len(layout.nodes) // 2]
    seen = next(gpu for gpu in watch.fleet.gpus() if gpu.node == node.name)
    jobs = watch.simulation.machines.jobs.running.values()
    largest = max((job for job in jobs if not job.is_slurm), key=lambda job: len(job.rows))
    pod = f"{largest.template.namespace}/{next(iter(largest.pod_names.values()))}"
    return {
        "gpu": ("gpu_fell_off_bus", fleet.Place(cluster, node=node.name, gpu=seen.gpu.uuid)),
        "node": ("cooling_failure", fleet.Place(cluster, node=node.name)),
        "rack": ("cooling_failure", fleet.Place(cluster, domain=f"rack={node.rack}")),
        "job": ("training_slow", fleet.Place(cluster, domain=f"job={largest.name}")),
        "pod": ("insufficient_gpu_capacity", fleet.Place(cluster, domain=f"pod={pod}")),
    }


def _time(watch: MonitoredFleet, cause: str, place: fleet.Place, *, repeats: int) -> tuple[float, int]:
    """The median of whole diagnoses, and the questions of one."""
    now, taken, asked = watch.simulation.now, [], 0
    for _ in range(repeats):
        counting = Counting(watch.engine)
        began = time.perf_counter()
        facts = evidence.gather_facts(
            _incident(cause, place, now),
            now,
            engine=counting,
            events_at=lambda where, since, until: watch.journal.events_at(where, since=since, until=until),
            names=watch.fleet.place_name,
        )
        explain.diagnose(facts, now)
        taken.append(time.perf_counter() - began)
        asked = counting.asked
    return round(median(taken), 4), asked


def _incident(cause: str, place: fleet.Place, now: datetime) -> incidents.Incident:
    row = explain.causes.lookup(cause)
    member = incidents.Member(incidents.MemberKind.ALERT, "x", place, cause, now, cause, severity=row.severity)
    return incidents.Incident(
        incidents.IncidentId("INC-1"), place, cause, alerts.Severity.WARNING, incidents.IncidentState.OPEN, now,
        cause, row.family, (member,),
    )  # fmt: skip
