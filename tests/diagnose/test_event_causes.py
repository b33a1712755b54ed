"""The cause of each kind of event is the same for incidents and diagnoses."""

from __future__ import annotations

import pytest

from tests.diagnose import stories
from watchkeeper.diagnose import evidence
from watchkeeper.incidents import signals
from watchkeeper.model import diagnosis
from watchkeeper.model.events import Event, EventKind
from watchkeeper.model.incidents import MemberKind


def an_event(kind: EventKind, **fields: str) -> Event:
    return Event(f"e/{kind}", kind, None, stories.NODE, stories.NOON, f"a line of {kind}", fields=fields)


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        (EventKind.GSP_ERROR, "gsp_timeout"),
        (EventKind.NVLINK_ERROR, "nvlink_error"),
        (EventKind.NIC_ERROR, "ib_link_degraded"),
        (EventKind.LINK_DOWN, "ib_link_degraded"),
        (EventKind.FABRIC_DOWN, "ib_link_degraded"),
        (EventKind.IOMMU_FAULT, "iommu_fault"),
        (EventKind.STORAGE_LOST, "storage_unreachable"),
        (EventKind.MACHINE_CHECK, None),
        (EventKind.NODE_BOOT, None),
        (EventKind.FABRIC_UP, None),
    ],
)
def test_a_kind_of_event_speaks_for_its_cause(kind: EventKind, cause: str | None) -> None:
    assert evidence.cause_of(an_event(kind)) == cause


def test_an_event_that_names_its_cause_has_that_cause() -> None:
    fault = an_event(EventKind.DRIVER_FAULT, cause="driver_call_hung")
    assert evidence.cause_of(fault) == "driver_call_hung"


@pytest.mark.parametrize("kind", EventKind)
def test_an_incident_opens_under_the_cause_that_its_diagnosis_reads(kind: EventKind) -> None:
    named = {"cause": "driver_call_hung"} if kind in signals.NAMED_KINDS else {}
    event = an_event(kind, severity="uncorrected", **named)
    signal = signals.from_event(event)
    cause = None if signal is None or signal.cause == diagnosis.UNKNOWN_CAUSE else signal.cause
    assert evidence.cause_of(event) == cause


def test_a_firmware_event_is_found_as_evidence_of_its_cause() -> None:
    incident = stories.an_incident("gsp_timeout", stories.NODE, family="gpu_firmware", kind=MemberKind.EVENT)
    facts = stories.facts_about(incident, happened=[an_event(EventKind.GSP_ERROR)])
    assert [event.kind for event in facts.events_with_cause("gsp_timeout")] == [EventKind.GSP_ERROR]
