"""What `watchkeeper explain pod|node|job` answers: one shape for all three, in words.

`pod`, `node` and `job` make it; `web/explain_api` and the command line only print it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Line:
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
    lines: tuple[Line, ...] = ()
    change: str = ""
    steps: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()


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
