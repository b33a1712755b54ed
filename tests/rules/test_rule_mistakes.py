"""Rules that are valid and wrong are named with the reason and the rule to use; rules that are right have no remark."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from tests import servers
from watchkeeper.catalogue import metric_values, pack
from watchkeeper.cli.hub import rules
from watchkeeper.hub import rule_loops
from watchkeeper.query.promql import parser
from watchkeeper.rules import rule_mistakes, rulefile
from watchkeeper.rules.rule_expression import Mistake, RuleExpression

SHIPPED = rulefile.load_rules([rule_loops.SHIPPED_RULES]).rules
ROWS = pack.load(metric_values.FILE, dict)

WRONG = [
    # Guides write these.
    ("DCGM_FI_DEV_XID_ERRORS > 0", 60, "the code of the last Xid, not a count", "GPUHardwareFailure"),
    ("deriv(DCGM_FI_DEV_FB_USED[1h]) > 100", 7200, "cannot last for 2h", "GPUMemoryLeak"),
    ("DCGM_FI_DEV_GPU_TEMP > 95", 300, "too late or never", "GPUOverheating"),
    ("DCGM_FI_PROF_SM_ACTIVE < 20", 0, "always true: a ratio from 0 to 1", "GPUUnderutilized"),
    ("DCGM_FI_DEV_ECC_DBE_AGG_TOTAL > 0", 0, "the alert does not end", "GPUDoubleBitECC"),
    ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS > 0", 120, "a bit mask", "GPUThermalThrottle"),
    ("time() - timestamp(DCGM_FI_DEV_GPU_UTIL < 10) > 3600", 0, "the age is always 0", ""),
    ("DCGM_FI_DEV_GPU_UTIL < 5", 3600, "a GPU that no workload holds", "GPUIdleWastingMoney"),
    ("avg_over_time(DCGM_FI_DEV_GPU_UTIL[15m]) < 30", 1800, "no workload", "GPUIdleWastingMoney"),
    ("DCGM_FI_DEV_RETIRED_PAGES > 100", 0, "no such field", ""),
    # Their relatives: other metrics, spellings, scales and directions.
    ("max by (gpu) (max_over_time(dcgm_xid_errors[5m])) >= 1", 0, "the last Xid", "GPUHardwareFailure"),
    ("increase(DCGM_FI_DEV_XID_ERRORS[5m]) > 0", 0, "it is a gauge", "GPUHardwareFailure"),
    ("20 > avg by (pod) (DCGM_FI_PROF_DRAM_ACTIVE)", 0, "always true", ""),
    ("1 - DCGM_FI_PROF_GR_ENGINE_ACTIVE > 80", 0, "never true", ""),
    ('DCGM_FI_DEV_GPU_UTIL{pod!=""} / 100 < 30', 0, "always true: a ratio", "GPUIdleWastingMoney"),
    ("DCGM_FI_DEV_MEM_COPY_UTIL > 0.8", 0, "percent from 0 to 100", ""),
    ("DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE) > 90", 0, "never true: a ratio", ""),
    ("sum(DCGM_FI_DEV_FB_USED) / sum(DCGM_FI_DEV_FB_TOTAL) * 100 > 0.9", 0, "percent", ""),
    ("DCGM_FI_DEV_FB_USED > 70e9", 0, "MiB, not bytes", ""),
    ("DCGM_FI_DEV_POWER_USAGE > 400000", 0, "watts", ""),
    ("rate(DCGM_FI_DEV_THERMAL_VIOLATION[5m]) > 0.05", 0, "nanoseconds per second", "GPUThermalThrottle"),
    ("rate(DCGM_FI_DEV_THERMAL_VIOLATION[5m]) / 1e9 > 5", 0, "never true", "GPUThermalThrottle"),
    ("rate(DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL[5m]) > 1e9", 0, "it is a rate, not a counter", ""),
    ("deriv(DCGM_FI_DEV_FB_FREE[30m]) < -200", 3600, "cannot last for 1h", ""),
    ("DCGM_FI_DEV_GPU_TEMP * 9 / 5 + 32 > 200", 0, "too late", "GPUOverheating"),
    ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS != 0", 0, "a bit mask", "GPUThermalThrottle"),
    ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS == 64", 0, "another bit", "GPUThermalThrottle"),
    ("DCGM_FI_DEV_RETIRED_SBE + DCGM_FI_DEV_RETIRED_DBE > 100", 0, "64 at most", ""),
    ("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS > 0", 0, "a row that was repaired", "GPURowRemapFailure"),
    ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER > 100", 0, "the counter does not fall", "GPUPCIeReplays"),
    ("node_infiniband_symbol_error_total > 10", 0, "the counter does not fall", "InfiniBandSymbolErrors"),
    ("DCGM_FI_DEV_FABRIC_MANAGER_STATUS > 0", 0, "3 (success)", "FabricManagerDown"),
    ("DCGM_FI_DEV_SM_CLOCK < 1000", 0, "idle", "GPUClocksFallWithHeat"),
    ("vllm:gpu_cache_usage_perc > 90", 0, "never true", ""),
    ("training_last_step_timestamp_seconds > 600", 0, "always true: a time in seconds since 1970", ""),
    ("histogram_quantile(99, sum by (le) (rate(x_bucket[5m]))) > 2", 0, "a quantile is from 0 to 1", ""),
    ("DCGM_FI_DEV_XID_ERRORS > 0 unless DCGM_FI_DEV_XID_ERRORS == 31", 0, "13, 43, 45", "GPUHardwareFailure"),
    ("sum(DCGM_FI_PROF_SM_ACTIVE) / count(DCGM_FI_PROF_SM_ACTIVE) < 20", 0, "always true", "GPUUnderutilized"),
    ("count(DCGM_FI_DEV_GPU_UTIL > 10) / count(DCGM_FI_DEV_GPU_UTIL) > 80", 0, "never true: a ratio", ""),
    ("100 * DCGM_FI_DEV_FB_USED / DCGM_FI_DEV_FB_TOTAL > 0.95", 0, "percent", ""),
    ("DCGM_FI_DEV_GPU_TEMP_LIMIT > 85", 0, "the margin", ""),
    ("delta(DCGM_FI_DEV_FB_USED[1h]) > 500000", 0, "MiB, not bytes", ""),
    ("DCGM_EXP_CLOCK_EVENTS_COUNT > 0", 0, "idle", "GPUThermalThrottle"),
    ("histogram_quantile(0.99, sum by (model_name) (rate(x_bucket[5m]))) > 2", 0, "the label le is gone", ""),
    ("histogram_quantile(0.99, x_bucket) > 2", 0, "since the program started", ""),
    ("DCGM_FI_DEV_GPU_TEMP > bool 85", 0, "the alert always fires", ""),
    ("max by (gpu) (DCGM_FI_DEV_POWER_USAGE)", 0, "no comparison", ""),
]
RIGHT = [
    "DCGM_FI_DEV_GPU_TEMP > 85",
    "DCGM_FI_DEV_SLOWDOWN_TEMP - DCGM_FI_DEV_GPU_TEMP <= 5",
    "changes(DCGM_FI_DEV_XID_ERRORS[10m]) > 0 and DCGM_FI_DEV_XID_ERRORS != 13 and DCGM_FI_DEV_XID_ERRORS != 31",
    "DCGM_FI_DEV_XID_ERRORS == 79",
    "DCGM_FI_DEV_XID_ERRORS > 45 and DCGM_FI_DEV_XID_ERRORS < 60",
    'DCGM_EXP_CLOCK_EVENTS_COUNT{clock_event="hw_thermal_slowdown"} > 0',
    "100 * DCGM_FI_DEV_FB_USED / DCGM_FI_DEV_FB_TOTAL > 95",
    "100 * DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE) > 95",
    "DCGM_FI_DEV_FB_USED / DCGM_FI_DEV_FB_TOTAL * 100 > 95",
    "(DCGM_FI_DEV_FB_USED * 1024 * 1024) / nvidia_smi_memory_total_bytes > 0.95",
    "sum(DCGM_FI_DEV_GPU_UTIL) / count(DCGM_FI_DEV_GPU_UTIL) < 20",
    'DCGM_FI_DEV_XID_ERRORS{err_code=~"48|79"} > 0',
    "increase(DCGM_FI_DEV_ECC_DBE_VOL_TOTAL[5m]) > 0",
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL > 0",
    "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL - DCGM_FI_DEV_ECC_DBE_AGG_TOTAL offset 1h > 0",
    "DCGM_FI_DEV_ROW_REMAP_FAILURE > 0",
    "DCGM_FI_DEV_RETIRED_PENDING == 1",
    "floor(DCGM_FI_DEV_CLOCKS_EVENT_REASONS / 64) % 2 == 1",
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS % 128 >= 64",
    "rate(DCGM_FI_DEV_THERMAL_VIOLATION[5m]) / 1e9 > 0.05",
    "rate(DCGM_FI_DEV_THERMAL_VIOLATION[5m]) / 1e9 * 100 > 5",
    'avg_over_time(DCGM_FI_DEV_GPU_UTIL{pod!=""}[1h]) < 5',
    'avg_over_time(DCGM_FI_PROF_SM_ACTIVE{exported_pod!=""}[1h]) * 100 < 5',
    "DCGM_FI_DEV_GPU_UTIL < 5 and DCGM_FI_DEV_FB_USED > 1024",
    "avg by (cluster) (DCGM_FI_DEV_GPU_UTIL) < 20",
    "count(DCGM_FI_DEV_GPU_UTIL < 5) > 100",
    "DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE) * 100 > 90",
    "DCGM_FI_DEV_FB_USED / DCGM_FI_DEV_FB_TOTAL > 0.95",
    'deriv(DCGM_FI_DEV_FB_USED{pod!=""}[1h]) * 3600 > 1024',
    "predict_linear(DCGM_FI_DEV_FB_FREE[1h], 3600) < 0",
    "DCGM_FI_DEV_POWER_USAGE / DCGM_FI_DEV_ENFORCED_POWER_LIMIT > 0.98",
    "rate(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION[5m]) / 1000 > 650",
    "DCGM_FI_PROF_PCIE_TX_BYTES > 25e9",
    "DCGM_FI_DEV_PCIE_LINK_WIDTH < 16",
    "time() - timestamp(DCGM_FI_DEV_GPU_TEMP) > 300",
    "time() - max_over_time(timestamp(DCGM_FI_DEV_GPU_UTIL > 10)[1d:1m]) > 3600",
    "time() - training_last_step_timestamp_seconds > 600",
    'up{job="dcgm-exporter"} == 0',
    "absent(DCGM_FI_DEV_GPU_TEMP)",
    'kube_node_status_condition{condition="Ready",status="true"} == 0',
    'sum by (model_name) (rate(x_total{code=~"5.."}[5m])) / sum by (model_name) (rate(x_total[5m])) > 0.05',
    "histogram_quantile(0.99, sum by (le) (rate(x_bucket[5m]))) > 2",
    "increase(node_infiniband_link_downed_total[10m]) > 0",
    "kube_pod_container_status_restarts_total - kube_pod_container_status_restarts_total offset 10m > 3",
    "node_memory_MemAvailable_bytes / node_memory_MemTotal_bytes * 100 < 10",
    "some_total > 5",
]
FILE = """\
groups:
  - name: g
    rules:
      - {alert: Broken, expr: "time() - time() offset 1h"}
      - {record: "gpu:active", expr: "avg by (gpu) (DCGM_FI_PROF_SM_ACTIVE)"}
      - {alert: ByName, expr: "gpu:active < 20"}
      - {alert: Right, expr: "DCGM_FI_DEV_ROW_REMAP_FAILURE == 1"}
