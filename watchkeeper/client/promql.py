"""Parse PromQL results of Prometheus' API into series of numbers, for `client.hub`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from watchkeeper.client import answers


@dataclass(frozen=True, slots=True)
class QuerySeriesPoints:
    """The labels of a series, and its points as (Unix seconds, value)."""

    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]

    @property
    def newest(self) -> float | None:
        return self.points[-1][1] if self.points else None


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The result of a query; a scalar is one series without labels."""

    series: tuple[QuerySeriesPoints, ...]
    warnings: tuple[str, ...] = field(default=())


def parse_result(data: answers.QueryData) -> QueryResult:
    warnings = tuple(data.plain.get("warnings", ()))
    series = []
    for row in data.result:
        if not isinstance(row, answers.QuerySeries):
            # A scalar or a string is a single (time, value) pair.
            return QueryResult((QuerySeriesPoints({}, _parse_points([data.plain["result"]])),), warnings)
        # A native histogram is not a number: such a series has no points here.
        series.append(
            QuerySeriesPoints(row.metric or {}, _parse_points(row.values or ([row.value] if row.value else ())))
        )
    return QueryResult(tuple(series), warnings)


def _parse_points(pairs: Sequence[tuple[float, str]]) -> tuple[tuple[float, float], ...]:
    return tuple((float(at), float(value)) for at, value in pairs)
