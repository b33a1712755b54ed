"""A Grafana dashboard's JSON into its questions: each query of each panel and variable, with where it stands.

Dashboards come as the export has them, or inside an API's answer (`{"dashboard": …}`). Variables of Grafana are not
PromQL; `filled` puts in what a first look at the dashboard would send.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from watchkeeper.readers import json_facts

# Rows inside rows are not made by Grafana; whoever nests deeper sends no dashboard.
DEEPEST = 4
VARIABLE = r"(?:\$\{\w+(?::\w+)?\}|\$\w+|\[\[\w+\]\])"
QUOTED = re.compile(rf"""(?P<op>!=|=~|!~|=)\s*(?P<quote>["'])(?P<text>[^"']*{VARIABLE}[^"']*)["']""")
IN_RANGE = re.compile(rf"\[\s*{VARIABLE}(?=\s*[:\]])|(?<=:)\s*{VARIABLE}(?=\s*\])|(?<=offset )\s*{VARIABLE}")
IN_GROUPING = re.compile(
    rf"(?P<head>\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*?)(?:,\s*)?{VARIABLE}"
)
# ${prefix}_busy: only a name in brackets ends before the letters that follow.
PREFIX = re.compile(r"(?:\$\{\w+(?::\w+)?\}|\[\[\w+\]\])(?=[a-zA-Z_])")
# label_values(up{job="x"}, instance), query_result(up), metrics(DCGM_.*)
LABEL_VALUES = re.compile(r"\s*label_values\s*\(\s*(?P<expr>.+?)\s*,\s*\w+\s*\)\s*", re.DOTALL)
QUERY_RESULT = re.compile(r"\s*query_result\s*\((?P<expr>.+)\)\s*", re.DOTALL)


class NotADashboard(ValueError):
    """The text is no dashboard; the message says why. `is_other` is true for JSON of another kind."""

    def __init__(self, problem: str, *, is_other: bool = False) -> None:
        super().__init__(problem)
        self.is_other = is_other


@dataclass(frozen=True, slots=True)
class DashboardQuery:
    """One query. `expr` is None where it is not Prometheus that is asked; `language` says who is."""

    panel: str
    expr: str | None
    language: str = "prometheus"


@dataclass(frozen=True, slots=True)
class Dashboard:
    title: str
    queries: tuple[DashboardQuery, ...]


def read_dashboard(text: str) -> Dashboard:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise NotADashboard(f"not JSON: {error}") from error
    plain = found.get("dashboard", found) if isinstance(found, dict) else None
    if not isinstance(plain, dict) or not ({"panels", "rows", "templating"} & plain.keys()):
        raise NotADashboard("it has neither panels nor variables", is_other=True)
    questions = [*_variables(plain), *_panels(plain, 0)]
    return Dashboard(json_facts.text(plain, "title") or "untitled", tuple(questions))


def fill_variables(expr: str) -> str:
    """The expression with Grafana's variables filled in: any value, five minutes, no more groups."""
    expr = IN_RANGE.sub(lambda match: "[5m" if match[0].startswith("[") else "5m", expr)
    expr = QUOTED.sub(lambda match: '=~".*"' if match["op"] in ("=", "=~") else '!~"nothing"', expr)
    expr = IN_GROUPING.sub(lambda match: match["head"], expr)
    # A prefix of metric names is empty by default; what is left stands for a number.
    return re.sub(VARIABLE, "1", PREFIX.sub("", expr))


def _panels(plain: dict[str, Any], depth: int) -> Iterator[DashboardQuery]:
    if depth > DEEPEST:
        return
    for row in _list(plain, "rows"):
        yield from _panels(row, depth + 1)
    for panel in _list(plain, "panels"):
        title = json_facts.text(panel, "title") or json_facts.text(panel, "type") or "untitled panel"
        source = _source(panel.get("datasource"))
        for target in _list(panel, "targets"):
            yield _question(title, target, _source(target.get("datasource")) or source)
        yield from _panels(panel, depth + 1)


def _question(title: str, target: dict[str, Any], source: str) -> DashboardQuery:
    expr = target.get("expr")
    if isinstance(expr, str) and expr.strip() and source in ("", "prometheus", "mixed"):
        return DashboardQuery(title, expr)
    for key in ("rawSql", "rawQuery", "query", "target", "expression"):
        if isinstance(target.get(key), str):
            return DashboardQuery(title, None, source or key)
    return DashboardQuery(title, None, source or "no query")


def _variables(plain: dict[str, Any]) -> Iterator[DashboardQuery]:
    held = plain.get("templating")
    for variable in _list(held if isinstance(held, dict) else {}, "list"):
        if variable.get("type") != "query":
            continue
        query = variable.get("query")
        text = query.get("query", "") if isinstance(query, dict) else query
        if isinstance(text, str) and text.strip():
            yield from _of_variable(f"variable {json_facts.text(variable, 'name')}", text)


def _of_variable(title: str, text: str) -> Iterator[DashboardQuery]:
    match = LABEL_VALUES.fullmatch(text) or QUERY_RESULT.fullmatch(text)
    if match is not None:
        yield DashboardQuery(title, match["expr"])
    # label_values(instance) and metrics(…) ask for what is there, whatever it is.


def _source(value: Any) -> str:
    """The kind of data source; an old dashboard names it only, and a name says nothing."""
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind not in ("datasource", ""):
        return "mixed" if "mixed" in kind else kind
    return ""


def _list(plain: dict[str, Any], key: str) -> list[dict[str, Any]]:
    value = plain.get(key)
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
