"""A fault and the jobs that it stalls are one incident; a job that stalls for another reason has its own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.properties import examples
from tests.support.incident_stories import Room, alert, event, gpu, job, later, node, xid
from watchkeeper.incidents.domains import Domains
from watchkeeper.incidents.footprint import NO_FOOTPRINT, Footprint
from watchkeeper.incidents.tracker import IncidentTracker
from watchkeeper.model import alerts, fleet
from watchkeeper.model.events import EventKind
from watchkeeper.model.incidents import IncidentState
from watchkeeper.notify import decisions, routing

RACK = fleet.Place("main", domain="rack=r1")
NODES = [node(f"n{at}") for at in range(1, 65)]


class Busy(Room):
    """64 nodes in one rack; `llm` trains on all GPUs of all of them, `asr` on two GPUs of the first."""

    def _start(self, now: object) -> IncidentTracker:
        domains = Domains(
            domains_of=lambda place: (RACK,) if place in NODES else (),
            nodes_of=lambda domain: NODES if domain == RACK else [],
            footprint_of=lambda place: self.jobs.get(place, NO_FOOTPRINT),
        )
        return IncidentTracker(self.journal, now=later(0), names=str, domains=domains)

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        everywhere = [gpu(at, str(place.node)) for place in NODES for at in range(8)]
        self.jobs = {job("llm"): Footprint.from_places(everywhere), job("asr"): Footprint.from_places([gpu(0), gpu(1)])}

    def open_with_jobs(self) -> list[tuple[str, fleet.Place, set[fleet.Place]]]:
        """Open incidents with the jobs that are a part of them."""
        return [
            (
                incident.id,
                incident.place,
                {member.place for member in incident.members if member.place.domain} - {incident.place},
            )
            for incident in self.incidents.open_incidents()
        ]


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[Busy]:
    room = Busy(tmp_path)
    yield room
    room.journal.close()


def stalled(name: str, at: float, *, ends: float | None = None, cause: str = "training_stalled") -> alerts.Alert:
    return alert(cause, job(name), at, ends=ends, severity="warning")


def test_a_job_that_stalls_on_a_gpu_that_fell_off_is_a_part_of_that_incident(busy: Busy) -> None:
    busy.push(xid(79, gpu(3, "n17"), 0))
    busy.hear(stalled("llm", 60))
    assert busy.open_with_jobs() == [("INC-1", gpu(3, "n17"), {job("llm")})]
    (incident,) = busy.incidents.open_incidents()
    assert (incident.cause, incident.severity) == ("gpu_fell_off_bus", alerts.Severity.CRITICAL)
    assert incident.workloads == ("llm",)


@pytest.mark.parametrize("cause", ["training_stalled", "nccl_rank_died", "nccl_timeout_straggler", "training_slow"])
def test_whatever_shows_that_a_job_stands_or_is_slow_joins(busy: Busy, cause: str) -> None:
    busy.push(xid(79, gpu(3), 0))
    busy.hear(stalled("llm", 60, cause=cause))
    assert busy.open_with_jobs() == [("INC-1", gpu(3), {job("llm")})]


def test_a_file_server_that_is_away_for_a_whole_rack_is_one_incident_with_the_job_that_waits_for_it(busy: Busy) -> None:
    for at, place in enumerate(NODES):
        busy.push(event(EventKind.STORAGE_LOST, place, at / 10))
    busy.hear(stalled("llm", 60))
    assert [(place, jobs) for _, place, jobs in busy.open_with_jobs()] == [(RACK, {job("llm")})]
    assert busy.incidents.open_incidents()[0].cause == "storage_unreachable"


def test_a_job_that_stalls_where_the_iommu_stops_accesses_is_a_part_of_that_incident(busy: Busy) -> None:
    busy.push(event(EventKind.IOMMU_FAULT, gpu(1, "n3"), 0))
    busy.hear(stalled("llm", 60))
    assert busy.open_with_jobs() == [("INC-1", node("n3"), {job("llm")})]


def test_what_else_a_job_shows_that_stands_still_goes_with_it(busy: Busy) -> None:
    pod = fleet.Place("main", domain="pod=research/llm-0")
    busy.jobs[pod] = Footprint.from_places([gpu(at) for at in range(8)])
    busy.push(xid(79, gpu(3), 0))
    busy.hear(stalled("llm", 60))
    idle = alert("gpu_idle_waste", job(""), 1800, severity="info")
    busy.hear(replace(idle, labels=idle.labels.with_labels(job_name="", namespace="research", pod="llm-0")))
    busy.hear(stalled("llm", 6000, cause="training_not_improving"), stalled("llm", 8000, cause="checkpoint_failing"))
    assert busy.open_with_jobs() == [("INC-1", gpu(3), {job("llm"), pod})]
    busy.hear(stalled("asr", 8100, cause="checkpoint_failing"))
    assert busy.open_with_jobs() == [("INC-1", gpu(3), {job("llm"), pod}), ("INC-2", job("asr"), set())]


def test_a_job_that_goes_on_and_then_writes_no_checkpoint_has_its_own_incident(busy: Busy) -> None:
    busy.push(xid(79, gpu(3), 0))
    busy.hear(stalled("llm", 60))
    busy.hear(stalled("llm", 60, ends=300))
    busy.hear(stalled("llm", 8000, cause="checkpoint_failing"))
    assert busy.open_with_jobs() == [("INC-1", gpu(3), {job("llm")}), ("INC-2", job("llm"), set())]


def test_two_jobs_that_one_node_stops_are_parts_of_one_incident(busy: Busy) -> None:
    busy.hear(alert("node_down", node("n1"), 0))
    busy.hear(stalled("llm", 40), stalled("asr", 50, cause="nccl_rank_died"))
    assert busy.open_with_jobs() == [("INC-1", node("n1"), {job("llm"), job("asr")})]


def test_stalled_jobs_join_the_fault_that_is_detected_after_them(busy: Busy) -> None:
    busy.hear(stalled("llm", 0), stalled("asr", 10))
    assert len(busy.open_with_jobs()) == 2
    busy.hear(alert("node_down", node("n1"), 90))
    assert busy.open_with_jobs() == [("INC-1", node("n1"), {job("llm"), job("asr")})]
    assert busy.journal.incident("INC-2").part_of == "INC-1"  # type: ignore[union-attr]


def test_a_rack_without_power_has_the_jobs_of_its_nodes(busy: Busy) -> None:
    busy.hear(stalled("llm", 0))
    busy.incidents.apply_alerts([alert("node_down", place, 30) for place in NODES], later(30))
    busy.hear(stalled("asr", 200))
    assert busy.open_with_jobs() == [("INC-1", RACK, {job("llm"), job("asr")})]


def test_a_job_that_does_not_run_there_has_an_incident_of_its_own(busy: Busy) -> None:
    busy.push(xid(79, gpu(3), 0))
    busy.hear(stalled("asr", 60), stalled("unheard-of", 70))
    assert [place for _, place, _ in busy.open_with_jobs()] == [gpu(3), job("asr"), job("unheard-of")]


def test_a_warning_that_stops_no_job_does_not_absorb_one(busy: Busy) -> None:
    busy.hear(alert("row_remap_pending", gpu(0), 0, severity="warning"), alert("agent_down", node(), 0))
    busy.hear(stalled("asr", 60))
    assert [place for _, place, _ in busy.open_with_jobs()] == [gpu(0), node(), job("asr")]


def test_a_link_that_has_been_bad_for_hours_is_not_why_a_job_stalls_now(busy: Busy) -> None:
    busy.hear(alert("ib_link_degraded", node(), 0, severity="warning"))
    busy.hear(stalled("asr", 4 * 3600))
    assert [place for _, place, _ in busy.open_with_jobs()] == [node(), job("asr")]
    busy.hear(alert("ib_link_degraded", node("n2"), 4 * 3600, severity="warning"))
    busy.hear(stalled("llm", 4 * 3600 + 60))
    assert busy.open_with_jobs()[-1] == ("INC-3", node("n2"), {job("llm")})


def test_a_job_that_stalled_long_before_a_fault_is_not_its_effect(busy: Busy) -> None:
    busy.hear(stalled("llm", 0))
    busy.push(xid(79, gpu(3), 1200))
    assert [place for _, place, _ in busy.open_with_jobs()] == [job("llm"), gpu(3)]


def test_of_two_faults_under_a_job_the_more_severe_and_then_the_newer_hosts_it(busy: Busy) -> None:
    busy.push(xid(79, gpu(1, "n5"), 0))
    busy.push(xid(79, gpu(2, "n6"), 20))
    busy.hear(alert("ib_link_degraded", node("n7"), 40, severity="warning"))
    busy.hear(stalled("llm", 60))
    assert busy.open_with_jobs()[1] == ("INC-2", gpu(2, "n6"), {job("llm")})


def test_a_slow_rank_explains_the_throughput_of_its_own_job(busy: Busy) -> None:
    busy.hear(stalled("llm", 0, cause="nccl_timeout_straggler"), stalled("llm", 600, cause="training_slow"))
    assert busy.open() == [("INC-1", job("llm"), "nccl_timeout_straggler")]


def test_a_job_that_is_still_stalled_after_the_repair_has_its_own_incident(busy: Busy) -> None:
    busy.push(xid(79, gpu(3), 0))
    busy.hear(stalled("llm", 60))
    busy.push(event(EventKind.NODE_BOOT, node(), 900))
    assert busy.tick(960) == []
    assert {incident.id for incident in busy.tick(1201)} == {"INC-1", "INC-2"}
    assert busy.open() == [("INC-2", job("llm"), "training_stalled")]
    assert "after INC-1 was resolved" in busy.journal.timeline("INC-2")[0].text
    busy.hear(stalled("llm", 60, ends=1300))
    busy.tick(1400)
    assert busy.open() == []


def test_a_job_that_recovers_with_the_repair_leaves_no_incident(busy: Busy) -> None:
    busy.push(xid(79, gpu(3), 0))
    busy.hear(stalled("llm", 60))
    busy.push(event(EventKind.NODE_BOOT, node(), 900))
    busy.hear(stalled("llm", 60, ends=930))
    assert [incident.state for incident in busy.tick(991)] == [IncidentState.RESOLVED]
    assert busy.open() == []


def test_a_job_still_stalled_after_a_person_resolved_the_fault_gets_its_own_incident(busy: Busy) -> None:
    busy.push(xid(79, gpu(3), 0))
    busy.hear(stalled("llm", 60))
    busy.incidents.resolve("INC-1", "ada", why="replaced", now=later(300))
    busy.tick(901, stalled("llm", 60))
    assert busy.open() == [("INC-2", job("llm"), "training_stalled")]


def test_an_absorbed_incident_of_a_job_reopens_if_the_job_is_still_stalled(busy: Busy) -> None:
    busy.push(xid(79, gpu(3), 0))
    busy.hear(stalled("asr", 30))
    busy.hear(alert("node_down", node(), 60))
    assert [place for _, place, _ in busy.open_with_jobs()] == [node()]
    busy.hear(alert("node_down", node(), 60, ends=400))
    busy.push(event(EventKind.NODE_BOOT, node(), 400))
    busy.tick(701)
    assert busy.open() == [("INC-2", job("asr"), "training_stalled")]


def test_a_job_that_moved_away_and_stalls_again_is_no_longer_the_effect(busy: Busy) -> None:
    busy.push(xid(79, gpu(0), 0))
    busy.hear(stalled("asr", 60), stalled("asr", 60, ends=300))
    busy.jobs[job("asr")] = Footprint.from_places([gpu(0, "n9"), gpu(1, "n9")])
    busy.hear(stalled("asr", 4000))
    assert [place for _, place, _ in busy.open_with_jobs()] == [gpu(0), job("asr")]
    busy.hear(stalled("asr", 4000, ends=4100))
    busy.tick(4200)
    assert [place for _, place, _ in busy.open_with_jobs()] == [gpu(0)]


def test_the_assignee_of_a_job_becomes_the_assignee_of_the_fault(busy: Busy) -> None:
    busy.hear(stalled("llm", 0))
    busy.incidents.acknowledge("INC-1", "ada", later(5))
    busy.push(xid(79, gpu(3), 20))
    (incident,) = busy.incidents.open_incidents()
    assert (incident.id, incident.place, incident.assignee) == ("INC-1", gpu(3), "ada")
    assert incident.state is IncidentState.OPEN, "it is worse than what she took"


def test_an_assigned_job_that_joins_an_open_fault_gives_it_its_assignee(busy: Busy) -> None:
    busy.push(xid(79, gpu(3, "n2"), 0))
    busy.hear(stalled("asr", 10))
    busy.incidents.assign("INC-2", "ada", to="bob", now=later(20))
    busy.push(xid(79, gpu(1), 25))
    assert [(incident.place, incident.assignee) for incident in busy.incidents.open_incidents()] == [
        (gpu(3, "n2"), None),
        (gpu(1), "bob"),
    ]


@pytest.mark.parametrize("first", ["fault", "job"])
def test_a_restart_changes_nothing(busy: Busy, first: str) -> None:
    for at, what in enumerate(["fault", "job"] if first == "fault" else ["job", "fault"]):
        if what == "fault":
            busy.push(xid(79, gpu(3), 0))
        else:
            busy.hear(stalled("llm", 30))
        busy.restart(31 + at)
    assert busy.open_with_jobs() == [("INC-1", gpu(3), {job("llm")})]
    busy.hear(stalled("llm", 30, ends=500))
    assert all(member.until for member in busy.incidents.open_incidents()[0].members if member.place == job("llm"))


@given(
    fault=st.integers(0, 600),
    jobs=st.lists(st.tuples(st.sampled_from(["llm", "asr"]), st.integers(0, 600)), min_size=1, max_size=6),
    restart=st.integers(0, 7),
)
@examples(25)
def test_whichever_is_seen_first_a_dead_node_and_its_jobs_end_as_one_incident(
    fault: int, jobs: list[tuple[str, int]], restart: int
) -> None:
    changes = sorted([(fault, "node"), *((at, name) for name, at in dict(reversed(jobs)).items())])
    with tempfile.TemporaryDirectory() as folder:
        busy = Busy(Path(folder))
        for number, (at, name) in enumerate(changes):
            if number == restart:
                busy.restart(at)
            busy.hear(alert("node_down", node("n1"), at) if name == "node" else stalled(name, at))
            busy.tick(at + 1)
        assert busy.open_with_jobs() == [("INC-1", node("n1"), {job(name) for name, _ in jobs})]
        busy.journal.close()


def test_a_job_that_joins_an_incident_sends_no_second_notification(busy: Busy) -> None:
    routes = [routing.Route(("pager",), wait="0s")]
    (incident,) = busy.push(xid(79, gpu(3), 0))
    notices = decisions.decide_notices(incident, [], routes, is_silenced=False, now=later(0))
    assert [notice.occasion for notice in notices] == ["opened"]
    busy.hear(stalled("llm", 60))
    (joined,) = busy.incidents.open_incidents()
    assert decisions.decide_notices(joined, notices, routes, is_silenced=False, now=later(60)) == []
