"""What docs/glossary.md refuses: names that say nothing and phrases that are hard to read.

`python -m tests.house.words [PATH ...]` lists each place. `test_words.py` expects none.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.support.paths import ROOT

GLOSSARY = ROOT / "docs" / "glossary.md"
TEXT_SUFFIXES = {".md", ".csv", ".toml", ".yaml", ".yml", ".json", ".ts", ".tsx", ".css", ".html", ".txt"}
# Deliberately not scanned: the glossary lists the phrases, and these two quote other people's texts word for word.
EXEMPT = {"docs/glossary.md", "LICENSE", "watchkeeper/packs/xid.csv"}
# Its fields are keys of the API, which programs depend on: only its texts are checked.
FROZEN_NAMES = {"watchkeeper/client/answers.py"}
MOST_CLASSES_OF_ONE_NAME = 2


@dataclass(frozen=True, slots=True)
class Violation:
    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


def _section(title: str) -> str:
    return GLOSSARY.read_text().split(f"## {title}\n")[1].split("\n## ")[0]


@cache
def refused_names() -> frozenset[str]:
    paragraph = _section("Words that are not names").split("leading underscore:")[1].split("\n\n")[1]
    return frozenset(re.findall(r"`(\w+)`", paragraph))


@cache
def refused_phrases() -> re.Pattern[str]:
    cells = re.findall(r"^\| ([^|]+) \|", _section("Phrases that are not written"), flags=re.MULTILINE)
    phrases = [phrase.strip() for cell in cells if cell != "Phrase" for phrase in cell.split(",")]
    alternatives = "|".join(re.escape(phrase).replace(r"\ ", r"\s+") for phrase in phrases)
    # Deliberately allowed: `(nobody)` is a value of the usage API that programs compare with.
    return re.compile(rf"(?<!\()\b({alternatives})\b", re.IGNORECASE)


def _bound_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield node.lineno, name
            case ast.alias(asname=str(name)):
                yield node.lineno, name


def names_in(path: Path) -> Iterator[Violation]:
    refused, where = refused_names(), str(path.relative_to(ROOT))
    if path.stem.strip("_").lower() in refused:
        yield Violation(where, 1, f"module name `{path.stem}`")
    for line, name in _bound_names(ast.parse(path.read_text())):
        if name.strip("_").lower() in refused:
            yield Violation(where, line, f"name `{name}`")


def _python_texts(source: str) -> Iterator[tuple[int, str]]:
    """String literals and comments with their first line."""
    kinds = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in kinds:
            yield token.start[0], token.string


def _comment_blocks(texts: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Texts with `#` at the start of a wrapped comment removed, so that a phrase over two lines is seen."""
    block: list[tuple[int, str]] = []
    for line, text in texts:
        if text.startswith("#") and block and block[-1][0] == line - 1:
            block.append((line, text.lstrip("# ")))
            continue
        if block:
            yield block[0][0], " ".join(part for _, part in block)
        block = [(line, text.lstrip("# "))] if text.startswith("#") else []
        if not block:
            yield line, text
    if block:
        yield block[0][0], " ".join(part for _, part in block)


def phrases_in(path: Path) -> Iterator[Violation]:
    where, source = str(path.relative_to(ROOT)), path.read_text()
    texts = _comment_blocks(_python_texts(source)) if path.suffix == ".py" else iter([(1, source)])
    for first, text in texts:
        for match in refused_phrases().finditer(text):
            yield Violation(where, first + text[: match.start()].count("\n"), f"phrase “{match[0]}”")


def repeated_classes() -> list[str]:
    count = Counter(
        node.name
        for path in (ROOT / "watchkeeper").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    )
    return [f"class {name}: {times} times" for name, times in sorted(count.items()) if times > MOST_CLASSES_OF_ONE_NAME]


def scanned(*folders: str) -> Iterator[Path]:
    for folder in folders:
        start = ROOT / folder
        for path in sorted(start.rglob("*")) if start.is_dir() else [start]:
            relative = path.relative_to(ROOT)
            is_text = path.is_file() and (path.suffix == ".py" or path.suffix in TEXT_SUFFIXES)
            if is_text and str(relative) not in EXEMPT and not {"static", "node_modules"} & {*relative.parts}:
                yield path


def violations(*folders: str) -> Iterator[Violation]:
    for path in scanned(*folders):
        if path.suffix == ".py" and str(path.relative_to(ROOT)) not in FROZEN_NAMES:
            yield from names_in(path)
        yield from phrases_in(path)


if __name__ == "__main__":
    places = violations(*(sys.argv[1:] or ["watchkeeper", "docs", "console/src", "README.md"]))
    listed = [*map(str, places), *([] if sys.argv[1:] else repeated_classes())]
    sys.stdout.write("".join(f"{line}\n" for line in listed))
