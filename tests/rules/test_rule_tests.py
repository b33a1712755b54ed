"""promtool's test format on our engine: notation, expectations that fail, and the two commands."""

from __future__ import annotations

import math
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests import servers
from watchkeeper.cli.hub import rules
from watchkeeper.errors import QueryError, RuleFileError
from watchkeeper.model.labels import Labels
from watchkeeper.model.samples import is_stale
from watchkeeper.rules import series_notation, unit_tests

RULES = """\
groups:
  - name: g
    rules:
      - {alert: Hot, expr: celsius > 90, for: 2m, labels: {severity: warning}, annotations: {summary: "{{ $value }}"}}
      - {record: "double", expr: celsius * 2}
"""
STORY = """\
rule_files: [rules.yaml]
evaluation_interval: 1m
tests:
  - name: a hot node
    interval: 1m
    input_series: [{series: 'celsius{node="n1"}', values: '80 95x5'}]
    alert_rule_test:
      - {eval_time: 2m, alertname: Hot, exp_alerts: }
      - eval_time: 3m
        alertname: Hot
        exp_alerts: [{exp_labels: {node: n1, severity: warning}, exp_annotations: {summary: "95"}}]
    promql_expr_test:
      - {expr: double, eval_time: 90s, exp_samples: [{labels: 'double{node="n1"}', value: 190}]}
"""


@pytest.fixture
def story(tmp_path: Path) -> Path:
    (tmp_path / "rules.yaml").write_text(RULES)
    (tmp_path / "test.yaml").write_text(STORY)
    return tmp_path / "test.yaml"


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1 2.5 -3", [1, 2.5, -3]),
        ("1x2", [1, 1, 1]),
        ("0x2", [0, 0, 0]),
        ("0+10x3", [0, 10, 20, 30]),
        ("10-2x2", [10, 8, 6]),
        ("-1-1x1", [-1, -2]),
        ("_ 1 _x2", [None, 1, None, None]),
        ("1e3 Inf -Inf", [1000, math.inf, -math.inf]),
        ("", []),
    ],
)
def test_values_are_read_as_promtool_reads_them(text: str, values: list[float | None]) -> None:
    assert series_notation.parse_values(text) == values


def test_a_stale_marker_is_a_value_of_its_own() -> None:
    (marker,) = series_notation.parse_values("stale")
    assert marker is not None
    assert is_stale(marker)


@pytest.mark.parametrize("text", ["1y3", "x", "1x", "_+1x2x3", "1x9999999"])
def test_values_that_mean_nothing_are_refused(text: str) -> None:
    with pytest.raises(QueryError):
        series_notation.parse_values(text)


def test_a_series_is_read_with_and_without_a_name() -> None:
    assert series_notation.parse_labels('up{node="n1"}') == Labels({"__name__": "up", "node": "n1"})
    assert series_notation.parse_labels('{node="n1"}') == Labels({"node": "n1"})
    assert series_notation.parse_labels("{}") == Labels()
    with pytest.raises(QueryError, match="not a series"):
        series_notation.parse_labels('up{node=~"n.*"}')


def test_a_passing_test_has_no_failures(story: Path) -> None:
    assert unit_tests.run_test_file(story) == []


@pytest.mark.parametrize(
    ("right", "wrong", "failure"),
    [
        ("value: 190", "value: 191", '`double` at 90s: expected double{node="n1"} 191; found double{node="n1"} 190'),
        ('summary: "95"', 'summary: "96"', "alert Hot at 3m: expected"),
        ("eval_time: 2m", "eval_time: 4m", "alert Hot at 4m: expected none; found"),
        ("95x5", "95y5", "is not a value"),
    ],
)
def test_a_failed_expectation_is_reported(story: Path, right: str, wrong: str, failure: str) -> None:
    story.write_text(STORY.replace(right, wrong))
    (problem,) = unit_tests.run_test_file(story)
    assert problem.startswith("a hot node: ")
    assert failure in problem


def test_every_expectation_is_looked_at_though_one_cannot_be_asked(story: Path) -> None:
    more = "      - {expr: 'double{', eval_time: 1m}\n      - {expr: double, eval_time: 90s}\n"
    story.write_text(STORY + more)
    first, second = unit_tests.run_test_file(story)
    assert first.startswith("a hot node: `double{` at 1m: 1:8: unexpected end of input")
    assert second == 'a hot node: `double` at 90s: expected none; found double{node="n1"} 190'


def test_an_alert_is_told_with_its_annotations(story: Path) -> None:
    story.write_text(STORY.replace("eval_time: 2m", "eval_time: 4m"))
    [failure] = unit_tests.run_test_file(story)
    assert failure.endswith('found {alertname="Hot", node="n1", severity="warning"} summary="95"')


