"""Every refusal names the place and the reason in words a Prometheus user can search for."""

from __future__ import annotations

import pytest

from watchkeeper import errors
from watchkeeper.query.promql import parser

REFUSALS = [
    ("", "1:1: no expression found in input"),
    ("# only a comment", "1:1: no expression found in input"),
    ("a +", "1:4: unexpected end of input"),
    ("a b", '1:3: unexpected identifier "b"'),
    ("a 1", '1:3: unexpected number "1"'),
    ("a by (x)", "1:3: unexpected <by>"),
    ("(a", "1:3: unclosed left parenthesis"),
    ("a)", '1:2: unexpected ")"'),
    ("a[5m", "1:2: unclosed left bracket"),
    ("a]", "1:2: unexpected right bracket ']'"),
    ("a[]", '1:2: unexpected "]" in subquery or range selector, expected duration'),
    ("a[0s]", "1:2: duration must be greater than 0"),
    ("a[5]m", '1:5: unexpected identifier "m"'),
    ("a[1s1m]", "1:2: not a valid duration string"),
    ("a[5m] [5m]", "1:7: ranges only allowed for vector selectors"),
    ("(a)[5m]", "1:4: ranges only allowed for vector selectors"),
    ("a offset 1m [5m]", "1:13: no offset modifiers allowed before range"),
    ("a @ 1 [5m]", "1:7: no @ modifiers allowed before range"),
    ("1[5m:]", "1:1: subquery is only allowed on instant vector, got scalar instead"),
    ("a[5m][5m:]", "1:1: subquery is only allowed on instant vector, got range vector instead"),
    ("a offset", "1:9: unexpected end of input in offset, expected duration"),
    ("a offset 1m offset 1m", "1:13: offset may not be set multiple times"),
    ("a @ 1 @ 2", "1:7: @ <timestamp> may not be set multiple times"),
    ("a @ Inf", "1:5: timestamp out of bounds for @ modifier: Inf"),
    ("a @ start", '1:10: unexpected end of input in @, expected "("'),
    ("1 offset 1m", "1:3: offset modifier must be preceded by an instant vector selector"),
    ("sum(a) @ 1", "1:8: @ modifier must be preceded by an instant vector selector"),
    ("rate(a)", '1:6: expected type range vector in call to function "rate", got instant vector'),
    ("abs(1)", '1:5: expected type instant vector in call to function "abs", got scalar'),
    ("abs()", '1:1: expected 1 argument(s) in call to "abs", got 0'),
    ("round(a, 1, 2)", '1:1: expected at most 2 argument(s) in call to "round", got 3'),
    ('label_join(a, "b")', '1:1: expected at least 3 argument(s) in call to "label_join", got 2'),
    ("abs(a,)", "1:6: trailing commas not allowed in function call args"),
    ("nosuch(a)", '1:1: unknown function with name "nosuch"'),
    ("sum()", "1:1: no arguments for aggregate expression provided"),
    ("sum(1, a)", "1:1: wrong number of arguments for aggregate expression provided, expected 1, got 2"),
    ("topk(a)", "1:1: wrong number of arguments for aggregate expression provided, expected 2, got 1"),
    ("sum(a[5m])", "1:5: expected type instant vector in aggregation expression, got range vector"),
    ('topk("x", a)', "1:6: expected type scalar in aggregation parameter, got string"),
    ("count_values(1, a)", "1:14: expected type string in aggregation parameter, got scalar"),
    ("sum by x (a)", '1:8: unexpected identifier "x" in grouping opts, expected "("'),
    ("sum by (a:b) (c)", '1:9: unexpected identifier "a:b" in grouping opts, expected label'),
    ("sum by (without) (c)", "1:9: unexpected <without> in grouping opts, expected label"),
    ("sum by (a b) (c)", '1:11: unexpected identifier "b" in grouping opts, expected "," or ")"'),
    ("1 > 2", "1:3: comparisons between scalars must use BOOL modifier"),
    ("a + bool b", "1:3: bool modifier can only be used on comparison operators"),
    ("a and 1", '1:3: set operator "and" not allowed in binary scalar expression'),
    ("a + b[5m]", "1:5: binary expression must contain only scalar and instant vector types"),
    ('a + "x"', "1:5: binary expression must contain only scalar and instant vector types"),
    ("a + on (x) 1", "1:3: vector matching only allowed between instant vectors"),
    ("a or on (x) group_left b", '1:3: no grouping allowed for "or" operation'),
    ("a + group_left (x) b", "1:5: unexpected <group_left>"),
    ("a + on (x) group_left (x) b", '1:3: label "x" must not occur in ON and GROUP clause at once'),
    ("-a[5m]", "1:1: unary expression only allowed on expressions of type scalar or instant vector, got range vector"),
    ("{}", "1:1: vector selector must contain at least one non-empty matcher"),
    ('{x=~".*"}', "1:1: vector selector must contain at least one non-empty matcher"),
    ('a{__name__="b"}', '1:1: metric name must not be set twice: "a" or "b"'),
    ("a{x}", '1:4: unexpected "}" in label matching, expected label matching operator'),
    ("a{x=1}", '1:5: unexpected number "1" in label matching, expected string'),
    ("a{x:y='1'}", '1:3: unexpected identifier "x:y" in label matching, expected identifier or "}"'),
    ('a{x="1" y="2"}', '1:9: unexpected identifier "y" in label matching, expected "," or "}"'),
    ('a{""="1"}', '1:3: invalid label name ""'),
    ('a{x=~"("}', "1:6: error parsing regexp: missing ): ("),
    ('a{x=~"(?=y)"}', "1:6: error parsing regexp: invalid perl operator: (?="),
    ('"abc', "1:1: unterminated quoted string"),
    ("`abc", "1:1: unterminated raw string"),
    (r'"a\q"', "1:3: unknown escape sequence"),
    (r'"\ud800"', "1:2: escape sequence is an invalid Unicode code point"),
    (r'"\xff"', "1:1: string is not valid UTF-8"),
    ("1.5m", '1:1: bad number or duration syntax: "1.5m"'),
    ("0xg", '1:1: bad number or duration syntax: "0xg"'),
    ("1__0", '1:1: bad number or duration syntax: "1__0"'),
    ("1e400", "1:1: error parsing number"),
    ("a $ b", "1:3: unexpected character: '$'"),
    ("a\n  + ?", "2:5: unexpected character: '?'"),
    ("a = b", '1:3: unexpected "="'),
    ("a =~ b", "1:3: unexpected <op:=~>"),
    # Durations that are computed, and missing series that are filled in.
    ("a[5m * ]", "1:2: unexpected end of input in duration"),
    ("a[5m - 5m]", "1:2: duration must be greater than 0"),
    ("a[1m / 0]", "1:2: division by zero"),
    ("a[1h ^ 99]", "1:2: duration out of range"),
    ("a[min_of(1m)]", '1:2: unexpected ")" in duration, expected ","'),
    ("a[f(1m)]", '1:2: unexpected identifier "f" in duration'),
    ("a[(1m]", "1:2: unexpected end of input"),
    ("a offset step", '1:14: unexpected end of input in duration, expected "("'),
    ("a[" + "(" * 200 + "1m" + ")" * 200 + "]", "1:2: expression is nested"),
    ("a + fill() b", '1:10: unexpected ")" in fill, expected number'),
    ("a + fill(1) fill_left(2) b", "1:13: fill_left may not be set multiple times"),
    ("a and fill(1) b", "1:3: filling in missing series not allowed for set operator"),
    ("a + fill(1) 2", "1:3: filling in missing series only allowed between instant vectors"),
]
EXPERIMENTS = ["a anchored", "rate(a[5m] smoothed)"]


@pytest.mark.parametrize(("text", "message"), REFUSALS)
def test_a_wrong_expression_is_refused_with_place_and_reason(text: str, message: str) -> None:
    with pytest.raises(errors.QueryError) as caught:
        parser.parse(text)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("text", EXPERIMENTS)
def test_an_experiment_of_prometheus_is_refused_as_one(text: str) -> None:
    with pytest.raises(errors.QueryError, match="experimental"):
        parser.parse(text)


def test_text_that_no_encoding_can_carry_is_refused() -> None:
    with pytest.raises(errors.QueryError, match="1:3: expression is not valid UTF-8"):
        parser.parse('a{\udcff="x"}')