"""
# A healthy GPU for three hours, with an old Xid 31 of a job and old errors; an alert that fires there is wrong.
HEALTHY = """\
DCGM_FI_DEV_XID_ERRORS 31x200
DCGM_FI_PROF_SM_ACTIVE 1x200
DCGM_FI_DEV_CLOCKS_EVENT_REASONS 4x200
DCGM_FI_DEV_ECC_DBE_AGG_TOTAL 3x200
DCGM_FI_DEV_ECC_DBE_VOL_TOTAL 0x200
DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS 1x200
DCGM_FI_DEV_PCIE_REPLAY_COUNTER 200x200
DCGM_FI_DEV_FABRIC_MANAGER_STATUS 3x200
DCGM_FI_DEV_GPU_UTIL 0x200
"""
MISFIRES = [
    "DCGM_FI_DEV_XID_ERRORS > 0",
    "DCGM_FI_PROF_SM_ACTIVE < 20",
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS > 0",
    "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL > 0",
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS > 0",
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER > 100",
    "DCGM_FI_DEV_FABRIC_MANAGER_STATUS > 0",
    "DCGM_FI_DEV_GPU_UTIL < 5",
    "DCGM_FI_DEV_GPU_UTIL > bool 90",
]


def mistakes(expr: str, hold_seconds: float = 0.0, *, is_alert: bool = True) -> tuple[Mistake, ...]:
    return rule_mistakes.find_mistakes(RuleExpression(parser.parse(expr), is_alert, hold_seconds))


@pytest.mark.parametrize(("expr", "hold_seconds", "why", "alert"), WRONG)
def test_a_wrong_rule_has_one_reason_and_the_alert_to_use(expr: str, hold_seconds: int, why: str, alert: str) -> None:
    (mistake,) = mistakes(expr, hold_seconds)
    assert why in mistake.lines[0]
    assert mistake.alert == alert


@pytest.mark.parametrize("expr", RIGHT)
def test_a_right_rule_has_no_remark(expr: str) -> None:
    assert mistakes(expr, 600) == ()


def test_no_shipped_rule_has_a_mistake() -> None:
    recorded = rule_mistakes.recorded_expressions(SHIPPED)
    assert len(SHIPPED) > 250
    assert [mistake.lines for rule in SHIPPED for mistake in rule_mistakes.check_rule(rule, recorded)] == []


def test_what_is_normal_on_a_panel_is_wrong_only_as_an_alert() -> None:
    for expr in ("DCGM_FI_DEV_XID_ERRORS > 0", "DCGM_FI_DEV_GPU_UTIL < 5", "DCGM_FI_DEV_GPU_TEMP"):
        assert mistakes(expr, is_alert=False) == ()
        assert mistakes(expr)
    assert mistakes("DCGM_FI_PROF_SM_ACTIVE < 20", is_alert=False)


@pytest.mark.parametrize("row", [row for row in ROWS if row["alert"] or row["instead"]], ids=lambda row: row["metric"])
def test_what_the_table_names_instead_exists_and_is_right(row: dict[str, str]) -> None:
    assert row["alert"] in {rule.name for rule in SHIPPED}
    if row["instead"]:
        assert mistakes(row["instead"], 600) == ()


def test_rules_that_record_their_own_input_are_read_once() -> None:
    chain = {f"r{at}": parser.parse(f"r{at + 1} + r{at + 1}") for at in range(60)}
    recorded = {**chain, "r60": parser.parse("r60 + DCGM_FI_PROF_SM_ACTIVE"), "own": parser.parse("own * own")}
    for expr in ("r0 > 20", "own > 20"):
        assert rule_mistakes.find_mistakes(RuleExpression(parser.parse(expr), True, 0.0, recorded)) == ()


def test_the_temperatures_are_those_of_the_gpu_models() -> None:
    models = pack.load("gpu_models.csv", dict)
    row = metric_values.lookup("DCGM_FI_DEV_GPU_TEMP")
    assert row is not None
    assert row.too_late == min(float(model["slowdown_celsius"]) for model in models)
    for model in models:
        assert model["shutdown_celsius"] in row.what


def checked(path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(rules.command, ["check", str(path), *arguments])


def test_one_invalid_rule_does_not_hide_the_mistakes_of_the_others(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(FILE)
    printed = checked(tmp_path / "r.yaml")
    assert printed.exit_code == 1
    assert "r.yaml:4: alert Broken: column 48: offset modifier must be preceded by" in printed.output
    assert "r.yaml:6: ByName: gpu:active < 20: always true: a ratio from 0 to 1" in printed.output
    assert "use the shipped alert GPUUnderutilized or gpu:active < 0.2" in printed.output
    assert "Right" not in printed.output


def test_a_valid_file_with_a_mistake_loads_and_fails_the_check(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(FILE.replace("time() - time() offset 1h", "up == 0"))
    printed = checked(tmp_path / "r.yaml", "--json")
    plain = json.loads(printed.output)
    assert (printed.exit_code, plain["ok"], plain["loads"], plain["rules"]) == (1, False, True, 4)
    (problem,) = plain["problems"]
    assert (problem["line"], problem["kind"], problem["rule"]) == (6, "mistake", "ByName")
    assert (problem["alert"], problem["instead"]) == ("GPUUnderutilized", "gpu:active < 0.2")


def promtool_fires(tmp_path: Path, exprs: list[str], series: str, hold: str = "10m") -> dict[str, bool]:
    """What Prometheus' own tool says about each alert after three hours of these series."""
    alerts = [{"alert": f"A{at}", "expr": expr, "for": hold} for at, expr in enumerate(exprs)]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": alerts}]}))
    inputs = [dict(zip(("series", "values"), line.split(" ", 1), strict=True)) for line in series.splitlines()]
    fires = {}
    for at, expr in enumerate(exprs):
        query = f'count(ALERTS{{alertname="A{at}",alertstate="firing"}})'
        test = {"interval": "1m", "input_series": inputs}
        test["promql_expr_test"] = [{"expr": query, "eval_time": "3h", "exp_samples": []}]
        path = tmp_path / "test.yaml"
        path.write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [test]}))
        tool = [str(servers.require("promtool")), "test", "rules", str(path)]
        fires[expr] = subprocess.run(tool, capture_output=True, check=False).returncode != 0
    return fires


