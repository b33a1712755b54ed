"""The blast radius of an incident, its report, and the weekly digest."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta

import pytest

from tests.support.incident_stories import NOON, Room, alert, gpu, job, later, node, xid
from watchkeeper.incidents import blast_radius, incident_labels
from watchkeeper.incidents.footprint import Footprint
from watchkeeper.model import alerts, fleet
from watchkeeper.model.incidents import Incident
from watchkeeper.model.labels import Labels
from watchkeeper.notify import digest, incident_report


def gpus_at(place: fleet.Place) -> list[str]:
    return [place.gpu] if place.gpu else [f"GPU-{place.node}-{index}" for index in range(8)]


def hit(
    incident: Incident, holders: Collection[Labels], at: float, older: Sequence[Incident] = ()
) -> blast_radius.BlastRadius:
    return blast_radius.compute_blast_radius(
        incident, holders, now=later(at), gpus_at=gpus_at, price_per_gpu_hour=2.5, older=older
    )


def ranks(name: str, *nodes: str) -> list[Labels]:
    """The answer to `holders_query` for a job with all GPUs of these nodes."""
    return [
        Labels(
            {"job_name": name, "namespace": "research", "workload": f"{name}-{at}", "UUID": uuid, "team": "research"}
        )
        for at, each in enumerate(nodes)
        for uuid in gpus_at(node(each))
    ]


def stalled(at: float, *, ends: float | None = None) -> alerts.Alert:
    return alert("training_stalled", job(), at, ends=ends, severity="warning")


@pytest.fixture
def stopped(room: Room) -> Room:
    """`llm` on two nodes; a GPU of the first falls off the bus, and the job stalls a minute later."""
    room.workloads, room.jobs = lambda _: ["research/llm-0"], {job(): Footprint.from_places([node(), node("n2")])}
    room.push(xid(79, gpu(3), 0))
    room.hear(stalled(60))
    return room


HELD = ranks("llm", "n1", "n2")


def test_a_lost_gpu_counts_alone_until_its_job_is_stopped(stopped: Room) -> None:
    (incident,) = stopped.incidents.open_incidents()
    radius = hit(incident, HELD, 1860)
    assert (radius.broken_gpus, radius.gpus, radius.dollars_per_hour, radius.teams) == (1, 16, 40.0, ("research",))
    assert radius.gpu_hours == round(15 * 1800 / 3600 + 1860 / 3600, 2), "the lost GPU was lost a minute earlier"
    assert [(load.workload, load.gpus, load.is_stopped) for load in radius.affected_workloads] == [("llm", 16, True)]


def test_a_job_that_goes_on_costs_no_longer_but_what_it_cost_stays(stopped: Room) -> None:
    stopped.hear(stalled(60, ends=660))
    (incident,) = stopped.incidents.open_incidents()
    radius = hit(incident, HELD, 3600)
    assert (radius.gpus, radius.dollars_per_hour, radius.gpu_hours) == (1, 2.5, 1 + 15 * 600 / 3600)
    stopped.hear(stalled(3600))
    (incident,) = stopped.incidents.open_incidents()
    assert hit(incident, HELD, 3600).gpu_hours == 1 + 15 * 600 / 3600
    assert hit(incident, HELD, 4200).dollars_per_hour == 40.0


@pytest.mark.parametrize("cause", ["row_remap_pending", "ib_link_degraded"])
def test_a_fault_under_a_job_that_runs_has_no_impact(room: Room, cause: str) -> None:
    room.workloads = lambda _: ["research/llm-0"]
    room.hear(alert(cause, node() if cause == "ib_link_degraded" else gpu(3), 0, severity="warning"))
    radius = hit(room.incidents.open_incidents()[0], [Labels({"gang": "llm", **HELD[0]}).without("job_name")], 3600)
    assert (radius.broken_gpus, radius.gpus, radius.dollars_per_hour, radius.gpu_hours) == (0, 0, 0.0, 0.0)
    assert [load.is_stopped for load in radius.affected_workloads] == [False]


def test_a_gpu_that_two_open_incidents_claim_is_paid_once(stopped: Room) -> None:
    stopped.hear(alert("gsp_timeout", gpu(5, "n2"), 120), alert("gsp_timeout", gpu(0, "n9"), 120))
    first, second, third = stopped.incidents.open_incidents()
    inside, outside = hit(second, HELD, 3600, [first]), hit(third, HELD, 3600, [first, second])
    assert (inside.gpus, inside.dollars_per_hour, inside.cost_so_far, inside.counted_in) == (0, 0.0, 0.0, ("INC-1",))
    assert (outside.dollars_per_hour, outside.counted_in) == (2.5, ())
    total = sum(hit(incident, HELD, 3600, others).dollars_per_hour or 0 for incident, others in [
        (first, []), (second, [first]), (third, [first, second])
    ])  # fmt: skip
    assert total == 2.5 * 17


def test_a_missing_gpu_of_a_node_is_one_gpu(room: Room) -> None:
    room.hear(alert("gpu_missing", node(), 0))
    assert hit(room.incidents.open_incidents()[0], [], 3600).gpus == 1
    room.push(xid(79, gpu(3), 10))
    assert hit(room.incidents.open_incidents()[0], [], 3600).gpus == 1


def test_the_cost_of_a_stopped_job_without_known_gpus_is_unknown(room: Room) -> None:
    room.hear(stalled(0))
    radius = hit(room.incidents.open_incidents()[0], [], 3600)
    assert (radius.affected_workloads[0].gpus, radius.dollars_per_hour, radius.cost_so_far) == (None, None, None)


def test_a_workload_without_a_gpu_count_is_unknown_and_not_zero(room: Room) -> None:
    room.workloads = lambda _: ["research/llm-0"]
    (incident,) = room.push(xid(79, gpu(3), 0))
    radius = hit(incident, [], 60)
    assert radius.affected_workloads == (blast_radius.AffectedWorkload("research/llm-0", "research", None),)
    assert radius.gpus == 1


def test_a_node_counts_with_all_its_gpus(room: Room) -> None:
    room.hear(alert("node_down", node(), 0))
    assert hit(room.incidents.open_incidents()[0], [], 3600).gpu_hours == 8.0


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
