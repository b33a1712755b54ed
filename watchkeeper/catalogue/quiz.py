"""The questions of `watchkeeper learn` and their score: packs/quiz.csv and packs/learning_path.toml as typed rows.

`cli/doctor/learn.py` and `web/fleet/learn_api.py` ask; the options of a question are shuffled each time.
"""

from __future__ import annotations

import random
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from watchkeeper.catalogue import pack
from watchkeeper.errors import InputError, quote

QUIZ_FILE, PATH_FILE = "quiz.csv", "learning_path.toml"


@dataclass(frozen=True, slots=True)
class Question:
    """One question; `drill` is a scenario to try, and `page` a page of docs/learn."""

    id: str = pack.cell(pack.required)
    topic: str = pack.cell(pack.required)
    question: str = pack.cell(pack.required)
    right: str = pack.cell(pack.required)
    wrong_1: str = pack.cell(pack.required)
    wrong_2: str = pack.cell(pack.required)
    wrong_3: str = pack.cell(pack.required)
    why: str = pack.cell(pack.required)
    page: str = pack.cell(lambda name: f"docs/learn/{pack.required(name)}.md")
    drill: str = pack.cell()

    @property
    def options(self) -> tuple[str, ...]:
        return (self.right, self.wrong_1, self.wrong_2, self.wrong_3)

    def shuffled_options(self, rng: random.Random) -> list[str]:
        return rng.sample(self.options, k=len(self.options))


@dataclass(frozen=True, slots=True)
class Week:
    """One week of the learning path; its check asks for a query that finds the fault of `drill` by `label`."""

    week: int
    topic: str
    goal: str
    pages: tuple[str, ...]
    drill: str
    task: str
    label: str
    # The queries and labels of a metric need some time of the fault.
    after_seconds: int
    example: str


@dataclass(frozen=True, slots=True)
class Answer:
    """A given answer beside the right one; an empty one was skipped."""

    id: str
    topic: str
    question: str
    given: str
    is_right: bool
    right: str
    why: str
    page: str
    drill: str

    @classmethod
    def of(cls, row: Question, given: str) -> Answer:
        is_right = given == row.right
        return cls(row.id, row.topic, row.question, given, is_right, row.right, row.why, row.page, row.drill)


@dataclass(frozen=True, slots=True)
class TopicScore:
    topic: str
    right: int
    questions: int


@cache
def all_questions() -> tuple[Question, ...]:
    return pack.load(QUIZ_FILE, pack.row_reader(Question))


def topics() -> tuple[str, ...]:
    return tuple(dict.fromkeys(question.topic for question in all_questions()))


def questions_of(topic: str | None) -> tuple[Question, ...]:
    """The questions of one topic, or all."""
    if topic is not None and topic not in topics():
        raise InputError(f"no topic {quote(topic)}. Topics: {', '.join(topics())}")
    return tuple(question for question in all_questions() if topic in (None, question.topic))


def check_answers(given: Mapping[str, str]) -> list[Answer]:
    """Compare answers, by the id of their question, with the right options; an empty answer is not right."""
    by_id = {question.id: question for question in all_questions()}
    problems = [f"no question {quote(id)}" for id in given if id not in by_id]
    problems += [
        f"{id}: {quote(text)} is not one of its options"
        for id, text in given.items()
        if id in by_id and text and text not in by_id[id].options
    ]
    if problems:
        raise InputError("; ".join(problems[:5]))
    return [Answer.of(by_id[id], text) for id, text in given.items()]


def score_by_topic(results: Mapping[str, bool]) -> list[TopicScore]:
    """The score of each topic that has results, by the id of the question, in the order of the path."""
    rows = [question for question in all_questions() if question.id in results]
    return [
        TopicScore(topic, sum(results[row.id] for row in rows if row.topic == topic), count)
        for topic in topics()
        if (count := sum(row.topic == topic for row in rows))
    ]


@cache
def all_weeks() -> tuple[Week, ...]:
    rows = tomllib.loads(pack.text_of(PATH_FILE))["week"]
    return tuple(
        Week(**{**row, "week": number, "pages": tuple(f"docs/learn/{page}.md" for page in row["pages"])})
        for number, row in enumerate(rows, 1)
    )


def find_week(number: int) -> Week:
    for week in all_weeks():
        if week.week == number:
            return week
    raise InputError(f"there is no week {number}. The path has the weeks 1 to {len(all_weeks())}")
