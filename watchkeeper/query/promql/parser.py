"""PromQL text to tree: a Pratt parser for Prometheus 3, types checked while the tree grows.

Rules, the console, the API and the CLI all come through `parse`; the tree goes to the evaluator and
the printer. The tree's height is bounded, so that whoever walks it by recursion cannot overflow the
stack. Two trees of the same meaning are equal: matchers are sorted, durations are milliseconds.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace

from watchkeeper import errors
from watchkeeper.model import labels
from watchkeeper.query import engine
from watchkeeper.query.promql import ast, computed, types
from watchkeeper.query.promql.functions import AGGREGATION_PARAMETERS, AGGREGATIONS, FUNCTIONS
from watchkeeper.query.promql.lexer import duration_ms, literal, round_ms, tokenize, unquote
from watchkeeper.query.promql.mistakes import EXPERIMENTAL, Mistake, TooDeep, complain, quote
from watchkeeper.query.promql.modifiers import with_at, with_offset
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
# Words that can never be a metric name; the other keywords can, where no operator is possible.
RESERVED = frozenset({"bool", "on", "ignoring", "group_left", "group_right", "atan2"})
NUMBER_WORDS = {"inf": math.inf, "nan": math.nan}
# Prometheus' grammar has no place for these in a list of labels; in quotes they are fine.
NOT_LABELS = NUMBER_WORDS.keys() | {"without"}
FILL_MODIFIERS = frozenset({"fill", "fill_left", "fill_right"})
LABEL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Milliseconds that a float still counts one by one: 285,000 years.
LATEST_MS = 2**53
PLAIN_MATCHING = ast.Matching()
# Python's stack has room for 1,000 calls, and a nested function call costs the parser five of them.
DEEPEST = 120


def parse(text: str, limits: engine.QueryLimits = engine.QueryLimits()) -> ast.Expr:  # noqa: B008 (frozen)
    """The tree of an expression; QueryError with line and column if there is none, QueryLimit if it is too large."""
    try:
        size = len(text) if text.isascii() else len(text.encode())
        if limits.max_expression_bytes is not None and size > limits.max_expression_bytes:
            problem = f"expression has {size:,} bytes; {limits.max_expression_bytes:,} are allowed"
            raise errors.QueryLimit(problem, remedy="Split it into recording rules")
        return Parser(text, min(limits.max_depth or DEEPEST, DEEPEST)).parse()
    except UnicodeEncodeError as error:
        raise Mistake("expression is not valid UTF-8", error.start).as_error(text) from error
    except Mistake as mistake:
        raise mistake.as_error(text) from mistake.__cause__


class Parser:
    """One pass over one expression.

    `kind`, `text` and `position` are the current token's; `height` is that of the tree built last.
    """

    def __init__(self, text: str, deepest: int) -> None:
        self.deepest = deepest
        self.depth = self.height = 0
        self.tokens = tokenize(text)
        self.at = 0
        self.kind, self.text, self.position = self.tokens[0]

    def parse(self) -> ast.Expr:
        if self.kind == "end":
            raise Mistake("no expression found in input", 0)
        expr = self.expression(0)
        if self.kind != "end":
            raise self.unexpected()
        return expr

    def advance(self) -> str:
        """Step over the current token and return its text."""
        text = self.text
        self.at += 1
        self.kind, self.text, self.position = self.tokens[self.at]
        return text

    def take(self, kind: str, context: str, expected: str) -> str:
        if self.kind != kind:
            raise self.unexpected(context, expected)
        return self.advance()

    def close(self) -> None:
        if self.kind == "end":
            raise Mistake("unclosed left parenthesis", self.position)
        self.take(")", "", '")"')

    def is_word(self, *words: str) -> bool:
        return self.kind == "name" and self.text.lower() in words

    def unexpected(self, context: str = "", expected: str = "") -> Mistake:
        return Mistake(complain(self.kind, self.text, context=context, expected=expected), self.position)

    def grow(self, height: int, position: int) -> None:
        """Note the height of a new node, or refuse it."""
        self.height = height
        if height > self.deepest:
            raise TooDeep(position, self.deepest)

    def expression(self, loosest: int) -> ast.Expr:
        """An operand and every operator after it that binds tighter than `loosest`."""
        self.depth += 1
        if self.depth > self.deepest:
            raise TooDeep(self.position, self.deepest)
        left = self.operand()
        while True:
            op = self.kind if self.kind != "name" else self.text.lower()
            binding = BINDING.get(op, 0)
            if binding <= loosest:
                break
            left = self.binary(left, op, binding)
        self.depth -= 1
        return left

    def binary(self, left: ast.Expr, op: str, binding: int) -> ast.Binary:
        operator_at, left_height = self.position, self.height
        self.advance()
        returns_bool = False
        matching = PLAIN_MATCHING
        if self.kind == "name":
            if self.is_word("bool"):
                returns_bool = True
                self.advance()
            matching = self.filled(self.matching())
        right = self.expression(binding - 1 if binding == POWER_BINDING else binding)
        self.grow(max(left_height, self.height) + 1, operator_at)
        settled = types.settle_matching(op, (left, right), matching=matching, returns_bool=returns_bool, at=operator_at)
        return ast.Binary(op, left, right, returns_bool=returns_bool, matching=settled, position=left.position)

    def matching(self) -> ast.Matching:
        if not self.is_word("on", "ignoring"):
            return PLAIN_MATCHING
        is_on = self.advance().lower() == "on"
        names = self.label_names()
        if not self.is_word("group_left", "group_right"):
            return ast.Matching(is_on=is_on, labels=names)
        is_left = self.advance().lower() == "group_left"
        kind = ast.MatchKind.MANY_TO_ONE if is_left else ast.MatchKind.ONE_TO_MANY
        include = self.label_names() if self.kind == "(" else ()
        return ast.Matching(kind, is_on, labels=names, include=include)

    def filled(self, matching: ast.Matching) -> ast.Matching:
        """With `fill(0)`, `fill_left(0)`, `fill_right(0)`; without parentheses those are metrics."""
        while self.is_word(*FILL_MODIFIERS) and self.tokens[self.at + 1][0] == "(":
            position, word = self.position, self.advance().lower()
            self.advance()
            sign, kind, at = self.sign(), self.kind, self.position
            if self.is_word(*NUMBER_WORDS):
                value = NUMBER_WORDS[self.advance().lower()]
            elif kind in ("number", "duration"):
                value = literal(kind, self.advance(), at)
            else:
                raise self.unexpected(word, "number")
            self.close()
            is_left, is_right = word != "fill_right", word != "fill_left"
            if (is_left and matching.fill_left is not None) or (is_right and matching.fill_right is not None):
                raise Mistake(f"{word} may not be set multiple times", position)
            matching = replace(
                matching,
                fill_left=sign * value if is_left else matching.fill_left,
                fill_right=sign * value if is_right else matching.fill_right,
            )
        return matching

    def label_names(self) -> tuple[str, ...]:
        self.take("(", "grouping opts", '"("')
        names = []
        while self.kind != ")":
            if self.kind == "string":
                names.append(self.quoted_name())
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

    def quoted_name(self) -> str:
        position = self.position
        name = unquote(self.advance(), position)
        if not name:
            raise Mistake('invalid label name ""', position)
        return name

    def operand(self) -> ast.Expr:
        kind, position = self.kind, self.position
        expr: ast.Expr
        if kind == "name":
            expr = self.named()
        elif kind in ("number", "duration"):
            expr = ast.Number(literal(kind, self.advance(), position), position=position)
            self.height = 1
        elif kind == "{":
            expr = self.selector(None, position)
        elif kind == "(":
            self.advance()
            inner = self.expression(0)
            self.close()
            self.grow(self.height + 1, position)
            expr = ast.Paren(inner, position=position)
        elif kind in ("-", "+"):
            return self.unary()
        elif kind == "string":
            expr = ast.String(unquote(self.advance(), position), position=position)
            self.height = 1
        else:
            raise self.unexpected()
        return self.modified(expr) if self.kind in ("bracket", "@", "name") else expr

    def unary(self) -> ast.Expr:
        position = self.position
        sign = self.advance()
        expr = self.expression(UNARY_BINDING)
        if isinstance(expr, ast.Number):
            return ast.Number(-expr.value if sign == "-" else expr.value, position=position)
        self.grow(self.height + 1, position)
        node = ast.Unary(sign, expr, position=position)
        types.check_unary(node)
        return node

    def named(self) -> ast.Expr:
        """What starts with a word: an aggregation, a call, a number such as Inf, or a metric."""
        word, position = self.text.lower(), self.position
        if word in RESERVED:
            raise self.unexpected()
        name = self.advance()
        if word in AGGREGATIONS and (self.kind == "(" or self.is_word("by", "without")):
            return self.aggregate(word, position)
        if word in NUMBER_WORDS:
            self.height = 1
            return ast.Number(NUMBER_WORDS[word], position=position)
        return self.call(name, position) if self.kind == "(" else self.selector(name, position)

    def aggregate(self, op: str, position: int) -> ast.Aggregate:
        grouping, is_without = self.grouping()
        args = self.arguments(op)
        if grouping is None:
            grouping, is_without = self.grouping()
        wanted = 2 if op in AGGREGATION_PARAMETERS else 1
        if not args:
            raise Mistake("no arguments for aggregate expression provided", position)
        if len(args) != wanted:
            problem = f"wrong number of arguments for aggregate expression provided, expected {wanted}, got {len(args)}"
            raise Mistake(problem, position)
        self.grow(self.height + 1, position)
        node = ast.Aggregate(
            op,
            args[-1],
            parameter=args[0] if wanted == 2 else None,
            grouping=grouping or (),
            is_without=is_without,
            position=position,
        )
        types.check_aggregate(node)
        return node

    def grouping(self) -> tuple[tuple[str, ...] | None, bool]:
        if not self.is_word("by", "without"):
            return None, False
        is_without = self.advance().lower() == "without"
        return self.label_names(), is_without

    def call(self, name: str, position: int) -> ast.FunctionCall:
        function = FUNCTIONS.get(name)
        if function is None:
            raise Mistake(f"unknown function with name {quote(name)}", position)
        args = self.arguments(name)
        self.grow(self.height + 1, position)
        types.check_call(function, args, position)
        return ast.FunctionCall(name, args, position=position)

    def arguments(self, caller: str) -> tuple[ast.Expr, ...]:
        """What stands in parentheses after a name; `height` becomes the greatest among them."""
        self.take("(", "aggregation", '"("')
        args: list[ast.Expr] = []
        highest = 0
        while self.kind != ")":
            # The second argument of info() picks labels to add; it may be without any condition.
            if caller == "info" and args and self.kind == "{":
                args.append(self.selector(None, self.position, may_select_all=True))
            else:
                args.append(self.expression(0))
            highest = max(highest, self.height)
            if self.kind != ",":
                break
            comma_at = self.position
            self.advance()
            if self.kind == ")":
                raise Mistake("trailing commas not allowed in function call args", comma_at)
        self.close()
        self.height = highest
        return tuple(args)

    def selector(self, name: str | None, position: int, *, may_select_all: bool = False) -> ast.Selector:
        found = self.matchers() if self.kind == "{" else []
        if len(found) > 1:
            found.sort(key=lambda matcher: (matcher.name, matcher.op, matcher.value))
        if name is not None:
            for matcher in found:
                if matcher.name == labels.METRIC_NAME:
                    problem = f"metric name must not be set twice: {quote(name)} or {quote(matcher.value)}"
                    raise Mistake(problem, position)
            found.insert(0, engine.Matcher(labels.METRIC_NAME, engine.MatchOp.EQUAL, name))
        elif not may_select_all and all(matches(matcher, "") for matcher in found):
            problem = "vector selector must contain at least one non-empty matcher"
            raise Mistake(problem, position, 'To select every series write {__name__=~".+"}')
        self.height = 1
        return ast.Selector(name, tuple(found), position=position)

    def matchers(self) -> list[engine.Matcher]:
        self.advance()
        found = []
        while self.kind != "}":
            found.append(self.matcher())
            if self.kind == ",":
                self.advance()
            elif self.kind != "}":
                raise self.unexpected("label matching", '"," or "}"')
        self.advance()
        return found

    def matcher(self) -> engine.Matcher:
        if self.kind == "name" and LABEL_NAME.fullmatch(self.text):
            name = self.advance()
        elif self.kind == "string":
            name = self.quoted_name()
            if self.kind in (",", "}"):
                return engine.Matcher(labels.METRIC_NAME, engine.MatchOp.EQUAL, name)
        else:
            raise self.unexpected("label matching", 'identifier or "}"')
        op = MATCH_OPS.get(self.kind)
        if op is None:
            raise self.unexpected("label matching", "label matching operator")
        self.advance()
        position = self.position
        value = unquote(self.take("string", "label matching", "string"), position)
        if op is engine.MatchOp.REGEX or op is engine.MatchOp.NOT_REGEX:
            try:
                compile_pattern(value)
            except ValueError as error:
                raise Mistake(f"error parsing regexp: {error}", position) from error
        return engine.Matcher(name, op, value)

    def modified(self, expr: ast.Expr) -> ast.Expr:
        """The expression with its ranges, offsets and @, in whatever order they stand."""
        while True:
            position = self.position
            if self.kind == "bracket":
                expr = self.ranged(expr, self.advance(), position=position)
                self.grow(self.height + 1, position)
            elif self.kind == "@":
                self.advance()
                expr = with_at(expr, self.timestamp(), position=position)
            elif self.is_word("offset"):
                self.advance()
                expr = with_offset(expr, *self.offset(), position=position)
            elif self.is_word("anchored", "smoothed"):
                raise Mistake(f"{self.text} modifier is experimental and not enabled", position, EXPERIMENTAL)
            else:
                return expr

    def ranged(self, expr: ast.Expr, brackets_text: str, *, position: int) -> ast.RangeSelector | ast.Subquery:
        try:
            brackets = computed.ranged(brackets_text, deepest=self.deepest)
        except Mistake as mistake:
            mistake.position = position
            raise
        if brackets.is_subquery:
            got = types.value_type(expr)
            if got is not ast.ValueType.INSTANT:
                raise Mistake(f"subquery is only allowed on instant vector, got {got} instead", expr.position)
            return ast.Subquery(
                expr,
                brackets.range_ms,
                step_ms=brackets.step_ms,
                position=expr.position,
                range_by=brackets.range_by,
                step_by=brackets.step_by,
            )
        if not isinstance(expr, ast.Selector):
            raise Mistake("ranges only allowed for vector selectors", position)
        if expr.offset_ms or expr.offset_by is not None:
            raise Mistake("no offset modifiers allowed before range", position)
        if expr.at is not None:
            raise Mistake("no @ modifiers allowed before range", position)
        return ast.RangeSelector(expr, brackets.range_ms, position=expr.position, range_by=brackets.range_by)

    def sign(self) -> int:
        return -1 if self.kind in ("-", "+") and self.advance() == "-" else 1

    def offset(self) -> tuple[int, ast.DurationExpr | None]:
        """One duration: what is calculated stands in parentheses, so that `x offset 5m + 2` adds 2 to x."""
        sign, position = self.sign(), self.position
        if self.kind == "(" or self.is_word(*computed.STARTS):
            reader = computed.Reader(self.tokens, self.at, deepest=self.deepest)
            found = reader.primary()
            self.at = reader.at - 1
            self.advance()
            return computed.settled(ast.DurationExpr("-", (found,)) if sign < 0 else found, position)
        if self.kind not in ("duration", "number"):
            raise self.unexpected("offset", "duration")
        return sign * duration_ms(self.advance(), position), None

    def timestamp(self) -> int | ast.AtEdge:
        if self.is_word("start", "end"):
            edge = ast.AtEdge(self.advance().lower())
            self.take("(", "@", '"("')
            self.take(")", "@", '")"')
            return edge
        sign, kind, position = self.sign(), self.kind, self.position
        if self.is_word(*NUMBER_WORDS):
            raise Mistake(f"timestamp out of bounds for @ modifier: {self.text}", position)
        if kind not in ("number", "duration"):
            raise self.unexpected("@", "timestamp")
        seconds = literal(kind, self.advance(), position)
        if seconds * 1000 > LATEST_MS:
            raise Mistake(f"timestamp out of bounds for @ modifier: {seconds}", position)
        return sign * round_ms(seconds)
