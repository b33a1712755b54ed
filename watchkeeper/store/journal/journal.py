"""The journal: events, incidents, diagnoses, plans, alert states and audit entries, in SQLite or PostgreSQL.

Every change is one transaction that appends an entry to the hash chain (see `chain.py`) and updates its rows, so a
crash keeps both or neither. All SQL is in this module, `connection`, `chain`, `journal_search`, `postgres` and
`election`; the statements here work in both databases.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar, cast

from watchkeeper.errors import JournalConflict, StoreError, WireError, quote
from watchkeeper.kit import wire
from watchkeeper.model import (
    actions,
    alerts,
    diagnosis,
    events,
    fleet,
    incidents,
    labels,
    notices,
    orders,
    repairs,
    silences,
)
from watchkeeper.store.journal import chain, journal_head
from watchkeeper.store.journal.chain import JournalEntry
from watchkeeper.store.journal.connection import FileConnection, JournalConnection, open_journal

T = TypeVar("T")

# The limit of rows in one query: one for every GPU of the largest fleet.
MAX_ROWS = 100_000
# An event has a few hundred bytes: half a million need about 200 MB of disk.
MAX_EVENTS = 500_000
# Decoded rows that are cached, about 3 kB each: in a storm, each frame of the fleet map reads all open incidents, up to
# 10,000. Longer lists are historical and not cached, because they would evict the others.
MAX_DECODED_ROWS, MAX_CACHED_LIST = 20_000, 10_000
# The text of an entry for each alert state, and how many rules it names.
STATE_TEXTS = {
    alerts.AlertState.FIRING: "firing",
    alerts.AlertState.PENDING: "pending",
    alerts.AlertState.RESOLVED: "resolved",
}
MAX_NAMED_RULES = 5
# How many rows one statement reads by key.
KEYS_PER_QUERY = 500
_ALERT_TIMES = ("active_at", "fired_at", "resolved_at", "kept_since")
INCIDENT_PREFIX = "INC-"
HUB = "hub"
# Steps of notifications and repairs: in the audit log, but not on the timeline of an incident.
NOTICE_STEP = "notice_step"
REPAIR_STEP = "repair_step"
# Changes of repair settings, which are not on the timeline of an incident.
REPAIR_SWITCH = "repair_switch"


class Journal:
    """The journal with one writer at a time; thread-safe.

    The last hub that opened a file may write: an earlier one gets JournalConflict at its next write. In PostgreSQL, the
    connection has the epoch in which it may write, or is read-only.
    """

    def __init__(self, location: Path | JournalConnection) -> None:
        self._lock = threading.RLock()
        self._depth = 0
        self._decoded_rows: dict[tuple[str, str], tuple[int, object]] = {}
        self._connection: JournalConnection = open_journal(location) if isinstance(location, Path) else location
        self.path, self.epoch = self._connection.where, self._connection.epoch
        self._head_file = journal_head.HeadFile(location) if isinstance(location, Path) else None
        self._uncommitted: JournalEntry | None = None
        self._is_fenced = False
        # What the file has lost, until a person accepts it.
        self.problems: tuple[str, ...] = ()
        try:
            self._incident_number = self._number("incident")
            if self._head_file is not None:
                self._record_loss(self._head_file)
                self.problems = tuple(
                    f"journal {self.path}: {loss.text}. {journal_head.REMEDY}" for loss in self._losses()
                )
        except StoreError:
            self._connection.close()
            raise

    def close(self) -> None:
        with self._lock:
            self._connection.close()
            if self._head_file is not None:
                self._head_file.close()

    @property
    def fenced_reason(self) -> str | None:
        """Why nothing can be written: another hub has opened this file since. None otherwise.

        A busy journal is not waited for: the answer is then the last one.
        """
        if isinstance(self._connection, FileConnection) and self._lock.acquire(blocking=False):
            try:
                with self._translated_errors():
                    self._is_fenced = self._connection.current_epoch() != self.epoch
            finally:
                self._lock.release()
        problem = f"another hub has opened the journal {self.path}, so this hub cannot write to it"
        return problem if self._is_fenced else None

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A write transaction; it can be nested."""
        with self._translated_errors():
            if self._depth == 0:
                self._connection.begin()
            previous_number = self._incident_number
            self._depth += 1
            try:
                yield
                if self._depth == 1:
                    self._connection.execute("COMMIT")
                    self._write_head()
            except BaseException:
                if self._depth == 1:
                    # Rows cached inside have entry numbers that the next entries will reuse.
                    self._decoded_rows.clear()
                    self._uncommitted = None
                    self._incident_number = previous_number
                    if self._connection.in_transaction:
                        self._connection.execute("ROLLBACK")
                raise
            finally:
                self._depth -= 1

    def record(
        self,
        kind: str,
        subject: str,
        *,
        at: datetime,
        actor: str,
        body: Mapping[str, Any],
        after: tuple[int, str] | None = None,
    ) -> JournalEntry:
        """Append one entry without rows: a note, the receipt of an action, a start of the hub.

        `after` is the number and hash of an entry that was lost and that this one follows.
        """
        with self.transaction():
            last_row = [after] if after else self._rows("SELECT seq, hash FROM entry ORDER BY seq DESC LIMIT 1")
            seq, prev = (last_row[0][0] + 1, last_row[0][1]) if last_row else (1, chain.GENESIS)
            plain = wire.to_plain(body)
            text = wire.dumps(plain)
            entry = JournalEntry(seq, at, actor, kind, subject, plain, self.epoch, prev, hash="")
            entry = replace(entry, hash=chain.entry_hash(entry, text))
            self._connection.execute(
                "INSERT INTO entry VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (seq, wire.format_time(at), actor, kind, subject, text, self.epoch, prev, entry.hash),
            )
            self._uncommitted = entry
            return entry

    def save_events(self, batch: Sequence[events.Event], now: datetime) -> list[events.Event]:
        """Store events that are not in the journal yet, and return them, marked as received now."""
        with self.transaction():
            new_events: dict[str, events.Event] = {}
            for event in batch:
                is_stored = self._rows("SELECT 1 FROM event WHERE key = ?", event.id)
                if not is_stored and event.id not in new_events:
                    new_events[event.id] = replace(event, received_at=now)
            if new_events:
                nodes = sorted({str(event.place.node or event.place.cluster) for event in new_events.values()})
                text = f"{len(new_events)} events of {', '.join(nodes[:3])}{' …' if len(nodes) > 3 else ''}"
                self._write("event", {key: wire.dumps(event) for key, event in new_events.items()}, at=now, text=text)
            return list(new_events.values())

    def events_at(
        self, place: fleet.Place, *, since: datetime, until: datetime, limit: int = MAX_ROWS
    ) -> list[events.Event]:
        """Events at or inside a place, oldest first."""
        where, values = _node_condition(place)
        # Only events of the rack or leaf itself; those of its nodes are queried by node.
        where += " AND node IS NULL" if place.domain is not None else ""
        selection = f"event WHERE {where} AND at BETWEEN ? AND ? ORDER BY at, key LIMIT ?"
        times = wire.format_time(since), wire.format_time(until)
        stored = self._select(events.Event, selection, *values, *times, min(limit, MAX_ROWS))
        return [event for event in stored if place.encloses(event.place)]

    def latest_events(self, place: fleet.Place | None, since: datetime) -> list[events.Event]:
        """The newest event of each place, kind, code and server, everywhere or at the node (or cluster) of a place."""
        where, values = ("TRUE", []) if place is None else _node_condition(place)
        return self._select(
            events.Event,
            "(SELECT body, ROW_NUMBER() OVER (PARTITION BY json_extract(body, '$.place'),"  # noqa: S608
            " json_extract(body, '$.kind'), json_extract(body, '$.code'), json_extract(body, '$.fields.server')"
            " ORDER BY at DESC, key DESC) AS position"
            f" FROM event WHERE {where} AND at >= ?) AS newest WHERE position = 1 LIMIT ?",
            *values,
            wire.format_time(since),
            MAX_ROWS,
        )

    def event(self, id: str) -> events.Event | None:
        return self._load_one(events.Event, "event", id)

    def next_incident_id(self) -> incidents.IncidentId:
        """INC-1, INC-2 …; a number is never reused, even after a restart or a trim."""
        with self._lock:
            self._incident_number += 1
            return incidents.IncidentId(f"{INCIDENT_PREFIX}{self._incident_number}")

    def save_incident(
        self, incident: incidents.Incident, *, kind: str, text: str, at: datetime, actor: str = HUB
    ) -> None:
        """Store the next version of an incident; JournalConflict if another version was stored before."""
        with self.transaction():
            stored_rows = self._rows("SELECT version FROM incident WHERE key = ?", incident.id)
            stored_version = stored_rows[0][0] if stored_rows else 0
            if incident.version != stored_version + 1:
                raise JournalConflict(
                    f"version {incident.version} cannot be written: the stored version is {stored_version}",
                    where=incident.id,
                    now="Nothing was written",
                    remedy="Read the incident again and retry the change",
                )
            if not stored_rows:
                self._connection.execute(
                    "UPDATE number SET value = ? WHERE name = 'incident' AND value < ?",
                    (_number_of(incident.id), _number_of(incident.id)),
                )
            fields = {"state": incident.state, "severity": incident.severity, "cause": incident.cause}
            rows = {str(incident.id): wire.dumps(incident)}
            self._write("incident", rows, at=at, actor=actor, kind=kind, text=text, fields=fields)

    def incident(self, id: str) -> incidents.Incident | None:
        return self._load_one(incidents.Incident, "incident", id)

    def incidents(
        self, *, open_only: bool = False, limit: int = 1000, opened_since: datetime | None = None
    ) -> list[incidents.Incident]:
        """Incidents, newest first."""
        state = "state <> 'resolved'" if open_only else "TRUE"
        since = "" if opened_since is None else wire.format_time(opened_since)
        rows = self._rows(
            f"SELECT key, seq FROM incident WHERE {state} AND opened_at >= ?"  # noqa: S608
            " ORDER BY opened_at DESC, seq DESC LIMIT ?",
            since,
            min(limit, MAX_ROWS),
        )
        return self._load_rows(incidents.Incident, "incident", rows)

    def first_opened_at(self) -> datetime | None:
        first_opened = self._rows("SELECT MIN(opened_at) FROM incident")[0][0]
        return None if first_opened is None else wire.parse_time(first_opened)

    def first_entry_at(self) -> datetime | None:
        """When the oldest kept entry was written: before, the journal knows nothing."""
        first = self._rows("SELECT MIN(at) FROM entry")[0][0]
        return None if first is None else wire.parse_time(first)

    def open_incidents_at(self, node: fleet.Place) -> list[str]:
        """The ids of unresolved incidents at a node, or at a place in it."""
        rows = self._rows(
            "SELECT key FROM incident INDEXED BY incident_open_by_node WHERE state <> 'resolved'"
            " AND json_extract(body, '$.place.node') = ? AND json_extract(body, '$.place.cluster') = ?",
            node.node,
            node.cluster,
        )
        return [row[0] for row in rows]

    def count_open(self) -> dict[alerts.Severity, int]:
        """The number of unresolved incidents for every severity."""
        rows = self._rows(
            "SELECT json_extract(body, '$.severity'), COUNT(*) FROM incident WHERE state <> 'resolved' GROUP BY 1"
        )
        count_by_severity = dict(rows)
        return {severity: count_by_severity.get(severity.value, 0) for severity in alerts.Severity}

    def timeline(self, incident_id: str, limit: int = 1000) -> list[JournalEntry]:
        """The newest timeline entries of an incident, oldest first."""
        rows = self._rows(
            "SELECT * FROM entry WHERE subject = ? AND kind NOT IN (?, ?) ORDER BY seq DESC LIMIT ?",
            incident_id,
            NOTICE_STEP,
            REPAIR_STEP,
            limit,
        )
        return [self._entry(row) for row in reversed(rows)]

    def save_diagnosis(self, new_diagnosis: diagnosis.Diagnosis) -> None:
        text = new_diagnosis.best.title if new_diagnosis.best else "No finding"
        self._write("diagnosis", {new_diagnosis.incident: wire.dumps(new_diagnosis)}, at=new_diagnosis.at, text=text)

    def diagnosis(self, incident_id: str) -> diagnosis.Diagnosis | None:
        return self._load_one(diagnosis.Diagnosis, "diagnosis", incident_id)

    def save_plan(self, plan: actions.Plan) -> None:
        self._write("plan", {plan.incident: wire.dumps(plan)}, at=plan.made_at, text=plan.next_step)

    def plan(self, incident_id: str) -> actions.Plan | None:
        return self._load_one(actions.Plan, "plan", incident_id)

    def save_order(self, tracked: orders.TrackedOrder, *, at: datetime, actor: str, text: str) -> None:
        kind = "order" if tracked.receipt is None else "receipt"
        self._write("work_order", {tracked.order.id: wire.dumps(tracked)}, at=at, actor=actor, kind=kind, text=text)

    def order(self, id: str) -> orders.TrackedOrder | None:
        return self._load_one(orders.TrackedOrder, "work_order", id)

    def latest_orders(self, *, limit: int = 100) -> list[orders.TrackedOrder]:
        """Work orders, newest first."""
        return self._select(orders.TrackedOrder, "work_order ORDER BY seq DESC LIMIT ?", min(limit, MAX_ROWS))

    def open_orders(self, now: datetime) -> list[orders.TrackedOrder]:
        """Work orders that wait for a receipt and have not expired, oldest first."""
        selection = "work_order WHERE is_answered = 0 AND expires_at >= ? ORDER BY seq LIMIT ?"
        return self._select(orders.TrackedOrder, selection, wire.format_time(now), MAX_ROWS)

    def save_repair(self, repair: repairs.Repair, *, at: datetime, actor: str, text: str, kind: str) -> None:
        fields = {"repair": repair.id, "state": repair.state, "step": repair.step, "node": repair.node_name}
        rows = {str(repair.id): wire.dumps(repair)}
        self._write("repair", rows, at=at, actor=actor, kind=kind, text=text, fields=fields, subject=repair.incident)

    def active_repairs(self) -> list[repairs.Repair]:
        """Repairs that wait, run, or have a node out of service; oldest first."""
        return self._select(repairs.Repair, "repair WHERE is_alive = 1 ORDER BY seq LIMIT ?", MAX_ROWS)

    def latest_repairs(self, *, limit: int = 100) -> list[repairs.Repair]:
        return self._select(repairs.Repair, "repair ORDER BY seq DESC LIMIT ?", min(limit, MAX_ROWS))

    def repairs_at(self, node: fleet.Place, *, limit: int = 20) -> list[repairs.Repair]:
        """Repairs of a node or of a failure domain, newest first."""
        if node.node is None:
            rows = self._select(
                repairs.Repair,
                "repair WHERE node IS NULL AND cluster = ? ORDER BY seq DESC LIMIT ?",
                node.cluster,
                MAX_ROWS,
            )
            return [repair for repair in rows if repair.node == node][:limit]
        selection = "repair WHERE node = ? AND cluster = ? ORDER BY seq DESC LIMIT ?"
        return self._select(repairs.Repair, selection, node.node, node.cluster, limit)

    def repairs_of(self, incident_id: str, *, limit: int = 20) -> list[repairs.Repair]:
        return self._select(repairs.Repair, "repair WHERE incident = ? ORDER BY seq DESC LIMIT ?", incident_id, limit)

    def save_switch(self, switch: repairs.RepairSwitch, *, at: datetime, actor: str, text: str) -> None:
        rows = {REPAIR_SWITCH: wire.dumps(switch)}
        self._write("repair_switch", rows, at=at, actor=actor, text=text, subject=REPAIR_SWITCH)

    def switch(self) -> repairs.RepairSwitch:
        return self._load_one(repairs.RepairSwitch, "repair_switch", REPAIR_SWITCH) or repairs.RepairSwitch()

    def open_incident_ids(self, *, with_recovering: bool = True) -> set[str]:
        recovering = "" if with_recovering else " AND json_extract(body, '$.recovering_since') IS NULL"
        return {row[0] for row in self._rows(f"SELECT key FROM incident WHERE state <> 'resolved'{recovering}")}  # noqa: S608

    def save_silence(self, silence: silences.Silence, *, at: datetime, actor: str, text: str) -> None:
        self._write("silence", {silence.id: wire.dumps(silence)}, at=at, actor=actor, text=text)

    def silences(self, after: datetime) -> list[silences.Silence]:
        """Silences that end after a time, the latest end first."""
        selection = "silence WHERE ends_at > ? ORDER BY ends_at DESC LIMIT ?"
        return self._select(silences.Silence, selection, wire.format_time(after), MAX_ROWS)

    def save_notice(self, notice: notices.Notice, *, at: datetime, text: str) -> None:
        kind = "notice" if notice.tries and notice.state is not notices.NoticeState.SENDING else NOTICE_STEP
        self._write("notice", {notice.id: wire.dumps(notice)}, at=at, text=text, subject=notice.incident, kind=kind)

    def notices_of(self, incident_id: str) -> list[notices.Notice]:
        """All notifications of an incident, in the order of their creation."""
        # `seq` is from the last change, `rowid` from the creation: clocks and retries do not change it.
        return self._select(notices.Notice, "notice WHERE incident = ? ORDER BY rowid LIMIT ?", incident_id, MAX_ROWS)

    def undelivered_notices(self) -> list[notices.Notice]:
        """Notifications that are not delivered yet, oldest first."""
        selection = "notice WHERE state IN ('waiting', 'sending') ORDER BY rowid LIMIT ?"
        return self._select(notices.Notice, selection, MAX_ROWS)

    def save_alerts(self, changed: Sequence[alerts.Alert], *, at: datetime) -> None:
        """Store changed alerts for the next start, and remove resolved ones."""
        active = [alert for alert in changed if alert.state is not alerts.AlertState.RESOLVED]
        resolved = [alert.labels for alert in changed if alert.state is alerts.AlertState.RESOLVED]
        if not changed:
            return
        with self.transaction():
            self._connection.executemany("DELETE FROM alert WHERE key = ?", [(str(labels),) for labels in resolved])
            rows = {str(alert.labels): wire.dumps(_alert_to_plain(alert)) for alert in active}
            self._write("alert", rows, at=at, text=_describe_changes(changed))

    def alerts(self) -> list[alerts.Alert]:
        rows = self._rows("SELECT body FROM alert ORDER BY key LIMIT ?", MAX_ROWS)
        return [_alert_from_plain(json.loads(row[0])) for row in rows]

    def entries_of(self, kind: str, limit: int = 10_000) -> list[JournalEntry]:
        """The newest entries of one kind, oldest first."""
        rows = self._rows("SELECT * FROM entry WHERE kind = ? ORDER BY seq DESC LIMIT ?", kind, limit)
        return [self._entry(row) for row in reversed(rows)]

    def entries(self, after_seq: int = 0, limit: int = 1000) -> list[JournalEntry]:
        rows = self._rows("SELECT * FROM entry WHERE seq > ? ORDER BY seq LIMIT ?", after_seq, min(limit, MAX_ROWS))
        return [self._entry(row) for row in rows]

    def trim(self, before: datetime, *, now: datetime, max_events: int = MAX_EVENTS) -> int:
        """Delete the entries before a time, with their events and resolved incidents; return how many.

        Only the oldest entries are deleted, and a checkpoint entry has their last hash, so the remaining chain can be
        verified. Unresolved incidents stay, but the oldest part of their timeline may be deleted.
        """
        with self.transaction():
            first_kept = self._rows("SELECT MIN(seq) FROM entry WHERE at >= ?", wire.format_time(before))[0][0]
            last = self._rows("SELECT MAX(seq) FROM entry")[0][0] or 0
            cut = last if first_kept is None else first_kept - 1
            excess = self._rows("SELECT seq FROM event ORDER BY seq DESC LIMIT 1 OFFSET ?", max_events)
            cut = max(cut, excess[0][0] if excess else 0)
            cut_row = self._rows("SELECT hash FROM entry WHERE seq = ?", cut)
            if not cut_row:
                return 0
            body = {"text": f"Dropped the entries up to {cut}", "after": cut, "hash": cut_row[0][0]}
            self.record(chain.CHECKPOINT, "journal", at=now, actor=HUB, body=body)
            dropped = self._connection.execute("DELETE FROM entry WHERE seq <= ?", (cut,)).rowcount
            now_text = wire.format_time(now)
            for rows, *values in (
                ("event WHERE seq <= ?", cut),
                ("work_order WHERE seq <= ? AND (is_answered = 1 OR expires_at < ?)", cut, now_text),
                ("incident WHERE seq <= ? AND state = 'resolved'", cut),
                ("silence WHERE seq <= ? AND ends_at < ?", cut, now_text),
                ("notice WHERE incident NOT IN (SELECT key FROM incident)",),
                ("repair WHERE seq <= ? AND is_alive = 0 AND incident NOT IN (SELECT key FROM incident)", cut),
                ("diagnosis WHERE key NOT IN (SELECT key FROM incident)",),
                ("plan WHERE key NOT IN (SELECT key FROM incident)",),
            ):
                self._connection.execute(f"DELETE FROM {rows}", values)  # noqa: S608
            return dropped

    def accept_losses(self, *, at: datetime, actor: str) -> tuple[str, ...]:
        """Record that a person accepts the lost entries: the journal is then verified without them."""
        with self.transaction():
            losses = self._losses()
            for loss in losses:
                body = {**loss.body, "text": f"accepted: {loss.text}", "loss": loss.seq}
                self.record(journal_head.LOSS_ACCEPTED, "journal", at=at, actor=actor, body=body)
        self.problems = ()
        return tuple(loss.text for loss in losses)

    def verify(self) -> int | None:
        """The number of the first entry that was changed, or whose rows were; None if the journal is intact."""
        with self._translated_errors(), self._connection.snapshot():
            return chain.first_invalid_entry(self._connection)

    def _write(
        self,
        table: str,
        rows: Mapping[str, str],
        *,
        at: datetime,
        text: str,
        actor: str = HUB,
        kind: str | None = None,
        fields: Mapping[str, Any] | None = None,
        subject: str | None = None,
    ) -> None:
        """Write an entry and its rows; the entry has their digests, so the hash chain covers them."""
        subject = subject or (next(iter(rows)) if table not in ("event", "alert") else table)
        body = {**(fields or {}), "text": text, **chain.row_digests(rows)}
        with self.transaction():
            entry = self.record(kind or table, subject, at=at, actor=actor, body=body)
            self._connection.executemany(
                f"INSERT INTO {table} (key, seq, body) VALUES (?, ?, ?)"  # noqa: S608
                " ON CONFLICT (key) DO UPDATE SET seq = excluded.seq, body = excluded.body",
                [(key, entry.seq, content) for key, content in rows.items()],
            )

    def _record_loss(self, head_file: journal_head.HeadFile) -> None:
        """Record entries that the file has lost; their numbers are not used again, so that the gap stays visible."""
        with self._translated_errors():
            loss = journal_head.find_loss(head_file, self._connection)
        if loss is None:
            return
        with self.transaction():
            body = {"text": loss.problem, "first": loss.first, "last": loss.last, "hash": loss.hash}
            after = (loss.last, loss.hash) if loss.is_gap else None
            self.record(journal_head.LOSS, "journal", at=loss.at, actor=HUB, body=body, after=after)
            self._incident_number = max(self._incident_number, loss.incident_number)
            self._connection.execute("UPDATE number SET value = ? WHERE name = 'incident'", (self._incident_number,))

    def _losses(self) -> list[JournalEntry]:
        accepted = {entry.body.get("loss") for entry in self.entries_of(journal_head.LOSS_ACCEPTED)}
        return [entry for entry in self.entries_of(journal_head.LOSS) if entry.seq not in accepted]

    def _write_head(self) -> None:
        entry, self._uncommitted = self._uncommitted, None
        if entry is not None and self._head_file is not None:
            at_text = wire.format_time(entry.at)
            self._head_file.write(journal_head.JournalHead(entry.seq, entry.hash, at_text, self._incident_number))

    def _number(self, name: str) -> int:
        return int(self._rows("SELECT value FROM number WHERE name = ?", name)[0][0])

    def _rows(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        with self._translated_errors():
            return self._connection.execute(statement, values).fetchall()

    def _select(self, kind: type[T], selection: str, *values: object) -> list[T]:
        """Decode the bodies of the rows of a table with conditions, order and limit."""
        return [self._decode(kind, row[0]) for row in self._rows(f"SELECT body FROM {selection}", *values)]  # noqa: S608

    def _load_one(self, kind: type[T], table: str, key: str) -> T | None:
        rows = self._rows(f"SELECT key, seq FROM {table} WHERE key = ?", key)  # noqa: S608
        values = self._load_rows(kind, table, rows)
        return values[0] if values else None

    def _load_rows(self, kind: type[T], table: str, rows: Sequence[tuple[Any, ...]]) -> list[T]:
        """Load rows by key and `seq`; decoded rows are cached, because pages read the same ones repeatedly.

        Decoding takes most of the time; it runs without the lock, so that commits need not wait for it.
        """
        value_by_key: dict[str, T] = {}
        with self._lock:
            for key, seq in rows:
                cached = self._decoded_rows.pop((table, key), None)
                if cached is not None and cached[0] == seq:
                    value_by_key[key], self._decoded_rows[table, key] = cast(T, cached[1]), cached
        missing = [key for key, _ in rows if key not in value_by_key]
        for start in range(0, len(missing), KEYS_PER_QUERY):
            keys = missing[start : start + KEYS_PER_QUERY]
            statement = f"SELECT key, seq, body FROM {table} WHERE key IN ({', '.join('?' * len(keys))})"  # noqa: S608
            for key, seq, body in self._rows(statement, *keys):
                value_by_key[key] = self._decode(kind, body)
                if len(rows) <= MAX_CACHED_LIST:
                    with self._lock:
                        self._decoded_rows[table, key] = (seq, value_by_key[key])
                        if len(self._decoded_rows) > MAX_DECODED_ROWS:
                            del self._decoded_rows[next(iter(self._decoded_rows))]
        return [value_by_key[key] for key, _ in rows if key in value_by_key]

    def _decode(self, kind: type[T], text: str) -> T:
        try:
            return wire.loads(kind, text)
        except WireError as error:
            raise StoreError(
                f"a row is not a valid {kind.__name__}: {error}",
                where=str(self.path),
                remedy="Run `watchkeeper store verify`, and restore a damaged journal from a backup",
            ) from error

    def _entry(self, row: tuple[Any, ...]) -> JournalEntry:
        try:
            return chain.entry_of(row)
        except ValueError as error:
            raise StoreError(f"entry {row[0]} cannot be read: {quote(row)}", where=str(self.path)) from error

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        with self._lock:
            try:
                yield
            except sqlite3.Error as error:
                raise StoreError(
                    f"the journal cannot be read or written: {error}",
                    where=str(self.path),
                    now="The change was not saved",
                    remedy="Check the disk and the file, and restore a damaged file from a backup",
                ) from error


def _node_condition(place: fleet.Place) -> tuple[str, list[str]]:
    if place.node is None:
        return "cluster = ?", [place.cluster]
    return "cluster = ? AND node = ?", [place.cluster, place.node]


def _number_of(incident_id: str) -> int:
    digits = incident_id.removeprefix(INCIDENT_PREFIX)
    return int(digits) if digits.isdigit() else 0


def _describe_changes(changed: Sequence[alerts.Alert]) -> str:
    """The changed alerts by state and name: `firing: GPUCountMismatch; resolved: GPUOffline ×8`."""
    parts = []
    for state, word in STATE_TEXTS.items():
        names = Counter(alert.name for alert in changed if alert.state is state)
        named = [f"{name} ×{times}" if times > 1 else name for name, times in names.most_common(MAX_NAMED_RULES)]
        omitted = [f"{len(names) - MAX_NAMED_RULES} more"] if len(names) > MAX_NAMED_RULES else []
        parts += [f"{word}: {', '.join([*named, *omitted])}"] if named else []
    return "; ".join(parts)


def _alert_to_plain(alert: alerts.Alert) -> dict[str, Any]:
    # An alert's value may be NaN or infinite, which JSON cannot write as a number.
    return {**wire.to_plain(alert), "value": repr(alert.value)}


def _alert_from_plain(plain: dict[str, Any]) -> alerts.Alert:
    times = {name: wire.parse_time(plain[name]) for name in _ALERT_TIMES if plain.get(name)}
    return alerts.Alert(
        labels=labels.Labels(plain["labels"]),
        state=alerts.AlertState(plain["state"]),
        value=float(plain["value"]),
        annotations=plain["annotations"],
        **times,
    )
