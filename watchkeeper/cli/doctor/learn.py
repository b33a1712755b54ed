"""`watchkeeper learn`: a quiz that scores the learner, and a path of eight weeks with a check for each week."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from watchkeeper.catalogue import quiz
from watchkeeper.cli import options
from watchkeeper.cli.doctor import learn_results
from watchkeeper.errors import InputError, error_reason
from watchkeeper.kit import wire

LETTERS = "abcd"
results_file = click.option(
    "--results", type=click.Path(dir_okay=False, path_type=Path), envvar="WATCHKEEPER_LEARN_RESULTS", metavar="FILE",
    help="File of your results.  [default: ~/.local/share/watchkeeper/learn.json]",
)  # fmt: skip


@click.group("learn", cls=options.FullHelpGroup)
def command() -> None:
    """Learn to run GPUs: a quiz with scores by topic, and eight weeks with a check on a simulated fleet."""


@command.command("quiz")
@click.option("--topic", metavar="TOPIC", help="Ask only about this topic; `learn path` lists the topics.")
@click.option("--before", "phase", flag_value="before", help="Save the answers as those before learning.")
@click.option("--after", "phase", flag_value="after", help="Save the answers as those after learning.")
@click.option("--list", "lists", is_flag=True, help="Print the questions and their options, and ask nothing.")
@click.option("--answers", type=click.File(), help="Read answers from JSON: an object of question id and option text.")
@results_file
@options.as_json
def ask_quiz(
    topic: str | None, phase: str | None, *, lists: bool, answers: Any, results: Path | None, as_json: bool
) -> None:
    """Answer questions, get a score for each topic, and compare it with your score before.

    Without --before or --after, the first answers to a topic are those before learning, and later ones those after.
    The options have another order each time.
    """
    questions, stored = quiz.questions_of(topic), learn_results.load(results or learn_results.default_path())
    rng = random.Random()
    if lists:
        _print_questions(questions, rng, as_json=as_json)
        return
    phase = phase or ("after" if all(question.id in stored.before for question in questions) else "before")
    given = _read_answers(answers) if answers else _ask(questions, rng)
    checked = quiz.check_answers({question.id: "" for question in questions} | given)
    stored.of(phase).update({answer.id: answer.is_right for answer in checked})
    stored.save()
    if as_json:
        options.print_json({"phase": phase, "answers": wire.to_plain(checked), **_scores(stored)})
        return
    _print_mistakes(checked, with_reason=phase == "after")
    _print_scores(stored)


@command.command("path")
@results_file
@options.as_json
def show_path(results: Path | None, as_json: bool) -> None:
    """List the eight weeks: goal, pages, drill, quiz and check, with what you have passed."""
    stored = learn_results.load(results or learn_results.default_path())
    if as_json:
        weeks = [{**wire.fields_of(week), "passed_at": stored.weeks.get(str(week.week))} for week in quiz.all_weeks()]
        options.print_json({"weeks": wire.to_plain(weeks), **_scores(stored)})
        return
    for week in quiz.all_weeks():
        click.echo(f"Week {week.week}, {week.topic}: {week.goal}")
        click.echo(f"  read   {', '.join(week.pages)}")
        click.echo(f"  drill  watchkeeper drill --scenario {week.drill} --hours 0")
        click.echo(f"  quiz   watchkeeper learn quiz --topic {week.topic}  ({_score_text(stored, week.topic)})")
        passed_at = stored.weeks.get(str(week.week))
        click.echo(
            f"  check  watchkeeper learn check {week.week}  ({f'passed {passed_at}' if passed_at else 'open'})\n"
        )


@command.command("check")
@click.argument("number", metavar="WEEK", type=int)
@click.option("--query", help="Your PromQL query; without it, the command asks for it.")
@click.option("--example", is_flag=True, help="Print one query that passes, and check nothing.")
@results_file
@options.as_json
def check_week(number: int, *, query: str | None, example: bool, results: Path | None, as_json: bool) -> None:
    """Run your query on a simulated fleet, before and after a fault, and say whether it finds the fault.

    It passes if it returns nothing on the healthy fleet, and only the place of the fault after it.
    """
    from watchkeeper.drill import week_check

    week, stored = quiz.find_week(number), learn_results.load(results or learn_results.default_path())
    if example:
        click.echo(week.example)
        return
    if not as_json:
        click.echo(f"Week {week.week}, {week.topic}. {week.task}")
    result = week_check.check_query(week, query or click.prompt("Query", err=as_json))
    if result.passed:
        stored.weeks[str(week.week)] = f"{datetime.now(UTC):%Y-%m-%d}"
        stored.save()
    if as_json:
        options.print_json(wire.to_plain(result))
    elif result.passed:
        click.echo(f"passed: nothing before the fault, and {', '.join(result.faulty)} after it")
    else:
        click.echo(f"failed: {result.why}\nRead {', '.join(week.pages)}, or run `learn check {week.week} --example`")
    if not result.passed:
        raise SystemExit(1)


def _ask(questions: Sequence[quiz.Question], rng: random.Random) -> dict[str, str]:
    """Ask on the terminal; Enter skips a question."""
    given = {}
    for number, question in enumerate(questions, 1):
        choices = dict(zip(LETTERS, question.shuffled_options(rng), strict=True))
        click.echo(f"\n{number} of {len(questions)}, {question.topic}: {question.question}", err=True)
        for letter, option in choices.items():
            click.echo(f"  {letter}) {option}", err=True)
        kind = click.Choice([*LETTERS, ""], case_sensitive=False)
        letter = click.prompt(
            "a, b, c, d, or Enter to skip", "", type=kind, show_choices=False, show_default=False, err=True
        )
        given[question.id] = choices.get(letter, "")
    return given


def _read_answers(file: Any) -> dict[str, str]:
    where = getattr(file, "name", "--answers")
    try:
        plain = json.load(file)
    except ValueError as error:
        raise InputError(f"not JSON: {error_reason(error)}", where=where) from error
    if not isinstance(plain, dict) or not all(isinstance(text, str) for text in plain.values()):
        raise InputError("expected an object of question id and option text; `learn quiz --list` has both", where=where)
    return plain


def _print_questions(questions: Sequence[quiz.Question], rng: random.Random, *, as_json: bool) -> None:
    rows = [(question, question.shuffled_options(rng)) for question in questions]
    if as_json:
        fields = ("id", "topic", "question")
        plain = [{**{name: getattr(row, name) for name in fields}, "options": choices} for row, choices in rows]
        options.print_json({"questions": plain})
        return
    for row, choices in rows:
        click.echo("\n".join([f"{row.id}: {row.question}", *(f"  - {choice}" for choice in choices)]))


def _scores(stored: learn_results.LearnResults) -> dict[str, Any]:
    return {phase: wire.to_plain(quiz.score_by_topic(stored.of(phase))) for phase in learn_results.PHASES}


def _score_text(stored: learn_results.LearnResults, topic: str) -> str:
    """`before 4 of 9, after 8 of 9`; a phase without answers is omitted."""
    texts = [
        f"{phase} {score.right} of {score.questions}"
        for phase in learn_results.PHASES
        for score in quiz.score_by_topic(stored.of(phase))
        if score.topic == topic
    ]
    return ", ".join(texts) or "open"


def _print_mistakes(checked: Sequence[quiz.Answer], *, with_reason: bool) -> None:
    """What was wrong and where to read about it; before learning the answer itself is not shown."""
    for answer in checked:
        if answer.is_right:
            continue
        click.echo(f"\nnot right: {answer.question}")
        if with_reason:
            click.echo(f"  {answer.right}. {answer.why}")
        click.echo(f"  read {answer.page}")
        if answer.drill:
            click.echo(f"  try  watchkeeper drill --scenario {answer.drill} --hours 0")
    click.echo(f"\n{sum(answer.is_right for answer in checked)} of {len(checked)} right\n")


def _print_scores(stored: learn_results.LearnResults) -> None:
    by_phase = {
        phase: {score.topic: score for score in quiz.score_by_topic(stored.of(phase))} for phase in learn_results.PHASES
    }
    rows = []
    for topic in quiz.topics():
        before, after = (by_phase[phase].get(topic) for phase in learn_results.PHASES)
        texts = [f"{score.right} of {score.questions}" if score else "" for score in (before, after)]
        change = f"{after.right - before.right:+d}" if before and after else ""
        if before or after:
            rows.append([topic, *texts, change if before and after and before.questions == after.questions else ""])
    options.print_table(["topic", "before", "after", "change"], rows)
