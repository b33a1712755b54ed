"""Drills in a real browser: a fault is put in, found, judged and taken out; a real fleet has none."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.support.running_product import Product
from tests.web.running import serving
from tests.web.small_hub import SmallHub

pytestmark = [pytest.mark.servers, pytest.mark.timeout(240)]


def test_a_fault_is_put_in_found_judged_and_ended(page: Page, demo: Product) -> None:
    page.goto(f"{demo.url}/drills")
    page.get_by_test_id("drill-filter").fill("falls off")
    page.get_by_test_id("drill-xid-79").click()
    expect(page).to_have_url(f"{demo.url}/drills?q=falls+off&scenario=xid-79")
    expect(page.get_by_test_id("inject-panel")).to_contain_text("gpu fell off bus")
    page.get_by_label("Node", exact=True).fill("gpu-r01-06")
    page.get_by_label("GPU", exact=True).fill("5")
    page.get_by_test_id("inject").click()
    expect(page.get_by_test_id("notice")).to_contain_text("Drill xid-79 started on gpu-r01-06 GPU 5")
    row = page.get_by_test_id("drill-row").filter(has_text="gpu-r01-06")
    expect(row.get_by_test_id("drill-incident")).to_contain_text("fell off the bus")
    expect(row).to_contain_text("gpu fell off bus")
    expect(page.get_by_test_id("tile-found")).to_contain_text("100 %")
    expect(page.get_by_test_id("accuracy-row").filter(has_text="gpu fell off bus")).to_contain_text("100 %")
    row.get_by_test_id("end-drill").click()
    expect(row).to_contain_text("ended")


def test_what_cannot_be_broken_is_said(page: Page, demo: Product) -> None:
    page.goto(f"{demo.url}/drills?scenario=xid-48")
    page.get_by_label("Node", exact=True).fill("no-such-node")
    page.get_by_test_id("inject").click()
    expect(page.get_by_test_id("problem")).to_contain_text("no-such-node")


def test_a_real_fleet_says_that_nothing_is_broken_here(page: Page) -> None:
    with serving(SmallHub()) as site:
        page.goto(f"{site.url}/drills")
        expect(page.get_by_test_id("empty").first).to_contain_text("This is a real fleet")
        expect(page.get_by_test_id("accuracy-panel")).to_contain_text("Diagnosis accuracy")
        page.goto("about:blank")
