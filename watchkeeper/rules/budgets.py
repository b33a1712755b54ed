"""The current error budgets of SLOs, from the series that their rules record.

`web/prometheus/slo_api.py` queries `RECORDED_SERIES` and passes the result to `list_budgets`; `state_of` decides the
state. A value that is not recorded is None: the state of an SLO without traffic is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from watchkeeper.model.alerts import Alert, AlertState, Severity
from watchkeeper.model.labels import METRIC_NAME, Labels
from watchkeeper.rules import slo, templates

SHORTEST_WINDOW = slo.RAW_WINDOWS[0]
RECORDED_SERIES = f'{{__name__=~"{slo.RATIO}.+|{slo.BUDGET}",slo!=""}}'


class ErrorBudgetState(StrEnum):
    """The states of an error budget, worst first; unknown is worse than ok."""

    BURNING_FAST = "burning_fast"
    SPENT = "spent"
    BURNING = "burning"
    UNKNOWN = "unknown"
    OK = "ok"


WORST_FIRST = {state: rank for rank, state in enumerate(ErrorBudgetState)}


@dataclass(frozen=True, slots=True)
class BurnRate:
    """The burn rate over a long and a short window; its alert fires if both exceed `factor`."""

    window: str
    short_window: str
    factor: float
    severity: str
    rate: float | None
    short_rate: float | None


@dataclass(frozen=True, slots=True)
class ErrorBudget:
    """The error budget of an SLO for one label set; `since` is when the first burn-rate alert fired, or None."""

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
    """The error budgets of all SLOs and label sets, worst first; an SLO without samples has one, in state unknown."""
    firing = [alert for alert in alerts if alert.state is AlertState.FIRING]
    budgets = []
    for objective in slos:
        rows: dict[Labels, dict[str, float]] = {}
        for series, value in recorded.items():
            if series.get("slo") == objective.name:
                key = Labels({name: series.get(name, "") for name in objective.by})
                rows.setdefault(key, {})[series[METRIC_NAME]] = value
        budgets += [_budget(objective, key, rows.get(key, {}), firing) for key in sorted(rows) or [Labels()]]
    return sorted(budgets, key=lambda budget: WORST_FIRST[budget.state])


def state_of(indicator: float | None, left: float | None, severities: Iterable[str]) -> ErrorBudgetState:
    active_severities = set(severities)
    if Severity.CRITICAL in active_severities:
        return ErrorBudgetState.BURNING_FAST
    if left is not None and left <= 0:
        return ErrorBudgetState.SPENT
    if active_severities:
        return ErrorBudgetState.BURNING
    return ErrorBudgetState.UNKNOWN if indicator is None or left is None else ErrorBudgetState.OK


def _budget(objective: slo.Slo, labels: Labels, recorded: Mapping[str, float], firing: Sequence[Alert]) -> ErrorBudget:
    own_alerts = [
        alert
        for alert in firing
        if alert.name == objective.alert_name
        and all(alert.labels.get(name, "") == text for name, text in labels.items())
    ]

    def error_ratio(window: str) -> float | None:
        """At least 0: the recorded ratio can be slightly negative, because rates are extrapolated."""
        ratio = recorded.get(slo.RATIO + window)
        return None if ratio is None else max(0.0, ratio)

    def burn_rate(window: str) -> float | None:
        ratio = error_ratio(window)
        return None if ratio is None else ratio / objective.budget

    shortest_ratio = error_ratio(SHORTEST_WINDOW)
    indicator, left = None if shortest_ratio is None else 1 - shortest_ratio, recorded.get(slo.BUDGET)
    # Without a sample there are no labels for the title.
    context = templates.TemplateContext(labels=labels, value=0.0)
    title = templates.parse_template(objective.title).expand(context) if labels else objective.name
    matchers = ",".join(f'{name}="{text}"' for name, text in [("slo", objective.name), *labels.items()])
    return ErrorBudget(
        name=objective.name,
        title=title,
        labels=labels,
        objective=objective.objective,
        window=objective.window,
        indicator=indicator,
        left=left,
        burn_rates=tuple(
            BurnRate(burn.long, burn.short, burn.factor, burn.severity, burn_rate(burn.long), burn_rate(burn.short))
            for burn in slo.BURN_RATE_ALERTS
        ),
        state=state_of(indicator, left, [alert.labels.get("severity", "") for alert in own_alerts]),
        since=min((alert.fired_at for alert in own_alerts if alert.fired_at is not None), default=None),
        alerts=tuple(alert.labels for alert in own_alerts),
        query=f"{slo.BUDGET}{{{matchers}}}",
    )
