"""Takes out of a text what nobody outside needs: secrets always, names of people and machines where that is wanted.

An evidence bundle goes through here before it leaves. A secret is recognised by its shape or by the word before it; a
name is replaced by one that is the same throughout (`node-1`), so that the story can still be followed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

HIDDEN = "[hidden]"
WORDS = r"(?:authorization|passw(?:or)?d|passphrase|secret|token|api[-_]?key|credential|cookie)s?"
# Authorization: Bearer abc · "password": "x" · API_TOKEN=x · secret: x
NAMED = re.compile(
    rf"(?i)(?P<name>{WORDS}\\?[\"']?\s{{0,4}}[:=]\s{{0,4}})(?P<quote>\\?[\"']?)(?!\\?\[hidden)"
    r"(?P<value>(?:bearer|basic)\s+\S+|[^\s\"',;\\}\]]{3,})"
)
# --token x · --db-password x
FLAG = re.compile(rf"(?i)(?P<name>--[\w-]{{0,40}}{WORDS}\s+)(?!\[hidden)\S+")
SHAPES = (
    # https://user:password@host/
    (re.compile(r"(?P<keep>\b[a-z][a-z0-9+.-]{1,20}://)[^\s/@\"']{1,400}@"), r"\g<keep>" + HIDDEN + "@"),
    # AKIAIOSFODNN7EXAMPLE · ghp_… · xoxb-… · hf_…
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\b(?:gh[pousr]_|hf_|xox[abprs]-|glpat-|sk-)[\w-]{16,}"), HIDDEN),
    # Bearer 8f43c0ffee…
    (re.compile(r"(?i)(?P<keep>\b(?:bearer|basic)\s+)[\w+/=.~-]{12,}"), r"\g<keep>" + HIDDEN),
)

# eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.c2ln, whatever stands before it; possessive, so that a long text is read once.
DOTTED, JWT, SHORTEST_PART = re.compile(r"[\w-]++(?:\.[\w-]++)*+\.?"), "eyJ", 8
# -----BEGIN RSA PRIVATE KEY----- … ; the lines may be written as \n
KEY_BEGINS = re.compile(r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----")
KEY_ENDS = re.compile(r"-----END [A-Z ]{0,30}PRIVATE KEY-----")
LONGEST_KEY = 20_000


def hide_secrets(text: str) -> str:
    text = "".join(_without_keys(text))
    if JWT in text:
        text = DOTTED.sub(_without_jwt, text)
    for pattern, instead in SHAPES:
        text = pattern.sub(instead, text)
    text = FLAG.sub(rf"\g<name>{HIDDEN}", text)
    return NAMED.sub(lambda found: f"{found['name']}{found['quote']}{HIDDEN}", text)


def _without_keys(text: str) -> Iterator[str]:
    """The text with each private key hidden; each end is looked for once, however many beginnings stand before it."""
    kept, end = 0, KEY_ENDS.search(text)
    for begin in KEY_BEGINS.finditer(text):
        while end is not None and end.start() < begin.end():
            end = KEY_ENDS.search(text, end.end())
        if end is None:
            break
        if begin.start() >= kept and end.start() - begin.end() <= LONGEST_KEY:
            yield text[kept : begin.start()] + HIDDEN
            kept = end.end()
    yield text[kept:]


def _without_jwt(found: re.Match[str]) -> str:
    parts = found[0].split(".")
    for at, part in enumerate(parts[:-2]):
        start = part.find(JWT)
        if 0 <= start <= len(part) - len(JWT) - SHORTEST_PART and len(parts[at + 1]) >= SHORTEST_PART:
            return ".".join([*parts[:at], part[:start] + HIDDEN, *parts[at + 3 :]])
    return found[0]


def pseudonyms(names: Iterable[str], word: str) -> dict[str, str]:
    """`gpu-r01-01` becomes `node-1`, in the order of the names."""
    return {name: f"{word}-{number}" for number, name in enumerate(sorted(filter(None, set(names))), start=1)}


def replace_names(text: str, instead: Mapping[str, str]) -> str:
    """Every whole occurrence of a name; the longest name first, so that none is found inside another."""
    if not instead:
        return text
    longest_first = sorted(instead, key=len, reverse=True)
    pattern = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, longest_first))})(?![\w-])")
    return pattern.sub(lambda found: instead[found[0]], text)
