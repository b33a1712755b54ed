"""Many signals, one incident: which belong together, and which cause, place and severity win."""

from __future__ import annotations

from dataclasses import replace

from tests.support.incident_stories import Room, alert, gpu, node, xid
from watchkeeper.incidents.correlate import MAX_MEMBERS
from watchkeeper.model import alerts, fleet
from watchkeeper.model.incidents import IncidentState


def test_an_xid_opens_an_incident_that_says_what_where_and_who_suffers(room: Room) -> None:
    (incident,) = room.push(xid(79, gpu(3), 0))
    assert (incident.id, incident.place, incident.cause) == ("INC-1", gpu(3), "gpu_fell_off_bus")
    assert incident.title == "GPU 3 on n1 fell off the bus"
    assert incident.severity is alerts.Severity.CRITICAL
    assert incident.workloads == ("job on n1",)


def test_the_count_alert_of_the_node_joins_the_gpu_that_fell_off_and_changes_neither_place_nor_cause(
    room: Room,
) -> None:
    room.push(xid(79, gpu(3), 0))
    room.hear(alert("gpu_missing", node(), 30))
    assert room.open() == [("INC-1", gpu(3), "gpu_fell_off_bus")]
    assert len(room.incidents.open_incidents()[0].members) == 2


def test_an_xid_after_the_count_alert_explains_it_and_narrows_the_place(room: Room) -> None:
    room.hear(alert("gpu_missing", node(), 0))
    assert "n1 is missing" in room.incidents.open_incidents()[0].title
    room.push(xid(79, gpu(3), 5))
    assert room.open() == [("INC-1", gpu(3), "gpu_fell_off_bus")]
    assert room.incidents.open_incidents()[0].title == "GPU 3 on n1 fell off the bus"


def test_two_gpus_with_memory_errors_are_two_incidents(room: Room) -> None:
    room.push(xid(48, gpu(1), 0), xid(48, gpu(2), 0))
    assert [place for _, place, _ in room.open()] == [gpu(1), gpu(2)]


def test_different_families_at_one_gpu_are_different_incidents(room: Room) -> None:
    room.push(xid(48, gpu(1), 0), xid(79, gpu(1), 0))
    assert {cause for _, _, cause in room.open()} == {"ecc_uncorrectable", "gpu_fell_off_bus"}


def test_hot_gpus_become_one_incident_of_the_node_when_its_cooling_fails(room: Room) -> None:
    for index in (1, 2, 3):
        room.hear(alert("thermal_throttle", gpu(index), index, severity="warning"))
    assert len(room.open()) == 3
    room.hear(alert("cooling_failure", node(), 10))
    assert room.open() == [("INC-1", node(), "cooling_failure")]
    assert len(room.incidents.open_incidents()[0].members) == 4
    assert [entry.text for entry in room.journal.timeline("INC-2")][-1] == "Part of INC-1"
    room.hear(alert("thermal_throttle", gpu(4), 20, severity="warning"))
    assert len(room.open()) == 1


def test_a_cooling_failure_seen_at_one_gpu_belongs_to_its_node(room: Room) -> None:
    room.hear(alert("cooling_failure", gpu(1), 0))
    assert room.open() == [("INC-1", node(), "cooling_failure")]


def test_an_application_fault_moments_before_a_hardware_fault_was_its_first_sign(room: Room) -> None:
    room.push(xid(31, gpu(1), 0))
    room.push(xid(48, gpu(1), 8))
    assert room.open() == [("INC-1", gpu(1), "ecc_uncorrectable")]
    assert [member.cause for member in room.incidents.open_incidents()[0].members] == [
        "app_illegal_access",
        "ecc_uncorrectable",
    ]


def test_an_application_fault_long_before_a_hardware_fault_stays_its_own(room: Room) -> None:
    room.push(xid(31, gpu(1), 0))
    room.push(xid(48, gpu(1), 11))
    assert [cause for _, _, cause in room.open()] == ["app_illegal_access", "ecc_uncorrectable"]


def test_applications_that_die_on_a_broken_gpu_open_nothing_of_their_own(room: Room) -> None:
    room.push(xid(79, gpu(1), 0))
    room.push(xid(45, gpu(1), 20), xid(154, gpu(1), 20), xid(31, gpu(2), 20))
    assert [(place, cause) for _, place, cause in room.open()] == [
        (gpu(1), "gpu_fell_off_bus"),
        (gpu(2), "app_illegal_access"),
    ]


def test_severity_is_the_worst_of_the_members(room: Room) -> None:
    room.push(xid(63, gpu(1), 0))
    assert room.incidents.open_incidents()[0].severity is alerts.Severity.WARNING
    room.push(xid(48, gpu(1), 1))
    assert room.incidents.open_incidents()[0].severity is alerts.Severity.CRITICAL


