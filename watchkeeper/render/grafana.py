"""`render grafana`: dashboards and their provisioning.

A dashboard is a file of packs/dashboards: rows of panels with queries. `dashboard` makes its Grafana JSON and
`grafana_panel` that of one panel; tests check the result with Grafana's own SDK, the embedded engine and Prometheus.
docs/decisions/0016-dashboards.md explains why that SDK does not write the JSON.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from watchkeeper.accounting import price_file
from watchkeeper.catalogue import pack
from watchkeeper.config import settings as config
from watchkeeper.errors import PackError
from watchkeeper.kit import wire
from watchkeeper.kit import yaml_text as kit_yaml
from watchkeeper.render import yaml_text
from watchkeeper.render.grafana_panel import DATASOURCE, UID, DashboardPanel, LinkTargets, PanelGrid
from watchkeeper.render.tree import RenderedFile

# The version that Grafana 12 writes; older releases read it, newer ones migrate it.
SCHEMA_VERSION = 42
# In the order of the menu.
NAMES = ("fleet", "node", "gpu", "mig", "fabric", "training", "inference", "cost")
# A variable of a page: its label, and the query for its values.
VARIABLES = {
    "cluster": ("Cluster", "label_values(DCGM_FI_DEV_GPU_TEMP, cluster)"),
    "node": ("Node", 'label_values(DCGM_FI_DEV_GPU_TEMP{cluster=~"$cluster"}, Hostname)'),
    "gpu": ("GPU", 'label_values(DCGM_FI_DEV_GPU_TEMP{cluster=~"$cluster", Hostname=~"$node"}, gpu)'),
    "job": ("Job", 'label_values(training_last_step_timestamp_seconds{cluster=~"$cluster"}, job_name)'),
    "model": ("Model", 'label_values(inference_requests_total{cluster=~"$cluster"}, model_name)'),
}
# The alert label that corresponds to a variable.
ALERT_LABELS = {"node": "Hostname", "gpu": "gpu", "job": "job_name", "model": "model_name"}
REFRESH = "30s"
FIELD = re.compile(r"\bDCGM_FI_\w+")
# A dashboard works with every Prometheus and with the hub's Prometheus API.
SERVER_CHOICE = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


@dataclass(frozen=True, slots=True)
class DashboardRow:
    title: str
    panels: tuple[DashboardPanel, ...]


@dataclass(frozen=True, slots=True)
class DashboardPage:
    title: str
    about: str
    variables: tuple[str, ...]
    rows: tuple[DashboardRow, ...]


def files(settings: config.Settings) -> list[RenderedFile]:
    boards = dashboards(settings).items()
    return [
        *(RenderedFile(f"dashboards/{name}.json", as_text(board)) for name, board in boards),
        RenderedFile("provisioning/dashboards/watchkeeper.yaml", _provider()),
        RenderedFile("provisioning/datasources/watchkeeper.yaml", _source(settings)),
    ]


def dashboards(settings: config.Settings) -> dict[str, dict[str, Any]]:
    return {name: dashboard(name, settings) for name in NAMES}


def dcgm_fields(settings: config.Settings) -> set[str]:
    panels = [panel for name in NAMES for row in page(name, settings).rows for panel in row.panels]
    return {field for panel in panels for query in panel.queries for field in FIELD.findall(query.expr)}


def as_text(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def page(name: str, settings: config.Settings) -> DashboardPage:
    text = pack.text_of(f"dashboards/{name}.yaml").replace("@money@", _money_unit(settings.cost))
    return wire.from_plain(DashboardPage, kit_yaml.load(text))


def _money_unit(settings: config.CostSettings) -> str:
    """Grafana's unit for the currency of the price book; a plain number if the book is on another machine."""
    try:
        return f"currency{price_file.PriceFile.of_settings(settings).book().currency}"
    except PackError:
        return "short"


