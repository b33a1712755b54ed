"""The documents say what the code does, and lead where they point."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import watchkeeper
from tests.house import generate
from tests.house.tree import PACKAGE, files, sources
from tests.support.paths import ROOT

PAGES = [path for path in files() if path.suffix == ".md"]
# [text](path) but not [text](https://…) nor [text](#heading)
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")
MAP_BYTES = 15_000
MAKE_TARGET = re.compile(r"^([a-z-]+):", re.MULTILINE)
# `make up ARGS=…` on a line of its own or in back quotes
MAKE_USE = re.compile(r"(?:^|`)make ((?:[a-z-]+ ?)+)", re.MULTILINE)
# `store/wal/wal_prefetch.py`, `packs/rules/`, `readers/infiniband_*.py`
PLACE = re.compile(r"`([a-z_/*]+(?:/|\.py|\.csv|\.yaml))`")
DECISIONS = ROOT / "docs" / "decisions"
# | [0001](0001-….md) | The title |   or, for a number without a record, | 0010 | *reserved, …* |
LISTED = re.compile(r"^\| \[?(\d{4})(?:\]\([^)]+\))? \| (?:\*.*\*|(.*)) \|$", re.MULTILINE)
COMMAND_USE = re.compile(r"(?:^|`|bin/)watchkeeper ((?:[a-z-]+ ?)+)", re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("path", generate.WRITTEN, ids=lambda path: path.name)
def test_a_written_page_is_up_to_date(path: Path) -> None:
    assert path.read_text() == generate.WRITTEN[path](), "run `make golden` and review the diff"


def test_every_link_leads_somewhere() -> None:
    links = [(page, link) for page in PAGES for link in LINK.findall(page.read_text())]
    assert not [f"{page}: {link}" for page, link in links if not (page.parent / link).exists()]


def test_every_place_in_the_code_that_the_architecture_names_exists() -> None:
    named = set(PLACE.findall((ROOT / "ARCHITECTURE.md").read_text()))
    assert len(named) > 50
    assert not [place for place in named if not list(PACKAGE.glob(place)) and not list(ROOT.glob(place))]


def test_the_architecture_is_a_map_of_at_most_15_kilobytes_with_every_folder() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    assert len(text.encode()) <= MAP_BYTES, "the map is for the way; docs/reference/modules.md has the rest"
    folders = {
        source.path.relative_to(PACKAGE).parts[0] for source in sources(PACKAGE) if source.path.parent != PACKAGE
    }
    assert not [folder for folder in sorted(folders) if f"`{folder}/`" not in text]


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(MAKE_TARGET.findall((ROOT / "Makefile").read_text()))
    named = {
        (page.name, target) for page in PAGES for uses in MAKE_USE.findall(page.read_text()) for target in uses.split()
    }
    assert not [use for use in named if use[1] not in targets]


@pytest.mark.parametrize("name", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_every_command_that_is_named_exists(name: str) -> None:
    commands = set(generate.commands())
    for match in COMMAND_USE.findall((ROOT / name).read_text()):
        assert f"watchkeeper {match.split()[0]}" in commands, match


@pytest.mark.slow
def test_every_own_metric_is_named_by_stage_and_unit_and_explained() -> None:
    for name, kind, help in generate.declared_metrics():
        assert re.fullmatch(r"watchkeeper(_[a-z0-9]+){2,}", name), name
        assert name.endswith("_total") == (kind == "counter"), f"{name} is a {kind}"
        assert help, f"{name} has no help"


def test_every_shipped_alert_says_how_bad_it_is_and_what_it_means() -> None:
    for file, rule in generate.shipped_alerts():
        where = f"{file.name}: {rule['alert']}"
        assert rule.get("labels", {}).get("severity") in ("critical", "warning", "info"), where
        assert rule.get("annotations", {}).get("summary"), where


def test_every_series_that_the_docs_say_we_add_is_made_by_someone() -> None:
    """What rules and dashboards ask for is held to the same in test_pack_metrics."""
    made = "\n".join(source.text for source in sources(PACKAGE))
    assert not [name for name in generate.ADDED_SERIES if f'"{name}"' not in made]


def test_the_changelog_knows_this_version() -> None:
    assert f"## [{watchkeeper.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def decisions() -> dict[str, str]:
    """The text of each record by its number; README.md is their list."""
    return {path.name[:4]: path.read_text() for path in sorted(DECISIONS.glob("[0-9]*.md"))}


def test_decisions_are_numbered_once_and_have_all_parts() -> None:
    assert len(decisions()) == len(list(DECISIONS.glob("[0-9]*.md"))) > 0
    for number, text in decisions().items():
        missing = [part for part in ("Context", "Decision", "Evidence", "Consequences") if f"## {part}" not in text]
        assert not missing, number


def test_the_list_of_decisions_has_every_number_up_to_the_newest() -> None:
    listed = LISTED.findall((DECISIONS / "README.md").read_text())
    assert [number for number, _ in listed] == [f"{number:04}" for number in range(1, len(listed) + 1)]
    titles = {number: text.partition("\n")[0].removeprefix(f"# {number} ") for number, text in decisions().items()}
    assert {number: title for number, title in listed if title} == titles
