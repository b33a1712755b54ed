"""What does not work is said wherever people look for trouble: the status, `incidents`, `top`, and assistants."""

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

SAID = "silences: Alertmanager does not answer"


@pytest.fixture
def site() -> Iterator[Site]:
    with serving(SmallHub()) as running:
        running.hub.silences.problem = SAID
        yield running


def test_a_list_of_incidents_says_that_the_hub_may_not_see_all(site: Site) -> None:
    found = CliRunner().invoke(incidents.command, ["--json", "--hub", site.url])
    assert found.stderr == f"degraded: {SAID}\n"
    assert isinstance(json.loads(found.stdout), list)
    site.hub.silences.problem = ""
    assert CliRunner().invoke(incidents.command, ["--hub", site.url]).stderr == ""


def test_top_has_it_in_its_head(site: Site) -> None:
    assert f"degraded: {SAID}" in top_sources.HubSource(Client(site.url)).read(TopView()).notes


def test_an_assistant_that_asks_for_the_fleet_hears_it(site: Site) -> None:
    told = json.loads(mcp_tools.ReadTools(Client(site.url)).fleet({}))
    assert told["hub"]["degraded"] == [SAID]
