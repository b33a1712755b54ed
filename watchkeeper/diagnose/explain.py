"""Turn facts into a diagnosis: run every check once, add the catalogue's finding, rank them.

The hub calls `diagnose` when an incident opens or changes. Other faults at its place have their own incidents and are
only mentioned, unless they caused this one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from watchkeeper.catalogue import causes, xid
from watchkeeper.diagnose.checks import CHECKS, Check
from watchkeeper.diagnose.checks.findings import make_finding
from watchkeeper.diagnose.evidence import FIELDS, IncidentFacts, event_evidence, member_evidence
from watchkeeper.kit.logs import fields
from watchkeeper.model.diagnosis import UNKNOWN_CAUSE, Diagnosis, DiagnosisStep, Finding, rank_findings
from watchkeeper.model.events import EventKind
from watchkeeper.model.incidents import Incident, MemberKind

log = logging.getLogger(__name__)


def run_checks(facts: IncidentFacts, checks: Iterable[Check] = CHECKS) -> tuple[list[Finding], list[str]]:
    """The findings, and texts about checks that failed; a failed check does not mean that all is well."""
    findings: list[Finding] = []
    failures: list[str] = []
    for check in checks:
        try:
            finding = check(facts)
        # Deliberately everything: one failed check must not cost the findings of the others.
        except Exception as error:
            name = getattr(check, "__name__", str(check))
            log.exception("check failed", extra=fields(check=name, incident=facts.incident.id))
            failures.append(f"check {name} failed: {type(error).__name__}: {error}")
            continue
        if finding is not None:
            findings.append(finding)
    return findings, failures


def diagnose(facts: IncidentFacts, now: datetime, *, checks: Iterable[Check] = CHECKS) -> Diagnosis:
    """Return ranked findings, never empty: without a finding the cause is `unknown`, with what to collect next."""
    all_findings, failures = run_checks(facts, checks)
    findings = [finding for finding in all_findings if _is_about(facts, finding)]
    findings += _better_rivals(facts, all_findings, findings)
    others = [finding for finding in all_findings if finding not in findings]
    if facts.incident.cause not in {finding.cause for finding in findings}:
        catalogue_finding = _from_catalogue(facts)
        # A finding with higher confidence replaces the cause that the incident opened with.
        best = max((finding.confidence for finding in findings), default=0.0)
        if catalogue_finding is not None and catalogue_finding.confidence >= best:
            findings.append(catalogue_finding)
    if not findings:
        findings.append(_unknown(facts))
    also_here = (f"also here: {finding.title} ({finding.cause})" for finding in others)
    changes = (f"changed: {change}" for change in facts.context.changes)
    ranked = rank_findings(tuple(_adjust_confidence(facts, finding) for finding in findings))
    checked_sources = (
        *facts.sources,
        *changes,
        *also_here,
        *(f"missing data: {gap}" for gap in facts.missing_data),
        *failures,
    )
    return Diagnosis(facts.incident.id, now, ranked, checked_sources, distinguishing_check(ranked))


def _better_rivals(facts: IncidentFacts, all_findings: Iterable[Finding], own: list[Finding]) -> list[Finding]:
    """Findings for causes that are often confused with the incident's cause, if they have higher confidence."""
    own_confidence = max((finding.confidence for finding in own), default=0.0)
    rival_causes = {row.rival for row in causes.rivals_of(facts.incident.cause)}
    place = facts.place
    # Causes at different nodes cannot be confused.
    nearby = [
        finding
        for finding in all_findings
        if place.node is None or finding.place.encloses(place) or place.encloses(finding.place)
    ]
    candidates = [finding for finding in nearby if finding.cause in rival_causes and finding not in own]
    return [finding for finding in candidates if finding.confidence > own_confidence]


# Confidence is multiplied by this when most readings of a GPU are missing.
MISSING_DATA_FACTOR = 0.8


