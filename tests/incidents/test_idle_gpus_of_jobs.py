"""GPUs that are idle because their job is stalled belong to the job's incident; others have their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.incident_stories import Room, alert, gpu, job, later, node, xid
from watchkeeper.incidents import blast_radius
from watchkeeper.incidents.footprint import Footprint
from watchkeeper.model import alerts, fleet

POD = fleet.Place("main", domain="pod=ml/llm-worker-0")


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    """`llm` has four GPUs on each of two nodes, two of its pods' are on the first; the fifth of it is a notebook's."""
    made = Room(tmp_path)
    first, second = ([gpu(at, name) for at in range(4)] for name in ("n1", "n2"))
    made.jobs = {job("llm"): Footprint.from_places([*first, *second]), POD: Footprint.from_places(first)}
    yield made
    made.journal.close()


def stalled(at: float, *, ends: float | None = None, cause: str = "training_stalled") -> alerts.Alert:
    return alert(cause, job("llm"), at, ends=ends, severity="warning")


def idle(place: fleet.Place, at: float, *, ends: float | None = None) -> alerts.Alert:
    return alert("gpu_idle_waste", place, at, ends=ends, severity="info")


def busy_without_work(at: float) -> alerts.Alert:
    alert_of_gpu = idle(gpu(0), at)
    return replace(
        alert_of_gpu, labels=alert_of_gpu.labels.with_labels(Hostname="", UUID="", namespace="ml", pod="llm-worker-0")
    )


@pytest.mark.parametrize("cause", ["training_stalled", "nccl_rank_died"])
def test_idle_gpus_of_a_stalled_job_join_its_incident(room: Room, cause: str) -> None:
    room.hear(stalled(0, cause=cause), idle(gpu(3), 900), idle(gpu(0, "n2"), 960))
    assert room.open() == [("INC-1", job("llm"), cause)]
    (incident,) = room.incidents.open_incidents()
    assert ([member.cause for member in incident.members].count("gpu_idle_waste"), incident.severity.value) == (
        2,
        "warning",
    )


def test_gpus_that_were_idle_long_before_their_job_was_detected_as_stalled_join_too(room: Room) -> None:
    room.hear(idle(gpu(0), 0), idle(gpu(1, "n2"), 60), stalled(1800))
    assert room.open() == [("INC-1", job("llm"), "training_stalled")]
    assert room.journal.incident("INC-2").part_of == "INC-1"  # type: ignore[union-attr]


def test_a_pod_that_only_seems_busy_belongs_to_the_hang_of_its_job(room: Room) -> None:
    room.hear(stalled(0), busy_without_work(1500))
    assert room.open() == [("INC-1", job("llm"), "training_stalled")]


def test_an_idle_gpu_of_another_holder_has_an_incident_of_its_own(room: Room) -> None:
    room.hear(stalled(0), idle(gpu(5), 900), idle(gpu(0, "n3"), 900))
    assert [place for _, place, _ in room.open()] == [job("llm"), gpu(5), gpu(0, "n3")]


def test_the_incident_ends_when_the_job_recovers_and_its_gpus_are_busy(room: Room) -> None:
    room.hear(stalled(0), idle(gpu(3), 900), stalled(0, ends=1200))
    room.tick(1900)
    assert room.open() == [("INC-1", job("llm"), "training_stalled")]
    room.hear(idle(gpu(3), 900, ends=2000))
    room.tick(3000)
    assert room.open() == []


def held(place: fleet.Place, at: float, pod: str, *, ends: float | None = None) -> alerts.Alert:
    alert_of_gpu = idle(place, at, ends=ends)
    return replace(alert_of_gpu, labels=alert_of_gpu.labels.with_labels(namespace="ml", pod=pod))


@pytest.fixture
def shared(room: Room) -> Room:
    """Holders: two pods of `llm` on two nodes, and a notebook on the first node."""
    holders = {gpu(5): "ml/notebook"} | {gpu(at): "ml/llm-worker-0" for at in range(4)}
    holders |= {gpu(at, "n2"): "ml/llm-worker-1" for at in range(4)}
    room.workloads = lambda place: [holders[place]] if place in holders else []
    return room


def test_idle_gpus_of_one_job_are_one_incident_on_whichever_node(shared: Room) -> None:
    shared.hear(
        held(gpu(0), 0, "llm-worker-0"), held(gpu(1), 30, "llm-worker-0"), held(gpu(2, "n2"), 60, "llm-worker-1")
    )
    shared.hear(held(gpu(5), 60, "notebook"))
    assert [(id, place) for id, place, _ in shared.open()] == [("INC-1", gpu(0)), ("INC-2", gpu(5))]
    job_s, notebook_s = shared.incidents.open_incidents()
    assert job_s.title.endswith("GPU 0 on n1 and 2 more")
    assert notebook_s.title.endswith("GPU 5 on n1")
    assert job_s.workloads == ("ml/llm-worker-0", "ml/llm-worker-1")


def test_the_incident_of_idle_gpus_ends_with_the_last_of_them(shared: Room) -> None:
    shared.hear(held(gpu(0), 0, "llm-worker-0"), held(gpu(2, "n2"), 60, "llm-worker-1"))
    shared.hear(held(gpu(0), 0, "llm-worker-0", ends=600))
    shared.tick(1200)
    assert [id for id, _, _ in shared.open()] == ["INC-1"]
    shared.hear(held(gpu(2, "n2"), 60, "llm-worker-1", ends=1200))
    shared.tick(1900)
    assert shared.open() == []


def test_idle_gpus_of_one_job_in_two_pools_are_two_incidents(shared: Room) -> None:
    shared.pools = {"n2": "batch"}
    shared.hear(held(gpu(0), 0, "llm-worker-0"), held(gpu(2, "n2"), 60, "llm-worker-1"))
    assert [place for _, place, _ in shared.open()] == [gpu(0), gpu(2, "n2")]


def test_broken_gpus_of_one_job_stay_incidents_of_their_own(shared: Room) -> None:
    broken = [alert("ecc_uncorrectable", gpu(at), at) for at in (0, 1)]
    shared.hear(
        *(
            replace(alert_of_gpu, labels=alert_of_gpu.labels.with_labels(namespace="ml", pod="llm-worker-0"))
            for alert_of_gpu in broken
        )
    )
    assert [place for _, place, _ in shared.open()] == [gpu(0), gpu(1)]


def test_idle_gpus_of_a_job_join_when_it_is_detected_as_stalled(shared: Room) -> None:
    shared.hear(held(gpu(0), 0, "llm-worker-0"), held(gpu(2, "n2"), 60, "llm-worker-1"), stalled(1800))
    assert shared.open() == [("INC-1", job("llm"), "training_stalled")]
    shared.hear(held(gpu(3, "n2"), 2000, "llm-worker-1"))
    assert [id for id, _, _ in shared.open()] == ["INC-1"]


def test_all_idle_gpus_of_a_job_count(shared: Room) -> None:
    shared.hear(
        held(gpu(0), 0, "llm-worker-0"), held(gpu(1), 30, "llm-worker-0"), held(gpu(2, "n2"), 60, "llm-worker-1")
    )
    (incident,) = shared.incidents.open_incidents()
    hit = blast_radius.compute_blast_radius(
        incident, (), now=later(3600), gpus_at=lambda place: [place.gpu or ""], price_per_gpu_hour=2
    )
    assert (hit.broken_gpus, hit.gpus, hit.dollars_per_hour) == (0, 3, 6)


def underused(pod: str, at: float, *, ends: float | None = None) -> alerts.Alert:
    of_pod = alert("gpu_underused", fleet.Place("main"), at, ends=ends, severity="info")
    return replace(of_pod, labels=of_pod.labels.with_labels(namespace="ml", pod=pod))


@pytest.fixture
def pods(shared: Room) -> Room:
    """Where the two pods of `llm` run."""
    shared.jobs[POD] = Footprint.from_places([gpu(at) for at in range(4)])
    second = fleet.Place("main", domain="pod=ml/llm-worker-1")
    shared.jobs[second] = Footprint.from_places([gpu(at, "n2") for at in range(4)])
    return shared


def test_pods_of_a_job_that_a_lost_gpu_stops_join_its_incident_on_whichever_node(pods: Room) -> None:
    pods.push(xid(79, gpu(3), 0))
    pods.hear(stalled(60), underused("llm-worker-1", 1400), underused("llm-worker-0", 1430))
    assert pods.open() == [("INC-1", gpu(3), "gpu_fell_off_bus")]
    pods.restart(1500)
    pods.hear(idle(gpu(2, "n2"), 1600))
    assert pods.open() == [("INC-1", gpu(3), "gpu_fell_off_bus")]


def test_pods_join_when_the_stall_of_their_job_returns(pods: Room) -> None:
    pods.push(xid(79, gpu(3), 0))
    pods.hear(stalled(60), stalled(60, ends=300), underused("llm-worker-1", 1400))
    assert [id for id, _, _ in pods.open()] == ["INC-1", "INC-2"]
    pods.hear(stalled(1500))
    assert pods.open() == [("INC-1", gpu(3), "gpu_fell_off_bus")]


def test_pods_of_one_job_that_are_busy_without_work_are_one_incident(pods: Room) -> None:
    pods.hear(underused("llm-worker-0", 0), underused("llm-worker-1", 30), underused("other", 60))
    first, second = pods.incidents.open_incidents()
    assert (first.cause, [member.place.domain for member in first.members]) == (
        "gpu_underused",
        ["pod=ml/llm-worker-0", "pod=ml/llm-worker-1"],
    )
    assert "idle" not in first.title
    assert " and 1 more " in first.title
    assert second.place.domain == "pod=ml/other"


def test_another_fault_under_a_stopped_job_names_the_incident_that_stops_it(pods: Room) -> None:
    pods.push(xid(79, gpu(3), 0))
    port = alert("ib_link_degraded", node("n2"), 30, severity="warning")
    pods.hear(port, alert("ib_link_degraded", node("n9"), 30, severity="warning"), stalled(60))
    pods.tick(61)
    roots = {incident.place.node: incident.root for incident in pods.incidents.open_incidents()}
    assert roots == {"n1": None, "n2": "INC-1", "n9": None}
    pods.restart(70)
    pods.hear(stalled(60, ends=600))
    pods.tick(620)
    assert {incident.root for incident in pods.incidents.open_incidents()} == {None}
    linked = next(entry for entry in pods.journal.timeline("INC-2") if entry.kind == "linked")
    assert linked.text == "INC-1 stops a job that runs here"


def test_an_incident_of_a_stopped_job_concerns_every_gpu_of_it(pods: Room) -> None:
    pods.push(xid(79, gpu(3), 0))
    pods.hear(stalled(60))
    (incident,) = pods.incidents.open_incidents()
    held = [gpu(at, name) for at in range(4) for name in ("n1", "n2")]
    assert set(incident.places) == {*held, job("llm")}
    assert all(incident.concerns_gpu("main", str(place.node), str(place.gpu)) for place in held)
    assert not incident.concerns_gpu("main", "n1", "GPU-n1-5")
    pods.hear(stalled(60, ends=300))
    (incident,) = pods.incidents.open_incidents()
    assert set(incident.places) == {gpu(3)}, "the job makes progress again"


def test_the_nodes_stand_for_the_gpus_of_a_large_job(room: Room) -> None:
    nodes = [node(f"n{at}") for at in range(4)]
    room.jobs[job("llm")] = Footprint.from_places([gpu(at, str(place.node)) for place in nodes for at in range(8)])
    room.hear(stalled(0))
    assert room.incidents.open_incidents()[0].runs_on == tuple(nodes)
