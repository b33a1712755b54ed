"""Each recipe of CONTRIBUTING.md is followed to the letter on a copy of the tree, and does what it says.

A recipe is a heading `### Add …` with edits (`Append to`, `Create`, `In …, below …`, each with a fenced block) and with
commands (`Run …. It prints …`). The edits of all recipes are made in one copy, so that pages are written once.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.paths import ROOT

RECIPE = re.compile(r"^### Add (?P<title>[^\n]+)\n(?P<text>.*?)(?=^##)", re.MULTILINE | re.DOTALL)
EDIT = re.compile(
    r"(?P<how>Append to|Create|In) `(?P<path>[^`]+)`(?:, below `(?P<anchor>[^`]+)`)?:\n\n"
    r"(?P<indent> *)```\w+\n(?P<body>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
RUN = re.compile(r"Run `(?P<command>[^`]+)`\. It prints `(?P<printed>[^`]+)`")
GOLDEN = re.compile(r"Run `make golden`\. It writes `(?P<written>[^`]+)` to (?P<pages>`[^`]+`(?: and `[^`]+`)*)\.")
NAMED = re.compile(r"`((?:watchkeeper|tests|docs|console|scripts)/[\w./-]+)`")
# What people add most often.
TITLES = {
    *("an Xid", "a rule", "a scenario", "a cause and its signature", "a check", "a notifier", "a settings key"),
    *("an API endpoint", "a CLI command", "a console page", "something else"),
}
COPIED = ("watchkeeper", "tests", "docs", "console/src")
NOT_COPIED = shutil.ignore_patterns("__pycache__", "static", "node_modules", "images")
# Long, because the pages are written on a machine that runs other tests as well.
COMMAND_SECONDS = 280


@dataclass(frozen=True, slots=True)
class Edit:
    """One change of one file; with an `anchor` below that line, else at the end of the file, which may be new."""

    path: str
    anchor: str | None
    body: str
    is_new: bool

    def apply(self, tree: Path) -> None:
        file = tree / self.path
        if file.exists() == self.is_new:
            raise ValueError(f"{self.path} {'exists already' if self.is_new else 'does not exist'}")
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = [] if self.is_new else file.read_text().splitlines(keepends=True)
        file.write_text("".join([*lines[: self._at(lines)], self.body, *lines[self._at(lines) :]]))

    def _at(self, lines: list[str]) -> int:
        if self.anchor is None:
            return len(lines)
        line_numbers = [number for number, line in enumerate(lines, start=1) if line.strip() == self.anchor]
        if len(line_numbers) != 1:
            raise ValueError(f"{self.path} has {len(line_numbers)} lines `{self.anchor}`, not one")
        return line_numbers[0]


@dataclass(frozen=True, slots=True)
class Recipe:
    title: str
    text: str

    @property
    def edits(self) -> tuple[Edit, ...]:
        return tuple(
            Edit(edit["path"], edit["anchor"], _outdented(edit["body"], edit["indent"]), is_new=edit["how"] == "Create")
            for edit in EDIT.finditer(self.text)
        )

    @property
    def commands(self) -> tuple[tuple[str, str], ...]:
        return tuple((run["command"], run["printed"]) for run in RUN.finditer(self.text))

    @property
    def pages(self) -> tuple[tuple[str, str], ...]:
        """Text and page for each thing that `make golden` writes."""
        return tuple(
            (golden["written"], page)
            for golden in GOLDEN.finditer(self.text)
            for page in re.findall(r"`([^`]+)`", golden["pages"])
        )


def _outdented(body: str, indent: str) -> str:
    return "".join(line.removeprefix(indent) for line in body.splitlines(keepends=True))


def recipes() -> Iterator[Recipe]:
    for match in RECIPE.finditer((ROOT / "CONTRIBUTING.md").read_text()):
        yield Recipe(match["title"], match["text"])


RECIPES = {recipe.title: recipe for recipe in recipes()}
EACH_RECIPE = pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())
COMMANDS = [(recipe.title, *command) for recipe in RECIPES.values() for command in recipe.commands]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree after all recipes."""
    tree = tmp_path_factory.mktemp("recipes")
    for folder in COPIED:
        shutil.copytree(ROOT / folder, tree / folder, ignore=NOT_COPIED)
    for file in (*ROOT.glob("*.md"), ROOT / "pyproject.toml"):
        shutil.copy(file, tree)
    for recipe in RECIPES.values():
        for edit in recipe.edits:
            edit.apply(tree)
    return tree


@pytest.fixture(scope="module")
def pages(copy: Path) -> Path:
    """The copy, after `make golden`."""
    assert "wrote" in run(copy, "python -m tests.house.generate")
    return copy


def run(tree: Path, command: str) -> str:
    """What a line of shell prints in a tree, whatever its exit code: a doctor that finds something leaves with 1."""
    ran = subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=COMMAND_SECONDS,
    )
    return ran.stdout + ran.stderr


def test_there_is_a_recipe_for_each_thing_that_people_add() -> None:
    assert set(RECIPES) == TITLES


@EACH_RECIPE
def test_every_file_that_a_recipe_names_exists_once_it_is_followed(recipe: Recipe) -> None:
    created = {edit.path for edit in recipe.edits if edit.is_new}
    named = set(NAMED.findall(recipe.text)) - created
    assert named
    assert not [path for path in sorted(named) if not (ROOT / path).exists()]


def test_every_recipe_is_made_of_edits_and_shows_that_it_works() -> None:
    for recipe in RECIPES.values():
        if recipe.title != "something else":
            fences = len(re.findall(r"^ *```\w+$", recipe.text, re.MULTILINE))
            assert len(recipe.edits) == fences > 0, f"{recipe.title}: a block that no sentence says what to do with"
            assert recipe.commands or recipe.pages, recipe.title
            assert "Tests: " in recipe.text, recipe.title


@pytest.mark.slow
@pytest.mark.parametrize(("title", "command", "printed"), COMMANDS, ids=[title for title, _, _ in COMMANDS])
def test_a_command_of_a_recipe_prints_what_the_recipe_says(copy: Path, title: str, command: str, printed: str) -> None:
    assert printed in (answer := run(copy, command)), f"{title}: {answer}"


@pytest.mark.slow
@EACH_RECIPE
def test_a_page_has_what_the_recipe_adds_after_make_golden(pages: Path, recipe: Recipe) -> None:
    for written, page in recipe.pages:
        assert written in (pages / page).read_text(), f"{page} has no {written}"


def test_an_edit_without_its_one_anchor_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = [\n]\ny = [\n]\n")
    Edit("a.py", "y = [", "    1,\n", is_new=False).apply(tmp_path)
    assert (tmp_path / "a.py").read_text() == "x = [\n]\ny = [\n    1,\n]\n"
    for edit in (
        Edit("a.py", "]", "2\n", is_new=False),
        Edit("a.py", None, "", is_new=True),
        Edit("b.py", None, "", is_new=False),
    ):
        with pytest.raises(ValueError, match=r"not one|exists already|does not exist"):
            edit.apply(tmp_path)
