"""Nothing is depended on that nobody uses, nothing is used that nobody declares, and every licence is known."""

from __future__ import annotations

import ast
import re
import sys
from importlib import metadata

import pytest

from tests.house import dependencies
from tests.support.paths import ROOT

# Permissive, or bound to their own files: none of them asks anything of programs that use them.
FREE = re.compile(r"MIT|BSD|Apache|PSF|ISC|Zlib|CC0|0BSD|MPL|Mozilla Public License 2\.0|Python Software Foundation")
# Used without an import of ours: uvicorn takes them where they are.
TAKEN_BY_OTHERS = {"httptools", "websockets"}
# Asked for when they are there, and done without when not.
OPTIONAL = {"psycopg", "pyarrow", "textual", "torch", "triton"}
# Of later versions of Python than this one may be.
LATER = {"compression"}


def imported() -> set[str]:
    """The outermost name of every module that the product imports, wherever in a file."""
    modules: set[str] = set()
    for path in (ROOT / "watchkeeper").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import):
                modules |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                modules.add(node.module.partition(".")[0])
    return modules


def declared() -> set[str]:
    project = dependencies.project()
    return {
        dependencies.normal(re.split(r"[<>=;\[ ]", requirement)[0])
        for requirement in [*project["agent"], *project["hub"]]
    }


@pytest.mark.slow
def test_every_dependency_of_the_product_is_used_by_it() -> None:
    modules = imported()
    provided = {
        name: {
            module for module, who in metadata.packages_distributions().items() if name in map(dependencies.normal, who)
        }
        for name in declared()
    }
    unused = {name for name, own in provided.items() if not own & modules} - TAKEN_BY_OTHERS
    assert not unused, "take them out of pyproject.toml"


@pytest.mark.slow
def test_everything_that_the_product_imports_is_declared() -> None:
    providers = metadata.packages_distributions()
    foreign = imported() - set(sys.stdlib_module_names) - {"watchkeeper"} - OPTIONAL - LATER
    undeclared = {name for name in foreign if not declared() & set(map(dependencies.normal, providers.get(name, [])))}
    assert not undeclared, "name them in pyproject.toml"


def test_the_lock_has_no_package_that_nobody_wants() -> None:
    project = dependencies.project()
    direct = {
        dependencies.normal(re.split(r"[<>=;\[ ]", requirement)[0])
        for requirement in [*project["agent"], *project["hub"], *project["dev"]]
    }
    installed = {dependencies.normal(distribution.metadata["Name"]) for distribution in metadata.distributions()}
    if absent := direct & set(dependencies.locked()) - installed:
        pytest.skip(f"nobody can say what {sorted(absent)} need before `scripts/bootstrap dev` has installed them")
    every = dependencies.required_versions([requirement for some in project.values() for requirement in some])
    assert set(dependencies.locked()) <= set(every), "run `make lock`"


def test_the_licence_of_everything_that_is_shipped_is_known_and_free() -> None:
    project = dependencies.project()
    shipped = dependencies.required_versions([*project["agent"], *project["hub"]])
    licences = {name: dependencies.licence(name) for name in shipped if name in dependencies.locked()}
    assert {name: text for name, text in licences.items() if not FREE.search(text)} == {}


def test_what_is_shipped_is_locked() -> None:
    project = dependencies.project()
    assert set(dependencies.required_versions([*project["agent"], *project["hub"]])) <= set(dependencies.locked())
