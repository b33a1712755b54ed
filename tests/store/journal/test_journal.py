"""The journal stores what it acknowledged, once and in order, and detects changes."""

from __future__ import annotations

import dataclasses
import sqlite3
import threading
from pathlib import Path

import pytest

from tests.store.journal import places
from tests.store.journal.journal_rows import GPU, NOON, an_incident, minutes, xid
from watchkeeper.errors import JournalConflict, NotLeader, StoreError
from watchkeeper.model import actions, alerts, diagnosis, fleet, incidents, labels, trust
from watchkeeper.store.journal.journal import Journal


@pytest.mark.slow
def test_a_retried_push_is_the_same_event_and_counted_once(journal: Journal) -> None:
    assert [event.id for event in journal.save_events([xid(1), xid(2), xid(1)], NOON)] == [xid(1).id, xid(2).id]
    assert [event.id for event in journal.save_events([xid(2), xid(3)], minutes(1))] == [xid(3).id]
    kept = journal.events_at(GPU, since=NOON, until=minutes(5))
    assert [event.id for event in kept] == [xid(1).id, xid(2).id, xid(3).id]
    assert kept[0].received_at == NOON


def test_a_push_without_news_leaves_no_entry(journal: Journal) -> None:
    journal.save_events([xid(1)], NOON)
    journal.save_events([xid(1)], minutes(1))
    assert len(journal.entries()) == 1


def test_events_are_found_by_place_and_time(journal: Journal) -> None:
    other = fleet.Place("main", node="n1", gpu="GPU-2")
    journal.save_events([xid(1), xid(2, place=other), xid(3, at=minutes(20)), xid(4, place=GPU.parent or GPU)], NOON)
    node = fleet.Place("main", node="n1")
    assert len(journal.events_at(node, since=NOON, until=minutes(10))) == 3
    assert [event.id for event in journal.events_at(GPU, since=NOON, until=minutes(10))] == [xid(1).id]


def test_the_latest_event_of_each_condition_is_enough_after_a_restart(journal: Journal) -> None:
    journal.save_events([xid(1), xid(2, at=minutes(1)), xid(3, at=minutes(1)), xid(4, code=31)], NOON)
    assert {event.id for event in journal.latest_events(GPU, NOON)} == {xid(3).id, xid(4).id}


def test_an_incident_is_only_replaced_by_its_next_version(journal: Journal) -> None:
    first = an_incident()
    journal.save_incident(first, kind="opened", text="Xid 79", at=NOON)
    with pytest.raises(JournalConflict, match="version 1 cannot be written: the stored version is 1"):
        journal.save_incident(first, kind="joined", text="again", at=NOON)
    second = incidents.move(first, incidents.IncidentState.ACKNOWLEDGED, at=minutes(1))
    journal.save_incident(second, kind="acknowledged", text="looking", at=minutes(1), actor="ada")
    assert journal.incident("INC-1") == second
    assert [(entry.kind, entry.actor, entry.text) for entry in journal.timeline("INC-1")] == [
        ("opened", "hub", "Xid 79"),
        ("acknowledged", "ada", "looking"),
    ]


def test_resolved_incidents_are_history(journal: Journal) -> None:
    journal.save_incident(an_incident("INC-1"), kind="opened", text="", at=NOON)
    journal.save_incident(an_incident("INC-2"), kind="opened", text="", at=NOON)
    done = incidents.move(an_incident("INC-1"), incidents.IncidentState.RESOLVED, at=minutes(1))
    journal.save_incident(done, kind="resolved", text="", at=minutes(1))
    assert [incident.id for incident in journal.incidents(open_only=True)] == ["INC-2"]
    assert {incident.id for incident in journal.incidents()} == {"INC-1", "INC-2"}


def test_incident_numbers_are_not_used_twice(place: places.Place) -> None:
    first = place.lead()
    assert [first.next_incident_id(), first.next_incident_id()] == ["INC-1", "INC-2"]
    first.save_incident(an_incident("INC-2"), kind="opened", text="", at=NOON)
    first.close()
    second = place.lead()
    assert second.next_incident_id() == "INC-3"
    second.close()


def test_diagnosis_plan_and_alerts_come_back_as_they_were(journal: Journal) -> None:
    result = diagnosis.Diagnosis("INC-1", NOON, (), ("kernel log",))
    plan = actions.Plan(incidents.IncidentId("INC-1"), "unknown", trust.Mode.OBSERVE, NOON, "Look at it", ())
    alert = alerts.Alert(
        labels.Labels({"alertname": "A"}), alerts.AlertState.FIRING, NOON, float("inf"), {"s": "t"}, NOON
    )
    journal.save_diagnosis(result)
    journal.save_plan(plan)
    journal.save_alerts([alert], at=NOON)
    assert (journal.diagnosis("INC-1"), journal.plan("INC-1"), journal.alerts()) == (result, plan, [alert])
    journal.save_alerts([dataclasses.replace(alert, state=alerts.AlertState.RESOLVED)], at=minutes(1))
    assert [entry.text for entry in journal.entries_of("alert")] == [f"firing: {alert.name}", f"resolved: {alert.name}"]
    assert journal.alerts() == []
    assert journal.verify() is None


