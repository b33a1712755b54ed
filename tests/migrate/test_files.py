"""`watchkeeper migrate`: files and folders in, one verdict for each line, rule and panel out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from watchkeeper.cli.doctor import migrate
from watchkeeper.hub import rule_loops
from watchkeeper.migrate import files
from watchkeeper.migrate.expression import Compatibility
from watchkeeper.migrate.files import MigrationVerdict
from watchkeeper.readers import grafana_dashboard
from watchkeeper.rules import rulefile

RULES = """
groups:
  - name: theirs
    rules:
      - record: gpu:busy
        expr: avg by (gpu) (DCGM_FI_DEV_GPU_UTIL)
      - alert: GPUDoubleBitECC
        expr: DCGM_FI_DEV_ECC_DBE_VOL_TOTAL > 0
"""
DASHBOARD = {
    "title": "GPUs",
    "templating": {"list": [{"name": "node", "type": "query", "query": "label_values(node_load1, instance)"}]},
    "panels": [
        {"title": "Busy", "targets": [{"expr": 'gpu:busy{gpu="$gpu"}'}, {"expr": "rate(DCGM_FI_DEV_GPU_TEMP[$x])"}]},
        {"type": "row", "panels": [{"title": "Deep", "targets": [{"expr": "DCGM_FI_DEV_NONSENSE"}]}]},
        {"title": "SQL", "datasource": {"type": "mysql"}, "targets": [{"rawSql": "select 1"}]},
    ],
}


def judged(*paths: Path) -> dict[str, MigrationVerdict]:
    found = files.judge_files(paths, rulefile.load_rules([rule_loops.SHIPPED_RULES]))
    return {
        f"{verdict.where.partition(' / ')[2] or verdict.where}|{verdict.subject[:20]}": verdict for verdict in found
    }


def ran(*arguments: str | Path) -> Result:
    return CliRunner().invoke(migrate.command, [str(part) for part in arguments])


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    (tmp_path / "rules.yaml").write_text(RULES)
    (tmp_path / "dashboard.json").write_text(json.dumps(DASHBOARD))
    (tmp_path / "counters.csv").write_text(
        "# theirs\nDCGM_FI_DEV_GPU_TEMP, gauge, t\nDCGM_FI_DEV_NOT_A_FIELD, gauge, t\nDCGM_FI_DEV_GPU_UTIL, gauge\n"
    )
    return tmp_path


def test_a_folder_is_read_whole_and_dashboards_know_what_its_rules_record(theirs: Path) -> None:
    found = judged(theirs)
    assert found['Busy|gpu:busy{gpu="$gpu"}'[:25]].compatibility is Compatibility.WORKS
    assert found["Busy|rate(DCGM_FI_DEV_GPU"[:25]].compatibility is Compatibility.CHANGES
    assert found["Deep|DCGM_FI_DEV_NONSENSE"].compatibility is Compatibility.CANNOT
    assert found["SQL|mysql"].why == ("it queries mysql, not Prometheus",)
    assert found["variable node|node_load1"].compatibility is Compatibility.NEEDS


def test_each_line_of_a_counters_file_has_its_verdict(theirs: Path) -> None:
    found = judged(theirs / "counters.csv")
    assert found["line 2|DCGM_FI_DEV_GPU_TEMP"].compatibility is Compatibility.WORKS
    assert "keep dcgm-exporter" in found["line 3|DCGM_FI_DEV_NOT_A_FI"].why[0]
    assert found["line 4|DCGM_FI_DEV_GPU_UTIL"].compatibility is Compatibility.CANNOT


def test_a_rule_with_the_name_of_a_shipped_one_is_said(theirs: Path) -> None:
    rule = judged(theirs / "rules.yaml")["line 7|GPUDoubleBitECC"]
    assert "a shipped rule has the same name: remove one of them" in rule.why


def test_rules_of_the_operator_are_read_and_other_files_of_a_folder_are_passed_over(tmp_path: Path) -> None:
    group = {"name": "g", "rules": [{"alert": "Hot", "expr": "DCGM_FI_DEV_GPU_TEMP_CELSIUS > 85"}]}
    rule = {"kind": "PrometheusRule", "metadata": {"name": "gpu"}, "spec": {"groups": [group]}}
    (tmp_path / "rule.yaml").write_text(yaml.safe_dump_all([{"kind": "Service"}, rule]))
    (tmp_path / "alertmanager.yml").write_text("route: {}\n")
    (tmp_path / "package.json").write_text("{}\n")
    found = judged(tmp_path)
    assert list(found) == ["|Hot"]
    assert found["|Hot"].why[0] == "DCGM_FI_DEV_GPU_TEMP_CELSIUS: write DCGM_FI_DEV_GPU_TEMP"
    named = judged(tmp_path / "alertmanager.yml")["|alertmanager.yml"]
    assert named.why == ("contains neither rule groups nor a PrometheusRule",)


def test_one_broken_file_costs_no_other(theirs: Path) -> None:
    (theirs / "broken.yaml").write_text("groups: [{name: a, rules: [{alert: X, expr: 'sum('}]}]\n")
    (theirs / "broken.json").write_text("{")
    found = judged(theirs)
    assert found["line 1|rule file"].compatibility is Compatibility.CANNOT
    assert found["|broken.json"].why[0].startswith("not a dashboard: not JSON")
    assert len(found) == 12


def test_one_invalid_rule_does_not_hide_the_verdicts_of_the_others(tmp_path: Path) -> None:
    rules = [
        {"record": "gpu:xid", "expr": "max by (gpu) (DCGM_FI_DEV_XID_ERRORS)"},
        {"alert": "Broken", "expr": "time() - time() offset 1h"},
        {"alert": "Xid", "expr": "gpu:xid > 0"},
    ]
    (tmp_path / "r.yaml").write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": rules}]}))
    printed = ran(tmp_path)
    assert printed.exit_code == 1
    assert printed.output.count("r.yaml") == 1
    assert "alert Broken: column" in printed.output
    assert "use the shipped alert GPUHardwareFailure" in printed.output
    plain = json.loads(ran(tmp_path, "--json").output)
    assert plain["counts"] == {"works": 1, "needs": 0, "changes": 1, "cannot": 1}
    (mistake,) = next(verdict["mistakes"] for verdict in plain["verdicts"] if verdict["subject"] == "Xid")
    assert (mistake["part"], mistake["alert"]) == ("gpu:xid > 0", "GPUHardwareFailure")


def test_a_share_of_the_total_memory_works_and_says_what_the_total_includes(tmp_path: Path) -> None:
    rules = [{"alert": "Full", "expr": "DCGM_FI_DEV_FB_USED / DCGM_FI_DEV_FB_TOTAL > 0.9"}]
    (tmp_path / "r.yaml").write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": rules}]}))
    ((compatibility, why),) = [(verdict.compatibility, verdict.why) for verdict in judged(tmp_path).values()]
    assert compatibility is Compatibility.WORKS
    assert "with what the driver reserves" in why[0]
    assert "neither list that dcgm-exporter ships" in why[0]


@pytest.mark.parametrize(
    ("expr", "standing"),
    [
        ("DCGM_FI_PROF_SM_ACTIVE > $limit", Compatibility.WORKS),
        ("DCGM_FI_PROF_SM_ACTIVE * ${scale:raw} > bool 20", Compatibility.WORKS),
        ('DCGM_FI_PROF_SM_ACTIVE{gpu=~"$gpu"} > 20', Compatibility.CHANGES),
        ("DCGM_FI_DEV_XID_ERRORS > 0", Compatibility.WORKS),
    ],
)
def test_a_threshold_of_a_panel_is_judged_unless_it_is_a_variable(
    tmp_path: Path, expr: str, standing: Compatibility
) -> None:
    board = {"title": "GPUs", "panels": [{"title": "Busy", "targets": [{"expr": expr}]}]}
    (tmp_path / "d.json").write_text(json.dumps(board))
    assert [verdict.compatibility for verdict in judged(tmp_path).values()] == [standing]


def test_the_exit_code_says_whether_there_is_work_to_do(theirs: Path) -> None:
    printed = ran(theirs)
    assert printed.exit_code == 1
    assert "  changes  GPUs / Busy: rate(DCGM_FI_DEV_GPU_TEMP[$x])" in printed.output
    plain = json.loads(ran(theirs / "rules.yaml", "--json").output)
    assert plain["counts"] == {"works": 2, "needs": 0, "changes": 0, "cannot": 0}
    assert ran(theirs / "rules.yaml").exit_code == 0


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ('up{job="$job"}', 'up{job=~".*"}'),
        ("rate(x[$__rate_interval])", "rate(x[5m])"),
        ("sum by (a, $group) (x)", "sum by (a) (x)"),
        ("x > $limit", "x > 1"),
        ('y{a!="${v:regex}"} offset $o', 'y{a!~"nothing"} offset 5m'),
    ],
)
def test_variables_of_grafana_become_what_a_first_look_would_send(theirs: str, ours: str) -> None:
    assert grafana_dashboard.fill_variables(theirs) == ours


def test_nothing_that_is_shipped_is_impossible_here() -> None:
    found = files.judge_files([rule_loops.SHIPPED_RULES], rulefile.RuleSet())
    assert len(found) > 100
    assert not [verdict for verdict in found if verdict.compatibility is Compatibility.CANNOT]
