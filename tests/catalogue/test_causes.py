"""Causes have words that people say, and families in which signals of one fault meet."""

from __future__ import annotations

import pytest

from watchkeeper.catalogue import causes, pack, tables
from watchkeeper.errors import PackError
from watchkeeper.model import alerts


def test_every_cause_is_there_once_with_complete_sentences() -> None:
    rows = causes.all_causes()
    assert len({row.cause for row in rows}) == len(rows) == 73
    for row in rows:
        assert row.why.endswith("."), row.cause
        assert row.next_step.endswith("."), row.cause
        assert not row.title.endswith("."), row.cause


def test_a_lost_gpu_and_a_missing_one_meet_in_one_family() -> None:
    assert causes.lookup("gpu_fell_off_bus").family == causes.lookup("gpu_missing").family == "gpu_lost"


@pytest.mark.parametrize(
    ("cause", "severity", "scope"),
    [
        ("gpu_fell_off_bus", "critical", "gpu"),
        ("ecc_uncorrectable", "critical", "gpu"),
        ("app_illegal_access", "warning", "workload"),
        ("cooling_failure", "critical", "node"),
        ("gpu_missing", "critical", "gpu"),
        ("gpu_idle_waste", "info", "gpu"),
    ],
)
def test_the_causes_of_the_scenarios_have_their_severity_and_scope(cause: str, severity: str, scope: str) -> None:
    row = causes.lookup(cause)
    assert (row.severity, row.scope) == (alerts.Severity(severity), scope)


def test_a_headline_names_the_place_and_advice_the_node() -> None:
    row = causes.lookup("gpu_fell_off_bus")
    assert row.headline("GPU 3 of n7", "n7") == "GPU 3 of n7 fell off the bus"
    assert row.advice("GPU 3 of n7", "n7").startswith("Cordon and drain n7, then reboot it")
    assert causes.lookup("cooling_failure").headline("n7") == "Cooling of n7 has failed"


def test_every_template_can_be_filled() -> None:
    for row in causes.all_causes():
        assert "{" not in row.headline("p", "n") + row.advice("p", "n")


def test_an_unshipped_cause_is_the_unknown_one() -> None:
    assert causes.lookup("gremlins").cause == "unknown"


def test_a_template_with_a_stray_placeholder_is_named_with_its_line() -> None:
    text = "cause,family,severity,scope,title,why,next_step,runbook\nx,f,info,gpu,{gpu} is ill,w.,n.,r\n"
    with pytest.raises(PackError, match="unknown placeholder gpu") as caught:
        pack.read(text, causes.read_row, file="causes.csv")
    assert caught.value.where == "packs/causes.csv:2"


def test_the_driver_s_own_wish_is_found_by_its_words() -> None:
    reset = tables.find_recovery_action("gpu reset required ")
    assert reset is not None
    assert (reset.value, reset.action, reset.needs_drain) == (1, "reset_gpu", True)
    assert tables.find_recovery_action("") is None
