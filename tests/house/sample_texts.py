"""Draws texts at random for a reader who sees nothing else: `python -m tests.house.sample_texts [--seed N] [--each N]`.

Screens, help texts, log messages, docstrings and paragraphs of the documentation, the same number of each.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
import sys
from collections.abc import Iterator

from tests.house import tree
from tests.support.paths import ROOT

Text = tuple[str, int, str]
LOG_CALLS = {"debug", "info", "warning", "error", "exception"}
SCREEN_TEXT = re.compile(r">([^<>{}=;]*[a-z] [^<>{}=;]*)<|\"([A-Z][^\"\n]* [^\"\n]*)\"|`([A-Z][^`\n]* [^`\n]*)`")

CODE = re.compile(r"&&|\|\||=>|\?\.|\$\{|[\w)] [?*/] |\)\.|^\W| \($|[·,(]$|_")
# Made from module docstrings, which are drawn as docstrings.
GENERATED_PAGES = {"modules.md"}


def _python_sources() -> Iterator[tree.Source]:
    return (source for source in tree.sources() if source.name.startswith("watchkeeper/"))


def screens() -> Iterator[Text]:
    for path in sorted((ROOT / "console" / "src").rglob("*.ts*")):
        source = path.read_text()
        for match in SCREEN_TEXT.finditer(source):
            text = " ".join(next(group for group in match.groups() if group).split())
            if text.count(" ") > 1 and not CODE.search(text):
                yield str(path.relative_to(ROOT)), source[: match.start()].count("\n") + 1, text


def help_texts() -> Iterator[Text]:
    for source in _python_sources():
        if not source.name.startswith("watchkeeper/cli/"):
            continue
        for node in ast.walk(source.syntax):
            if isinstance(node, ast.keyword) and node.arg == "help" and isinstance(node.value, ast.Constant):
                yield source.name, node.value.lineno, str(node.value.value)
            if isinstance(node, ast.FunctionDef) and node.name.endswith("command") and ast.get_docstring(node):
                yield source.name, node.lineno, str(ast.get_docstring(node))


def log_messages() -> Iterator[Text]:
    for source in _python_sources():
        for node in ast.walk(source.syntax):
            match node:
                case ast.Call(
                    func=ast.Attribute(attr=level, value=ast.Name(id="log" | "logger" | "LOG")),
                    args=[ast.Constant(value=str(text)), *_],
                ) if level in LOG_CALLS:
                    yield source.name, node.lineno, f"{level}: {text}"


def docstrings() -> Iterator[Text]:
    for source in _python_sources():
        for node in [source.syntax, *source.definitions()]:
            if text := ast.get_docstring(node):
                yield source.name, getattr(node, "lineno", 1), text


def paragraphs() -> Iterator[Text]:
    for path in sorted((ROOT / "docs").rglob("*.md")):
        if path.name in GENERATED_PAGES:
            continue
        line = 1
        for index, block in enumerate(re.split(r"^```.*$", path.read_text(), flags=re.MULTILINE)):
            for part in re.split(r"(\n\s*\n)", block):
                if index % 2 == 0 and len(part.split()) > 5 and part.lstrip()[:1] not in "#|<":
                    yield str(path.relative_to(ROOT)), line + len(part) - len(part.lstrip()), part.strip()
                line += part.count("\n")
            line += 1


def main() -> None:
    parser = argparse.ArgumentParser(description="Print texts drawn at random, for a reader who sees nothing else.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--each", type=int, default=12, help="texts of each kind")
    options = parser.parse_args()
    draw = random.Random(options.seed)
    for kind in (screens, help_texts, log_messages, docstrings, paragraphs):
        texts = sorted(set(kind()))
        for path, line, text in draw.sample(texts, min(options.each, len(texts))):
            sys.stdout.write(f"{kind.__name__} {path}:{line}\n    " + text.replace("\n", "\n    ") + "\n")


if __name__ == "__main__":
    main()
