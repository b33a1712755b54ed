"""A node with four GPUs in a real engine, with the changes of a test, and the facts gathered about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from watchkeeper.diagnose.evidence import IncidentFacts, gather_facts
from watchkeeper.kit import clock
from watchkeeper.model import alerts, events, fleet, incidents, labels, samples
from watchkeeper.query import embedded
from watchkeeper.store.head import head

NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
HEALTHY = {
    "DCGM_FI_DEV_GPU_TEMP": 61.0,
    "DCGM_FI_DEV_GPU_MAX_OP_TEMP": 87.0,
    "DCGM_FI_DEV_POWER_USAGE": 500.0,
    "DCGM_FI_PROF_SM_ACTIVE": 0.9,
    "DCGM_FI_DEV_GPU_UTIL": 100.0,
    "DCGM_FI_DEV_SM_CLOCK": 1900.0,
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": 0.0,
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": 0.0,
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": 0.0,
    "DCGM_FI_DEV_FB_USED": 60000.0,
}
NODE = fleet.Place("main", node="n1")


def gpu(index: int) -> fleet.Place:
    return fleet.Place("main", node="n1", gpu=f"GPU-{index}")


def name(place: fleet.Place) -> str:
    return f"GPU {place.gpu[-1]} on {place.node}" if place.gpu else str(place.node)


def an_engine(
    changed: Mapping[int, Mapping[str, float]] | None = None, *, gone: Sequence[int] = ()
) -> embedded.EmbeddedEngine:
    """Two samples per series, a minute apart; a GPU that is gone has only the first, and a stale marker."""
    engine = embedded.EmbeddedEngine(head.Head())
    for seconds in (-60, 0):
        at_ms = clock.to_ms(NOON + timedelta(seconds=seconds))
        batch = []
        for index in range(4):
            values = {**HEALTHY, **(changed or {}).get(index, {})}
            is_gone = index in gone and seconds == 0
            for metric, value in values.items():
                pairs = {"__name__": metric, "cluster": "main", "Hostname": "n1", "UUID": f"GPU-{index}"}
                batch.append(samples.Sample(labels.Labels(pairs), at_ms, samples.STALE if is_gone else value))
        expected = {"__name__": "watchkeeper_node_expected_gpus", "cluster": "main", "Hostname": "n1"}
        batch.append(samples.Sample(labels.Labels(expected), at_ms, 4.0))
        engine.appender.append(batch)
    return engine


def xid(code: int, place: fleet.Place, seconds: float = 0.0, *, program: str | None = None) -> events.Event:
    at = NOON + timedelta(seconds=seconds)
    text = f"NVRM: Xid (PCI:0000:5d:00): {code}, pid=1234, name={program}"
    process = events.Process(1234, program) if program else None
    return events.Event(f"{code}/{place}/{seconds}", events.EventKind.XID, code, place, at, text, process=process)


def an_incident(
    cause: str, place: fleet.Place, *, family: str, kind: incidents.MemberKind = incidents.MemberKind.ALERT
) -> incidents.Incident:
    member = incidents.Member(kind, "ref", place, cause, NOON, f"{cause} here", severity=alerts.Severity.CRITICAL)
    return incidents.Incident(
        id=incidents.IncidentId("INC-1"),
        place=place,
        title=f"{cause} at {place}",
        severity=alerts.Severity.CRITICAL,
        state=incidents.IncidentState.OPEN,
        opened_at=NOON,
        cause=cause,
        family=family,
        members=(member,),
        workloads=("research/notebook",),
    )


def facts_about(
    incident: incidents.Incident,
    *,
    happened: Sequence[events.Event] = (),
    engine: embedded.EmbeddedEngine | None = None,
) -> IncidentFacts:
    return gather_facts(
        incident,
        NOON + timedelta(seconds=5),
        engine=engine or an_engine(),
        events_at=lambda place, since, until: [
            event for event in happened if place.encloses(event.place) and since <= event.at <= until
        ],
        names=name,
    )
