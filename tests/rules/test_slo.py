"""A few lines about an objective become rules that Prometheus reads, or a message that says what is wrong."""

from __future__ import annotations

import pytest
import yaml

from tests.support.slo_file import FILE
from watchkeeper.rules import rulefile, slo


def test_an_objective_becomes_ratios_a_budget_and_four_burn_rates() -> None:
    text = slo.render_rules(slo.read_slos(FILE, where="slo.yaml"), source="slo.yaml")
    rules = yaml.safe_load(text)["groups"][0]["rules"]
    assert [rule["record"] for rule in rules if "record" in rule] == [
        *(f"slo:error_ratio:rate{window}" for window in ("5m", "30m", "1h", "2h", "6h", "1d", "3d")),
        "slo:error_budget_remaining:ratio",
    ]
    alerts = [rule for rule in rules if "alert" in rule]
    assert {rule["alert"] for rule in alerts} == {"ChatAvailabilityBudgetBurn"}
    assert [(rule["labels"]["window"], rule["labels"]["severity"]) for rule in alerts] == [
        ("1h", "critical"),
        ("6h", "critical"),
        ("1d", "warning"),
        ("3d", "warning"),
    ]
    assert "> 0.144" in alerts[0]["expr"]


def test_a_budget_is_counted_in_bad_minutes_of_its_window() -> None:
    group = yaml.safe_load(slo.render_rules(slo.read_slos(FILE, where="slo.yaml"), source="slo.yaml"))["groups"][0]
    left = next(rule["expr"] for rule in group["rules"] if rule.get("record") == slo.BUDGET)
    # One in a hundred of the 40,320 minutes of 28 days.
    assert (group["interval"], left) == (
        "1m",
        '1 - sum_over_time(slo:error_ratio:rate5m{slo="chat-availability"}[28d]) / 403.2',
    )


def test_what_is_written_is_a_rule_file(tmp_path: pytest.TempPathFactory) -> None:
    path = tmp_path / "rules.yaml"  # type: ignore[operator]
    path.write_text(slo.render_rules(slo.read_slos(FILE, where="slo.yaml"), source="slo.yaml"))
    assert len(rulefile.load_rules([path]).rules) == 12


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("0.99", "99"), r"slos\[0\].*`objective: 99(\.0)?` is not between 0 and 1"),
        (("28d", "28 days"), r"28 days"),
        (('code="500"}[window]', 'code="500"}[5m]'), r"`errors` has no \[window\]"),
        (("rate(requests_total[window])", "rate(requests_total[window]"), r"`total`: .*"),
        (("inference_overload", "bad_luck"), r"`cause: bad_luck` is not in the catalogue"),
        (("objective", "goal"), r"unknown key|is missing"),
        (("slos:", "slo:"), r"expected one key `slos`"),
    ],
)
def test_a_mistake_is_named(change: tuple[str, str], problem: str) -> None:
    with pytest.raises(rulefile.RuleFileProblems, match=problem):
        slo.read_slos(FILE.replace(*change), where="slo.yaml")


def test_two_objectives_cannot_share_a_name() -> None:
    twice = FILE + FILE.split("slos:\n")[1]
    with pytest.raises(rulefile.RuleFileProblems, match="chat-availability` is duplicated"):
        slo.read_slos(twice, where="slo.yaml")


def test_every_mistake_comes_with_its_line() -> None:
    wrong = FILE.replace("0.99", "often").replace("28d", "[28]")
    with pytest.raises(rulefile.RuleFileProblems) as caught:
        slo.read_slos(wrong, where="slo.yaml")
    assert [problem.line for problem in caught.value.problems] == [5, 6]
    assert str(caught.value).startswith("slo.yaml:5: slos[0].objective: expected a number")
