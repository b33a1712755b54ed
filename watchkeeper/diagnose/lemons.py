"""Lemon nodes: which machines break more often than chance would have it, and which are on their way there.

`rank` is pure. From the journal's history each node has a count of hardware incidents in a time at risk; a node with
few hours in the fleet is drawn towards the fleet's own rate (a gamma prior of one average node-month), so that one
fault of a new node does not make it the worst. Trends of its counters come on top as reasons, each with its factor.
`web/lemons_api` asks for it; `watchkeeper lemons` prints it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from watchkeeper.catalogue import causes
from watchkeeper.model import fleet, incidents

# A prior worth this many unit-months at the fleet's own rate: enough to calm a unit that has just come.
PRIOR_MONTHS = 1.0
MONTH = timedelta(days=30)
# Below this chance of so many faults by luck, with the whole fleet looked at, a unit is called a lemon.
SURPRISING = 0.05
# What a trend is worth beside a history: each multiplies the hazard.
TREND_FACTORS = {
    "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL": 1.5,
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": 1.5,
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": 3.0,
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": 1.5,
    "node_infiniband_symbol_error_total": 1.3,
    "DCGM_FI_DEV_SM_CLOCK": 1.3,
}
MOST_REASONS = 6


@dataclass(frozen=True, slots=True)
class History:
    """Faults of one unit in the months that it was at risk; `causes` counts them by cause."""

    name: str
    months: float
    faults: int
    causes: Mapping[str, int]
    last_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Trend:
    """A counter of a unit that grows, or a clock that lags; `text` says by how much."""

    name: str
    metric: str
    text: str


@dataclass(frozen=True, slots=True)
class Lemon:
    """`hazard` is expected faults a month; `times_fleet` against the fleet; `chance` of so many faults by luck.

    `is_lemon`: that chance is small even though the whole fleet was looked at.
    """

    name: str
    hazard: float
    times_fleet: float
    faults: int
    chance: float
    is_lemon: bool
    reasons: tuple[str, ...]


def histories(
    incidents_in_window: Iterable[incidents.Incident], nodes: Iterable[fleet.Place], *, since: datetime, now: datetime
) -> list[History]:
    """Hardware faults of each node; an incident that came back counts each time, one of the application never."""
    found: dict[str, dict[str, int]] = {place.node: {} for place in nodes if place.node is not None}
    last: dict[str, datetime] = {}
    for incident in incidents_in_window:
        node = incident.place.node
        if node is None or incident.opened_at < since or not causes.lookup(incident.cause).is_hardware:
            continue
        counts = found.setdefault(node, {})
        counts[incident.cause] = counts.get(incident.cause, 0) + 1 + incident.reopened
        last[node] = max(incident.opened_at, last.get(node, incident.opened_at))
    months = max((now - since) / MONTH, 1 / 30)
    return [History(name, months, sum(counts.values()), counts, last.get(name)) for name, counts in found.items()]


def rank_lemons(units: Sequence[History], trends: Iterable[Trend] = ()) -> list[Lemon]:
    """The most hazardous first; units without a fault or a trend are left out."""
    total = sum(unit.months for unit in units)
    if not total:
        return []
    rate = sum(unit.faults for unit in units) / total
    by_name: dict[str, list[Trend]] = {}
    for trend in trends:
        by_name.setdefault(trend.name, []).append(trend)
    found = [
        _judge(unit, rate, len(units), trends=by_name.get(unit.name, []))
        for unit in units
        if unit.faults or unit.name in by_name
    ]
    return sorted(found, key=lambda one: (-one.hazard, one.name))


def _judge(unit: History, rate: float, units: int, *, trends: Sequence[Trend]) -> Lemon:
    prior = rate * PRIOR_MONTHS
    hazard = (unit.faults + prior) / (unit.months + PRIOR_MONTHS)
    factor = math.prod(TREND_FACTORS.get(metric, 1.2) for metric in {trend.metric for trend in trends})
    chance = chance_of(unit.faults, rate * unit.months)
    reasons = [f"{count}× {cause}" for cause, count in sorted(unit.causes.items(), key=lambda item: -item[1])]
    reasons += [trend.text for trend in trends]
    if unit.last_at is not None:
        reasons.append(f"last {unit.last_at:%Y-%m-%d}")
    # With n units looked at, the luckless one of them is no surprise: Bonferroni's correction.
    is_lemon = unit.faults > 1 and chance * units < SURPRISING
    times = hazard * factor / rate if rate else factor
    return Lemon(
        unit.name, hazard * factor, times, unit.faults, min(1.0, chance), is_lemon, tuple(reasons[:MOST_REASONS])
    )  # fmt: skip


def chance_of(faults: int, expected: float) -> float:
    """How likely so many faults or more are where `expected` are usual (Poisson); 1 where no time was at risk."""
    if faults <= 0 or expected <= 0:
        return 1.0
    below, term = 0.0, math.exp(-expected)
    for count in range(faults):
        below += term
        term *= expected / (count + 1)
    return max(0.0, 1.0 - below)


# Growth over a week that is no noise; the clock of a busy GPU against the middle of its model in the fleet.
TREND_WINDOW = "7d"
TREND_EXPRS = {
    "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL": "sum by (Hostname) (increase(DCGM_FI_DEV_ECC_SBE_AGG_TOTAL[{w}])) > 100",
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": (
        "sum by (Hostname) (delta(DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS[{w}])) > 0"
    ),
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": (
        "sum by (Hostname) (delta(DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS[{w}])) > 0"
    ),
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": "sum by (Hostname) (increase(DCGM_FI_DEV_PCIE_REPLAY_COUNTER[{w}])) > 1000",
    "node_infiniband_symbol_error_total": (
        "sum by (Hostname) (label_replace(increase(node_infiniband_symbol_error_total[{w}]), "
        '"Hostname", "$1", "instance", "([^:]+)(?::[0-9]+)?")) > 120'
    ),
    "DCGM_FI_DEV_SM_CLOCK": (
        "min by (Hostname, modelName) (avg_over_time(DCGM_FI_DEV_SM_CLOCK[1h]) and DCGM_FI_DEV_GPU_UTIL > 80) "
        "< on (modelName) group_left 0.85 * quantile by (modelName) (0.5, "
        "avg_over_time(DCGM_FI_DEV_SM_CLOCK[1h]) and DCGM_FI_DEV_GPU_UTIL > 80)"
    ),
}
TREND_WORDS = {
    "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL": "{value:.0f} corrected memory errors in {w}",
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": "{value:.0f} rows remapped after corrected errors in {w}",
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": "{value:.0f} rows remapped after uncorrectable errors in {w}",
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": "{value:.0f} PCIe replays in {w}",
    "node_infiniband_symbol_error_total": "{value:.0f} InfiniBand symbol errors in {w}",
    "DCGM_FI_DEV_SM_CLOCK": "{value:.0f} MHz under load, its model's middle is a sixth higher or more",
}


def trend_queries(window: str = TREND_WINDOW) -> dict[str, str]:
    return {metric: expr.replace("{w}", window) for metric, expr in TREND_EXPRS.items()}


def make_trend(name: str, metric: str, value: float, *, window: str = TREND_WINDOW) -> Trend:
    return Trend(name, metric, TREND_WORDS[metric].format(value=value, w=window))
