"""Names say the thing; words that say nothing are not used in the names of modules, classes and functions."""

from __future__ import annotations

import re

import pytest

from tests.house.tree import PACKAGE, sources
from tests.support.paths import ROOT

SAY_NOTHING = {
    *("manager", "handler", "helper", "helpers", "util", "utils", "common", "misc", "base", "impl"),
    *("info", "data", "do", "v2"),
}
# Deliberately allowed, each because the word is someone's exact word.
THEIR_WORDS = {
    "DataDirectory": "`--data DIR` is what people type",
    "QueryData": "`data` of Prometheus' query API",
    "query_data": "`data` of Prometheus' query API",
    "query_range_data": "`data` of Prometheus' query API",
    "stub_ctypes_util": "ctypes.util is a module of Python",
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
    assert not [place for place in named if place[1] not in THEIR_WORDS and words(place[1]) & SAY_NOTHING]


@pytest.mark.slow
def test_every_test_is_named_as_a_sentence() -> None:
    names = [function.name for source in sources(ROOT / "tests") for function in source.functions()]
    assert not [name for name in names if name.startswith("test_") and name.count("_") < 3]


@pytest.mark.parametrize(("name", "parts"), [("HTTPServer_v2", {"http", "server", "v2"}), ("do_it", {"do", "it"})])
def test_names_are_cut_into_words(name: str, parts: set[str]) -> None:
    assert words(name) == parts


# Deliberately allowed, each because the zone stands elsewhere or nobody knows it.
ZONE_ELSEWHERE = {
    "watchkeeper/accounting/statement.py": "the page says in whose zone it is",
    "watchkeeper/notify/incident_report.py": "the column is headed Time (UTC)",
    "watchkeeper/doctor/judgements/first_error.py": "the time as the log has it, whose zone is its own",
}
# For a terminal, a log or a file of another program.
NOT_ON_PAGES = ("cli", "kit", "readers", "render", "drill")


def test_a_time_of_day_in_a_sentence_of_the_hub_says_that_it_is_utc() -> None:
    """Pages show times in the zone of who looks; a sentence without a zone would be taken for the same."""
    bare = re.compile(r"%H:%M(:%S)?\}(?!Z| UTC| to \{)")
    names = [
        source.name
        for source in sources(PACKAGE)
        if source.path.relative_to(PACKAGE).parts[0] not in NOT_ON_PAGES and bare.search(source.path.read_text())
    ]
    assert sorted(names) == sorted(ZONE_ELSEWHERE)