def test_promtool_fires_the_wrong_rules_on_a_healthy_gpu_and_not_the_ones_to_use(tmp_path: Path) -> None:
    assert all(promtool_fires(tmp_path, MISFIRES, HEALTHY).values())
    found = [mistake for expr in MISFIRES for mistake in mistakes(expr)]
    assert len(found) == len(MISFIRES)
    instead = [mistake.instead for mistake in found if mistake.instead]
    assert len(instead) > 4
    assert not any(promtool_fires(tmp_path, instead, HEALTHY).values())


def test_promtool_never_fires_what_is_never_true(tmp_path: Path) -> None:
    # Memory of 288 GB that fills evenly within three hours, and a GPU that is idle all the time.
    faulty = "DCGM_FI_DEV_FB_USED 0+1600x184\nDCGM_FI_DEV_GPU_UTIL 0x200\n"
    never = ["deriv(DCGM_FI_DEV_FB_USED[1h]) > 100", "time() - timestamp(DCGM_FI_DEV_GPU_UTIL < 10) > 600"]
    assert not any(promtool_fires(tmp_path, never, faulty, "2h").values())
    leak, idle = (mistakes(expr, 7200)[0] for expr in never)
    hours = idle.instead.partition(" for the hours")[0]
    use = [leak.instead.replace('{pod!=""}', ""), f"{hours} > 2"]
    assert all(promtool_fires(tmp_path, use, faulty, "30m").values())
