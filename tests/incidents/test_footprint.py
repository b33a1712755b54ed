"""Where a job runs, as its ranks or the holders of GPUs tell, and what stands still with it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from tests.support.incident_stories import NOON, Room, alert, gpu, job, later, node, xid
from watchkeeper.errors import PackError
from watchkeeper.incidents import blast
from watchkeeper.incidents.footprint import NOWHERE, Footprint, Footprints
from watchkeeper.kit import clock
from watchkeeper.model import fleet
from watchkeeper.model.labels import Labels
from watchkeeper.model.samples import STALE, Sample
from watchkeeper.query import embedded
from watchkeeper.store.head import head


class Told:
    """An engine that was told of ranks, and the footprints asked of it at the time of the story."""

    def __init__(self) -> None:
        self.engine = embedded.EmbeddedEngine(head.Head())
        self.now: datetime = NOON
        self.footprints = Footprints(self.engine, lambda: self.now)

    def tell(self, series: str, at: float, value: float = 1.0, /, **names: str) -> None:
        labels = Labels({"__name__": series, "cluster": "main", **names})
        self.engine.appender.append([Sample(labels, clock.to_ms(later(at)), value)])

    def rank(self, number: int, place: fleet.Place, at: float, value: float = 1.0) -> None:
        where = {"Hostname": place.node or "", "UUID": place.gpu or ""}
        self.tell("training_rank_info", at, value, job_name="llm", rank=str(number), **where)

    def of(self, place: fleet.Place, at: float) -> Footprint:
        self.now = later(at)
        return self.footprints.footprint_of(place)


def test_ranks_tell_their_gpus_and_one_that_is_gone_is_where_it_was() -> None:
    told = Told()
    for number in (0, 1):
        told.rank(number, gpu(number, f"n{number}"), 0)
    told.rank(1, gpu(1, "n1"), 15, STALE)
    told.rank(0, gpu(0, "n0"), 540)
    assert told.of(job(), 600).gpus == {gpu(0, "n0"), gpu(1, "n1")}
    assert told.of(job(), 1000).gpus == {gpu(0, "n0")}


def test_a_rank_that_was_started_elsewhere_is_no_longer_where_it_was() -> None:
    told = Told()
    told.rank(0, gpu(0, "n1"), 0)
    told.rank(0, gpu(0, "n1"), 30, STALE)
    told.rank(0, gpu(5, "n2"), 60)
    assert told.of(job(), 70).nodes == {node("n2")}


def test_a_job_without_a_word_of_its_own_is_where_its_gpus_are_held() -> None:
    told = Told()
    told.tell("watchkeeper:job_gpu:share", 0, job_name="4711", Hostname="n1", UUID="GPU-n1-1")
    told.tell("watchkeeper_gpu_workload_info", 0, namespace="a", workload="p-0", Hostname="n2", UUID="GPU-n2-1")
    assert told.of(job("4711"), 10).gpus == {gpu(1)}
    assert told.of(fleet.Place("main", domain="pod=a/p-0"), 10).gpus == {gpu(1, "n2")}
    assert told.of(fleet.Place("other", domain="job=4711"), 10) == NOWHERE


def test_a_fault_meets_a_job_on_its_gpus_its_nodes_and_their_ports_only() -> None:
    found = Footprint.from_places([gpu(0), gpu(1), node("n2")])
    port = fleet.Place("main", node="n1", port="mlx5_0/1")
    mig = fleet.Place("main", node="n1", gpu="GPU-n1-0", slice="3")
    assert all(found.includes(place) for place in (gpu(0), node(), port, mig, gpu(7, "n2")))
    assert not any(found.includes(place) for place in (gpu(2), node("n3"), fleet.Place("main"), job()))


def test_an_engine_that_fails_says_that_nobody_tells() -> None:
    class Broken:
        def instant(self, expr: str, at_ms: int) -> Any:
            raise PackError(f"{expr} at {at_ms}")

    assert Footprints(Broken(), lambda: NOON).footprint_of(job()) == NOWHERE


@pytest.mark.parametrize("is_held", [True, False])
def test_a_job_counts_once_with_all_its_gpus_and_hides_its_pods(room: Room, is_held: bool) -> None:
    told = Told()
    for at in range(16):
        place = gpu(at % 8, f"n{1 + at // 8}")
        told.rank(at, place, 50)
        if is_held:
            where = {"Hostname": place.node or "", "UUID": place.gpu or ""}
            pod = f"llm-{at // 8}"
            told.tell("watchkeeper_gpu_workload_info", 50, namespace="ai", workload=pod, team="core", **where)
    room.workloads, room.jobs = lambda _: ["ai/llm-0", "ai/other"], {job(): Footprint.from_places([gpu(3)])}
    room.push(xid(79, gpu(3), 0))
    room.hear(alert("training_stalled", job(), 50, severity="warning"))
    (incident,) = room.incidents.open_incidents()
    asked = blast.holders_query(incident, later(60))
    assert asked is not None
    found = blast.compute_blast(
        incident, told.engine.instant(*asked).latest(), now=later(3600), gpus_at=lambda _: 1, dollars_per_gpu_hour=2.0
    )
    assert found.hits[0] == blast.Hit("llm", "core" if is_held else "unmapped", 16)
    assert [hit.workload for hit in found.hits] == (["llm", "ai/other"] if is_held else ["llm", "ai/llm-0", "ai/other"])
    assert (found.broken_gpus, found.gpus) == (1, 16)


def test_a_pod_that_is_a_rank_stands_for_all_of_its_job_and_a_replica_for_itself(room: Room) -> None:
    told = Told()
    for at, (space, name, pod) in enumerate(
        [
            *(("ai", "llm", f"llm-worker-{n}") for n in range(4)),
            ("ops", "llm", "llm-worker-0"),
            ("ai", "chat", "chat-x"),
        ]
    ):
        where = {"Hostname": f"n{at}", "UUID": f"GPU-n{at}-0", "namespace": space, "workload": pod, "team": "core"}
        told.tell("watchkeeper:job_gpu:share", 50, job_name=name, workload_kind="pod", **where)
        told.tell("watchkeeper_gpu_workload_info", 50, **where)
        if name == "llm":
            gang = {"workload_kind": "pod", "namespace": space, "job_name": name, "training_job": name}
            told.tell("watchkeeper:job_training:group", 50, **gang)
    room.workloads = lambda _: ["ai/llm-worker-1", "ai/llm-worker-2", "ai/chat-x"]
    (incident,) = room.push(xid(79, gpu(3), 0))
    asked = blast.holders_query(incident, later(60))
    assert asked is not None
    holders = told.engine.instant(*asked).latest()
    found = blast.compute_blast(incident, holders, now=later(3600), gpus_at=lambda _: 1, dollars_per_gpu_hour=2.0)
    assert found.hits == (blast.Hit("ai/llm", "core", 4), blast.Hit("ai/chat-x", "core", 1))
    assert (found.broken_gpus, found.gpus) == (1, 5)
