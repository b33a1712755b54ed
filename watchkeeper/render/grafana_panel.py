"""One panel of a dashboard as Grafana's JSON, and its place on the page.

A panel that names an alert leads to its runbook, and takes its limit from the alert's own expression, so that a
threshold is written once. `grafana.board` fills a `Shelf` row by row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from importlib import resources
from typing import Any

from watchkeeper.kit import yaml_text
from watchkeeper.query.promql import ast, parser

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
# Grafana's page is 24 wide.
PAGE = 24
REF_IDS = "ABCDEFGH"
# Before the name of a page, in its address.
UID = "watchkeeper-"
# What a way to another page takes along.
KEPT = "${__url_time_range}&${datasource:queryparam}&${cluster:queryparam}"


class PanelKind(StrEnum):
    """How a panel looks, in our words; `TYPES` has Grafana's."""

    STAT = "stat"
    TIMESERIES = "timeseries"
    BARS = "bars"
    TABLE = "table"


TYPES = {
    PanelKind.STAT: "stat",
    PanelKind.TIMESERIES: "timeseries",
    PanelKind.BARS: "bargauge",
    PanelKind.TABLE: "table",
}
HEIGHTS = {PanelKind.STAT: 4, PanelKind.TIMESERIES: 8, PanelKind.BARS: 8, PanelKind.TABLE: 8}


@dataclass(frozen=True, slots=True)
class PanelQuery:
    expr: str
    legend: str = ""
    # Counts that `increase` has extrapolated are shown whole.
    round: bool = False


@dataclass(frozen=True, slots=True)
class DashboardPanel:
    """`width` 0 shares the row; `colors` are steps, each from a value on; `alert` gives runbook and limit."""

    title: str
    kind: PanelKind
    about: str
    queries: tuple[PanelQuery, ...]
    unit: str = "short"
    width: int = 0
    max: float | None = None
    stacked: bool = False
    scale: str = "linear"
    colors: dict[str, str] = field(default_factory=dict)
    columns: dict[str, str] = field(default_factory=dict)
    alert: str | None = None
    shows_limit: bool = False


@dataclass(frozen=True, slots=True)
class AlertThreshold:
    """What an alert compares with: it fires above or below a value."""

    value: float
    is_upper: bool


@dataclass(frozen=True, slots=True)
class LinkTargets:
    """Where links of a page lead: the console, and the documents where they can be read."""

    page: str
    console_url: str
    docs_url: str | None


class PanelGrid:
    """Places panels from left to right and from top to bottom."""

    def __init__(self, site: LinkTargets) -> None:
        self.panels: list[dict[str, Any]] = []
        self._site = site
        self._top = 0

    def add_row(self, title: str, panels: tuple[DashboardPanel, ...]) -> None:
        self._put({"type": "row", "title": title, "collapsed": False, "panels": []}, 0, width=PAGE, height=1)
        self._top += 1
        left = tallest = 0
        for panel in panels:
            width, height = panel.width or _share(panel, panels), HEIGHTS[panel.kind]
            if left + width > PAGE:
                self._top += tallest
                left = tallest = 0
            self._put(panel_json(panel, self._site), left, width=width, height=height)
            left, tallest = left + width, max(tallest, height)
        self._top += tallest

    def _put(self, panel: dict[str, Any], left: int, *, width: int, height: int) -> None:
        at = {"x": left, "y": self._top, "w": width, "h": height}
        self.panels.append({"id": len(self.panels) + 1, **panel, "gridPos": at})


def _share(panel: DashboardPanel, panels: tuple[DashboardPanel, ...]) -> int:
    """Numbers share one line of the page; charts stand two by two."""
    if panel.kind is not PanelKind.STAT:
        return PAGE // 2
    return PAGE // sum(one.kind is PanelKind.STAT for one in panels)


def panel_json(panel: DashboardPanel, site: LinkTargets) -> dict[str, Any]:
    found: dict[str, Any] = {
        "type": TYPES[panel.kind],
        "title": panel.title,
        "description": panel.about,
        "datasource": DATASOURCE,
        "targets": [_target(panel, number) for number in range(len(panel.queries))],
        "fieldConfig": {"defaults": _defaults(panel) | _ways_on(panel, site), "overrides": _cell_links(panel)},
        "options": _options(panel),
    }
    if panel.kind is PanelKind.TABLE:
        found["transformations"] = [_columns(panel)]
    if panel.alert is not None and site.docs_url is not None:
        where = f"{site.docs_url.rstrip('/')}/{runbook_path(panel.alert).removeprefix('docs/')}"
        found["links"] = [{"title": f"Runbook of {panel.alert}", "url": where, "targetBlank": True}]
    return found


def _target(panel: DashboardPanel, number: int) -> dict[str, Any]:
    query = panel.queries[number]
    is_instant = panel.kind is not PanelKind.TIMESERIES
    found: dict[str, Any] = {
        "refId": REF_IDS[number],
        "datasource": DATASOURCE,
        "expr": f"round({query.expr})" if query.round else query.expr,
        "instant": is_instant,
        "range": not is_instant,
        "legendFormat": query.legend or "__auto",
        "editorMode": "code",
    }
    return found | ({"format": "table"} if panel.kind is PanelKind.TABLE else {})


