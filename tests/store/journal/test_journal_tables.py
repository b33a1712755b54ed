"""Queries of the journal's tables have the same results in SQLite and PostgreSQL."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tests.store.journal import places
from tests.store.journal.journal_rows import GPU, NOON, a_notice, an_incident, minutes, xid
from watchkeeper.model import actions, alerts, fleet, incidents, notices, orders, repairs, silences, trust
from watchkeeper.store.journal.journal import Journal

NODE = fleet.Place("main", node="n1")


def a_repair(id: str, state: repairs.RepairState, *, has_cordon: bool = False) -> repairs.Repair:
    incident = incidents.IncidentId("INC-1")
    return repairs.Repair(
        id=repairs.RepairId(id),
        incident=incident,
        node=NODE,
        pool="",
        cause="gpu_fell_off_bus",
        mode=trust.Mode.ACT,
        mode_why="a rule",
        digest="d",
        actions=(),
        state=state,
        reason="",
        made_at=NOON,
        since=NOON,
        openings={incident: 0},
        has_cordon=has_cordon,
    )


@pytest.mark.slow
def test_open_incidents_are_found_by_node_and_counted_by_severity(journal: Journal) -> None:
    journal.save_incident(an_incident("INC-1"), kind="opened", text="", at=NOON)
    journal.save_incident(an_incident("INC-2"), kind="opened", text="", at=NOON)
    done = incidents.move(an_incident("INC-2"), incidents.IncidentState.RESOLVED, at=minutes(1))
    journal.save_incident(done, kind="resolved", text="", at=minutes(1))
    assert journal.open_incidents_at(NODE) == ["INC-1"]
    assert journal.open_incidents_at(fleet.Place("main", node="n2")) == []
    assert journal.open_incident_ids() == {"INC-1"}
    assert journal.count_open()[alerts.Severity.CRITICAL] == 1


def test_repairs_that_run_or_hold_a_node_are_alive(journal: Journal) -> None:
    states = repairs.RepairState
    for id, state, has_cordon in (
        ("R-1", states.DRAINING, False),
        ("R-2", states.FAILED, True),
        ("R-3", states.FAILED, False),
        ("R-4", states.DONE, True),
    ):
        journal.save_repair(a_repair(id, state, has_cordon=has_cordon), at=NOON, actor="hub", text=state, kind="repair")
    assert [repair.id for repair in journal.active_repairs()] == ["R-1", "R-2"]
    assert [repair.id for repair in journal.repairs_at(NODE)] == ["R-4", "R-3", "R-2", "R-1"]
    assert [repair.id for repair in journal.repairs_of("INC-1", limit=1)] == ["R-4"]
    assert len(journal.timeline("INC-1")) == 4
    journal.save_switch(repairs.RepairSwitch(stopped_at=NOON), at=NOON, actor="ada", text="stopped")
    assert journal.switch().is_stopped
    assert journal.verify() is None


def test_orders_wait_until_they_are_answered_or_expire(journal: Journal) -> None:
    order = orders.Order(orders.OrderId("WO-1"), "main", "n1", "scan", NOON, minutes(10), nonce="n")
    journal.save_order(orders.TrackedOrder(order, "ada", "why"), at=NOON, actor="ada", text="ordered")
    assert [tracked.order.id for tracked in journal.open_orders(minutes(5))] == ["WO-1"]
    assert journal.open_orders(minutes(11)) == []
    receipt = orders.Receipt(order.id, minutes(1), actions.Result.DONE, "clean")
    journal.save_order(orders.TrackedOrder(order, "ada", "why", receipt=receipt), at=NOON, actor="n1", text="done")
    assert journal.open_orders(minutes(5)) == []
    assert [tracked.receipt for tracked in journal.latest_orders()] == [receipt]


def test_silences_and_notices_are_read_by_time_and_state(journal: Journal) -> None:
    matcher = silences.Matcher("node", "n1")
    for count in (1, 2):
        silence = silences.Silence(f"S-{count}", (matcher,), "ada", "known", NOON, minutes(count))
        journal.save_silence(silence, at=NOON, actor="ada", text="silenced")
    assert [silence.id for silence in journal.silences(NOON)] == ["S-2", "S-1"]
    assert [silence.id for silence in journal.silences(NOON + timedelta(seconds=90))] == ["S-2"]
    for id, state in (("a", notices.NoticeState.WAITING), ("b", notices.NoticeState.SENT)):
        journal.save_notice(a_notice(id, state), at=NOON, text=state)
    assert [notice.id for notice in journal.undelivered_notices()] == ["a"]
    assert [notice.id for notice in journal.notices_of("INC-1")] == ["a", "b"]


def test_notices_are_read_in_the_order_of_their_creation(place: places.Place) -> None:
    with closing(place.lead()) as journal:
        for id in ("b", "a", "c", "b", "c", "b"):
            journal.save_notice(a_notice(id, notices.NoticeState.WAITING), at=NOON, text="")
    place.spoil("VACUUM")
    with closing(place.lead()) as journal:
        assert [notice.id for notice in journal.notices_of("INC-1")] == ["b", "a", "c"]
        assert [notice.id for notice in journal.undelivered_notices()] == ["b", "a", "c"]
        assert journal.verify() is None


def test_any_character_is_stored_unchanged(journal: Journal) -> None:
    odd = replace(xid(1), text='NUL \0, line\n, quote ", \\u0000, 溫度 🔥', fields={"?": "%s %", "\0": "\0"})
    assert [replace(event, received_at=None) for event in journal.save_events([odd], NOON)] == [odd]
    kept = journal.event(odd.id)
    assert kept is not None
    assert replace(kept, received_at=None) == odd
    assert [event.id for event in journal.events_at(GPU, since=NOON, until=NOON)] == [odd.id]
    assert journal.verify() is None


def test_a_changed_row_is_detected(journal: Journal, place: places.Place) -> None:
    journal.save_events([xid(1), xid(2)], NOON)
    journal.save_incident(an_incident(), kind="opened", text="it began", at=NOON)
    journal.record("note", "INC-1", at=NOON, actor="ada", body={"text": "seen"})
    assert journal.verify() is None
    place.spoil("UPDATE incident SET body = replace(body, 'fell', 'feel')")
    assert journal.verify() == 2
    place.spoil("DELETE FROM event WHERE key = 'main/n1/boot/kmsg/2'")
    assert journal.verify() == 1


def test_a_removed_entry_is_detected(journal: Journal, place: places.Place) -> None:
    for seq in range(3):
        journal.record("note", "INC-1", at=NOON, actor="ada", body={"text": f"{seq}"})
    place.spoil("DELETE FROM entry WHERE seq = 2")
    assert journal.verify() == 2


def test_frequent_queries_of_pages_use_an_index(tmp_path: Path) -> None:
    statements: list[str] = []
    with closing(Journal(tmp_path / "journal.sqlite")) as journal:
        connection = journal._connection
        assert isinstance(connection, sqlite3.Connection)
        connection.set_trace_callback(statements.append)
        journal.incidents(open_only=True)
        journal.incidents(opened_since=NOON)
        journal.entries_of("repair")
        connection.set_trace_callback(None)
        plans = [[row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}")] for statement in statements]
    assert [plan[0] for plan in plans] == [
        "SEARCH incident USING INDEX incident_open_by_time (opened_at>?)",
        "SEARCH incident USING INDEX incident_by_time (opened_at>?)",
        "SEARCH entry USING INDEX entry_by_kind (kind=?)",
    ]


def test_incidents_are_read_from_a_time_on_and_the_oldest_is_found(journal: Journal) -> None:
    assert journal.first_opened_at() is None
    for at in range(3):
        opened = replace(an_incident(f"INC-{at + 1}"), opened_at=minutes(at))
        journal.save_incident(opened, kind="opened", text="", at=opened.opened_at)
    assert [incident.id for incident in journal.incidents(opened_since=minutes(1))] == ["INC-3", "INC-2"]
    assert journal.first_opened_at() == NOON


@pytest.mark.slow
def test_the_open_incidents_of_a_storm_are_decoded_once(journal: Journal) -> None:
    with journal.transaction():
        for number in range(1, 1_102):
            journal.save_incident(an_incident(f"INC-{number}"), kind="opened", text="", at=NOON)
    first, second = (journal.incidents(open_only=True, limit=10_000) for _ in range(2))
    assert len(first) == 1_101
    assert all(before is after for before, after in zip(first, second, strict=True))
