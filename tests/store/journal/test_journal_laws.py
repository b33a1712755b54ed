"""Laws of the journal: entries are stored unchanged, any changed byte is detected, a killed writer loses nothing."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.properties import examples
from watchkeeper.model import alerts, events, fleet, incidents
from watchkeeper.store.journal.journal import Journal

NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
names = st.text(min_size=1, max_size=8)
places = st.builds(fleet.Place, cluster=names, node=names, gpu=st.none() | names)
found_events = st.builds(
    events.Event,
    id=names,
    kind=st.sampled_from(events.EventKind),
    code=st.none() | st.integers(1, 200),
    place=places,
    at=st.integers(0, 10_000).map(lambda seconds: NOON + timedelta(seconds=seconds)),
    text=st.text(max_size=20),
    process=st.none() | st.builds(events.Process, pid=st.none() | st.integers(1, 9), name=st.none() | names),
    fields=st.dictionaries(names, names, max_size=2),
)


@given(batches=st.lists(st.lists(found_events, max_size=5), max_size=4))
@examples(25)
def test_every_event_is_stored_once_and_unchanged(batches: list[list[events.Event]]) -> None:
    with tempfile.TemporaryDirectory() as folder, closing(Journal(Path(folder) / "journal.db")) as journal:
        taken = [event for batch in batches for event in journal.save_events(batch, NOON)]
        assert len({event.id for event in taken}) == len(taken)
        assert {event.id for event in taken} == {event.id for batch in batches for event in batch}
        assert [journal.event(event.id) for event in taken] == taken
        assert journal.verify() is None


def write_a_story(path: Path) -> None:
    place = fleet.Place("main", node="n1", gpu="GPU-1")
    incident = incidents.Incident(
        incidents.IncidentId("INC-1"),
        place,
        "title",
        alerts.Severity.CRITICAL,
        incidents.IncidentState.OPEN,
        NOON,
        cause="unknown",
        family="unknown",
        members=(),
    )
    with closing(Journal(path)) as journal:
        for seq in range(3):
            journal.save_events([events.Event(f"e{seq}", events.EventKind.XID, 79, place, NOON, "Xid")], NOON)
        journal.save_incident(incident, kind="opened", text="it began", at=NOON)
        journal.record("note", "INC-1", at=NOON, actor="ada", body={"text": "seen"})


@pytest.mark.slow
@given(column=st.sampled_from(["at", "actor", "kind", "subject", "prev", "hash"]), choice=st.integers(0, 999))
@examples(40)
def test_any_changed_column_is_detected(column: str, choice: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.db"
        write_a_story(path)
        with closing(sqlite3.connect(path, isolation_level=None)) as raw:
            seq, text = raw.execute(f"SELECT seq, {column} FROM entry").fetchall()[choice % 5]
            at = choice % len(text)
            changed = text[:at] + ("0" if text[at] != "0" else "1") + text[at + 1 :]
            raw.execute(f"UPDATE entry SET {column} = ? WHERE seq = ?", (changed, seq))
        with closing(Journal(path)) as journal:
            assert journal.verify() == seq


@pytest.mark.slow
@given(table=st.sampled_from(["entry", "event", "incident"]), choice=st.integers(0, 9999), flip=st.integers(1, 127))
@examples(60)
def test_any_flipped_byte_is_detected(table: str, choice: int, flip: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.db"
        write_a_story(path)
        with closing(sqlite3.connect(path)) as raw:
            bodies = [row[0].encode() for row in raw.execute(f"SELECT body FROM {table}")]
        body, content = bodies[choice % len(bodies)], bytearray(path.read_bytes())
        content[content.index(body) + choice % len(body)] ^= flip
        path.write_bytes(content)
        with closing(Journal(path)) as journal:
            assert journal.verify() is not None


def test_a_removed_entry_and_a_removed_event_are_detected(tmp_path: Path) -> None:
    write_a_story(tmp_path / "a.db")
    write_a_story(tmp_path / "b.db")
    with closing(sqlite3.connect(tmp_path / "a.db", isolation_level=None)) as raw:
        raw.execute("DELETE FROM entry WHERE seq = 2")
    with closing(sqlite3.connect(tmp_path / "b.db", isolation_level=None)) as raw:
        raw.execute("DELETE FROM event WHERE key = 'e2'")
    with closing(Journal(tmp_path / "a.db")) as a, closing(Journal(tmp_path / "b.db")) as b:
        assert (a.verify(), b.verify()) == (2, 3)


WRITER = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from watchkeeper.model import events, fleet
from watchkeeper.store.journal.journal import Journal
journal = Journal(Path(sys.argv[1]))
now = datetime(2026, 5, 4, tzinfo=UTC)
place = fleet.Place("main", node="n1")
seq = 0
while True:
    id = f"{sys.argv[2]}-{seq}"
    journal.save_events([events.Event(id, events.EventKind.XID, 79, place, now, "Xid")], now)
    print(id, flush=True)
    seq += 1
"""


def test_a_killed_writer_loses_nothing_it_acknowledged(tmp_path: Path) -> None:
    path, acknowledged = tmp_path / "journal.db", []
    for life in range(12):
        command = [sys.executable, "-c", WRITER, str(path), str(life)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            acknowledged += [writer.stdout.readline().strip() for _ in range(3 + life)]
            writer.kill()
            acknowledged += [line.strip() for line in writer.stdout if line.endswith("\n")]
    with closing(Journal(path)) as journal:
        assert [id for id in acknowledged if journal.event(id) is None] == []
        assert journal.verify() is None
        assert journal.epoch == 13
