"""A degraded hub says so in the status, in `incidents`, in `top`, and to assistants."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from tests.web.running import Site, serving
from tests.web.small_hub import SmallHub
from watchkeeper.cli.fleet import incidents, top_sources
from watchkeeper.cli.fleet.top_rows import TopView
from watchkeeper.cli.mcp import mcp_tools
from watchkeeper.client.typed import Client

PROBLEM = "silences: Alertmanager does not answer"


@pytest.fixture
def site() -> Iterator[Site]:
    with serving(SmallHub()) as running:
        running.hub.silences.problem = PROBLEM
        yield running


def test_a_list_of_incidents_says_that_the_hub_is_degraded(site: Site) -> None:
    result = CliRunner().invoke(incidents.command, ["--json", "--hub", site.url])
    assert result.stderr == f"degraded: {PROBLEM}\n"
    assert isinstance(json.loads(result.stdout), list)
    site.hub.silences.problem = ""
    assert CliRunner().invoke(incidents.command, ["--hub", site.url]).stderr == ""


def test_top_shows_degraded_in_its_header(site: Site) -> None:
    assert f"degraded: {PROBLEM}" in top_sources.HubSource(Client(site.url)).read(TopView()).notes


def test_an_assistant_sees_that_the_hub_is_degraded(site: Site) -> None:
    fleet = json.loads(mcp_tools.ReadTools(Client(site.url)).fleet_overview({}))
    assert fleet["hub"]["degraded"] == [PROBLEM]
