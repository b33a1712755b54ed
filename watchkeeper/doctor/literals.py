"""Which plain texts a pattern cannot do without: a line that has none of them is passed over without the pattern.

A search for a text costs a fiftieth of a search for a pattern, and almost every line that has a word of a sign
has nothing else of it. `signatures` asks once for each pattern, `scan` looks for the texts in shapes of small letters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

# Shorter texts stand in every other line, and a long list of texts costs as much as the pattern.
LEAST_CHARACTERS = 3
MOST_TEXTS = 24
# A text of this length is rare enough; a longer one is not better.
LONG_CHARACTERS = 8

_parser: Any = re._parser  # type: ignore[attr-defined]  # the only reader of Python's own patterns; no other name for it
_GROUPS = {"SUBPATTERN": -1, "ATOMIC_GROUP": None, "ASSERT": 1}
_REPEATS = frozenset({"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"})


def clauses(pattern: str) -> tuple[tuple[str, ...], ...]:
    """Sets of texts of each of which every match has one: the parts of a pattern that follow each other all count."""
    return tuple(tuple(sorted(texts)) for texts in _parts_of(_parser.parse(pattern, re.MULTILINE)))


def _parts_of(items: Iterable[tuple[Any, Any]]) -> list[frozenset[str]]:
    """What each part of a sequence needs; neighbouring letters are one text."""
    needs: list[frozenset[str] | None] = []
    run = ""
    for operation, argument in items:
        name = str(operation)
        if name == "LITERAL" and argument < 128:
            run += chr(argument).lower()
            continue
        if name in ("AT", "ASSERT_NOT"):
            continue
        needs += [_usable({run}), _of_part(name, argument)]
        run = ""
    return [texts for texts in (*needs, _usable({run})) if texts is not None]


def _of_sequence(items: Iterable[tuple[Any, Any]]) -> frozenset[str] | None:
    """The best of what the parts of a sequence need."""
    best: frozenset[str] | None = None
    for texts in _parts_of(items):
        best = _better(best, texts)
    return best


def _of_part(name: str, argument: Any) -> frozenset[str] | None:
    if name in _GROUPS:
        at = _GROUPS[name]
        return _of_sequence(argument if at is None else argument[at])
    if name in _REPEATS:
        least, _, inside = argument
        return _of_sequence(inside) if least > 0 else None
    if name == "BRANCH":
        branches = [_of_sequence(branch) for branch in argument[1]]
        texts = {text for branch in branches if branch is not None for text in branch}
        return None if None in branches else _usable(texts)
    return None


def _usable(texts: set[str]) -> frozenset[str] | None:
    if not texts or len(texts) > MOST_TEXTS or min(map(len, texts)) < LEAST_CHARACTERS:
        return None
    # A text that holds another of them is found by the shorter one.
    return frozenset(text for text in texts if not any(other != text and other in text for other in texts))


def _better(first: frozenset[str] | None, second: frozenset[str] | None) -> frozenset[str] | None:
    """Long texts are rare in other lines; of equally long ones few are soon looked for."""
    if first is None or second is None:
        return first or second
    return max(first, second, key=lambda texts: (min(LONG_CHARACTERS, *map(len, texts)), -len(texts)))
