"""Findings for causes without their own check: the entry of the catalogue, or what to collect next."""

from __future__ import annotations

from watchkeeper.catalogue import xid
from watchkeeper.diagnose.checks.findings import make_finding
from watchkeeper.diagnose.evidence import IncidentFacts, event_evidence, member_evidence
from watchkeeper.model.diagnosis import UNKNOWN_CAUSE, DiagnosisStep, Finding
from watchkeeper.model.events import EventKind
from watchkeeper.model.incidents import MemberKind


def from_catalogue(facts: IncidentFacts) -> Finding | None:
    """A finding from the catalogue for the incident's cause; None if the cause is unknown."""
    cause = facts.incident.cause
    members = facts.members_with_cause(cause)
    if cause == UNKNOWN_CAUSE or not members:
        return None
    has_event = any(member.kind is MemberKind.EVENT for member in members)
    return make_finding(
        facts,
        cause,
        confidence=0.75 if has_event else 0.65,
        evidence=tuple(map(event_evidence, facts.events_with_cause(cause)[:10]))
        or tuple(map(member_evidence, members[:10])),
    )


def unknown(facts: IncidentFacts) -> Finding:
    """A finding for an unknown cause: the meaning of its Xids, and what to collect next."""
    xid_events = [event for event in facts.events if event.kind is EventKind.XID and facts.place.encloses(event.place)]
    codes = dict.fromkeys(event.code for event in xid_events if event.code is not None)
    texts = [f"Xid {row.code}: {row.name}. {row.likely_cause or row.note}".strip() for row in map(xid.lookup, codes)]
    return make_finding(
        facts,
        UNKNOWN_CAUSE,
        confidence=0.3 if xid_events else 0.1,
        why=" ".join(texts[:3]) or None,
        evidence=tuple(map(event_evidence, xid_events[:10]))
        or tuple(map(member_evidence, facts.incident.members[:10])),
        steps=(
            DiagnosisStep("Save the kernel log", "journalctl -k --since '1 hour ago' > kernel.log"),
            DiagnosisStep("Save the bug report of the driver", "nvidia-bug-report.sh"),
            *(DiagnosisStep(f"Provide missing data: {gap}") for gap in facts.missing_data[:5]),
        ),
    )
