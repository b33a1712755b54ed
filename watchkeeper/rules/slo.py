"""Generate Prometheus rules from service level objectives: error ratios, remaining error budget, burn-rate alerts.

An SLO is a few lines of YAML (packs/slo.yaml); its rules are an ordinary rule file, which the hub, promtool and any
Prometheus can load. The alerts use several windows, as is usual: the long window shows that the problem is significant,
the short one that it continues.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from watchkeeper.catalogue import causes
from watchkeeper.errors import QueryError, RuleFileError, WireError
from watchkeeper.kit import durations, wire, yaml_text
from watchkeeper.query.promql import parser
from watchkeeper.rules import rulefile
from watchkeeper.rules.yaml_source import mapping_entries

WINDOW = "[window]"
STRING_TAG = "tag:yaml.org,2002:str"
# The recorded metrics: the error ratio over a window, and the remaining share of the error budget.
RATIO = "slo:error_ratio:rate"
BUDGET = "slo:error_budget_remaining:ratio"
# The path of a problem in kit/wire: slos[0].objective
PATH = re.compile(r"[\w.\[\]]*")
PATH_STEP = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class BurnRateAlert:
    """Fires while the burn rate exceeds `factor` over both windows."""

    factor: float
    long: str
    short: str
    severity: str
    hold: str


# Google's SRE workbook, chapter 5: 2 % of a month's budget in an hour, 5 % in six hours, 10 % in a day or in three.
BURN_RATE_ALERTS = (
    BurnRateAlert(14.4, "1h", "5m", "critical", "1m"),
    BurnRateAlert(6, "6h", "30m", "critical", "5m"),
    BurnRateAlert(3, "1d", "2h", "warning", "15m"),
    BurnRateAlert(1, "3d", "6h", "warning", "30m"),
)
# The evaluation interval; the shortest window has five of them, and the used budget is a sum over intervals.
INTERVAL = "1m"
RAW_WINDOWS = ("5m", "30m", "1h", "2h")
# Longer windows average the ratios of the shortest one: reading days of raw samples at each evaluation is too slow.
AVERAGED_WINDOWS = ("6h", "1d", "3d")


@dataclass(frozen=True, slots=True)
class Slo:
    """A service level objective; `errors` and `total` are PromQL with [window] as the range."""

    name: str
    title: str
    objective: float
    window: str
    by: tuple[str, ...]
    errors: str
    total: str
    cause: str
    action: str

    def __post_init__(self) -> None:
        if not 0 < self.objective < 1:
            raise ValueError(f"`objective: {self.objective}` is not between 0 and 1; write a share such as 0.999")
        durations.parse_ms(self.window)
        if causes.lookup(self.cause).cause != self.cause:
            raise ValueError(f"`cause: {self.cause}` is not in the catalogue")
        for part in ("errors", "total"):
            text = getattr(self, part)
            if WINDOW not in text:
                raise ValueError(f"`{part}` has no {WINDOW}; use it as the range of each selector")
            try:
                parser.parse(text.replace(WINDOW, "[5m]"))
            except QueryError as error:
                raise ValueError(f"`{part}`: {error.problem}") from error

    @property
    def budget(self) -> float:
        """The share of events that may fail."""
        return round(1 - self.objective, 9)

    @property
    def alert_name(self) -> str:
        return "".join(part.capitalize() for part in self.name.split("-")) + "BudgetBurn"

    def ratio(self, window: str) -> str:
        groups = ", ".join(self.by)
        errors, total = (text.replace(WINDOW, f"[{window}]") for text in (self.errors, self.total))
        return f"sum by ({groups}) ({errors})\n  / on ({groups})\n(sum by ({groups}) ({total}) > 0)\n"


def load_slos(path: Path) -> list[Slo]:
    """Read the SLOs of a file; RuleFileProblems with every problem and its line."""
    text = rulefile.read_text(path)
    if isinstance(text, RuleFileError):
        raise rulefile.RuleFileProblems((text,))
    return read_slos(text, where=str(path))


def read_slos(text: str, *, where: str) -> list[Slo]:
    try:
        plain, root = yaml_text.load(text), yaml_text.compose(text)
    except yaml.YAMLError as error:
        mark, reason = getattr(error, "problem_mark", None), getattr(error, "problem", None) or error
        raise _file_problems([(f"not YAML: {reason}", None if mark is None else mark.line + 1)], where) from error
    if root is None or not isinstance(plain, dict) or set(plain) != {"slos"}:
        raise _file_problems([("expected one key `slos` with a list of objectives", 1)], where)
    try:
        slos = wire.from_plain(tuple[Slo, ...], plain["slos"])
    except WireError as error:
        problems = [f"slos{problem}" for problem in error.problems]
        raise _file_problems([(problem, _find_line(root, problem)) for problem in problems], where) from error
    names = [slo.name for slo in slos]
    repeated = [index for index, name in enumerate(names) if name in names[:index]]
    if repeated:
        duplicates = [(f"`name: {names[at]}` is duplicated", _find_line(root, f"slos[{at}].name")) for at in repeated]
        raise _file_problems(duplicates, where)
    return list(slos)


def _file_problems(problems: Sequence[tuple[str, int | None]], where: str) -> rulefile.RuleFileProblems:
    return rulefile.RuleFileProblems(tuple(RuleFileError(problem, path=where, line=line) for problem, line in problems))


def _find_line(root: yaml.Node, problem: str) -> int:
    """The line of a problem that starts with a path such as slos[2].by; the nearest parent if the path is missing."""
    node, line = root, root.start_mark.line + 1
    for step in PATH_STEP.findall(PATH.match(problem)[0]):  # type: ignore[index]
        if step.isdigit() and isinstance(node, yaml.SequenceNode) and int(step) < len(node.value):
            node = node.value[int(step)]
            line = node.start_mark.line + 1
        elif isinstance(node, yaml.MappingNode) and step in (children := dict(mapping_entries(node))):
            node, line = children[step].node, children[step].line
        else:
            break
    return line


def render_rules(slos: list[Slo], *, source: str) -> str:
    groups = [{"name": f"slo-{slo.name}", "interval": INTERVAL, "rules": _build_rules(slo)} for slo in slos]
    body = yaml.dump({"groups": groups}, Dumper=_Writer, sort_keys=False, allow_unicode=True, width=118)
    return f"# Error budgets and burn-rate alerts of the objectives in {source}; generated, do not edit.\n{body}"


def _build_rules(slo: Slo) -> list[dict[str, object]]:
    short = f'{RATIO}{RAW_WINDOWS[0]}{{slo="{slo.name}"}}'
    expressions = {f"{RATIO}{window}": slo.ratio(window) for window in RAW_WINDOWS}
    expressions |= {f"{RATIO}{window}": f"avg_over_time({short}[{window}])" for window in AVERAGED_WINDOWS}
    # Each evaluation counts for its interval. Intervals without traffic or before the first sample use no budget; an
    # average of existing samples would report one bad minute of a new SLO as a bad month.
    allowed = slo.budget * durations.parse_seconds(slo.window) / durations.parse_seconds(INTERVAL)
    expressions[BUDGET] = f"1 - sum_over_time({short}[{slo.window}]) / {allowed:.9g}"
    recorded: list[dict[str, object]] = [
        {"record": name, "expr": expr, "labels": {"slo": slo.name}} for name, expr in expressions.items()
    ]
    return [*recorded, *(_build_alert(slo, burn) for burn in BURN_RATE_ALERTS)]


def _build_alert(slo: Slo, burn: BurnRateAlert) -> dict[str, object]:
    limit = round(burn.factor * slo.budget, 9)
    groups = ", ".join(slo.by)
    expr = (
        f'{RATIO}{burn.long}{{slo="{slo.name}"}} > {limit}\n'
        f"  and on ({groups})\n"
        f'{RATIO}{burn.short}{{slo="{slo.name}"}} > {limit}\n'
    )
    share = durations.parse_seconds(slo.window) / burn.factor
    return {
        "alert": slo.alert_name,
        "expr": expr,
        "for": burn.hold,
        "labels": {"severity": burn.severity, "cause": slo.cause, "window": burn.long},
        "annotations": {
            "summary": f"The error budget for {slo.title} burns too fast",
            "description": (
                f"The error ratio over {burn.long} is {{{{ $value | humanizePercentage }}}}, the SLO allows "
                f"{slo.budget * 100:.4g}%. At this rate the error budget of {slo.window} is used up in "
                f"{durations.format_seconds(round(share))} or less."
            ),
            "action": slo.action,
            "runbook_url": f"docs/runbooks/{causes.lookup(slo.cause).runbook}.md",
        },
    }


class _Writer(yaml.SafeDumper):
    """A YAML writer with expressions as readable blocks, and without anchors for equal labels."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002
        return True


_Writer.add_representer(
    str, lambda writer, text: writer.represent_scalar(STRING_TAG, text, style="|" if "\n" in text else None)
)
