"""From facts to a diagnosis: every check once, the catalogue for the rest, ranked.

The hub calls `diagnose` when an incident opens or changes, keeps the Diagnosis in the journal and
hands its best finding to remediate. An incident is about one family of causes: what else is wrong at its
place has an incident of its own and is only mentioned, unless it is what brought this one about. Guards and
logs of the checks live here, not in the checks.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from watchkeeper.catalogue import causes
from watchkeeper.diagnose.checks import CHECKS, Check
from watchkeeper.diagnose.checks.catalogue import from_catalogue, unknown
from watchkeeper.diagnose.evidence import Facts
from watchkeeper.kit.logs import fields
from watchkeeper.model.diagnosis import Diagnosis, Finding, rank
from watchkeeper.model.incidents import Incident

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Answers:
    """`silent` names the checks that broke; a check that broke has not said that all is well."""

    findings: tuple[Finding, ...]
    silent: tuple[str, ...]


def run_checks(facts: Facts, checks: Iterable[Check] = CHECKS) -> Answers:
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
    return Answers(tuple(findings), tuple(silent))


def diagnose(facts: Facts, now: datetime, *, checks: Iterable[Check] = CHECKS) -> Diagnosis:
    """Ranked findings, never empty: the last answer is `unknown`, with what to collect next."""
    answers = run_checks(facts, checks)
    findings = [finding for finding in answers.findings if _is_about(facts, finding)]
    others = [finding for finding in answers.findings if finding not in findings]
    if facts.incident.cause not in {finding.cause for finding in findings}:
        spare = from_catalogue(facts)
        # A check that looked closer and found a better cause makes the incident's first guess obsolete.
        if spare is not None and not any(finding.confidence > spare.confidence for finding in findings):
            findings.append(spare)
    if not findings:
        findings.append(unknown(facts))
    also = (f"also here: {finding.title} ({finding.cause})" for finding in others)
    looked_at = (*facts.looked_at, *also, *(f"not seen: {gap}" for gap in facts.unseen), *answers.silent)
    return Diagnosis(facts.incident.id, now, rank(tuple(findings)), looked_at)


def _is_about(facts: Facts, finding: Finding) -> bool:
    """True for a finding of the incident's own family, or of a grave fault that explains what gives way to it."""
    incident, row = facts.incident, causes.lookup(finding.cause)
    if row.family == incident.family:
        return finding.place.encloses(incident.place) or incident.place.encloses(finding.place)
    return supersedes(finding, incident)


def supersedes(finding: Finding, incident: Incident) -> bool:
    """True when the finding is another fault of the same or a larger place, and the incident its consequence."""
    row, own = causes.lookup(finding.cause), causes.lookup(incident.cause)
    is_consequence = own.gives_way and row.explains_others and row.family != incident.family
    return is_consequence and finding.place.encloses(incident.place)
