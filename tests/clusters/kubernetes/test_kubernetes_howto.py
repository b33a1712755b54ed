"""docs/howto/kubernetes.md: its settings load, its queries parse, and its tables name what the code has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from watchkeeper.clusters import cluster_series
from watchkeeper.clusters.kubernetes import kubernetes_discovery
from watchkeeper.config import loading
from watchkeeper.query.promql.parser import parse

PAGE = (ROOT / "docs" / "howto" / "kubernetes.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("block", blocks("toml"))
def test_its_settings_load(block: str, tmp_path: Path) -> None:
    (tmp_path / "hub.toml").write_text(block)
    fleet = loading.load(tmp_path / "hub.toml").fleet
    assert fleet.reads_pods


@pytest.mark.parametrize("block", blocks("promql"))
def test_its_queries_parse(block: str) -> None:
    assert parse(block)


def test_it_names_every_label_that_places_a_node() -> None:
    assert not [label for label, _ in kubernetes_discovery.label_rows() if f"`{label}`" not in PAGE]


def test_it_names_every_series_of_a_scheduler() -> None:
    assert not [name for name in cluster_series.HELP if name not in PAGE]
