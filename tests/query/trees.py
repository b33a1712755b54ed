"""Hypothesis strategies for well-typed PromQL trees, for whoever states a law about them."""

from __future__ import annotations

import string
from dataclasses import fields, replace
from typing import Any

from hypothesis import strategies as st

from watchkeeper.query import engine
from watchkeeper.query.promql import ast, parser
from watchkeeper.query.promql.functions import AGGREGATION_PARAMETERS, AGGREGATIONS, FUNCTIONS
from watchkeeper.query.promql.types import COMPARISONS, SET_OPERATORS, TRIMS

ARITHMETIC = sorted(parser.BINDING.keys() - COMPARISONS - SET_OPERATORS - TRIMS)
GROUPED = (ast.MatchKind.MANY_TO_ONE, ast.MatchKind.ONE_TO_MANY)

metric_names = st.sampled_from(["up", "a:b", "sum", "by", "offset", "and", "start", "DCGM_FI_DEV_GPU_TEMP"])
label_names = st.sampled_from(["gpu", "on", "inf", "without", "l.x", "with space", "é"]) | st.text(
    string.ascii_letters, min_size=1, max_size=4
)
label_values = st.text(st.characters(codec="utf-8"), max_size=8)
milliseconds = st.integers(1, 10**11)
numbers = st.builds(ast.Number, st.floats(allow_nan=False) | st.integers(-1000, 1000).map(float))
strings = st.builds(ast.String, label_values)
times = {
    "offset_ms": st.just(0) | st.integers(-(10**9), 10**9),
    "at": st.none() | st.integers(-(10**12), 10**13) | st.sampled_from(ast.AtEdge),
}
matchers = st.builds(
    engine.Matcher, label_names, st.sampled_from([engine.MatchOp.EQUAL, engine.MatchOp.NOT_EQUAL]), label_values
) | st.builds(
    engine.Matcher,
    label_names,
    st.sampled_from([engine.MatchOp.REGEX, engine.MatchOp.NOT_REGEX]),
    st.sampled_from(["x.*", "a|b", "(?i)node-[0-9]+", "\\\\d"]),
)


@st.composite
def selectors(draw: st.DrawFn) -> ast.Selector:
    name = draw(st.none() | metric_names)
    found = draw(st.lists(matchers, max_size=3))
    found.sort(key=lambda matcher: (matcher.name, matcher.op, matcher.value))
    is_equal = engine.MatchOp.EQUAL
    own = engine.Matcher("__name__", is_equal, name or draw(st.sampled_from(["my.metric", "up"])))
    times_drawn: dict[str, Any] = {key: draw(strategy) for key, strategy in times.items()}
    if name is None:
        found = sorted([*found, own], key=lambda matcher: (matcher.name, matcher.op, matcher.value))
        return ast.Selector(None, tuple(found), **times_drawn)
    return ast.Selector(name, (own, *found), **times_drawn)


def names() -> st.SearchStrategy[tuple[str, ...]]:
    return st.lists(label_names, max_size=2).map(tuple)


@st.composite
def matchings(draw: st.DrawFn, op: str) -> ast.Matching:
    is_on, labels = draw(st.booleans()), draw(names())
    if op in SET_OPERATORS:
        return ast.Matching(ast.MatchKind.MANY_TO_MANY, is_on, labels=labels)
    kind = draw(st.sampled_from([ast.MatchKind.ONE_TO_ONE, *GROUPED]))
    include = draw(names()) if kind in GROUPED else ()
    return ast.Matching(kind, is_on, labels=labels, include=tuple(name for name in include if name not in labels))


@st.composite
def binaries(draw: st.DrawFn, left: st.SearchStrategy[ast.Expr], right: st.SearchStrategy[ast.Expr]) -> ast.Binary:
    """Between vectors; the ones with scalars are made from `arithmetic`."""
    op = draw(st.sampled_from(sorted(parser.BINDING)))
    returns_bool = op in COMPARISONS and draw(st.booleans())
    matching = draw(matchings(op))
    return ast.Binary(op, draw(left), draw(right), returns_bool=returns_bool, matching=matching)


def scalars() -> st.SearchStrategy[ast.Expr]:
    def larger(inner: st.SearchStrategy[ast.Expr]) -> st.SearchStrategy[ast.Expr]:
        arithmetic = st.builds(ast.Binary, st.sampled_from(ARITHMETIC), inner, inner)
        comparison = st.builds(ast.Binary, st.sampled_from(sorted(COMPARISONS)), inner, inner, st.just(True))
        return st.builds(ast.Paren, inner) | arithmetic | comparison | st.just(ast.FunctionCall("time", ()))

    return st.recursive(numbers, larger, max_leaves=4)


@st.composite
def calls(draw: st.DrawFn, vectors: st.SearchStrategy[ast.Expr]) -> ast.FunctionCall:
    vector_functions = [f for f in FUNCTIONS.values() if f.returns is ast.ValueType.INSTANT and f.name != "info"]
    function = draw(st.sampled_from(sorted(vector_functions, key=lambda function: function.name)))
    plain = selectors().map(lambda selector: ast.RangeSelector(selector, 300_000))
    ranges = plain | st.builds(ast.Subquery, vectors, milliseconds, st.none() | milliseconds, **times)
    kinds = {
        ast.ValueType.INSTANT: vectors,
        ast.ValueType.SCALAR: scalars(),
        ast.ValueType.STRING: strings,
        ast.ValueType.RANGE: ranges,
    }
    return ast.FunctionCall(function.name, tuple(draw(kinds[kind]) for kind in function.args))


@st.composite
def aggregates(draw: st.DrawFn, vectors: st.SearchStrategy[ast.Expr]) -> ast.Aggregate:
    op = draw(st.sampled_from(sorted(AGGREGATIONS)))
    kind = AGGREGATION_PARAMETERS.get(op)
    parameter = None if kind is None else draw(strings if kind is ast.ValueType.STRING else scalars())
    grouping, is_without = draw(names()), draw(st.booleans())
    return ast.Aggregate(op, draw(vectors), parameter=parameter, grouping=grouping, is_without=is_without)


def vectors() -> st.SearchStrategy[ast.Expr]:
    def larger(inner: st.SearchStrategy[ast.Expr]) -> st.SearchStrategy[ast.Expr]:
        with_scalar = st.builds(ast.Binary, st.sampled_from(ARITHMETIC), inner, scalars()) | st.builds(
            ast.Binary, st.sampled_from(ARITHMETIC), scalars(), inner
        )
        signed = st.builds(ast.Unary, st.sampled_from("+-"), inner)
        return (
            signed
            | with_scalar
            | st.builds(ast.Paren, inner)
            | binaries(inner, inner)
            | calls(inner)
            | aggregates(inner)
        )

    return st.recursive(selectors(), larger, max_leaves=6)


expressions = vectors() | scalars() | strings


def without_parentheses(expr: Any) -> Any:
    """The tree's meaning: the same nodes, whatever was in parentheses."""
    if isinstance(expr, ast.Paren):
        return without_parentheses(expr.expr)
    if isinstance(expr, tuple):
        return tuple(map(without_parentheses, expr))
    if not isinstance(expr, ast.Expr):
        return expr
    return replace(expr, **{each.name: without_parentheses(getattr(expr, each.name)) for each in fields(expr)})
