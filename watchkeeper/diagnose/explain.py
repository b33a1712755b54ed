"""From facts to a diagnosis: every check once, the catalogue for the rest, ranked.

The hub calls `diagnose` when an incident opens or changes, keeps the Diagnosis in the journal and
hands its best finding to remediate. An incident is about one family of causes: what else is wrong at its
place has an incident of its own and is only mentioned, unless it is what brought this one about. Guards and
logs of the checks live here, not in the checks.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from watchkeeper.catalogue import causes, rivals
from watchkeeper.diagnose.checks import CHECKS, Check
from watchkeeper.diagnose.checks.catalogue import from_catalogue, unknown
from watchkeeper.diagnose.evidence import FIELDS, IncidentFacts
from watchkeeper.kit.logs import fields
from watchkeeper.model.diagnosis import Diagnosis, Finding, rank_findings
from watchkeeper.model.incidents import Incident

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CheckResults:
    """`silent` names the checks that broke; a check that broke has not said that all is well."""

    findings: tuple[Finding, ...]
    failures: tuple[str, ...]


def run_checks(facts: IncidentFacts, checks: Iterable[Check] = CHECKS) -> CheckResults:
    findings, silent = [], []
    for check in checks:
        try:
            found = check(facts)
        # Deliberately wide: one broken check must not cost the answers of the others.
        except Exception as error:
            name = getattr(check, "__name__", str(check))
            log.exception("Check failed", extra=fields(check=name, incident=facts.incident.id))
            silent.append(f"check {name} gave no answer: {type(error).__name__}: {error}")
            continue
        if found is not None:
            findings.append(found)
    return CheckResults(tuple(findings), tuple(silent))


def diagnose(facts: IncidentFacts, now: datetime, *, checks: Iterable[Check] = CHECKS) -> Diagnosis:
    """Ranked findings, never empty: the last answer is `unknown`, with what to collect next."""
    answers = run_checks(facts, checks)
    findings = [finding for finding in answers.findings if _is_about(facts, finding)]
    findings += _closer_looks(facts, answers.findings, findings)
    others = [finding for finding in answers.findings if finding not in findings]
    if facts.incident.cause not in {finding.cause for finding in findings}:
        spare = from_catalogue(facts)
        # A check that looked closer and found a better cause makes the incident's first guess obsolete.
        if spare is not None and not any(finding.confidence > spare.confidence for finding in findings):
            findings.append(spare)
    if not findings:
        findings.append(unknown(facts))
    also = (f"also here: {finding.title} ({finding.cause})" for finding in others)
    changed = (f"changed: {change}" for change in facts.context.changes)
    ranked = rank_findings(tuple(_as_sure_as_seen(facts, finding) for finding in findings))
    looked_at = (
        *facts.sources,
        *changed,
        *also,
        *(f"not seen: {gap}" for gap in facts.missing_data),
        *answers.failures,
    )
    return Diagnosis(facts.incident.id, now, ranked, looked_at, discriminating_check(ranked))


def _closer_looks(facts: IncidentFacts, answers: Iterable[Finding], own: list[Finding]) -> list[Finding]:
    """Findings of a family that the incident's cause is mistaken for, where they are surer than its own family's."""
    least = max((finding.confidence for finding in own), default=0.0)
    mistaken = {row.rival for row in rivals.rivals_of(facts.incident.cause)}
    near = [
        finding
        for finding in answers
        if finding.cause in mistaken and finding not in own and finding.confidence > least
    ]
    return [finding for finding in near if not _is_unrelated(facts, finding)]


def _is_unrelated(facts: IncidentFacts, finding: Finding) -> bool:
    """Of two machines' faults neither is mistaken for the other; a workload has no machine of its own."""
    place = facts.incident.place
    return place.node is not None and not (finding.place.encloses(place) or place.encloses(finding.place))


# Of a GPU that is hardly seen nobody may be as sure as of one that is.
SURE_WHEN_BLIND = 0.8


def _as_sure_as_seen(facts: IncidentFacts, finding: Finding) -> Finding:
    """Less sure where more than half of the series are missing, or clocks disagree; a kernel line stands for itself."""
    gaps = sum(gap.startswith(("no DCGM_", "not one of")) for gap in facts.missing_data)
    is_blind = gaps > len(FIELDS) // 2 or any(gap.startswith("not one of") for gap in facts.missing_data)
    has_line = any(item.source.startswith("kernel log") for item in finding.evidence)
    has_skew = any(gap.startswith("the clock of") for gap in facts.missing_data)
    if (is_blind and not has_line) or has_skew:
        return replace(finding, confidence=round(finding.confidence * SURE_WHEN_BLIND, 3))
    return finding


def discriminating_check(ranked: tuple[Finding, ...]) -> str:
    """What would tell the best answer from the next: another finding, or the rival that nothing has ruled out."""
    if not ranked:
        return ""
    best = ranked[0]
    dropped = {ruled.cause for ruled in best.ruled_out}
    others = [finding.cause for finding in ranked[1:] if finding.cause != best.cause]
    rows = [rivals.rival_between(best.cause, other) for other in others]
    rows += [row for row in rivals.rivals_of(best.cause) if row.rival not in dropped]
    row = next((row for row in rows if row is not None), None)
    if row is None:
        return ""
    other = row.rival if row.cause == best.cause else row.cause
    return f"{best.cause} or {other}? {row.tell_apart}: {row.command}"


def _is_about(facts: IncidentFacts, finding: Finding) -> bool:
    """True for a finding of the incident's own family, or of a grave fault that explains what gives way to it."""
    incident, row = facts.incident, causes.lookup(finding.cause)
    if row.family == incident.family:
        return finding.place.encloses(incident.place) or incident.place.encloses(finding.place)
    return supersedes(finding, incident)


def supersedes(finding: Finding, incident: Incident) -> bool:
    """True when the finding is another fault of the same or a larger place, and the incident its consequence."""
    row, own = causes.lookup(finding.cause), causes.lookup(incident.cause)
    is_consequence = own.is_secondary and row.explains_others and row.family != incident.family
    return is_consequence and finding.place.encloses(incident.place)
