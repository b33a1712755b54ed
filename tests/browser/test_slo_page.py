"""The page of objectives in a real browser: numbers, bars, states, a chart, and what it says when there is nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.support.web.hot_hub import RULES, HotHub
from tests.web import stories
from tests.web.kept_services import START, GivenRules
from tests.web.running import Site, serving
from tests.web.small_hub import SmallHub
from watchkeeper.hub.rule_loops import SHIPPED_SLOS
from watchkeeper.model import alerts
from watchkeeper.model.labels import Labels
from watchkeeper.rules import rulefile, slo

pytestmark = pytest.mark.servers
BURNS = Labels(
    {"alertname": "InferenceAvailabilityBudgetBurn", "severity": "critical", "cause": "inference_overload"}
    | {"window": "1h", "cluster": "main", "model_name": "chat"}
)


def numbers(name: str, model: str, *, errors: float, left: float) -> dict[Labels, float]:
    about = {"slo": name, "cluster": "main", "model_name": model}
    ratios = {f"{slo.RATIO}{window}": errors for window in ("5m", "30m", "1h", "2h", "6h", "1d", "3d")}
    return {Labels({**about, "__name__": metric}): value for metric, value in {**ratios, slo.BUDGET: left}.items()}


@pytest.fixture
def site() -> Iterator[Site]:
    """One model that burns its budget, one that keeps its objective, and four objectives without samples."""
    since = START - timedelta(minutes=7)
    burning = alerts.Alert(BURNS, alerts.AlertState.FIRING, since, 0.03, fired_at=since)
    hub = SmallHub(rules=GivenRules(slos=slo.load_slos(SHIPPED_SLOS), active=[burning]))
    hub.readings.recorded = numbers("inference-availability", "chat", errors=0.03, left=-0.2) | numbers(
        "inference-availability", "code", errors=0.0002, left=0.83
    )
    with serving(hub) as running:
        running.call(stories.lose_gpu, hub)
        lost = hub.journal.kept["INC-1"]
        hub.journal.kept["INC-1"] = replace(lost, members=(replace(lost.members[0], ref=str(BURNS)),))
        yield running


def test_budgets_are_numbers_and_bars_with_a_word_for_their_state(page: Page, site: Site) -> None:
    page.goto(f"{site.url}/slo")
    rows = page.get_by_test_id("slo-row")
    expect(rows).to_have_count(6)
    expect(rows.nth(0)).to_contain_text("chat availability")
    expect(rows.nth(0)).to_contain_text("−20 %")
    expect(rows.nth(0)).to_contain_text("burning fast")
    expect(rows.nth(0).get_by_test_id("slo-incident")).to_have_attribute("href", "/incidents/INC-1")
    expect(rows.nth(1)).to_contain_text("unknown")
    expect(rows.nth(1)).to_contain_text("no samples")
    expect(rows.nth(5)).to_contain_text("83 %")
    expect(rows.nth(5)).to_contain_text("met")
    assert rows.nth(5).get_by_test_id("budget-bar").get_attribute("aria-label") == "83 % of the budget is left"
    expect(page.get_by_test_id("slo-panel")).to_contain_text("6 in total · 1 failing · 4 unknown")


def test_an_objective_is_chosen_in_the_address_and_drawn_over_its_window(page: Page, site: Site) -> None:
    page.goto(f"{site.url}/slo")
    expect(page.get_by_test_id("slo-chart")).to_contain_text("Error budget for chat availability")
    page.get_by_test_id("slo-row").nth(5).click()
    expect(page).to_have_url(f"{site.url}/slo?slo=inference-availability%2Fmain%2Fcode")
    chart = page.get_by_test_id("slo-chart")
    expect(chart).to_contain_text("Error budget for code availability")
    expect(chart).to_contain_text("over 30d, samples for 15d")
    expect(page.get_by_test_id("slo-strips")).to_have_attribute("data-ready", "yes")
    expect(page.get_by_test_id("slo-query")).to_contain_text("slo:error_budget_remaining:ratio{")


def test_the_keys_lead_there_and_a_hub_without_objectives_says_what_to_do(page: Page) -> None:
    with serving(SmallHub()) as site:
        page.goto(site.url)
        expect(page.get_by_test_id("link")).to_have_attribute("data-link", "live")
        page.keyboard.press("g")
        page.keyboard.press("o")
        expect(page).to_have_url(f"{site.url}/slo")
        expect(page.get_by_test_id("empty")).to_contain_text("No objectives")
        page.goto("about:blank")


def test_a_hub_that_cannot_say_shows_the_problem_and_no_numbers(page: Page, site: Site) -> None:
    site.hub.queries.failing = True
    page.goto(f"{site.url}/slo")
    expect(page.get_by_test_id("problem")).to_contain_text("many-to-many matching is not allowed")
    expect(page.get_by_test_id("slo-row")).to_have_count(0)


def test_rule_files_that_cannot_be_read_are_said_on_every_page(page: Page, site: Site) -> None:
    site.hub.rules.last_reload = replace(
        site.hub.rules.last_reload, problems=("rules/a.yaml:3: alert Hot: `expr` is missing",)
    )
    page.goto(f"{site.url}/slo")
    trouble = page.get_by_test_id("rule-trouble")
    expect(trouble).to_contain_text("Rule reload failed: 1 problem. The 114 rules loaded at")
    trouble.locator("summary").click()
    expect(trouble).to_contain_text("rules/a.yaml:3: alert Hot")


def test_what_is_degraded_is_said_on_every_page_until_it_works_again(page: Page, site: Site) -> None:
    site.hub.silences.problem = "silences: Alertmanager does not answer"
    page.clock.install()
    page.goto(f"{site.url}/slo")
    said = page.get_by_test_id("degraded")
    expect(said).to_have_text("▲ Degraded. silences: Alertmanager does not answer")
    expect(said).to_have_role("status")
    page.get_by_test_id("nav-journal").click()
    expect(page).to_have_url(f"{site.url}/journal")
    expect(said).to_be_visible()
    site.hub.silences.problem = ""
    page.clock.fast_forward(16_000)
    expect(said).to_have_count(0)


def test_a_rule_is_replayed_over_history_as_it_is_and_changed(page: Page) -> None:
    with serving(HotHub()) as site:
        page.goto(f"{site.url}/slo?view=rules")
        expect(page.get_by_test_id("alert-row").first).to_contain_text("GpuHot")
        expect(page.get_by_test_id("alerts-panel")).to_contain_text("300 pending or firing, 200 shown")
        page.get_by_test_id("rule-row").get_by_text("GpuHot").click()
        found = page.get_by_test_id("replay-found")
        expect(found).to_contain_text("1 alert would have fired, 1 stayed pending")
        page.get_by_test_id("rule-for").fill("0s")
        # As a picture of the fleet does that comes while somebody types.
        page.evaluate("dispatchEvent(new Event('watchkeeper:address'))")
        expect(page.get_by_test_id("rule-for")).to_have_value("0s")
        page.keyboard.press("Enter")
        expect(found).to_contain_text("2 alerts would have fired, with this change")
        expect(page.get_by_test_id("episode")).to_have_count(2)
        expect(page).to_have_url(f"{site.url}/slo?view=rules&rule=GpuHot&for=0s")
        page.goto("about:blank")


class TwiceHub(HotHub):
    """Two rules of one name, as an objective has them for each of its windows."""

    def __post_init__(self) -> None:
        super().__post_init__()
        second = "      - alert: GpuHot\n        expr: temperature > 99\n        labels: {severity: critical}\n"
        (group,) = rulefile.read_rules({"heat.yaml": RULES + second}).groups
        self.rules.in_force = [(group, {})]


def test_of_two_rules_with_one_name_the_one_that_is_clicked_is_replayed(page: Page) -> None:
    with serving(TwiceHub()) as site:
        page.goto(f"{site.url}/slo?view=rules")
        rows = page.get_by_test_id("rule-row")
        rows.nth(1).click()
        expect(page.get_by_test_id("rule-expr")).to_have_value("temperature > 99")
        expect(page.get_by_test_id("replay-found")).to_contain_text("The rule would not have fired")
        expect(rows.nth(1)).to_have_attribute("aria-current", "true")
        expect(rows.nth(0)).not_to_have_attribute("aria-current", "true")
        page.goto("about:blank")


def test_a_mistake_in_a_rule_is_marked_before_anything_is_asked(page: Page) -> None:
    with serving(HotHub()) as site:
        page.goto(f"{site.url}/slo?view=rules&rule=GpuHot&expr=temperature+%3E")
        expect(page.get_by_test_id("rule-expr-problem")).to_contain_text("Line 1, column 14: unexpected end of input")
        page.goto("about:blank")


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_both_themes_show_the_same_budgets(page: Page, site: Site, theme: str, tmp_path: Path) -> None:
    page.emulate_media(color_scheme="light" if theme == "light" else "dark")
    page.goto(f"{site.url}/slo")
    expect(page.get_by_test_id("slo-strips")).to_have_attribute("data-ready", "yes")
    assert len(page.screenshot(path=tmp_path / f"slo-{theme}.png")) > 20_000
