"""The protocol of a document for the readers of `documents`, so that they do not import `documents`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from watchkeeper.doctor.facts import DoctorFacts


class Listing(Protocol):
    """The beginning of one input, as text and as lines."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def text(self) -> str: ...
    @property
    def lines(self) -> Sequence[str]: ...


def add_sign(facts: DoctorFacts, listing: Listing, sign: str, *, line: int, fields: dict[str, str]) -> None:
    """Add a sighting with the text of its line, without empty fields."""
    text = listing.lines[line - 1] if 0 < line <= len(listing.lines) else ""
    non_empty = {key: value for key, value in fields.items() if value}
    facts.add(sign, input=listing.name, line=max(line, 1), text=text, fields=non_empty)
