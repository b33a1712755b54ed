"""The printer writes what Prometheus would, and the parser reads it back as the same tree."""

from __future__ import annotations

import pytest
from hypothesis import given

from tests.query import trees
from watchkeeper.query.promql import ast, parser, printer


@pytest.mark.slow
@given(trees.expressions)
def test_what_is_printed_reads_back_as_the_same_tree(tree: ast.Expr) -> None:
    read = parser.parse(printer.to_text(tree))
    assert trees.without_parentheses(read) == trees.without_parentheses(tree)
    assert parser.parse(printer.to_text(read)) == read
    assert parser.parse(printer.pretty(read)) == read


@given(trees.expressions)
def test_printing_twice_changes_nothing(tree: ast.Expr) -> None:
    text = printer.to_text(tree)
    assert printer.to_text(parser.parse(text)) == text


@pytest.mark.parametrize(
    ("written", "printed"),
    [
        ("sum(rate(x{b='c'}[5m])) by (a)", 'sum by (a) (rate(x{b="c"}[5m]))'),
        ("sum without() (a)", "sum without () (a)"),
        ("sum by () (a)", "sum(a)"),
        ("topk(3,a)", "topk(3, a)"),
        ("a==bool on(x)group_left b", "a == bool on (x) group_left () b"),
        ('a{z="1",y!="2"}', 'a{y!="2",z="1"}'),
        ('{"my.metric","l.x"="v"}', '{"l.x"="v",__name__="my.metric"}'),
        ("a[300] offset -90 @ 1.5", "a[5m] @ 1.500 offset -1m30s"),
        ("a@end()[1h:]offset 1d", "a @ end()[1h:] offset 1d"),
        ("1e3 + 0.00000012", "1000 + 0.00000012"),
        ("-2 ^ 2", "-2 ^ 2"),
        ("(-2) ^ 2", "(-2) ^ 2"),
        ("inf - -INF / nan", "Inf - -Inf / NaN"),
        (r"'a\'\x00\u200b'", r'"a\'\x00\u200b"'.replace(r"\'", "'")),
    ],
)
def test_the_canonical_form_is_that_of_prometheus(written: str, printed: str) -> None:
    assert printer.to_text(parser.parse(written)) == printed


def test_a_tree_built_by_hand_gets_the_parentheses_it_needs() -> None:
    two, three = ast.Number(2), ast.Number(3)
    total = ast.Binary("+", two, three)
    assert printer.to_text(ast.Binary("*", total, total)) == "(2 + 3) * (2 + 3)"
    assert printer.to_text(ast.Binary("^", ast.Number(-2), total)) == "(-2) ^ (2 + 3)"
    assert printer.to_text(ast.Unary("-", total)) == "-(2 + 3)"


def test_a_long_expression_is_split_and_indented_as_format_query_does() -> None:
    name = "DCGM_FI_PROF_GR_ENGINE_ACTIVE"
    head = f'topk(3, sum by (node) (rate({name}{{node=~"gpu-.*"}}[5m])))'
    text = head + f' / on (node) group_left () -max(({name} + {name}{{a="b"}}))'
    assert printer.pretty(parser.parse(text)).splitlines() == [
        '  topk(3, sum by (node) (rate(DCGM_FI_PROF_GR_ENGINE_ACTIVE{node=~"gpu-.*"}[5m])))',
        "/ on (node) group_left ()",
        '  -max((DCGM_FI_PROF_GR_ENGINE_ACTIVE + DCGM_FI_PROF_GR_ENGINE_ACTIVE{a="b"}))',
    ]
    nested = f"sum by (node) (({name} > {name}) or quantile_over_time(0.95, {name}[5m]) or {name})"
    assert printer.pretty(parser.parse(nested)).splitlines() == [
        "sum by (node) (",
        "      (DCGM_FI_PROF_GR_ENGINE_ACTIVE > DCGM_FI_PROF_GR_ENGINE_ACTIVE)",
        "    or",
        "      quantile_over_time(0.95, DCGM_FI_PROF_GR_ENGINE_ACTIVE[5m])",
        "  or",
        "    DCGM_FI_PROF_GR_ENGINE_ACTIVE",
        ")",
    ]
