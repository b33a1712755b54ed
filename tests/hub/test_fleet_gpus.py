"""One state for each GPU: who holds it, what is out of service, and that a missing GPU is never free."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.manual_clock import ManualClock
from tests.web import stories
from tests.web.kept_services import START
from tests.web.running import serving
from tests.web.small_hub import SmallHub
from watchkeeper.catalogue import pack
from watchkeeper.hub import fleet_gpus, fleet_layout, holders
from watchkeeper.hub.fleet_gpus import FleetGpuSources, FleetGpuStates
from watchkeeper.model import cluster, workloads
from watchkeeper.model.gpu_states import GpuCounts, GpuState
from watchkeeper.web.fleet import frames

NODE = "gpu-r01-01"


def small_hub() -> SmallHub:
    return SmallHub(racks=1, per_rack=1, clock=ManualClock(START))


def decide(hub: SmallHub, *, held: int = 0, silent: int = 0, view: cluster.ClusterView | None = None) -> FleetGpuStates:
    """The first GPUs are held, the last are silent."""
    uuids = [gpu.gpu.uuid for gpu in hub.fleet.fleet_gpus if gpu.gone_since_ms is None]
    by_gpu = {uuid: (holders.GpuHolder(uuid, NODE, "main", "pod", "train", "ml"),) for uuid in uuids[:held]}
    layout = fleet_layout.current_layout(hub.fleet)
    reporting = frozenset(uuids[: len(uuids) - silent])
    views, open_incidents = [] if view is None else [view], hub.journal.incidents()
    gpu_holders = holders.GpuHolders(by_gpu)
    return fleet_gpus.decide_states(FleetGpuSources(layout, reporting, gpu_holders, views, open_incidents))


def scheduler(*, allocated: int = 0, **facts: Any) -> cluster.ClusterView:
    facts = {"state": "Ready", "is_ready": True, "is_schedulable": True, "gpus": 8, "allocatable_gpus": 8} | facts
    job = workloads.Workload(workloads.WorkloadKind.SLURM_JOB, "1")
    running = workloads.WorkloadState.RUNNING
    work = workloads.ScheduledWorkload("main", job, state=running, gpus=allocated, nodes={NODE: allocated})
    return cluster.ClusterView(
        "slurm", 1, nodes=(cluster.ScheduledNode("main", NODE, "slurm", **facts),), workloads=(work,)
    )


@pytest.mark.parametrize(
    ("view", "counts"),
    [
        (None, {"allocated": 3, "free": 3, "not_reporting": 2}),
        (scheduler(allocated=5), {"allocated": 5, "free": 1, "not_reporting": 2}),
        (scheduler(allocated=1), {"allocated": 3, "free": 3, "not_reporting": 2}),
        (scheduler(is_schedulable=False), {"allocated": 3, "cordoned": 3, "not_reporting": 2}),
        (scheduler(is_ready=False), {"allocated": 3, "unhealthy": 3, "not_reporting": 2}),
        (scheduler(allocatable_gpus=5), {"allocated": 3, "free": 2, "unhealthy": 1, "not_reporting": 2}),
        (scheduler(gpus=56, allocatable_gpus=56, gpu_part=1 / 7), {"allocated": 3, "free": 3, "not_reporting": 2}),
    ],
)
def test_samples_and_the_scheduler_decide_together(view: cluster.ClusterView | None, counts: dict[str, int]) -> None:
    assert decide(small_hub(), held=3, silent=2, view=view).count() == GpuCounts(gpus=8, **counts)


def test_a_node_that_only_its_scheduler_knows_is_counted_by_the_scheduler() -> None:
    hub = small_hub()
    hub.fleet.fleet_gpus = []
    assert decide(hub).count() == GpuCounts(gpus=8, not_reporting=8)
    assert decide(hub, view=scheduler(allocated=6)).count() == GpuCounts(gpus=8, allocated=6, free=2)


def test_a_lost_gpu_is_down_and_a_free_gpu_with_a_critical_incident_is_unhealthy() -> None:
    hub = SmallHub(racks=1, per_rack=2)
    lost = stories.lose_gpu(hub).place.gpu
    states = decide(hub)
    slot = states.layout.slot_by_uuid[lost or ""]
    assert states.states[slot] is GpuState.UNHEALTHY, "it still reports"
    hub.fleet.fleet_gpus = [
        replace(gpu, gone_since_ms=1) if gpu.gpu.uuid == lost else gpu for gpu in hub.fleet.fleet_gpus
    ]
    assert decide(hub).states[slot] is GpuState.DOWN


def test_without_queries_every_gpu_is_unknown_and_none_is_free() -> None:
    hub = small_hub()
    hub.queries.failing = True
    counts = asyncio.run(fleet_gpus.FleetGpus(hub.services).load()).count()
    assert counts == GpuCounts(gpus=8, unknown=8)
    assert counts.allocated_share is None


@given(
    held=st.integers(0, 8),
    silent=st.integers(0, 8),
    allocated=st.integers(0, 12),
    facts=st.fixed_dictionaries(
        {"is_ready": st.sampled_from([True, False, None]), "is_schedulable": st.booleans()},
        optional={"gpus": st.integers(1, 60), "allocatable_gpus": st.integers(0, 60), "gpu_part": st.just(1 / 7)},
    ),
)
def test_each_gpu_is_in_one_state_and_a_missing_one_is_never_free_or_allocated(
    held: int, silent: int, allocated: int, facts: dict[str, Any]
) -> None:
    states = decide(small_hub(), held=held, silent=silent, view=scheduler(allocated=allocated, **facts))
    counts = states.count()
    assert sum(getattr(counts, state.value) for state in GpuState) == counts.gpus == 8
    assert counts.not_reporting == silent
    assert counts.allocated >= min(held, 8 - silent)
    assert counts.describe().startswith("8 GPUs: ")


def test_every_page_has_the_same_counts_from_the_moment_a_node_falls_silent() -> None:
    clock = ManualClock(START)
    hub = SmallHub(racks=2, per_rack=2, clock=clock)
    with serving(hub) as site:
        for silent in (set(), {gpu.gpu.uuid for gpu in hub.fleet.fleet_gpus[:8]}):
            hub.readings.silent = silent
            asyncio.run_coroutine_threadsafe(clock.advance(6.0), site.loop).result()
            answers = {path: site.ask(f"/api/{path}").json for path in ("status", "nodes", "jobs", "capacity/now")}
            counts = [answer["gpus"] for answer in answers.values()]
            assert all(count == counts[0] for count in counts), answers
            assert (counts[0]["gpus"], counts[0]["not_reporting"]) == (32, len(silent))
            standing, lines = answers["capacity/now"]["standing"], answers["nodes"]["nodes"]
            assert (standing["held_gpus"], standing["free_gpus"]) == (counts[0]["allocated"], counts[0]["free"])
            assert sum(line["gpus_seen"] for line in lines) == 32 - len(silent)
            assert [line["state"] for line in lines].count("up") == (3 if silent else 4)


def test_the_tile_and_the_chart_of_activity_are_one_expression() -> None:
    chart = next(strip for strip in json.loads(pack.text_of("console/fleet.json")) if strip["label"] == "SM active")
    assert chart["expr"] == f"100 * avg({frames.ACTIVITY_EXPR})"
