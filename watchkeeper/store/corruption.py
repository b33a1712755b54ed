"""What is wrong with a file of the store: said by whoever reads it, kept and told by `durable`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Corruption:
    """Bytes of ours that are not what we wrote."""

    path: Path
    offset: int
    problem: str

    def __str__(self) -> str:
        return f"{self.path} at byte {self.offset}: {self.problem}"