def test_an_acknowledged_incident_that_gets_worse_asks_for_attention_again(room: Room) -> None:
    room.push(xid(63, gpu(1), 0))
    room.incidents.acknowledge("INC-1", "ada", room.incidents.open_incidents()[0].opened_at)
    room.push(xid(48, gpu(1), 1))
    assert room.incidents.open_incidents()[0].state is IncidentState.OPEN
    assert room.incidents.open_incidents()[0].assignee == "ada"


def test_a_storm_of_the_same_xid_is_one_member_and_one_entry(room: Room) -> None:
    for second in range(50):
        room.push(xid(31, gpu(1), second))
    assert len(room.incidents.open_incidents()[0].members) == 1
    assert room.steps() == ["opened"]


def test_one_rule_without_a_cause_makes_one_incident_for_all_its_gpus(room: Room) -> None:
    for number in range(24):
        room.hear(alert("made_up", gpu(number % 8, f"n{1 + number // 8}"), number, severity="warning"))
    (incident,) = room.incidents.open_incidents()
    assert (incident.family, incident.cause, len(incident.members)) == ("alert:Alert made_up", "unknown", 24)
    assert (incident.place, incident.workloads) == (fleet.Place("main"), ())
    assert incident.title == "made_up here and 23 more"
    assert incident.advice == ""


def test_rules_without_a_cause_have_an_incident_each_with_the_words_of_the_rule(room: Room) -> None:
    hot = alert("", gpu(5), 0, severity="none")
    annotations = {"summary": "GPU 5 of n1 is above 55 °C", "action": "Check the fans"}
    room.hear(replace(hot, annotations=annotations), alert("made_up", gpu(5), 1))
    by_title = {incident.title: incident for incident in room.incidents.open_incidents()}
    assert set(by_title) == {"GPU 5 of n1 is above 55 °C", "made_up here"}
    assert by_title["GPU 5 of n1 is above 55 °C"].advice == "Check the fans"
    assert by_title["GPU 5 of n1 is above 55 °C"].place == gpu(5)


def test_a_rule_without_summary_is_named_with_its_place(room: Room) -> None:
    room.hear(replace(alert("made_up", gpu(5), 0), annotations={}))
    assert [incident.title for incident in room.incidents.open_incidents()] == ["Alert made_up on GPU 5 on n1"]


def test_a_shipped_rule_of_unknown_cause_keeps_one_incident_for_each_gpu(room: Room) -> None:
    room.hear(alert("unknown", gpu(1), 0), alert("unknown", gpu(2), 1))
    assert [incident.place for incident in room.incidents.open_incidents()] == [gpu(1), gpu(2)]


def test_an_incident_does_not_grow_without_end(room: Room) -> None:
    for index in range(MAX_MEMBERS + 5):
        room.hear(alert("made_up", gpu(index), index))
    assert len(room.incidents.open_incidents()[0].members) == MAX_MEMBERS


def test_an_incident_keeps_its_name_while_its_own_repair_reboots_the_node(room: Room) -> None:
    room.hear(alert("row_remap_pending", gpu(1), 0, severity="warning"))
    room.under_repair = {"INC-1"}
    room.hear(alert("node_down", node(), 400), alert("agent_down", node(), 405))
    (incident,) = room.incidents.open_incidents()
    assert (incident.id, incident.place, incident.cause) == ("INC-1", gpu(1), "row_remap_pending")
    assert (incident.title, incident.severity) == (
        "GPU 1 on n1 has a memory row waiting to be remapped",
        alerts.Severity.WARNING,
    )
    assert [member.by_repair for member in incident.members] == [False, True, True]


def test_what_the_repair_brought_about_survives_a_restart_as_such(room: Room) -> None:
    room.hear(alert("row_remap_pending", gpu(1), 0, severity="warning"))
    room.under_repair = {"INC-1"}
    room.hear(alert("node_down", node(), 400))
    room.restart(410)
    room.under_repair = set()
    room.hear(alert("row_remap_pending", gpu(1), 0, ends=500, severity="warning"))
    assert room.open() == [("INC-1", gpu(1), "row_remap_pending")]


def test_a_node_that_goes_down_after_its_repair_is_down(room: Room) -> None:
    room.push(xid(79, gpu(1), 0))
    room.under_repair = {"INC-1"}
    room.hear(alert("node_down", node(), 400), alert("node_down", node(), 400, ends=500))
    room.under_repair = set()
    room.hear(alert("node_down", node(), 600))
    assert room.open() == [("INC-1", node(), "node_down")]


def test_another_fault_of_a_node_under_repair_is_its_own_incident(room: Room) -> None:
    room.push(xid(79, gpu(1), 0))
    room.under_repair = {"INC-1"}
    room.push(xid(48, gpu(2), 300))
    assert [cause for _, _, cause in room.open()] == ["gpu_fell_off_bus", "ecc_uncorrectable"]
