"""An answer to PromQL as series of numbers; `client.hub` makes it of what Prometheus' API answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from watchkeeper.client import answers


@dataclass(frozen=True, slots=True)
class QueryPoints:
    """One line of an answer: its labels, and (seconds since 1970, value) pairs."""

    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]

    @property
    def newest(self) -> float | None:
        return self.points[-1][1] if self.points else None


@dataclass(frozen=True, slots=True)
class QueryResult:
    """What was asked for; a scalar is one series without labels."""

    series: tuple[QueryPoints, ...]
    warnings: tuple[str, ...] = field(default=())


def parse_result(found: answers.QueryData) -> QueryResult:
    """A vector, a matrix, or one value without labels."""
    warnings = tuple(found.plain.get("warnings", ()))
    made = []
    for row in found.result:
        if not isinstance(row, answers.QuerySeries):
            # A scalar or a string is one pair, of which this is the time.
            return QueryResult((QueryPoints({}, _points([found.plain["result"]])),), warnings)
        # A native histogram is no number: such a series has no points here.
        made.append(QueryPoints(row.metric or {}, _points(row.values or ([row.value] if row.value else ()))))
    return QueryResult(tuple(made), warnings)


def _points(pairs: Sequence[tuple[float, str]]) -> tuple[tuple[float, float], ...]:
    return tuple((float(at), float(value)) for at, value in pairs)
