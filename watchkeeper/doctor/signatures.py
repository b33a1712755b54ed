"""The table of signs: patterns in packs/signatures/*.toml, each with an example line and its source.

A sign with `words` is searched for in every line with one of these words, a sign with only a `pattern` in the beginning
of an input, where listings are. A sign without a pattern is added by a reader (`documents`).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache, lru_cache
from importlib import resources
from typing import Any

from watchkeeper.catalogue import causes
from watchkeeper.errors import PackError

FOLDER = "signatures"
# The cause follows from the Xid code in the match, through the catalogue.
BY_XID = "by_xid"
WITHOUT_DIGITS = str.maketrans("", "", "0123456789")
# Shorter texts are in every other line, and a long list of texts takes as long as the pattern.
MIN_CHARACTERS = 3
MAX_TEXTS = 24
# A text of this length is rare enough; a longer one is not better.
LONG_CHARACTERS = 8

_parser: Any = re._parser  # type: ignore[attr-defined]  # the only reader of Python's own patterns; no other name for it
_GROUPS = {"SUBPATTERN": -1, "ATOMIC_GROUP": None, "ASSERT": 1}
_REPEATS = frozenset({"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"})


class Role(StrEnum):
    """The role of a sign: a cause, an effect of another cause, context about the job, a harmless line,
    or a hint at the failed part, which counts only without other findings.
    """

    CAUSE = "cause"
    EFFECT = "effect"
    CONTEXT = "context"
    BENIGN = "benign"
    HINT = "hint"


@dataclass(frozen=True, slots=True)
class Sign:
    """A row of the table. `also` are other possible causes of the same line; `silences` are causes that it excludes.

    `needs` are texts: a listing must contain one before a pattern without words is tried. The sign does not count if
    one of the signs in `unless` is present. `steps` are what to do and its command, for a line whose cause is unknown.
    """

    id: str
    cause: str
    confidence: float
    role: Role
    why: str
    example: str
    source: str
    words: tuple[str, ...]
    pattern: str | None
    spans_lines: bool
    also: Mapping[str, float] = field(default_factory=dict)
    silences: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    steps: tuple[tuple[str, str], ...] = ()

    @property
    def causes(self) -> dict[str, float]:
        """The confidence of each possible cause."""
        return {self.cause: self.confidence, **self.also}

    @property
    def compiled(self) -> re.Pattern[str]:
        """The pattern, compiled at the first use: most runs use few patterns."""
        return _compile(self.pattern or "")

    def match(self, line: str) -> re.Match[str] | None:
        return None if self.pattern is None else self.compiled.search(line)


@dataclass(frozen=True, slots=True)
class SignTable:
    """All signs by id, by word, and those without a word."""

    signs: Mapping[str, Sign]
    by_word: Mapping[bytes, tuple[Sign, ...]]
    without_words: tuple[Sign, ...]


@cache
def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.MULTILINE)


@dataclass(frozen=True, slots=True)
class SignTest:
    """Texts that a line must contain before a sign's pattern is tried: one text of each clause, without digits.

    The line with its digits must also contain one of `with_digits`.
    """

    sign: Sign
    clauses: tuple[tuple[str, ...], ...]
    with_digits: tuple[str, ...]


# Cached sets of words that occur together in lines; eviction costs time, not correctness.
MAX_WORD_SETS = 8192


@lru_cache(MAX_WORD_SETS)
def sign_tests(words: frozenset[bytes]) -> tuple[SignTest, ...]:
    """The tests of all signs with one of these words, without duplicates."""
    by_word = table().by_word
    names = dict.fromkeys(sign.id for word in sorted(words) for sign in by_word.get(word, ()))
    return tuple(map(_make_test, names))


@cache
def _make_test(name: str) -> SignTest:
    """The test of a sign; for a sign that spans lines its word is enough, because its texts may be on later lines."""
    sign = lookup(name)
    if sign.spans_lines or sign.pattern is None:
        return SignTest(sign, (), ())
    clauses = required_texts(sign.pattern)
    stripped = [tuple(dict.fromkeys(text.translate(WITHOUT_DIGITS) for text in texts)) for texts in clauses]
    selective = [texts for texts in stripped if min(map(len, texts)) >= MIN_CHARACTERS]
    # The shortest list is the fastest to search, and mostly the one that is missing.
    sorted_clauses = tuple(sorted(selective, key=len))
    with_digits = [texts for texts, stripped_texts in zip(clauses, stripped, strict=True) if texts != stripped_texts]
    return SignTest(sign, sorted_clauses, with_digits[0] if with_digits else ())


def lookup(sign: str) -> Sign:
    return table().signs[sign]


@cache
def table() -> SignTable:
    signs: dict[str, Sign] = {}
    folder = resources.files("watchkeeper.packs") / FOLDER
    for file in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if file.name.endswith(".toml"):
            for row in tomllib.loads(file.read_text(encoding="utf-8")).get("sign", []):
                sign = read_row(row, file=f"{FOLDER}/{file.name}")
                if sign.id in signs:
                    raise PackError(f"sign {sign.id} is defined twice", where=f"packs/{FOLDER}/{file.name}")
                signs[sign.id] = sign
    return _make_table(signs)


def read_row(row: Mapping[str, Any], *, file: str) -> Sign:
    """Read one row of a TOML file; an error names the file and the sign."""
    name = str(row.get("id", "without an id"))
    try:
        pattern = row.get("pattern")
        cause = row.get("cause", "")
        named_causes = {*row.get("also", {}), *([cause] if cause not in ("", BY_XID) else [])}
        unknown = named_causes - {entry.cause for entry in causes.all_causes()}
        if unknown:
            raise ValueError(f"unknown cause {', '.join(sorted(unknown))}")
        return Sign(
            id=row["id"],
            cause=cause,
            confidence=float(row.get("confidence", 0.0)),
            role=Role(row.get("role", "cause")),
            why=row.get("why", ""),
            example=row["example"] if pattern is not None else "",
            source=row["source"],
            words=tuple(row.get("words", "").split()),
            pattern=pattern,
            spans_lines=bool(row.get("spans_lines", False)),
            also=dict(row.get("also", {})),
            silences=tuple(row.get("silences", ())),
            needs=tuple(row["needs"].split("|")) if "needs" in row else (),
            unless=tuple(row.get("unless", ())),
            steps=tuple((do, command) for do, command in row.get("steps", ())),
        )
    except (KeyError, ValueError, TypeError) as error:
        raise PackError(f"sign {name}: {error}", where=f"packs/{file}") from error


def _make_table(signs: Mapping[str, Sign]) -> SignTable:
    by_word: dict[bytes, list[Sign]] = {}
    for sign in signs.values():
        for word in sign.words:
            by_word.setdefault(word.encode(), []).append(sign)
    listings = tuple(sign for sign in signs.values() if sign.pattern is not None and not sign.words)
    return SignTable(signs, {word: tuple(signs_of_word) for word, signs_of_word in by_word.items()}, listings)


def required_texts(pattern: str) -> tuple[tuple[str, ...], ...]:
    """Sets of texts: every match of the pattern contains at least one text of each set.

    A line without them is skipped without the pattern: a search for a text takes a fiftieth of the time of a search for
    a pattern, and almost every line with a word of a sign has nothing else of it.
    """
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
