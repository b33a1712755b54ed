"""Read Prometheus rule files, with line numbers.

The hub calls `read_rules` at start and on reload. It returns a complete `RuleSet`, or raises `RuleFileProblems` with
every problem of every file; then the hub keeps its active rules. `rules check` and `migrate` also judge the valid rules
beside invalid ones: they call `read_valid`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import yaml

from watchkeeper.errors import QueryError, RuleFileError, WatchkeeperError, quote
from watchkeeper.kit import durations, yaml_text
from watchkeeper.model import labels as label_sets
from watchkeeper.query.promql import ast, parser, types
from watchkeeper.rules import templates
from watchkeeper.rules.template_functions import TemplateError
from watchkeeper.rules.yaml_source import YamlEntry, YamlSource, mapping_entries

METRIC_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*\Z")
LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*\Z")
GROUP_KEYS = frozenset({"name", "interval", "query_offset", "limit", "labels", "rules"})
RECORD_KEYS = frozenset({"record", "expr", "labels"})
ALERT_KEYS = frozenset({"alert", "expr", "for", "keep_firing_for", "labels", "annotations"})
Templates: TypeAlias = Mapping[str, templates.Template]
Cells: TypeAlias = Mapping[str, YamlEntry]


@dataclass(frozen=True, slots=True)
class RecordingRule:
    """Records the result of `expr` as the metric `name`; its labels are plain text, as in Prometheus."""

    name: str
    expr: str
    labels: label_sets.Labels
    path: str
    line: int


@dataclass(frozen=True, slots=True)
class AlertingRule:
    """Fires an alert for each series of `expr` that has been in the result for `hold_seconds`."""

    name: str
    expr: str
    hold_seconds: float
    keep_firing_seconds: float
    labels: Templates
    annotations: Templates
    path: str
    line: int


Rule: TypeAlias = RecordingRule | AlertingRule


@dataclass(frozen=True, slots=True)
class RuleGroup:
    """Rules that are evaluated together, in order. `interval_seconds` None is the hub's default, limit 0 is none."""

    name: str
    path: str
    rules: tuple[Rule, ...]
    interval_seconds: float | None = None
    query_offset_seconds: float = 0.0
    limit: int = 0

    @property
    def key(self) -> str:
        return f"{self.path};{self.name}"


@dataclass(frozen=True, slots=True)
class RuleSet:
    groups: tuple[RuleGroup, ...] = ()

    @property
    def rules(self) -> tuple[Rule, ...]:
        return tuple(rule for group in self.groups for rule in group.rules)


