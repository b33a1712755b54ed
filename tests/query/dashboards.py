"""PromQL of other people's dashboards as something an engine can be asked: variables filled in, series made up.

Grafana's variables become what a first look at the dashboard would send. The series are made from the
expressions themselves: each metric gets the labels that its expressions match and group by.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import re
from collections.abc import Iterator

import re2

from tests.support.paths import SHARED
from watchkeeper import errors
from watchkeeper.model.labels import METRIC_NAME, Labels
from watchkeeper.model.samples import Sample
from watchkeeper.query.promql import ast, parser

CORPUS = SHARED / "corpus" / "dashboards" / "expressions.txt"
VARIABLE = r"(?:\$\{\w+(?::\w+)?\}|\$\w+|\[\[\w+\]\])"
# `label="$x"`, `label=~"$x|other"`, and what is left: in a range, in a grouping, or in arithmetic.
QUOTED = re.compile(rf"""(?P<op>!=|=~|!~|=)\s*(?P<quote>["'])(?P<text>[^"']*{VARIABLE}[^"']*)["']""")
IN_RANGE = re.compile(rf"\[\s*{VARIABLE}(?=\s*[:\]])|(?<=:)\s*{VARIABLE}(?=\s*\])|(?<=offset )\s*{VARIABLE}")
IN_GROUPING = re.compile(rf"(?P<head>\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*?){VARIABLE}")
BEGIN_MS = 1_705_276_800_000
SAMPLES = 60


def expressions() -> list[str]:
    """Every expression of the corpus with its variables filled in, once each."""
    lines = CORPUS.read_text().splitlines()
    found = [line.split("\t")[3] for line in lines if not line.startswith("#") and line.count("\t") >= 3]
    return sorted({filled(expr) for expr in found if not expr.startswith("TEMPLATE")})


def filled(expr: str) -> str:
    expr = IN_RANGE.sub(lambda match: "[5m" if match[0].startswith("[") else "5m", expr)
    expr = QUOTED.sub(_any_value, expr)
    expr = IN_GROUPING.sub(lambda match: match["head"] + "instance", expr)
    # A prefix of metric names is empty by default; what is left stands for a number.
    return re.sub(VARIABLE, "1", re.sub(rf"{VARIABLE}(?=[a-z])", "", expr))


def _any_value(match: re.Match[str]) -> str:
    is_positive = match["op"] in ("=", "=~")
    return '=~".*"' if is_positive else '!~"nothing"'


def parsed(exprs: list[str]) -> dict[str, ast.Expr]:
    """Those that are PromQL, with their trees."""
    found = {}
    for expr in exprs:
        with contextlib.suppress(errors.QueryError):
            found[expr] = parser.parse(expr)
    return found


def nodes(tree: object) -> Iterator[object]:
    yield tree
    if dataclasses.is_dataclass(tree):
        for part in dataclasses.fields(tree):
            inner = getattr(tree, part.name)
            for one in inner if isinstance(inner, tuple | list) else (inner,):
                if dataclasses.is_dataclass(one):
                    yield from nodes(one)


def series(trees: dict[str, ast.Expr], *, most: int) -> list[Labels]:
    """Three series for each selector, with every label the expression knows."""
    found: dict[Labels, None] = {}
    for tree in trees.values():
        every = list(nodes(tree))
        grouping = {name for node in every for name in _names(node)}
        for selector in (node for node in every if isinstance(node, ast.Selector)):
            for turn in range(3):
                labels = _matching(selector, grouping, turn)
                if labels is not None and len(found) < most:
                    found[labels] = None
    return list(found)


def _names(node: object) -> Iterator[str]:
    for field in ("grouping", "labels", "include", "on"):
        value = getattr(node, field, None)
        if isinstance(value, tuple):
            yield from (name for name in value if isinstance(name, str))


def _matching(selector: ast.Selector, grouping: set[str], turn: int) -> Labels | None:
    """A label set that the selector takes, if a simple one can be found."""
    labels = {name: f"{name}-{turn}" for name in grouping} | {"instance": f"node-{turn}:9400"}
    for matcher in selector.matchers:
        tries = (f"{matcher.name}-{turn}", matcher.value, matcher.value.split("|")[0].replace(".*", "x"), "1", "x")
        value = next((text for text in tries if text and _takes(matcher, text)), None)
        if value is None:
            return None
        labels[matcher.name] = value
    labels["le"] = ("0.5", "1", "+Inf")[turn] if labels.get(METRIC_NAME, "").endswith("_bucket") else ""
    return Labels(labels) if re.fullmatch(r"[a-zA-Z_:][\w:]*", labels.get(METRIC_NAME, "")) else None


def _takes(matcher: object, text: str) -> bool:
    op, value = getattr(matcher, "op", ""), getattr(matcher, "value", "")
    if op in ("=", "!="):
        return (text == value) is (op == "=")
    with contextlib.suppress(re2.error):
        return (re2.fullmatch(value, text) is not None) is (op == "=~")
    return False


def samples(known: list[Labels]) -> Iterator[Sample]:
    """A minute's quarter apart, off the edges of windows; counters rise from high up, others wander."""
    dice = random.Random(11)
    values = [dice.uniform(1e5, 2e5) for _ in known]
    for turn in range(SAMPLES):
        for place, labels in enumerate(known):
            rises = labels.name.endswith(("_total", "_count", "_sum", "_bucket"))
            values[place] += dice.randint(1, 50) if rises else dice.randint(-50, 50)
            yield Sample(labels, BEGIN_MS + turn * 15_000 + 7_300, values[place])
