"""What the house consists of: its files, modules and definitions, read without importing them."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.support.paths import ROOT

PACKAGE = ROOT / "watchkeeper"
BLOCKS = ("body", "orelse", "handlers", "finalbody", "cases")
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True, slots=True)
class Source:
    """One Python file of ours."""

    path: Path
    text: str
    syntax: ast.Module

    @property
    def name(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    def definitions(self) -> Iterator[Definition]:
        return (node for node in _statements(self.syntax) if isinstance(node, Definition))

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        return (node for node in self.definitions() if not isinstance(node, ast.ClassDef))


@cache
def files() -> tuple[Path, ...]:
    """Every file that is, or would be, committed; a copy without git is read as it lies there."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode == 0 and (ROOT / ".git").exists():
        paths = [ROOT / name for name in listed.stdout.split("\0") if name]
        return tuple(sorted(path for path in paths if path.is_file()))
    made = {".venv", "node_modules", "static", "__pycache__", "data", ".git"}
    return tuple(
        sorted(
            path
            for path in ROOT.rglob("*")
            if path.is_file()
            and not made & set(path.relative_to(ROOT).parts)
            and not any(part.endswith(("_cache", ".hypothesis", ".egg-info")) for part in path.parts)
        )
    )


@cache
def sources(under: Path = ROOT) -> tuple[Source, ...]:
    paths = [path for path in files() if path.suffix == ".py" and path.is_relative_to(under)]
    return tuple(_source(path) for path in paths)


@cache
def _source(path: Path) -> Source:
    text = path.read_text()
    return Source(path, text, ast.parse(text, str(path)))


def _statements(parent: ast.AST) -> Iterator[ast.AST]:
    """Every statement at any depth; `ast.walk` would look into each expression as well, ten times as many."""
    for part in BLOCKS:
        for node in getattr(parent, part, ()):
            yield node
            yield from _statements(node)


def summary(docstring: str) -> str:
    """The first sentence, without its full stop, as one line."""
    paragraph = " ".join(docstring.split("\n\n", maxsplit=1)[0].split())
    return paragraph.split(". ")[0].rstrip(".")
