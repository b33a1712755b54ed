"""Names and texts follow docs/glossary.md: no refused name, no refused phrase, no class name used three times."""

from __future__ import annotations

import pytest

from tests.house import words

PLACES = [
    *("README.md", "CONTRIBUTING.md", "STYLE.md", "ARCHITECTURE.md", "SECURITY.md", "CHANGELOG.md"),
    *("Makefile", "Containerfile", "docs", "console/src", "watchkeeper", "bench", "examples", "scripts"),
]


@pytest.mark.parametrize("place", PLACES)
def test_no_refused_name_or_phrase_is_used(place: str) -> None:
    assert not [str(violation) for violation in words.violations(place)], "docs/glossary.md has the term to write"


def test_no_class_name_is_used_three_times() -> None:
    assert not words.repeated_classes()


def test_the_glossary_is_read() -> None:
    assert {"found", "one", "somebody"} <= words.refused_names()
    assert words.refused_phrases().search("The lead was held\n  up, and nobody was told.")
    assert not words.refused_phrases().search("Hours without a team are `(nobody)`.")
