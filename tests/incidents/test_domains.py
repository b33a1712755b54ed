"""A rack without power, a leaf switch that is gone: one incident of the domain; and causes that swallow effects."""

from __future__ import annotations

from tests.support.incident_stories import LEAF, NODES, RACK, Racked, Room, alert, gpu, later, node, xid
from watchkeeper.incidents.correlate import MAX_WORKLOADS
from watchkeeper.model.incidents import IncidentState


def test_a_rack_that_loses_power_is_one_incident(rack: Racked) -> None:
    rack.incidents.apply_alerts([alert("node_down", place, 0) for place in NODES], later(0))
    assert rack.open() == [("INC-1", RACK, "node_down")]
    assert rack.incidents.open_incidents()[0].title == "Rack r1 is down"


def test_nodes_that_follow_later_join_the_rack(rack: Racked) -> None:
    for at, place in enumerate(NODES):
        rack.incidents.apply_alerts([alert("node_down", place, at)], later(at))
    assert rack.open() == [("INC-1", RACK, "node_down")]
    assert len(rack.incidents.open_incidents()[0].workloads) == MAX_WORKLOADS


def test_two_nodes_are_two_incidents(rack: Racked) -> None:
    rack.incidents.apply_alerts([alert("node_down", place, 0) for place in NODES[:2]], later(0))
    assert [place for _, place, _ in rack.open()] == NODES[:2]


def test_nodes_that_failed_hours_apart_have_nothing_in_common(rack: Racked) -> None:
    for at, place in enumerate(NODES[:30]):
        rack.incidents.apply_alerts([alert("node_down", place, 3600 * at)], later(3600 * at))
    assert len(rack.open()) == 30


def test_the_smaller_domain_is_named_when_it_explains_all(rack: Racked) -> None:
    rack.incidents.apply_alerts([alert("ib_link_degraded", place, 0) for place in NODES[:32]], later(0))
    assert rack.open() == [("INC-1", LEAF, "ib_link_degraded")]


def test_the_incident_of_a_rack_is_over_when_its_nodes_are_back(rack: Racked) -> None:
    rack.incidents.apply_alerts([alert("node_down", place, 0) for place in NODES], later(0))
    rack.incidents.apply_alerts([alert("node_down", place, 0, ends=100) for place in NODES], later(100))
    assert rack.open() != []
    (over,) = rack.tick(161)
    assert over.state is IncidentState.RESOLVED
    assert all(member.until is not None for member in over.members)


def test_the_rack_survives_a_restart(rack: Racked) -> None:
    rack.incidents.apply_alerts([alert("node_down", place, 0) for place in NODES[:40]], later(0))
    rack.restart(5)
    rack.incidents.apply_alerts([alert("node_down", place, 6) for place in NODES[40:]], later(6))
    assert rack.open() == [("INC-1", RACK, "node_down")]


def test_what_a_dead_node_brings_along_is_not_told_apart(room: Room) -> None:
    room.hear(alert("node_down", node(), 0))
    for cause in ("gpu_missing", "agent_down", "ib_link_degraded", "no_device_plugin", "driver_call_hung"):
        room.hear(alert(cause, node(), 5))
    assert room.open() == [("INC-1", node(), "node_down")]


def test_effects_that_were_seen_before_their_cause_become_a_part_of_it(room: Room) -> None:
    room.hear(alert("agent_down", node(), 0, severity="warning"), alert("gpu_missing", node(), 10))
    assert len(room.open()) == 2
    room.hear(alert("node_down", node(), 60))
    assert [(place, cause) for _, place, cause in room.open()] == [(node(), "node_down")]


def test_an_old_fault_does_not_become_the_effect_of_a_new_one(room: Room) -> None:
    room.hear(alert("ib_link_degraded", node(), 0))
    room.hear(alert("node_down", node(), 3600))
    assert {cause for _, _, cause in room.open()} == {"ib_link_degraded", "node_down"}


def test_a_lost_gpu_explains_the_links_of_that_gpu_only(room: Room) -> None:
    room.push(xid(79, gpu(1), 0))
    room.push(xid(74, gpu(1), 1), xid(74, gpu(2), 1))
    assert {(place, cause) for _, place, cause in room.open()} == {
        (gpu(1), "gpu_fell_off_bus"),
        (gpu(2), "nvlink_error"),
    }


def test_an_incident_that_keeps_coming_back_waits_longer_before_it_is_called_over(room: Room) -> None:
    ends, begins = 0, 0
    for _ in range(3):
        room.hear(alert("agent_down", node(), begins), alert("agent_down", node(), begins, ends=begins + 10))
        ends = begins + 10
        begins = ends + next(wait for wait in range(1000) if room.tick(ends + wait)) + 1
    assert room.incidents.recent()[0].reopened == 2
    assert begins - ends - 1 == 240
