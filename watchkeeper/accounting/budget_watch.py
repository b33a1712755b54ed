"""Budgets as numbers that rules can watch: the limit of each team's month, what is spent, and where it leads.

The hub looks once an hour and its own page shows the numbers; packs/rules/budgets.yaml turns them into alerts, which
are told to the team like any other. A forecast is shown once enough days are known, so the first of a month is quiet.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

from watchkeeper.accounting import budgets, cost, ledger, time_ranges, usage_reader
from watchkeeper.accounting.price_file import PriceFile
from watchkeeper.config import settings as config
from watchkeeper.kit import own_metrics
from watchkeeper.query import engine as engines

# Usage is recorded by the hour; looking more often sees nothing else.
LOOK_SECONDS = 3600.0
ZONE = ZoneInfo("UTC")


def create_budget_watch(settings: config.Settings, metrics: own_metrics.Registry) -> BudgetWatch:
    file = PriceFile(settings.cost.prices, fallback=settings.cost.dollars_per_gpu_hour)
    return BudgetWatch(file, Path(settings.hub.data) / "usage", metrics=metrics)


class BudgetWatch:
    """One thread at a time."""

    def __init__(self, file: PriceFile, folder: Path, *, metrics: own_metrics.Registry) -> None:
        self._file, self._folder = file, folder
        self._looked: float | None = None
        self._limit = metrics.gauge("watchkeeper_accounting_budget_money", "Budget of a team for a month")
        self._spent = metrics.gauge("watchkeeper_accounting_budget_spent_money", "What the team has used of it")
        self._forecast = metrics.gauge(
            "watchkeeper_accounting_budget_forecast_money", "What the month will have cost if days go on like this"
        )

    def update(self, engine: engines.Engine, now: datetime) -> None:
        """Work the numbers out anew, at most once an hour; without budgets there is nothing to work out."""
        at = now.timestamp()
        if self._looked is not None and 0 <= at - self._looked < LOOK_SECONDS:
            return
        book = self._file.book()
        found = self._judge(engine, now) if book.budgets else []
        month = f"{now.astimezone(UTC):%Y-%m}"
        for gauge in (self._limit, self._spent, self._forecast):
            gauge.values.clear()
        for one in found:
            if one.budget is None:
                continue
            self._limit.set(one.budget, team=one.team, month=month)
            if one.spent is not None:
                self._spent.set(one.spent, team=one.team, month=month)
            if one.forecast is not None and one.low is not None:
                self._forecast.set(one.forecast, team=one.team, month=month)
        self._looked = at

    def _judge(self, engine: engines.Engine, now: datetime) -> list[budgets.TeamBudget]:
        start, end = time_ranges.month(f"{now.astimezone(UTC):%Y-%m}", ZONE)
        kept, book, until = ledger.UsageLedger(self._folder), self._file.book(), now.timestamp()
        month = cost.price_usage(
            usage_reader.read_usage_periods(engine, kept, book.price_periods(start, until), by_job=False), book
        )
        parts = [(since, to) for _, since, to in time_ranges.days(start, until, ZONE)]
        return budgets.judge_month(month, usage_reader.read_usage_periods(engine, kept, parts, by_job=False), ends=end)[
            0
        ]
