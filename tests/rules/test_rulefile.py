"""Rule files: everything Prometheus accepts is read, and every problem is named with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from watchkeeper.errors import RuleFileError
from watchkeeper.model.labels import Labels
from watchkeeper.rules import rulefile

GOOD = """\
groups:
  - name: heat
    interval: 30s
    limit: 5
    query_offset: 10s
    labels: {team: red}
    rules:
      - record: node:celsius:max
        expr: max by (node) (celsius)
        labels: {source: dcgm, level: 3}
      - alert: GpuHot
        expr: |
          celsius
            > 90
        for: 5m
        keep_firing_for: 1h30m
        labels: {severity: warning}
        annotations:
          summary: "{{ $labels.node }} is hot"
"""


def problems(text: str) -> list[str]:
    with pytest.raises(rulefile.RuleFileProblems) as caught:
        rulefile.read_rules({"r.yaml": text})
    return [str(problem) for problem in caught.value.problems]


def rule(*lines: str) -> str:
    """A file with one rule; the first given line is line 4 of the file."""
    return "groups:\n  - name: g\n    rules:\n" + "".join(
        f"      {'- ' if not at else '  '}{line}\n" for at, line in enumerate(lines)
    )


def test_a_good_file_is_read_whole() -> None:
    (group,) = rulefile.read_rules({"r.yaml": GOOD}).groups
    recording, alerting = group.rules
    assert (group.key, group.interval_seconds, group.limit, group.query_offset_seconds) == ("r.yaml;heat", 30, 5, 10)
    assert isinstance(recording, rulefile.RecordingRule)
    assert recording.labels == Labels({"team": "red", "source": "dcgm", "level": "3"})
    assert isinstance(alerting, rulefile.AlertingRule)
    assert (alerting.hold_seconds, alerting.keep_firing_seconds, alerting.line) == (300, 5400, 11)
    assert (alerting.expr, sorted(alerting.labels)) == ("celsius\n  > 90\n", ["severity", "team"])


def test_empty_files_and_empty_groups_are_no_problem() -> None:
    assert (
        rulefile.read_rules({"a.yaml": "", "b.yaml": "groups:\n", "c.yaml": "groups:\n- name: g\n  rules:\n"}).rules
        == ()
    )


def test_all_problems_of_all_files_are_named_at_once() -> None:
    problem_list = problems(
        "groups:\n"
        "  - name: g\n"
        "    intervall: 30s\n"
        "    rules:\n"
        "      - alert: GpuHot\n"
        "        expr: celsius > 90\n"
        "        for: 5\n"
        "      - record: 1bad\n"
        "        expr: sum(\n"
        "      - expr: up\n"
        "  - name: g\n"
        "    limit: many\n"
    )
    assert [line.split(": ", 1)[0] for line in problem_list] == [
        f"r.yaml:{line}" for line in (3, 7, 8, 9, 10, 11, 12)
    ], problem_list


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (rule("alert: A", "expr: up", "for: 5"), "r.yaml:6: alert A: for: `5` has no unit; write `5s`"),
        (rule("alert: A", "expr: up", "form: 5m"), "r.yaml:6: unknown key `form` in a rule; allowed keys: alert"),
        (rule("alert: A", "expr: up", "labels: {'a-b': x}"), "r.yaml:6: A: 'a-b' is not a label name"),
        (rule("alert: A", "expr: up", "labels: {__name__: x}"), "is not a label name"),
        (rule("alert: A", "expr: up", "labels: {a: [x]}"), "r.yaml:6: A: `a` must be text"),
        (
            rule("alert: A", "expr: up", "annotations:", "  s: '{{ nope }}'"),
            "r.yaml:7: alert A: annotation `s`: function",
        ),
        (rule("alert: A", "expr: up", "labels: {s: '{{ if 1 }}'}"), "r.yaml:6: alert A: label `s`:"),
        (rule("alert: A", "record: b", "expr: up"), "r.yaml:4: a rule needs exactly one of `record` and `alert`"),
        (rule("record: a-b", "expr: up"), "r.yaml:4: record 'a-b' is not a metric name"),
        (rule("record: a", "expr: up", "for: 5m"), "r.yaml:6: record a: `for` is only allowed for alerts"),
        (rule("alert: A"), "r.yaml:4: alert A: `expr` is missing"),
        (rule("alert: A", "expr: ''"), "r.yaml:5: alert A: `expr` is missing"),
        (rule("alert: A", "expr: up[5m]"), "r.yaml:5: alert A: `expr` returns a range vector"),
        (rule("alert: A", "expr: up", "expr: up"), "r.yaml:6: key `expr` is duplicated"),
        ("groups:\n  - rules: []\n", "r.yaml:2: a group needs a `name`"),
        ("groups: 5\n", "r.yaml:1: expected a list"),
        ("- a\n- b\n", "r.yaml:1: a rule file must be a mapping"),
        ("groups:\n  - name: g\n   rules: []\n", "r.yaml:3: not YAML"),
        ("[" * 60_000, "r.yaml: not YAML: nested deeper than 100"),
    ],
)
def test_a_problem_is_named_with_its_line(text: str, expected: str) -> None:
    assert any(line.startswith(expected) or expected in line for line in problems(text)), problems(text)


@pytest.mark.parametrize(
    ("lines", "line", "column"),
    [
        (("alert: A", "expr: sum(up) +* 2"), 5, 24),
        (("alert: A", "expr: 'sum(up) +* 2'"), 5, 25),
        (("alert: A", "expr: |", "  sum(up)", "    +* 2"), 7, 14),
        (("alert: A", "expr: >-", "  sum(up)", "  +* 2"), 7, 12),
        (("alert: A", "expr: sum(up)", "  +* 2"), 6, 12),
        (("alert: A", "expr: sum(", "for: 5m"), 5, 19),
        (("alert: A", "expr: 'sum('", "for: 5m"), 5, 20),
        (("alert: A", "expr: |", "  sum(", "for: 5m"), 6, 15),
    ],
)
def test_a_bad_expression_is_found_where_it_stands_in_the_file(lines: tuple[str, ...], line: int, column: int) -> None:
    (problem,) = problems(rule(*lines))
    assert problem.startswith(f"r.yaml:{line}: alert A: column {column}: "), problem


def test_a_duplicate_rule_is_refused_but_not_a_duplicate_name() -> None:
    twice = rule("alert: A", "expr: up") + rule("alert: A", "expr: up").removeprefix(
        "groups:\n  - name: g\n    rules:\n"
    )
    assert problems(twice) == ["r.yaml:6: alert A is a duplicate of the rule on line 4"]
    assert len(rulefile.read_rules({"r.yaml": twice.replace("expr: up", "expr: up == 0", 1)}).rules) == 2


@pytest.mark.parametrize("kind", ["alert", "record"])
def test_the_same_name_and_labels_may_stand_with_other_expressions_and_in_other_groups(kind: str) -> None:
    first = rule(f"{kind}: A", "expr: up")
    other = rule(f"{kind}: A", "expr: up == 0").removeprefix("groups:\n  - name: g\n    rules:\n")
    again = first.removeprefix("groups:\n").replace("name: g", "name: h")
    assert len(rulefile.read_rules({"r.yaml": first + other + again}).rules) == 3


def test_files_are_read_from_disk_and_a_missing_one_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(GOOD)
    (tmp_path / "notes.txt").write_text("not rules")
    assert len(rulefile.load_rules([tmp_path]).rules) == 2
    (tmp_path / "b.yml").write_bytes(b"\xff\xfe")
    with pytest.raises(rulefile.RuleFileProblems) as caught:
        rulefile.load_rules([tmp_path, tmp_path / "gone.yaml"])
    assert [Path(problem.path).name for problem in caught.value.problems] == ["b.yml", "gone.yaml"]
    assert all(isinstance(problem, RuleFileError) for problem in caught.value.problems)
