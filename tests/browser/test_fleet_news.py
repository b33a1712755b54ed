"""A map that stays open shows the fleet as it is now: what has changed comes with pictures, and is not asked for."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.browser.fleet_page import open_fleet
from tests.support.web import fleet_changes
from tests.web.running import Site, serving
from tests.web.small_hub import SmallHub
from watchkeeper.web import live

pytestmark = pytest.mark.servers
GPU = "GPU-r02-02-3"
# Notes every picture on the map, and whether it was one: a map that waits for its inventory is drawn without.
DRAWN = """window.drawn = [];
new MutationObserver((all) => { for (const one of all) window.drawn.push(one.target.dataset.drawn); })
  .observe(document, {subtree: true, attributes: true, attributeFilter: ['data-drawn']});"""


@pytest.fixture
def site() -> Iterator[Site]:
    with serving(SmallHub()) as running:
        yield running


@pytest.fixture
def asked(page: Page) -> list[str]:
    """The addresses of /api/fleet that the page has asked for."""
    found: list[str] = []
    page.on("request", lambda request: found.append(request.url) if "/api/fleet" in request.url else None)
    return found


def cells(count: int) -> re.Pattern[str]:
    return re.compile(f"^Map of {count} GPUs")


def change(site: Site, how: object) -> None:
    site.call(how, site.hub)
    site.call(site.hub.changes.send, "fleet")


def test_nodes_that_come_and_go_are_on_the_map_without_another_fetch_and_without_a_blank(
    page: Page,
    site: Site,
    asked: list[str],
) -> None:
    open_fleet(page, site)
    page.evaluate(DRAWN)
    canvas = page.get_by_test_id("heatmap")
    expect(canvas).to_have_attribute("aria-label", cells(32))
    change(site, fleet_changes.gain_node)
    expect(canvas).to_have_attribute("aria-label", cells(33))
    change(site, fleet_changes.lose_node)
    expect(canvas).to_have_attribute("aria-label", cells(25))
    expect(page.get_by_test_id("tile-gpus")).to_contain_text("25")
    assert page.evaluate("drawn.length > 1 && drawn.every((at) => at.startsWith('20'))")
    assert len(asked) == 1


def test_a_gpu_whose_holder_changed_is_listed_with_the_new_one(
    page: Page,
    site: Site,
    asked: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live, "MAX_HOLDERS_AGE_SECONDS", 0.5)
    page.goto(f"{site.url}/?q=uuid:{GPU}&view=list")
    row = page.get_by_test_id("gpu-row")
    expect(row).to_contain_text("/train-")
    site.hub.readings.moved[GPU] = "train-next"
    expect(row).to_contain_text("/train-next")
    assert len(asked) == 1


def test_a_page_that_was_away_while_the_hub_started_again_with_another_fleet_shows_that_one(page: Page) -> None:
    hub = SmallHub()
    with serving(hub) as site:
        page.goto(f"{site.url}/?view=list")
        expect(page.get_by_test_id("gpu-row")).to_have_count(32)
        expect(page.get_by_test_id("now")).to_have_attribute("data-ready", "yes")
    expect(page.get_by_test_id("lost")).to_be_visible()
    fleet_changes.move_rack(hub)
    fleet_changes.lose_node(hub)
    hub.readings.moved[GPU] = "train-next"
    with serving(hub, port=site.port):
        expect(page.get_by_test_id("gpu-row")).to_have_count(24)
        expect(page.get_by_test_id("gpu-row").filter(has_text="r09")).to_have_count(8)
        expect(page.get_by_test_id("gpu-row").filter(has_text="/train-next")).to_have_count(1)
        page.goto("about:blank")


def test_a_map_whose_fleet_cannot_be_fetched_says_unknown_and_comes_back_once_it_can(page: Page) -> None:
    hub = SmallHub()
    with serving(hub) as site:
        open_fleet(page, site)
        expect(page.get_by_test_id("heatmap")).to_have_attribute("aria-label", cells(32))
        expect(page.get_by_test_id("now")).to_have_attribute("data-ready", "yes")
    expect(page.get_by_test_id("lost")).to_be_visible()
    fleet_changes.lose_node(hub)
    page.route("**/api/fleet*", lambda route: route.abort())
    with serving(hub, port=site.port):
        expect(page.get_by_test_id("heatmap")).to_have_attribute("data-drawn", "")
        page.unroute("**/api/fleet*")
        expect(page.get_by_test_id("heatmap")).to_have_attribute("data-drawn", re.compile("^20"))
        expect(page.get_by_test_id("heatmap")).to_have_attribute("aria-label", cells(24))
        page.goto("about:blank")
