"""Redact a text: hide secrets, and replace names of people and nodes on request.

Every evidence bundle is redacted. A secret is recognised by its format or by the word before it; a name is replaced by
the same pseudonym everywhere (`node-1`), so that events can still be related.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

HIDDEN = "[hidden]"
KEYWORDS = r"(?:authorization|passw(?:or)?d|passphrase|secret|token|api[-_]?key|credential|cookie)s?"
# Authorization: Bearer abc · "password": "x" · API_TOKEN=x · secret: x
NAMED_SECRET = re.compile(
    rf"(?i)(?P<name>{KEYWORDS}\\?[\"']?\s{{0,4}}[:=]\s{{0,4}})(?P<quote>\\?[\"']?)(?!\\?\[hidden)"
    r"(?P<value>(?:bearer|basic)\s+\S+|[^\s\"',;\\}\]]{3,})"
)
# --token x · --db-password x
FLAG_SECRET = re.compile(rf"(?i)(?P<name>--[\w-]{{0,40}}{KEYWORDS}\s+)(?!\[hidden)\S+")
SECRET_FORMATS = (
    # https://user:password@host/
    (re.compile(r"(?P<keep>\b[a-z][a-z0-9+.-]{1,20}://)[^\s/@\"']{1,400}@"), r"\g<keep>" + HIDDEN + "@"),
    # AKIAIOSFODNN7EXAMPLE · ghp_… · xoxb-… · hf_…
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\b(?:gh[pousr]_|hf_|xox[abprs]-|glpat-|sk-)[\w-]{16,}"), HIDDEN),
    # Bearer 8f43c0ffee…
    (re.compile(r"(?i)(?P<keep>\b(?:bearer|basic)\s+)[\w+/=.~-]{12,}"), r"\g<keep>" + HIDDEN),
)

# eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.c2ln, with any prefix; possessive, so that a long text is read once.
DOTTED_TEXT, JWT_PREFIX, MIN_JWT_PART = re.compile(r"[\w-]++(?:\.[\w-]++)*+\.?"), "eyJ", 8
# -----BEGIN RSA PRIVATE KEY----- … ; the lines may be written as \n
KEY_BEGINS = re.compile(r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----")
KEY_ENDS = re.compile(r"-----END [A-Z ]{0,30}PRIVATE KEY-----")
MAX_KEY_LENGTH = 20_000


def hide_secrets(text: str) -> str:
    text = "".join(_hide_private_keys(text))
    if JWT_PREFIX in text:
        text = DOTTED_TEXT.sub(_hide_jwt, text)
    for pattern, replacement in SECRET_FORMATS:
        text = pattern.sub(replacement, text)
    text = FLAG_SECRET.sub(rf"\g<name>{HIDDEN}", text)
    return NAMED_SECRET.sub(lambda match: f"{match['name']}{match['quote']}{HIDDEN}", text)


def _hide_private_keys(text: str) -> Iterator[str]:
    """The text with each private key hidden; each end marker is searched once, even after many begin markers."""
    copied_until, end = 0, KEY_ENDS.search(text)
    for begin in KEY_BEGINS.finditer(text):
        while end is not None and end.start() < begin.end():
            end = KEY_ENDS.search(text, end.end())
        if end is None:
            break
        if begin.start() >= copied_until and end.start() - begin.end() <= MAX_KEY_LENGTH:
            yield text[copied_until : begin.start()] + HIDDEN
            copied_until = end.end()
    yield text[copied_until:]


def _hide_jwt(match: re.Match[str]) -> str:
    parts = match[0].split(".")
    for index, part in enumerate(parts[:-2]):
        start = part.find(JWT_PREFIX)
        if 0 <= start <= len(part) - len(JWT_PREFIX) - MIN_JWT_PART and len(parts[index + 1]) >= MIN_JWT_PART:
            return ".".join([*parts[:index], part[:start] + HIDDEN, *parts[index + 3 :]])
    return match[0]


def pseudonyms(names: Iterable[str], word: str) -> dict[str, str]:
    """A pseudonym for each name, numbered in the order of the names: `node-1` for `gpu-r01-01`."""
    return {name: f"{word}-{number}" for number, name in enumerate(sorted(filter(None, set(names))), start=1)}


def replace_names(text: str, replacements: Mapping[str, str]) -> str:
    """Replace each name where it is a whole word; longer names first, because they may contain shorter ones."""
    if not replacements:
        return text
    longest_first = sorted(replacements, key=len, reverse=True)
    pattern = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, longest_first))})(?![\w-])")
    return pattern.sub(lambda match: replacements[match[0]], text)