class RuleFileProblems(WatchkeeperError):
    """Invalid rule files, with one `RuleFileError` per problem, in the order of the files."""

    def __init__(self, problems: tuple[RuleFileError, ...]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


def load_rules(paths: Iterable[Path]) -> RuleSet:
    """Read rules from files; a directory stands for its *.yaml and *.yml files, in the order of names."""
    return read_rules(read_texts(paths))


def read_texts(paths: Iterable[Path]) -> dict[str, str | RuleFileError]:
    return {str(path): read_text(path) for path in list_files(paths)}


def read_rules(texts: Mapping[str, str | RuleFileError]) -> RuleSet:
    """Read rules from texts by path; a file that could not be read is an error instead of a text."""
    rules, problems = read_valid(texts)
    if problems:
        raise RuleFileProblems(problems)
    return rules


def read_valid(texts: Mapping[str, str | RuleFileError]) -> tuple[RuleSet, tuple[RuleFileError, ...]]:
    """The rules whose expressions are valid, and all problems: one wrong rule does not hide the others of its file."""
    problems: list[RuleFileError] = []
    groups: list[RuleGroup] = []
    for path, text in texts.items():
        if isinstance(text, RuleFileError):
            problems.append(text)
        else:
            reader = _FileReader(YamlSource(path, text), [])
            groups += reader.read_groups()
            problems += sorted(reader.problems, key=lambda problem: problem.line or 0)
    return RuleSet(tuple(groups)), tuple(problems)


def list_files(paths: Iterable[Path]) -> Iterable[Path]:
    for path in paths:
        yield from sorted(p for p in path.iterdir() if p.suffix in (".yaml", ".yml")) if path.is_dir() else [path]


def read_text(path: Path) -> str | RuleFileError:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        return RuleFileError(f"cannot be read: {reason}", path=str(path))


@dataclass
class _FileReader:
    source: YamlSource
    problems: list[RuleFileError]
    # The first line of each rule of the current group.
    first_lines: dict[tuple[str, ...], int] = field(default_factory=dict)

    def read_groups(self) -> list[RuleGroup]:
        try:
            root = yaml_text.compose(self.source.text)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            reason = getattr(error, "problem", None) or str(error)
            self.add_problem(f"not YAML: {reason}", None if mark is None else mark.line + 1)
            return []
        if root is None:
            return []
        root_table = self.read_table(YamlEntry.from_node(root), frozenset({"groups"}), "a rule file")
        names: dict[str, int] = {}
        return [self.read_group(item, names) for item in self.read_items(root_table.get("groups"))]

    def read_group(self, entry: YamlEntry, names: dict[str, int]) -> RuleGroup:
        cells = self.read_table(entry, GROUP_KEYS, "a group")
        name = self.read_text(cells.get("name"))
        if not name:
            self.add_problem("a group needs a `name`", entry.line)
        elif name in names:
            self.add_problem(f"group {name} is already defined on line {names[name]}", entry.line)
        names.setdefault(name, entry.line)
        shared = self.read_label_texts(cells.get("labels"), f"group {name}")
        self.first_lines.clear()
        rules = [self.read_rule(rule_entry, shared) for rule_entry in self.read_items(cells.get("rules"))]
        return RuleGroup(
            name=name,
            path=self.source.path,
            rules=tuple(rule for rule in rules if rule is not None),
            interval_seconds=self.read_number(cells.get("interval"), f"group {name}: interval") or None,
            query_offset_seconds=self.read_number(cells.get("query_offset"), f"group {name}: query_offset"),
            limit=int(self.read_number(cells.get("limit"), f"group {name}: limit", is_count=True)),
        )

    def read_rule(self, entry: YamlEntry, shared: Cells) -> Rule | None:
        cells = self.read_table(entry, RECORD_KEYS | ALERT_KEYS, "a rule")
        record, alert = self.read_text(cells.get("record")), self.read_text(cells.get("alert"))
        if bool(record) == bool(alert):
            self.add_problem("a rule needs exactly one of `record` and `alert`", entry.line)
            return None
        where = f"record {record}" if record else f"alert {alert}"
        expr = self.read_expression(cells.get("expr"), where, entry.line)
        labels = {**shared, **self.read_label_texts(cells.get("labels"), record or alert)}
        rule = self.read_recording(entry, cells, labels) if record else self.read_alerting(entry, cells, labels)
        return None if expr is None else rule

    def read_recording(self, item: YamlEntry, cells: Cells, labels: Cells) -> RecordingRule:
        name, expr = self.read_text(cells["record"]), self.read_text(cells.get("expr"))
        for key in cells.keys() - RECORD_KEYS:
            self.add_problem(f"record {name}: `{key}` is only allowed for alerts", cells[key].line)
        if not METRIC_NAME.match(name):
            problem = f"record {quote(name)} is not a metric name such as node:gpu_power:sum"
            self.add_problem(problem, cells["record"].line)
        texts = label_sets.Labels({key: entry.text for key, entry in labels.items()})
        self.check_unique(("record", name, expr, str(texts)), f"record {name}", item.line)
        return RecordingRule(name, expr, texts, path=self.source.path, line=item.line)

    def read_alerting(self, item: YamlEntry, cells: Cells, labels: Cells) -> AlertingRule:
        name, expr = self.read_text(cells["alert"]), self.read_text(cells.get("expr"))
        annotations = self.read_label_texts(cells.get("annotations"), f"alert {name}: annotations")
        texts = sorted((key, entry.text) for key, entry in labels.items())
        self.check_unique(("alert", name, expr, str(texts)), f"alert {name}", item.line)
        return AlertingRule(
            name=name,
            expr=expr,
            hold_seconds=self.read_number(cells.get("for"), f"alert {name}: for"),
            keep_firing_seconds=self.read_number(cells.get("keep_firing_for"), f"alert {name}: keep_firing_for"),
            labels=self.parse_templates(labels, f"alert {name}: label"),
            annotations=self.parse_templates(annotations, f"alert {name}: annotation"),
            path=self.source.path,
            line=item.line,
        )

    def read_expression(self, entry: YamlEntry | None, where: str, line: int) -> str | None:
        text = self.read_text(entry)
        if entry is None or not text.strip():
            self.add_problem(f"{where}: `expr` is missing", line if entry is None else entry.line)
            return None
        try:
            result_type = types.value_type(parser.parse(text))
        except QueryError as error:
            line, column = self.source.position(entry, text, at=(error.line or 1, error.column or 1))
            self.add_problem(f"{where}: column {column}: {error.problem}", line, remedy=error.remedy)
            return None
        if result_type not in (ast.ValueType.INSTANT, ast.ValueType.SCALAR):
            needs = "a rule needs an instant vector or a scalar"
            self.add_problem(f"{where}: `expr` returns a {result_type}, {needs}", entry.line)
            return None
        return text

    def read_label_texts(self, entry: YamlEntry | None, where: str) -> Cells:
        cells: Cells = {} if entry is None else self.read_table(entry, None, where)
        for name, cell in cells.items():
            if not LABEL_NAME.match(name) or name == label_sets.METRIC_NAME:
                self.add_problem(f"{where}: {quote(name)} is not a label name", cell.line)
            if not cell.is_text:
                self.add_problem(f"{where}: `{name}` must be text", cell.line)
        return {name: cell for name, cell in cells.items() if cell.is_text}

    def parse_templates(self, cells: Cells, where: str) -> Templates:
        parsed = {}
        for name, cell in cells.items():
            try:
                parsed[name] = templates.parse_template(cell.text)
            except TemplateError as error:
                self.add_problem(f"{where} `{name}`: {error}", cell.line)
        return parsed

    def read_table(self, entry: YamlEntry, allowed_keys: frozenset[str] | None, description: str) -> Cells:
        cells: dict[str, YamlEntry] = {}
        if not isinstance(entry.node, yaml.MappingNode):
            if not entry.is_null:
                self.add_problem(f"{description} must be a mapping", entry.line)
            return cells
        for name, cell in mapping_entries(entry.node):
            if name in cells:
                self.add_problem(f"key `{name}` is duplicated", cell.line)
            elif allowed_keys is not None and name not in allowed_keys:
                allowed = ", ".join(sorted(allowed_keys))
                self.add_problem(f"unknown key `{name}` in {description}; allowed keys: {allowed}", cell.line)
            else:
                cells[name] = cell
        return cells

    def read_items(self, entry: YamlEntry | None) -> list[YamlEntry]:
        if entry is None or entry.is_null:
            return []
        if not isinstance(entry.node, yaml.SequenceNode):
            self.add_problem("expected a list", entry.line)
            return []
        return [YamlEntry.from_node(node) for node in entry.node.value]

    def read_text(self, entry: YamlEntry | None) -> str:
        if entry is not None and not entry.is_text:
            self.add_problem("expected text", entry.line)
        return entry.text if entry is not None and entry.is_text else ""

    def read_number(self, entry: YamlEntry | None, description: str, *, is_count: bool = False) -> float:
        """The seconds of a duration, or a whole number; 0 without an entry."""
        text = self.read_text(entry)
        if entry is None or not text:
            return 0
        try:
            if is_count and not text.isdigit():
                raise ValueError(f"`{text[:40]}` is not a whole number")
            return int(text) if is_count else durations.parse_seconds(text)
        except ValueError as error:
            self.add_problem(f"{description}: {error}", entry.line)
            return 0

    def check_unique(self, key: tuple[str, ...], description: str, line: int) -> None:
        if key in self.first_lines:
            self.add_problem(f"{description} is a duplicate of the rule on line {self.first_lines[key]}", line)
        self.first_lines.setdefault(key, line)

    def add_problem(self, problem: str, line: int | None, remedy: str | None = None) -> None:
        self.problems.append(RuleFileError(problem, path=self.source.path, line=line, remedy=remedy))
