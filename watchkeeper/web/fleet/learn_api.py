"""GET and POST /api/learn/quiz: questions with shuffled options and without answers, then the score by topic.

The hub stores nothing about a learner; `catalogue/quiz.py` has the questions.
"""

from __future__ import annotations

import random
from typing import TypedDict

from starlette.exceptions import HTTPException
from starlette.requests import Request

from watchkeeper.catalogue import quiz
from watchkeeper.errors import InputError
from watchkeeper.web.auth.auth import Role
from watchkeeper.web.endpoint import QueryParam, get, post, read_json_object

MAX_BODY_BYTES = 256 * 1024


class OpenQuestion(TypedDict):
    id: str
    topic: str
    question: str
    options: list[str]


class Quiz(TypedDict):
    topics: list[str]
    questions: list[OpenQuestion]


class QuizScore(TypedDict):
    topics: list[quiz.TopicScore]
    answers: list[quiz.Answer]


class LearnApi:
    @get("/api/learn/quiz", QueryParam("topic", "Ask only about this topic. Default: all topics."))
    async def list_questions(self, request: Request) -> Quiz:
        """Questions about running GPUs; each request shuffles the options."""
        rng = random.Random()
        try:
            questions = quiz.questions_of(request.query_params.get("topic"))
        except InputError as error:
            raise HTTPException(404, str(error)) from error
        rows = [
            OpenQuestion(id=row.id, topic=row.topic, question=row.question, options=row.shuffled_options(rng))
            for row in questions
        ]
        return Quiz(topics=list(quiz.topics()), questions=rows)

    @post("/api/learn/quiz", role=Role.VIEWER, body={"answers": dict[str, str]})
    async def check_answers(self, request: Request) -> QuizScore:
        """Score answers: `answers` has the text of the chosen option by question id, empty if it was skipped."""
        answers = (await read_json_object(request, MAX_BODY_BYTES)).get("answers")
        if not isinstance(answers, dict) or not all(isinstance(text, str) for text in answers.values()):
            raise HTTPException(400, "`answers` must be an object of question id and option text")
        try:
            checked = quiz.check_answers(answers)
        except InputError as error:
            raise HTTPException(400, str(error)) from error
        results = {answer.id: answer.is_right for answer in checked}
        return QuizScore(topics=quiz.score_by_topic(results), answers=checked)
