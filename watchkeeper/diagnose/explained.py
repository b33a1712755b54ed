"""What `watchkeeper explain pod|node|job` answers: one shape for all three, in words.

`pod`, `node` and `job` make it; `web/explain_api` and the command line only print it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from watchkeeper.catalogue import causes
from watchkeeper.model import diagnosis, incidents


@dataclass(frozen=True, slots=True)
class ExplainedLine:
    """One thing and what is so about it: a node and why it refuses, a rank and what it does."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Explained:
    """`cause` None: nothing is wrong with it, or nobody can say; `headline` says which of the two."""

    subject: str
    headline: str
    cause: str | None = None
    why: str = ""
    lines: tuple[ExplainedLine, ...] = ()
    change: str = ""
    steps: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()


def with_incidents(
    found: Explained | None, subject: str, troubles: Sequence[tuple[incidents.Incident, diagnosis.Finding | None]]
) -> Explained | None:
    """With the open incidents about it; the gravest is the answer where nothing else as grave is."""
    ordered = sorted(troubles, key=lambda one: -one[0].severity.rank)
    lines = tuple(ExplainedLine(incident.id, f"{incident.severity}: {incident.title}") for incident, _ in ordered)
    if not ordered:
        return found
    incident, finding = ordered[0]
    if found is not None and found.cause is not None and _is_as_grave(found.cause, incident):
        return replace(found, lines=(*lines, *found.lines))
    told = found or Explained(subject, "", unseen=("the workload itself: no scheduler or exporter names it now",))
    return replace(
        told,
        headline="; ".join(filter(None, [told.headline, f"{incident.title} ({incident.id})"])),
        cause=incident.cause,
        why=finding.why if finding is not None else "not diagnosed yet",
        lines=(*lines, *told.lines),
        steps=tuple(map(step_text, finding.actions[:3])) if finding is not None else (),
    )


def step_text(step: diagnosis.DiagnosisStep) -> str:
    """With its command: whoever reads this stands before a terminal."""
    return f"{step.do}   $ {step.command}" if step.command else step.do


def _is_as_grave(cause: str, incident: incidents.Incident) -> bool:
    return causes.lookup(cause).severity.rank >= incident.severity.rank


def as_text(found: Explained, *, most_lines: int = 40) -> list[str]:
    """For a terminal, the answer first."""
    said = [f"{found.subject}: {found.headline}"]
    said += [f"  cause     {found.cause}"] if found.cause else []
    said += [f"  why       {found.why}"] if found.why else []
    said += [f"  change    {found.change}"] if found.change else []
    said += [f"  do        {step}" for step in found.steps]
    width = max((len(line.name) for line in found.lines[:most_lines]), default=0)
    said += [f"    {line.name:<{width}}  {line.text}" for line in found.lines[:most_lines]]
    if len(found.lines) > most_lines:
        said.append(f"    and {len(found.lines) - most_lines} more")
    return said + [f"  not seen  {gap}" for gap in found.unseen]
