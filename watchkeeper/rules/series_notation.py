"""Parse promtool's notation for a series and its values: `up{node="n1"} 1x3 _ 0+2x5 stale`.

`unit_tests` reads input series and expected samples with it. A value is a number, a native histogram
(`query.histogram_text`), None for no sample, or the stale marker.
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
# More values than a test of several days needs; a typo must not fill the memory.
MAX_VALUES = 1_000_000


def parse_labels(text: str) -> Labels:
    """Parse `name{a="b"}`, `{a="b"}` or `name`; an empty text is the empty label set."""
    if text.strip() in ("", "{}"):
        return Labels()
    expr = parser.parse(text)
    if not isinstance(expr, ast.Selector) or any(m.op is not engine.MatchOp.EQUAL for m in expr.matchers):
        raise QueryError(f'{quote(text)} is not a series such as up{{node="n1"}}')
    values_by_name = {matcher.name: matcher.value for matcher in expr.matchers}
    return Labels(values_by_name | ({METRIC_NAME: expr.name} if expr.name else {}))


def parse_values(text: str) -> list[float | Histogram | None]:
    """Expand the values; `axn` is a and n repeats, `a+bxn` is a and n steps of b."""
    parsed: list[float | Histogram | None] = []
    for item in histogram_text.VALUES.findall(text):
        if item.startswith("{{"):
            parsed += histogram_text.expand(item)
            continue
        match = ITEM.match(item)
        if match is None:
            raise QueryError(f"{quote(item)} is not a value such as 1, 1x5, 1+2x5, _ or stale")
        times = int(match["times"] or 0)
        if len(parsed) + times >= MAX_VALUES:
            raise QueryError(f"{len(parsed) + times + 1} values, the limit is {MAX_VALUES}")
        if match["start"] == "_":
            parsed += [None] * max(1, times)
        elif match["start"] == "stale":
            parsed += [STALE] * (times + 1)
        else:
            first, change = float(match["start"]), float(match["step"] or 0)
            parsed += [first + change * index if change else first for index in range(times + 1)]
    return parsed


def build_sample(series: str, at_ms: int, value: float | Histogram) -> interfaces.AnySample:
    if isinstance(value, Histogram):
        return HistogramSample(parse_labels(series), at_ms, value)
    return Sample(parse_labels(series), at_ms, value)
