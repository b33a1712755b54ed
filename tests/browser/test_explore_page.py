"""Explore in a real browser: completion, mistakes in their place, charts, tables and JSON, all of it in the address."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from tests.support.running_product import Product

pytestmark = [pytest.mark.servers, pytest.mark.timeout(240)]
# Over a time, because a fleet at ten times the speed of life is read late on a busy machine.
POWER = "sum by (Hostname) (last_over_time(DCGM_FI_DEV_POWER_USAGE[30m]))"


def test_an_expression_is_typed_with_completion_and_drawn(page: Page, demo: Product) -> None:
    page.goto(f"{demo.url}/explore")
    field = page.get_by_test_id("query-0")
    expect(field).to_be_focused()
    page.keyboard.type("avg(DCGM_FI_DEV_POWER_U")
    words = page.get_by_test_id("query-0-words")
    expect(words.get_by_role("option").first).to_contain_text("DCGM_FI_DEV_POWER_USAGE")
    expect(words.get_by_role("option").first).to_contain_text("gauge")
    page.keyboard.press("Tab")
    page.keyboard.type('{Hostname="gpu-r01')
    expect(words.get_by_role("option").first).to_contain_text("gpu-r01-01")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.keyboard.type('"})')
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("explore-chart")).to_have_attribute("data-ready", "yes")
    assert page.url.endswith(quote('avg(DCGM_FI_DEV_POWER_USAGE{Hostname="gpu-r01-01"})', safe=""))
    expect(page.get_by_test_id("query-time")).to_contain_text("1 series")


def test_a_mistake_is_marked_where_it_is(page: Page, demo: Product) -> None:
    page.goto(f"{demo.url}/explore?expr={quote('sum(rate(up[5m])')}")
    problem = page.get_by_test_id("query-0-problem")
    expect(problem).to_contain_text("Line 1, column 17: unclosed left parenthesis")
    expect(problem.locator("mark")).to_have_count(1)
    expect(page.get_by_test_id("answers")).to_have_count(0)


def test_the_same_answer_is_a_chart_a_table_and_json(page: Page, demo: Product) -> None:
    page.goto(f"{demo.url}/explore?expr={quote(POWER)}&range=15m")
    expect(page.get_by_test_id("explore-chart")).to_have_attribute("data-ready", "yes")
    page.get_by_test_id("explore-view").get_by_text("Table").click()
    expect(page.get_by_test_id("result").get_by_role("row")).to_have_count(9)
    with page.expect_download() as saved:
        page.keyboard.press("e")
    assert Path(saved.value.path()).read_text().startswith("Hostname,Value\ngpu-r01-01,")
    page.get_by_test_id("explore-view").get_by_text("JSON").click()
    shown = json.loads(page.get_by_test_id("json").text_content() or "")
    assert len(shown["data"]["result"]) == 8
    page.reload()
    expect(page.get_by_test_id("json")).to_be_visible()


def test_a_number_and_a_range_of_samples_are_told_as_values(page: Page, demo: Product) -> None:
    page.goto(f"{demo.url}/explore?expr=1%2B1&view=table")
    expect(page.get_by_test_id("query-time")).to_contain_text("1 series")
    page.goto(f"{demo.url}/explore?expr={quote('vector(1)[30m:1m]')}&view=table")
    expect(page.get_by_test_id("result").get_by_role("row")).to_have_count(2)
    expect(page.get_by_test_id("result")).not_to_contain_text("NaN")


def test_several_expressions_time_and_step_are_in_the_address(page: Page, demo: Product) -> None:
    page.goto(f"{demo.url}/explore?expr=count(up)")
    page.get_by_test_id("add-query").click()
    expect(page.get_by_test_id("query-1")).to_be_focused()
    page.keyboard.type("sum(up)")
    page.keyboard.press("Enter")
    page.get_by_test_id("explore-range").select_option("6h")
    page.get_by_test_id("explore-step").select_option("60")
    expect(page).to_have_url(f"{demo.url}/explore?expr=count%28up%29&expr=sum%28up%29&range=6h&step=60")
    expect(page.get_by_test_id("query-time")).to_contain_text("2 series")
    page.get_by_test_id("explore-chart-numbers").click()
    expect(page.get_by_test_id("explore-chart").get_by_role("row").first).to_contain_text("count(up)")


def test_what_nobody_answers_is_said(page: Page, demo: Product) -> None:
    page.goto(f"{demo.url}/explore?expr=no_such_metric")
    expect(page.get_by_test_id("empty")).to_contain_text("No result")
