"""Diagnoses on a large fleet: time and number of queries for each kind of place.

A simulated fleet is scraped into the embedded engine, or written to a real VictoriaMetrics, until rates have enough
samples. Then incidents of a GPU, a node, a rack, a job and a pod are diagnosed with evidence, as in the pipeline. The
limits are 1 s and 20 queries.
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
INTERVALS = FleetIntervals(scrape_seconds=30, rule_seconds=30)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gpus", type=int, default=10_000, help="simulated GPUs")
    parser.add_argument("--engine", choices=["embedded", "victoria-metrics"], default="embedded")
    parser.add_argument("--repeats", type=int, default=5, help="diagnoses of each kind")


class CountingEngine:
    """An engine that counts its queries."""

    def __init__(self, inner: engine.InstantEngine) -> None:
        self._engine, self.query_count = inner, 0

    def instant(self, expr: str, at_ms: int) -> engine.QueryResult:
        self.query_count += 1
        return self._engine.instant(expr, at_ms)


def measure(options: argparse.Namespace) -> dict[str, float]:
    simulation = Simulation(SimSettings(gpus=options.gpus, seed=7))
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as ends:
        folder = Path(name)
        if options.engine == "embedded":
            monitored = MonitoredFleet(simulation, folder, intervals=INTERVALS)
            ends.callback(monitored.close)
            asyncio.run(monitored.advance(WARM_INTERVALS * remote.INTERVAL_SECONDS, with_rules=False))
            assert monitored.engine.local is not None
            series = len(monitored.engine.local.head)
        else:
            url, _ = ends.enter_context(remote.victoria_metrics(folder))
            server = remote.create_engine(url, options.gpus)
            ends.callback(server.close)
            monitored = MonitoredFleet(simulation, folder, intervals=INTERVALS, remote=server)
            ends.callback(monitored.close)
            asyncio.run(remote.advance_intervals(monitored, url, WARM_INTERVALS, with_rules=False))
            remote.flush_server(url)
            series = len(server.remote._encoded_labels)
        numbers: dict[str, float] = {"gpus": options.gpus, "series": series}
        for name, (cause, place) in _places(monitored).items():
            seconds, query_count = _measure(monitored, cause, place, repeats=options.repeats)
            numbers |= {f"{name}_seconds": seconds, f"{name}_questions": query_count}
        return numbers


def _places(monitored: MonitoredFleet) -> dict[str, tuple[str, fleet.Place]]:
    cluster, layout = monitored.simulation.settings.cluster, monitored.simulation.layout
    node = layout.nodes[len(layout.nodes) // 2]
    monitored_gpu = next(gpu for gpu in monitored.fleet.gpus() if gpu.node == node.name)
    jobs = monitored.simulation.machines.jobs.running.values()
    largest = max((job for job in jobs if not job.is_slurm), key=lambda job: len(job.rows))
    pod = f"{largest.template.namespace}/{next(iter(largest.pod_names.values()))}"
    return {
        "gpu": ("gpu_fell_off_bus", fleet.Place(cluster, node=node.name, gpu=monitored_gpu.gpu.uuid)),
        "node": ("cooling_failure", fleet.Place(cluster, node=node.name)),
        "rack": ("cooling_failure", fleet.Place(cluster, domain=f"rack={node.rack}")),
        "job": ("training_slow", fleet.Place(cluster, domain=f"job={largest.name}")),
        "pod": ("insufficient_gpu_capacity", fleet.Place(cluster, domain=f"pod={pod}")),
    }


def _measure(monitored: MonitoredFleet, cause: str, place: fleet.Place, *, repeats: int) -> tuple[float, int]:
    """The median seconds of a diagnosis, and its number of queries."""
    now, seconds, query_count = monitored.simulation.now, [], 0
    for _ in range(repeats):
        counting_engine = CountingEngine(monitored.engine)
        started_at = time.perf_counter()
        facts = evidence.gather_facts(
            _incident(cause, place, now),
            now,
            engine=counting_engine,
            events_at=lambda place_filter, since, until: monitored.journal.events_at(
                place_filter, since=since, until=until
            ),
            names=monitored.fleet.place_name,
        )
        explain.diagnose(facts, now)
        seconds.append(time.perf_counter() - started_at)
        query_count = counting_engine.query_count
    return round(median(seconds), 4), query_count


def _incident(cause: str, place: fleet.Place, now: datetime) -> incidents.Incident:
    row = explain.causes.lookup(cause)
    member = incidents.Member(incidents.MemberKind.ALERT, "x", place, cause, now, cause, severity=row.severity)
    return incidents.Incident(
        incidents.IncidentId("INC-1"), place, cause, alerts.Severity.WARNING, incidents.IncidentState.OPEN, now,
        cause, row.family, (member,),
    )  # fmt: skip
