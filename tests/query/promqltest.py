"""Run Prometheus' own PromQL tests against the embedded engine: `python -m tests.query.promqltest DIR --json`.

Each file is a script of loads and questions (see `notation`); the outcome of every question is
passed, failed or skipped with a reason. Skipped is what this product does not claim: what Prometheus
keeps behind a feature flag. Warnings and infos are compared where a question says what it expects of
them, as Prometheus does.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from tests.query import custom_buckets, notation
from watchkeeper import errors
from watchkeeper.model import histograms, labels, samples
from watchkeeper.query import embedded, engine, histogram_text
from watchkeeper.query.promql import ast, parser, patterns
from watchkeeper.store.head import head

# Relative to the sum of both sides, as Prometheus' almost.Equal; the smallest normal float stands in near zero.
TOLERANCE = 1e-6
# Longer than any script, so that nothing is forgotten between a load and a question.
KEPT_MS = 366 * 86_400_000
SMALLEST = sys.float_info.min
# Whole files about features that Prometheus has behind a flag, or about hashes that only it has.
FLAGGED = frozenset(("extended_vectors", "start_timestamps", "type_and_unit"))
# Experiments that the parser or the engine says it does not have.
UNCLAIMED = re.compile("experimental|has no function")


class Status(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Outcome:
    file: str
    line: int
    text: str
    status: Status
    wanted: str = ""
    got: str = ""


class Skip(Exception):
    """This question is about something the product does not claim; the text says what."""


class Script:
    """One file's state: the engine and the series it could not be given."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.engine = embedded.EmbeddedEngine(head.Head(retention_ms=KEPT_MS))
        self.unreadable: list[tuple[labels.Labels, str]] = []

    def load(self, load: notation.Load) -> None:
        # As in Prometheus, the last line of a series is the one that counts.
        unique = {series.labels: series for series in load.series}
        rows: list[samples.Sample | histograms.HistogramSample] = []
        self.unreadable += [(one.labels, one.unreadable) for one in unique.values() if one.unreadable]
        made = custom_buckets.converted(list(unique.values())) if load.adds_histograms else []
        for series in (*unique.values(), *made):
            rows += [
                notation.sample(series.labels, at * load.step_ms, point)
                for at, point in enumerate(series.points)
                if point is not None
            ]
        rows.sort(key=lambda sample: sample.at_ms)
        self.engine.appender.append(rows)

    def ask(self, question: notation.Eval) -> tuple[str, str]:
        """What was wanted and what came, as text; they are equal if the engine is right."""
        must_fail = "fail" in question.expects
        wanted = "an error" if must_fail else _show_wanted(question)
        try:
            self.refuse_unclaimed(parser.parse(question.text))
            answer = self.answer(question)
        except errors.QueryError as error:
            if UNCLAIMED.search(error.problem):
                raise Skip("experimental PromQL") from error
            fits = must_fail and all(each.fits(error.problem) for each in question.wordings if each.kind == "fail")
            return wanted, wanted if fits else f"error: {error}"
        if must_fail or not _is_same(question, answer):
            return wanted, _show(answer)
        said = [*_unlike("warn", answer.warnings, question), *_unlike("info", answer.infos, question)]
        return wanted, wanted if not said else "; ".join(said)

    def refuse_unclaimed(self, tree: ast.Expr) -> None:
        for node in walk(tree):
            if not isinstance(node, ast.Selector):
                continue
            for label_set, reason in self.unreadable:
                if all(patterns.matches(matcher, label_set.get(matcher.name, "")) for matcher in node.matchers):
                    raise Skip(reason)

    def answer(self, question: notation.Eval) -> engine.QueryResult:
        if question.step_ms is None:
            return self.engine.instant(question.text, question.start_ms)
        span = engine.QueryRange(question.start_ms, question.end_ms, question.step_ms)
        return self.engine.range(question.text, span)


def walk(expr: ast.Expr) -> Iterator[ast.Expr]:
    """Every node of a tree."""
    yield expr
    for each in fields(expr):
        value = getattr(expr, each.name)
        for child in value if isinstance(value, tuple) else (value,):
            if isinstance(child, ast.Expr):
                yield from walk(child)


def is_close(left: notation.Point, right: notation.Point) -> bool:
    if isinstance(left, histograms.Histogram) or isinstance(right, histograms.Histogram):
        return (
            isinstance(left, histograms.Histogram) and isinstance(right, histograms.Histogram) and _alike(left, right)
        )
    if left == right or (left != left and right != right):
        return samples.is_stale(left) == samples.is_stale(right)
    total, difference = abs(left) + abs(right), abs(left - right)
    if left == 0 or right == 0 or total < SMALLEST:
        return difference < TOLERANCE * SMALLEST
    return difference / min(total, sys.float_info.max) < TOLERANCE


def _alike(wanted: histograms.Histogram, got: histograms.Histogram) -> bool:
    """Histograms without empty buckets, numbers nearly equal; a hint counts where one is wanted."""
    wanted, got = wanted.compacted(), got.compacted()
    if wanted.hint is not histograms.ResetHint.UNKNOWN and wanted.hint is not got.hint:
        return False
    return wanted.layout == got.layout and all(map(is_close, wanted.numbers, got.numbers))


def _rows(frame: engine.Frame) -> Iterator[tuple[labels.Labels, dict[int, notation.Point]]]:
    """Each series with its points by time, numbers and histograms."""
    for at, (own, times, values) in enumerate(frame.rows()):
        found: dict[int, notation.Point] = dict(zip(times.tolist(), values.tolist(), strict=True))
        cells = [] if frame.histograms is None else frame.histograms[at].tolist()
        found |= {at_ms: cell for at_ms, cell in zip(frame.times_ms.tolist(), cells, strict=False) if cell is not None}
        yield own, found


