"""Every metric that a shipped rule or dashboard reads is made by somebody whom we can name, without being asked for."""

from __future__ import annotations

import ast
import csv
import re
from functools import cache
from pathlib import Path

import pytest

from tests.house import generate
from tests.house.tree import PACKAGE, sources
from watchkeeper.catalogue import series
from watchkeeper.config import settings
from watchkeeper.query.promql import parser, walk
from watchkeeper.readers.nvml import choice
from watchkeeper.render import grafana
from watchkeeper.rules import rulefile

EXCEPTIONS = Path(__file__).with_name("unmade_metrics.csv")
UNNAMED = series.origin("some_metric_of_nobody").who
RULES = rulefile.load(sorted((PACKAGE / "packs" / "rules").glob("*.yaml"))).rules
RECORDED = {rule.name for rule in RULES if isinstance(rule, rulefile.RecordingRule)}


@cache
def uses() -> dict[str, set[str]]:
    """Metric name to the rules and panels that read it."""
    asked = [(f"rule {rule.name}", rule.expr) for rule in RULES]
    for name, board in grafana.boards(settings.Settings()).items():
        for panel in board["panels"]:
            where = f"{name}: {panel['title']}"
            asked += [(where, re.sub(r"\$__\w+", "5m", target["expr"])) for target in panel.get("targets", [])]
    found: dict[str, set[str]] = {}
    for where, expr in asked:
        # A selector of several names (vLLM alone and behind Ray) has a test with series of each beside its rule.
        for name in walk.names(parser.parse(expr)) - {""}:
            found.setdefault(name, set()).add(where)
    return found


@cache
def ours() -> frozenset[str]:
    """Names of ours that the agent's page or the hub's own series write: texts of the makers, and our own numbers."""
    makers = (source for folder in ("agent", "scrape", "clusters") for source in sources(PACKAGE / folder))
    texts = (node for source in makers for node in ast.walk(source.syntax))
    written = {str(node.value) for node in texts if isinstance(node, ast.Constant)}
    return frozenset(
        written | {name for name, _, _ in generate.own_metrics()} | {family.name for family in choice.own()}
    )


def exceptions() -> dict[str, str]:
    with EXCEPTIONS.open() as file:
        return {row["name"]: row["reason"] for row in csv.DictReader(file)}


def is_made(name: str) -> bool:
    origin = series.origin(name)
    match origin.maker:
        case series.Maker.AGENT | series.Maker.HUB if name.startswith(series.OURS):
            return name in ours()
        case series.Maker.AGENT:
            return name in {family.name for family in choice.choose().families}
        case series.Maker.RULE:
            return name in RECORDED
        case series.Maker.OTHER:
            return origin.who != UNNAMED
    return False


@pytest.mark.slow
def test_every_metric_that_the_packs_read_is_made_by_somebody_unasked() -> None:
    asked = sorted(uses().keys() - exceptions().keys())
    assert len(asked) > 200
    assert not [f"{name} ({series.origin(name)}): {sorted(uses()[name])}" for name in asked if not is_made(name)]


def test_an_exception_has_a_reason_and_is_still_needed() -> None:
    for name, reason in exceptions().items():
        assert reason, name
        assert name in uses(), f"{name} is read by no rule and no panel: take it off the list"
        assert not is_made(name), f"{name} needs no exception"


@pytest.mark.parametrize(
    "name",
    ["DCGM_FI_DEV_PCIE_TX_THROUGHPUT", "DCGM_FI_DEV_NO_SUCH", "watchkeeper_gpu_no_such", "watchkeeper:none", "stray"],
)
def test_a_metric_that_nobody_makes_unasked_is_caught(name: str) -> None:
    assert not is_made(name)
