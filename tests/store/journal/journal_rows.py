"""Events and incidents as rows of a journal."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from watchkeeper.model import alerts, events, fleet, incidents, notices

NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
GPU = fleet.Place("main", node="n1", gpu="GPU-1")


def minutes(count: float) -> datetime:
    return NOON + timedelta(minutes=count)


def xid(seq: int, *, at: datetime = NOON, place: fleet.Place = GPU, code: int = 79) -> events.Event:
    return events.Event(f"main/n1/boot/kmsg/{seq}", events.EventKind.XID, code, place, at, f"Xid {code}")


def an_incident(id: str = "INC-1") -> incidents.Incident:
    return incidents.Incident(
        id=incidents.IncidentId(id),
        place=GPU,
        title="GPU 1 on n1 fell off the bus",
        severity=alerts.Severity.CRITICAL,
        state=incidents.IncidentState.OPEN,
        opened_at=NOON,
        cause="gpu_fell_off_bus",
        family="gpu_lost",
        members=(),
    )


def a_notice(id: str, state: notices.NoticeState) -> notices.Notice:
    return notices.Notice(id, "INC-1", "pager", notices.Occasion.OPENED, alerts.Severity.CRITICAL, state, NOON, NOON)
