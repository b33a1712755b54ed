"""The pages of a node and a GPU in a real browser: layers on one clock, who holds it, and what happened before."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect

from tests.web import stories
from tests.web.running import Site, serving
from tests.web.small_hub import SmallHub
from watchkeeper.model import events, fleet

pytestmark = pytest.mark.servers
NODE, UUID = "gpu-r01-02", "GPU-r01-02-3"


def xid(hub: SmallHub, code: int, days_ago: float, *, gpu: str = UUID) -> events.Event:
    at = hub.clock.now() - timedelta(days=days_ago)
    text = f"NVRM: Xid (PCI:0000:5d:00): {code}, pid=4711"
    place = fleet.Place("main", node=NODE, gpu=gpu)
    return events.Event(f"e-{code}-{days_ago}", events.EventKind.XID, code, place, at, text)


@pytest.fixture
def site() -> Iterator[Site]:
    hub = SmallHub(racks=2, per_rack=4)
    hub.journal.taken = [xid(hub, code, days) for code, days in ((79, 11), (31, 40), (31, 41), (48, 200))]
    hub.journal.taken.append(xid(hub, 13, 1, gpu="GPU-r01-02-5"))
    with serving(hub) as running:
        running.call(stories.lose_gpu, running.hub)
        yield running


def test_a_node_shows_its_gpus_side_by_side_with_who_holds_them(page: Page, site: Site) -> None:
    page.goto(f"{site.url}/node/{NODE}")
    expect(page.get_by_test_id("title")).to_have_text(NODE)
    rows = page.get_by_test_id("node-gpu")
    expect(rows).to_have_count(8)
    expect(rows.nth(3)).to_contain_text("✕ down")
    expect(rows.nth(3)).to_contain_text("INC-1")
    expect(rows.nth(0)).to_contain_text("train-")
    expect(page.get_by_test_id("holders")).to_contain_text(re.compile(r"GPU 0, 1, 2, 4, 5, 6, 7"))
    expect(page.get_by_test_id("node-strips")).to_have_attribute("data-ready", "yes")
    rows.nth(5).locator("a").first.click()
    expect(page).to_have_url(f"{site.url}/gpu/GPU-r01-02-5")


def test_the_history_counts_what_happened_and_says_what_each_xid_means(page: Page, site: Site) -> None:
    page.goto(f"{site.url}/gpu/{UUID}")
    history = page.get_by_test_id("history")
    expect(history).to_contain_text("Xid 31 ×2 · Xid 79 ×1 in 41 d, all that this hub has seen")
    rows = page.get_by_test_id("history-row")
    expect(rows).to_have_count(3)
    expect(rows.first).to_contain_text("11 d ago")
    expect(rows.first).to_contain_text("GPU fell off the bus", ignore_case=True)
    expect(rows.first.locator("time")).to_have_attribute("title", re.compile("UTC$"))


def test_a_gpu_leads_to_its_node_and_says_how_it_is_divided(page: Page, site: Site) -> None:
    page.goto(f"{site.url}/gpu/GPU-r01-03-1")
    expect(page.get_by_test_id("attribution")).to_contain_text("train-")
    expect(page.get_by_test_id("mig")).to_contain_text("not partitioned")
    page.get_by_test_id("to-node").click()
    expect(page).to_have_url(f"{site.url}/node/gpu-r01-03")


def test_a_gpu_without_history_and_one_that_never_was_say_so(page: Page, site: Site) -> None:
    page.goto(f"{site.url}/gpu/GPU-r02-01-0")
    expect(page.get_by_test_id("history")).to_contain_text("No events")
    page.goto(f"{site.url}/gpu/GPU-nowhere")
    expect(page.get_by_test_id("empty")).to_contain_text("This GPU has never reported")
    page.goto(f"{site.url}/node/nowhere")
    expect(page.get_by_test_id("empty")).to_contain_text("Node nowhere not found")


def test_a_span_is_looked_at_closer_and_stands_in_the_address(page: Page, site: Site) -> None:
    page.goto(f"{site.url}/gpu/GPU-r02-01-0")
    expect(page.get_by_test_id("gpu-strips")).to_have_attribute("data-ready", "yes")
    expect(page.get_by_test_id("history")).to_contain_text("No events")
    box = page.get_by_test_id("gpu-strips").locator(".u-over").bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 200, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + 400, middle, steps=5)
    page.mouse.up()
    expect(page).to_have_url(re.compile(r"from=\d+&until=\d+"))
    page.get_by_test_id("zoom-out").click()
    expect(page).to_have_url(f"{site.url}/gpu/GPU-r02-01-0")


def test_the_incident_knows_what_happened_to_this_gpu_before(page: Page, site: Site) -> None:
    page.goto(f"{site.url}/incidents/INC-1")
    before = page.get_by_test_id("before-panel")
    expect(before).to_contain_text("79 ×1")
    expect(before).to_contain_text("31 ×2")
    expect(before).to_contain_text("first time with this cause")
    expect(page.get_by_test_id("runbook")).to_contain_text("gpu-fell-off-bus")


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_both_themes_show_the_same_node(page: Page, site: Site, theme: str, tmp_path: Path) -> None:
    page.emulate_media(color_scheme="light" if theme == "light" else "dark")
    page.goto(f"{site.url}/node/{NODE}")
    expect(page.get_by_test_id("node-strips")).to_have_attribute("data-ready", "yes")
    assert len(page.screenshot(path=tmp_path / f"node-{theme}.png")) > 20_000


def test_of_a_node_that_nobody_can_read_it_is_unknown_who_holds_it(page: Page, site: Site) -> None:
    def silenced(route: Route) -> None:
        told = route.fetch().json()
        told["nodes"][0]["node"] |= {"state": "silent", "why": "http://10.0.0.7:9400/metrics: no answer", "holders": []}
        route.fulfill(json=told)

    site.call(stories.lose_rack, site.hub)
    page.route(re.compile("/api/who"), silenced)
    page.goto(f"{site.url}/node/gpu-r01-01")
    expect(page.locator(".lead")).to_have_text("http://10.0.0.7:9400/metrics: no answer. GPU allocation unknown.")
    expect(page.get_by_test_id("holders")).to_contain_text("Unknown")
    expect(page.get_by_test_id("node-page")).to_contain_text("8 expected, none reporting")
    expect(page.get_by_test_id("incident-card")).to_contain_text("Rack r01 is down")
    page.unroute_all(behavior="wait")
    page.goto("about:blank")
