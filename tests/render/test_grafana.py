"""`render grafana`: dashboards that Grafana's own types accept, and whose every query answers."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import engines, render_tools
from watchkeeper.config import settings as config
from watchkeeper.drill.monitored_fleet import MonitoredFleet
from watchkeeper.query.engine import Engine, QueryRange
from watchkeeper.render import grafana, grafana_panel
from watchkeeper.sim.simulation import SimSettings, Simulation

SETTINGS = config.Settings(
    render=config.RenderSettings(docs_url="https://docs.example/wk"),
    notify=config.NotifySettings(console_url="https://wk.example"),
)
# What Grafana puts in for its variables; every other variable is a choice of all.
BUILT_IN = {"$__rate_interval": "2m", "$__range": "1h", "${datasource}": "x"}
# Faults that give the otherwise empty panels something to show.
FAULTS = ("mig-layout-lost", "ib-symbol-errors", "pod-pending-capacity", "straggler-rank", "inference-overload")
SECONDS = 420
# The simulator has no such series: slices, a scheduler or fabric that the hub watches, our own agent's host page,
# Slurm's jobs as pods, and waste, which takes fifteen minutes to be one.
NOT_SIMULATED = {
    ("mig", "Activity of each slice"),
    ("mig", "Memory of each slice"),
    ("fabric", "Errors at switch ports"),
    ("cost", "Waste by pod"),
    ("training", "Memory of PyTorch's allocator"),
    ("training", "Time of GPU kernels"),
}
# Prices are a metric of the hub's own page, which this fleet does not have.
ONLY_ELSEWHERE = ("watchkeeper_pending_gpus", "watchkeeper_host_unit_running", "money_per_hour", "dollars_per_hour")

Target = tuple[str, str, str]


def boards() -> dict[str, dict[str, Any]]:
    return grafana.dashboards(SETTINGS)


def targets() -> list[Target]:
    """Every query of every panel: dashboard, title, expression as Grafana would send it."""
    return [
        (name, panel["title"], sent(target["expr"]))
        for name, board in boards().items()
        for panel in board["panels"]
        for target in panel.get("targets", [])
    ]


def sent(expr: str) -> str:
    for variable, value in BUILT_IN.items():
        expr = expr.replace(variable, value)
    return re.sub(r"\$(cluster|node|gpu|job|model)\b", ".*", expr)


@pytest.fixture(scope="module")
def watch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MonitoredFleet]:
    """A fleet with some faults, seven minutes old, with the shipped rules in force."""
    simulation = Simulation(SimSettings(gpus=64, scenarios=FAULTS))
    watched = MonitoredFleet(simulation, tmp_path_factory.mktemp("watch"))
    asyncio.run(watched.advance(SECONDS))
    yield watched
    watched.close()


def has_answer(engine: Engine, expr: str, now_ms: int) -> bool:
    return bool(engine.range(expr, QueryRange(now_ms - 240_000, now_ms, 15_000)).frame.present.any())


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_every_query_answers_on_our_engine_where_the_simulator_has_such_a_metric(watch: MonitoredFleet) -> None:
    now = int(watch.simulation.now.timestamp() * 1000)
    silent = {
        (board, title)
        for board, title, expr in targets()
        if not has_answer(watch.engine, expr, now) and not any(name in expr for name in ONLY_ELSEWHERE)
    }
    assert silent == NOT_SIMULATED


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_every_variable_has_values_and_every_alert_annotation_answers(watch: MonitoredFleet) -> None:
    now = int(watch.simulation.now.timestamp() * 1000)
    for label, query in grafana.VARIABLES.values():
        match = re.fullmatch(r"label_values\((.+), (\w+)\)", query)
        assert match, query
        found = watch.engine.instant(f"group by ({match[2]}) ({sent(match[1])})", now).frame.labels
        assert any(one.get(match[2]) for one in found), label
    for board in boards().values():
        assert watch.engine.instant(sent(board["annotations"]["list"][0]["expr"]), now) is not None


@pytest.mark.servers
def test_every_query_is_one_that_prometheus_answers(tmp_path: Path) -> None:
    asked = {expr for _, _, expr in targets()}
    asked |= {sent(board["annotations"]["list"][0]["expr"]) for board in boards().values()}
    with engines.prometheus(tmp_path) as url:
        for expr in sorted(asked):
            with urllib.request.urlopen(f"{url}/api/v1/query?{urllib.parse.urlencode({'query': expr})}") as answer:
                assert json.load(answer)["status"] == "success", expr


@pytest.mark.filterwarnings("ignore:Prefer using dashboardv2:DeprecationWarning")
def test_the_dashboards_are_what_grafanas_own_types_read_and_write() -> None:
    """A key that Grafana does not know, or a value of another kind, would be lost on the way."""
    with render_tools.package("grafana_foundation_sdk") as sdk:
        assert through(sdk.__name__, {"title": "x", "tittle": "x"}).get("tittle") is None
        for board in boards().values():
            assert not list(lost(board, through(sdk.__name__, board)))


def lost(ours: Any, theirs: Any, where: str = "") -> Iterator[str]:
    """Where something of ours is missing or different; what the types add by themselves is their business."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key, value in ours.items():
            yield from lost(value, theirs[key], f"{where}.{key}") if key in theirs else (f"{where}.{key}",)
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for at, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            yield from lost(one, other, f"{where}[{at}]")
    elif ours != theirs:
        yield where


