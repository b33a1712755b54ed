"""Prometheus rule files, read with the line of everything in them.

`load` is called by the hub at start and on reload, and by `watchkeeper rules check`. It returns a
whole `RuleSet` or raises `RuleFileProblems` with every problem of every file, so that the hub keeps
the set in force. The evaluator takes the groups from here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import yaml

from watchkeeper.errors import QueryError, RuleFileError, WatchkeeperError, quote
from watchkeeper.kit import durations, yaml_text
from watchkeeper.model import labels as label_sets
from watchkeeper.query.promql import ast, parser, types
from watchkeeper.rules import templates
from watchkeeper.rules.source import YamlEntry, YamlSource, entries
from watchkeeper.rules.template_functions import TemplateError

METRIC_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*\Z")
LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*\Z")
GROUP_KEYS = frozenset({"name", "interval", "query_offset", "limit", "labels", "rules"})
RECORD_KEYS = frozenset({"record", "expr", "labels"})
ALERT_KEYS = frozenset({"alert", "expr", "for", "keep_firing_for", "labels", "annotations"})
Templates: TypeAlias = Mapping[str, templates.Template]


@dataclass(frozen=True, slots=True)
class RecordingRule:
    """Writes the answer of `expr` as the series `name`; its labels are plain text, as in Prometheus."""

    name: str
    expr: str
    labels: label_sets.Labels
    path: str
    line: int


@dataclass(frozen=True, slots=True)
class AlertingRule:
    """Alerts for each series that `expr` answers, once it has done so for `hold_seconds`."""

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
    """Rules that are evaluated together and in order. `interval_seconds` None is the hub's default; limit 0 is none."""

    name: str
    path: str
    rules: tuple[Rule, ...]
    interval_seconds: float | None = None
    query_offset_seconds: float = 0.0
    limit: int = 0

    @property
    def key(self) -> str:
        """The name of this group among all files."""
        return f"{self.path};{self.name}"


@dataclass(frozen=True, slots=True)
class RuleSet:
    groups: tuple[RuleGroup, ...] = ()

    @property
    def rules(self) -> tuple[Rule, ...]:
        return tuple(rule for group in self.groups for rule in group.rules)


