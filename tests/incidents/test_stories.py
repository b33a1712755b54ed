"""What is told afterwards: whom an incident hit, its report, and the digest of a week."""

from __future__ import annotations

from datetime import timedelta

from tests.incidents.stories import NOON, Room, alert, gpu, later, node, xid
from watchkeeper.incidents import blast, digest, report
from watchkeeper.model.incidents import Incident
from watchkeeper.model.labels import Labels


def gpus_at(place: object) -> int:
    return 1 if getattr(place, "gpu", None) else 8


def hit(incident: Incident, holders: dict[Labels, float], at: float) -> blast.Blast:
    return blast.of(incident, holders, now=later(at), gpus_at=gpus_at, dollars_per_gpu_hour=2.5)


def test_one_gpu_stops_its_whole_job_and_that_is_what_it_costs(room: Room) -> None:
    room.workloads = lambda _: ["research/llm-0", "4711"]
    (incident,) = room.push(xid(79, gpu(3), 0))
    held = {
        Labels({"namespace": "research", "workload": "llm-0", "team": "research"}): 64.0,
        Labels({"workload": "4711", "team": "vision"}): 8.0,
    }
    found = hit(incident, held, 1800)
    assert (found.broken_gpus, found.gpus, found.teams) == (1, 72, ("research", "vision"))
    assert (found.gpu_hours, found.dollars_per_hour) == (36.0, 180.0)


def test_a_workload_that_nobody_counts_is_unknown_and_not_zero(room: Room) -> None:
    room.workloads = lambda _: ["research/llm-0"]
    (incident,) = room.push(xid(79, gpu(3), 0))
    found = hit(incident, {}, 60)
    assert found.hits == (blast.Hit("research/llm-0", "research", None),)
    assert found.gpus == 1


def test_a_node_counts_with_all_its_gpus(room: Room) -> None:
    room.hear(alert("node_down", node(), 0))
    assert hit(room.incidents.open()[0], {}, 3600).gpu_hours == 8.0


def test_the_question_is_asked_for_the_time_the_incident_opened(room: Room) -> None:
    room.workloads = lambda _: ['research/a"b', "x.y"]
    (incident,) = room.push(xid(79, gpu(3), 0))
    asked = blast.question(incident, later(9000))
    assert asked is not None
    assert asked[1] == round((NOON + timedelta(seconds=60)).timestamp() * 1000)
    assert 'workload=~"a\\"b|x\\\\.y"' in asked[0]


def test_a_report_has_every_part_and_no_text_of_a_machine_breaks_it(room: Room) -> None:
    (incident,) = room.push(xid(79, gpu(3), 0))
    room.incidents.note(incident.id, "ada|eve", text="a | b\n<script>[x](y)", now=later(5))
    story = report.Story(incident, "GPU 3 on n1", None, None, None, room.journal.timeline("INC-1"), later(60))
    text = report.text(story)
    assert "ada\\|eve | a \\| b &lt;script>\\[x](y) |" in text
    assert "Blast radius:** unknown" in text
    assert report.plain(story)["lasted_seconds"] == 60


def test_a_digest_counts_causes_rules_and_those_that_break_again(room: Room) -> None:
    for at in (0, 4000, 8000):
        room.hear(alert("agent_down", node(), at), alert("agent_down", node(), at, ends=at + 40))
        room.tick(at + 200)
        room.tick(at + 2000)
    room.push(xid(79, gpu(3), 9000), at=9004)
    made = digest.make(
        room.journal.incidents(),
        since=NOON,
        until=later(10_000),
        timeline=room.journal.timeline,
        names=lambda incident: str(incident.place.node),
    )
    assert (made.incidents, made.still_open) == (4, 1)
    first, second = made.by_cause
    assert (first.cause, first.incidents, first.repair_seconds) == ("agent_down", 3, 200.0)
    assert (second.cause, second.detect_seconds, second.repair_seconds) == ("gpu_fell_off_bus", 4.0, None)
    assert made.noisiest_rules == (digest.Counted("Alert agent_down", 3),)
    assert made.repeat_offenders == (digest.Counted("n1", 4),)
    assert digest.lines(made)[0] == "Incidents 2026-05-04 to 2026-05-04: 4, 1 still open"