def _adjust_confidence(facts: IncidentFacts, finding: Finding) -> Finding:
    """Reduce confidence if clocks disagree, or if most series are missing and no kernel log line is evidence."""
    missing_series = sum(gap.startswith(("no DCGM_", "none of")) for gap in facts.missing_data)
    lacks_data = missing_series > len(FIELDS) // 2 or any(gap.startswith("none of") for gap in facts.missing_data)
    has_kernel_log = any(item.source.startswith("kernel log") for item in finding.evidence)
    has_skew = any(gap.startswith("the clock of") for gap in facts.missing_data)
    if (lacks_data and not has_kernel_log) or has_skew:
        return replace(finding, confidence=round(finding.confidence * MISSING_DATA_FACTOR, 3))
    return finding


def distinguishing_check(ranked: tuple[Finding, ...]) -> str:
    """The command that rules out the next likely cause: another finding, or a rival that is not ruled out."""
    if not ranked:
        return ""
    best = ranked[0]
    ruled_out = {ruled.cause for ruled in best.ruled_out}
    others = [finding.cause for finding in ranked[1:] if finding.cause != best.cause]
    rows = [causes.rival_between(best.cause, other) for other in others]
    rows += [row for row in causes.rivals_of(best.cause) if row.rival not in ruled_out]
    row = next((row for row in rows if row is not None), None)
    if row is None:
        return ""
    other = row.rival if row.cause == best.cause else row.cause
    return f"To rule out {other}, run: {row.command} ({row.tell_apart})"


def _is_about(facts: IncidentFacts, finding: Finding) -> bool:
    """Whether the finding is of the incident's family, or a fault that explains the incident."""
    incident, row = facts.incident, causes.lookup(finding.cause)
    if row.family == incident.family:
        return finding.place.encloses(incident.place) or incident.place.encloses(finding.place)
    return supersedes(finding, incident)


def supersedes(finding: Finding, incident: Incident) -> bool:
    """Whether the finding is another fault at the same or a larger place that caused the incident."""
    row, own = causes.lookup(finding.cause), causes.lookup(incident.cause)
    is_consequence = own.is_secondary and row.explains_others and row.family != incident.family
    return is_consequence and finding.place.encloses(incident.place)


def _from_catalogue(facts: IncidentFacts) -> Finding | None:
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


def _unknown(facts: IncidentFacts) -> Finding:
    """A finding for an unknown cause: the meaning of its Xids, and what to collect next."""
    xid_events = [event for event in facts.events if event.kind is EventKind.XID and facts.place.encloses(event.place)]
    codes = dict.fromkeys(event.code for event in xid_events if event.code is not None)
    texts = [f"Xid {row.code}: {row.name}. {row.likely_cause or row.note}".strip() for row in map(xid.lookup, codes)]
    finding = make_finding(
        facts,
        UNKNOWN_CAUSE,
        confidence=0.3 if xid_events else 0.1,
        why=" ".join(texts[:3]) or _alert_reason(facts.incident),
        evidence=tuple(map(event_evidence, xid_events[:10]))
        or tuple(map(member_evidence, facts.incident.members[:10])),
        steps=(
            DiagnosisStep("Save the kernel log", "journalctl -k --since '1 hour ago' > kernel.log"),
            DiagnosisStep("Save the bug report of the driver", "nvidia-bug-report.sh"),
            *(DiagnosisStep(f"Provide missing data: {gap}") for gap in facts.missing_data[:5]),
        ),
    )
    own_advice = [DiagnosisStep(facts.incident.advice)] if facts.incident.advice else finding.actions[:1]
    return replace(finding, title=facts.incident.title, actions=(*own_advice, *finding.actions[1:]))


def _alert_reason(incident: Incident) -> str | None:
    names = dict.fromkeys(member.alert for member in incident.members if member.alert and not member.until)
    return f"The alert {', '.join(names)} fires; its rule names no cause." if names else None
