"""Names say the thing; words that say nothing are not used in the names of modules, classes and functions."""

from __future__ import annotations

import re

import pytest

from tests.house.tree import PACKAGE, ROOT, sources

SAY_NOTHING = {
    *("manager", "handler", "helper", "helpers", "util", "utils", "common", "misc", "base", "impl"),
    *("info", "data", "process", "do", "v2", "coverage"),
}
# Deliberately allowed, each because the word is someone's exact word.
THEIR_WORDS = {
    "Process": "an operating-system process, as the kernel log names it",
    "DataDirectory": "`--data DIR` is what people type",
    "feed_data": "asyncio calls its readers so",
}


def words(name: str) -> set[str]:
    """`HTTPServer_v2` → http, server, v2."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", name)}


def test_no_name_says_nothing() -> None:
    named = [
        (source.name, name)
        for source in (*sources(PACKAGE), *sources(ROOT / "bench"))
        for name in (source.path.stem, *(definition.name for definition in source.definitions()))
    ]
    assert not [found for found in named if found[1] not in THEIR_WORDS and words(found[1]) & SAY_NOTHING]


def test_every_test_is_named_as_a_sentence() -> None:
    names = [function.name for source in sources(ROOT / "tests") for function in source.functions()]
    assert not [name for name in names if name.startswith("test_") and name.count("_") < 3]


@pytest.mark.parametrize(("name", "found"), [("HTTPServer_v2", {"http", "server", "v2"}), ("do_it", {"do", "it"})])
def test_names_are_cut_into_words(name: str, found: set[str]) -> None:
    assert words(name) == found
