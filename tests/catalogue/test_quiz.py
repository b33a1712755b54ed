"""The quiz cannot be passed by position or length of the options, and its links exist; scores follow the answers."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.support.paths import ROOT
from watchkeeper.catalogue import quiz
from watchkeeper.errors import InputError
from watchkeeper.sim import scenario

QUESTIONS = quiz.all_questions()
# One in four is right by chance; more than this would reward a rule of thumb.
GUESS_LIMIT = 0.4


def test_eight_topics_have_at_least_eight_questions_each() -> None:
    counts = Counter(question.topic for question in QUESTIONS)
    assert len(counts) == 8
    assert min(counts.values()) >= 8
    assert len({question.id for question in QUESTIONS}) == len({row.question for row in QUESTIONS}) == len(QUESTIONS)


def test_the_options_of_a_question_differ() -> None:
    for question in QUESTIONS:
        assert len({option.lower().strip() for option in question.options}) == 4, question.id


@pytest.mark.parametrize("rank", range(4))
def test_guessing_by_the_length_of_the_options_gains_nothing(rank: int) -> None:
    right = sum(sorted(question.options, key=len)[rank] == question.right for question in QUESTIONS)
    assert right / len(QUESTIONS) <= GUESS_LIMIT


@pytest.mark.parametrize("position", range(4))
def test_guessing_by_the_position_of_the_options_gains_nothing(position: int) -> None:
    rng = random.Random(7)
    right = sum(row.shuffled_options(rng)[position] == row.right for _ in range(20) for row in QUESTIONS)
    assert right / (20 * len(QUESTIONS)) == pytest.approx(0.25, abs=0.04)


def test_the_right_option_is_not_betrayed_by_the_words_of_its_question() -> None:
    """Guessing the option that shares most words with the question, and among several of them by chance."""

    def shared(option: str, question: quiz.Question) -> int:
        return len(set(option.lower().split()) & set(question.question.lower().split()))

    right = 0.0
    for question in QUESTIONS:
        counts = [shared(option, question) for option in question.options]
        right += (counts[0] == max(counts)) / counts.count(max(counts))
    assert right / len(QUESTIONS) <= GUESS_LIMIT


def test_pages_and_drills_of_questions_and_weeks_exist() -> None:
    scenarios = scenario.load_scenarios()
    weeks = quiz.all_weeks()
    for page in {row.page for row in QUESTIONS} | {page for week in weeks for page in week.pages}:
        assert (ROOT / page).is_file(), page
    for drill in {row.drill for row in QUESTIONS if row.drill} | {week.drill for week in weeks}:
        assert drill in scenarios, drill


def test_each_topic_has_one_week() -> None:
    assert tuple(week.topic for week in quiz.all_weeks()) == quiz.topics()


def test_answers_are_scored_by_topic() -> None:
    heat = quiz.questions_of("heat")
    given = {row.id: row.right for row in heat} | {heat[0].id: heat[0].wrong_2, heat[1].id: ""}
    checked = {answer.id: answer for answer in quiz.check_answers(given)}
    assert [answer.id for answer in checked.values() if not answer.is_right] == [heat[0].id, heat[1].id]
    score = quiz.score_by_topic({id: answer.is_right for id, answer in checked.items()})
    assert score == [quiz.TopicScore("heat", len(heat) - 2, len(heat))]


def test_unknown_questions_and_options_are_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"no question 'heat-999'; heat-1: 'b' is not one of its options"):
        quiz.check_answers({"heat-999": "x", "heat-1": "b"})
    with pytest.raises(InputError, match=r"no topic 'cooking'\. Topics: metrics, rules"):
        quiz.questions_of("cooking")