def test_a_series_that_cannot_be_read_is_named(story: Path) -> None:
    story.write_text(STORY.replace("95x5", "95y5"))
    assert unit_tests.run_test_file(story)[0].startswith(
        "a hot node: series `celsius{node=\"n1\"}`: '95y5' is not a value"
    )


@pytest.mark.parametrize("start", ["2024-01-01T00:00:00Z", "1704067200"])
def test_time_begins_where_a_test_says_and_samples_come_as_often_as_rules_are_evaluated(
    tmp_path: Path, start: str
) -> None:
    path = tmp_path / "test.yaml"
    path.write_text(
        f"""\
evaluation_interval: 30s
tests:
  - start_timestamp: {start}
    input_series: [{{series: x, values: '1+1x10'}}]
    promql_expr_test:
      - {{expr: 'time()', eval_time: 1m, exp_samples: [{{labels: '{{}}', value: 1704067260}}]}}
      - {{expr: x, eval_time: 1m, exp_samples: [{{labels: x, value: 3}}]}}
"""
    )
    assert unit_tests.run_test_file(path) == []


def test_a_test_file_with_an_unknown_key_is_refused(story: Path) -> None:
    story.write_text(STORY.replace("eval_time: 2m", "evaltime: 2m"))
    with pytest.raises(RuleFileError, match="evaltime: unknown key"):
        unit_tests.run_test_file(story)


def test_the_commands_say_what_they_found_and_exit_by_it(story: Path) -> None:
    run, rule_file = CliRunner().invoke, story.with_name("rules.yaml")
    fine = run(rules.command, ["check", str(rule_file)])
    assert (fine.exit_code, fine.output) == (0, "2 rules in 1 groups: no problem found\n")
    assert run(rules.command, ["test", str(story)]).exit_code == 0
    story.write_text(STORY.replace("value: 190", "value: 191"))
    assert run(rules.command, ["test", str(story)]).exit_code == 1
    rule_file.write_text(RULES.replace("for: 2m", "for: 2").replace("celsius * 2", "celsius *"))
    broken = run(rules.command, ["check", str(rule_file)])
    assert broken.exit_code == 1
    assert "has no unit" in broken.output
    assert "2 problems found" in broken.output
    assert run(rules.command, ["check", "no-such-file.yaml"]).exit_code == 2


HISTOGRAM_RULES = """\
groups:
  - name: g
    rules:
      - {record: "job:latency:rate2m", expr: "sum by (job) (rate(latency[2m]))"}
      - {alert: Observed, expr: latency}
"""
HISTOGRAM_STORY = """\
rule_files: [rules.yaml]
tests:
  - interval: 1m
    input_series:
      - series: 'latency{job="a"}'
        values: '{{count:60 sum:6 buckets:[60]}}+{{count:60 sum:6 buckets:[60]}}x9 stale'
    alert_rule_test:
      - {eval_time: 3m, alertname: Observed, exp_alerts: [{exp_labels: {job: a}}]}
    promql_expr_test:
      - expr: latency
        eval_time: 4m
        exp_samples: [{labels: 'latency{job="a"}', histogram: '{{count:300 sum:30 buckets:[300]}}'}]
      - expr: job:latency:rate2m
        eval_time: 8m
        exp_samples: [{labels: 'job:latency:rate2m{job="a"}', histogram: '{{count:1 sum:0.1 buckets:[1]}}'}]
      - {expr: latency, eval_time: 10m}
"""


