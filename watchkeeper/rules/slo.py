"""Service level objectives become Prometheus rules: shares of errors, the budget that is left, burn-rate alerts.

An objective is a few lines of YAML (packs/slo.yaml). `read` checks them, `render` writes an ordinary rule
file, which the hub, promtool and any Prometheus load like every other. The alerts follow the usual
several-windows scheme: a long window says that it matters, a short one that it still goes on.
"""

from __future__ import annotations

from dataclasses import dataclass

import yaml

from watchkeeper.catalogue import causes
from watchkeeper.errors import QueryError, SettingsError, WireError
from watchkeeper.kit import durations, wire
from watchkeeper.query.promql import parser

WINDOW = "[window]"


@dataclass(frozen=True, slots=True)
class Burn:
    """Fires while the budget burns `factor` times too fast over both windows."""

    factor: float
    long: str
    short: str
    severity: str
    hold: str


# Google's SRE workbook, chapter 5: 2 % of a month's budget in an hour, 5 % in six hours, 10 % in a day or in three.
BURNS = (
    Burn(14.4, "1h", "5m", "critical", "1m"),
    Burn(6, "6h", "30m", "critical", "5m"),
    Burn(3, "1d", "2h", "warning", "15m"),
    Burn(1, "3d", "6h", "warning", "30m"),
)
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

    def ratio(self, window: str) -> str:
        groups = ", ".join(self.by)
        errors, total = (text.replace(WINDOW, f"[{window}]") for text in (self.errors, self.total))
        return f"sum by ({groups}) ({errors})\n  / on ({groups})\n(sum by ({groups}) ({total}) > 0)\n"


def read(text: str, *, where: str) -> list[Slo]:
    """The objectives of a file, or a SettingsError with every problem."""
    try:
        plain = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise SettingsError(f"not YAML: {error}", where=where) from error
    if not isinstance(plain, dict) or set(plain) != {"slos"}:
        raise SettingsError("expected one key `slos` with a list of objectives", where=where)
    try:
        found = wire.from_plain(tuple[Slo, ...], plain["slos"])
    except WireError as error:
        problems = tuple(f"slos{problem}" for problem in error.problems)
        raise SettingsError("the objectives have mistakes", problems=problems, where=where) from error
    names = [one.name for one in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise SettingsError(f"`name: {twice[0]}` stands twice", where=where)
    return list(found)


def render(slos: list[Slo], *, source: str) -> str:
    """A Prometheus rule file with one group for each objective."""
    groups = [{"name": f"slo-{one.name}", "rules": _rules(one)} for one in slos]
    body = yaml.dump({"groups": groups}, Dumper=_Writer, sort_keys=False, allow_unicode=True, width=118)
    return f"# Error budgets and burn-rate alerts of the objectives in {source}; written by a program.\n{body}"


def _rules(one: Slo) -> list[dict[str, object]]:
    labels = {"slo": one.name}
    recorded: list[dict[str, object]] = [
        {"record": f"slo:error_ratio:rate{window}", "expr": one.ratio(window), "labels": labels}
        for window in RAW_WINDOWS
    ]
    short = f'slo:error_ratio:rate5m{{slo="{one.name}"}}'
    recorded += [
        {"record": f"slo:error_ratio:rate{window}", "expr": f"avg_over_time({short}[{window}])", "labels": labels}
        for window in AVERAGED_WINDOWS
    ]
    left = f"1 - avg_over_time({short}[{one.window}]) / {one.budget}"
    recorded.append({"record": "slo:error_budget_remaining:ratio", "expr": left, "labels": labels})
    return [*recorded, *(_alert(one, burn) for burn in BURNS)]


def _alert(one: Slo, burn: Burn) -> dict[str, object]:
    name = "".join(part.capitalize() for part in one.name.split("-")) + "BudgetBurn"
    limit = round(burn.factor * one.budget, 9)
    groups = ", ".join(one.by)
    expr = (
        f'slo:error_ratio:rate{burn.long}{{slo="{one.name}"}} > {limit}\n'
        f"  and on ({groups})\n"
        f'slo:error_ratio:rate{burn.short}{{slo="{one.name}"}} > {limit}\n'
    )
    share = durations.parse_seconds(one.window) / burn.factor
    return {
        "alert": name,
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
            "runbook_url": causes.lookup(one.cause).runbook,
        },
    }


class _Writer(yaml.SafeDumper):
    """Expressions as blocks, so that a person can read them, and no anchors between equal labels."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002
        return True


def _block(writer: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return writer.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Writer.add_representer(str, _block)
