"""Cost and capacity in a real browser: who spent what and a way down to the job, and what another size would bring."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.conftest import PATIENCE_SECONDS
from tests.support.running_product import Product, await_that
from tests.support.web.job_tables import JOBS
from tests.web.running import serving
from tests.web.small_hub import SmallHub

pytestmark = [pytest.mark.servers, pytest.mark.timeout(240)]


def spent(demo: Product) -> bool:
    return any(line["team"] != "(nobody)" for line in demo.get("/api/cost?by=team")["lines"])


def test_a_team_opens_into_its_users_and_the_way_back_is_shown(page: Page, demo: Product) -> None:
    await_that(lambda: spent(demo), within_seconds=PATIENCE_SECONDS)
    page.goto(f"{demo.url}/cost")
    expect(page.get_by_test_id("tile-idle")).to_contain_text("$")
    expect(page.get_by_test_id("prices-panel")).to_contain_text("per GPU-hour, with source")
    row = page.get_by_test_id("bill-row").filter(has_text="research")
    expect(row).to_contain_text("$")
    row.click()
    expect(page).to_have_url(f"{demo.url}/cost?of=team%3Dresearch&by=user")
    expect(page.get_by_test_id("crumbs")).to_contain_text("team research")
    page.get_by_test_id("cost-by").select_option("job")
    expect(page.get_by_test_id("bill-row").first).to_contain_text("$")
    with page.expect_download() as saved:
        page.get_by_test_id("bill-csv").click()
    assert Path(saved.value.path()).read_text().startswith("Job,Cost,")
    page.get_by_test_id("crumbs").get_by_text("all").click()
    expect(page.get_by_test_id("bill-row").filter(has_text="research")).to_have_count(1)


def test_the_month_and_the_hours_are_told_apart(page: Page, demo: Product) -> None:
    await_that(lambda: spent(demo), within_seconds=PATIENCE_SECONDS)
    page.goto(f"{demo.url}/cost?range=24h&policy=use")
    expect(page.get_by_test_id("bill-panel")).to_contain_text("chargeback: shared cost split in proportion to used")
    expect(page.get_by_test_id("hours-bar")).to_have_attribute("aria-label", re.compile("used"))
    expect(page.get_by_test_id("budget-row").first).to_contain_text("no budget")


def test_another_size_of_the_fleet_is_drawn_and_answered(page: Page, demo: Product) -> None:
    page.goto(f"{demo.url}/cost?view=capacity")
    expect(page.get_by_test_id("tile-capacity")).to_contain_text("64")
    expect(page.get_by_test_id("rooms-panel")).to_contain_text("Jobs that fit")
    page.get_by_test_id("jobs-file").set_input_files(
        files=[{"name": "jobs.csv", "mimeType": "text/csv", "buffer": JOBS.encode()}]
    )
    page.get_by_label("GPUs to add in the replay; a negative number removes GPUs").fill("64")
    expect(page).to_have_url(f"{demo.url}/cost?view=capacity&add=64")
    page.get_by_test_id("replay-run").click()
    expect(page.get_by_test_id("replay-answer")).to_contain_text("64 GPUs added: p95 wait")
    expect(page.get_by_test_id("replay-answer")).to_contain_text("only GPUs are limited")


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_both_themes_show_the_same_bill(page: Page, demo: Product, theme: str, tmp_path: Path) -> None:
    page.emulate_media(color_scheme="light" if theme == "light" else "dark")
    await_that(lambda: spent(demo), within_seconds=PATIENCE_SECONDS)
    page.goto(f"{demo.url}/cost")
    expect(page.get_by_test_id("bill-row").first).to_be_visible()
    assert len(page.screenshot(path=tmp_path / f"cost-{theme}.png")) > 20_000


def test_a_time_of_which_nothing_is_recorded_is_unknown_and_not_free_of_waste(page: Page) -> None:
    def emptied(route: Route) -> None:
        route.fulfill(json={**route.fetch().json(), "lines": [], "budgets": []})

    with serving(SmallHub()) as site:
        page.route(re.compile(r"/api/cost(/budgets)?\?"), emptied)
        page.goto(f"{site.url}/cost")
        expect(page.get_by_test_id("tile-idle")).to_contain_text("unknown")
        expect(page.get_by_test_id("idle-panel")).to_contain_text("Unknown: nothing was recorded in this time range.")
        expect(page.get_by_test_id("budgets-panel")).to_contain_text("Unknown: nothing was recorded this month.")
        page.unroute_all(behavior="wait")
        page.goto("about:blank")


PARTS = ("total", "allocated", "used", "wasted", "unmeasured", "idle", "lost", "unknown", "kwh", "spare")


def unpriced(route: Route) -> None:
    """A bill in which no GPU has a price; half of what was held is measured, and two thirds of that was used."""
    known = {"total": 24.0, "allocated": 24.0, "used": 8.0, "wasted": 2.0, "unmeasured": 12.0}
    money = {"money": None, "direct": None, "energy": None, "shared": 0.0, "wasted_money": None}
    line = {**money, "unpriced_hours": 24.0, "hours": {part: known.get(part, 0.0) for part in PARTS}}
    whole = {"lines": [{"team": "vision", **line}], "total": line, "money": None, "shared": {}, "kwh": 0.0}
    budget = {"team": "vision", "budget": 100.0, **dict.fromkeys(("spent", "forecast", "low", "high"))}
    route.fulfill(json={**route.fetch().json(), **whole, "budgets": [{**budget, "state": "unknown"}]})


def test_what_has_no_price_is_not_free_and_what_is_not_measured_is_not_unused(page: Page) -> None:
    with serving(SmallHub()) as site:
        page.route(re.compile(r"/api/cost(/budgets)?\?"), unpriced)
        page.goto(f"{site.url}/cost")
        expect(page.get_by_test_id("bill-row")).to_contain_text("no price")
        expect(page.get_by_test_id("bill-row")).to_contain_text("67 %")
        for tile in ("tile-idle", "tile-spent"):
            expect(page.get_by_test_id(tile)).to_contain_text("no price")
        expect(page.get_by_test_id("tile-usedshare")).to_contain_text("67 %")
        expect(page.get_by_test_id("tile-energy")).to_contain_text("not measured")
        expect(page.get_by_test_id("budget-row")).to_contain_text("no price for these GPUs")
        expect(page.get_by_test_id("bill-panel")).not_to_contain_text("$")
        page.unroute_all(behavior="wait")
        page.goto("about:blank")
