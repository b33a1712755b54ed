"""Functions about labels and order: label_replace, label_join, sort, sort_by_label, absent."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import numpy as np
import re2

from watchkeeper import errors
from watchkeeper.model.labels import METRIC_NAME
from watchkeeper.query.engine import Mask, MatchOp
from watchkeeper.query.evaluate.invocation import Invocation, PromFunction
from watchkeeper.query.evaluate.values import Vector, label_of, relabelled, with_label
from watchkeeper.query.promql import ast
from watchkeeper.store.series import Pairs, SeriesSet

# `$1`, `${name}` and `$$` in a replacement, as Go's regexp.Expand reads them.
PLACEHOLDER = re.compile(r"\$(?:\{(\w+)\}|(\w+)|(\$))")
DIGITS = re.compile(r"(\d+)")


def _label_replace(invocation: Invocation) -> Vector:
    vector = invocation.vector(0)
    target, replacement, source, pattern = (invocation.text(at) for at in range(1, 5))
    _check_label_name(target, "label_replace")
    compiled = _compiled(pattern)
    expanded: dict[str, str | None] = {}

    def replace(pairs: Pairs) -> Pairs:
        value = label_of(pairs, source)
        if value not in expanded:
            match = compiled.fullmatch(value)
            expanded[value] = None if match is None else _expand(replacement, match)
        found = expanded[value]
        return pairs if found is None else with_label(pairs, target, found)

    return relabelled(vector, vector.series.mapped(("replace", target, replacement, source, pattern), replace))


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> Any:
    options = re2.Options()
    options.dot_nl = True
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        raise errors.QueryError(f"invalid regular expression in label_replace(): {errors.quote(pattern)}") from error


def _expand(replacement: str, match: re.Match[str]) -> str:
    def value(placeholder: re.Match[str]) -> str:
        name = placeholder[1] or placeholder[2]
        if name is None:
            return "$"
        try:
            return match.group(int(name) if name.isdecimal() else name) or ""
        except (IndexError, KeyError, ValueError):
            return ""

    return PLACEHOLDER.sub(value, replacement)


def _label_join(invocation: Invocation) -> Vector:
    vector = invocation.vector(0)
    target, separator, *sources = (invocation.text(at) for at in range(1, len(invocation.args)))
    for name in (target, *sources):
        _check_label_name(name, "label_join")

    def join(pairs: Pairs) -> Pairs:
        return with_label(pairs, target, separator.join(label_of(pairs, source) for source in sources))

    return relabelled(vector, vector.series.mapped(("join", target, separator, *sources), join))


def _check_label_name(name: str, function: str) -> None:
    """Prometheus 3 allows any UTF-8 text but the empty one."""
    if not name:
        raise errors.QueryError(f"invalid label name {errors.quote(name)} in {function}()")


def _sort(invocation: Invocation) -> Vector:
    return _by_value(invocation, sign=1.0)


def _sort_desc(invocation: Invocation) -> Vector:
    return _by_value(invocation, sign=-1.0)


def _by_value(invocation: Invocation, *, sign: float) -> Vector:
    """Order matters for an instant query only; NaN comes last in both directions."""
    vector = invocation.vector(0)
    if vector.values.shape[1] != 1:
        invocation.notes.doubt_order(invocation.call)
        return vector
    # What is not present may be a stale marker, which does not like to be computed with.
    keys = sign * np.where(vector.present[:, 0], vector.values[:, 0], np.nan)
    return vector.only(np.lexsort((keys, np.isnan(keys))))


def _sort_by_label(invocation: Invocation) -> Vector:
    return _by_labels(invocation, is_reversed=False)


def _sort_by_label_desc(invocation: Invocation) -> Vector:
    return _by_labels(invocation, is_reversed=True)


def _by_labels(invocation: Invocation, *, is_reversed: bool) -> Vector:
    vector = invocation.vector(0)
    if vector.values.shape[1] != 1:
        invocation.notes.doubt_order(invocation.call)
        return vector
    names = [invocation.text(at) for at in range(1, len(invocation.args))]

    def key(row: int) -> tuple[object, ...]:
        pairs = vector.series.pairs[row]
        return (*(_natural(label_of(pairs, name)) for name in names), pairs)

    rows = sorted(range(len(vector.series)), key=key, reverse=is_reversed)
    return vector.only(np.array(rows, dtype=np.int64))


def _natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """A key under which gpu9 comes before gpu10: of numbers the longer one is larger, of any length."""
    return tuple(
        (0, len(number := part.lstrip("0")), number) if part.isdecimal() else (1, 0, part)
        for part in DIGITS.split(text)
        if part
    )


def absent(present: Mask, selected: ast.Expr) -> Vector:
    """1 at the steps at which nothing is present, under the labels that the selector names for certain."""
    missing = ~np.any(present, axis=0)[None, :]
    return Vector(SeriesSet([_certain_labels(selected)]), np.ones(missing.shape), missing)


def _certain_labels(expr: ast.Expr) -> Pairs:
    """Labels with exactly one equality matcher, and no other matcher of the same label."""
    while isinstance(expr, (ast.Paren, ast.RangeSelector)):
        expr = expr.expr if isinstance(expr, ast.Paren) else expr.selector
    if not isinstance(expr, ast.Selector):
        return ()
    named: dict[str, str] = {}
    doubtful = {METRIC_NAME}
    for matcher in expr.matchers:
        if matcher.op is MatchOp.EQUAL and matcher.name not in named:
            named[matcher.name] = matcher.value
        else:
            doubtful.add(matcher.name)
    return tuple(sorted((name, value) for name, value in named.items() if name not in doubtful and value))


FUNCTIONS: dict[str, PromFunction] = {
    "label_replace": _label_replace,
    "label_join": _label_join,
    "sort": _sort,
    "sort_desc": _sort_desc,
    "sort_by_label": _sort_by_label,
    "sort_by_label_desc": _sort_by_label_desc,
}
