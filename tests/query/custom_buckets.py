"""What `load_with_nhcb` of Prometheus' test notation adds: classic histograms as native ones with custom bounds."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from dataclasses import dataclass, field

from tests.query import notation
from watchkeeper.model import histograms, labels

SUFFIXES = ("_bucket", "_count", "_sum")


@dataclass
class _Classic:
    """One classic histogram at one time: observations up to each bound, all of them, and their sum."""

    buckets: dict[float, float] = field(default_factory=dict)
    count: float | None = None
    sum: float = 0.0


def converted(series: list[notation.Series]) -> list[notation.Series]:
    """A series of native histograms for each classic one, under its name without a suffix."""
    found: dict[labels.Labels, dict[int, _Classic]] = defaultdict(lambda: defaultdict(_Classic))
    for one in series:
        suffix = next((suffix for suffix in SUFFIXES if one.labels.name.endswith(suffix)), None)
        if suffix is None or (suffix == "_bucket" and _bound(one.labels) is None):
            continue
        whose = one.labels.without("le").with_labels(__name__=one.labels.name.removesuffix(suffix))
        for at, point in enumerate(one.points):
            if isinstance(point, float):
                _note(found[whose][at], suffix, _bound(one.labels), point)
    return [notation.Series(whose, _points(times)) for whose, times in found.items()]


def _bound(label_set: labels.Labels) -> float | None:
    try:
        return float(label_set.get("le", ""))
    except ValueError:
        return None


def _note(classic: _Classic, suffix: str, bound: float | None, value: float) -> None:
    if suffix == "_bucket" and bound is not None:
        classic.buckets[bound] = value
    elif suffix == "_count":
        classic.count = value
    else:
        classic.sum = value


def _points(times: dict[int, _Classic]) -> notation.Points:
    return tuple(_histogram(times[at]) if at in times else None for at in range(max(times) + 1))


def _histogram(classic: _Classic) -> histograms.Histogram | None:
    bounds = sorted(classic.buckets)
    reached = [classic.buckets[bound] for bound in bounds]
    if not bounds or any(low > high for low, high in itertools.pairwise(reached)):
        return None
    count = classic.count if classic.count is not None else reached[-1]
    if not math.isinf(bounds[-1]):
        bounds, reached = [*bounds, math.inf], [*reached, count]
    steps = [high - low for low, high in itertools.pairwise([0.0, *reached])]
    return histograms.Histogram(
        schema=histograms.CUSTOM,
        count=count,
        sum=classic.sum,
        bounds=tuple(bounds[:-1]),
        positive=tuple((at, step) for at, step in enumerate(steps) if step),
    )
