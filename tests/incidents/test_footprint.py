"""The footprint of a job from its ranks or from the holders of GPUs, and the blast radius that follows."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from tests.support.incident_stories import NOON, Room, alert, gpu, job, later, node, xid
from watchkeeper.errors import PackError
from watchkeeper.incidents import blast_radius
from watchkeeper.incidents.footprint import NO_FOOTPRINT, Footprint, Footprints
from watchkeeper.kit import clock
from watchkeeper.model import fleet
from watchkeeper.model.labels import Labels
from watchkeeper.model.samples import STALE, Sample
from watchkeeper.query import embedded
from watchkeeper.store.head import head


class RankSamples:
    """An engine with samples of ranks, and the footprints that it returns."""

    def __init__(self) -> None:
        self.engine = embedded.EmbeddedEngine(head.Head())
        self.now: datetime = NOON
        self.footprints = Footprints(self.engine, lambda: self.now)

    def record(self, series: str, at: float, value: float = 1.0, /, **names: str) -> None:
        labels = Labels({"__name__": series, "cluster": "main", **names})
        self.engine.appender.append([Sample(labels, clock.to_ms(later(at)), value)])

    def rank(self, number: int, place: fleet.Place, at: float, value: float = 1.0) -> None:
        where = {"Hostname": place.node or "", "UUID": place.gpu or ""}
        self.record("training_rank_info", at, value, job_name="llm", rank=str(number), **where)

    def footprint_of(self, place: fleet.Place, at: float) -> Footprint:
        self.now = later(at)
        return self.footprints.footprint_of(place)


def test_ranks_report_their_gpus_and_an_ended_rank_keeps_its_last_gpu() -> None:
    samples = RankSamples()
    for number in (0, 1):
        samples.rank(number, gpu(number, f"n{number}"), 0)
    samples.rank(1, gpu(1, "n1"), 15, STALE)
    samples.rank(0, gpu(0, "n0"), 540)
    assert samples.footprint_of(job(), 600).gpus == {gpu(0, "n0"), gpu(1, "n1")}
    assert samples.footprint_of(job(), 1000).gpus == {gpu(0, "n0")}


def test_a_rank_that_restarted_on_another_node_has_left_the_first() -> None:
    samples = RankSamples()
    samples.rank(0, gpu(0, "n1"), 0)
    samples.rank(0, gpu(0, "n1"), 30, STALE)
    samples.rank(0, gpu(5, "n2"), 60)
    assert samples.footprint_of(job(), 70).nodes == {node("n2")}


def test_a_job_without_rank_metrics_runs_where_it_holds_gpus() -> None:
    samples = RankSamples()
    samples.record("watchkeeper:job_gpu:share", 0, job_name="4711", Hostname="n1", UUID="GPU-n1-1")
    samples.record("watchkeeper_gpu_workload_info", 0, namespace="a", workload="p-0", Hostname="n2", UUID="GPU-n2-1")
    assert samples.footprint_of(job("4711"), 10).gpus == {gpu(1)}
    assert samples.footprint_of(fleet.Place("main", domain="pod=a/p-0"), 10).gpus == {gpu(1, "n2")}
    assert samples.footprint_of(fleet.Place("other", domain="job=4711"), 10) == NO_FOOTPRINT


def test_a_footprint_includes_only_its_gpus_its_nodes_and_their_ports() -> None:
    footprint = Footprint.from_places([gpu(0), gpu(1), node("n2")])
    port = fleet.Place("main", node="n1", port="mlx5_0/1")
    mig = fleet.Place("main", node="n1", gpu="GPU-n1-0", slice="3")
    assert all(footprint.includes(place) for place in (gpu(0), node(), port, mig, gpu(7, "n2")))
    assert not any(footprint.includes(place) for place in (gpu(2), node("n3"), fleet.Place("main"), job()))


def test_a_failed_query_gives_an_empty_footprint() -> None:
    class Broken:
        def instant(self, expr: str, at_ms: int) -> Any:
            raise PackError(f"{expr} at {at_ms}")

    assert Footprints(Broken(), lambda: NOON).footprint_of(job()) == NO_FOOTPRINT


@pytest.mark.parametrize("is_held", [True, False])
def test_a_job_counts_once_with_all_its_gpus_and_hides_its_pods(room: Room, is_held: bool) -> None:
    samples = RankSamples()
    for at in range(16):
        place = gpu(at % 8, f"n{1 + at // 8}")
        samples.rank(at, place, 50)
        if is_held:
            where = {"Hostname": place.node or "", "UUID": place.gpu or ""}
            pod = f"llm-{at // 8}"
            samples.record("watchkeeper_gpu_workload_info", 50, namespace="ai", workload=pod, team="core", **where)
    room.workloads, room.jobs = lambda _: ["ai/llm-0", "ai/other"], {job(): Footprint.from_places([gpu(3)])}
    room.push(xid(79, gpu(3), 0))
    room.hear(alert("training_stalled", job(), 50, severity="warning"))
    (incident,) = room.incidents.open_incidents()
    query = blast_radius.holders_query(incident, later(60))
    assert query is not None
    radius = blast_radius.compute_blast_radius(
        incident,
        samples.engine.instant(*query).frame.labels,
        now=later(3600),
        gpus_at=lambda place: [place.gpu or ""],
        price_per_gpu_hour=2.0,
    )
    assert radius.affected_workloads[0] == blast_radius.AffectedWorkload(
        "llm", "core" if is_held else "unmapped", 16, True
    )
    assert [hit.workload for hit in radius.affected_workloads] == (
        ["llm", "ai/other"] if is_held else ["llm", "ai/llm-0", "ai/other"]
    )
    assert (radius.broken_gpus, radius.gpus) == (1, 16)


def test_a_pod_of_a_training_job_counts_all_its_pods_and_a_replica_only_itself(room: Room) -> None:
    samples = RankSamples()
    for at, (space, name, pod) in enumerate(
        [
            *(("ai", "llm", f"llm-worker-{n}") for n in range(4)),
            ("ops", "llm", "llm-worker-0"),
            ("ai", "chat", "chat-x"),
        ]
    ):
        where = {"Hostname": f"n{at}", "UUID": f"GPU-n{at}-0", "namespace": space, "workload": pod, "team": "core"}
        samples.record("watchkeeper:job_gpu:share", 50, job_name=name, workload_kind="pod", **where)
        samples.record("watchkeeper_gpu_workload_info", 50, **where)
        if name == "llm":
            gang = {"workload_kind": "pod", "namespace": space, "job_name": name, "training_job": name}
            samples.record("watchkeeper:job_training:group", 50, **gang)
    room.workloads = lambda _: ["ai/llm-worker-1", "ai/llm-worker-2", "ai/chat-x"]
    (incident,) = room.push(xid(79, gpu(3), 0))
    query = blast_radius.holders_query(incident, later(60))
    assert query is not None
    holders = samples.engine.instant(*query).frame.labels
    radius = blast_radius.compute_blast_radius(
        incident, holders, now=later(3600), gpus_at=lambda place: [place.gpu or ""], price_per_gpu_hour=2.0
    )
    assert radius.affected_workloads == (
        blast_radius.AffectedWorkload("ai/llm", "core", 4),
        blast_radius.AffectedWorkload("ai/chat-x", "core", 1),
    )
    assert (radius.broken_gpus, radius.gpus) == (1, 1), "no signal says that the job is stopped"
