"""Functions for labels and order: label_replace, label_join, sort, sort_by_label, absent."""

from __future__ import annotations

import re
from functools import partial

import numpy as np

from watchkeeper import errors
from watchkeeper.kit import allowance
from watchkeeper.model.labels import METRIC_NAME
from watchkeeper.query.engine import Mask, MatchOp
from watchkeeper.query.evaluate.values import (
    Invocation,
    PromFunction,
    Vector,
    check_label_length,
    label_of,
    with_label,
    with_series,
)
from watchkeeper.query.promql import ast
from watchkeeper.query.promql.patterns import compile_pattern
from watchkeeper.store.series import Pairs, SeriesSet

# `$1`, `${name}` and `$$` in a replacement, as Go's regexp.Expand reads them.
PLACEHOLDER = re.compile(r"\$(?:\{(\w+)\}|(\w+)|(\$))")
DIGITS = re.compile(r"(\d+)")
# One part of a sort key in natural order: a tuple of three, and a text.
KEY_PART_BYTES = 150


def _label_replace(invocation: Invocation) -> Vector:
    vector = invocation.vector(0)
    target, replacement, source, pattern = (invocation.text(at) for at in range(1, 5))
    _check_label_name(target, "label_replace")
    try:
        compiled = compile_pattern(pattern)
    except ValueError as error:
        raise errors.QueryError(f"invalid regular expression in label_replace(): {errors.quote(pattern)}") from error
    expanded: dict[str, str | None] = {}

    def replace(pairs: Pairs) -> Pairs:
        value = label_of(pairs, source)
        if value not in expanded:
            match = compiled.fullmatch(value)
            expanded[value] = None if match is None else _expand(replacement, match, target)
        new_value = expanded[value]
        return pairs if new_value is None else with_label(pairs, target, new_value)

    return with_series(vector, vector.series.mapped(("replace", target, replacement, source, pattern), replace))


def _expand(replacement: str, match: re.Match[str], target: str) -> str:
    created = 0

    def value(placeholder: re.Match[str]) -> str:
        nonlocal created
        name = placeholder[1] or placeholder[2]
        if name is None:
            return "$"
        try:
            text = match.group(int(name) if name.isdecimal() else name) or ""
        except (IndexError, KeyError, ValueError):
            return ""
        created += len(text)
        check_label_length(target, created)
        return text

    return PLACEHOLDER.sub(value, replacement)


def _label_join(invocation: Invocation) -> Vector:
    vector = invocation.vector(0)
    target, separator, *sources = (invocation.text(at) for at in range(1, len(invocation.args)))
    for name in (target, *sources):
        _check_label_name(name, "label_join")

    def join(pairs: Pairs) -> Pairs:
        texts = [label_of(pairs, source) for source in sources]
        check_label_length(target, sum(map(len, texts)) + len(separator) * max(0, len(texts) - 1))
        return with_label(pairs, target, separator.join(texts))

    return with_series(vector, vector.series.mapped(("join", target, separator, *sources), join))


def _check_label_name(name: str, function: str) -> None:
    """Refuse an empty label name; Prometheus 3 allows any other UTF-8 text."""
    if not name:
        raise errors.QueryError(f"invalid label name {errors.quote(name)} in {function}()")


def _sort_by_value(invocation: Invocation, *, sign: float) -> Vector:
    """Sort an instant query by value, NaN last in both directions; range queries are not sorted."""
    vector = invocation.vector(0)
    if vector.values.shape[1] != 1:
        invocation.notes.warn_sort_ineffective(invocation.call)
        return vector
    # Absent cells may be stale markers, and arithmetic with them raises warnings.
    keys = sign * np.where(vector.present[:, 0], vector.values[:, 0], np.nan)
    return vector.select_rows(np.lexsort((keys, np.isnan(keys))))


def _sort_by_labels(invocation: Invocation, *, is_reversed: bool) -> Vector:
    vector = invocation.vector(0)
    if vector.values.shape[1] != 1:
        invocation.notes.warn_sort_ineffective(invocation.call)
        return vector
    names = [invocation.text(at) for at in range(1, len(invocation.args))]

    def key(row: int) -> tuple[object, ...]:
        allowance.check()
        pairs = vector.series.pairs[row]
        return (*(_natural_key(label_of(pairs, name)) for name in names), pairs)

    rows = sorted(range(len(vector.series)), key=key, reverse=is_reversed)
    return vector.select_rows(np.array(rows, dtype=np.int64))


def _natural_key(text: str) -> tuple[tuple[int, int, str], ...]:
    """A sort key for natural order, gpu9 before gpu10; digits are compared by length first, so any length works."""
    parts = DIGITS.split(text)
    allowance.use_labels(KEY_PART_BYTES * len(parts))
    return tuple(
        (0, len(number := part.lstrip("0")), number) if part.isdecimal() else (1, 0, part) for part in parts if part
    )


def absent(present: Mask, selected: ast.Expr) -> Vector:
    """1 at the steps without samples, with the labels that the selector determines."""
    missing = ~np.any(present, axis=0)[None, :]
    return Vector(SeriesSet([_certain_labels(selected)]), np.ones(missing.shape), missing)


def _certain_labels(expr: ast.Expr) -> Pairs:
    """Labels with exactly one equality matcher and no other matcher."""
    while isinstance(expr, (ast.Paren, ast.RangeSelector)):
        expr = expr.expr if isinstance(expr, ast.Paren) else expr.selector
    if not isinstance(expr, ast.Selector):
        return ()
    values_by_name: dict[str, str] = {}
    ambiguous = {METRIC_NAME}
    for matcher in expr.matchers:
        if matcher.op is MatchOp.EQUAL and matcher.name not in values_by_name:
            values_by_name[matcher.name] = matcher.value
        else:
            ambiguous.add(matcher.name)
    return tuple(sorted((name, value) for name, value in values_by_name.items() if name not in ambiguous and value))


FUNCTIONS: dict[str, PromFunction] = {
    "label_replace": _label_replace,
    "label_join": _label_join,
    "sort": partial(_sort_by_value, sign=1.0),
    "sort_desc": partial(_sort_by_value, sign=-1.0),
    "sort_by_label": partial(_sort_by_labels, is_reversed=False),
    "sort_by_label_desc": partial(_sort_by_labels, is_reversed=True),
}
