"""Monthly budgets: the cost so far, the forecast for the whole month, and whether it exceeds the budget.

The forecast is the mean cost of the full days so far, with an interval from the variation between days.
`watchkeeper cost budget` fails if a budget is or will be exceeded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from watchkeeper.accounting import cost, usage
from watchkeeper.kit import wire

# Two-sided 80 %: nine months of ten end below the upper limit.
INTERVAL_Z_SCORE = 1.2816
# Fewer days do not show how much the cost varies between days.
MIN_DAYS = 3

# A day on which daylight saving time starts has 23 hours.
SHORTEST_DAY_HOURS = 22.9
DAY_SECONDS = 86_400.0
# A day is used for the forecast if at least 80 % of its GPU-hours are known.
MIN_RECORDED_SHARE = 0.8


class BudgetState(StrEnum):
    OVER = "over"
    WILL_BE_OVER = "will_be_over"
    MAY_BE_OVER = "may_be_over"
    UNKNOWN = "unknown"
    WITHIN = "within"
    NO_BUDGET = "no_budget"


@dataclass(frozen=True, slots=True)
class TeamBudget:
    """One team's month. `spent` is None if no GPU has a price; `low` and `high` are None if too few days are known."""

    team: str
    budget: float | None
    spent: float | None
    forecast: float | None
    low: float | None
    high: float | None
    state: BudgetState


def forecast_run_rate(days: Sequence[float], days_left: float) -> tuple[float, float | None, float | None]:
    """Forecast the cost of the rest of the month from the mean of its days so far, with an 80 % interval."""
    if not days:
        return 0.0, None, None
    mean = sum(days) / len(days)
    rest = mean * days_left
    if len(days) < MIN_DAYS:
        return rest, None, None
    deviation = math.sqrt(sum((day - mean) ** 2 for day in days) / (len(days) - 1))
    # Two sources of error: future days vary, and the mean of few days is itself uncertain.
    width = INTERVAL_Z_SCORE * deviation * math.sqrt(days_left + days_left**2 / len(days))
    return rest, max(rest - width, 0.0), rest + width


def evaluate_teams(
    daily: Mapping[str, Sequence[float]],
    spent: Mapping[str, float | None],
    limits: Mapping[str, float],
    *,
    days_left: float,
) -> list[TeamBudget]:
    """Return every team with costs or a budget, the most severe state first."""
    team_budgets = []
    for team in sorted({*spent, *limits}):
        limit, spent_so_far = limits.get(team), spent.get(team, 0.0)
        if spent_so_far is None:
            state = BudgetState.NO_BUDGET if limit is None else BudgetState.UNKNOWN
            team_budgets.append(TeamBudget(team, limit, None, None, None, None, state))
            continue
        rest, low, high = forecast_run_rate(daily.get(team, ()), days_left)
        expected = spent_so_far + rest
        lowest, highest = (None if end is None else spent_so_far + end for end in (low, high))
        if limit is None:
            state = BudgetState.NO_BUDGET
        elif spent_so_far > limit:
            state = BudgetState.OVER
        elif expected > limit:
            state = BudgetState.WILL_BE_OVER
        else:
            state = BudgetState.MAY_BE_OVER if highest is not None and highest > limit else BudgetState.WITHIN
        team_budgets.append(TeamBudget(team, limit, spent_so_far, expected, lowest, highest, state))
    order = list(BudgetState)
    return sorted(team_budgets, key=lambda budget: (order.index(budget.state), -(budget.forecast or 0.0)))


def report_month_budgets(month: cost.UsageBill, days: Sequence[usage.UsageTable], *, ends: float) -> dict[str, Any]:
    team_budgets, notes = evaluate_month(month, days, ends=ends)
    return {"until": month.table.until, "budgets": wire.to_plain(team_budgets), "notes": notes}


def evaluate_month(
    month: cost.UsageBill, days: Sequence[usage.UsageTable], *, ends: float
) -> tuple[list[TeamBudget], list[str]]:
    """Return the budgets by team of a month so far, and notes about them; `days` is the usage of each day."""
    # Not the sum of the days, because shared cost that is split day by day has another sum.
    report = cost.create_bill_report(month, ["team"])
    spent = _cost_by_team(report)
    recorded_days = [day for day in days if _recorded_share(day) > 0]
    # A hub that was down recorded no allocated hours.
    full_days = [
        day
        for day in recorded_days
        if day.recorded_hours >= SHORTEST_DAY_HOURS and _recorded_share(day) >= MIN_RECORDED_SHARE
    ]
    # A new fleet has no full day yet: its partial days are extrapolated to 24 hours.
    day_costs = [
        (
            _cost_by_team(cost.create_report(day, month.book, ["team"], policy=month.policy)),
            1.0 if full_days else 24 / max(day.recorded_hours, 1 / 60),
        )
        for day in full_days or recorded_days
    ]
    daily = {team: [(by_team.get(team) or 0.0) * scale for by_team, scale in day_costs] for team in spent}
    days_left = max(ends - month.table.until, 0.0) / DAY_SECONDS
    return evaluate_teams(daily, spent, month.book.budgets, days_left=days_left), list(report.notes)


def _cost_by_team(report: cost.CostBreakdown) -> dict[str, float | None]:
    return {line.names[0]: line.known_money for line in report.lines if usage.UNOWNED not in line.names}


def _recorded_share(day: usage.UsageTable) -> float:
    """The share of a day's GPU-hours that is not unknown."""
    amounts = day.amounts.sum(axis=0)
    total = usage.total(amounts)
    return 1 - float(amounts[usage.UNKNOWN]) / total if total > cost.MIN_HOURS else 0.0
