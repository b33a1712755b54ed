"""The journal in PostgreSQL: a former leader writes nothing, and an outage leaves no partial write."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from tests.store.journal import places
from tests.store.journal.journal_rows import GPU, NOON, a_notice, an_incident, xid
from tests.support import postgres_server
from watchkeeper.errors import NotLeader, SettingsError, StoreError, WireError
from watchkeeper.model import notices
from watchkeeper.store.journal import election
from watchkeeper.store.journal import postgres as servers
from watchkeeper.store.journal.journal import Journal


@pytest.fixture
def address(postgres: postgres_server.Cluster) -> str:
    return postgres.database()


@pytest.fixture
def database(address: str) -> places.Database:
    return places.Database(address)


@pytest.fixture
def journal(database: places.Database) -> Iterator[Journal]:
    journal = database.lead()
    yield journal
    journal.close()


def test_one_candidate_leads_until_its_lease_is_over(database: places.Database) -> None:
    with closing(database.candidate(lease_seconds=60.0)) as first, closing(database.candidate(60.0)) as second:
        assert (first.acquire(), second.acquire()) == (1, None)
        assert str(second.read_lease()) == "hub-1 at http://hub-1:9480"
        first._lease_seconds = 0.3
        assert first.renew(1)
        deadline = time.monotonic() + 60
        while (epoch := second.acquire()) is None and time.monotonic() < deadline:
            assert second.read_lease().seconds_left <= 0.3
        assert epoch == 2
        assert (first.renew(1), second.renew(2)) == (False, True)
        assert second.read_lease().is_ours


def test_of_many_candidates_one_gets_an_epoch(database: places.Database) -> None:
    candidates = [database.candidate(lease_seconds=60.0) for _ in range(8)]
    won: list[int | None] = []
    threads = [
        threading.Thread(target=lambda candidate=candidate: won.append(candidate.acquire())) for candidate in candidates
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for candidate in candidates:
        candidate.close()
    assert sorted(won, key=str) == [1, *[None] * 7]


def test_a_released_lease_is_acquired_at_once(database: places.Database) -> None:
    with closing(database.candidate(60.0)) as first, closing(database.candidate(60.0)) as second:
        assert [first.acquire(), first.acquire()] == [1, 2]
        first.release(1)
        assert second.acquire() is None
        first.release(2)
        assert second.acquire() == 3


@pytest.mark.slow
def test_a_leader_that_stops_in_a_transaction_blocks_others_no_longer_than_its_lease(
    database: places.Database,
) -> None:
    with closing(database.candidate(0.2)) as first, closing(database.candidate(60.0)) as second:
        epoch = first.acquire()
        assert epoch == 1
        stopped = Journal(servers.PostgresConnection(database.server, epoch, idle_seconds=0.5))
        began = time.monotonic()
        with pytest.raises(StoreError, match="idle-in-transaction timeout"), stopped.transaction():  # noqa: PT012
            stopped.save_events([xid(1)], NOON)
            while (taken := _take(second)) is None:
                assert time.monotonic() - began < 60
            stopped.save_events([xid(2)], NOON)
        assert taken == 2
        stopped.close()
        with closing(Journal(servers.PostgresConnection(database.server, 2))) as journal:
            assert journal.entries() == []


def _take(candidate: election.Election) -> int | None:
    try:
        return candidate.acquire()
    except StoreError:
        return None


@pytest.mark.slow
def test_leadership_cannot_change_inside_a_transaction(database: places.Database, journal: Journal) -> None:
    with closing(database.candidate(60.0)) as second:
        with journal.transaction():
            journal.save_events([xid(1)], NOON)
            with pytest.raises(StoreError, match="lock timeout"):
                second.acquire()
            journal.save_events([xid(2)], NOON)
        assert second.acquire() == 2
    with pytest.raises(NotLeader, match="epoch 1 has ended, the current epoch is 2"):
        journal.save_events([xid(3)], NOON)
    with closing(Journal(servers.PostgresConnection(database.server, 2))) as new:
        assert len(new.events_at(GPU, since=NOON, until=NOON)) == 2


def test_a_follower_reads_everything_and_says_where_the_leader_is(database: places.Database, journal: Journal) -> None:
    leader = "hub-1 at http://hub-1:9480"
    with closing(Journal(servers.PostgresConnection(database.server, 0, leader=leader))) as follower:
        journal.save_incident(an_incident(), kind="opened", text="", at=NOON)
        assert follower.incident("INC-1") == journal.incident("INC-1")
        assert follower.verify() is None
        with pytest.raises(NotLeader, match=r"another hub leads: hub-1 at http://hub-1:9480\. Nothing was written"):
            follower.save_events([xid(1)], NOON)


def test_a_connection_that_breaks_in_a_transaction_leaves_nothing_and_stays_broken(
    database: places.Database, address: str, postgres: postgres_server.Cluster
) -> None:
    journal = database.lead()
    with pytest.raises(StoreError, match="terminating connection"), journal.transaction():  # noqa: PT012
        journal.save_events([xid(1)], NOON)
        for pid in postgres.backends(address):
            os.kill(pid, signal.SIGTERM)
        while True:
            journal.save_events([xid(2)], NOON)
    with pytest.raises(StoreError, match="the connection is closed"):
        journal.entries()
    journal.close()
    with closing(database.lead()) as again:
        assert again.entries() == []
        assert len(again.save_events([xid(1)], NOON)) == 1


def test_a_server_that_stops_answering_is_a_timeout(
    database: places.Database, address: str, postgres: postgres_server.Cluster
) -> None:
    connection = servers.PostgresConnection(database.server, 0)
    connection._connection.timeout_seconds = 0.3
    pids = postgres.backends(address)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(StoreError, match=r"no answer within 0\.3 s"):
            connection.execute("SELECT 1")
        assert connection.is_broken
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def test_a_waiting_call_fails_when_the_connection_is_aborted(database: places.Database) -> None:
    connection = servers.PostgresConnection(database.server, 0)
    timer = threading.Timer(0.2, connection.abort)
    timer.start()
    with pytest.raises(StoreError, match="the journal cannot be read or written"):
        connection.execute("SELECT pg_sleep(30)")
    timer.join()
    assert connection.is_broken


def test_an_unreachable_server_is_named_without_its_password() -> None:
    server = servers.PostgresServer("postgresql://ada:s3cret@127.0.0.1:1/journal")
    with pytest.raises(StoreError, match=r"PostgreSQL database journal at 127\.0\.0\.1:1: .*refused") as raised:
        server.create()
    assert "s3cret" not in f"{raised.value}{raised.value.__cause__}"


@pytest.mark.parametrize("content", ["", "postgresql://%zz", "no address"])
def test_a_file_without_an_address_is_refused_without_showing_it(tmp_path: Path, content: str) -> None:
    (tmp_path / "url").write_text(content)
    with pytest.raises(SettingsError) as raised:
        servers.read_server(tmp_path / "url")
    assert "zz" not in str(raised.value)


def test_a_newer_schema_is_refused_with_both_numbers_on_a_server(database: places.Database) -> None:
    database.spoil("UPDATE leader SET schema_version = 7")
    with pytest.raises(StoreError, match="schema version 7, this Watchkeeper supports up to 1"):
        database.server.create()


# What journal_postgres_added.sql adds, taken away again: the journal as version 1 was first made.
FIRST_MADE = """
ALTER TABLE notice DROP COLUMN rowid;
CREATE INDEX notice_by_incident ON notice (incident);
DROP INDEX incident_open_by_time;
"""


def test_an_older_journal_gets_missing_columns_and_keeps_its_order(database: places.Database) -> None:
    database.spoil(FIRST_MADE)
    waiting = notices.NoticeState.WAITING
    with closing(database.lead()) as journal, closing(servers.PostgresConnection(database.server, 0)) as reader:
        for id in ("z", "a", "x", "z", "x", "z"):
            journal.save_notice(a_notice(id, waiting), at=NOON, text="")
        # Of this one the entries have been dropped.
        journal.save_notice(a_notice("y", waiting), at=NOON, text="")
        database.spoil("UPDATE notice SET seq = 0 WHERE key = 'y'; DELETE FROM entry WHERE seq = 7")
        database.server.create()
        journal.save_notice(a_notice("b", waiting), at=NOON, text="")
        journal.save_notice(a_notice("a", waiting), at=NOON, text="")
        database.server.create()
        assert [notice.id for notice in journal.notices_of("INC-1")] == ["y", "z", "a", "x", "b"]
        indexes = {row[0] for row in reader.execute("SELECT indexname FROM pg_indexes WHERE schemaname = 'public'")}
    assert indexes >= {"notice_in_order", "incident_open_by_time"}
    assert "notice_by_incident" not in indexes


def test_hubs_that_start_together_create_the_tables_once(address: str) -> None:
    failures: list[Exception] = []

    def create() -> None:
        try:
            servers.PostgresServer(address).create()
        except StoreError as error:
            failures.append(error)

    threads = [threading.Thread(target=create) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    with psycopg.connect(address) as raw:
        assert raw.execute("SELECT epoch FROM leader").fetchall() == [(0,)]


def test_an_event_that_no_server_can_keep_is_refused_as_such(journal: Journal) -> None:
    with pytest.raises(WireError, match="NUL"):
        journal.save_events([replace(xid(1), id="a\0b")], NOON)
    assert len(journal.save_events([xid(1)], NOON)) == 1


WRITER = """
import sys
from tests.store.journal import places
from tests.store.journal.journal_rows import NOON, xid
journal = places.Database(sys.argv[1]).lead()
seq = int(sys.argv[2]) * 1000
while True:
    journal.save_events([xid(seq)], NOON)
    print(xid(seq).id, flush=True)
    seq += 1
"""


@pytest.mark.slow
def test_a_killed_writer_loses_nothing_it_acknowledged_to_a_server(database: places.Database, address: str) -> None:
    acknowledged: list[str] = []
    for life in range(4):
        command = [sys.executable, "-c", WRITER, address, str(life)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            acknowledged += [writer.stdout.readline().strip() for _ in range(3 + life)]
            writer.kill()
            acknowledged += [line.strip() for line in writer.stdout if line.endswith("\n")]
    with closing(database.lead()) as journal:
        assert [id for id in acknowledged if journal.event(id) is None] == []
        assert journal.verify() is None
        assert journal.epoch == 5
