"""The list of what GPU operations courses teach, and the page that is generated from it.

The list is docs/reference/coverage.csv. `coverage_proofs` checks what it claims.
"""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import dataclass
from functools import cache

from tests.support.paths import ROOT

LIST = ROOT / "docs" / "reference" / "coverage.csv"
STATES = ("full", "partly", "not")


@dataclass(frozen=True, slots=True)
class Item:
    """One row: what a course teaches (`item`), and what shows it (`proof`) by saying `shows`."""

    id: str
    course: str
    part: str
    item: str
    state: str
    proof: str
    shows: str
    note: str

    @property
    def kind(self) -> str:
        return self.proof.partition(" ")[0]

    @property
    def subject(self) -> str:
        return self.proof.partition(" ")[2]


@cache
def items() -> tuple[Item, ...]:
    with LIST.open(encoding="utf-8", newline="") as file:
        return tuple(Item(**row) for row in csv.DictReader(file))


def page(head: str) -> str:
    """The page below `head`, which has room for a title and a law."""
    law = (
        "What courses and guides on operating GPUs teach, item by item, and what shows it here. "
        "`tests/house/test_coverage.py` checks every proof."
    )
    counts = Counter(item.state for item in items())
    kinds = Counter(item.kind for item in items() if item.proof)
    words = ", ".join(f"{count} by {kind}" for kind, count in sorted(kinds.items()))
    parts = [
        head.format(title="Coverage", law=law),
        f"{len(items())} items: {', '.join(f'{counts[state]} {state}' for state in STATES)}. Proofs: {words}.\n",
        "A note says where the course is wrong, what is decided otherwise and why, or what is missing.\n",
        _summary(),
    ]
    for course in dict.fromkeys(item.course for item in items()):
        parts.append(f"## {course}\n")
        for part in dict.fromkeys(item.part for item in items() if item.course == course):
            rows = [_row(item) for item in items() if (item.course, item.part) == (course, part)]
            parts.append(
                f"### {part}\n\n| id | item | state | shown by | note |\n|---|---|---|---|---|\n{_joined(rows)}\n"
            )
    return "\n".join(parts)


def _summary() -> str:
    rows = []
    for course in dict.fromkeys(item.course for item in items()):
        counts = Counter(item.state for item in items() if item.course == course)
        rows.append(f"| {course} | {counts.total()} | " + " | ".join(str(counts[state]) for state in STATES) + " |")
    return f"| course | items | {' | '.join(STATES)} |\n|---|---|---|---|---|\n{_joined(rows)}\n"


def _joined(rows: list[str]) -> str:
    return "\n".join(rows)


def _row(item: Item) -> str:
    cells = (item.id, item.item, item.state, _proof(item), item.note)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _proof(item: Item) -> str:
    """The proof as a reader can follow it: a link to a page, or what to type."""
    if not item.proof:
        return "nothing"
    if item.kind == "page":
        target = f"../../{item.subject}".replace("../../docs/reference/", "").replace("../../docs/", "../")
        return f"[{item.subject.removeprefix('docs/')}]({target})"
    if item.kind == "doctor":
        return f"doctor: `{item.subject}` → [{item.shows}](../runbooks/{item.shows.replace('_', '-')}.md)"
    if item.kind == "rule":
        return f"`rules check` on `{item.subject}`"
    return f"`{item.subject}`" if item.kind == "command" else f"{item.kind} `{item.subject}`"
