"""Which series a set of rules reads and writes: exact metric names, and patterns of selectors without a name.

`cli.hub.rules` fetches these series for a replay, `render` scrapes them. A selector such as `{__name__=~"vllm:.+"}` has
a pattern; one such as `{job="x"}` can match any series.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from watchkeeper.model.labels import METRIC_NAME
from watchkeeper.query.engine import Matcher, MatchOp
from watchkeeper.query.promql import ast, parser, printer, walk
from watchkeeper.rules.evaluate import ALERTS, ALERTS_FOR_STATE, KEPT_SINCE
from watchkeeper.rules.rulefile import RecordingRule, RuleSet

# The lookback of an instant selector.
LOOKBACK_MS = 300_000


# What lets a pattern match a name that it does not spell out.
WILDCARD = re.compile(r"\.|\\[wWsSdD]|\[[^\]]*-|\[\^")


@dataclass(frozen=True, slots=True)
class SeriesRead:
    """`names` has no series that the same rules record; `patterns` match whole names."""

    names: frozenset[str]
    patterns: frozenset[str]
    written: frozenset[str]
    lookback_ms: int
    reads_everything: bool = False

    def reads(self, name: str) -> bool:
        if name in self.names or name in self.written:
            return name in self.names
        return self.reads_everything or any(re.fullmatch(pattern, name) for pattern in self.patterns)

    def selectors(self) -> list[str]:
        """PromQL selectors of these series; empty if the rules read all series."""
        if self.reads_everything:
            return []
        return [_selector(name) for name in sorted(self.names)] + [
            _selector(None, pattern) for pattern in sorted(self.patterns)
        ]

    def prefixed_selectors(self, prefixes: tuple[str, ...]) -> list[str]:
        """Selectors of those series whose name begins with one of `prefixes`; empty if the rules read none of them."""
        with_prefix = f"({'|'.join(map(re.escape, prefixes))}).+"
        if self.reads_everything:
            return [_selector(None, with_prefix)]
        names = sorted(name for name in self.names if name.startswith(prefixes))
        exact = [_selector(None, "|".join(names))] if names else []
        return exact + [
            _selector(None, pattern, with_prefix)
            for pattern in sorted(self.patterns)
            if WILDCARD.search(pattern) or any(prefix in pattern for prefix in prefixes)
        ]


def of_rules(rule_set: RuleSet) -> SeriesRead:
    """What these rules read and write, and how far back they read."""
    written = frozenset(rule.name for rule in rule_set.rules if isinstance(rule, RecordingRule))
    names: set[str] = set()
    patterns: set[str] = set()
    lookback_ms, reads_everything = LOOKBACK_MS, False
    for rule in rule_set.rules:
        for selector, back_ms in _selectors(parser.parse(rule.expr), 0):
            lookback_ms = max(lookback_ms, back_ms + LOOKBACK_MS)
            of_name = [matcher for matcher in selector.matchers if matcher.name == METRIC_NAME and matcher.value]
            positive = [matcher for matcher in of_name if matcher.op in (MatchOp.EQUAL, MatchOp.REGEX)]
            reads_everything |= not positive
            for matcher in positive[:1]:
                (names if matcher.op is MatchOp.EQUAL else patterns).add(matcher.value)
    own = written | {ALERTS, ALERTS_FOR_STATE, KEPT_SINCE}
    return SeriesRead(frozenset(names) - written, frozenset(patterns), own, lookback_ms, reads_everything)


def _selectors(expr: ast.Expr, back_ms: int) -> Iterator[tuple[ast.Selector, int]]:
    """Each selector of an expression, with its lookback in milliseconds."""
    match expr:
        case ast.Selector():
            yield expr, back_ms + max(0, expr.offset_ms)
        case ast.RangeSelector():
            yield from _selectors(expr.selector, back_ms + expr.range_ms)
        case ast.Subquery():
            yield from _selectors(expr.expr, back_ms + expr.range_ms + max(0, expr.offset_ms))
        case _:
            for child in walk.iterate_children(expr):
                yield from _selectors(child, back_ms)


def _selector(name: str | None, *patterns: str) -> str:
    matchers = [Matcher(METRIC_NAME, MatchOp.REGEX, pattern) for pattern in patterns]
    if name is not None:
        matchers = [Matcher(METRIC_NAME, MatchOp.EQUAL, name)]
    return printer.to_text(ast.Selector(None, tuple(matchers)))