def dashboard(name: str, settings: config.Settings) -> dict[str, Any]:
    dashboard_page = page(name, settings)
    grid = PanelGrid(LinkTargets(name, console_url(settings), settings.render.docs_url))
    for row in dashboard_page.rows:
        grid.add_row(row.title, row.panels)
    return {
        "uid": f"{UID}{name}",
        "title": dashboard_page.title,
        "description": dashboard_page.about,
        "tags": ["watchkeeper"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,
        "refresh": REFRESH,
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "browser",
        "links": _links(settings),
        "templating": {"list": [SERVER_CHOICE, *(_variable(name) for name in dashboard_page.variables)]},
        "annotations": {"list": [_alerts(dashboard_page)]},
        "panels": grid.panels,
    }


def console_url(settings: config.Settings) -> str:
    """The console's public address, by default the hub's."""
    return (settings.notify.console_url or settings.render.hub_url).rstrip("/")


def _links(settings: config.Settings) -> list[dict[str, Any]]:
    return [
        {
            "title": "Watchkeeper",
            "type": "dashboards",
            "icon": "external link",
            "tooltip": "Pages of this fleet",
            "url": "",
            "tags": ["watchkeeper"],
            "asDropdown": True,
            "targetBlank": False,
            "includeVars": True,
            "keepTime": True,
        },
        {
            "title": "Incidents",
            "type": "link",
            "icon": "bolt",
            "tooltip": "Open incidents with cause and next step",
            "url": f"{console_url(settings)}/incidents",
            "tags": [],
            "asDropdown": False,
            "targetBlank": True,
            "includeVars": False,
            "keepTime": False,
        },
    ]


def _variable(name: str) -> dict[str, Any]:
    label, query = VARIABLES[name]
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": f"variable-{name}"},
        "definition": query,
        # Updated when the time range changes: nodes and jobs come and go.
        "refresh": 2,
        "sort": 1,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _alerts(dashboard_page: DashboardPage) -> dict[str, Any]:
    about = [f'{ALERT_LABELS[name]}=~"${name}|"' for name in dashboard_page.variables if name in ALERT_LABELS]
    matchers = ", ".join(['alertstate="firing"', 'cluster=~"$cluster"', *about])
    return {
        "name": "Alerts",
        "enable": True,
        "iconColor": "red",
        "datasource": DATASOURCE,
        "expr": f"ALERTS{{{matchers}}}",
        "step": "60s",
        "titleFormat": "{{alertname}}",
        "textFormat": "{{Hostname}} {{gpu}} {{severity}}",
    }


def _provider() -> str:
    about = (
        "Grafana reloads the dashboards of the folder when a file changes. Copy `provisioning` to "
        "/etc/grafana/provisioning and `dashboards` to the path below."
    )
    provider = {
        "name": "watchkeeper",
        "folder": "Watchkeeper",
        "type": "file",
        "allowUiUpdates": False,
        "updateIntervalSeconds": 30,
        "options": {"path": "/var/lib/grafana/dashboards/watchkeeper"},
    }
    return yaml_text.document(about, [yaml_text.YamlPart({"apiVersion": 1, "providers": [provider]})])


def _source(settings: config.Settings) -> str:
    """The data source: the server of `query.url`, or the hub."""
    datasource: dict[str, Any] = {
        "name": "Watchkeeper",
        "uid": "watchkeeper",
        "type": "prometheus",
        "access": "proxy",
        "url": (settings.query.url or settings.render.hub_url).rstrip("/"),
    }
    about = "Samples are stored by the server of `query.url`."
    if settings.query.url is None:
        about = (
            "The hub has Prometheus' API. Set WATCHKEEPER_TOKEN in Grafana's environment to a viewer's token; if "
            "the hub has no tokens, remove the last three keys."
        )
        options = {"httpMethod": "POST", "timeInterval": settings.fleet.scrape_interval}
        datasource["jsonData"] = {**options, "httpHeaderName1": "Authorization"}
        datasource["secureJsonData"] = {"httpHeaderValue1": "Bearer $WATCHKEEPER_TOKEN"}
    return yaml_text.document(about, [yaml_text.YamlPart({"apiVersion": 1, "datasources": [datasource]})])
