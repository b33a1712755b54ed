"""Budgets of a month: what is spent, where the run rate leads, and whether that is too much.

The plain forecast is the mean of the full days so far, with an interval from how much days differ. Whoever has a better
one hands it in as a function; this stage knows no other. `watchkeeper cost budget` fails when one is over or will be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from watchkeeper.accounting import cost, usage
from watchkeeper.kit import wire

# Two-sided 80 %: nine months of ten end below the upper edge.
EDGE = 1.2816
# Fewer days say nothing about how much days differ.
LEAST_DAYS = 3

# A day on which clocks go forward has 23 hours.
SHORTEST_DAY_HOURS = 22.9
DAY_SECONDS = 86_400.0
# Of a day that tells of others, at least four hours of five are known.
LEAST_KNOWN = 0.8

# Money of each full day so far and the days that are left; answers the sum of the rest with low and high.
Forecast = Callable[[Sequence[float], float], tuple[float, float | None, float | None]]


class BudgetState(StrEnum):
    OVER = "over"
    WILL_BE_OVER = "will_be_over"
    MAY_BE_OVER = "may_be_over"
    UNKNOWN = "unknown"
    WITHIN = "within"
    NO_BUDGET = "no_budget"


@dataclass(frozen=True, slots=True)
class TeamBudget:
    """One team's month. `spent` is None where no GPU has a price, `low` and `high` where too few days are known."""

    team: str
    budget: float | None
    spent: float | None
    forecast: float | None
    low: float | None
    high: float | None
    state: BudgetState


def run_rate(days: Sequence[float], days_left: float) -> tuple[float, float | None, float | None]:
    """What the rest of the month costs if days go on like those so far, with an 80 % interval."""
    if not days:
        return 0.0, None, None
    mean = sum(days) / len(days)
    rest = mean * days_left
    if len(days) < LEAST_DAYS:
        return rest, None, None
    deviation = math.sqrt(sum((day - mean) ** 2 for day in days) / (len(days) - 1))
    # Each day that comes differs, and so may the mean that was taken from so few.
    width = EDGE * deviation * math.sqrt(days_left + days_left**2 / len(days))
    return rest, max(rest - width, 0.0), rest + width


def judge_teams(
    daily: Mapping[str, Sequence[float]],
    spent: Mapping[str, float | None],
    limits: Mapping[str, float],
    *,
    days_left: float,
    forecast: Forecast = run_rate,
) -> list[TeamBudget]:
    """Every team that spent something or has a budget, the worst first."""
    found = []
    for team in sorted({*spent, *limits}):
        limit, so_far = limits.get(team), spent.get(team, 0.0)
        if so_far is None:
            state = BudgetState.NO_BUDGET if limit is None else BudgetState.UNKNOWN
            found.append(TeamBudget(team, limit, None, None, None, None, state))
            continue
        rest, low, high = forecast(daily.get(team, ()), days_left)
        found.append(
            TeamBudget(
                team,
                limit,
                so_far,
                so_far + rest,
                None if low is None else so_far + low,
                None if high is None else so_far + high,
                _state(limit, so_far, so_far + rest, None if high is None else so_far + high),
            )
        )
    order = list(BudgetState)
    return sorted(found, key=lambda one: (order.index(one.state), -(one.forecast or 0.0)))


def month_budgets(
    month: cost.UsageBill, days: Sequence[usage.UsageTable], *, ends: float, forecast: Forecast = run_rate
) -> dict[str, Any]:
    """Budgets by team as JSON; see `judge_month`."""
    judged, notes = judge_month(month, days, ends=ends, forecast=forecast)
    return {"until": month.table.until, "budgets": wire.to_plain(judged), "notes": notes}


def judge_month(
    month: cost.UsageBill, days: Sequence[usage.UsageTable], *, ends: float, forecast: Forecast = run_rate
) -> tuple[list[TeamBudget], list[str]]:
    """Budgets by team from a month so far, and what to know about it; its days say what one more costs.

    What is spent is the cost of the month's report, to the cent: shared cost that is split day by day would be another.
    """
    report = cost.report_bill(month, ["team"])
    spent = _of_teams(report)
    begun = [day for day in days if _known(day) > 0]
    money = [_of_teams(cost.report(day, month.book, ["team"], policy=month.policy)) for day in begun]
    whole = [at for at, day in enumerate(begun) if _is_whole(day)]
    # On its first day a fleet has no whole one yet: the part of it stands for a day.
    scale = [1.0 if whole else 24 / max(day.recorded_hours, 1 / 60) for day in begun]
    taken = whole or list(range(len(begun)))
    daily = {team: [(money[at].get(team) or 0.0) * scale[at] for at in taken] for team in spent}
    left = max(ends - month.table.until, 0.0) / DAY_SECONDS
    return judge_teams(daily, spent, month.book.budgets, days_left=left, forecast=forecast), list(report.notes)


def _of_teams(report: cost.CostReport) -> dict[str, float | None]:
    return {line.names[0]: line.known_money for line in report.lines if usage.NOBODY not in line.names}


def _is_whole(day: usage.UsageTable) -> bool:
    """Whether enough of a day is known to tell of others; a hub that was away has seen nobody hold anything."""
    return day.recorded_hours >= SHORTEST_DAY_HOURS and _known(day) >= LEAST_KNOWN


def _known(day: usage.UsageTable) -> float:
    """The share of a day's GPU-hours of which somebody can say something."""
    amounts = day.amounts.sum(axis=0)
    total = usage.total(amounts)
    return 1 - float(amounts[usage.UNKNOWN]) / total if total > cost.LEAST_HOURS else 0.0


def _state(limit: float | None, spent: float, expected: float, high: float | None) -> BudgetState:
    if limit is None:
        return BudgetState.NO_BUDGET
    if spent > limit:
        return BudgetState.OVER
    if expected > limit:
        return BudgetState.WILL_BE_OVER
    return BudgetState.MAY_BE_OVER if high is not None and high > limit else BudgetState.WITHIN
