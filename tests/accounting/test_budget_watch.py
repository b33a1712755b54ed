"""Budgets as numbers for rules: each team's limit, what is spent and where it leads, for the month that runs."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from tests.accounting.histories import START, Minute, engine_of_history
from watchkeeper.accounting.budget_watch import BudgetWatch
from watchkeeper.accounting.price_file import PriceFile
from watchkeeper.errors import PackError
from watchkeeper.kit import own_metrics
from watchkeeper.query.embedded import EmbeddedEngine

BOOK = """currency = "USD"
[[price]]
model = "H200"
kind = "on_demand"
per_gpu_hour = 2.0
[budgets]
a = {a}
z = 500
"""
SPENT = "watchkeeper_accounting_budget_spent_money"


@pytest.fixture(scope="module")
def engine() -> EmbeddedEngine:
    """Two hours in which team `a` holds two of four GPUs."""
    return engine_of_history([Minute((("a1", 0.5), ("a1", 0.5), (None, 0.0), (None, 0.0)))] * 121)


def watch(folder: Path, *, budget: float = 3.0) -> tuple[BudgetWatch, own_metrics.Registry]:
    (folder / "prices.toml").write_text(BOOK.format(a=budget))
    metrics = own_metrics.Registry()
    return BudgetWatch(PriceFile(str(folder / "prices.toml"), fallback=1.0), folder / "usage", metrics=metrics), metrics


def shown(metrics: own_metrics.Registry, name: str) -> dict[str, float]:
    return {dict(pairs)["team"]: round(value, 2) for pairs, value in metrics.metrics[name].values.items()}


@pytest.mark.slow
def test_what_a_team_spent_stands_beside_its_budget(tmp_path: Path, engine: EmbeddedEngine) -> None:
    made, metrics = watch(tmp_path)
    made.update(engine, START + timedelta(hours=2))
    assert shown(metrics, "watchkeeper_accounting_budget_money") == {"a": 3.0, "z": 500.0}
    assert shown(metrics, SPENT) == {"a": 8.0, "z": 0.0}
    assert {dict(pairs)["month"] for pairs in metrics.metrics[SPENT].values} == {"2026-11"}


@pytest.mark.slow
def test_no_forecast_is_shown_before_three_days_are_known(tmp_path: Path, engine: EmbeddedEngine) -> None:
    made, metrics = watch(tmp_path)
    made.update(engine, START + timedelta(hours=2))
    assert shown(metrics, "watchkeeper_accounting_budget_forecast_money") == {}


@pytest.mark.slow
def test_a_budget_that_was_raised_counts_an_hour_later_and_not_before(tmp_path: Path, engine: EmbeddedEngine) -> None:
    made, metrics = watch(tmp_path)
    made.update(engine, START + timedelta(hours=2))
    (tmp_path / "prices.toml").write_text(BOOK.format(a=3000))
    made.update(engine, START + timedelta(hours=2, minutes=30))
    assert shown(metrics, "watchkeeper_accounting_budget_money")["a"] == 3.0
    made.update(engine, START + timedelta(hours=3, minutes=1))
    assert shown(metrics, "watchkeeper_accounting_budget_money")["a"] == 3000.0


@pytest.mark.slow
def test_another_month_begins_with_nothing_spent(tmp_path: Path, engine: EmbeddedEngine) -> None:
    made, metrics = watch(tmp_path)
    made.update(engine, START + timedelta(hours=2))
    made.update(engine, START + timedelta(days=17))
    assert shown(metrics, SPENT) == {"a": 0.0, "z": 0.0}
    assert {dict(pairs)["month"] for pairs in metrics.metrics[SPENT].values} == {"2026-12"}


@pytest.mark.slow
def test_a_book_that_cannot_be_read_is_said_and_tried_again(tmp_path: Path, engine: EmbeddedEngine) -> None:
    made, metrics = watch(tmp_path)
    (tmp_path / "prices.toml").unlink()
    with pytest.raises(PackError, match="cannot read the price book"):
        made.update(engine, START + timedelta(hours=2))
    (tmp_path / "prices.toml").write_text(BOOK.format(a=3))
    made.update(engine, START + timedelta(hours=2))
    assert shown(metrics, SPENT)["a"] == 8.0
