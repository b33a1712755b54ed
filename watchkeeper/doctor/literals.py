"""Find the plain texts that every match of a pattern contains: a line without them is skipped without the pattern.

A search for a text takes a fiftieth of the time of a search for a pattern, and almost every line with a word of a sign
has nothing else of it. `signatures` calls this once for each pattern; `scan` searches for the texts in lower case.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

# Shorter texts are in every other line, and a long list of texts takes as long as the pattern.
MIN_CHARACTERS = 3
MAX_TEXTS = 24
# A text of this length is rare enough; a longer one is not better.
LONG_CHARACTERS = 8

_parser: Any = re._parser  # type: ignore[attr-defined]  # the only reader of Python's own patterns; no other name for it
_GROUPS = {"SUBPATTERN": -1, "ATOMIC_GROUP": None, "ASSERT": 1}
_REPEATS = frozenset({"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"})


def required_texts(pattern: str) -> tuple[tuple[str, ...], ...]:
    """Sets of texts: every match of the pattern contains at least one text of each set."""
    return tuple(tuple(sorted(texts)) for texts in _texts_of_parts(_parser.parse(pattern, re.MULTILINE)))


def _texts_of_parts(items: Iterable[tuple[Any, Any]]) -> list[frozenset[str]]:
    """The texts that each part of a sequence requires; adjacent letters are one text."""
    texts_by_part: list[frozenset[str] | None] = []
    literal = ""
    for operation, argument in items:
        name = str(operation)
        if name == "LITERAL" and argument < 128:
            literal += chr(argument).lower()
            continue
        if name in ("AT", "ASSERT_NOT"):
            continue
        texts_by_part += [_selective({literal}), _part_texts(name, argument)]
        literal = ""
    return [texts for texts in (*texts_by_part, _selective({literal})) if texts is not None]


def _best_texts(items: Iterable[tuple[Any, Any]]) -> frozenset[str] | None:
    """The most selective texts of all parts of a sequence."""
    best: frozenset[str] | None = None
    for texts in _texts_of_parts(items):
        best = _more_selective(best, texts)
    return best


def _part_texts(name: str, argument: Any) -> frozenset[str] | None:
    if name in _GROUPS:
        index = _GROUPS[name]
        return _best_texts(argument if index is None else argument[index])
    if name in _REPEATS:
        min_count, _, repeated = argument
        return _best_texts(repeated) if min_count > 0 else None
    if name == "BRANCH":
        branches = [_best_texts(branch) for branch in argument[1]]
        texts = {text for branch in branches if branch is not None for text in branch}
        return None if None in branches else _selective(texts)
    return None


def _selective(texts: set[str]) -> frozenset[str] | None:
    if not texts or len(texts) > MAX_TEXTS or min(map(len, texts)) < MIN_CHARACTERS:
        return None
    # A search for the shorter text also finds a text that contains it.
    return frozenset(text for text in texts if not any(other != text and other in text for other in texts))


def _more_selective(first: frozenset[str] | None, second: frozenset[str] | None) -> frozenset[str] | None:
    """Prefer long texts, which are rare in other lines; among equally long ones prefer the shorter list."""
    if first is None or second is None:
        return first or second
    return max(first, second, key=lambda texts: (min(LONG_CHARACTERS, *map(len, texts)), -len(texts)))
