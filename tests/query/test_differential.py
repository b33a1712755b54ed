"""Questions of every kind have the answers of Prometheus 3: written down, and asked anew where such a server is there.

`differential` says how the answers were written down and how thousands more are asked.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from http.client import HTTPConnection as Api
from pathlib import Path

import pytest

from tests.query import differential, questions

ANSWERS = Path(__file__).with_name("answers_of_prometheus.jsonl")
ASKED_ANEW = 300


@pytest.fixture(scope="module")
def ours() -> Iterator[Api]:
    with differential.ours() as api:
        yield api


@pytest.mark.slow
def test_what_prometheus_answered_is_what_we_answer(ours: Api) -> None:
    found = []
    recorded = [json.loads(line) for line in ANSWERS.read_text().splitlines()]
    for expr, replies in recorded:
        got = differential.both_ways(ours, expr)
        for wanted, reply, way in zip(replies, got, ("instant", "range"), strict=True):
            pair = differential.Reply.read(wanted), differential.Reply.read(reply)
            differs = differential.difference(*pair, is_ordered=differential.is_ordered(expr, way))
            found += [f"{way} {expr}: {differs}"] if differs else []
    assert found == []
    assert len(recorded) > 500


@pytest.mark.slow
def test_a_prometheus_of_today_answers_the_same(ours: Api, tmp_path: Path) -> None:
    program = differential.newer()
    if program is None:
        pytest.skip(f"{differential.NEWER} names no Prometheus of version 3")
    with differential.theirs(program, tmp_path) as apis:
        asked = questions.questions(ASKED_ANEW, seed=11)
        assert list(differential.differences(asked, apis, ours)) == []


def test_the_same_seed_asks_the_same_and_another_one_something_else() -> None:
    first, again, other = (list(itertools.islice(questions.Questions(seed), 200)) for seed in (1, 1, 2))
    assert first == again
    assert len(set(first) & set(other)) < 50


@pytest.mark.slow
@pytest.mark.parametrize(
    ("theirs", "ours", "differs"),
    [
        ({"x": 1.0}, {"x": 1.0 + 1e-12}, False),
        ({"x": 1.0}, {"x": 1.0 + 1e-6}, True),
        ({"x": 1.0}, {"y": 1.0}, True),
        ({"x": float("nan")}, {"x": float("nan")}, False),
        ({"x": float("nan")}, {"x": 0.0}, True),
    ],
)
def test_a_difference_is_seen(theirs: dict[str, float], ours: dict[str, float], differs: bool) -> None:
    def reply(values: dict[str, float]) -> differential.Reply:
        rows = [{"metric": {"name": name}, "value": [0, repr(value)]} for name, value in values.items()]
        return differential.Reply.read({"status": "success", "data": {"resultType": "vector", "result": rows}})

    assert (differential.difference(reply(theirs), reply(ours)) is not None) is differs
