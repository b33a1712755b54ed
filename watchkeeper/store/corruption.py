"""A damaged place in a file of the store: readers report it, and `durable` keeps and logs it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Corruption:
    """Bytes of a file that are not what was written."""

    path: Path
    offset: int
    problem: str

    def __str__(self) -> str:
        return f"{self.path} at byte {self.offset}: {self.problem}"
