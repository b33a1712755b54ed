"""The table of invariants: functions that read a Look, or two consecutive ones, and yield contradictions.

Each module of this package has the invariants of one subject: the first paragraph of a docstring must hold, and the
name of the function is the id. Numbers that must be the same are rows of packs/consistency.csv, for `same_numbers`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from watchkeeper.drill.consistency.looks import Look


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Values by source that cannot all be true, about one place, incident, job or number."""

    where: str
    values: Mapping[str, Any]


# Reads the look, and the one before it; None at the first look.
Check = Callable[[Look, Look | None], Iterator[Contradiction]]


@dataclass(frozen=True, slots=True)
class Invariant:
    id: str
    subject: str
    sentence: str
    check: Check


REGISTERED: list[Invariant] = []


def invariant(check: Callable[[Look], Iterator[Contradiction]]) -> Any:
    _register(check, lambda look, _: check(look))
    return check


def over_time(comparison: Callable[[Look, Look], Iterator[Contradiction]]) -> Any:
    """An invariant of two consecutive looks: the one before, and this one."""
    _register(comparison, lambda look, before: iter(()) if before is None else comparison(before, look))
    return comparison


def _register(function: Callable[..., Any], check: Check) -> None:
    paragraph = (inspect.getdoc(function) or "").partition("\n\n")[0]
    sentence = " ".join(paragraph.split()).rstrip(".")
    subject = function.__module__.rpartition(".")[2]
    REGISTERED.append(Invariant(function.__name__.replace("_", "-"), subject, sentence, check))


def agree(where: str, values: Mapping[str, Any], *, tolerance: float = 0.0) -> Iterator[Contradiction]:
    """A contradiction if the values differ by more than a share of the largest; None is unknown and agrees with all."""
    present = [value for value in values.values() if value is not None]
    if tolerance:
        differs = (
            max(present, default=0) - min(present, default=0) > tolerance * max(map(abs, present), default=0) + 1e-6
        )
    else:
        differs = any(value != present[0] for value in present)
    if differs:
        yield Contradiction(where, values)


def require(is_true: object, where: str, **values: Any) -> Iterator[Contradiction]:
    if not is_true:
        yield Contradiction(where, values)
