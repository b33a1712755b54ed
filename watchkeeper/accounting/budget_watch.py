"""Export each team's monthly budget, its cost so far and the forecast as metrics.

The hub calls `update`, which computes the values once an hour. packs/rules/budgets.yaml turns them into alerts. A
forecast is exported after enough full days, so no forecast alert fires on the first days of a month.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

from watchkeeper.accounting import budgets, cost, ledger, time_ranges, usage_reader
from watchkeeper.accounting.price_file import PriceFile
from watchkeeper.catalogue import prices
from watchkeeper.config import settings as config
from watchkeeper.kit import own_metrics
from watchkeeper.query import engine as engines

# Usage is recorded by the hour, so more frequent updates would give the same values.
UPDATE_INTERVAL_SECONDS = 3600.0
ZONE = ZoneInfo("UTC")


def create_budget_watch(settings: config.Settings, metrics: own_metrics.Registry) -> BudgetWatch:
    return BudgetWatch(PriceFile.of_settings(settings.cost), Path(settings.hub.data) / "usage", metrics=metrics)


class BudgetWatch:
    """The budget metrics of this hub. Not thread-safe: call it from one thread at a time."""

    def __init__(self, price_file: PriceFile, folder: Path, *, metrics: own_metrics.Registry) -> None:
        self._price_file, self._folder = price_file, folder
        self._updated_at: float | None = None
        self._limit = metrics.gauge("watchkeeper_accounting_budget_money", "Monthly budget of the team")
        self._spent = metrics.gauge("watchkeeper_accounting_budget_spent_money", "Cost of the team this month so far")
        self._forecast = metrics.gauge(
            "watchkeeper_accounting_budget_forecast_money", "Forecast cost of the team for the whole month"
        )

    def update(self, engine: engines.Engine, now: datetime) -> None:
        """Update the metrics, at most once an hour; without budgets they have no values."""
        at = now.timestamp()
        if self._updated_at is not None and 0 <= at - self._updated_at < UPDATE_INTERVAL_SECONDS:
            return
        month, book = f"{now.astimezone(UTC):%Y-%m}", self._price_file.book()
        team_budgets = self._evaluate_month(engine, month, book, until=at) if book.budgets else []
        for gauge in (self._limit, self._spent, self._forecast):
            gauge.values.clear()
        for team_budget in team_budgets:
            if team_budget.budget is None:
                continue
            self._limit.set(team_budget.budget, team=team_budget.team, month=month)
            if team_budget.spent is not None:
                self._spent.set(team_budget.spent, team=team_budget.team, month=month)
            if team_budget.forecast is not None and team_budget.low is not None:
                self._forecast.set(team_budget.forecast, team=team_budget.team, month=month)
        self._updated_at = at

    def _evaluate_month(
        self, engine: engines.Engine, month: str, book: prices.PriceBook, *, until: float
    ) -> list[budgets.TeamBudget]:
        start, end = time_ranges.month_range(month, ZONE)
        days = [(since, to) for _, since, to in time_ranges.split_days(start, until, ZONE)]
        of_month, of_days = (
            usage_reader.read_usage_periods(engine, ledger.UsageLedger(self._folder), periods, by_job=False)
            for periods in (book.price_periods(start, until), days)
        )
        return budgets.evaluate_month(cost.price_usage(of_month, book), of_days, ends=end)[0]