def _wanted_series(question: notation.Eval) -> list[tuple[labels.Labels, dict[int, notation.Point]]]:
    start, step = question.window or (question.start_ms, question.step_ms or 1)
    return [
        (series.labels, {start + at * step: value for at, value in enumerate(series.points) if value is not None})
        for series in question.series
    ]


def _is_same(question: notation.Eval, answer: engine.QueryResult) -> bool:
    if question.string is not None or answer.kind is engine.ResultType.STRING:
        return answer.text == question.string
    got = [row for row in _rows(answer.frame) if row[1]]
    if question.scalar is not None:
        wanted: list[tuple[labels.Labels, dict[int, notation.Point]]]
        wanted = [(labels.Labels(), {question.start_ms: question.scalar})]
        if answer.kind is not engine.ResultType.SCALAR:
            return False
    else:
        wanted = [row for row in _wanted_series(question) if row[1]]
    if "ordered" not in question.expects or question.step_ms is not None:
        got.sort(key=lambda row: row[0])
        wanted.sort(key=lambda row: row[0])
    return len(got) == len(wanted) and all(
        own == theirs and values.keys() == others.keys() and all(is_close(values[at], others[at]) for at in values)
        for (own, values), (theirs, others) in zip(wanted, got, strict=True)
    )


def _unlike(kind: str, said: tuple[str, ...], question: notation.Eval) -> Iterator[str]:
    """How warnings or infos differ from what a question expects of them; nothing where it expects nothing."""
    if f"no_{kind}" in question.expects:
        yield from (f"no {kind} wanted: {line}" for line in said)
    wanted = [each for each in question.wordings if each.kind == kind]
    if kind in question.expects and not wanted:
        wanted = [notation.Wording(kind)]
    for each in wanted:
        if not any(each.fits(line) for line in said):
            yield f"no {kind} says {each.text or 'anything'}"
    for line in said if wanted else ():
        if not any(each.fits(line) for each in wanted):
            yield f"unexpected {kind}: {line}"


def _show_wanted(question: notation.Eval) -> str:
    if question.string is not None:
        return repr(question.string)
    if question.scalar is not None:
        return f"scalar {question.scalar}"
    rows = _wanted_series(question)
    return "; ".join(f"{own} {_show_values(values)}" for own, values in rows) or "nothing"


def _show(answer: engine.QueryResult) -> str:
    if answer.text is not None:
        return repr(answer.text)
    rows = _rows(answer.frame)
    return f"{answer.kind} " + ("; ".join(f"{own} {_show_values(values)}" for own, values in rows) or "nothing")


def _show_values(values: dict[int, notation.Point]) -> str:
    shown = [
        (histogram_text.format_histogram(value) if isinstance(value, histograms.Histogram) else f"{value:g}")
        + f"@{at / 1000:g}"
        for at, value in values.items()
    ]
    return " ".join(shown[:12]) + (" …" if len(shown) > 12 else "")


def run_file(path: Path) -> Iterator[Outcome]:
    """The outcome of every question of a file."""
    script = Script()
    for command in notation.read(path.read_text()):
        if isinstance(command, notation.Clear):
            script.clear()
        elif isinstance(command, notation.Load):
            script.load(command)
        else:
            yield _outcome(script, command, path.stem)


def _outcome(script: Script, question: notation.Eval, file: str) -> Outcome:
    place = file, question.line, question.text
    if file in FLAGGED:
        return Outcome(*place, Status.SKIPPED, got="behind a feature flag of Prometheus")
    try:
        wanted, got = script.ask(question)
    except Skip as skip:
        return Outcome(*place, Status.SKIPPED, got=str(skip))
    except Exception as error:  # a crash of the engine is a miss like any other, and must not hide the rest
        return Outcome(*place, Status.FAILED, "no crash", f"{type(error).__name__}: {error}")
    return Outcome(*place, Status.PASSED if wanted == got else Status.FAILED, wanted, got)


def summary(outcomes: list[Outcome]) -> dict[str, Any]:
    by_file: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        by_file.setdefault(outcome.file, Counter())[outcome.status] += 1
    totals = Counter(outcome.status for outcome in outcomes)
    reasons = Counter(outcome.got for outcome in outcomes if outcome.status is Status.SKIPPED)
    return {
        **{status.value: totals[status] for status in Status},
        "skipped_because": dict(reasons),
        "by_file": {file: {status.value: counts[status] for status in Status} for file, counts in by_file.items()},
    }


def main(argv: list[str] | None = None) -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("place", type=Path, help="a .test file, or a folder of them")
    options.add_argument("--json", action="store_true", help="print the counts as JSON")
    options.add_argument("-v", "--verbose", action="store_true", help="print every miss")
    chosen = options.parse_args(argv)
    files = sorted(chosen.place.glob("*.test")) if chosen.place.is_dir() else [chosen.place]
    outcomes = [outcome for file in files for outcome in run_file(file)]
    missed = [outcome for outcome in outcomes if outcome.status is Status.FAILED]
    for miss in missed if chosen.verbose else ():
        sys.stderr.write(
            f"{miss.file}.test:{miss.line}: {miss.text}\n  wanted: {miss.wanted[:600]}\n  got:    {miss.got[:600]}\n"
        )
    counts = summary(outcomes)
    short = f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped"
    sys.stdout.write((json.dumps(counts, indent=2) if chosen.json else short) + "\n")
    return 1 if missed or not outcomes else 0


if __name__ == "__main__":
    sys.exit(main())
