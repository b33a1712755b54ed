"""The beginning of one input as text and lines, for the readers of `documents`, which add signs to the facts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from watchkeeper.doctor.facts import DoctorFacts


@dataclass(slots=True)
class Listing:
    """`text` and `lines` are without the prefixes that a log shipper adds to lines.

    `original_lines` include the prefixes: they are shown, and may name a node or a rank.
    """

    facts: DoctorFacts
    name: str
    kind: str
    text: str
    original_lines: Sequence[str]
    lines: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.lines = self.text.split("\n")

    def add_sign(self, sign: str, line: int, /, **fields: str) -> None:
        """Add a sighting with the text of its line, without empty fields."""
        text = self.lines[line - 1] if 0 < line <= len(self.lines) else ""
        non_empty = {key: value for key, value in fields.items() if value}
        self.facts.add(sign, input=self.name, line=max(line, 1), text=text, fields=non_empty)

    def numbered_matches(self, pattern: re.Pattern[str]) -> Iterator[tuple[int, re.Match[str]]]:
        line, at = 1, 0
        for match in pattern.finditer(self.text):
            line += self.text.count("\n", at, match.start())
            at = match.start()
            yield line, match

    def sections(self, pattern: re.Pattern[str]) -> Iterator[tuple[int, int, re.Match[str]]]:
        """First and last line of each section, which ends before the next match."""
        starts = list(self.numbered_matches(pattern))
        ends = [first - 1 for first, _ in starts[1:]] + [len(self.lines)] * bool(starts)
        return ((first, last, match) for (first, match), last in zip(starts, ends, strict=True))


def indent_of(line: str) -> int:
    return len(line) - len(line.lstrip())
