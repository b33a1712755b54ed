"""The table of signs: patterns as data in packs/signatures/*.toml, each with an example line and its source.

A sign with `words` is looked for in every line that has one of them; one with a `pattern` alone only in the
beginning of an input, where listings are; one without a pattern is seen by a reader (`documents`). `scan` asks for
the words that make the search fast and for the signs behind each.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache, lru_cache
from importlib import resources
from typing import Any

from watchkeeper.catalogue import causes
from watchkeeper.doctor import literals
from watchkeeper.errors import PackError

FOLDER = "signatures"
# Found by the Xid code that the pattern names: the catalogue knows its cause.
BY_XID = "by_xid"
WITHOUT_DIGITS = str.maketrans("", "", "0123456789")


class Role(StrEnum):
    """What a sign is worth: it names a cause, follows from one, describes the job, speaks against a cause,
    or only hints at the part that failed, which counts when nothing else does.
    """

    CAUSE = "cause"
    EFFECT = "effect"
    CONTEXT = "context"
    BENIGN = "benign"
    HINT = "hint"


@dataclass(frozen=True, slots=True)
class Sign:
    """One row. `also` are further causes that the same line allows; `silences` those it speaks against.

    `needs` are texts of which a listing must have one before a pattern without words is tried on it; `unless` are
    signs beside which this one counts for nothing.
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

    @property
    def compiled(self) -> re.Pattern[str]:
        """The pattern, compiled when it is first needed: most runs need few of them."""
        return _compile(self.pattern or "")

    def match(self, line: str) -> re.Match[str] | None:
        return None if self.pattern is None else self.compiled.search(line)


@dataclass(frozen=True, slots=True)
class SignTable:
    """All signs; `behind` has the signs that a word may lead to, `of_listings` those without a word."""

    signs: Mapping[str, Sign]
    behind: Mapping[bytes, tuple[Sign, ...]]
    of_listings: tuple[Sign, ...]


@cache
def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Test:
    """What a line must have for a sign: a text of each clause, digits aside, then one of `with_digits` with them."""

    sign: Sign
    clauses: tuple[tuple[str, ...], ...]
    with_digits: tuple[str, ...]


# Different sets of words that lines of one log have; forgetting one costs time, not lines.
MAX_WORD_SETS = 8192


@lru_cache(MAX_WORD_SETS)
def tests_of(words: frozenset[bytes]) -> tuple[Test, ...]:
    """The tests of all signs behind these words, each once, worked out when a line has just these."""
    behind = table().behind
    names = dict.fromkeys(sign.id for word in sorted(words) for sign in behind.get(word, ()))
    return tuple(map(_test, names))


@cache
def _test(name: str) -> Test:
    """A sign that spans lines may have its texts on a later one, so that its word alone counts."""
    sign = lookup(name)
    if sign.spans_lines or sign.pattern is None:
        return Test(sign, (), ())
    given = literals.clauses(sign.pattern)
    stripped = [tuple(dict.fromkeys(text.translate(WITHOUT_DIGITS) for text in texts)) for texts in given]
    telling = [texts for texts in stripped if min(map(len, texts)) >= literals.LEAST_CHARACTERS]
    # The shortest list is soonest looked through, and mostly the one that is not there.
    clauses = tuple(sorted(telling, key=len))
    changed = [texts for texts, without in zip(given, stripped, strict=True) if texts != without]
    return Test(sign, clauses, changed[0] if changed else ())


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
                    raise PackError(f"sign {sign.id} is there twice", where=f"packs/{FOLDER}/{file.name}")
                signs[sign.id] = sign
    return _by_word(signs)


def read_row(row: Mapping[str, Any], *, file: str) -> Sign:
    """One table of a TOML file; an error names the file and the sign."""
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
        )
    except (KeyError, ValueError, TypeError) as error:
        raise PackError(f"sign {name}: {error}", where=f"packs/{file}") from error


def _by_word(signs: Mapping[str, Sign]) -> SignTable:
    behind: dict[bytes, list[Sign]] = {}
    for sign in signs.values():
        for word in sign.words:
            behind.setdefault(word.encode(), []).append(sign)
    listings = tuple(sign for sign in signs.values() if sign.pattern is not None and not sign.words)
    return SignTable(signs, {word: tuple(signs_of_word) for word, signs_of_word in behind.items()}, listings)
