"""/api/learn/quiz: questions do not contain their answers, and answers get a score with reasons."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.web.running import ask_json, serving
from tests.web.small_hub import SmallHub
from watchkeeper.catalogue import quiz


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(SmallHub()) as site:
        yield f"{site.url}/api/learn/quiz"


def post(url: str, body: object) -> tuple[int, Any]:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_questions_come_with_shuffled_options_and_without_answers(url: str) -> None:
    answers = [ask_json(f"{url}?topic=heat")[1] for _ in range(4)]
    questions = answers[0]["questions"]
    assert {frozenset(question) for question in questions} == {frozenset({"id", "topic", "question", "options"})}
    assert [question["id"] for question in questions] == [row.id for row in quiz.questions_of("heat")]
    orders = {tuple(tuple(question["options"]) for question in answer["questions"]) for answer in answers}
    assert len(orders) == 4
    assert not any(row.why in json.dumps(answers) for row in quiz.all_questions())


def test_answers_are_scored_by_topic_and_explained(url: str) -> None:
    right, wrong, skipped = quiz.questions_of("heat")[:3]
    status, body = post(url, {"answers": {right.id: right.right, wrong.id: wrong.wrong_1, skipped.id: ""}})
    assert status == 200
    assert body["topics"] == [{"topic": "heat", "right": 1, "questions": 3}]
    assert [answer["is_right"] for answer in body["answers"]] == [True, False, False]
    assert (body["answers"][1]["right"], body["answers"][1]["why"]) == (wrong.right, wrong.why)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({}, "`answers` must be an object"),
        ({"answers": {"heat-1": 2}}, "`answers` must be an object"),
        ({"answers": {"none": ""}}, "no question 'none'"),
        ({"answers": {"heat-1": "a"}}, "'a' is not one of its options"),
    ],
)
def test_answers_that_cannot_be_scored_are_refused(url: str, body: object, problem: str) -> None:
    status, answer = post(url, body)
    assert status == 400
    assert problem in answer["error"]


def test_an_unknown_topic_is_refused_with_the_topics(url: str) -> None:
    status, answer = ask_json(f"{url}?topic=cooking")
    assert status == 404
    assert "Topics: metrics, rules" in answer["error"]
