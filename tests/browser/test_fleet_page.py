"""The map of the fleet in a real browser: any metric or group as colour, filters in the address, lists and exports."""

from __future__ import annotations

import csv
import re
import urllib.parse
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.fleet_page import open_fleet
from tests.support.running_product import await_that
from tests.web import stories
from tests.web.running import Site, serving
from tests.web.small_hub import SmallHub
from watchkeeper.model.samples import Sample
from watchkeeper.query import embedded
from watchkeeper.rules import series_notation
from watchkeeper.store.head import head

pytestmark = pytest.mark.servers


@pytest.fixture
def site() -> Iterator[Site]:
    with serving(SmallHub(racks=16, per_rack=4)) as running:
        yield running


def test_a_filter_by_label_is_in_the_address_and_can_be_dropped(page: Page, site: Site) -> None:
    open_fleet(page, site, "/?q=pool:h200 rack:r03")
    chips = page.get_by_test_id("filter").locator("a.chip")
    expect(chips).to_have_text(["pool:h200 ×", "rack:r03 ×"])
    expect(page.get_by_test_id("filter")).to_contain_text(re.compile(r"\d+ of 512 GPUs match"))
    chips.first.click()
    expect(page).to_have_url(f"{site.url}/?q=rack%3Ar03")
    expect(page.get_by_test_id("filter")).to_contain_text("32 of 512 GPUs match")
    page.goto(f"{site.url}/?q=rack:nowhere")
    expect(page.get_by_test_id("fleet-panel").get_by_test_id("empty")).to_contain_text("No GPU matches")


def test_a_rack_alone_has_larger_cells_and_the_names_of_its_nodes(page: Page, site: Site) -> None:
    open_fleet(page, site)
    canvas = page.get_by_test_id("heatmap")
    small = int(canvas.get_attribute("data-pitch") or 0)
    canvas.click(position={"x": 4, "y": 6})
    expect(page).to_have_url(f"{site.url}/?q=rack%3Ar01")
    expect(canvas).not_to_have_attribute("data-pitch", str(small))
    assert int(canvas.get_attribute("data-pitch") or 0) > small
    canvas.click(position={"x": 20, "y": 26})
    expect(page).to_have_url(f"{site.url}/node/gpu-r01-01")


@pytest.mark.parametrize("group", ["state", "workload", "team", "pool", "model"])
def test_a_group_colours_the_map_and_its_legend_counts_and_filters(page: Page, site: Site, group: str) -> None:
    open_fleet(page, site, f"/?colour={group}")
    entries = page.get_by_test_id("legend").locator(".entry")
    counts = [int(text.replace(",", "")) for text in entries.locator("b").all_inner_texts()]
    assert sum(counts) == 512
    entries.first.click()
    expect(page).to_have_url(re.compile(rf"q={group}%3A"))
    expect(page.get_by_test_id("filter")).to_contain_text(f"{counts[0]} of 512 GPUs match")


def test_any_metric_may_be_the_colour_and_its_scale_comes_with_the_readings(page: Page, site: Site) -> None:
    open_fleet(page, site, "/?colour=DCGM_FI_DEV_FB_USED")
    expect(page.get_by_test_id("colour")).to_have_value("DCGM_FI_DEV_FB_USED")
    expect(page.get_by_test_id("legend").locator(".ramp i").last).to_have_text(re.compile(r"^(9\d|1[01]\d),?\d{3}"))
    page.get_by_test_id("colour").select_option("power")
    expect(page.get_by_test_id("legend")).to_contain_text("700 W")


def test_what_is_wrong_is_counted_beside_its_rack_and_found_by_its_state(page: Page, site: Site) -> None:
    site.call(stories.lose_gpu, site.hub)
    page.goto(f"{site.url}/?q=state:down&view=list")
    rows = page.get_by_test_id("gpu-row")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("✕ down")
    rows.click(position={"x": 500, "y": 10})
    expect(page).to_have_url(f"{site.url}/gpu/GPU-r01-02-3")


def test_the_list_is_sorted_walked_by_keys_and_exported(page: Page, site: Site) -> None:
    open_list(page, site)
    page.get_by_role("button", name="SM active").click()
    expect(page).to_have_url(f"{site.url}/?q=rack%3Ar02&view=list&sort=-value")
    expect(page.locator("th[aria-sort]")).to_have_attribute("aria-sort", "descending")
    with page.expect_download() as download:
        page.get_by_test_id("gpus-csv").click()
    rows = list(csv.DictReader(Path(download.value.path()).read_text().splitlines()))
    values = [float(row["SM active"]) for row in rows]
    assert (len(rows), values) == (32, sorted(values, reverse=True))
    assert {row["Rack"] for row in rows} == {"r02"}
    page.get_by_test_id("gpu-row").first.focus()
    page.keyboard.press("j")
    expect(page.get_by_test_id("gpu-row").nth(1)).to_be_focused()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"/gpu/GPU-r02-"))


