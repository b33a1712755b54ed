"""The quiz in a real browser: questions are answered, checked by the hub and explained."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.web.running import serving
from tests.web.small_hub import SmallHub
from watchkeeper.catalogue import quiz

pytestmark = [pytest.mark.servers, pytest.mark.timeout(240)]


def test_a_quiz_is_answered_scored_and_explained(page: Page) -> None:
    right, wrong = quiz.questions_of("heat")[:2]
    with serving(SmallHub()) as site:
        page.goto(f"{site.url}/learn")
        page.get_by_test_id("topics").get_by_role("button", name="heat").click()
        expect(page).to_have_url(f"{site.url}/learn?topic=heat")
        questions = page.get_by_test_id("question")
        expect(questions).to_have_count(len(quiz.questions_of("heat")))
        expect(questions.first).to_contain_text(right.question)
        page.get_by_label(right.right, exact=True).check()
        page.get_by_label(wrong.wrong_2, exact=True).check()
        page.get_by_test_id("check-answers").click()
        expect(page.get_by_test_id("score")).to_contain_text("1 of 9 right")
        expect(page.get_by_test_id("verdict").first).to_contain_text(f"Right. {right.why}")
        expect(page.get_by_test_id("verdict").nth(1)).to_contain_text(f"The answer is: {wrong.right}")
        expect(questions.first.get_by_role("link")).to_have_attribute("href", f"/drills?scenario={right.drill}")
        page.get_by_test_id("again").click()
        expect(page.get_by_test_id("verdict")).to_have_count(0)
        page.goto("about:blank")
