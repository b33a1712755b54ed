"""Regular expressions of label matchers: RE2 syntax, anchored at both ends as in Prometheus."""

from __future__ import annotations

import functools
from typing import Any

import re2

from watchkeeper.query import engine
from watchkeeper.store.index import CACHED_RE2_OPTIONS, MAX_CACHED_PATTERN, RE2_OPTIONS


def compile_pattern(pattern: str) -> Any:
    """Compile an RE2 pattern for `fullmatch`; ValueError if it is invalid."""
    return _compile(pattern) if len(pattern) > MAX_CACHED_PATTERN else _compile_cached(pattern)


def _compile(pattern: str) -> Any:
    try:
        return re2.compile(pattern, CACHED_RE2_OPTIONS if len(pattern) <= MAX_CACHED_PATTERN else RE2_OPTIONS)
    except re2.error as error:
        problem = error.args[0] if error.args else "not a regular expression"
        raise ValueError(problem.decode(errors="replace") if isinstance(problem, bytes) else str(problem)) from error


# Rules and dashboards of a fleet have a few hundred patterns.
_compile_cached = functools.lru_cache(maxsize=512)(_compile)


def matches(matcher: engine.Matcher, value: str) -> bool:
    """Whether a label value matches; the value of an absent label is empty."""
    if matcher.op is engine.MatchOp.EQUAL:
        return value == matcher.value
    if matcher.op is engine.MatchOp.NOT_EQUAL:
        return value != matcher.value
    is_match = compile_pattern(matcher.value).fullmatch(value) is not None
    return is_match is (matcher.op is engine.MatchOp.REGEX)
