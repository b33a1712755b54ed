"""Judges files of an existing monitoring setup: counters of dcgm-exporter, Prometheus rules, Grafana dashboards.

`cli.doctor.migrate` passes paths and prints the verdicts. The suffix selects the kind of file; folders are searched.
Rules are read first, because dashboards use the series that they record.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from watchkeeper.errors import error_reason
from watchkeeper.kit import wire, yaml_text
from watchkeeper.migrate.expression import Compatibility, judge_expression
from watchkeeper.query.promql import ast
from watchkeeper.readers import counters_csv, grafana_dashboard
from watchkeeper.readers.nvml import choice
from watchkeeper.rules import rule_expression, rule_mistakes, rulefile

SUFFIXES = (".csv", ".yaml", ".yml", ".json", ".rules")
MAX_BYTES = 16 * 2**20
SHOWN = 200
NUMBER_VARIABLE = re.compile(rf"(?P<before>[<>=!*/+%^-]\s*(?:bool\s+)?)(?:{grafana_dashboard.VARIABLE})(?![a-zA-Z_])")


@dataclass(frozen=True, slots=True)
class MigrationVerdict:
    """`where` is the line, rule or panel inside `file`; `why` has one sentence for each reason.

    `mistakes` has the reasons that do not depend on this product: the expression means something else.
    """

    file: str
    where: str
    subject: str
    compatibility: Compatibility = wire.json_key("standing")
    why: tuple[str, ...] = ()
    mistakes: tuple[rule_expression.Mistake, ...] = ()


@dataclass(frozen=True, slots=True)
class FileRules:
    """The rules of one file; rules of a PrometheusRule have no line number."""

    path: Path
    rules: tuple[rulefile.Rule, ...]
    has_lines: bool


def judge_files(paths: Sequence[Path], shipped: rulefile.RuleSet) -> list[MigrationVerdict]:
    """Return a verdict for each counter, rule and query in these files; `shipped` are Watchkeeper's own rules."""
    texts = {path: _text(path) for path in _files(paths)}
    file_order = [str(path) for path in texts]
    verdicts = [text for text in texts.values() if isinstance(text, MigrationVerdict)]
    rule_files: list[FileRules] = []
    for path, text in texts.items():
        if isinstance(text, str) and path.suffix not in (".csv", ".json"):
            rule_files += _read_rules(path, text, verdicts, is_named=path in paths)
    rules = [rule for file in rule_files for rule in file.rules]
    recorded = rule_mistakes.recorded_expressions((*shipped.rules, *rules))
    for path, text in texts.items():
        if isinstance(text, str) and path.suffix == ".csv":
            verdicts += _counters(path, text)
        elif isinstance(text, str) and path.suffix == ".json":
            verdicts += _dashboard(path, text, recorded, is_named=path in paths)
    named = frozenset(rule.name for rule in shipped.rules if isinstance(rule, rulefile.AlertingRule))
    verdicts += [_rule(file, rule, recorded, named) for file in rule_files for rule in file.rules]
    return sorted(verdicts, key=lambda verdict: file_order.index(verdict.file))


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield from sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES and file.is_file())
        else:
            yield path


def _text(path: Path) -> str | MigrationVerdict:
    try:
        size = path.stat().st_size
        if size <= MAX_BYTES:
            return path.read_text(encoding="utf-8")
        problem = f"it has {size:,} bytes, the limit is {MAX_BYTES:,}"
    except (OSError, UnicodeDecodeError) as error:
        problem = f"it cannot be read: {error_reason(error)}"
    return _cannot(path, path.name, problem)


def _cannot(path: Path, subject: str, why: str, *, where: str = "") -> MigrationVerdict:
    return MigrationVerdict(str(path), where, subject, Compatibility.CANNOT, (why,))


def _read_rules(path: Path, text: str, verdicts: list[MigrationVerdict], *, is_named: bool) -> Iterator[FileRules]:
    """Read the rules of one file; problems are added to `verdicts`. Other YAML of a folder is skipped."""
    rules = extract_rules(text)
    if rules is None:
        if is_named:
            verdicts.append(_cannot(path, path.name, "contains neither rule groups nor a PrometheusRule"))
        return
    valid, problems = rulefile.read_valid({str(path): rules})
    yield FileRules(path, valid.rules, has_lines=rules == text)
    lines = ((f"line {row.line}" if row.line else "", row.problem) for row in problems)
    verdicts += [_cannot(path, "rule file", problem, where=where) for where, problem in lines]


