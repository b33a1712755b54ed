"""The journal: events, incidents, diagnoses, plans, alert states and the audit of them, in SQLite or PostgreSQL.

Every change is one transaction that appends a chained entry (see `chain.py`) and rewrites the rows it
is about, so after a crash both are there or neither is. The hub owns one Journal and gives it to the
incidents stage; the web pages read from it. All SQL of the product is here and in the neighbours `journal_file`,
`journal_check`, `postgres` and `election`; a statement here is one that both databases understand.
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
from watchkeeper.store.journal import chain, journal_check
from watchkeeper.store.journal.chain import JournalEntry
from watchkeeper.store.journal.connection import Connection
from watchkeeper.store.journal.journal_file import open_journal

T = TypeVar("T")

# Rows of one kind may be asked for at most this many at a time: every GPU of the largest fleet once.
MOST_ROWS = 100_000
# An event is a few hundred bytes: half a million are some 200 MB of disk.
MOST_EVENTS = 500_000
# Decoded rows that are kept, some 3 kB each: in a storm every picture of the fleet asks for all open incidents, 10,000
# at most. Longer lists are of the past and are not kept: they would push out the rest.
MOST_DECODED, LONGEST_KEPT = 20_000, 10_000
# How an entry says what alerts did, and of how many rules it names each.
ALERT_WORDS = {
    alerts.AlertState.FIRING: "fires",
    alerts.AlertState.PENDING: "waits",
    alerts.AlertState.RESOLVED: "over",
}
MOST_NAMED = 5
# Rows that one statement reads by their keys.
KEYS_AT_ONCE = 500
_ALERT_TIMES = ("active_at", "fired_at", "resolved_at", "kept_since")
INCIDENT_PREFIX = "INC-"
HUB = "hub"
# A message or a repair on its way, in the audit but of no interest to those who read an incident's story.
NOTICE_STEP = "notice_step"
REPAIR_STEP = "repair_step"
# Everything about repairs that is not on the timeline of one incident.
REPAIR_SWITCH = "repair_switch"


class Journal:
    """One writer at a time; every method may be called from any thread.

    A file is led by whoever opened it last: whoever had it open before gets JournalConflict on the next write instead
    of writing beside us. On a server the connection knows in which epoch it writes, or that it only reads.
    """

    def __init__(self, place: Path | Connection) -> None:
        self._lock = threading.RLock()
        self._depth = 0
        self._decoded: dict[tuple[str, str], tuple[int, object]] = {}
        self._connection: Connection = open_journal(place) if isinstance(place, Path) else place
        self.path, self.epoch = self._connection.where, self._connection.epoch
        try:
            self._incident_number = self._number("incident")
        except StoreError:
            self._connection.close()
            raise

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Everything written inside is kept, or nothing of it; nests."""
        with self._guarded():
            if self._depth == 0:
                self._connection.begin()
            before = self._incident_number
            self._depth += 1
            try:
                yield
                if self._depth == 1:
                    self._connection.execute("COMMIT")
            except BaseException:
                if self._depth == 1:
                    # What was read of it inside has numbers that the next entries and incidents get again.
                    self._decoded.clear()
                    self._incident_number = before
                    if self._connection.in_transaction:
                        self._connection.execute("ROLLBACK")
                raise
            finally:
                self._depth -= 1

    def record(self, kind: str, subject: str, *, at: datetime, actor: str, body: Mapping[str, Any]) -> JournalEntry:
        """Append one entry that changes no row: a note, an action's receipt, a start of the hub."""
        with self.transaction():
            row = self._rows("SELECT seq, hash FROM entry ORDER BY seq DESC LIMIT 1")
            seq, prev = (row[0][0] + 1, row[0][1]) if row else (1, chain.GENESIS)
            plain = wire.to_plain(body)
            text = wire.dumps(plain)
            entry = JournalEntry(seq, at, actor, kind, subject, plain, self.epoch, prev, hash="")
            entry = replace(entry, hash=chain.entry_hash(entry, text))
            self._connection.execute(
                "INSERT INTO entry VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (seq, wire.format_time(at), actor, kind, subject, text, self.epoch, prev, entry.hash),
            )
            return entry

    def save_events(self, batch: Sequence[events.Event], now: datetime) -> list[events.Event]:
        """Keep the events that are not known yet, and return those, marked as received now."""
        with self.transaction():
            fresh: dict[str, events.Event] = {}
            for event in batch:
                known = self._rows("SELECT 1 FROM event WHERE key = ?", event.id)
                if not known and event.id not in fresh:
                    fresh[event.id] = replace(event, received_at=now)
            if fresh:
                nodes = sorted({str(event.place.node or event.place.cluster) for event in fresh.values()})
                text = f"events of {', '.join(nodes[:3])}{' …' if len(nodes) > 3 else ''}: {len(fresh)}"
                self._write("event", {key: wire.dumps(event) for key, event in fresh.items()}, at=now, text=text)
            return list(fresh.values())

    def events_at(
        self, place: fleet.Place, *, since: datetime, until: datetime, limit: int = MOST_ROWS
    ) -> list[events.Event]:
        """Events of the place's node (or of the whole cluster), oldest first, that lie at or inside the place."""
        where, values = _node_condition(place)
        # A rack or leaf has few events of its own; those of its nodes are asked for by node.
        where += " AND node IS NULL" if place.domain is not None else ""
        rows = self._rows(
            f"SELECT body FROM event WHERE {where} AND at BETWEEN ? AND ? ORDER BY at, key LIMIT ?",  # noqa: S608
            *values,
            wire.format_time(since),
            wire.format_time(until),
            min(limit, MOST_ROWS),
        )
        found = (self._decode(events.Event, row[0]) for row in rows)
        return [event for event in found if place.encloses(event.place)]

    def latest_events(self, place: fleet.Place | None, since: datetime) -> list[events.Event]:
        """The newest event of each place, kind, code and server: enough to fold conditions after a restart.

        Asks about the node (or cluster) of a place, or about everything for None.
        """
        where, values = ("TRUE", []) if place is None else _node_condition(place)
        rows = self._rows(
            "SELECT body FROM (SELECT body, ROW_NUMBER() OVER (PARTITION BY json_extract(body, '$.place'),"  # noqa: S608
            " json_extract(body, '$.kind'), json_extract(body, '$.code'), json_extract(body, '$.fields.server')"
            " ORDER BY at DESC, key DESC) AS turn"
            f" FROM event WHERE {where} AND at >= ?) AS newest WHERE turn = 1 LIMIT ?",
            *values,
            wire.format_time(since),
            MOST_ROWS,
        )
        return [self._decode(events.Event, row[0]) for row in rows]

    def event(self, id: str) -> events.Event | None:
        return self._one(events.Event, "event", id)

    def next_incident_id(self) -> incidents.IncidentId:
        """INC-1, INC-2 …; a number is used once, also after a restart or a trim."""
        with self._lock:
            self._incident_number += 1
            return incidents.IncidentId(f"{INCIDENT_PREFIX}{self._incident_number}")

    def save_incident(
        self, incident: incidents.Incident, *, kind: str, text: str, at: datetime, actor: str = HUB
    ) -> None:
        """Keep the next version of an incident; JournalConflict when it is not the next one."""
        with self.transaction():
            known = self._rows("SELECT version FROM incident WHERE key = ?", incident.id)
            stored = known[0][0] if known else 0
            if incident.version != stored + 1:
                raise JournalConflict(
                    f"version {incident.version} was to be written, but version {stored} is the newest",
                    where=incident.id,
                    now="Nothing was written",
                    remedy="Read the incident again and repeat the change",
                )
            if not known:
                self._connection.execute(
                    "UPDATE number SET value = ? WHERE name = 'incident' AND value < ?",
                    (_number_of(incident.id), _number_of(incident.id)),
                )
            about = {"state": incident.state, "severity": incident.severity, "cause": incident.cause}
            self._write(
                "incident",
                {incident.id: wire.dumps(incident)},
                at=at,
                actor=actor,
                kind=kind,
                text=text,
                about=about,
            )

    def incident(self, id: str) -> incidents.Incident | None:
        return self._one(incidents.Incident, "incident", id)

    def incidents(
        self, *, open_only: bool = False, limit: int = 1000, opened_since: datetime | None = None
    ) -> list[incidents.Incident]:
        """Newest first."""
        state = "state <> 'resolved'" if open_only else "TRUE"
        since = "" if opened_since is None else wire.format_time(opened_since)
        rows = self._rows(
            f"SELECT key, seq FROM incident WHERE {state} AND opened_at >= ?"  # noqa: S608
            " ORDER BY opened_at DESC, seq DESC LIMIT ?",
            since,
            min(limit, MOST_ROWS),
        )
        return self._recall(incidents.Incident, "incident", rows)

    def first_opened_at(self) -> datetime | None:
        """When the oldest incident that is kept was opened."""
        found = self._rows("SELECT MIN(opened_at) FROM incident")[0][0]
        return None if found is None else wire.parse_time(found)

    def open_incidents_at(self, node: fleet.Place) -> list[str]:
        """The ids of incidents at a node, or at something in it, that are not resolved."""
        rows = self._rows(
            "SELECT key FROM incident INDEXED BY incident_open_by_node WHERE state <> 'resolved'"
            " AND json_extract(body, '$.place.node') = ? AND json_extract(body, '$.place.cluster') = ?",
            node.node,
            node.cluster,
        )
        return [row[0] for row in rows]

    def count_open(self) -> dict[alerts.Severity, int]:
        """How many incidents are not resolved, by severity; every severity is there."""
        rows = self._rows(
            "SELECT json_extract(body, '$.severity'), COUNT(*) FROM incident WHERE state <> 'resolved' GROUP BY 1"
        )
        found = dict(rows)
        return {severity: found.get(severity.value, 0) for severity in alerts.Severity}

    def timeline(self, incident_id: str, limit: int = 1000) -> list[JournalEntry]:
        """What happened to an incident, oldest first; of a very long story the newest part."""
        rows = self._rows(
            "SELECT * FROM entry WHERE subject = ? AND kind NOT IN (?, ?) ORDER BY seq DESC LIMIT ?",
            incident_id,
            NOTICE_STEP,
            REPAIR_STEP,
            limit,
        )
        return [self._entry(row) for row in reversed(rows)]

    def save_diagnosis(self, found: diagnosis.Diagnosis) -> None:
        text = found.best.title if found.best else "No finding"
        self._write("diagnosis", {found.incident: wire.dumps(found)}, at=found.at, text=text)

    def diagnosis(self, incident_id: str) -> diagnosis.Diagnosis | None:
        return self._one(diagnosis.Diagnosis, "diagnosis", incident_id)

    def save_plan(self, plan: actions.Plan) -> None:
        self._write("plan", {plan.incident: wire.dumps(plan)}, at=plan.made_at, text=plan.next_step)

    def plan(self, incident_id: str) -> actions.Plan | None:
        return self._one(actions.Plan, "plan", incident_id)

    def save_order(self, tracked: orders.TrackedOrder, *, at: datetime, actor: str, text: str) -> None:
        """Keep a work order as it is now: given, or answered with a receipt."""
        kind = "order" if tracked.receipt is None else "receipt"
        self._write("work_order", {tracked.order.id: wire.dumps(tracked)}, at=at, actor=actor, kind=kind, text=text)

    def order(self, id: str) -> orders.TrackedOrder | None:
        return self._one(orders.TrackedOrder, "work_order", id)

    def latest_orders(self, *, limit: int = 100) -> list[orders.TrackedOrder]:
        """Newest first."""
        rows = self._rows("SELECT body FROM work_order ORDER BY seq DESC LIMIT ?", min(limit, MOST_ROWS))
        return [self._decode(orders.TrackedOrder, row[0]) for row in rows]

    def open_orders(self, now: datetime) -> list[orders.TrackedOrder]:
        """Those that may still be answered, oldest first."""
        rows = self._rows(
            "SELECT body FROM work_order WHERE is_answered = 0 AND expires_at >= ? ORDER BY seq LIMIT ?",
            wire.format_time(now),
            MOST_ROWS,
        )
        return [self._decode(orders.TrackedOrder, row[0]) for row in rows]

    def save_repair(self, repair: repairs.Repair, *, at: datetime, actor: str, text: str, kind: str) -> None:
        """Keep a repair as it is now, on the timeline of its incident."""
        about = {"repair": repair.id, "state": repair.state, "step": repair.step, "node": repair.node.node}
        rows = {str(repair.id): wire.dumps(repair)}
        self._write("repair", rows, at=at, actor=actor, kind=kind, text=text, about=about, subject=repair.incident)

    def active_repairs(self) -> list[repairs.Repair]:
        """Those that wait, run, or hold a node; oldest first."""
        rows = self._rows("SELECT body FROM repair WHERE is_alive = 1 ORDER BY seq LIMIT ?", MOST_ROWS)
        return [self._decode(repairs.Repair, row[0]) for row in rows]

    def latest_repairs(self, *, limit: int = 100) -> list[repairs.Repair]:
        """Newest first."""
        rows = self._rows("SELECT body FROM repair ORDER BY seq DESC LIMIT ?", min(limit, MOST_ROWS))
        return [self._decode(repairs.Repair, row[0]) for row in rows]

    def repairs_at(self, node: fleet.Place, *, limit: int = 20) -> list[repairs.Repair]:
        """Those of a node, newest first."""
        rows = self._rows(
            "SELECT body FROM repair WHERE node = ? AND cluster = ? ORDER BY seq DESC LIMIT ?",
            node.node,
            node.cluster,
            limit,
        )
        return [self._decode(repairs.Repair, row[0]) for row in rows]

    def repairs_of(self, incident_id: str, *, limit: int = 20) -> list[repairs.Repair]:
        """Those that an incident gave the plan for, newest first."""
        rows = self._rows("SELECT body FROM repair WHERE incident = ? ORDER BY seq DESC LIMIT ?", incident_id, limit)
        return [self._decode(repairs.Repair, row[0]) for row in rows]

    def save_switch(self, switch: repairs.RepairSwitch, *, at: datetime, actor: str, text: str) -> None:
        rows = {REPAIR_SWITCH: wire.dumps(switch)}
        self._write("repair_switch", rows, at=at, actor=actor, text=text, subject=REPAIR_SWITCH)

    def switch(self) -> repairs.RepairSwitch:
        return self._one(repairs.RepairSwitch, "repair_switch", REPAIR_SWITCH) or repairs.RepairSwitch()

    def open_incident_ids(self) -> set[str]:
        return {row[0] for row in self._rows("SELECT key FROM incident WHERE state <> 'resolved'")}

    def save_silence(self, silence: silences.Silence, *, at: datetime, actor: str, text: str) -> None:
        self._write("silence", {silence.id: wire.dumps(silence)}, at=at, actor=actor, text=text)

    def silences(self, after: datetime) -> list[silences.Silence]:
        """Those that end after a time, the one that ends last first."""
        rows = self._rows(
            "SELECT body FROM silence WHERE ends_at > ? ORDER BY ends_at DESC LIMIT ?",
            wire.format_time(after),
            MOST_ROWS,
        )
        return [self._decode(silences.Silence, row[0]) for row in rows]

    def save_notice(self, notice: notices.Notice, *, at: datetime, text: str) -> None:
        """Keep what became of a message, on the timeline of its incident."""
        kind = "notice" if notice.tries and notice.state is not notices.NoticeState.SENDING else NOTICE_STEP
        self._write("notice", {notice.id: wire.dumps(notice)}, at=at, text=text, subject=notice.incident, kind=kind)

    def notices_of(self, incident_id: str) -> list[notices.Notice]:
        """Every message about an incident, in the order in which they were decided."""
        # `seq` is of the last change, `rowid` of the first: no clock and no try moves it.
        rows = self._rows("SELECT body FROM notice WHERE incident = ? ORDER BY rowid LIMIT ?", incident_id, MOST_ROWS)
        return [self._decode(notices.Notice, row[0]) for row in rows]

    def undelivered_notices(self) -> list[notices.Notice]:
        """Those that no receiver has taken yet, oldest first."""
        rows = self._rows(
            "SELECT body FROM notice WHERE state IN ('waiting', 'sending') ORDER BY rowid LIMIT ?", MOST_ROWS
        )
        return [self._decode(notices.Notice, row[0]) for row in rows]

    def save_alerts(self, changed: Sequence[alerts.Alert], *, at: datetime) -> None:
        """Keep the alerts that changed, for the next start, and forget those that resolved."""
        lasting = [alert for alert in changed if alert.state is not alerts.AlertState.RESOLVED]
        over = [alert.labels for alert in changed if alert.state is alerts.AlertState.RESOLVED]
        if not changed:
            return
        with self.transaction():
            self._connection.executemany("DELETE FROM alert WHERE key = ?", [(str(labels),) for labels in over])
            rows = {str(alert.labels): wire.dumps(_alert_to_plain(alert)) for alert in lasting}
            self._write("alert", rows, at=at, text=_in_words(changed))

    def alerts(self) -> list[alerts.Alert]:
        rows = self._rows("SELECT body FROM alert ORDER BY key LIMIT ?", MOST_ROWS)
        return [_alert_from_plain(json.loads(row[0])) for row in rows]

    def entries_of(self, kind: str, limit: int = 10_000) -> list[JournalEntry]:
        """The newest entries of one kind, oldest first."""
        rows = self._rows("SELECT * FROM entry WHERE kind = ? ORDER BY seq DESC LIMIT ?", kind, limit)
        return [self._entry(row) for row in reversed(rows)]

    def entries(self, after_seq: int = 0, limit: int = 1000) -> list[JournalEntry]:
        rows = self._rows("SELECT * FROM entry WHERE seq > ? ORDER BY seq LIMIT ?", after_seq, min(limit, MOST_ROWS))
        return [self._entry(row) for row in rows]

    def trim(self, before: datetime, *, now: datetime, most_events: int = MOST_EVENTS) -> int:
        """Drop the entries before a time, with the events and finished incidents they wrote; return how many.

        What is dropped is always the oldest part, and a checkpoint entry keeps its last hash, so the rest
        still verifies. Incidents that are not resolved stay, though their early timeline may go.
        """
        with self.transaction():
            old = self._rows("SELECT MIN(seq) FROM entry WHERE at >= ?", wire.format_time(before))[0][0]
            last = self._rows("SELECT MAX(seq) FROM entry")[0][0] or 0
            cut = last if old is None else old - 1
            surplus = self._rows("SELECT seq FROM event ORDER BY seq DESC LIMIT 1 OFFSET ?", most_events)
            cut = max(cut, surplus[0][0] if surplus else 0)
            edge = self._rows("SELECT hash FROM entry WHERE seq = ?", cut)
            if not edge:
                return 0
            body = {"text": f"Dropped the entries up to {cut}", "after": cut, "hash": edge[0][0]}
            self.record(journal_check.CHECKPOINT, "journal", at=now, actor=HUB, body=body)
            dropped = self._connection.execute("DELETE FROM entry WHERE seq <= ?", (cut,)).rowcount
            self._connection.execute("DELETE FROM event WHERE seq <= ?", (cut,))
            self._connection.execute(
                "DELETE FROM work_order WHERE seq <= ? AND (is_answered = 1 OR expires_at < ?)",
                (cut, wire.format_time(now)),
            )
            self._connection.execute("DELETE FROM incident WHERE seq <= ? AND state = 'resolved'", (cut,))
            self._connection.execute("DELETE FROM silence WHERE seq <= ? AND ends_at < ?", (cut, wire.format_time(now)))
            self._connection.execute("DELETE FROM notice WHERE incident NOT IN (SELECT key FROM incident)")
            self._connection.execute(
                "DELETE FROM repair WHERE seq <= ? AND is_alive = 0 AND incident NOT IN (SELECT key FROM incident)",
                (cut,),
            )
            for table in ("diagnosis", "plan"):
                self._connection.execute(f"DELETE FROM {table} WHERE key NOT IN (SELECT key FROM incident)")  # noqa: S608
            return dropped

    def verify(self) -> int | None:
        """The number of the first entry that is not as it was written, or whose rows are not; None if all are."""
        with self._guarded(), self._connection.snapshot():
            return journal_check.first_invalid_entry(self._connection)

    def _write(
        self,
        table: str,
        rows: Mapping[str, str],
        *,
        at: datetime,
        text: str,
        actor: str = HUB,
        kind: str | None = None,
        about: Mapping[str, Any] | None = None,
        subject: str | None = None,
    ) -> None:
        """One entry and the rows that belong to it; the entry holds their digest, so they are covered by the chain."""
        subject = subject or (next(iter(rows)) if table not in ("event", "alert") else table)
        body = {**(about or {}), "text": text, **journal_check.row_digests(rows)}
        with self.transaction():
            entry = self.record(kind or table, subject, at=at, actor=actor, body=body)
            self._connection.executemany(
                f"INSERT INTO {table} (key, seq, body) VALUES (?, ?, ?)"  # noqa: S608
                " ON CONFLICT (key) DO UPDATE SET seq = excluded.seq, body = excluded.body",
                [(key, entry.seq, content) for key, content in rows.items()],
            )

    def _number(self, name: str) -> int:
        return int(self._rows("SELECT value FROM number WHERE name = ?", name)[0][0])

    def _rows(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        with self._guarded():
            return self._connection.execute(statement, values).fetchall()

    def _one(self, kind: type[T], table: str, key: str) -> T | None:
        rows = self._rows(f"SELECT key, seq FROM {table} WHERE key = ?", key)  # noqa: S608
        found = self._recall(kind, table, rows)
        return found[0] if found else None

    def _recall(self, kind: type[T], table: str, rows: Sequence[tuple[Any, ...]]) -> list[T]:
        """Rows by key and `seq` of their entry; pages ask for the same ones all the time, so decoded ones are kept.

        Decoding takes most of the time: it is done without the lock, or a commit would wait for a page.
        """
        found: dict[str, T] = {}
        with self._lock:
            for key, seq in rows:
                known = self._decoded.pop((table, key), None)
                if known is not None and known[0] == seq:
                    found[key], self._decoded[table, key] = cast(T, known[1]), known
        missing = [key for key, _ in rows if key not in found]
        for at in range(0, len(missing), KEYS_AT_ONCE):
            keys = missing[at : at + KEYS_AT_ONCE]
            statement = f"SELECT key, seq, body FROM {table} WHERE key IN ({', '.join('?' * len(keys))})"  # noqa: S608
            for key, seq, body in self._rows(statement, *keys):
                found[key] = self._decode(kind, body)
                if len(rows) <= LONGEST_KEPT:
                    self._keep_decoded((table, key), (seq, found[key]))
        return [found[key] for key, _ in rows if key in found]

    def _keep_decoded(self, key: tuple[str, str], known: tuple[int, object]) -> None:
        with self._lock:
            self._decoded[key] = known
            if len(self._decoded) > MOST_DECODED:
                del self._decoded[next(iter(self._decoded))]

    def _decode(self, kind: type[T], text: str) -> T:
        try:
            return wire.loads(kind, text)
        except WireError as error:
            raise StoreError(
                f"a row is not a readable {kind.__name__}: {error}",
                where=str(self.path),
                remedy="Run `verify` on the journal; restore it from a copy if it is broken",
            ) from error

    def _entry(self, row: tuple[Any, ...]) -> JournalEntry:
        try:
            return journal_check.entry_of(row)
        except ValueError as error:
            raise StoreError(f"entry {row[0]} is not readable: {quote(row)}", where=str(self.path)) from error

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        with self._lock:
            try:
                yield
            except sqlite3.Error as error:
                raise StoreError(
                    f"the journal refused: {error}",
                    where=str(self.path),
                    now="What was being written is not kept",
                    remedy="Check the disk and the file; restore the file from a copy if it is damaged",
                ) from error


def _node_condition(place: fleet.Place) -> tuple[str, list[str]]:
    if place.node is None:
        return "cluster = ?", [place.cluster]
    return "cluster = ? AND node = ?", [place.cluster, place.node]


def _number_of(incident_id: str) -> int:
    digits = incident_id.removeprefix(INCIDENT_PREFIX)
    return int(digits) if digits.isdigit() else 0


def _in_words(changed: Sequence[alerts.Alert]) -> str:
    """What changed, by state and name: `fires: GPUCountMismatch; over: GPUOffline ×8`."""
    said = []
    for state, word in ALERT_WORDS.items():
        names = Counter(alert.name for alert in changed if alert.state is state)
        told = [f"{name} ×{times}" if times > 1 else name for name, times in names.most_common(MOST_NAMED)]
        rest = [f"{len(names) - MOST_NAMED} more"] if len(names) > MOST_NAMED else []
        said += [f"{word}: {', '.join([*told, *rest])}"] if told else []
    return "; ".join(said)


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
