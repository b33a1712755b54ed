"""The result of `watchkeeper explain pod|node|job`, with the same fields for all three.

`pod`, `node` and `job` create it; `web/explain_api` and the command line print it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from watchkeeper.catalogue import causes
from watchkeeper.kit import wire
from watchkeeper.model import diagnosis, incidents


@dataclass(frozen=True, slots=True)
class ExplainLine:
    """A name and a text about it, such as a node and why the pod does not fit on it."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class ExplainResult:
    """`cause` is None if nothing is wrong or the cause is unknown; `headline` says which."""

    subject: str
    headline: str
    cause: str | None = None
    why: str = ""
    lines: tuple[ExplainLine, ...] = ()
    change: str = ""
    steps: tuple[str, ...] = ()
    missing_data: tuple[str, ...] = wire.json_key("unseen", default=())
    # The open incident of this cause, and why it is the cause, without the evidence.
    incident: str | None = None
    reason: str = ""


def with_incidents(
    explanation: ExplainResult | None,
    subject: str,
    open_incidents: Sequence[tuple[incidents.Incident, diagnosis.Finding | None]],
) -> ExplainResult | None:
    """Add the open incidents of the subject; the most severe one becomes the cause if no other cause is as severe."""
    ordered = sorted(open_incidents, key=lambda pair: -pair[0].severity.rank)
    lines = tuple(ExplainLine(incident.id, f"{incident.severity}: {incident.title}") for incident, _ in ordered)
    if not ordered:
        return explanation
    incident, finding = ordered[0]
    cause = None if explanation is None else explanation.cause
    if explanation and cause and causes.lookup(cause).severity.rank >= incident.severity.rank:
        own = next((incident.id for incident, _ in ordered if incident.cause == cause), None)
        return replace(explanation, lines=(*lines, *explanation.lines), incident=own)
    missing_data = ("no scheduler or exporter reports the workload now",)
    base = explanation or ExplainResult(subject, "", missing_data=missing_data)
    headline = "; ".join(filter(None, [base.headline, f"{incident.title} ({incident.id})"]))
    return with_cause(replace(base, headline=headline, lines=(*lines, *base.lines)), incident, finding)


def with_cause(base: ExplainResult, incident: incidents.Incident, finding: diagnosis.Finding | None) -> ExplainResult:
    """Add the cause of an incident, with the reason and the first steps of its finding."""
    base = replace(base, cause=incident.cause, incident=incident.id)
    if finding is None:
        return replace(base, why="not diagnosed yet", steps=())
    return replace(base, why=finding.why, reason=finding.why, steps=tuple(map(step_text, finding.actions[:3])))


def step_text(step: diagnosis.DiagnosisStep) -> str:
    return f"{step.do}   $ {step.command}" if step.command else step.do


def as_text(explanation: ExplainResult, *, max_lines: int = 40) -> list[str]:
    """Lines for a terminal, the headline first."""
    output = [f"{explanation.subject}: {explanation.headline}"]
    output += [f"  cause     {explanation.cause}"] if explanation.cause else []
    output += [f"  why       {explanation.why}"] if explanation.why else []
    output += [f"  change    {explanation.change}"] if explanation.change else []
    output += [f"  action    {step}" for step in explanation.steps]
    width = max((len(line.name) for line in explanation.lines[:max_lines]), default=0)
    output += [f"    {line.name:<{width}}  {line.text}" for line in explanation.lines[:max_lines]]
    if len(explanation.lines) > max_lines:
        output.append(f"    and {len(explanation.lines) - max_lines} more")
    return output + [f"  no data   {gap}" for gap in explanation.missing_data]
