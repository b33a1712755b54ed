"""Rank lemon nodes: nodes that fail more often than chance explains, or whose error counters increase.

The rate of a node with little time in the fleet is shifted towards the rate of the fleet (a gamma prior of one average
node-month), so that one fault of a new node does not make it the worst. Each counter trend multiplies the rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from watchkeeper.catalogue import causes
from watchkeeper.model import fleet, incidents

# The prior has the weight of this many node-months at the fleet's rate, which matters only for new nodes.
PRIOR_MONTHS = 1.0
MONTH = timedelta(days=30)
# A node is a lemon if the chance of its faults, corrected for the size of the fleet, is below this.
MAX_CHANCE = 0.05
MAX_REASONS = 6


@dataclass(frozen=True, slots=True)
class FaultHistory:
    """The hardware faults of a node in `months`; `causes` counts them by cause."""

    name: str
    months: float
    faults: int
    causes: Mapping[str, int]
    last_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class CounterTrend:
    """An error counter of a node that increases, or a low clock; `text` has the amount."""

    name: str
    metric: str
    text: str


@dataclass(frozen=True, slots=True)
class Lemon:
    """`hazard` is expected faults per month, `times_fleet` its ratio to the fleet's rate.

    `chance` is the probability of this many faults by chance; `is_lemon` if it is small for a fleet of this size.
    """

    name: str
    hazard: float
    times_fleet: float
    faults: int
    chance: float
    is_lemon: bool
    reasons: tuple[str, ...]


def fault_histories(
    incidents_in_window: Iterable[incidents.Incident], nodes: Iterable[fleet.Place], *, since: datetime, now: datetime
) -> list[FaultHistory]:
    """Hardware faults of each node; each reopening of an incident counts, application faults do not."""
    counts_by_node: dict[str, dict[str, int]] = {place.node: {} for place in nodes if place.node is not None}
    last: dict[str, datetime] = {}
    for incident in incidents_in_window:
        node = incident.place.node
        if node is None or incident.opened_at < since or not causes.lookup(incident.cause).is_hardware:
            continue
        counts = counts_by_node.setdefault(node, {})
        counts[incident.cause] = counts.get(incident.cause, 0) + 1 + incident.reopened
        last[node] = max(incident.opened_at, last.get(node, incident.opened_at))
    months = max((now - since) / MONTH, 1 / 30)
    totals = [(name, sum(counts.values()), counts) for name, counts in counts_by_node.items()]
    return [FaultHistory(name, months, faults, counts, last.get(name)) for name, faults, counts in totals]


def rank_lemons(units: Sequence[FaultHistory], trends: Iterable[CounterTrend] = ()) -> list[Lemon]:
    """Rank nodes by hazard, the highest first; nodes without a fault or a trend are omitted."""
    total = sum(unit.months for unit in units)
    if not total:
        return []
    rate = sum(unit.faults for unit in units) / total
    by_name: dict[str, list[CounterTrend]] = {}
    for trend in trends:
        by_name.setdefault(trend.name, []).append(trend)
    suspects = [unit for unit in units if unit.faults or unit.name in by_name]
    lemons = [_score(unit, rate, len(units), trends=by_name.get(unit.name, [])) for unit in suspects]
    return sorted(lemons, key=lambda lemon: (-lemon.hazard, lemon.name))


def _score(unit: FaultHistory, rate: float, units: int, *, trends: Sequence[CounterTrend]) -> Lemon:
    prior = rate * PRIOR_MONTHS
    hazard = (unit.faults + prior) / (unit.months + PRIOR_MONTHS)
    factor = math.prod(TRENDS[metric].factor for metric in {trend.metric for trend in trends})
    chance = chance_of_faults(unit.faults, rate * unit.months)
    reasons = [f"{count}× {cause}" for cause, count in sorted(unit.causes.items(), key=lambda item: -item[1])]
    reasons += [trend.text for trend in trends]
    if unit.last_at is not None:
        reasons.append(f"last {unit.last_at:%Y-%m-%d}")
    # With n nodes, one unlucky node is expected: Bonferroni correction.
    is_lemon = unit.faults > 1 and chance * units < MAX_CHANCE
    times = hazard * factor / rate if rate else factor
    shown = tuple(reasons[:MAX_REASONS])
    return Lemon(unit.name, hazard * factor, times, unit.faults, min(1.0, chance), is_lemon, shown)


def chance_of_faults(faults: int, expected: float) -> float:
    """The probability of at least this many faults if `expected` are expected (Poisson); 1 without time at risk."""
    if faults <= 0 or expected <= 0:
        return 1.0
    below, term = 0.0, math.exp(-expected)
    for count in range(faults):
        below += term
        term *= expected / (count + 1)
    return max(0.0, 1.0 - below)


TREND_WINDOW = "7d"


@dataclass(frozen=True, slots=True)
class TrendKind:
    """A counter whose increase over a week is above noise; it multiplies the hazard by `factor`."""

    factor: float
    expr: str
    text: str


TRENDS = {
    "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL": TrendKind(
        1.5,
        "sum by (Hostname) (increase(DCGM_FI_DEV_ECC_SBE_AGG_TOTAL[{w}])) > 100",
        "{value:.0f} corrected memory errors in {w}",
    ),
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": TrendKind(
        1.5,
        "sum by (Hostname) (delta(DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS[{w}])) > 0",
        "{value:.0f} rows remapped after corrected errors in {w}",
    ),
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": TrendKind(
        3.0,
        "sum by (Hostname) (delta(DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS[{w}])) > 0",
        "{value:.0f} rows remapped after uncorrectable errors in {w}",
    ),
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": TrendKind(
        1.5,
        "sum by (Hostname) (increase(DCGM_FI_DEV_PCIE_REPLAY_COUNTER[{w}])) > 1000",
        "{value:.0f} PCIe replays in {w}",
    ),
    "node_infiniband_symbol_error_total": TrendKind(
        1.3,
        "sum by (Hostname) (label_replace(increase(node_infiniband_symbol_error_total[{w}]), "
        '"Hostname", "$1", "instance", "([^:]+)(?::[0-9]+)?")) > 120',
        "{value:.0f} InfiniBand symbol errors in {w}",
    ),
    # The clock of a busy GPU compared with the median of its GPU model.
    "DCGM_FI_DEV_SM_CLOCK": TrendKind(
        1.3,
        "min by (Hostname, modelName) (avg_over_time(DCGM_FI_DEV_SM_CLOCK[1h]) and DCGM_FI_DEV_GPU_UTIL > 80) "
        "< on (modelName) group_left 0.85 * quantile by (modelName) (0.5, "
        "avg_over_time(DCGM_FI_DEV_SM_CLOCK[1h]) and DCGM_FI_DEV_GPU_UTIL > 80)",
        "{value:.0f} MHz under load, at least 15 % below the median of its GPU model",
    ),
}


def trend_queries() -> dict[str, str]:
    return {metric: trend.expr.replace("{w}", TREND_WINDOW) for metric, trend in TRENDS.items()}


def make_trend(name: str, metric: str, value: float) -> CounterTrend:
    return CounterTrend(name, metric, TRENDS[metric].text.format(value=value, w=TREND_WINDOW))
