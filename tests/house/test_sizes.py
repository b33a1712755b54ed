"""Files and functions stay small enough to be read; an exception defends itself with "Deliberately"."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.house.tree import Source, files, sources

FILE_LINES = 600
INIT_LINES = 40
FUNCTION_LINES = 60
TEST_LINES = 30
CODE_SUFFIXES = {".py", ".ts", ".tsx", ".css"}


def defends_itself(lines: list[str]) -> bool:
    return any(line.lstrip(" #/*").startswith("Deliberately") for line in lines)


def is_generated(lines: list[str]) -> bool:
    """Whether a program wrote it, so that nobody reads it from top to bottom."""
    return lines[0].lstrip(" #/").startswith("Generated")


def too_long(source: Source) -> list[str]:
    """Functions over their limit, without a defence in the comment above or inside."""
    found = []
    for function in source.functions():
        start = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
        lines = (function.end_lineno or start) - start + 1
        limit = TEST_LINES if function.name.startswith("test_") else FUNCTION_LINES
        if lines > limit and not defends_itself(source.lines[max(0, start - 6) : function.end_lineno]):
            found.append(f"{source.name}:{function.lineno} {function.name}: {lines} lines, limit {limit}")
    return found


def test_no_file_is_too_long() -> None:
    found = []
    for path in (path for path in files() if path.suffix in CODE_SUFFIXES):
        lines = path.read_text().splitlines()
        limit = INIT_LINES if path.name == "__init__.py" else FILE_LINES
        if len(lines) > limit and not defends_itself(lines) and not is_generated(lines):
            found.append(f"{path}: {len(lines)} lines, limit {limit}")
    assert not found


def test_no_function_is_too_long() -> None:
    assert not [line for source in sources() for line in too_long(source)]


def test_a_long_function_is_found_unless_it_defends_itself() -> None:
    body = "\n".join(["def f() -> None:", *["    pass"] * FUNCTION_LINES])
    plain = Source(Path(__file__), body, ast.parse(body))
    defended = Source(Path(__file__), text := f"# Deliberately long: a table.\n{body}", ast.parse(text))
    assert len(too_long(plain)) == 1
    assert not too_long(defended)
