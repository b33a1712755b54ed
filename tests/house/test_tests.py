"""Tests mirror the package in small folders, and share what lies in tests/support or beside them, and nothing else."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

from tests.house.tree import PACKAGE, Source, sources
from tests.support.paths import ROOT

TESTS = ROOT / "tests"
FOLDER_MODULES = 25
# What is tested in them is no package of the product, or all of it.
OWN_FOLDERS = {"bench", "browser", "examples", "faults", "fuzz", "house", "packaging", "product", "support"}
WAITING = "tests/support/waiting.py"
# Each passes time that is not waited for: what is tested is how long something takes, or that nothing happens.
MAY_SLEEP = {
    "tests/faults/clocks.py": "a clock stands still for some real seconds",
    "tests/faults/lines.py": "a log is written at a program's pace",
    "tests/faults/wire.py": "a wire that delays",
    "tests/hub/test_rule_loops.py": "threads that know nothing of the clock that the test moves",
    "tests/instrument/test_llm_trace.py": "a model that takes its time",
    "tests/net/test_http_tls.py": "a client gives up after some real time",
    "tests/notify/test_digest_delivery.py": "threads need time between two moves of the clock",
    "tests/product/one_of_several.py": "a signal reaches this thread after the others",
    "tests/remediate/test_repair_loop.py": "nothing is done within a second",
    "tests/scrape/test_scrape_bad_input.py": "a target drips",
}
SLEEPS = {"time.sleep", "asyncio.sleep", "sleep"}
# The small hub stands behind every page, and each folder that asks a page imports it.
SMALL_HUB = {
    f"tests.web.{name}" for name in ("small_hub", "small_fleet", "kept_services", "canned_engine", "running", "stories")
}


def module_name(source: Source) -> str:
    return source.name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


MODULES = {module_name(source) for source in sources(TESTS)}


def imported(source: Source) -> Iterator[str]:
    """Modules of tests that it imports."""
    for node in ast.walk(source.syntax):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            inner = {f"{node.module}.{name.name}" for name in node.names} & MODULES
            yield from inner or {node.module} & MODULES


def is_test(module: str) -> bool:
    return module.rpartition(".")[2].startswith("test_")


def is_shared(module: str, importer: str) -> bool:
    """Whether a module lies in the kit, beside the importer, or in a folder above it."""
    folder = module.rpartition(".")[0]
    return module.startswith("tests.support.") or module in SMALL_HUB or importer.startswith(f"{folder}.")


def test_no_test_module_is_imported() -> None:
    assert not [f"{source.name}: {name}" for source in sources() for name in imported(source) if is_test(name)]


def test_what_several_folders_of_tests_share_lies_in_the_kit() -> None:
    assert not [
        f"{source.name}: {name}"
        for source in sources(TESTS)
        for name in imported(source)
        if not is_shared(name, module_name(source))
    ], "move it to tests/support"


def test_a_folder_holds_few_modules() -> None:
    modules = [source.path for source in sources(TESTS) if source.path.stem not in ("__init__", "conftest")]
    counts = Counter(path.parent.relative_to(ROOT).as_posix() for path in modules)
    assert not {folder: count for folder, count in counts.items() if count > FOLDER_MODULES}


def test_folders_of_tests_mirror_the_package() -> None:
    folders = {source.path.parent.relative_to(TESTS) for source in sources(TESTS)}
    assert not [
        str(folder)
        for folder in folders
        if folder.parts[:1] and folder.parts[0] not in OWN_FOLDERS and not (PACKAGE / folder).is_dir()
    ]


def test_tests_wait_for_conditions_and_sleep_nowhere() -> None:
    sleeping = {
        source.name
        for source in sources(TESTS)
        for node in ast.walk(source.syntax)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in SLEEPS
    }
    assert sleeping == {WAITING, *MAY_SLEEP}, "waiting.until, waiting.until_async or waiting.turns"
