"""Every metric that a shipped rule, dashboard or page reads is made by somebody we can name, without being asked."""

from __future__ import annotations

import ast
import csv
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.house import generate
from tests.house.tree import PACKAGE, files, sources
from tests.support.paths import ROOT
from watchkeeper.catalogue import series
from watchkeeper.config import settings
from watchkeeper.query.promql import parser, walk
from watchkeeper.readers.nvml import choice
from watchkeeper.render import grafana
from watchkeeper.rules import rulefile

EXCEPTIONS = Path(__file__).with_name("unmade_metrics.csv")
UNNAMED = series.origin("some_metric_of_nobody").exporter
RULES = rulefile.load_rules(sorted((PACKAGE / "packs" / "rules").glob("*.yaml"))).rules
RECORDED = {rule.name for rule in RULES if isinstance(rule, rulefile.RecordingRule)}
CONSOLE = sorted((PACKAGE / "packs" / "console").glob("*.json"))
# What console/src/lib/promql.ts puts in; any other `$name` is a text in quotes.
VALUES = {
    "kind": "rack",
    "labels": '{slo="x"}',
    "query": 'slo:error_budget_remaining:ratio{slo="x"}',
    "budget": "0.001",
    "opened_at": "1",
}
# `places` is what `$of(METRIC)` becomes.
NOT_PROMQL = {"label", "unit", "tone", "group", "places"}


def texts(value: object) -> Iterator[str]:
    """Every expression of a file of the console's questions, wherever it stands in it."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        yield from (text for part in value for text in texts(part))
    elif isinstance(value, dict):
        yield from (text for key, part in value.items() if key not in NOT_PROMQL for text in texts(part))


@cache
def console_expressions() -> tuple[tuple[str, str], ...]:
    """Each question of the console with where it stands; what asks about a place, once for every kind of place."""
    places = json.loads((PACKAGE / "packs" / "console" / "layers.json").read_text())["places"].values()
    expressions = []
    for path in CONSOLE:
        for text in texts(json.loads(path.read_text())):
            for place in places if "$of(" in text else ("",):
                expression = re.sub(
                    r"\$of\((\w+)\)", lambda metric, place=place: place.replace("$metric", metric[1]), text
                )
                expr = re.sub(r"\$(\w+)", lambda name: VALUES.get(name[1], '"x"'), expression)
                expressions.append((f"console/{path.name}", expr))
    return tuple(expressions)


@cache
def uses() -> dict[str, set[str]]:
    """Metric name to the rules, panels and pages that read it."""
    expressions = [(f"rule {rule.name}", rule.expr) for rule in RULES]
    for name, board in grafana.dashboards(settings.Settings()).items():
        for panel in board["panels"]:
            where = f"{name}: {panel['title']}"
            expressions += [(where, re.sub(r"\$__\w+", "5m", target["expr"])) for target in panel.get("targets", [])]
    expressions += console_expressions()
    places_by_name: dict[str, set[str]] = {}
    for where, expr in expressions:
        # A selector of several names (vLLM alone and behind Ray) has a test with series of each beside its rule.
        for name in walk.metric_names(parser.parse(expr)) - {""}:
            places_by_name.setdefault(name, set()).add(where)
    return places_by_name


@cache
def ours() -> frozenset[str]:
    """Names of ours that the agent's page or the hub's own series write: texts of the makers, and our own numbers."""
    makers = (source for folder in ("agent", "scrape", "clusters") for source in sources(PACKAGE / folder))
    texts = (node for source in makers for node in ast.walk(source.syntax))
    written = {str(node.value) for node in texts if isinstance(node, ast.Constant)}
    return frozenset(
        written
        | {name for name, _, _ in generate.declared_metrics()}
        | {family.name for family in choice.load_own_families()}
    )


def exceptions() -> dict[str, str]:
    with EXCEPTIONS.open() as file:
        return {row["name"]: row["reason"] for row in csv.DictReader(file)}


def is_made(name: str) -> bool:
    origin = series.origin(name)
    match origin.source:
        case series.SeriesSource.AGENT | series.SeriesSource.HUB if name.startswith(series.OWN_PREFIX):
            return name in ours()
        case series.SeriesSource.AGENT:
            return name in {family.name for family in choice.choose_families().families}
        case series.SeriesSource.RULE:
            return name in RECORDED
        case series.SeriesSource.OTHER:
            return origin.exporter != UNNAMED
    return False


@pytest.mark.slow
def test_every_metric_that_the_packs_read_is_made_by_somebody_unasked() -> None:
    missing = sorted(uses().keys() - exceptions().keys())
    assert len(missing) > 200
    assert not [f"{name} ({series.origin(name)}): {sorted(uses()[name])}" for name in missing if not is_made(name)]


def test_an_exception_has_a_reason_and_is_still_needed() -> None:
    for name, reason in exceptions().items():
        assert reason, name
        assert name in uses(), f"{name} is read by no rule, panel or page: take it off the list"
        assert not is_made(name), f"{name} needs no exception"


@pytest.mark.parametrize(
    "name",
    ["DCGM_FI_DEV_PCIE_TX_THROUGHPUT", "DCGM_FI_DEV_NO_SUCH", "watchkeeper_gpu_no_such", "watchkeeper:none", "stray"],
)
def test_a_metric_that_nobody_makes_unasked_is_caught(name: str) -> None:
    assert not is_made(name)


@pytest.mark.parametrize(("where", "expr"), console_expressions())
def test_what_a_page_of_the_console_asks_is_promql(where: str, expr: str) -> None:
    assert walk.metric_names(parser.parse(expr)) - {""}, where


def test_every_placeholder_of_the_console_is_filled_by_its_code() -> None:
    code = "".join(path.read_text() for path in files() if path.is_relative_to(ROOT / "console" / "src"))
    named = {name for path in CONSOLE for name in re.findall(r"\$(\w+)", path.read_text())} - {"of"}
    assert {name for name in named if not re.search(rf"\b{name}\b", code)} == set()


def test_the_code_of_the_console_asks_nothing_that_is_not_in_the_packs() -> None:
    """A metric with labels behind it or a function around it is a question; names alone are labels and examples."""
    metric = r"\b(?:DCGM_FI_|node_infiniband_|training_|vllm:|watchkeeper_)\w+"
    question = re.compile(metric + r"\s*[\[{]|\b(?:rate|increase|\w+_over_time)\(\w+[\[{]")
    code = [path for path in files() if path.is_relative_to(ROOT / "console" / "src") and ".test." not in path.name]
    assert [path.name for path in code if question.search(path.read_text())] == []
