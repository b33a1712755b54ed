"""Prometheus' test notation as values: what to load, what to ask, what must come back.

`promqltest` runs what `read` finds here. The notation is explained in promql/promqltest/README.md of
prometheus/prometheus.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from watchkeeper.kit import durations
from watchkeeper.model import histograms, labels, samples
from watchkeeper.query import histogram_text
from watchkeeper.query.promql import lexer

UNSIGNED = r"(?:(?i:inf|nan)|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
NUMBER = rf"[+-]?{UNSIGNED}"
POINT = re.compile(rf"(?:({NUMBER})([+-]{UNSIGNED})?|(_)|(stale))(?:x(\d+))?")
STRING = r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|`[^`]*`"
SERIES = re.compile(rf"([A-Za-z_:][\w:]*)?\s*(\{{(?:[^\"'`{{}}]|{STRING})*\}})?(@st)?(?:\s+(.*))?")
INSTANT = re.compile(r"eval(?:_(\w+))?\s+instant\s+(?:at\s+(\S+)\s+)?(.+)")
RANGE = re.compile(r"eval(?:_(\w+))?\s+range\s+from\s+(\S+)\s+to\s+(\S+)\s+step\s+(\S+)\s+(.+)")
EXPECT = re.compile(r"expect\s+(no_warn|no_info|warn|info|fail|ordered|string|range vector)\b\s*(.*)")
OLD_FAIL = re.compile(r"expected_fail_(message|regexp)\s+(.*)")
WINDOW = re.compile(r"from\s+(\S+)\s+to\s+(\S+)\s+step\s+(\S+)")
START_TIMES = "start timestamps"

Point: TypeAlias = float | histograms.Histogram
# The points of a series in order; None is a gap.
Points: TypeAlias = tuple[Point | None, ...]


class NotationError(ValueError):
    """A line of a test file does not follow the notation."""


@dataclass(frozen=True, slots=True)
class Series:
    """`unreadable` says why the points could not be taken: they are start timestamps."""

    labels: labels.Labels
    points: Points
    unreadable: str | None = None


@dataclass(frozen=True, slots=True)
class Wording:
    """What a warning, an info or an error must say: exactly this, or something with this pattern; None is anything."""

    kind: str
    text: str | None = None
    is_pattern: bool = False

    def fits(self, said: str) -> bool:
        if self.text is None:
            return True
        return re.search(self.text, said) is not None if self.is_pattern else self.text in said


@dataclass(frozen=True, slots=True)
class Load:
    line: int
    step_ms: int
    series: tuple[Series, ...]
    adds_histograms: bool = False


@dataclass(frozen=True, slots=True)
class Clear:
    line: int


@dataclass(frozen=True, slots=True)
class Eval:
    """One question. `step_ms` is None for an instant one; `window` is set where it answers a range vector."""

    line: int
    text: str
    start_ms: int
    end_ms: int
    step_ms: int | None = None
    scalar: float | None = None
    string: str | None = None
    series: tuple[Series, ...] = ()
    expects: frozenset[str] = frozenset()
    wordings: tuple[Wording, ...] = ()
    window: tuple[int, int] | None = field(default=None)


Command: TypeAlias = Load | Clear | Eval


def read(text: str) -> Iterator[Command]:
    """The commands of a file in order."""
    # As Prometheus does: a comment is an empty line, and an empty line ends a block.
    lines = ["" if line.strip().startswith("#") else line.strip() for line in text.splitlines()]
    at = 0
    while at < len(lines):
        head, first = lines[at], at + 1
        at += 1
        if not head:
            continue
        body = []
        if head != "clear":
            while at < len(lines) and lines[at]:
                body.append(lines[at])
                at += 1
        try:
            yield _command(head, body, line=first)
        except ValueError as error:
            raise NotationError(f"line {first}: {error}") from error


def _command(head: str, body: list[str], *, line: int) -> Command:
    if head == "clear":
        return Clear(line)
    word, _, rest = head.partition(" ")
    if word in ("load", "load_with_nhcb"):
        series = tuple(read_series(each) for each in body)
        return Load(line, read_ms(rest), series, adds_histograms=word == "load_with_nhcb")
    if match := INSTANT.fullmatch(head):
        old_form, at, text = match.groups()
        at_ms = read_ms(at or "0")
        return _question(Eval(line, text, at_ms, at_ms), body, old_form=old_form)
    if match := RANGE.fullmatch(head):
        old_form, start, end, step, text = match.groups()
        question = Eval(line, text, read_ms(start), read_ms(end), read_ms(step))
        return _question(question, body, old_form=old_form)
    raise NotationError(f"`{head[:60]}` is no command")


def _question(question: Eval, body: list[str], *, old_form: str | None) -> Eval:
    expects = {old_form} if old_form else set()
    scalar: float | None = None
    string: str | None = None
    window = None
    found, wordings = [], []
    for line in body:
        if match := EXPECT.fullmatch(line):
            kind, rest = match.groups()
            expects.add(kind)
            if kind in ("warn", "info", "fail"):
                wordings.append(read_wording(kind, rest))
            string = lexer.unquote(rest, 0) if kind == "string" else string
            if kind == "range vector" and (times := WINDOW.fullmatch(rest)):
                window = read_ms(times[1]), read_ms(times[3])
        elif match := OLD_FAIL.fullmatch(line):
            expects.add("fail")
            wordings.append(Wording("fail", match[2], is_pattern=match[1] == "regexp"))
        elif re.fullmatch(NUMBER, line):
            scalar = float(line)
        else:
            found.append(read_series(line))
    return Eval(
        question.line,
        question.text,
        question.start_ms,
        question.end_ms,
        question.step_ms,
        scalar=scalar,
        string=string,
        series=tuple(found),
        expects=frozenset(expects),
        wordings=tuple(wordings),
        window=window,
    )


def read_wording(kind: str, rest: str) -> Wording:
    """What follows `expect warn`: nothing, `msg: text`, or `regex: pattern`."""
    form, colon, text = rest.partition(":")
    if not colon or form not in ("msg", "regex"):
        return Wording(kind)
    return Wording(kind, text.strip(), is_pattern=form == "regex")


def read_ms(text: str) -> int:
    """A time of the notation: `50m`, `1m30s`, or a number of seconds."""
    sign, text = (-1, text[1:]) if text.startswith("-") else (1, text)
    return sign * (durations.parse_ms(text) if text[-1] in "smhdwy" else round(float(text) * 1000))


def read_series(line: str) -> Series:
    """`metric{label="value"} 1+2x3 _ stale`, or what of it can be read."""
    match = SERIES.fullmatch(line)
    if match is None or match[1] == match[2]:
        raise NotationError(f"`{line[:60]}` is no series")
    name, braces, starts, points = match.groups()
    label_set = read_labels(name, braces or "{}")
    if starts:
        return Series(label_set, (), unreadable=START_TIMES)
    return Series(
        label_set, tuple(point for word in histogram_text.VALUES.findall(points or "") for point in read_points(word))
    )


def read_labels(name: str | None, braces: str) -> labels.Labels:
    pairs = {labels.METRIC_NAME: name} if name else {}
    tokens = [token for token in lexer.tokenize(braces[1:-1]) if token[0] not in (",", "end")]
    while tokens:
        kind, text, position = tokens.pop(0)
        key = lexer.unquote(text, position) if kind == "string" else text
        if tokens and tokens[0][0] == "=":
            _, value, value_at = tokens[1]
            pairs[key] = lexer.unquote(value, value_at)
            del tokens[:2]
        else:
            pairs[labels.METRIC_NAME] = key
    return labels.Labels(pairs)


def read_points(word: str) -> Points:
    """`2+3x2` is 2 5 8, `7x2` is 7 7 7, `_x2` is two gaps; histograms likewise."""
    if word.startswith("{{"):
        return tuple(histogram_text.expand(word))
    match = POINT.fullmatch(word)
    if match is None:
        raise NotationError(f"`{word[:60]}` is no value")
    number, step, gap, stale, times = match.groups()
    repeats = int(times) if times else 0
    if gap:
        return (None,) * (repeats if times else 1)
    if stale:
        return (samples.STALE,) * (repeats + 1)
    points, change = [float(number)], float(step) if step else 0.0
    for _ in range(repeats):
        points.append(points[-1] + change)
    return tuple(points)


def sample(series: labels.Labels, at_ms: int, point: Point) -> samples.Sample | histograms.HistogramSample:
    if isinstance(point, histograms.Histogram):
        return histograms.HistogramSample(series, at_ms, point)
    return samples.Sample(series, at_ms, point)
