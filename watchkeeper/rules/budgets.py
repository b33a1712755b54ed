"""Error budgets now: what the rules of an objective have recorded, put together for people.

`web/prometheus/slo_api.py` asks the engine for the series of `RECORDED` and hands the answer over; `state_of`
decides. A number that was not recorded is None: an objective without traffic is neither kept nor missed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from watchkeeper.model.alerts import Alert, AlertState, Severity
from watchkeeper.model.labels import METRIC_NAME, Labels
from watchkeeper.rules import slo, templates

SHORTEST = slo.RAW_WINDOWS[0]
RECORDED_SERIES = f'{{__name__=~"{slo.RATIO}.+|{slo.BUDGET}",slo!=""}}'


class ErrorBudgetState(StrEnum):
    """From worst to best; unknown is not fine."""

    BURNING_FAST = "burning_fast"
    SPENT = "spent"
    BURNING = "burning"
    UNKNOWN = "unknown"
    OK = "ok"


WORST_FIRST = {state: place for place, state in enumerate(ErrorBudgetState)}


@dataclass(frozen=True, slots=True)
class BurnRate:
    """How many times faster than sustainable the budget goes; at `factor` over both windows someone is told."""

    window: str
    short_window: str
    factor: float
    severity: str
    rate: float | None
    short_rate: float | None


@dataclass(frozen=True, slots=True)
class ErrorBudget:
    """One objective for one label set. `since` is when its worst burn-rate alert began to fire, None without one."""

    name: str
    title: str
    labels: Labels
    objective: float
    window: str
    indicator: float | None
    left: float | None
    burn_rates: tuple[BurnRate, ...]
    state: ErrorBudgetState
    since: datetime | None
    alerts: tuple[Labels, ...]
    query: str


def list_budgets(
    slos: Iterable[slo.Slo], recorded: Mapping[Labels, float], alerts: Iterable[Alert]
) -> list[ErrorBudget]:
    """Every objective with each of its label sets, the worst first; one without samples stands there once, unknown."""
    firing = [alert for alert in alerts if alert.state is AlertState.FIRING]
    found = []
    for one in slos:
        rows: dict[Labels, dict[str, float]] = {}
        for series, value in recorded.items():
            if series.get("slo") == one.name:
                key = Labels({name: series.get(name, "") for name in one.by})
                rows.setdefault(key, {})[series[METRIC_NAME]] = value
        found += [_budget(one, key, rows[key], firing) for key in sorted(rows)] or [_budget(one, Labels(), {}, firing)]
    return sorted(found, key=lambda budget: WORST_FIRST[budget.state])


def state_of(indicator: float | None, left: float | None, severities: Iterable[str]) -> ErrorBudgetState:
    told = set(severities)
    if Severity.CRITICAL in told:
        return ErrorBudgetState.BURNING_FAST
    if left is not None and left <= 0:
        return ErrorBudgetState.SPENT
    if told:
        return ErrorBudgetState.BURNING
    return ErrorBudgetState.UNKNOWN if indicator is None or left is None else ErrorBudgetState.OK


def _budget(one: slo.Slo, labels: Labels, recorded: Mapping[str, float], firing: Sequence[Alert]) -> ErrorBudget:
    mine = [
        alert
        for alert in firing
        if alert.name == one.alert_name and all(alert.labels.get(name, "") == text for name, text in labels.items())
    ]
    errors = _errors(recorded, SHORTEST)
    indicator, left = None if errors is None else 1 - errors, recorded.get(slo.BUDGET)
    inside = ",".join(f'{name}="{text}"' for name, text in [("slo", one.name), *labels.items()])
    return ErrorBudget(
        name=one.name,
        title=_title(one, labels),
        labels=labels,
        objective=one.objective,
        window=one.window,
        indicator=indicator,
        left=left,
        burn_rates=tuple(_burn_rate(one, burn, recorded) for burn in slo.BURN_RATE_ALERTS),
        state=state_of(indicator, left, [alert.labels.get("severity", "") for alert in mine]),
        since=min((alert.fired_at for alert in mine if alert.fired_at is not None), default=None),
        alerts=tuple(alert.labels for alert in mine),
        query=f"{slo.BUDGET}{{{inside}}}",
    )


def _errors(recorded: Mapping[str, float], window: str) -> float | None:
    """The share of errors. Rates of good and of all are each extrapolated, so their ratio may be a little over one."""
    errors = recorded.get(slo.RATIO + window)
    return None if errors is None else max(0.0, errors)


def _burn_rate(one: slo.Slo, burn: slo.BurnRateAlert, recorded: Mapping[str, float]) -> BurnRate:
    def times(window: str) -> float | None:
        errors = _errors(recorded, window)
        return None if errors is None else errors / one.budget

    return BurnRate(burn.long, burn.short, burn.factor, burn.severity, times(burn.long), times(burn.short))


def _title(one: slo.Slo, labels: Labels) -> str:
    """The title with its labels filled in; without any sample there is nothing to fill in but the name."""
    return (
        templates.parse_template(one.title).expand(templates.TemplateContext(labels=labels, value=0.0))
        if labels
        else one.name
    )