def test_a_second_leader_makes_the_first_one_stop_writing(place: places.Place) -> None:
    first, second = place.lead(), place.lead()
    with pytest.raises((JournalConflict, NotLeader), match=r"epoch 1 has ended, the current epoch is 2"):
        first.save_events([xid(1)], NOON)
    assert len(second.save_events([xid(1)], NOON)) == 1
    first.close()
    second.close()


def test_a_transaction_is_stored_completely_or_not(journal: Journal) -> None:
    with pytest.raises(ZeroDivisionError), journal.transaction():  # noqa: PT012
        journal.save_events([xid(1)], NOON)
        raise ZeroDivisionError
    assert journal.entries() == []
    with journal.transaction():
        journal.save_events([xid(1)], NOON)
        journal.save_incident(an_incident(), kind="opened", text="", at=NOON)
    assert len(journal.entries()) == 2


def test_rows_that_were_read_in_a_rolled_back_transaction_are_not_cached(journal: Journal) -> None:
    undone = dataclasses.replace(an_incident(), title="undone")

    def keep_and_read() -> None:
        with journal.transaction():
            assert journal.next_incident_id() == undone.id
            journal.save_incident(undone, kind="opened", text="", at=NOON)
            assert journal.incident("INC-1") == undone
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        keep_and_read()
    assert journal.next_incident_id() == an_incident().id
    journal.save_incident(an_incident(), kind="opened", text="", at=NOON)
    assert journal.incident("INC-1") == an_incident()


def test_trimming_drops_the_oldest_and_the_rest_still_verifies(journal: Journal) -> None:
    journal.save_events([xid(1)], NOON)
    journal.save_incident(an_incident("INC-1"), kind="opened", text="", at=NOON)
    done = incidents.move(an_incident("INC-1"), incidents.IncidentState.RESOLVED, at=minutes(1))
    journal.save_incident(done, kind="resolved", text="", at=minutes(1))
    journal.save_incident(an_incident("INC-2"), kind="opened", text="", at=minutes(1))
    journal.save_events([xid(2, at=minutes(9))], minutes(9))
    assert journal.trim(minutes(5), now=minutes(10)) == 4
    assert journal.verify() is None
    assert [entry.kind for entry in journal.entries()] == ["event", "checkpoint"]
    assert [incident.id for incident in journal.incidents()] == ["INC-2"]
    assert [event.id for event in journal.events_at(GPU, since=NOON, until=minutes(9))] == [xid(2).id]
    assert journal.trim(minutes(30), now=minutes(31)) == 2
    assert journal.verify() is None


def test_trimming_keeps_at_most_the_given_number_of_events(journal: Journal) -> None:
    for seq in range(5):
        journal.save_events([xid(seq)], NOON)
    journal.trim(minutes(-60), now=NOON, max_events=2)
    assert len(journal.events_at(GPU, since=NOON, until=NOON)) == 2
    assert journal.verify() is None


def test_several_threads_write_one_chain(journal: Journal) -> None:
    def push(start: int) -> None:
        for seq in range(start, start + 10):
            journal.save_events([xid(seq)], NOON)

    threads = [threading.Thread(target=push, args=(start,)) for start in (0, 10, 20, 30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(journal.events_at(GPU, since=NOON, until=NOON)) == 40
    assert journal.verify() is None


@pytest.mark.parametrize(
    "content", [b"this is not a database, but it is long enough to be one" * 20, b"SQLite format 3\0x"]
)
def test_a_file_that_is_not_a_database_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "journal.db").write_bytes(content)
    with pytest.raises(StoreError, match=r"journal.db: the journal cannot be opened"):
        Journal(tmp_path / "journal.db")


def test_a_database_of_another_program_is_refused_and_not_changed(tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "journal.db")
    other.execute("CREATE TABLE theirs (x)")
    other.close()
    before = (tmp_path / "journal.db").read_bytes()
    with pytest.raises(StoreError, match="belongs to another program"):
        Journal(tmp_path / "journal.db")
    assert (tmp_path / "journal.db").read_bytes() == before


def test_a_newer_schema_is_refused_with_both_numbers(tmp_path: Path) -> None:
    Journal(tmp_path / "journal.db").close()
    newer = sqlite3.connect(tmp_path / "journal.db")
    newer.execute("PRAGMA user_version = 7")
    newer.close()
    with pytest.raises(StoreError, match="schema version 7, this Watchkeeper supports up to 1"):
        Journal(tmp_path / "journal.db")


def test_a_row_that_cannot_be_read_names_the_journal(journal: Journal, place: places.Place) -> None:
    journal.save_events([xid(1)], NOON)
    place.spoil("""UPDATE event SET body = replace(body, '"xid"', '"nonsense"')""")
    with pytest.raises(StoreError, match=r"not a valid Event: kind: expected one of"):
        journal.events_at(GPU, since=NOON, until=NOON)


def test_an_entry_has_its_own_hash(journal: Journal) -> None:
    entry = journal.record("note", "INC-1", at=NOON, actor="ada", body={"text": "seen it"})
    assert journal.entries() == [entry]
    assert dataclasses.replace(entry, actor="bob").hash == entry.hash
