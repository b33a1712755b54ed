"""`watchkeeper learn`: a quiz on the terminal or from a file, compared before and after; the path and its checks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from watchkeeper.catalogue import quiz
from watchkeeper.cli.doctor import learn

HEAT = quiz.questions_of("heat")


def run(folder: Path, *words: str, typed: str = "") -> Result:
    return CliRunner().invoke(learn.command, [*words, "--results", str(folder / "learn.json")], input=typed)


def answer_file(folder: Path, *, right: int) -> str:
    path = folder / "answers.json"
    path.write_text(json.dumps({row.id: row.right if at < right else row.wrong_1 for at, row in enumerate(HEAT)}))
    return str(path)


def quiz_json(folder: Path, *words: str) -> Any:
    result = run(folder, "quiz", "--topic", "heat", "--json", *words)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_the_first_answers_are_those_before_and_the_next_those_after(tmp_path: Path) -> None:
    before = quiz_json(tmp_path, "--answers", answer_file(tmp_path, right=3))
    assert before["phase"] == "before"
    after = quiz_json(tmp_path, "--answers", answer_file(tmp_path, right=8))
    assert after["phase"] == "after"
    score = {"topic": "heat", "questions": len(HEAT)}
    assert after["before"] == [{**score, "right": 3}]
    assert after["after"] == [{**score, "right": 8}]
    shown = run(tmp_path, "quiz", "--topic", "heat", "--after", "--answers", answer_file(tmp_path, right=9)).stdout
    assert "heat   3 of 9  9 of 9  +6" in shown


def test_questions_are_asked_on_the_terminal_and_enter_skips(tmp_path: Path) -> None:
    typed = "a\nx\nb\n" + "\n" * (len(HEAT) - 2)
    result = run(tmp_path, "quiz", "--topic", "heat", "--json", typed=typed)
    assert result.exit_code == 0, result.output
    assert f"1 of {len(HEAT)}, heat: {HEAT[0].question}" in result.stderr
    given = [answer["given"] for answer in json.loads(result.stdout)["answers"]]
    assert given[0] in HEAT[0].options
    assert given[1] in HEAT[1].options
    assert set(given[2:]) == {""}


def test_before_learning_the_answers_are_not_shown_and_after_it_they_are(tmp_path: Path) -> None:
    words = ("quiz", "--topic", "heat", "--answers", answer_file(tmp_path, right=0))
    before, after = run(tmp_path, *words, "--before").stdout, run(tmp_path, *words, "--after").stdout
    assert HEAT[0].why not in before
    assert HEAT[0].why in after
    for shown in (before, after):
        assert "read docs/learn/heat-and-power.md" in shown
        assert "watchkeeper drill --scenario power-brake" in shown


def test_questions_can_be_listed_for_a_script(tmp_path: Path) -> None:
    plain = quiz_json(tmp_path, "--list")
    assert {frozenset(row) for row in plain["questions"]} == {frozenset({"id", "topic", "question", "options"})}
    assert not (tmp_path / "learn.json").exists()


@pytest.mark.parametrize("content", ["[]", "{", '{"before": 3}'])
def test_a_damaged_file_of_results_is_named_and_not_replaced(tmp_path: Path, content: str) -> None:
    (tmp_path / "learn.json").write_text(content)
    result = run(tmp_path, "path")
    assert "not a file of results" in str(result.exception)
    assert (tmp_path / "learn.json").read_text() == content


@pytest.mark.timeout(120)
def test_a_week_is_passed_by_a_query_that_finds_the_fault_and_the_path_shows_it(tmp_path: Path) -> None:
    failed = run(tmp_path, "check", "3", "--query", "up == 2")
    assert failed.exit_code == 1
    assert "failed: after the fault it returns nothing; expected UUID GPU-" in failed.stdout
    example = run(tmp_path, "check", "3", "--example").stdout.strip()
    passed = run(tmp_path, "check", "3", "--query", example, "--json")
    assert passed.exit_code == 0
    assert json.loads(passed.stdout)["passed"] is True
    weeks = json.loads(run(tmp_path, "path", "--json").stdout)["weeks"]
    assert [week["week"] for week in weeks if week["passed_at"]] == [3]
    assert "there is no week 9. The path has the weeks 1 to 8" in str(run(tmp_path, "check", "9").exception)
