"""The parser builds the tree Prometheus would, and says no where and why Prometheus would."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper import errors
from watchkeeper.query import engine
from watchkeeper.query.promql import ast, parser, types
from watchkeeper.query.promql.ast import AtEdge, Binary, MatchKind, Number, Paren, Selector, Subquery, Unary
from watchkeeper.query.promql.functions import AGGREGATIONS, FUNCTIONS


def metric(name: str, **labels: str) -> Selector:
    pairs = {"__name__": name, **labels}
    return Selector(name, tuple(engine.Matcher(label, engine.MatchOp.EQUAL, value) for label, value in pairs.items()))


def vectors(op: str, left: ast.Expr, right: ast.Expr) -> Binary:
    kind = MatchKind.MANY_TO_MANY if op in types.SET_OPERATORS else MatchKind.ONE_TO_ONE
    return Binary(op, left, right, matching=ast.Matching(kind))


def refusal_of(text: str, limits: engine.QueryLimits = engine.QueryLimits()) -> errors.QueryError | None:  # noqa: B008
    """Why the parser does not want this, or None if it has a well-typed tree for it."""
    try:
        types.value_type(parser.parse(text, limits))
    except errors.QueryError as error:
        return error
    return None


A, B, C = metric("a"), metric("b"), metric("c")


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("a + b * c", vectors("+", A, vectors("*", B, C))),
        ("a - b - c", vectors("-", vectors("-", A, B), C)),
        ("a ^ b ^ c", vectors("^", A, vectors("^", B, C))),
        ("-a ^ b", Unary("-", vectors("^", A, B))),
        ("-a * b", vectors("*", Unary("-", A), B)),
        ("a ^ -b * c", vectors("*", vectors("^", A, Unary("-", B)), C)),
        ("a or b and c", vectors("or", A, vectors("and", B, C))),
        ("a unless b and c", vectors("and", vectors("unless", A, B), C)),
        ("a == b + c", vectors("==", A, vectors("+", B, C))),
        ("a atan2 b % c", vectors("%", vectors("atan2", A, B), C)),
        ("(a)", Paren(A)),
        ("- -1", Number(1)),
        ("and and and", vectors("and", metric("and"), metric("and"))),
    ],
)
def test_operators_bind_as_in_prometheus(text: str, tree: ast.Expr) -> None:
    assert parser.parse(text) == tree


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1_000", 1000),
        ("0x_1F", 31),
        ("0755", 493),
        ("08", 8),
        (".5", 0.5),
        ("2.", 2),
        ("1e3", 1000),
        ("1_0.2_5e+0_1", 102.5),
        ("-Inf", -math.inf),
        ("inF", math.inf),
        ("5m", 300),
        ("1h30m", 5400),
        ("-500ms", -0.5),
    ],
)
def test_numbers_are_read_as_prometheus_3_reads_them(text: str, value: float) -> None:
    assert parser.parse(text) == Number(value)


def test_nan_is_a_number() -> None:
    tree = parser.parse("NaN")
    assert isinstance(tree, Number)
    assert math.isnan(tree.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r'"a\n\t\"\\"', 'a\n\t"\\'),
        (r"'it\'s'", "it's"),
        (r"`raw\d`", r"raw\d"),
        ("`two\nlines`", "two\nlines"),
        (r'"\x41\102\u00e9\U0001f600"', "ABé😀"),
        (r'"\xe4\xbd\xa0"', "你"),
        ('"# no comment" # comment', "# no comment"),
    ],
)
def test_strings_have_the_escapes_of_go(text: str, value: str) -> None:
    assert parser.parse(text) == ast.String(value)


def test_modifiers_stand_in_any_order() -> None:
    wanted = Selector("a", A.matchers, offset_ms=-300_000, at=AtEdge.END)
    assert parser.parse("a offset -5m @ end()") == parser.parse("a @ end() offset -300") == wanted
    windowed = ast.RangeSelector(Selector("a", A.matchers, offset_ms=60_000, at=1500), 300_000)
    assert (
        parser.parse("a[5m] @ 1.5 offset 1m") == parser.parse("a [ 300 ] # five minutes\n offset 1m @ 1.5") == windowed
    )


def test_a_subquery_has_its_own_times_and_may_leave_the_step_open() -> None:
    inner = Selector("a", A.matchers, offset_ms=1000)
    assert parser.parse("a offset 1s [1h:5m] offset 2s") == Subquery(inner, 3_600_000, step_ms=300_000, offset_ms=2000)
    assert parser.parse("(a)[1h:]") == Subquery(Paren(A), 3_600_000)


def test_grouping_may_stand_before_or_after_and_with_quoted_names() -> None:
    wanted = ast.Aggregate("topk", A, parameter=Number(3), grouping=("by", "l.x"), is_without=True)
    assert parser.parse('topk without (by, "l.x") (3, a)') == parser.parse("TOPK(3, a) Without (by, 'l.x',)") == wanted


def test_matching_names_its_labels_and_what_it_carries_over() -> None:
    tree = parser.parse("a == bool ignoring (x) group_right (y, z) b")
    matching = ast.Matching(MatchKind.ONE_TO_MANY, labels=("x",), include=("y", "z"))
    assert tree == Binary("==", A, B, returns_bool=True, matching=matching)
    without_list = parser.parse("a * on (x) group_left b")
    assert isinstance(without_list, Binary)
    assert without_list.matching == ast.Matching(MatchKind.MANY_TO_ONE, is_on=True, labels=("x",))


def test_selectors_that_mean_the_same_are_equal() -> None:
    assert parser.parse('a{x="1",y="2"}') == parser.parse("a{y='2', x=`1`,}") == metric("a", x="1", y="2")
    quoted = parser.parse('{"my.metric", "l.x"!="v"}')
    assert quoted == parser.parse('{__name__="my.metric", "l.x"!="v"}')
    assert isinstance(quoted, Selector)
    assert quoted.name is None


@pytest.mark.parametrize("word", ["sum", "by", "offset", "or", "start", "group", "without", "quantile", "anchored"])
def test_a_keyword_may_be_a_metric_and_a_label(word: str) -> None:
    assert parser.parse(f'{word}{{{word}="x"}} + a') == vectors("+", metric(word, **{word: "x"}), A)


def test_every_node_knows_where_it_starts() -> None:
    tree = parser.parse("\n  sum(a) +\n rate(b[5m])")
    assert isinstance(tree, Binary)
    assert (tree.position, tree.left.position, tree.right.position) == (3, 3, 13)


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_every_function_is_callable_with_the_fewest_arguments_its_row_names(name: str) -> None:
    samples = {"instant vector": "a", "range vector": "a[5m]", "scalar": "1", "string": '"x"'}
    function = FUNCTIONS[name]
    args = ", ".join(samples[kind] for kind in function.args[: function.min_args])
    assert types.value_type(parser.parse(f"{name}({args})")) is function.returns


@given(st.text(max_size=60) | st.text("a1[](){}\"'`\\,:=~!<>+-*^@ \n#.eE_smd", max_size=60))
def test_any_text_is_either_a_tree_or_a_query_error(text: str) -> None:
    refusal = refusal_of(text)
    assert refusal is None or (refusal.line or 0) > 0 < (refusal.column or 0)


@given(st.lists(st.sampled_from([*"()[]{}+-*,=", "a", "sum", "by", "on", "1", "5m", '"x"', "offset", "rate", "@"])))
def test_any_row_of_tokens_is_either_a_tree_or_a_query_error(tokens: list[str]) -> None:
    refusal = refusal_of(" ".join(tokens))
    assert refusal is None or (refusal.column or 0) > 0


@pytest.mark.parametrize(
    "text",
    [
        "(" * 10_000,
        "-" * 10_000 + "a",
        "a" + "+a" * 1000,
        "a" + "^a" * 1000,
        "abs(" * 1000,
        "sum(" * 99 + "a" + "+a" * 9,
    ],
)
def test_deep_nesting_is_refused_with_both_numbers(text: str) -> None:
    with pytest.raises(errors.QueryLimit, match="101 levels deep or more, the limit is 100"):
        parser.parse(text)


@pytest.mark.parametrize("piece", ["(", "-", "abs(", "sum by (x) (", "a ^ ", "1 + (", "(a + abs("])
@pytest.mark.parametrize("limit", [None, 10_000])
def test_a_lifted_depth_limit_still_keeps_python_alive(piece: str, limit: int | None) -> None:
    with pytest.raises(errors.QueryLimit, match="the limit is 120"):
        parser.parse(piece * 5000, engine.QueryLimits(max_depth=limit))


def test_ordinary_nesting_and_ordinary_chains_are_fine() -> None:
    parser.parse("(" * 99 + "a" + ")" * 99)
    parser.parse(" or ".join(["a"] * 100))
    parser.parse(f"sum({','.join(['a'] * 1)})" + "".join(f" + (b{n} + c{n})" for n in range(90)))


@pytest.mark.slow
@pytest.mark.parametrize("piece", ["a+", "(", '"', "{", "[", "`", "1", "\\", "#", "é", "'\\", "-", "a{b="])
def test_a_megabyte_is_refused_by_size_or_answered_quickly(piece: str) -> None:
    text = piece * (1_000_000 // len(piece))
    with pytest.raises(errors.QueryLimit, match="the limit is 65,536"):
        parser.parse(text)
    refusal = refusal_of(text, engine.QueryLimits(max_expression_bytes=None))
    assert len(str(refusal)) < 600


def test_names_of_aggregations_and_functions_do_not_meet() -> None:
    assert not AGGREGATIONS & FUNCTIONS.keys()
