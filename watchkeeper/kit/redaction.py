"""Takes out of a text what nobody outside needs: secrets always, names of people and machines where that is wanted.

An evidence bundle goes through here before it leaves. A secret is recognised by its shape or by the word before it; a
name is replaced by one that is the same throughout (`node-1`), so that the story can still be followed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

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
    # -----BEGIN RSA PRIVATE KEY----- … ; the lines may be written as \n
    (
        re.compile(
            r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----.{0,20000}?-----END [A-Z ]{0,30}PRIVATE KEY-----", re.DOTALL
        ),
        HIDDEN,
    ),
    # eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.c2ln
    (re.compile(r"\beyJ[\w-]{8,4000}\.[\w-]{8,4000}\.[\w-]*"), HIDDEN),
    # AKIAIOSFODNN7EXAMPLE · ghp_… · xoxb-… · hf_…
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\b(?:gh[pousr]_|hf_|xox[abprs]-|glpat-|sk-)[\w-]{16,}"), HIDDEN),
    # Bearer 8f43c0ffee…
    (re.compile(r"(?i)(?P<keep>\b(?:bearer|basic)\s+)[\w+/=.~-]{12,}"), r"\g<keep>" + HIDDEN),
)


def hide_secrets(text: str) -> str:
    for pattern, instead in SHAPES:
        text = pattern.sub(instead, text)
    text = FLAG.sub(rf"\g<name>{HIDDEN}", text)
    return NAMED.sub(lambda found: f"{found['name']}{found['quote']}{HIDDEN}", text)


def pseudonyms(names: Iterable[str], word: str) -> dict[str, str]:
    """`gpu-r01-01` becomes `node-1`, in the order of the names."""
    return {name: f"{word}-{number}" for number, name in enumerate(sorted(filter(None, set(names))), start=1)}


def rename(text: str, instead: Mapping[str, str]) -> str:
    """Every whole occurrence of a name; the longest name first, so that none is found inside another."""
    if not instead:
        return text
    longest_first = sorted(instead, key=len, reverse=True)
    pattern = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, longest_first))})(?![\w-])")
    return pattern.sub(lambda found: instead[found[0]], text)
