"""The short notation of promtool's tests for a series and its values: `up{node="n1"} 1x3 _ 0+2x5 stale`.

`unit_tests` reads input series and expected samples with it. A value is a number, a native histogram
(`query.histogram_text`), None where the series has no sample, or the stale marker.
"""

from __future__ import annotations

import re

from watchkeeper.errors import QueryError, quote
from watchkeeper.model.histograms import Histogram, HistogramSample
from watchkeeper.model.labels import METRIC_NAME, Labels
from watchkeeper.model.samples import STALE, Sample
from watchkeeper.query import engine, histogram_text
from watchkeeper.query.promql import ast, parser
from watchkeeper.store import interfaces

# No hexadecimal numbers: `0x20` is a zero and twenty repeats, as in promtool.
NUMBER = r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|[iI]nf|[nN]a[nN])"
ITEM = re.compile(
    rf"(?P<start>{NUMBER}|_|stale)(?:(?P<step>[-+]{NUMBER.removeprefix('[-+]?')}))?(?:x(?P<times>\d+))?\Z"
)
# More values than a test of days at seconds needs; keeps a slip of the finger from filling the memory.
MAX_VALUES = 1_000_000


def labels(text: str) -> Labels:
    """The label set of `name{a="b"}`, `{a="b"}` or `name`; the empty text is the empty set."""
    if text.strip() in ("", "{}"):
        return Labels()
    expr = parser.parse(text)
    if not isinstance(expr, ast.Selector) or any(m.op is not engine.MatchOp.EQUAL for m in expr.matchers):
        raise QueryError(f'{quote(text)} is not a series such as up{{node="n1"}}')
    named = {matcher.name: matcher.value for matcher in expr.matchers}
    return Labels(named | ({METRIC_NAME: expr.name} if expr.name else {}))


def values(text: str) -> list[float | Histogram | None]:
    """The values one after another; `axn` is a and n repeats, `a+bxn` is a and n steps of b."""
    found: list[float | Histogram | None] = []
    for item in histogram_text.WORDS.findall(text):
        if item.startswith("{{"):
            found += histogram_text.expand(item)
            continue
        match = ITEM.match(item)
        if match is None:
            raise QueryError(f"{quote(item)} is not a value such as 1, 1x5, 1+2x5, _ or stale")
        times = int(match["times"] or 0)
        if len(found) + times >= MAX_VALUES:
            raise QueryError(f"{len(found) + times + 1} values are more than {MAX_VALUES}")
        found += _expand(match["start"], match["step"], times)
    return found


def _expand(start: str, step: str | None, times: int) -> list[float | None]:
    if start == "_":
        return [None] * max(1, times)
    if start == "stale":
        return [STALE] * (times + 1)
    first, change = float(start), float(step or 0)
    return [first + change * at if change else first for at in range(times + 1)]


def sample(series: str, at_ms: int, value: float | Histogram) -> interfaces.AnySample:
    if isinstance(value, Histogram):
        return HistogramSample(labels(series), at_ms, value)
    return Sample(labels(series), at_ms, value)