def open_list(page: Page, site: Site) -> None:
    page.goto(f"{site.url}/?q=rack%3Ar02&view=list")
    expect(page.get_by_test_id("gpu-row")).to_have_count(32)


def test_a_chart_can_be_looked_at_as_numbers_and_exported(page: Page, site: Site) -> None:
    open_fleet(page, site)
    expect(page.get_by_test_id("now")).to_have_attribute("data-ready", "yes")
    page.get_by_test_id("now-numbers").click()
    expect(page).to_have_url(f"{site.url}/?numbers=now")
    table = page.get_by_test_id("now").locator("table")
    expect(table.locator("th")).to_have_text(["Time", "Allocated", "SM active", "Power"])
    expect(table.locator("time").first).to_have_attribute("title", re.compile("UTC$"))
    with page.expect_download() as download:
        page.get_by_test_id("now-csv").click()
    head = Path(download.value.path()).read_text().splitlines()[0]
    assert head == "time_utc,Allocated [%],SM active [%],Power [kW]"


def test_the_search_offers_nodes_gpus_and_queries(page: Page, site: Site) -> None:
    open_fleet(page, site)
    page.keyboard.press("/")
    page.keyboard.type("gpu-r07-02")
    found = page.get_by_test_id("found").locator("a")
    expect(found.first).to_contain_text("node in r07")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{site.url}/node/gpu-r07-02")
    page.keyboard.press("/")
    page.keyboard.type("sum(DCGM_FI_DEV_POWER_USAGE)")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"/explore\?expr=sum"))


MOVED = """
window.moved = 0;
new PerformanceObserver((list) => list.getEntries().forEach((e) => { window.moved += e.value; }))
  .observe({type: 'layout-shift', buffered: true});
"""


@pytest.mark.parametrize("first", ["status", "fleet"])
def test_nothing_that_is_there_moves_while_answers_come_in_whatever_their_order(
    page: Page,
    site: Site,
    first: str,
) -> None:
    site.call(stories.lose_gpu, site.hub)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.add_init_script(MOVED)
    held = f"**/api/{'fleet*' if first == 'status' else 'status'}"

    def after_the_card(route: Route) -> None:
        page.get_by_test_id("incident-card").wait_for()
        route.continue_()

    page.route(held, after_the_card)
    open_fleet(page, site)
    expect(page.get_by_test_id("now")).to_have_attribute("data-ready", "yes")
    assert page.evaluate("window.moved") < 0.0005
    # What index.html asks for early is what the code takes: nothing is asked for twice.
    assert sum("/api/fleet" in url for url in asked) == 1


# Counts how often the map is drawn, and is told once what has come by now was drawn as well.
DRAWN = """window.drawn = 0; new MutationObserver((all) => { window.drawn += all.length; })
  .observe(document, {subtree: true, attributes: true, attributeFilter: ['data-drawn']});"""
SETTLED = "new Promise((done) => requestAnimationFrame(() => setTimeout(() => done(window.drawn), 300)))"


def test_a_map_is_drawn_for_a_new_picture_and_not_because_the_status_was_asked_for_again(page: Page) -> None:
    with serving(SmallHub(), interval_seconds=3600) as site:
        page.clock.install()
        open_fleet(page, site)
        expect(page.get_by_test_id("now")).to_have_attribute("data-ready", "yes")
        page.evaluate(DRAWN)
        with page.expect_response("**/api/status") as asked:
            page.clock.fast_forward(16_000)
        asked.value.finished()
        assert page.evaluate(SETTLED) == 0
        site.call(site.hub.changes.send, "fleet")
        await_that(lambda: page.evaluate("window.drawn") == 1)
        page.goto("about:blank")


POWER = {f'DCGM_FI_DEV_POWER_USAGE{{UUID="{uuid}"}}': 300.0 for uuid in ("a", "b", "c", "d")}


@pytest.mark.parametrize(
    ("held", "share"),
    [
        ({"allocated": 2.0, "free": 2.0}, 50.0),
        # A GPU that does not report is neither allocated nor free.
        ({"allocated": 1.0, "free": 3.0, "not_reporting": 4.0}, 25.0),
        ({"allocated": 0.0, "free": 4.0}, 0.0),
    ],
)
def test_the_chart_counts_who_holds_gpus_as_the_tile_does(
    page: Page,
    site: Site,
    held: Mapping[str, float],
    share: float,
) -> None:
    with page.expect_request(lambda request: "query_range" in request.url and "POWER_USAGE" in request.url) as asked:
        open_fleet(page, site)
    (expr,) = urllib.parse.parse_qs(urllib.parse.urlsplit(asked.value.url).query)["query"]
    engine = embedded.EmbeddedEngine(head.Head())
    states = {f'watchkeeper_hub_gpus{{cluster="sim",state="{state}"}}': count for state, count in held.items()}
    engine.appender.append(
        [Sample(series_notation.parse_labels(name), 1_000, value) for name, value in {**POWER, **states}.items()]
    )
    found = {labels.get("strip"): value for labels, value in engine.instant(expr, 1_000).latest().items()}
    assert found["0"] == share
