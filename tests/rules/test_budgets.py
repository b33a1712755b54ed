"""What is left of an error budget, put together from recorded series; without samples it is unknown, not fine."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.support.slo_file import FILE
from watchkeeper.model.alerts import Alert, AlertState
from watchkeeper.model.labels import Labels
from watchkeeper.rules import budgets, slo

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)
[GOAL] = slo.read_slos(FILE, where="slo.yaml")
CHAT = {"slo": "chat-availability", "cluster": "main", "model_name": "chat"}


def recorded(**values: float) -> dict[Labels, float]:
    names = {"left": slo.BUDGET, **{window: f"{slo.RATIO}{window[1:]}" for window in ("_5m", "_1h", "_6h")}}
    return {Labels({**CHAT, "__name__": names[name]}): value for name, value in values.items()}


def firing(severity: str, window: str) -> Alert:
    labels = {"alertname": "ChatAvailabilityBudgetBurn", "cluster": "main", "model_name": "chat", "window": window}
    return Alert(Labels({**labels, "severity": severity}), AlertState.FIRING, NOON, 0.2, fired_at=NOON)


def test_an_objective_that_is_kept_has_its_numbers() -> None:
    [budget] = budgets.list_budgets([GOAL], recorded(_5m=0.001, _1h=0.02, left=0.75), [])
    assert (budget.title, budget.indicator, budget.left) == ("chat availability", 0.999, 0.75)
    assert (budget.state, budget.since) == (budgets.ErrorBudgetState.OK, None)
    fast = budget.burn_rates[0]
    assert (fast.window, fast.factor, round(fast.rate or 0, 6), round(fast.short_rate or 0, 6)) == (
        "1h",
        14.4,
        2.0,
        0.1,
    )
    assert budget.burn_rates[2].rate is None
    assert budget.query == f'{slo.BUDGET}{{slo="chat-availability",cluster="main",model_name="chat"}}'


def test_an_objective_without_samples_is_unknown_and_still_listed() -> None:
    [budget] = budgets.list_budgets([GOAL], {}, [])
    assert (budget.title, budget.indicator, budget.left, budget.state) == ("chat-availability", None, None, "unknown")


@pytest.mark.parametrize(
    ("left", "firing_alerts", "state"),
    [
        (0.5, [("critical", "1h")], "burning_fast"),
        (0.5, [("warning", "3d")], "burning"),
        (-0.2, [("warning", "3d")], "spent"),
        (-0.2, [], "spent"),
        (0.5, [], "ok"),
    ],
)
def test_the_worst_state_wins(left: float, firing_alerts: list[tuple[str, str]], state: str) -> None:
    alerts = [firing(*arguments) for arguments in firing_alerts]
    [budget] = budgets.list_budgets([GOAL], recorded(_5m=0.001, left=left), alerts)
    assert budget.state == state
    assert budget.since == (NOON if firing_alerts else None)


def test_an_alert_of_another_model_does_not_count() -> None:
    other = Alert(firing("critical", "1h").labels.with_labels(model_name="code"), AlertState.FIRING, NOON, 0.2)
    [budget] = budgets.list_budgets([GOAL], recorded(_5m=0.001, left=0.5), [other])
    assert budget.state is budgets.ErrorBudgetState.OK


def test_a_budget_without_traffic_now_is_unknown_however_much_is_left() -> None:
    [budget] = budgets.list_budgets([GOAL], recorded(left=0.9), [])
    assert (budget.left, budget.indicator, budget.state) == (0.9, None, budgets.ErrorBudgetState.UNKNOWN)


def test_no_more_than_all_answers_are_good() -> None:
    [budget] = budgets.list_budgets([GOAL], recorded(_5m=-0.00016, _1h=-0.0001, left=1.0), [])
    assert (budget.indicator, budget.burn_rates[0].rate) == (1.0, 0.0)


def test_burning_budgets_come_first() -> None:
    calm = {Labels({**name, "model_name": "a"}): value for name, value in recorded(_5m=0.0, left=1.0).items()}
    error_budgets = budgets.list_budgets([GOAL], calm | recorded(_5m=0.5, left=0.2), [firing("critical", "1h")])
    assert [(budget.title, budget.state.value) for budget in error_budgets] == [
        ("chat availability", "burning_fast"),
        ("a availability", "ok"),
    ]
