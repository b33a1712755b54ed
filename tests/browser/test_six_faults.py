"""A real browser watches a simulated fleet break in six ways, and reads the right cause and next step.

The fleet's clock runs twenty times faster, so that a fan takes seconds to cook a node and a reservation
is idle for its quarter of an hour within a minute.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests import servers
from tests.browser.conftest import PATIENCE_SECONDS
from tests.support.running_product import Product, await_that, up

pytestmark = [pytest.mark.servers, pytest.mark.timeout(300)]

# Scenario, where it strikes, and what the card must say.
FAULTS = [
    ("xid-79", "gpu-r01-02:3", "GPU 3 on gpu-r01-02 fell off the bus", "reboot"),
    ("xid-48", "gpu-r01-03:1", "Memory of GPU 1 on gpu-r01-03 has an uncorrectable error", "reset"),
    ("xid-31", "gpu-r01-04:2", "GPU 2 on gpu-r01-04", "application"),
    ("gpu-missing", "gpu-r01-05:6", "gpu-r01-05", "gpu-r01-05"),
    ("fan-failure", "gpu-r01-06", "gpu-r01-06", "cool"),
    ("held-idle", "gpu-r01-07:4", "gpu-r01-07", "owner"),
]


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    with up(tmp_path_factory.mktemp("six"), "--speed", "10", "--mode", "ask") as running:
        await_that(running.scraped, within_seconds=PATIENCE_SECONDS)
        yield running


@pytest.fixture(scope="module")
def page(product: Product) -> Iterator[Page]:
    chromium = servers.require("chromium")
    with sync_playwright() as play:
        browser: Browser = play.chromium.launch(executable_path=str(chromium), args=["--no-sandbox", "--disable-gpu"])
        opened = browser.new_page(viewport={"width": 1600, "height": 1000})
        opened.set_default_timeout(1000 * PATIENCE_SECONDS)
        opened.goto(product.url)
        expect(opened.get_by_test_id("heatmap")).to_be_visible()
        yield opened
        browser.close()


@pytest.mark.parametrize(("scenario", "place", "title", "next_step"), FAULTS)
def test_a_person_sees_the_right_cause_and_next_step(
    product: Product, page: Page, *, scenario: str, place: str, title: str, next_step: str
) -> None:
    injected = product.command("sim", "inject", scenario, place)
    assert injected.returncode == 0, injected.stderr
    truth = injected.stdout.rsplit(" ", 1)[1].strip(".\n")
    card = page.get_by_test_id("incident-card").filter(has_text=title)
    expect(card).to_have_count(1, timeout=200_000)
    expect(card.get_by_test_id("next-step")).to_contain_text(next_step, ignore_case=True)
    card.get_by_test_id("why").click()
    expect(page.get_by_test_id("finding").first).to_contain_text(truth)
    expect(page.get_by_test_id("plan-step").first).to_be_visible()
    page.get_by_test_id("nav-fleet").click()


def test_a_plan_is_reviewed_and_approved_with_the_keyboard_and_begins(product: Product, page: Page) -> None:
    assert product.command("sim", "inject", "xid-79", "gpu-r01-08:0").returncode == 0
    card = page.get_by_test_id("incident-card").filter(has_text="GPU 0 on gpu-r01-08 fell off the bus")
    card.get_by_test_id("review").click()
    expect(page).to_have_url(re.compile(r"/incidents/INC-\d+\?plan=1$"))
    expect(page.get_by_test_id("approve")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("repair")).to_contain_text("approved by")
    cordon = page.get_by_test_id("repair-step").first
    expect(cordon).to_have_attribute("data-kind", "cordon")
    expect(cordon).to_have_class("done")
    expect(page.get_by_test_id("work-panel")).to_contain_text("Assigned to local")
    page.get_by_test_id("stop").click()
    page.get_by_test_id("stop-why").fill("let me look")
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("repair")).to_contain_text("stopped by local while")
    expect(page.get_by_test_id("repair")).to_contain_text("gpu-r01-08 stays cordoned")
    page.goto(f"{product.url}/node/gpu-r01-08")
    expect(page.get_by_test_id("service")).to_have_text(re.compile(r"cordoned · repair INC-\d+"))
    page.get_by_test_id("service").click()
    page.get_by_test_id("resume").click()
    expect(page.get_by_test_id("stop")).to_be_visible()
