"""The blast radius of an incident, its report, and the weekly digest."""

from __future__ import annotations

from datetime import timedelta

from tests.support.incident_stories import NOON, Room, alert, gpu, later, node, xid
from watchkeeper.incidents import blast_radius, incident_labels
from watchkeeper.model.incidents import Incident
from watchkeeper.model.labels import Labels
from watchkeeper.notify import digest, incident_report


def gpus_at(place: object) -> int:
    return 1 if getattr(place, "gpu", None) else 8


def hit(incident: Incident, holders: dict[Labels, float], at: float) -> blast_radius.BlastRadius:
    return blast_radius.compute_blast_radius(incident, holders, now=later(at), gpus_at=gpus_at, price_per_gpu_hour=2.5)


def test_the_blast_radius_of_one_gpu_is_its_whole_job(room: Room) -> None:
    room.workloads = lambda _: ["research/llm-0", "4711"]
    (incident,) = room.push(xid(79, gpu(3), 0))
    held = {
        Labels({"namespace": "research", "workload": "llm-0", "team": "research"}): 64.0,
        Labels({"workload": "4711", "team": "vision"}): 8.0,
    }
    radius = hit(incident, held, 1800)
    assert (radius.broken_gpus, radius.gpus, radius.teams) == (1, 72, ("research", "vision"))
    assert (radius.gpu_hours, radius.dollars_per_hour) == (36.0, 180.0)


def test_a_workload_without_a_gpu_count_is_unknown_and_not_zero(room: Room) -> None:
    room.workloads = lambda _: ["research/llm-0"]
    (incident,) = room.push(xid(79, gpu(3), 0))
    radius = hit(incident, {}, 60)
    assert radius.affected_workloads == (blast_radius.AffectedWorkload("research/llm-0", "research", None),)
    assert radius.gpus == 1


def test_a_node_counts_with_all_its_gpus(room: Room) -> None:
    room.hear(alert("node_down", node(), 0))
    assert hit(room.incidents.open_incidents()[0], {}, 3600).gpu_hours == 8.0


def test_the_holders_are_queried_at_the_time_the_incident_opened(room: Room) -> None:
    room.workloads = lambda _: ['research/a"b', "x.y"]
    (incident,) = room.push(xid(79, gpu(3), 0))
    query = blast_radius.holders_query(incident, later(9000))
    assert query is not None
    assert query[1] == round((NOON + timedelta(seconds=60)).timestamp() * 1000)
    assert 'workload=~"a\\"b|x\\\\.y"' in query[0]


def test_a_report_has_every_part_and_escapes_texts(room: Room) -> None:
    (incident,) = room.push(xid(79, gpu(3), 0))
    room.incidents.add_note(incident.id, "ada|eve", text="a | b\n<script>[x](y)", now=later(5))
    story = incident_report.IncidentReport(
        incident, "GPU 3 on n1", None, None, None, room.journal.timeline("INC-1"), later(60)
    )
    text = incident_report.as_markdown(story)
    assert "ada\\|eve | a \\| b &lt;script>\\[x](y) |" in text
    assert "Blast radius:** unknown" in text
    assert incident_report.as_plain(story)["lasted_seconds"] == 60


def test_a_digest_counts_causes_rules_and_repeat_offenders(room: Room) -> None:
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
        belongs_to=lambda incident: incident_labels.report_labels(incident, incident_labels.InventoryLookup()),
    )
    assert (made.incidents, made.still_open) == (4, 1)
    first, second = made.by_cause
    assert (first.cause, first.incidents, first.repair_seconds) == ("agent_down", 3, 200.0)
    assert (second.cause, second.detect_seconds, second.repair_seconds) == ("gpu_fell_off_bus", 4.0, None)
    assert made.noisiest_rules == (digest.NamedCount("Alert agent_down", 3),)
    assert made.repeat_offenders == (digest.NamedCount("n1", 4),)
    assert digest.digest_lines(made)[0] == "Incidents 2026-05-04 to 2026-05-04: 4, 1 still open"


INVENTORY = incident_labels.InventoryLookup(
    lambda _, name: {"rack": "r01"} if name == "n1" else {},
    lambda workload: workload.partition("/")[0] if "/" in workload else "unmapped",
)


def test_unmapped_places_and_teams_have_their_own_line_in_the_digest(room: Room) -> None:
    room.workloads = lambda place: ["research/a"] if place.node == "n1" else ["4711"]
    room.push(xid(79, gpu(1, "n1"), 0), xid(79, gpu(1, "n2"), 0), xid(79, gpu(2, "n2"), 0))
    made = digest.make_digest(
        room.journal.incidents(),
        since=NOON,
        until=later(100),
        timeline=room.journal.timeline,
        names=str,
        belongs_to=lambda incident: incident_labels.report_labels(incident, INVENTORY),
    )
    assert made.by_rack == (digest.NamedCount("unmapped", 2), digest.NamedCount("r01", 1))
    assert made.by_pool == (digest.NamedCount("unmapped", 3),)
    assert "By team\n     2  unmapped\n     1  research\n" in "\n".join(digest.digest_lines(made))


def test_a_long_list_always_includes_the_unmapped_line(room: Room) -> None:
    room.workloads = lambda place: ["4711"] if place.node == "n99" else [f"team-{place.node}/job"]
    for number in [99, *range(30)]:
        room.push(xid(79, gpu(number, f"n{number}"), 0))
    made = digest.make_digest(
        room.journal.incidents(),
        since=NOON,
        until=later(1000),
        timeline=room.journal.timeline,
        names=str,
        belongs_to=lambda incident: incident_labels.report_labels(incident, INVENTORY),
    )
    assert len(made.by_team) == digest.MAX_LISTED + 1
    assert digest.NamedCount("unmapped", 1) in made.by_team


def test_unmapped_places_and_teams_have_their_own_line_in_a_report(room: Room) -> None:
    room.workloads = lambda _: ["research/a", "4711"]
    (incident,) = room.push(xid(79, gpu(3, "n2"), 0))
    radius = hit(incident, {}, 60)
    assert (radius.teams, radius.unmapped) == (("research", "unmapped"), ("4711",))
    about = incident_labels.report_labels(incident, INVENTORY)
    story = incident_report.IncidentReport(incident, "GPU 3 on n2", None, None, radius, [], later(60), about)
    text = incident_report.as_markdown(story)
    assert "- **Belongs to:** team research/unmapped, rack unmapped, pool unmapped" in text
    assert "- **Unmapped:** the rack of GPU 3 on n2; the pool of GPU 3 on n2; the team of 4711" in text
    assert incident_report.as_plain(story)["unmapped"][-1] == "the team of 4711"


def test_an_incident_without_a_workload_is_not_unmapped(room: Room) -> None:
    room.workloads = lambda _: []
    (incident,) = room.push(xid(79, gpu(3), 0))
    assert incident_labels.report_labels(incident, INVENTORY) == {
        "team": frozenset({"no workload"}),
        "rack": frozenset({"r01"}),
        "pool": frozenset({"unmapped"}),
    }
