"""Every number that the console shows has one definition, and its owner exists."""

from __future__ import annotations

import ast
import re
from collections import Counter

import pytest

from tests.house import generate_api
from tests.house.generate import RULE_FILES, commands, declared_metrics
from tests.house.tree import PACKAGE
from tests.support.numbers import definitions

DEFINED = definitions.definitions()


def test_every_number_of_the_console_is_defined_for_its_page() -> None:
    defined = {(page, row.number) for row in DEFINED for page in row.pages}
    shown = set(definitions.shown_numbers())
    assert len(shown) > 60
    assert shown - defined == set(), "add a row to docs/reference/definitions.csv"
    assert defined - shown == set(), "no tile, column or chart has this label any more"


def test_a_new_tile_or_column_is_found() -> None:
    source = """
      <Tile id="a" name="Ghost GPUs" value={x} /> <Tile name={`Seen, ${span}`} value={y} />
      const COLUMNS = [{ id: "x", title: "Wasted", numeric: true }, { id: "y", title: "State" }];
    """
    assert definitions.labels(source) == ["Ghost GPUs", "Seen", "Wasted"]


def test_a_number_has_one_definition_on_a_page() -> None:
    counted = Counter((page, row.number) for row in DEFINED for page in row.pages or ("",))
    assert [key for key, count in counted.items() if count > 1] == []
    assert all(row.definition and row.owner for row in DEFINED)


@pytest.mark.parametrize("owner", sorted({row.owner for row in DEFINED}))
def test_the_owner_of_a_number_exists(owner: str) -> None:
    if owner.startswith("watchkeeper."):
        path = definitions.module_path(owner)
        assert path.is_file(), owner
        defined = {name for node in ast.parse(path.read_text(encoding="utf-8")).body for name in _names(node)}
        assert not owner.partition(":")[2] or owner.partition(":")[2] in defined, owner
    elif owner.startswith("watchkeeper:"):
        assert any(f"record: {owner}\n" in path.read_text(encoding="utf-8") for path in RULE_FILES.glob("*.yaml")), (
            owner
        )
    else:
        assert f",{owner}," in (PACKAGE / "packs" / "dcgm_fields.csv").read_text(encoding="utf-8"), owner


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.AnnAssign | ast.Assign):
        targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
        return [target.id for target in targets if isinstance(target, ast.Name)]
    return []


def test_the_endpoints_commands_and_metrics_that_definitions_name_exist() -> None:
    text = "\n".join(row.also for row in DEFINED)
    assert set(re.findall(r"/api/[a-z0-9/_{}]+[a-z0-9}]", text)) <= generate_api.document()["paths"].keys()
    assert set(re.findall(r"`(watchkeeper [a-z]+)", text)) <= commands().keys()
    own = {name for name, _, _ in declared_metrics()}
    assert set(re.findall(r"watchkeeper_[a-z_]+", text)) <= own
    recorded = "\n".join(path.read_text(encoding="utf-8") for path in RULE_FILES.glob("*.yaml"))
    assert [name for name in re.findall(r"watchkeeper:[a-z_:]+", text) if f"record: {name}\n" not in recorded] == []
