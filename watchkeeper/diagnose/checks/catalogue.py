"""The answer for everything without a check of its own: what the catalogue says about it, or what to collect."""

from __future__ import annotations

from watchkeeper.catalogue import xid
from watchkeeper.diagnose.checks.findings import make_finding
from watchkeeper.diagnose.evidence import IncidentFacts, event_evidence, member_evidence
from watchkeeper.model.diagnosis import UNKNOWN_CAUSE, DiagnosisStep, Finding
from watchkeeper.model.events import Event, EventKind
from watchkeeper.model.incidents import MemberKind


def from_catalogue(facts: IncidentFacts) -> Finding | None:
    """The incident's cause in the catalogue's words; None when it has no known cause."""
    cause = facts.incident.cause
    members = facts.members_with_cause(cause)
    if cause == UNKNOWN_CAUSE or not members:
        return None
    has_event = any(member.kind is MemberKind.EVENT for member in members)
    return make_finding(
        facts,
        cause,
        place=facts.place,
        confidence=0.75 if has_event else 0.65,
        evidence=tuple(event_evidence(event) for event in facts.events_with_cause(cause))[:10]
        or tuple(member_evidence(member) for member in members[:10]),
    )


def unknown(facts: IncidentFacts) -> Finding:
    """Nobody knows yet: what was seen, what the catalogue says about the codes, and what to collect next."""
    codes = [event for event in facts.events if event.kind is EventKind.XID and facts.place.encloses(event.place)]
    return make_finding(
        facts,
        UNKNOWN_CAUSE,
        place=facts.place,
        confidence=0.3 if codes else 0.1,
        why=_meanings(codes),
        evidence=tuple(event_evidence(event) for event in codes[:10])
        or tuple(member_evidence(member) for member in facts.incident.members[:10]),
        steps=(
            DiagnosisStep(
                "Keep the kernel log of the time around it", "journalctl -k --since '1 hour ago' > kernel.log"
            ),
            DiagnosisStep("Keep the driver's own report", "nvidia-bug-report.sh"),
            *(DiagnosisStep(f"Make visible: {gap}") for gap in facts.missing_data[:5]),
        ),
    )


def _meanings(codes: list[Event]) -> str | None:
    """What NVIDIA says about each code, once."""
    rows = [xid.lookup(code) for code in dict.fromkeys(event.code for event in codes if event.code is not None)]
    texts = [f"Xid {row.code}: {row.name}. {row.likely_cause or row.note}".strip() for row in rows]
    return " ".join(texts[:3]) or None
