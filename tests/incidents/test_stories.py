"""What is told afterwards: whom an incident hit, its report, and the digest of a week."""

from __future__ import annotations

from datetime import timedelta

from tests.support.incident_stories import NOON, Room, alert, gpu, later, node, xid
from watchkeeper.incidents import blast, incident_labels
from watchkeeper.model.incidents import Incident
from watchkeeper.model.labels import Labels
from watchkeeper.notify import digest, incident_report


def gpus_at(place: object) -> int:
    return 1 if getattr(place, "gpu", None) else 8


def hit(incident: Incident, holders: dict[Labels, float], at: float) -> blast.Blast:
    return blast.compute_blast(incident, holders, now=later(at), gpus_at=gpus_at, dollars_per_gpu_hour=2.5)


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
    assert hit(room.incidents.open_incidents()[0], {}, 3600).gpu_hours == 8.0


def test_the_question_is_asked_for_the_time_the_incident_opened(room: Room) -> None:
    room.workloads = lambda _: ['research/a"b', "x.y"]
    (incident,) = room.push(xid(79, gpu(3), 0))
    asked = blast.holders_query(incident, later(9000))
    assert asked is not None
    assert asked[1] == round((NOON + timedelta(seconds=60)).timestamp() * 1000)
    assert 'workload=~"a\\"b|x\\\\.y"' in asked[0]


def test_a_report_has_every_part_and_no_text_of_a_machine_breaks_it(room: Room) -> None:
    (incident,) = room.push(xid(79, gpu(3), 0))
    room.incidents.add_note(incident.id, "ada|eve", text="a | b\n<script>[x](y)", now=later(5))
    story = incident_report.IncidentReport(
        incident, "GPU 3 on n1", None, None, None, room.journal.timeline("INC-1"), later(60)
    )
    text = incident_report.as_markdown(story)
    assert "ada\\|eve | a \\| b &lt;script>\\[x](y) |" in text
    assert "Blast radius:** unknown" in text
    assert incident_report.as_plain(story)["lasted_seconds"] == 60


def test_a_digest_counts_causes_rules_and_those_that_break_again(room: Room) -> None:
    for at in (0, 4000, 8000):
        room.hear(alert("agent_down", node(), at), alert("agent_down", node(), at, ends=at + 40))
        room.tick(at + 200)
        room.tick(at + 2000)
    room.push(xid(79, gpu(3), 9000), at=9004)
    made = digest.make_digest(
        room.journal.incidents(),
        since=NOON,
        until=later(10_000),
        timeline=room.journal.timeline,
        names=lambda incident: str(incident.place.node),
        belongs_to=lambda incident: incident_labels.belongs_to(incident, incident_labels.InventoryLookup()),
    )
    assert (made.incidents, made.still_open) == (4, 1)
    first, second = made.by_cause
    assert (first.cause, first.incidents, first.repair_seconds) == ("agent_down", 3, 200.0)
    assert (second.cause, second.detect_seconds, second.repair_seconds) == ("gpu_fell_off_bus", 4.0, None)
    assert made.noisiest_rules == (digest.Counted("Alert agent_down", 3),)
    assert made.repeat_offenders == (digest.Counted("n1", 4),)
    assert digest.digest_lines(made)[0] == "Incidents 2026-05-04 to 2026-05-04: 4, 1 still open"


KNOWN = incident_labels.InventoryLookup(
    lambda _, name: {"rack": "r01"} if name == "n1" else {},
    lambda workload: workload.partition("/")[0] if "/" in workload else "unmapped",
)


def test_what_nobody_has_mapped_has_its_own_line_in_the_digest(room: Room) -> None:
    room.workloads = lambda place: ["research/a"] if place.node == "n1" else ["4711"]
    room.push(xid(79, gpu(1, "n1"), 0), xid(79, gpu(1, "n2"), 0), xid(79, gpu(2, "n2"), 0))
    made = digest.make_digest(
        room.journal.incidents(),
        since=NOON,
        until=later(100),
        timeline=room.journal.timeline,
        names=str,
        belongs_to=lambda incident: incident_labels.belongs_to(incident, KNOWN),
    )
    assert made.by_rack == (digest.Counted("unmapped", 2), digest.Counted("r01", 1))
    assert made.by_pool == (digest.Counted("unmapped", 3),)
    assert "By team\n     2  unmapped\n     1  research\n" in "\n".join(digest.digest_lines(made))


def test_the_rarest_line_of_a_long_list_is_there_if_it_is_the_unmapped_one(room: Room) -> None:
    room.workloads = lambda place: ["4711"] if place.node == "n99" else [f"team-{place.node}/job"]
    for number in [99, *range(30)]:
        room.push(xid(79, gpu(number, f"n{number}"), 0))
    made = digest.make_digest(
        room.journal.incidents(),
        since=NOON,
        until=later(1000),
        timeline=room.journal.timeline,
        names=str,
        belongs_to=lambda incident: incident_labels.belongs_to(incident, KNOWN),
    )
    assert len(made.by_team) == digest.MOST_LISTED + 1
    assert digest.Counted("unmapped", 1) in made.by_team


def test_what_nobody_has_mapped_has_its_own_line_in_a_report(room: Room) -> None:
    room.workloads = lambda _: ["research/a", "4711"]
    (incident,) = room.push(xid(79, gpu(3, "n2"), 0))
    found = hit(incident, {}, 60)
    assert (found.teams, found.unmapped) == (("research", "unmapped"), ("4711",))
    about = incident_labels.belongs_to(incident, KNOWN)
    story = incident_report.IncidentReport(incident, "GPU 3 on n2", None, None, found, [], later(60), about)
    text = incident_report.as_markdown(story)
    assert "- **Belongs to:** team research/unmapped, rack unmapped, pool unmapped" in text
    assert "- **Unmapped:** the rack of GPU 3 on n2; the pool of GPU 3 on n2; the team of 4711" in text
    assert incident_report.as_plain(story)["unmapped"][-1] == "the team of 4711"


def test_an_incident_that_hits_nobody_has_no_team_to_miss(room: Room) -> None:
    room.workloads = lambda _: []
    (incident,) = room.push(xid(79, gpu(3), 0))
    assert incident_labels.belongs_to(incident, KNOWN) == {
        "team": frozenset({"no workload"}),
        "rack": frozenset({"r01"}),
        "pool": frozenset({"unmapped"}),
    }
