"""Regular expressions of label matchers: RE2's syntax, matched against the whole value as Prometheus does."""

from __future__ import annotations

import functools
from typing import Any

import re2

from watchkeeper.query import engine

OPTIONS = re2.Options()
OPTIONS.log_errors = False
OPTIONS.dot_nl = True


# Longer ones come from generated queries: a compiled one can take megabytes, and is not asked twice.
LONGEST_KEPT = 1000


def compile_pattern(pattern: str) -> Any:
    """A compiled RE2 pattern for `fullmatch`; ValueError says what is wrong with it."""
    return _compile(pattern) if len(pattern) > LONGEST_KEPT else _compile_once(pattern)


def _compile(pattern: str) -> Any:
    try:
        return re2.compile(pattern, OPTIONS)
    except re2.error as error:
        problem = error.args[0] if error.args else "not a regular expression"
        raise ValueError(problem.decode(errors="replace") if isinstance(problem, bytes) else str(problem)) from error


# A fleet's rules and dashboards hold a few hundred patterns.
_compile_once = functools.lru_cache(maxsize=2048)(_compile)


def matches(matcher: engine.Matcher, value: str) -> bool:
    """Whether a label value, empty where the label is absent, satisfies the matcher."""
    if matcher.op is engine.MatchOp.EQUAL:
        return value == matcher.value
    if matcher.op is engine.MatchOp.NOT_EQUAL:
        return value != matcher.value
    found = compile_pattern(matcher.value).fullmatch(value) is not None
    return found is (matcher.op is engine.MatchOp.REGEX)
