"""Which values a metric can have and which are normal: packs/metric_values.csv, by metric or by DCGM's unit.

`rules.value_ranges` reads it to find comparisons that are never true, always true, or true on healthy GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import inf

from watchkeeper.catalogue import metrics, pack

FILE = "metric_values.csv"
UNLESS = frozenset({"", "growth", "workload", "reason"})


@dataclass(frozen=True, slots=True)
class MetricValues:
    """A metric; `rate_high` limits its increase per second, and `too_late` is a value after the fault has struck.

    `normal` has values of healthy GPUs and what they mean; a rule that also reads what `unless` names excludes them.
    `alert` and `instead` are the shipped alert and the expression to use.
    """

    name: str
    unit: str
    is_counter: bool
    what: str
    low: float
    high: float
    rate_high: float
    too_late: float | None
    normal: tuple[tuple[float, str], ...]
    unless: str
    may_compare: bool
    alert: str
    instead: str

    @property
    def whole(self) -> float:
        """The value that means all of it: 100 for percent, 1 for a ratio; 0 if the metric is no share."""
        return 100.0 if self.unit == "%" else float(self.what.startswith("a ratio"))

    @property
    def has_budget(self) -> bool:
        """Rows and pages: a limit that several counters share."""
        return self.unit in ("rows", "pages")


def lookup(name: str) -> MetricValues | None:
    """The values of a metric by its old or new name; None if nothing is known about it."""
    row = metrics.lookup(name)
    own = _cells().get(row.name if row else name, {})
    of_unit = _cells().get(row.unit, {}) if row and row.unit else {}
    if row is None and not own:
        return None
    cells = {key: own.get(key) or of_unit.get(key, "") for key in _columns()}
    # A new name of a percent is a ratio from DCGM 4.7 on.
    is_unclear = row is not None and row.unit == "%" and name.upper() == row.newer_name
    return MetricValues(
        name=row.name if row else name,
        unit="" if row is None or is_unclear else row.unit,
        is_counter=row is not None and row.type == "counter" and not row.unit.endswith("/s"),
        what=cells["what"],
        low=float(cells["low"] or -inf),
        high=float(cells["high"] or inf),
        rate_high=float(cells["rate_high"] or inf),
        too_late=float(cells["too_late"]) if cells["too_late"] else None,
        normal=tuple(_normal(cells["normal"])),
        unless=pack.choice(cells["unless"], UNLESS),
        may_compare=cells["may_compare"] == "yes",
        alert=cells["alert"],
        instead=cells["instead"],
    )


def _normal(text: str) -> list[tuple[float, str]]:
    pairs = (part.partition(": ") for part in text.split("; ") if part)
    return [(float(value), meaning) for value, _, meaning in pairs]


@cache
def _columns() -> tuple[str, ...]:
    return tuple(next(iter(_cells().values())))


@cache
def _cells() -> Mapping[str, Mapping[str, str]]:
    rows = pack.load(FILE, dict)
    return {pack.required(row["metric"]): row for row in rows}
