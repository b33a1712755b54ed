"""`make test-fast` proves something of every package."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

import pytest

from tests.house.tree import PACKAGE, Source, sources
from tests.support.paths import ROOT

NOT_FAST = {"slow", "servers", "alone"}


def has_slow_mark(marks: Iterable[ast.expr]) -> bool:
    return any(isinstance(node, ast.Attribute) and node.attr in NOT_FAST for mark in marks for node in ast.walk(mark))


def has_fast_test(source: Source) -> bool:
    assigned = [statement for statement in source.syntax.body if isinstance(statement, ast.Assign)]
    if has_slow_mark(assignment.value for assignment in assigned if ast.unparse(assignment.targets[0]) == "pytestmark"):
        return False
    tests = [function for function in source.functions() if function.name.startswith("test_")]
    return any(not has_slow_mark(function.decorator_list) for function in tests)


def packages_of(source: Source) -> Iterator[str]:
    """`from watchkeeper.store import rows` and `from watchkeeper import store` are of store."""
    for statement in source.syntax.body:
        if isinstance(statement, ast.ImportFrom) and statement.module == "watchkeeper":
            yield from (name.name for name in statement.names)
        elif (
            isinstance(statement, ast.ImportFrom)
            and statement.module is not None
            and statement.module.startswith("watchkeeper.")
        ):
            yield statement.module.split(".")[1]


@pytest.mark.slow
def test_every_package_has_tests_that_run_while_people_work() -> None:
    proven = {name for source in sources(ROOT / "tests") if has_fast_test(source) for name in packages_of(source)}
    assert {path.parent.name for path in PACKAGE.glob("*/__init__.py")} - proven == set()
