"""The policy: every cause has an answer, and a file with mistakes is refused with their keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from watchkeeper.catalogue import causes
from watchkeeper.errors import SettingsError
from watchkeeper.model.actions import ActionKind
from watchkeeper.remediate.policy import HARDWARE_ACTIONS, add_checks, load, parse

INSPECT = '[cause.cooling_failure]\nsteps = [{ action = "inspect", why = "x" }]\n'
UNKNOWN = '[cause.unknown]\nsteps = [{ action = "inspect", why = "look" }]\n'


def kinds(cause: str) -> list[str]:
    return [step.action for step in load().steps(cause)]


def test_the_shipped_policy_answers_every_cause() -> None:
    assert set(load().cause) == {row.cause for row in causes.all_causes()}


@pytest.mark.parametrize(
    ("cause", "expected"),
    [
        ("gpu_fell_off_bus", ["cordon", "drain", "reboot", "validate", "uncordon"]),
        ("ecc_uncorrectable", ["cordon", "drain", "reset_gpu", "validate", "uncordon"]),
        ("app_illegal_access", ["restart_app", "notify_owner"]),
        ("cooling_failure", ["cordon", "drain", "inspect"]),
        ("gpu_missing", ["inspect", "cordon"]),
        ("gpu_idle_waste", ["notify_owner"]),
        ("nobody_knows_this", ["inspect"]),
    ],
)
def test_the_scenarios_of_this_release_get_the_right_steps(cause: str, expected: list[str]) -> None:
    assert kinds(cause) == expected


def test_a_fault_of_a_workload_never_leads_to_an_action_on_hardware() -> None:
    workload = [row.cause for row in causes.all_causes() if row.scope == "workload"]
    assert not {step.action for cause in workload for step in load().steps(cause)} & HARDWARE_ACTIONS


def test_every_node_that_is_given_back_was_validated_first() -> None:
    for cause, entry in load().cause.items():
        actions = [step.action for step in entry.steps]
        if ActionKind.UNCORDON in actions:
            assert actions[-2:] == [ActionKind.VALIDATE, ActionKind.UNCORDON], cause


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            '[cause.unknown]\nsteps = [{ action = "explode", why = "no" }]',
            r"cause.unknown.steps\[0\].action: expected one",
        ),
        (UNKNOWN + '[cause.nonsense]\nsteps = [{ action = "inspect", why = "x" }]', "cause.nonsense: unknown cause"),
        (UNKNOWN + "[cause.power_cap]\nsteps = []", "cause.power_cap.steps: is empty"),
        ('[cause.power_cap]\nsteps = [{ action = "inspect", why = "x" }]', "cause.unknown: is missing"),
        (
            UNKNOWN + '[cause.cuda_oom]\nsteps = [{ action = "reboot", why = "x" }]',
            "cause.cuda_oom.steps: reboot needs a hardware fault",
        ),
        ("[cause", "not TOML"),
    ],
)
def test_a_mistake_names_file_and_key(text: str, problem: str) -> None:
    with pytest.raises(SettingsError, match=problem) as caught:
        parse(text, where="mine.toml")
    assert str(caught.value).startswith("mine.toml: ")


def test_a_policy_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"absent.toml: cannot read the policy"):
        load(tmp_path / "absent.toml")


MINE = """
[limits]
drain = "2h"

[cause.gsp_timeout]
hardware = false
steps = [{ action = "cordon", why = "ours", limit = "30s" }, { action = "inspect", why = "look" }]

[pool.lab.cause.gpu_fell_off_bus]
steps = [{ action = "inspect", why = "the lab needs no repair" }]
"""


def test_a_file_of_ones_own_replaces_what_it_names_and_leaves_the_rest(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(MINE)
    mine = load(tmp_path / "mine.toml")
    assert [step.action for step in mine.steps("gsp_timeout")] == ["cordon", "inspect"]
    assert mine.entry("gpu_fell_off_bus", "lab")[0] == "pool.lab.cause.gpu_fell_off_bus"
    assert mine.steps("gpu_fell_off_bus", "prod") == load().steps("gpu_fell_off_bus")
    assert (mine.is_hardware("gsp_timeout"), mine.is_hardware("gpu_fell_off_bus")) == (False, True)
    limits = [mine.limit_seconds(step) for step in mine.steps("gsp_timeout")[:1] + mine.steps("ecc_uncorrectable")[1:2]]
    assert limits == [30.0, 7200.0]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[limits]\nexplode = "1m"', "limits.explode: unknown action"),
        ('[limits]\ndrain = "5"', "limits.drain: `5` has no unit"),
        ('[pool.lab.cause.nonsense]\nsteps = [{ action = "inspect", why = "x" }]', "pool.lab.cause.nonsense: unknown"),
        (
            '[cause.power_cap]\nsteps = [{ action = "cordon", why = "x", arguments = { loud = "1" } }]',
            r"cause.power_cap.steps\[0\].arguments: cordon has no loud; allowed: none",
        ),
        (
            '[cause.power_cap]\nsteps = [{ action = "validate", why = "x", checks = ["magic"] }]',
            r"steps\[0\].checks: unknown check magic; use gpus_present",
        ),
        (
            '[cause.power_cap]\nsteps = [{ action = "cordon", why = "x" }, { action = "uncordon", why = "y" }]',
            "an uncordon without a validate",
        ),
        (
            '[cause.gsp_timeout]\nsteps = [{ action = "drain", why = "x" }]',
            r"cause.gsp_timeout.steps\[0\]: drains a node that still accepts new workloads",
        ),
    ],
)
def test_a_mistake_in_a_file_of_ones_own_names_its_key(text: str, problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        parse(text, where="mine.toml", base=load())


@pytest.mark.parametrize(
    ("action", "problem"),
    [("drain", "drains nodes that still accept new workloads"), ("reboot", "reboot is not for every node of a domain")],
)
def test_a_rack_takes_only_steps_that_can_be_undone(action: str, problem: str) -> None:
    text = INSPECT + f'domain_steps = [{{ action = "{action}", why = "x" }}]'
    with pytest.raises(SettingsError, match=rf"cause.cooling_failure.domain_steps\[0\]: {problem}"):
        parse(text, where="mine.toml", base=load())


def test_every_shipped_step_has_a_time_and_known_checks() -> None:
    shipped = load()
    for entry in shipped.cause.values():
        for step in entry.steps:
            if step.action is ActionKind.VALIDATE:
                assert step.checks
            assert shipped.limit_seconds(step) >= 60


def test_checks_of_the_node_are_added_to_each_validation_and_full_load_only_after_hardware() -> None:
    text = UNKNOWN + '[cause.gpu_missing]\nhardware = false\nsteps = [{ action = "validate", why = "v" }]\n'
    more = add_checks(parse(text, where="own", base=load()), ("scan", "diag_3"))
    checks = {
        cause: step.checks
        for cause in ("gpu_fell_off_bus", "gpu_missing")
        for step in more.steps(cause)
        if step.action is ActionKind.VALIDATE
    }
    own = ("gpus_present", "conditions_clear", "no_new_xid")
    assert checks == {"gpu_fell_off_bus": (*own, "scan", "diag_3"), "gpu_missing": (*own, "scan")}
    assert add_checks(load(), ()) == load()
    with pytest.raises(SettingsError, match=r"remediate.node_checks: unknown check melt; use scan, diag_2, diag_3"):
        add_checks(load(), ("melt",))
