"""Service level objectives become Prometheus rules: shares of errors, the budget that is left, burn-rate alerts.

An objective is a few lines of YAML (packs/slo.yaml). `read` checks them, `render` writes an ordinary rule
file, which the hub, promtool and any Prometheus load like every other. The alerts follow the usual
several-windows scheme: a long window says that it matters, a short one that it still goes on.
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
from watchkeeper.rules.source import entries

WINDOW = "[window]"
# What the rules record: the share of errors over a window, and the share of the budget that is left.
RATIO = "slo:error_ratio:rate"
BUDGET = "slo:error_budget_remaining:ratio"
# As kit/wire names a place: slos[0].objective
PATH = re.compile(r"[\w.\[\]]*")
PATH_STEP = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class BurnRateAlert:
    """Fires while the budget burns `factor` times too fast over both windows."""

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
# The shortest window has five of these; what is left of a budget is counted in them.
INTERVAL = "1m"
RAW_WINDOWS = ("5m", "30m", "1h", "2h")
# Longer ones are averaged from the short ratios: nobody keeps days of raw samples, or wants to read them each time.
AVERAGED_WINDOWS = ("6h", "1d", "3d")


@dataclass(frozen=True, slots=True)
class Slo:
    """One objective; `errors` and `total` are PromQL with [window] where a range belongs."""

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
            raise ValueError(f"`objective: {self.objective}` is not a share between 0 and 1, such as 0.999")
        durations.parse_ms(self.window)
        if causes.lookup(self.cause).cause != self.cause:
            raise ValueError(f"`cause: {self.cause}` is not in the catalogue")
        for part in ("errors", "total"):
            text = getattr(self, part)
            if WINDOW not in text:
                raise ValueError(f"`{part}` has no {WINDOW}, so it cannot be asked over several windows")
            try:
                parser.parse(text.replace(WINDOW, "[5m]"))
            except QueryError as error:
                raise ValueError(f"`{part}`: {error.problem}") from error

    @property
    def budget(self) -> float:
        """The share of events that may go wrong."""
        return round(1 - self.objective, 9)

    @property
    def alert_name(self) -> str:
        return "".join(part.capitalize() for part in self.name.split("-")) + "BudgetBurn"

    def ratio(self, window: str) -> str:
        groups = ", ".join(self.by)
        errors, total = (text.replace(WINDOW, f"[{window}]") for text in (self.errors, self.total))
        return f"sum by ({groups}) ({errors})\n  / on ({groups})\n(sum by ({groups}) ({total}) > 0)\n"


def load_slos(path: Path) -> list[Slo]:
    """The objectives of a file, or RuleFileProblems with every problem and its line."""
    text = rulefile.text_of(path)
    if isinstance(text, RuleFileError):
        raise rulefile.RuleFileProblems((text,))
    return read_slos(text, where=str(path))


def read_slos(text: str, *, where: str) -> list[Slo]:
    """The objectives of a text; `where` is the file it comes from."""
    try:
        plain, root = yaml_text.load(text), yaml_text.compose(text)
    except yaml.YAMLError as error:
        mark, reason = getattr(error, "problem_mark", None), getattr(error, "problem", None) or error
        raise _refusal([(f"not YAML: {reason}", None if mark is None else mark.line + 1)], where) from error
    if root is None or not isinstance(plain, dict) or set(plain) != {"slos"}:
        raise _refusal([("expected one key `slos` with a list of objectives", 1)], where)
    try:
        found = wire.from_plain(tuple[Slo, ...], plain["slos"])
    except WireError as error:
        problems = [f"slos{problem}" for problem in error.problems]
        raise _refusal([(problem, _line(root, problem)) for problem in problems], where) from error
    names = [one.name for one in found]
    twice = [at for at, name in enumerate(names) if name in names[:at]]
    if twice:
        said = [(f"`name: {names[at]}` stands twice", _line(root, f"slos[{at}].name")) for at in twice]
        raise _refusal(said, where)
    return list(found)


def _refusal(problems: Sequence[tuple[str, int | None]], where: str) -> rulefile.RuleFileProblems:
    return rulefile.RuleFileProblems(tuple(RuleFileError(problem, path=where, line=line) for problem, line in problems))


def _line(root: yaml.Node, problem: str) -> int:
    """The line of what a problem is about, which begins with a path such as slos[2].by; as near as there is one."""
    node, line = root, root.start_mark.line + 1
    for step in PATH_STEP.findall(PATH.match(problem)[0]):  # type: ignore[index]
        if step.isdigit() and isinstance(node, yaml.SequenceNode) and int(step) < len(node.value):
            node = node.value[int(step)]
            line = node.start_mark.line + 1
        elif isinstance(node, yaml.MappingNode) and step in (found := dict(entries(node))):
            node, line = found[step].node, found[step].line
        else:
            break
    return line


def render_rules(slos: list[Slo], *, source: str) -> str:
    """A Prometheus rule file with one group for each objective."""
    groups = [{"name": f"slo-{one.name}", "interval": INTERVAL, "rules": _rules(one)} for one in slos]
    body = yaml.dump({"groups": groups}, Dumper=_Writer, sort_keys=False, allow_unicode=True, width=118)
    return f"# Error budgets and burn-rate alerts of the objectives in {source}; written by a program.\n{body}"


def _rules(one: Slo) -> list[dict[str, object]]:
    labels = {"slo": one.name}
    recorded: list[dict[str, object]] = [
        {"record": f"{RATIO}{window}", "expr": one.ratio(window), "labels": labels} for window in RAW_WINDOWS
    ]
    short = f'{RATIO}{RAW_WINDOWS[0]}{{slo="{one.name}"}}'
    recorded += [
        {"record": f"{RATIO}{window}", "expr": f"avg_over_time({short}[{window}])", "labels": labels}
        for window in AVERAGED_WINDOWS
    ]
    # Each evaluation stands for its interval: it is time that went wrong that is summed up. Time without traffic, or
    # before the first sample, used up nothing; an average over what is there would call a first bad minute a bad month.
    allowed = one.budget * durations.parse_seconds(one.window) / durations.parse_seconds(INTERVAL)
    left = f"1 - sum_over_time({short}[{one.window}]) / {allowed:.9g}"
    recorded.append({"record": BUDGET, "expr": left, "labels": labels})
    return [*recorded, *(_alert(one, burn) for burn in BURN_RATE_ALERTS)]


def _alert(one: Slo, burn: BurnRateAlert) -> dict[str, object]:
    limit = round(burn.factor * one.budget, 9)
    groups = ", ".join(one.by)
    expr = (
        f'{RATIO}{burn.long}{{slo="{one.name}"}} > {limit}\n'
        f"  and on ({groups})\n"
        f'{RATIO}{burn.short}{{slo="{one.name}"}} > {limit}\n'
    )
    share = durations.parse_seconds(one.window) / burn.factor
    return {
        "alert": one.alert_name,
        "expr": expr,
        "for": burn.hold,
        "labels": {"severity": burn.severity, "cause": one.cause, "window": burn.long},
        "annotations": {
            "summary": f"The error budget for {one.title} burns too fast",
            "description": (
                f"{{{{ $value | humanizePercentage }}}} went wrong over {burn.long}; {one.budget:.4g} of all may. "
                f"At this rate the budget of {one.window} is gone in {durations.format_seconds(round(share))} or less."
            ),
            "action": one.action,
            "runbook_url": f"docs/runbooks/{causes.lookup(one.cause).runbook}.md",
        },
    }


class _Writer(yaml.SafeDumper):
    """Expressions as blocks, so that a person can read them, and no anchors between equal labels."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002
        return True


def _block(writer: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return writer.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Writer.add_representer(str, _block)
