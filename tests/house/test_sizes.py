"""Most files and functions are short, no line is wide, and no folder has more modules than one can read at a glance.

There is no limit for a single file: a limit of 600 lines made files of 599. The 95th percentile is what counts, so
one long file is possible and ten are not.
"""

from __future__ import annotations

import ast
import math
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tests.house.tree import PACKAGE, Source, files, sources
from tests.support.paths import ROOT

P95_FILE_LINES = 350
P95_FUNCTION_LINES = 25
INIT_LINES = 40
TEST_LINES = 30
LINE_WIDTH = 120
MODULES_IN_A_FOLDER = 25
CODE_SUFFIXES = {".py", ".ts", ".tsx", ".css"}
PRODUCT = ("watchkeeper/", "console/src/")
# Tests hold recorded lines of other programs; ruff measures everything else in them.
NO_WIDTH = ("tests/",)
# What a line says to a linter does not count, as it does not for ruff.
PRAGMA = re.compile(r"\s*# (?:noqa|type: ignore)\b.*")


def defends_itself(lines: list[str]) -> bool:
    return any(line.lstrip(" #/*").startswith("Deliberately") for line in lines)


def percentile_95(sizes: Iterable[int]) -> int:
    """The size that 95 of 100 do not exceed (nearest rank)."""
    ordered = sorted(sizes)
    return ordered[math.ceil(len(ordered) * 0.95) - 1]


def over(limit: int, sizes: dict[str, int]) -> str:
    """Empty while the 95th percentile is within the limit; else the sentence that says what to shorten."""
    if (percentile := percentile_95(sizes.values())) <= limit:
        return ""
    longest = sorted(((lines, name) for name, lines in sizes.items() if lines > limit), reverse=True)
    named = "\n".join(f"  {lines:>5} {name}" for lines, name in longest)
    return f"95th percentile is {percentile} lines, limit {limit}. Shorten some of these:\n{named}"


def code_files(under: tuple[str, ...] = ("",), *, without: tuple[str, ...] = ()) -> list[tuple[str, Path]]:
    """What people write: nobody reads a generated file from top to bottom."""
    named = ((path.relative_to(ROOT).as_posix(), path) for path in files() if path.suffix in CODE_SUFFIXES)
    chosen = ((name, path) for name, path in named if name.startswith(under) and not name.startswith(without))
    return [(name, path) for name, path in chosen if not is_generated(path)]


def is_generated(path: Path) -> bool:
    with path.open() as file:
        return file.readline().lstrip(" #/").startswith("Generated")


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (function.end_lineno or first_line(function)) - first_line(function) + 1


def first_line(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])


def long_tests(source: Source) -> list[str]:
    """Tests over their limit, without a defence in the comment above or inside."""
    return [
        f"{source.name}:{function.lineno} {function.name}: {length(function)} lines, limit {TEST_LINES}"
        for function in source.functions()
        if function.name.startswith("test_")
        and length(function) > TEST_LINES
        and not defends_itself(source.lines[max(0, first_line(function) - 6) : function.end_lineno])
    ]


def wide_lines(name: str, text: str) -> list[str]:
    return [
        f"{name}:{number}: {width} characters, limit {LINE_WIDTH}"
        for number, line in enumerate(text.splitlines(), start=1)
        if (width := len(PRAGMA.sub("", line))) > LINE_WIDTH
    ]


def crowded(modules: Iterable[Path]) -> list[str]:
    """Folders with more modules than the limit; the file that makes a folder a package does not count."""
    counted = Counter(path.parent for path in modules if path.name != "__init__.py")
    return [
        f"{folder}: {count} modules, limit {MODULES_IN_A_FOLDER}; move those of one subject into a folder of their own"
        for folder, count in sorted(counted.items())
        if count > MODULES_IN_A_FOLDER
    ]


def test_most_files_of_the_product_are_short() -> None:
    sizes = {name: len(path.read_text().splitlines()) for name, path in code_files(PRODUCT)}
    assert not (too_long := over(P95_FILE_LINES, sizes)), too_long


def test_most_functions_of_the_product_are_short() -> None:
    sizes = {
        f"{source.name}:{function.lineno} {function.name}": length(function)
        for source in sources(PACKAGE)
        for function in source.functions()
    }
    assert not (too_long := over(P95_FUNCTION_LINES, sizes)), too_long


def test_a_package_file_is_short() -> None:
    packages = [source for source in sources() if source.path.name == "__init__.py"]
    assert not [source.name for source in packages if len(source.lines) > INIT_LINES]


def test_no_test_is_too_long() -> None:
    assert not [line for source in sources() for line in long_tests(source)]


def test_no_line_is_wider_than_the_limit() -> None:
    measured = code_files(without=NO_WIDTH)
    assert not [line for name, path in measured for line in wide_lines(name, path.read_text())]


def test_no_folder_of_the_product_has_too_many_modules() -> None:
    modules = [path.relative_to(ROOT) for path in files() if path.suffix == ".py" and path.is_relative_to(PACKAGE)]
    assert not crowded(modules)


def test_a_long_test_is_reported_unless_it_defends_itself() -> None:
    body = "\n".join(["def test_f() -> None:", *["    pass"] * TEST_LINES])
    plain = Source(ROOT / "tests" / "f.py", body, ast.parse(body))
    defended = Source(ROOT / "tests" / "f.py", text := f"# Deliberately long: a table.\n{body}", ast.parse(text))
    assert len(long_tests(plain)) == 1
    assert not long_tests(defended)


def test_one_long_file_is_allowed_and_ten_in_a_hundred_are_reported() -> None:
    short = {f"short{number}": 10 for number in range(99)}
    assert not over(350, {**short, "long": 5000})
    report = over(350, {**short, **{f"long{number}": 400 + number for number in range(10)}})
    assert report.startswith("95th percentile is 404 lines, limit 350")
    assert "409 long9" in report


def test_a_wide_line_is_reported_and_a_pragma_does_not_count() -> None:
    assert wide_lines("a.py", "x" * 121) == ["a.py:1: 121 characters, limit 120"]
    assert not wide_lines("a.py", "x" * 120 + "  # noqa: B008 (frozen)")


def test_a_crowded_folder_is_reported_without_its_package_file() -> None:
    modules = [Path("watchkeeper/kit") / f"m{number}.py" for number in range(MODULES_IN_A_FOLDER)]
    assert not crowded([*modules, Path("watchkeeper/kit/__init__.py")])
    assert crowded([*modules, Path("watchkeeper/kit/more.py")])[0].startswith("watchkeeper/kit: 26 modules")
