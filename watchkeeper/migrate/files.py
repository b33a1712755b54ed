"""Files of somebody else's monitoring into verdicts: counters of dcgm-exporter, Prometheus rules, Grafana dashboards.

`cli.doctor.migrate` gives paths and prints what comes back. The ending says which kind a file is; folders are
searched. Rules are read first, because dashboards ask for what they record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from watchkeeper.errors import RuleFileError, error_reason
from watchkeeper.kit import yaml_text
from watchkeeper.migrate.expression import judge_expression
from watchkeeper.migrate.verdict import Compatibility, MigrationVerdict
from watchkeeper.readers import counters_csv, grafana_dashboard
from watchkeeper.readers.nvml import choice
from watchkeeper.rules import rulefile

SUFFIXES = (".csv", ".yaml", ".yml", ".json", ".rules")
MAX_BYTES = 16 * 2**20
SHOWN = 200


@dataclass(frozen=True, slots=True)
class FileRules:
    """The rules of one file; those of a PrometheusRule have no line of it."""

    path: Path
    rules: tuple[rulefile.Rule, ...]
    has_lines: bool


def judge_files(paths: Sequence[Path], shipped: rulefile.RuleSet) -> list[MigrationVerdict]:
    """A verdict for everything in these files and folders; `shipped` are the rules that are here already."""
    texts = {path: _text(path) for path in _files(paths)}
    found = [text for text in texts.values() if isinstance(text, MigrationVerdict)]
    read: list[FileRules] = []
    for path, text in texts.items():
        if isinstance(text, str) and path.suffix not in (".csv", ".json"):
            read += _read_rules(path, text, found, is_named=path in paths)
    theirs = [rule for one in read for rule in one.rules]
    recorded = frozenset(rule.name for rule in (*shipped.rules, *theirs) if isinstance(rule, rulefile.RecordingRule))
    for path, text in texts.items():
        if isinstance(text, str) and path.suffix == ".csv":
            found += _counters(path, text)
        elif isinstance(text, str) and path.suffix == ".json":
            found += _dashboard(path, text, recorded, is_named=path in paths)
    named = frozenset(rule.name for rule in shipped.rules if isinstance(rule, rulefile.AlertingRule))
    return [*found, *(_rule(one, rule, recorded, named) for one in read for rule in one.rules)]


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield from sorted(one for one in path.rglob("*") if one.suffix in SUFFIXES and one.is_file())
        else:
            yield path


def _text(path: Path) -> str | MigrationVerdict:
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            return MigrationVerdict(
                str(path), "", path.name, Compatibility.CANNOT, (f"it has {size:,} bytes, the limit is {MAX_BYTES:,}",)
            )
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        return MigrationVerdict(
            str(path), "", path.name, Compatibility.CANNOT, (f"it cannot be read: {error_reason(error)}",)
        )


def _read_rules(path: Path, text: str, found: list[MigrationVerdict], *, is_named: bool) -> Iterator[FileRules]:
    """The rules of one file; what is wrong with it goes to `found`. Other YAML of a folder is passed over."""
    rules = extract_rules(text)
    if rules is None:
        if is_named:
            why = "it has neither rule groups nor a PrometheusRule"
            found.append(MigrationVerdict(str(path), "", path.name, Compatibility.CANNOT, (why,)))
        return
    try:
        yield FileRules(path, rulefile.read_rules({str(path): rules}).rules, has_lines=rules == text)
    except rulefile.RuleFileProblems as error:
        found += [_problem(path, one) for one in error.problems]


def extract_rules(text: str) -> str | None:
    """The rule file in a text: itself, or the groups of the operator's PrometheusRules in it; None without any."""
    try:
        documents = [one for one in yaml_text.load_all(text) if isinstance(one, dict)]
    except yaml.YAMLError:
        # The reader of rule files says where it is wrong.
        return text
    if any("groups" in one for one in documents):
        return text
    specs = [one.get("spec") for one in documents if one.get("kind") == "PrometheusRule"]
    groups = [group for spec in specs if isinstance(spec, dict) for group in spec.get("groups") or ()]
    return yaml.safe_dump({"groups": groups}, sort_keys=False) if groups else None


def _problem(path: Path, problem: RuleFileError) -> MigrationVerdict:
    where = f"line {problem.line}" if problem.line else ""
    return MigrationVerdict(str(path), where, "rule file", Compatibility.CANNOT, (problem.problem,))


def _rule(one: FileRules, rule: rulefile.Rule, recorded: frozenset[str], named: frozenset[str]) -> MigrationVerdict:
    judged = judge_expression(rule.expr, recorded)
    why = list(judged.why)
    if isinstance(rule, rulefile.AlertingRule):
        if rule.name in named:
            why.append("a shipped rule has this name: leave one of them out")
        if "cause" not in rule.labels:
            why.append("its incidents have no cause unless it gets a label `cause` (docs/reference/alerts.md)")
    where = f"line {rule.line}" if one.has_lines else ""
    return MigrationVerdict(str(one.path), where, rule.name, judged.standing, tuple(why))


def _counters(path: Path, text: str) -> list[MigrationVerdict]:
    file = counters_csv.read(text.splitlines())
    found = [_counter(path, counter) for counter in file.counters]
    lines = text.splitlines()
    for problem in file.problems:
        line, _, what = problem.partition(": ")
        subject = lines[int(line.removeprefix("line ")) - 1]
        found.append(MigrationVerdict(str(path), line, subject[:SHOWN], Compatibility.CANNOT, (what,)))
    return found


def _counter(path: Path, counter: counters_csv.Counter) -> MigrationVerdict:
    known = choice.dcgm_families().get(counter.name)
    if known is None:
        why = "NVML cannot give it; keep dcgm-exporter for this field"
        return MigrationVerdict(str(path), f"line {counter.line}", counter.name, Compatibility.CANNOT, (why,))
    family, is_chosen = known
    why_not: tuple[str, ...] = ()
    if not is_chosen:
        why_not += ("not shown unasked: start the agent with --counters and this file",)
    if counter.prom_type != family.prom_type:
        why_not += (f"the file calls it a {counter.prom_type}, DCGM's own files a {family.prom_type}",)
    return MigrationVerdict(str(path), f"line {counter.line}", counter.name, Compatibility.WORKS, why_not)


def _dashboard(path: Path, text: str, recorded: frozenset[str], *, is_named: bool) -> list[MigrationVerdict]:
    try:
        dashboard = grafana_dashboard.read_dashboard(text)
    except grafana_dashboard.NotADashboard as error:
        if error.is_other and not is_named:
            return []
        return [MigrationVerdict(str(path), "", path.name, Compatibility.CANNOT, (f"no dashboard: {error}",))]
    found = []
    for question in dashboard.queries:
        where = f"{dashboard.title} / {question.panel}"
        if question.expr is None:
            why = (f"it asks {question.language}, not Prometheus",)
            found.append(MigrationVerdict(str(path), where, question.language, Compatibility.CANNOT, why))
        else:
            judged = judge_expression(grafana_dashboard.fill_variables(question.expr), recorded)
            found.append(MigrationVerdict(str(path), where, question.expr[:SHOWN], judged.standing, judged.why))
    return found
