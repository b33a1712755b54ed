"""A Pratt parser for the PromQL of Prometheus 3, which checks types while it builds the tree.

The height of a tree is limited, so that a recursive walk cannot overflow the stack. Two trees with the same meaning are
equal: matchers are sorted, durations are milliseconds.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace

from watchkeeper import errors
from watchkeeper.model import labels
from watchkeeper.query import engine
from watchkeeper.query.promql import ast, duration_expr, types
from watchkeeper.query.promql.functions import AGGREGATION_PARAMETERS, AGGREGATIONS, FUNCTIONS
from watchkeeper.query.promql.lexer import parse_duration_ms, parse_literal, round_ms, tokenize, unquote
from watchkeeper.query.promql.parse_errors import EXPERIMENTAL, NestedTooDeep, ParseError, describe_unexpected, quote
from watchkeeper.query.promql.patterns import compile_pattern, matches

# Loosest first. Unary minus binds like `*`, so -2^2 is -4; `^` alone is right-associative.
BINDING = {
    "or": 1,
    **dict.fromkeys(("and", "unless"), 2),
    **dict.fromkeys(("==", "!=", ">", "<", ">=", "<=", "</", ">/"), 3),
    **dict.fromkeys(("+", "-"), 4),
    **dict.fromkeys(("*", "/", "%", "atan2"), 5),
    "^": 6,
}
UNARY_BINDING, POWER_BINDING = BINDING["*"], BINDING["^"]
MATCH_OPS = {op.value: op for op in engine.MatchOp}
# Keywords that cannot be a metric name; the other keywords can, at positions without an operator.
RESERVED = frozenset({"bool", "on", "ignoring", "group_left", "group_right", "atan2"})
NUMBER_WORDS = {"inf": math.inf, "nan": math.nan}
# Prometheus' grammar does not allow these in a list of labels unless they are quoted.
NOT_LABELS = NUMBER_WORDS.keys() | {"without"}
FILL_MODIFIERS = frozenset({"fill", "fill_left", "fill_right"})
LABEL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# The largest number of milliseconds that a float represents exactly: 285,000 years.
LATEST_MS = 2**53
DEFAULT_MATCHING = ast.Matching()
# Python's stack allows 1,000 calls, and the parser needs five of them for a nested function call.
MAX_DEPTH = 120


def parse(text: str, limits: engine.QueryLimits = engine.QueryLimits()) -> ast.Expr:  # noqa: B008 (frozen)
    """Parse an expression; QueryError with line and column if it is invalid, QueryLimit if it is too large."""
    try:
        size = len(text) if text.isascii() else len(text.encode())
        if limits.max_expression_bytes is not None and size > limits.max_expression_bytes:
            problem = f"expression has {size:,} bytes, the limit is {limits.max_expression_bytes:,}"
            raise errors.QueryLimit(problem, remedy="Split it into recording rules")
        return Parser(text, min(limits.max_depth or MAX_DEPTH, MAX_DEPTH)).parse()
    except UnicodeEncodeError as error:
        raise ParseError("expression is not valid UTF-8", error.start).to_query_error(text) from error
    except ParseError as mistake:
        raise mistake.to_query_error(text) from mistake.__cause__


class Parser:
    """Parses one expression; `height` is that of the last tree, the other fields are the current token."""

    def __init__(self, text: str, max_depth: int) -> None:
        self.max_depth = max_depth
        self.depth = self.height = 0
        self.tokens = tokenize(text)
        self.index = 0
        self.kind, self.text, self.position = self.tokens[0]

    def parse(self) -> ast.Expr:
        if self.kind == "end":
            raise ParseError("no expression found in input", 0)
        expr = self.parse_expression(0)
        if self.kind != "end":
            raise self.unexpected()
        return expr

    def advance(self) -> str:
        text = self.text
        self.index += 1
        self.kind, self.text, self.position = self.tokens[self.index]
        return text

    def expect(self, kind: str, context: str, expected: str) -> str:
        if self.kind != kind:
            raise self.unexpected(context, expected)
        return self.advance()

    def expect_close(self) -> None:
        if self.kind == "end":
            raise ParseError("unclosed left parenthesis", self.position)
        self.expect(")", "", '")"')

    def is_word(self, *words: str) -> bool:
        return self.kind == "name" and self.text.lower() in words

    def unexpected(self, context: str = "", expected: str = "") -> ParseError:
        return ParseError(describe_unexpected(self.kind, self.text, context=context, expected=expected), self.position)

    def check_height(self, height: int, position: int) -> None:
        """Set the height of a new node, or refuse the node."""
        self.height = height
        if height > self.max_depth:
            raise NestedTooDeep(position, self.max_depth)

    def parse_expression(self, min_binding: int) -> ast.Expr:
        """Parse an operand and every operator after it that binds tighter than `min_binding`."""
        self.depth += 1
        if self.depth > self.max_depth:
            raise NestedTooDeep(self.position, self.max_depth)
        left = self.parse_operand()
        while True:
            op = self.kind if self.kind != "name" else self.text.lower()
            binding = BINDING.get(op, 0)
            if binding <= min_binding:
                break
            left = self.parse_binary(left, op, binding)
        self.depth -= 1
        return left

    def parse_binary(self, left: ast.Expr, op: str, binding: int) -> ast.Binary:
        operator_at, left_height = self.position, self.height
        self.advance()
        returns_bool = False
        matching = DEFAULT_MATCHING
        if self.kind == "name":
            if self.is_word("bool"):
                returns_bool = True
                self.advance()
            matching = self.parse_fill(self.parse_matching())
        right = self.parse_expression(binding - 1 if binding == POWER_BINDING else binding)
        self.check_height(max(left_height, self.height) + 1, operator_at)
        resolved = types.resolve_matching(
            op, (left, right), matching=matching, returns_bool=returns_bool, position=operator_at
        )
        return ast.Binary(op, left, right, returns_bool=returns_bool, matching=resolved, position=left.position)

    def parse_matching(self) -> ast.Matching:
        if not self.is_word("on", "ignoring"):
            return DEFAULT_MATCHING
        is_on = self.advance().lower() == "on"
        names = self.parse_label_names()
        if not self.is_word("group_left", "group_right"):
            return ast.Matching(is_on=is_on, labels=names)
        is_left = self.advance().lower() == "group_left"
        kind = ast.MatchKind.MANY_TO_ONE if is_left else ast.MatchKind.ONE_TO_MANY
        include = self.parse_label_names() if self.kind == "(" else ()
        return ast.Matching(kind, is_on, labels=names, include=include)

    def parse_fill(self, matching: ast.Matching) -> ast.Matching:
        """Parse `fill(0)`, `fill_left(0)`, `fill_right(0)`; without parentheses these are metric names."""
        while self.is_word(*FILL_MODIFIERS) and self.tokens[self.index + 1][0] == "(":
            position, word = self.position, self.advance().lower()
            self.advance()
            sign, kind, value_position = self.parse_sign(), self.kind, self.position
            if self.is_word(*NUMBER_WORDS):
                value = NUMBER_WORDS[self.advance().lower()]
            elif kind in ("number", "duration"):
                value = parse_literal(kind, self.advance(), value_position)
            else:
                raise self.unexpected(word, "number")
            self.expect_close()
            is_left, is_right = word != "fill_right", word != "fill_left"
            if (is_left and matching.fill_left is not None) or (is_right and matching.fill_right is not None):
                raise ParseError(f"{word} may not be set multiple times", position)
            matching = replace(
                matching,
                fill_left=sign * value if is_left else matching.fill_left,
                fill_right=sign * value if is_right else matching.fill_right,
            )
        return matching

    def parse_label_names(self) -> tuple[str, ...]:
        self.expect("(", "grouping opts", '"("')
        names = []
        while self.kind != ")":
            if self.kind == "string":
                names.append(self.parse_quoted_name())
            elif self.kind == "name" and LABEL_NAME.fullmatch(self.text) and self.text.lower() not in NOT_LABELS:
                names.append(self.advance())
            else:
                raise self.unexpected("grouping opts", "label")
            if self.kind == ",":
                self.advance()
            elif self.kind != ")":
                raise self.unexpected("grouping opts", '"," or ")"')
        self.advance()
        return tuple(names)

    def parse_quoted_name(self) -> str:
        position = self.position
        name = unquote(self.advance(), position)
        if not name:
            raise ParseError('invalid label name ""', position)
        return name

    def parse_operand(self) -> ast.Expr:
        kind, position = self.kind, self.position
        expr: ast.Expr
        if kind == "name":
            expr = self.parse_name()
        elif kind in ("number", "duration"):
            expr = ast.Number(parse_literal(kind, self.advance(), position), position=position)
            self.height = 1
        elif kind == "{":
            expr = self.parse_selector(None, position)
        elif kind == "(":
            self.advance()
            inner = self.parse_expression(0)
            self.expect_close()
            self.check_height(self.height + 1, position)
            expr = ast.Paren(inner, position=position)
        elif kind in ("-", "+"):
            return self.parse_unary()
        elif kind == "string":
            expr = ast.String(unquote(self.advance(), position), position=position)
            self.height = 1
        else:
            raise self.unexpected()
        return self.parse_modifiers(expr) if self.kind in ("bracket", "@", "name") else expr

    def parse_unary(self) -> ast.Expr:
        position = self.position
        sign = self.advance()
        expr = self.parse_expression(UNARY_BINDING)
        if isinstance(expr, ast.Number):
            return ast.Number(-expr.value if sign == "-" else expr.value, position=position)
        self.check_height(self.height + 1, position)
        node = ast.Unary(sign, expr, position=position)
        types.check_unary(node)
        return node

    def parse_name(self) -> ast.Expr:
        """Parse an operand that starts with a name: an aggregation, a call, a number such as Inf, or a selector."""
        word, position = self.text.lower(), self.position
        if word in RESERVED:
            raise self.unexpected()
        name = self.advance()
        if word in AGGREGATIONS and (self.kind == "(" or self.is_word("by", "without")):
            return self.parse_aggregate(word, position)
        if word in NUMBER_WORDS:
            self.height = 1
            return ast.Number(NUMBER_WORDS[word], position=position)
        return self.parse_call(name, position) if self.kind == "(" else self.parse_selector(name, position)

    def parse_aggregate(self, op: str, position: int) -> ast.Aggregate:
        grouping, is_without = self.parse_grouping()
        args = self.parse_arguments(op)
        if grouping is None:
            grouping, is_without = self.parse_grouping()
        arg_count = 2 if op in AGGREGATION_PARAMETERS else 1
        if not args:
            raise ParseError("no arguments for aggregate expression provided", position)
        if len(args) != arg_count:
            problem = (
                f"wrong number of arguments for aggregate expression provided, expected {arg_count}, got {len(args)}"
            )
            raise ParseError(problem, position)
        self.check_height(self.height + 1, position)
        node = ast.Aggregate(
            op,
            args[-1],
            parameter=args[0] if arg_count == 2 else None,
            grouping=grouping or (),
            is_without=is_without,
            position=position,
        )
        types.check_aggregate(node)
        return node

    def parse_grouping(self) -> tuple[tuple[str, ...] | None, bool]:
        if not self.is_word("by", "without"):
            return None, False
        is_without = self.advance().lower() == "without"
        return self.parse_label_names(), is_without

    def parse_call(self, name: str, position: int) -> ast.FunctionCall:
        function = FUNCTIONS.get(name)
        if function is None:
            raise ParseError(f"unknown function with name {quote(name)}", position)
        args = self.parse_arguments(name)
        self.check_height(self.height + 1, position)
        types.check_call(function, args, position)
        return ast.FunctionCall(name, args, position=position)

    def parse_arguments(self, caller: str) -> tuple[ast.Expr, ...]:
        """Parse arguments in parentheses; `height` becomes that of the highest argument."""
        self.expect("(", "aggregation", '"("')
        args: list[ast.Expr] = []
        highest = 0
        while self.kind != ")":
            # The second argument of info() selects labels to add; it may have no matchers.
            if caller == "info" and args and self.kind == "{":
                args.append(self.parse_selector(None, self.position, may_select_all=True))
            else:
                args.append(self.parse_expression(0))
            highest = max(highest, self.height)
            if self.kind != ",":
                break
            comma_at = self.position
            self.advance()
            if self.kind == ")":
                raise ParseError("trailing commas not allowed in function call args", comma_at)
        self.expect_close()
        self.height = highest
        return tuple(args)

    def parse_selector(self, name: str | None, position: int, *, may_select_all: bool = False) -> ast.Selector:
        matchers = self.parse_matchers() if self.kind == "{" else []
        if len(matchers) > 1:
            matchers.sort(key=lambda matcher: (matcher.name, matcher.op, matcher.value))
        if name is not None:
            for matcher in matchers:
                if matcher.name == labels.METRIC_NAME:
                    problem = f"metric name must not be set twice: {quote(name)} or {quote(matcher.value)}"
                    raise ParseError(problem, position)
            matchers.insert(0, engine.Matcher(labels.METRIC_NAME, engine.MatchOp.EQUAL, name))
        elif not may_select_all and all(matches(matcher, "") for matcher in matchers):
            problem = "vector selector must contain at least one non-empty matcher"
            raise ParseError(problem, position, 'Write {__name__=~".+"} to select every series')
        self.height = 1
        return ast.Selector(name, tuple(matchers), position=position)

    def parse_matchers(self) -> list[engine.Matcher]:
        self.advance()
        matchers = []
        while self.kind != "}":
            matchers.append(self.parse_matcher())
            if self.kind == ",":
                self.advance()
            elif self.kind != "}":
                raise self.unexpected("label matching", '"," or "}"')
        self.advance()
        return matchers

    def parse_matcher(self) -> engine.Matcher:
        if self.kind == "name" and LABEL_NAME.fullmatch(self.text):
            name = self.advance()
        elif self.kind == "string":
            name = self.parse_quoted_name()
            if self.kind in (",", "}"):
                return engine.Matcher(labels.METRIC_NAME, engine.MatchOp.EQUAL, name)
        else:
            raise self.unexpected("label matching", 'identifier or "}"')
        op = MATCH_OPS.get(self.kind)
        if op is None:
            raise self.unexpected("label matching", "label matching operator")
        self.advance()
        position = self.position
        value = unquote(self.expect("string", "label matching", "string"), position)
        if op is engine.MatchOp.REGEX or op is engine.MatchOp.NOT_REGEX:
            try:
                compile_pattern(value)
            except ValueError as error:
                raise ParseError(f"error parsing regexp: {error}", position) from error
        return engine.Matcher(name, op, value)

    def parse_modifiers(self, expr: ast.Expr) -> ast.Expr:
        """Parse ranges, offsets and @ after an expression, in any order."""
        while True:
            position = self.position
            if self.kind == "bracket":
                expr = self.parse_range(expr, self.advance(), position=position)
                self.check_height(self.height + 1, position)
            elif self.kind == "@":
                self.advance()
                expr = types.with_at(expr, self.parse_timestamp(), position=position)
            elif self.is_word("offset"):
                self.advance()
                expr = types.with_offset(expr, *self.parse_offset(), position=position)
            elif self.is_word("anchored", "smoothed"):
                raise ParseError(f"{self.text} modifier is experimental and not enabled", position, EXPERIMENTAL)
            else:
                return expr

    def parse_range(self, expr: ast.Expr, brackets_text: str, *, position: int) -> ast.RangeSelector | ast.Subquery:
        try:
            brackets = duration_expr.read_range(brackets_text, max_depth=self.max_depth)
        except ParseError as mistake:
            mistake.position = position
            raise
        if brackets.is_subquery:
            inner_type = types.value_type(expr)
            if inner_type is not ast.ValueType.INSTANT:
                raise ParseError(f"subquery is only allowed on instant vector, got {inner_type} instead", expr.position)
            return ast.Subquery(
                expr,
                brackets.range_ms,
                step_ms=brackets.step_ms,
                position=expr.position,
                range_expr=brackets.range_expr,
                step_expr=brackets.step_expr,
            )
        if not isinstance(expr, ast.Selector):
            raise ParseError("ranges only allowed for vector selectors", position)
        if expr.offset_ms or expr.offset_expr is not None:
            raise ParseError("no offset modifiers allowed before range", position)
        if expr.at is not None:
            raise ParseError("no @ modifiers allowed before range", position)
        return ast.RangeSelector(expr, brackets.range_ms, position=expr.position, range_expr=brackets.range_expr)

    def parse_sign(self) -> int:
        return -1 if self.kind in ("-", "+") and self.advance() == "-" else 1

    def parse_offset(self) -> tuple[int, ast.DurationExpr | None]:
        """Parse one duration; an expression needs parentheses, because `x offset 5m + 2` adds 2 to x."""
        sign, position = self.parse_sign(), self.position
        if self.kind == "(" or self.is_word(*duration_expr.FUNCTIONS):
            reader = duration_expr.DurationReader(self.tokens, self.index, max_depth=self.max_depth)
            duration = reader.read_primary()
            self.index = reader.index - 1
            self.advance()
            return duration_expr.resolve(ast.DurationExpr("-", (duration,)) if sign < 0 else duration, position)
        if self.kind not in ("duration", "number"):
            raise self.unexpected("offset", "duration")
        return sign * parse_duration_ms(self.advance(), position), None

    def parse_timestamp(self) -> int | ast.AtEdge:
        if self.is_word("start", "end"):
            edge = ast.AtEdge(self.advance().lower())
            self.expect("(", "@", '"("')
            self.expect(")", "@", '")"')
            return edge
        sign, kind, position = self.parse_sign(), self.kind, self.position
        if self.is_word(*NUMBER_WORDS):
            raise ParseError(f"timestamp out of bounds for @ modifier: {self.text}", position)
        if kind not in ("number", "duration"):
            raise self.unexpected("@", "timestamp")
        seconds = parse_literal(kind, self.advance(), position)
        if seconds * 1000 > LATEST_MS:
            raise ParseError(f"timestamp out of bounds for @ modifier: {seconds}", position)
        return sign * round_ms(seconds)
