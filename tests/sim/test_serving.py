"""Servers of four kinds, and a program of one's own, are on the pages, dashboards and budgets of serving."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from watchkeeper.catalogue import series
from watchkeeper.config import settings as config
from watchkeeper.drill.monitored_fleet import SHIPPED_RULES, MonitoredFleet
from watchkeeper.query.promql import parser, walk
from watchkeeper.render import grafana
from watchkeeper.rules import rulefile
from watchkeeper.sim import jobs, serving
from watchkeeper.sim.simulation import SimSettings, Simulation

SECONDS = 600
# What each kind of server does not export, or what its model does not have: all other panels and strips must be there.
FIRST_TOKEN, TOKEN_TIME = (
    {"First token", "First token, p50", "First token, p99"},
    {"Time per output token", "Time per token, p99"},
)
ABSENT = {
    "vllm": set(),
    "sglang": set(),
    "tgi": FIRST_TOKEN,
    "triton-llm": TOKEN_TIME,
    "triton": {*FIRST_TOKEN, *TOKEN_TIME, "Requests"},
    "program": {*FIRST_TOKEN, *TOKEN_TIME},
}
OBJECTIVES = {
    "vllm": {"availability", "errors", "first-token", "token-time"},
    "sglang": {"availability", "errors", "first-token", "token-time"},
    "tgi": {"availability", "errors", "token-time"},
    "triton-llm": {"availability", "errors", "first-token"},
    "triton": {"availability", "errors"},
    "program": {"availability", "errors", "latency"},
}
# The objectives that twice as many requests as it can serve violate; vLLM queues them and rejects none.
BURNING = {
    "vllm": {"InferenceFirstTokenBudgetBurn", "InferenceTokenTimeBudgetBurn"},
    "sglang": {"InferenceErrorsBudgetBurn", "InferenceFirstTokenBudgetBurn", "InferenceTokenTimeBudgetBurn"},
    "tgi": {"InferenceErrorsBudgetBurn", "InferenceTokenTimeBudgetBurn"},
    "triton-llm": {"InferenceErrorsBudgetBurn", "InferenceFirstTokenBudgetBurn"},
    "triton": {"InferenceErrorsBudgetBurn"},
    "program": {"InferenceErrorsBudgetBurn", "InferenceLatencyBudgetBurn"},
}


def place_services(simulation: Simulation) -> dict[str, str]:
    """An overloaded service of each kind on a node of its own; kind to the model's name."""
    templates = [template for template in jobs.TEMPLATES for _ in template.servers]
    names = set()
    for template, node in zip(templates, simulation.layout.nodes, strict=False):
        rows = tuple(gpu.row for gpu in node.gpus)
        names.add(simulation.machines.jobs.place(template, rows, simulation.second).name)
        simulation.inject("inference-overload", node=node.name)
    simulation.advance(5)
    return {server.kind: server.job.name for server in simulation.serving() if server.job.name in names}


@pytest.fixture(scope="module")
def overloaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[MonitoredFleet, dict[str, str]]]:
    simulation = Simulation(SimSettings(gpus=64))
    models = place_services(simulation)
    watched = MonitoredFleet(simulation, tmp_path_factory.mktemp("watched"))
    asyncio.run(watched.advance(SECONDS))
    yield watched, models
    watched.close()


def answers(watched: MonitoredFleet, expr: str) -> list[dict[str, str]]:
    at_ms = int(watched.simulation.now.timestamp() * 1000)
    return [dict(labels) for labels in watched.engine.instant(expr, at_ms).latest()]


def questions(model: str) -> Iterator[tuple[str, str]]:
    """Title and query of each panel of the dashboard, and of each strip of the console that a model has."""
    values = {"cluster": ".*", "model": model, "jobs": f'"{model}"', "__rate_interval": "2m"}
    board = grafana.dashboards(config.Settings())["inference"]
    texts = [(panel["title"], target["expr"]) for panel in board["panels"] for target in panel.get("targets", [])]
    layers = json.loads((Path(series.__file__).parents[1] / "packs" / "console" / "layers.json").read_text())
    texts += [(strip["label"], strip["expr"]) for strip in layers["strips"]["workload"] if "inference" in strip["expr"]]
    for title, text in texts:
        yield title, re.sub(r"\$(\w+)", lambda name: values[name[1]], text)


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", list(serving.KINDS))
def test_a_dashboard_and_a_page_show_every_number_that_the_server_exports(
    overloaded: tuple[MonitoredFleet, dict[str, str]], kind: str
) -> None:
    watched, models = overloaded
    asked = list(questions(models[kind]))
    answered = {title for title, expr in asked if answers(watched, expr)}
    assert len(asked) > 20
    assert {title for title, _ in asked} - answered == ABSENT[kind]


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", list(serving.KINDS))
def test_a_model_has_its_objectives_and_their_burn_alerts(
    overloaded: tuple[MonitoredFleet, dict[str, str]], kind: str
) -> None:
    watched, models = overloaded
    about = f'model_name="{models[kind]}"'
    budgets = {row["slo"] for row in answers(watched, f"slo:error_budget_remaining:ratio{{{about}}}")}
    assert budgets == {f"inference-{name}" for name in OBJECTIVES[kind]}
    firing = answers(watched, f'ALERTS{{{about},alertstate="firing",severity="critical"}}')
    assert {row["alertname"] for row in firing} == BURNING[kind]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_whole_request_of_a_model_that_streams_may_take_long(
    overloaded: tuple[MonitoredFleet, dict[str, str]],
) -> None:
    watched, models = overloaded
    slow = {row["model_name"] for row in answers(watched, 'ALERTS{alertname="InferenceLatencyP95High"}')}
    assert slow == {models["program"]}


@pytest.mark.parametrize("kind", list(serving.KINDS))
def test_every_metric_of_a_simulated_server_is_one_that_the_rules_know(kind: str) -> None:
    rules = rulefile.load_rules([SHIPPED_RULES]).rules
    exprs = [rule.expr for rule in rules if isinstance(rule, rulefile.RecordingRule)]
    matchers = [m for expr in exprs for selector in walk.selectors(parser.parse(expr)) for m in selector.matchers]
    names = {name for expr in exprs for name in walk.metric_names(parser.parse(expr))}
    patterns = [matcher.value for matcher in matchers if matcher.name == "__name__"]
    for metric in serving.metrics_of(kind):
        name = f"{metric.name}_bucket" if metric.type == "histogram" else metric.name
        assert name in names or any(re.fullmatch(pattern, name) for pattern in patterns), name
