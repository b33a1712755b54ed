"""`watchkeeper agent policy`: limits of DCGM's policies on this node."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from watchkeeper.agent.gpus import policies, policy_limits
from watchkeeper.agent.gpus.gpu_samples import GpuSample
from watchkeeper.cli.main import watchkeeper
from watchkeeper.readers.nvml.families import Cadence


def ran(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(watchkeeper, ["agent", "policy", *arguments, "--spool", str(folder)])


def listed(folder: Path) -> dict[str, dict[str, object]]:
    return {row["name"]: row for row in json.loads(ran(folder, "list", "--json").stdout)["policies"]}


def violated(watch: policies.PolicyWatch, at: float, **values: float) -> list[str]:
    gpu = GpuSample(0, {"uuid": "GPU-1"}, {Cadence.FAST: at}, values)
    return [violation.policy.name for violation in watch.find_violations([gpu], at)]


def test_the_list_has_dcgms_seven_conditions(tmp_path: Path) -> None:
    rows = listed(tmp_path).values()
    # dcgm_structs.h of DCGM 4.6: DCGM_POLICY_COND_DBE 0x1 to DCGM_POLICY_COND_XID 0x40.
    assert {row["dcgm_bit"] for row in rows} == {0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40}
    assert not any(row["is_set"] for row in rows)


def test_a_limit_that_was_set_applies_to_a_running_watch(tmp_path: Path) -> None:
    limits = policy_limits.PolicyLimitsWatch(policy_limits.PolicyLimits(tmp_path))
    watch = policies.PolicyWatch(limits.read_changes() or ())
    hot = {"DCGM_FI_DEV_GPU_TEMP": 86.0, "watchkeeper_gpu_slowdown_margin_celsius": 4.0, "DCGM_FI_DEV_POWER_USAGE": 650}
    assert violated(watch, 0.0, **hot) == []
    for name, limit in (("thermal", "85"), ("power", "600")):
        assert ran(tmp_path, "set", name, limit).exit_code == 0
    watch.replace_policies(limits.read_changes() or ())
    assert violated(watch, 0.0, **hot) == ["thermal", "power"]
    assert limits.read_changes() is None
    assert ran(tmp_path, "reset", "thermal").exit_code == 0
    watch.replace_policies(limits.read_changes() or ())
    assert violated(watch, 0.0, **hot) == ["power"]


def test_a_counter_keeps_its_window_when_its_limit_changes(tmp_path: Path) -> None:
    limits, name = policy_limits.PolicyLimits(tmp_path), "DCGM_FI_DEV_PCIE_REPLAY_COUNTER"
    watch = policies.PolicyWatch(limits.policies())
    assert violated(watch, 0.0, **{name: 100.0}) == []
    ran(tmp_path, "set", "pcie", "5")
    watch.replace_policies(limits.policies())
    assert violated(watch, 30.0, **{name: 106.0}) == ["pcie"]


def test_a_policy_that_is_off_reports_nothing(tmp_path: Path) -> None:
    assert "nvlink: off" in ran(tmp_path, "set", "nvlink", "off").stdout
    row = listed(tmp_path)["nvlink"]
    assert (row["is_on"], row["is_set"], row["limit"]) == (False, True, None)
    watch = policies.PolicyWatch(policy_limits.PolicyLimits(tmp_path).policies())
    for at, errors in enumerate((0.0, 50.0)):
        assert violated(watch, float(at), watchkeeper_gpu_nvlink_errors_total=errors) == []


@pytest.mark.parametrize(
    ("name", "limit", "problem"),
    [
        ("thermal", "850", "thermal accepts 30 to 110 °C, not 850"),
        ("max_pages", "65", "max_pages accepts 1 to 64"),
        ("xid", "5", "xid has no limit"),
        ("xid", "off", "xid cannot be off"),
        ("temperature", "85", "no policy temperature; use one of dbe, pcie"),
        ("power", "inf", "is neither a number nor `off`"),
        ("power", "600W", "is neither a number nor `off`"),
    ],
)
def test_an_impossible_limit_is_refused_and_changes_nothing(
    tmp_path: Path, name: str, limit: str, problem: str
) -> None:
    ran(tmp_path, "set", "dbe", "2")
    refused = ran(tmp_path, "set", name, limit)
    assert (refused.exit_code, problem in refused.stderr) == (2, True), refused.stderr
    assert [row["name"] for row in listed(tmp_path).values() if row["is_set"]] == ["dbe"]


def test_a_damaged_file_keeps_the_limits_of_a_running_watch_and_can_be_reset(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    limits = policy_limits.PolicyLimitsWatch(policy_limits.PolicyLimits(tmp_path))
    limits.read_changes()
    (tmp_path / policy_limits.FILE).write_text('{"thermal": 85')
    assert (limits.read_changes(), limits.read_changes()) == (None, None)
    assert [record.message for record in caplog.records] == ["policy limits unreadable"]
    assert ran(tmp_path, "list").exit_code != 0
    assert ran(tmp_path, "reset").exit_code == 0
    assert listed(tmp_path)["thermal"]["is_set"] is False