def _defaults(panel: DashboardPanel) -> dict[str, Any]:
    steps = [(float(at), color) for at, color in panel.colors.items()] or _limit_steps(panel)
    found: dict[str, Any] = {"unit": panel.unit, "noValue": "–"}
    if steps:
        # Below the first step its colour holds as well: Grafana writes that step without a number.
        written = [{"value": at if number else None, "color": color} for number, (at, color) in enumerate(steps)]
        found["thresholds"] = {"mode": "absolute", "steps": written}
        found["color"] = {"mode": "palette-classic" if panel.kind is PanelKind.TIMESERIES else "thresholds"}
    if panel.max is not None:
        found |= {"min": 0, "max": panel.max}
    if panel.kind is PanelKind.TIMESERIES:
        found["custom"] = {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 40 if panel.stacked else 0,
            "showPoints": "never",
            # A gap is a gap: missing is never drawn as if it were known.
            "spanNulls": False,
            "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
            "scaleDistribution": {"type": "log", "log": 10} if panel.scale == "log" else {"type": "linear"},
            "thresholdsStyle": {"mode": "line" if steps else "off"},
        }
    return found


def _ways_on(panel: DashboardPanel, site: LinkTargets) -> dict[str, Any]:
    """A click on a line leads on: from a node to its page, from a GPU to its own, and from there to the console."""
    legends = [query.legend for query in panel.queries]
    if not all("{{Hostname}}" in legend for legend in legends):
        return {}
    if not all("{{gpu}}" in legend for legend in legends):
        return {"links": [_to_page("node", "This node", {"node": "Hostname"})]} if site.page != "node" else {}
    if site.page != "gpu":
        return {"links": [_to_page("gpu", "This GPU", {"node": "Hostname", "gpu": "gpu"})]}
    url = f"{site.console_url}/gpu/${{__field.labels.UUID}}"
    return {"links": [{"title": "This GPU in the console", "url": url, "targetBlank": True}]}


def _to_page(page: str, title: str, chosen: dict[str, str]) -> dict[str, Any]:
    variables = "".join(f"&var-{name}=${{__field.labels.{label}}}" for name, label in chosen.items())
    return {"title": title, "url": f"/d/{UID}{page}?{KEPT}{variables}", "targetBlank": False}


def _cell_links(panel: DashboardPanel) -> list[dict[str, Any]]:
    """The name of a node in a table leads to its page."""
    if panel.columns.get("Hostname") is None:
        return []
    link = {"title": "This node", "url": f"/d/{UID}node?{KEPT}&var-node=${{__value.text}}", "targetBlank": False}
    column = {"id": "byName", "options": panel.columns["Hostname"]}
    return [{"matcher": column, "properties": [{"id": "links", "value": [link]}]}]


def _limit_steps(panel: DashboardPanel) -> list[tuple[float, str]]:
    if panel.alert is None or not panel.shows_limit:
        return []
    limit = alert_threshold(panel.alert)
    below, above = ("green", "red") if limit.is_upper else ("red", "green")
    return [(-math.inf, below), (limit.value, above)]


def _options(panel: DashboardPanel) -> dict[str, Any]:
    if panel.kind is PanelKind.TIMESERIES:
        return {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    if panel.kind is PanelKind.TABLE:
        return {"showHeader": True, "cellHeight": "sm"}
    reduced = {"calcs": ["lastNotNull"], "fields": "", "values": False}
    if panel.kind is PanelKind.BARS:
        return {"orientation": "horizontal", "displayMode": "basic", "showUnfilled": True, "reduceOptions": reduced}
    return {
        "colorMode": "value",
        "graphMode": "none",
        "justifyMode": "auto",
        "textMode": "value",
        "reduceOptions": reduced,
    }


def _columns(panel: DashboardPanel) -> dict[str, Any]:
    """Only the columns that the panel names, in its order, under names for people."""
    return {
        "id": "organize",
        "options": {
            "excludeByName": {"Time": True, "Value": True},
            "indexByName": {name: at for at, name in enumerate(panel.columns)},
            "renameByName": dict(panel.columns),
        },
    }


def runbook_path(alert: str) -> str:
    """The path of the runbook that the shipped rule of this name leads to."""
    return str(_rules()[alert]["annotations"]["runbook_url"])


@cache
def alert_threshold(alert: str) -> AlertThreshold:
    """What the shipped rule of this name compares with at its end; ValueError where that is not one number."""
    tree = parser.parse(_rules()[alert]["expr"])
    if isinstance(tree, ast.Binary) and isinstance(tree.right, ast.Number) and tree.op in (">", ">=", "<", "<="):
        return AlertThreshold(tree.right.value, tree.op.startswith(">"))
    raise ValueError(f"{alert} does not end in a comparison with a number, so there is no limit to draw")


@cache
def _rules() -> dict[str, dict[str, Any]]:
    folder = resources.files("watchkeeper").joinpath("packs", "rules")
    texts = [one.read_text(encoding="utf-8") for one in folder.iterdir() if one.name.endswith(".yaml")]
    groups = [group for text in texts for group in yaml_text.load(text)["groups"]]
    return {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}