def through(sdk: str, board: dict[str, Any]) -> dict[str, Any]:
    from importlib import import_module

    import_module(f"{sdk}.cog.plugins").register_default_plugins()
    encoder = import_module(f"{sdk}.cog.encoder").JSONEncoder
    read = import_module(f"{sdk}.models.dashboard").Dashboard.from_json(board)
    return dict(json.loads(json.dumps(read, cls=encoder)))


def test_panels_fill_the_page_and_never_overlap() -> None:
    for name, board in boards().items():
        taken: set[tuple[int, int]] = set()
        for panel in board["panels"]:
            at = panel["gridPos"]
            cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
            assert not cells & taken, f"{name}: {panel['title']}"
            assert at["x"] + at["w"] <= grafana_panel.PAGE, f"{name}: {panel['title']}"
            taken |= cells
        assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_no_dashboard_is_a_wall_and_every_panel_says_what_it_shows() -> None:
    for name, board in boards().items():
        panels = [panel for panel in board["panels"] if panel["type"] != "row"]
        assert 5 <= len(panels) <= 20, name
        for panel in panels:
            assert panel["description"].endswith("."), f"{name}: {panel['title']}"
            assert panel["fieldConfig"]["defaults"]["unit"]
            assert all(target["legendFormat"] for target in panel["targets"])


def test_a_limit_is_the_one_of_the_alert_and_leads_to_its_runbook() -> None:
    panel = next(one for one in boards()["inference"]["panels"] if one["title"] == "First token")
    assert panel["fieldConfig"]["defaults"]["thresholds"]["steps"] == [
        {"value": None, "color": "green"},
        {"value": 0.3, "color": "red"},
    ]
    assert panel["links"][0]["url"] == "https://docs.example/wk/runbooks/inference-overload.md"


def test_every_alert_that_a_panel_names_is_shipped_and_has_a_runbook() -> None:
    named = [panel.alert for name in grafana.NAMES for row in grafana.page(name, SETTINGS).rows for panel in row.panels]
    for alert in filter(None, named):
        assert grafana_panel.runbook_path(alert).startswith("docs/runbooks/")


def test_the_currency_and_the_console_are_those_of_the_settings(tmp_path: Path) -> None:
    book = tmp_path / "prices.toml"
    book.write_text('currency = "EUR"\n')
    of_book, elsewhere = (
        json.dumps(grafana.dashboard("cost", replace(SETTINGS, cost=config.CostSettings(prices=str(path)))))
        for path in (book, tmp_path / "on-the-hub.toml")
    )
    assert '"currencyEUR"' in of_book
    assert "currency" not in elsewhere.replace("sum by (namespace, currency)", "")
    assert "https://wk.example/incidents" in json.dumps(grafana.dashboard("fleet", SETTINGS)["links"])


def test_a_line_leads_from_the_fleet_to_the_node_to_the_gpu_to_the_console() -> None:
    def links(page: str, title: str) -> str:
        panel = next(one for one in boards()[page]["panels"] if one["title"] == title)
        return str(panel["fieldConfig"]["defaults"]["links"][0]["url"])

    assert "/d/watchkeeper-node?" in links("fleet", "Nodes by their hottest GPU")
    assert links("node", "Temperature").endswith("&var-node=${__field.labels.Hostname}&var-gpu=${__field.labels.gpu}")
    assert links("gpu", "What the chip works on") == "https://wk.example/gpu/${__field.labels.UUID}"
    targets = next(one for one in boards()["gpu"]["panels"] if one["title"] == "What the chip works on")["targets"]
    assert all("UUID" in target["expr"] for target in targets)


@pytest.mark.parametrize("url", [None, "http://prometheus:9090"])
def test_the_data_source_is_the_server_that_has_the_samples(url: str | None) -> None:
    query = config.QuerySettings(engine=config.QueryEngine.PROMETHEUS, url=url) if url else config.QuerySettings()
    found = {file.path: file.text for file in grafana.files(config.Settings(query=query))}
    source = yaml.safe_load(found["provisioning/datasources/watchkeeper.yaml"])["datasources"][0]
    assert source["url"] == (url or "http://watchkeeper-hub:9480")
    assert ("secureJsonData" in source) == (url is None)


def test_the_same_settings_give_the_same_dashboards_twice() -> None:
    assert grafana.files(SETTINGS) == grafana.files(SETTINGS)