def extract_rules(text: str) -> str | None:
    """The rule file in a text: the text itself, or the groups of its PrometheusRules; None without any."""
    try:
        documents = [document for document in yaml_text.load_all(text) if isinstance(document, dict)]
    except yaml.YAMLError:
        # The reader of rule files reports where it is wrong.
        return text
    if any("groups" in document for document in documents):
        return text
    specs = [document.get("spec") for document in documents if document.get("kind") == "PrometheusRule"]
    groups = [group for spec in specs if isinstance(spec, dict) for group in spec.get("groups") or ()]
    return yaml.safe_dump({"groups": groups}, sort_keys=False) if groups else None


def _rule(
    file: FileRules, rule: rulefile.Rule, recorded: Mapping[str, ast.Expr], named: frozenset[str]
) -> MigrationVerdict:
    is_alert = isinstance(rule, rulefile.AlertingRule)
    hold_seconds = rule.hold_seconds if isinstance(rule, rulefile.AlertingRule) else 0.0
    judged = judge_expression(rule.expr, recorded, is_alert=is_alert, hold_seconds=hold_seconds)
    why = list(judged.why)
    if is_alert:
        if rule.name in named:
            why.append("a shipped rule has the same name: remove one of them")
        if "cause" not in rule.labels:
            why.append("add a label `cause`: its incidents have no cause without it (docs/reference/alerts.md)")
    where = f"line {rule.line}" if file.has_lines else ""
    return MigrationVerdict(str(file.path), where, rule.name, judged.compatibility, tuple(why), judged.mistakes)


def _counters(path: Path, text: str) -> list[MigrationVerdict]:
    lines = text.splitlines()
    file = counters_csv.read(lines)
    verdicts = [_counter(path, counter) for counter in file.counters]
    for problem in file.problems:
        line, _, what = problem.partition(": ")
        verdicts.append(_cannot(path, lines[int(line.removeprefix("line ")) - 1][:SHOWN], what, where=line))
    return verdicts


def _counter(path: Path, counter: counters_csv.CounterField) -> MigrationVerdict:
    match, where = choice.load_dcgm_families().get(counter.name), f"line {counter.line}"
    if match is None:
        return _cannot(path, counter.name, "NVML does not provide it; keep dcgm-exporter for this field", where=where)
    family, is_chosen = match
    notes: tuple[str, ...] = ()
    if not is_chosen:
        notes += ("not exported by default: start the agent with --counters and this file",)
    if counter.prom_type != family.prom_type:
        notes += (f"the file declares a {counter.prom_type}, DCGM a {family.prom_type}",)
    return MigrationVerdict(str(path), where, counter.name, Compatibility.WORKS, notes)


def _dashboard(path: Path, text: str, recorded: Mapping[str, ast.Expr], *, is_named: bool) -> list[MigrationVerdict]:
    try:
        dashboard = grafana_dashboard.read_dashboard(text)
    except grafana_dashboard.InvalidDashboard as error:
        if error.is_other and not is_named:
            return []
        return [_cannot(path, path.name, f"not a dashboard: {error}")]
    verdicts = []
    for query in dashboard.queries:
        where = f"{dashboard.title} / {query.panel}"
        if query.expr is None:
            why = f"it queries {query.language}, not Prometheus"
            verdicts.append(_cannot(path, query.language, why, where=where))
        else:
            # A number that is a variable is unknown, so nothing is compared with it.
            text = NUMBER_VARIABLE.sub(r"\g<before>NaN", query.expr)
            judged = judge_expression(grafana_dashboard.fill_variables(text), recorded)
            subject, compatibility = query.expr[:SHOWN], judged.compatibility
            verdicts.append(MigrationVerdict(str(path), where, subject, compatibility, judged.why, judged.mistakes))
    return verdicts
