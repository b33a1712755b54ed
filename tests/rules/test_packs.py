"""The shipped rules: every alert says what, how bad, why and what next, and its tests hold on both engines."""

from __future__ import annotations

import csv
import re
import subprocess
from pathlib import Path

import pytest

from tests import servers
from watchkeeper.catalogue import causes
from watchkeeper.rules import rulefile, unit_tests

RULES = Path(rulefile.__file__).parents[1] / "packs" / "rules"
FILES = sorted(RULES.glob("*.yaml"))
TESTS = sorted((RULES / "tests").glob("*.yaml"))
ALERTS = [rule for rule in rulefile.load_rules(FILES).rules if isinstance(rule, rulefile.AlertingRule)]
EACH_ALERT = pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: f"{rule.name}:{rule.line}")


@EACH_ALERT
def test_an_alert_names_a_shipped_cause_with_its_severity_and_runbook(rule: rulefile.AlertingRule) -> None:
    row = causes.lookup(rule.labels["cause"].text)
    assert row.cause == rule.labels["cause"].text
    # How fast a budget burns decides whether it is a page or a ticket, whatever the cause.
    # A critical Xid stays critical where its cause is unknown.
    has_own_severity = rule.name.endswith("BudgetBurn") or (
        rule.name == "GPUHardwareFailure" and row.cause == "unknown"
    )
    assert rule.labels["severity"].text == row.severity or has_own_severity
    assert rule.annotations["runbook_url"].text == f"docs/runbooks/{row.runbook}.md"
    assert (RULES.parents[2] / rule.annotations["runbook_url"].text).is_file()


@EACH_ALERT
def test_an_alert_has_a_summary_and_an_action(rule: rulefile.AlertingRule) -> None:
    assert {"summary", "description", "action", "runbook_url"} == set(rule.annotations)
    place = r"\$labels\.(Hostname|node|rack|pod|namespace|job_name|model_name|cluster|team)"
    assert re.search(place, rule.annotations["summary"].text), "a summary says where"


def test_every_critical_xid_raises_one_alert_with_its_cause() -> None:
    with (RULES.parent / "xid.csv").open() as file:
        critical = {
            row["code"]: row["cause"] for row in csv.DictReader(file) if row["severity"] in ("critical", "fatal")
        }
    alerts = [rule for rule in ALERTS if rule.name == "GPUHardwareFailure"]
    coded = [(code, rule) for rule in alerts for code in re.findall(r"new_xid:code == (\d+)", rule.expr)]
    assert sorted(code for code, _ in coded) == sorted(critical)
    assert len(critical) > 20
    for code, rule in coded:
        assert (rule.labels["cause"].text, rule.labels["severity"].text) == (critical[code], "critical")


def test_every_rule_file_has_tests_without_alerts() -> None:
    assert [path.name for path in TESTS] == [path.name for path in FILES]
    assert all("silent" in path.read_text() for path in TESTS)


@EACH_ALERT
def test_an_alert_is_expected_somewhere_in_the_tests_of_its_file(rule: rulefile.AlertingRule) -> None:
    text = (RULES / "tests" / Path(rule.path).name).read_text()
    assert re.search(rf'alertname(?:="|: ){rule.name}\b', text), f"no test of {rule.name}"


SEEDS = {
    "GPUHardwareFailure", "GPUDoubleBitECC", "GPUOffline", "GPUOverheating", "GPUThermalThrottle", "GPUUnderutilized",
    "GPUMemoryLeak", "GPUMemoryPressure", "HighRetiredPages", "GPUIdleWastingMoney", "TrainingJobStalled",
}  # fmt: skip


def test_alerts_that_the_guides_name_keep_their_names() -> None:
    assert {rule.name for rule in ALERTS} >= SEEDS


@pytest.mark.slow
@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.stem)
def test_the_tests_of_a_file_hold_on_our_engine(path: Path) -> None:
    assert unit_tests.run_test_file(path) == []


@pytest.mark.servers
@pytest.mark.parametrize(("command", "paths"), [("check", FILES), ("test", TESTS)])
def test_promtool_has_the_same_result(command: str, paths: list[Path]) -> None:
    promtool = servers.require("promtool")
    ran = subprocess.run([promtool, command, "rules", *paths], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
