"""Imports point down, and the agent stays small."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.tree import PACKAGE, sources
from tests.support.paths import ROOT

HEAVY = {"numpy", "yaml", "re2", "orjson", "rich", "starlette", "uvicorn", "click", "sqlite3"}
LAW_LINES = 8
CLOCK_OWNERS = ("hub/hub.py", "agent/agent.py", "kit/clock.py", "sim/", "cli/")
CLOCK_READS = {"time.time", "datetime.now", "datetime.utcnow", "datetime.datetime.now"}


def test_imports_point_down_and_stages_are_strangers() -> None:
    lint = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert lint.returncode == 0, lint.stdout + lint.stderr


def test_the_agent_imports_nothing_heavy() -> None:
    program = "import json, sys, watchkeeper.agent.agent; print(json.dumps(sorted(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    loaded = {name.partition(".")[0] for name in json.loads(ran.stdout)}
    assert not loaded & HEAVY


def test_every_module_tells_its_story_and_every_package_its_law() -> None:
    silent = [source.name for source in sources(PACKAGE) if not ast.get_docstring(source.syntax)]
    assert not silent, "a module docstring says the idea, who calls it, and where the value goes next"


def test_a_package_file_holds_a_short_law_and_nothing_else() -> None:
    circles = []
    for source in (source for source in sources(PACKAGE) if source.path.name == "__init__.py"):
        law = (ast.get_docstring(source.syntax) or "").splitlines()
        if len(law) > LAW_LINES or any(source.definitions()):
            circles.append(f"{source.name}: {len(law)} lines of law, limit {LAW_LINES}")
    assert not circles


@pytest.mark.slow
def test_only_the_owners_of_a_clock_read_it() -> None:
    calls = [
        f"{source.name}:{node.lineno} {ast.unparse(node.func)}"
        for source in sources(PACKAGE)
        if not source.path.relative_to(PACKAGE).as_posix().startswith(CLOCK_OWNERS)
        for node in ast.walk(source.syntax)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in CLOCK_READS
    ]
    assert not calls, "`now` is a parameter"
