"""The fabric in a real browser: a map of links, what is wrong with one, and what is said where little is known."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.fleet_page import COLOURS
from tests.support.clusters.fabrics import leaf
from tests.support.web.fabric_hub import HOST, CountingHub, host_ports, swept
from tests.web.running import Site, serving
from tests.web.small_hub import SmallHub

pytestmark = pytest.mark.servers


@pytest.fixture
def site() -> Iterator[Site]:
    """Two leaves and a spine; one trunk is dark."""
    hub = CountingHub()
    swept(hub, dark=(leaf(1), 9))
    with serving(hub) as running:
        yield running


def open_map(page: Page, site: Site, query: str = "") -> None:
    page.goto(f"{site.url}/fabric{query}")
    expect(page.get_by_test_id("portmap")).to_have_attribute("data-drawn", "6")


def test_the_map_shows_links_and_the_list_begins_with_what_is_down(page: Page, site: Site) -> None:
    open_map(page, site)
    assert page.get_by_test_id("portmap").evaluate(COLOURS) > 2
    expect(page.get_by_test_id("tile-down")).to_contain_text("1")
    expect(page.get_by_test_id("fabric-panel")).to_contain_text("one row per leaf")
    first = page.get_by_test_id("link-row").first
    expect(first).to_contain_text("spine-0 port 2")
    expect(first).to_contain_text("the link was up before and is down")
    # Nobody has counted errors here: that is said, and never shown as none.
    expect(page.get_by_test_id("tile-errors")).to_contain_text("unknown")


def test_the_keyboard_opens_a_link_and_the_address_keeps_it(page: Page, site: Site) -> None:
    open_map(page, site)
    page.get_by_test_id("portmap").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(page.get_by_test_id("port-tip")).to_contain_text("n0 · mlx5_0 · 1")
    page.keyboard.press("Enter")
    panel = page.get_by_test_id("link-panel")
    expect(panel).to_contain_text("leaf-0 port 1")
    expect(panel).to_contain_text("400 Gb/s")
    page.reload()
    expect(panel).to_contain_text("leaf-0 port 1")
    page.get_by_test_id("link-close").click()
    expect(page).to_have_url(f"{site.url}/fabric")


def test_a_spine_and_words_narrow_the_list(page: Page, site: Site) -> None:
    open_map(page, site)
    page.get_by_role("link", name="spine-0").click()
    expect(page).to_have_url(f"{site.url}/fabric?row=spine-0")
    expect(page.get_by_test_id("link-row")).to_have_count(2)
    page.get_by_test_id("fabric-trouble").click()
    expect(page.get_by_test_id("link-row")).to_have_count(1)
    page.goto(f"{site.url}/fabric?q=n3")
    expect(page.get_by_test_id("link-row")).to_have_count(1)
    with page.expect_download() as saved:
        page.keyboard.press("e")
    assert Path(saved.value.path()).read_text().startswith("Link,State,Rate")


def test_hosts_alone_leave_switches_unknown_and_errors_name_the_job(page: Page) -> None:
    hub = CountingHub()
    host_ports(hub, "mlx5_0", "mlx5_1")
    hub.count("node_infiniband_symbol_error_total", HOST | {"device": "mlx5_1"}, per_minute=50)
    held = HOST | {"UUID": "GPU-r01-01-0", "workload": "llm", "namespace": "a", "workload_kind": "pod"}
    hub.tell("watchkeeper_gpu_workload_info", held, 1)
    with serving(hub) as site:
        page.goto(f"{site.url}/fabric?link=gpu-r01-01/mlx5_1/1")
        expect(page.get_by_test_id("fabric-panel")).to_contain_text("switches and trunks unknown")
        expect(page.get_by_test_id("counters")).to_contain_text("SymbolErrorCounter")
        expect(page.get_by_test_id("link-panel")).to_contain_text("a/llm")
        expect(page.get_by_test_id("tile-jobs")).to_contain_text("1")
        page.goto("about:blank")


def test_a_fleet_without_a_fabric_says_how_to_see_one(page: Page) -> None:
    with serving(SmallHub()) as site:
        page.goto(f"{site.url}/fabric")
        expect(page.get_by_test_id("empty")).to_contain_text("watchkeeper fabric sweep --push")
        page.goto("about:blank")


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_both_themes_show_the_same_fabric(page: Page, site: Site, theme: str, tmp_path: Path) -> None:
    page.emulate_media(color_scheme="light" if theme == "light" else "dark")
    open_map(page, site, "?link=leaf-1/9")
    expect(page.get_by_test_id("link-panel")).to_contain_text("down")
    assert len(page.screenshot(path=tmp_path / f"fabric-{theme}.png")) > 20_000