def test_rules_record_native_histograms_and_tests_expect_them(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(HISTOGRAM_RULES)
    (tmp_path / "test.yaml").write_text(HISTOGRAM_STORY)
    assert unit_tests.run_test_file(tmp_path / "test.yaml") == []
    (tmp_path / "test.yaml").write_text(HISTOGRAM_STORY.replace("count:300", "count:301"))
    [failure] = unit_tests.run_test_file(tmp_path / "test.yaml")
    assert 'expected latency{job="a"} {{count:301 sum:30 buckets:[300]}}; found' in failure


RICH_RULES = """\
groups:
  - {name: sums, rules: [{record: 'job:x:sum', expr: sum by (job) (x)}, {record: twice, expr: 'job:x:sum * 2'}]}
  - name: alerts
    interval: 2m
    rules:
      - alert: High
        expr: twice > 10
        for: 4m
        keep_firing_for: 3m
        labels:
          severity: '{{ if gt $value 50.0 }}critical{{ else }}warning{{ end }}'
          src: '{{ $externalLabels.site }}'
        annotations: {summary: '{{ $labels.job }} at {{ $value | humanize }}, {{ $externalURL }}'}
      - {alert: Gone, expr: 'absent(x{job="a"})'}
"""
RICH_STORY = """\
rule_files: ['rich*.yaml']
evaluation_interval: 1m
group_eval_order: [sums, alerts]
tests:
  - interval: 1m
    external_labels: {site: here}
    external_url: http://x.example
    input_series:
      - {series: 'x{job="a"}', values: '1+1x10 _x3 stale 5x2'}
      - {series: 'x{job="b"}', values: '100 _ 90-10x5'}
    alert_rule_test:
      - eval_time: 6m
        alertname: High
        exp_alerts:
          - exp_labels: {job: b, severity: critical, src: here}
            exp_annotations: {summary: 'b at 100, http://x.example'}
      - {eval_time: 14m, alertname: Gone, exp_alerts: [{exp_labels: {job: a}}]}
      - {eval_time: 15m, alertname: Gone}
    promql_expr_test:
      - {expr: 'x', eval_time: 1m, exp_samples: [{labels: 'x{job="a"}', value: 2}, {labels: 'x{job="b"}', value: 100}]}
      - {expr: 'rate(x{job="a"}[3m])', eval_time: 5m, exp_samples: [{labels: '{job="a"}', value: 0.016666666666666666}]}
      - {expr: 'scalar(x{job="a"})', eval_time: 1m, exp_samples: [{labels: '{}', value: 2}]}
      - {expr: 'x{job="none"}', eval_time: 1m}
"""


SHORT_STORY = """\
evaluation_interval: 15s
tests:
  - interval: 15s
    input_series: [{series: x, values: '0 1x20'}]
    promql_expr_test:
      - {expr: 'count_over_time(x[2m:])', eval_time: 2m5s, exp_samples: [{value: 8}]}
      - {expr: 'sum(x)', eval_time: 0s, exp_samples: [{labels: '{}'}]}
"""
SELDOM_STORY = """\
evaluation_interval: 1m
tests:
  - interval: 15s
    input_series: [{series: x, values: '0+1x20'}]
    promql_expr_test:
      - {expr: x, eval_time: 45s, exp_samples: [{labels: x, value: 3}]}
      - {expr: x, eval_time: 1m50s, exp_samples: [{labels: x, value: 4}]}
"""
LONG_STORY = """\
evaluation_interval: 400d
tests:
  - interval: 400d
    input_series: [{series: x, values: '0+1x200'}]
    promql_expr_test:
      - {expr: x, eval_time: 0s, exp_samples: [{labels: x, value: 0}]}
      - {expr: x, eval_time: 80000d, exp_samples: [{labels: x, value: 200}]}
"""


@pytest.mark.servers
@pytest.mark.parametrize("text", [SHORT_STORY, LONG_STORY, SELDOM_STORY])
def test_steps_left_out_labels_centuries_and_the_last_samples_are_as_in_promtool(tmp_path: Path, text: str) -> None:
    path = tmp_path / "test.yaml"
    path.write_text(text)
    subprocess.run([servers.require("promtool"), "test", "rules", path], capture_output=True, check=True)
    assert unit_tests.run_test_file(path) == []


@pytest.mark.servers
@pytest.mark.parametrize(
    ("right", "other"),
    [
        *(("", ""), ("severity: critical", "severity: warning"), ("eval_time: 6m", "eval_time: 3m")),
        *(("eval_time: 15m", "eval_time: 14m"), ("value: 2}", "value: 3}"), ("_x3 stale", "_x3"), ("_x3", "_y3")),
        *(("[sums, alerts]", "[alerts, sums]"), ("eval_time: 1m}", "eval_time: 1x}"), ("site: here", "site: there")),
        *(("evaluation_interval: 1m", "evaluation_interval: 30s"), ("'x', eval", "'x{', eval"), ("tests:", "test:")),
    ],
)
def test_promtool_has_the_same_result(tmp_path: Path, right: str, other: str) -> None:
    (tmp_path / "rich.yaml").write_text(RICH_RULES)
    path = tmp_path / "test.yaml"
    path.write_text(RICH_STORY.replace(right, other, 1) if right else RICH_STORY)
    theirs = subprocess.run([servers.require("promtool"), "test", "rules", path], capture_output=True, check=False)
    ours = CliRunner().invoke(rules.command, ["test", str(path)])
    assert ours.exit_code == theirs.returncode, f"{ours.output}\n{theirs.stdout.decode()}{theirs.stderr.decode()}"
    assert right or ours.exit_code == 0
