"""An answer to PromQL as series of numbers; `client.hub` makes it of what Prometheus' API answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from watchkeeper.client import answers


@dataclass(frozen=True, slots=True)
class Series:
    """One line of an answer: its labels, and (seconds since 1970, value) pairs."""

    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]

    @property
    def newest(self) -> float | None:
        return self.points[-1][1] if self.points else None


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked for; a scalar is one series without labels."""

    series: tuple[Series, ...]
    warnings: tuple[str, ...] = field(default=())


def numbers(found: answers.Queried) -> Asked:
    """A vector, a matrix, or one value without labels."""
    warnings = tuple(found.plain.get("warnings", ()))
    made = []
    for row in found.result:
        if not isinstance(row, answers.Series):
            # A scalar or a string is one pair, of which this is the time.
            return Asked((Series({}, _points([found.plain["result"]])),), warnings)
        # A native histogram is no number: such a series has no points here.
        made.append(Series(row.metric or {}, _points(row.values or ([row.value] if row.value else ()))))
    return Asked(tuple(made), warnings)


def _points(pairs: Sequence[tuple[float, str]]) -> tuple[tuple[float, float], ...]:
    return tuple((float(at), float(value)) for at, value in pairs)