class RuleFileProblems(WatchkeeperError):
    """Rule files that cannot be used, with one `RuleFileError` per problem, in the order of the files."""

    def __init__(self, problems: tuple[RuleFileError, ...]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


def load_rules(paths: Iterable[Path]) -> RuleSet:
    """All groups of these files; directories give their *.yaml and *.yml files in the order of names."""
    return read_rules(texts(paths))


def texts(paths: Iterable[Path]) -> dict[str, str | RuleFileError]:
    """The text of each of these files by its name, or why it could not be opened."""
    return {str(path): text_of(path) for path in files(paths)}


def read_rules(texts: Mapping[str, str | RuleFileError]) -> RuleSet:
    """All groups of these texts by file name; a file that could not be opened comes as its error."""
    problems: list[RuleFileError] = []
    groups: list[RuleGroup] = []
    for path, text in texts.items():
        if isinstance(text, RuleFileError):
            problems.append(text)
        else:
            reader = _FileReader(YamlSource(path, text), [])
            groups += reader.groups()
            problems += sorted(reader.problems, key=lambda problem: problem.line or 0)
    if problems:
        raise RuleFileProblems(tuple(problems))
    return RuleSet(tuple(groups))


def files(paths: Iterable[Path]) -> Iterable[Path]:
    """These files; a directory stands for the rule files in it, in the order of names."""
    for path in paths:
        yield from sorted(p for p in path.iterdir() if p.suffix in (".yaml", ".yml")) if path.is_dir() else [path]


def text_of(path: Path) -> str | RuleFileError:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8 text"
        return RuleFileError(f"cannot be read: {reason}", path=str(path))


@dataclass
class _FileReader:
    """Walks one file; every problem is kept and reading goes on."""

    source: YamlSource
    problems: list[RuleFileError]
    # The rules of the present group.
    seen: dict[tuple[str, ...], int] = field(default_factory=dict)

    def groups(self) -> list[RuleGroup]:
        try:
            root = yaml_text.compose(self.source.text)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            reason = getattr(error, "problem", None) or str(error)
            self.complain(f"not YAML: {reason}", None if mark is None else mark.line + 1)
            return []
        if root is None:
            return []
        top = self.table(YamlEntry.whole(root), frozenset({"groups"}), "a rule file")
        names: dict[str, int] = {}
        return [self.group(item, names) for item in self.items(top.get("groups"))]

    def group(self, item: YamlEntry, names: dict[str, int]) -> RuleGroup:
        cells = self.table(item, GROUP_KEYS, "a group")
        name = self.text(cells.get("name"))
        if not name:
            self.complain("a group needs a `name`", item.line)
        elif name in names:
            self.complain(f"group {name} is already defined on line {names[name]}", item.line)
        names.setdefault(name, item.line)
        shared = self.label_texts(cells.get("labels"), f"group {name}")
        self.seen.clear()
        rules = [self.rule(entry, shared) for entry in self.items(cells.get("rules"))]
        return RuleGroup(
            name=name,
            path=self.source.path,
            rules=tuple(rule for rule in rules if rule is not None),
            interval_seconds=self.seconds(cells.get("interval"), f"group {name}: interval") or None,
            query_offset_seconds=self.seconds(cells.get("query_offset"), f"group {name}: query_offset"),
            limit=self.count(cells.get("limit"), f"group {name}: limit"),
        )

    def rule(self, item: YamlEntry, shared: Mapping[str, YamlEntry]) -> Rule | None:
        cells = self.table(item, RECORD_KEYS | ALERT_KEYS, "a rule")
        record, alert = self.text(cells.get("record")), self.text(cells.get("alert"))
        if bool(record) == bool(alert):
            self.complain("a rule needs exactly one of `record` and `alert`", item.line)
            return None
        expr = self.expression(cells.get("expr"), f"{'record' if record else 'alert'} {record or alert}", item.line)
        labels = {**shared, **self.label_texts(cells.get("labels"), record or alert)}
        rule = self.recording(item, cells, labels) if record else self.alerting(item, cells, labels)
        return None if expr is None else rule

    def recording(
        self, item: YamlEntry, cells: Mapping[str, YamlEntry], labels: Mapping[str, YamlEntry]
    ) -> RecordingRule:
        name, expr = self.text(cells["record"]), self.text(cells.get("expr"))
        for key in cells.keys() - RECORD_KEYS:
            self.complain(f"record {name}: `{key}` is for alerts only", cells[key].line)
        if not METRIC_NAME.match(name):
            self.complain(f"record {quote(name)} is not a metric name such as node:gpu_power:sum", cells["record"].line)
        texts = label_sets.Labels({key: entry.text for key, entry in labels.items()})
        self.once(("record", name, expr, str(texts)), f"record {name}", item.line)
        return RecordingRule(name, expr, texts, path=self.source.path, line=item.line)

    def alerting(
        self, item: YamlEntry, cells: Mapping[str, YamlEntry], labels: Mapping[str, YamlEntry]
    ) -> AlertingRule:
        name, expr = self.text(cells["alert"]), self.text(cells.get("expr"))
        annotations = self.label_texts(cells.get("annotations"), f"alert {name}: annotations")
        texts = sorted((key, entry.text) for key, entry in labels.items())
        self.once(("alert", name, expr, str(texts)), f"alert {name}", item.line)
        return AlertingRule(
            name=name,
            expr=expr,
            hold_seconds=self.seconds(cells.get("for"), f"alert {name}: for"),
            keep_firing_seconds=self.seconds(cells.get("keep_firing_for"), f"alert {name}: keep_firing_for"),
            labels=self.templates(labels, f"alert {name}: label"),
            annotations=self.templates(annotations, f"alert {name}: annotation"),
            path=self.source.path,
            line=item.line,
        )

    def expression(self, entry: YamlEntry | None, where: str, line: int) -> str | None:
        text = self.text(entry)
        if entry is None or not text.strip():
            self.complain(f"{where}: `expr` is missing", line if entry is None else entry.line)
            return None
        try:
            answers = types.value_type(parser.parse(text))
        except QueryError as error:
            line, column = self.source.position(entry, text, at=(error.line or 1, error.column or 1))
            self.complain(f"{where}: column {column}: {error.problem}", line, remedy=error.remedy)
            return None
        if answers not in (ast.ValueType.INSTANT, ast.ValueType.SCALAR):
            self.complain(
                f"{where}: `expr` answers a {answers}; a rule needs an instant vector or a scalar", entry.line
            )
            return None
        return text

    def label_texts(self, entry: YamlEntry | None, where: str) -> dict[str, YamlEntry]:
        cells = {} if entry is None else self.table(entry, None, where)
        for name, cell in cells.items():
            if not LABEL_NAME.match(name) or name == label_sets.METRIC_NAME:
                self.complain(f"{where}: {quote(name)} is not a label name", cell.line)
            if not cell.is_text:
                self.complain(f"{where}: `{name}` must be text", cell.line)
        return {name: cell for name, cell in cells.items() if cell.is_text}

    def templates(self, cells: Mapping[str, YamlEntry], where: str) -> Templates:
        parsed = {}
        for name, cell in cells.items():
            try:
                parsed[name] = templates.parse_template(cell.text)
            except TemplateError as error:
                self.complain(f"{where} `{name}`: {error}", cell.line)
        return parsed

    def table(self, entry: YamlEntry, known: frozenset[str] | None, what: str) -> dict[str, YamlEntry]:
        cells: dict[str, YamlEntry] = {}
        if not isinstance(entry.node, yaml.MappingNode):
            if not entry.is_null:
                self.complain(f"{what} must be a table of keys", entry.line)
            return cells
        for name, cell in entries(entry.node):
            if name in cells:
                self.complain(f"key `{name}` is given twice", cell.line)
            elif known is not None and name not in known:
                self.complain(f"unknown key `{name}` in {what}; known: {', '.join(sorted(known))}", cell.line)
            else:
                cells[name] = cell
        return cells

    def items(self, entry: YamlEntry | None) -> list[YamlEntry]:
        if entry is None or entry.is_null:
            return []
        if not isinstance(entry.node, yaml.SequenceNode):
            self.complain("expected a list", entry.line)
            return []
        return [YamlEntry.whole(node) for node in entry.node.value]

    def text(self, entry: YamlEntry | None) -> str:
        if entry is not None and not entry.is_text:
            self.complain("expected text", entry.line)
        return entry.text if entry is not None and entry.is_text else ""

    def seconds(self, entry: YamlEntry | None, what: str) -> float:
        return self.number(entry, what, durations.parse_seconds)

    def count(self, entry: YamlEntry | None, what: str) -> int:
        return int(self.number(entry, what, _whole_number))

    def number(self, entry: YamlEntry | None, what: str, read: Callable[[str], float]) -> float:
        text = self.text(entry)
        if entry is None or not text:
            return 0
        try:
            return read(text)
        except ValueError as error:
            self.complain(f"{what}: {error}", entry.line)
            return 0

    def once(self, key: tuple[str, ...], what: str, line: int) -> None:
        if key in self.seen:
            self.complain(f"{what} is the same as the rule on line {self.seen[key]}", line)
        self.seen.setdefault(key, line)

    def complain(self, problem: str, line: int | None, remedy: str | None = None) -> None:
        self.problems.append(RuleFileError(problem, path=self.source.path, line=line, remedy=remedy))


def _whole_number(text: str) -> int:
    if not text.isdigit():
        raise ValueError(f"`{text[:40]}` is not a whole number")
    return int(text)
