"""Nothing asks an engine, a store or an appender what it has: what they can do is declared, and mypy sees each call."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.house.tree import PACKAGE, sources

STAGES = ("drill", "hub", "query", "rules", "scrape", "store", "web")
# Deliberately allowed, each because the object is of somebody else's class.
FOREIGN = {
    "getattr(error, 'problem', None)": "an error of PyYAML may have no words of its own",
    "getattr(error, 'problem_mark', None)": "an error of PyYAML may have no place",
    "getattr(error, 'reason', None)": "only an error of ssl has a reason",
    "getattr(kind, '__supertype__', kind)": "of types only a NewType has another one behind it",
    "getattr(owner, '__name__', '')": "not each type of typing has a name",
    "getattr(peer, 'ipv4_mapped', None)": "of addresses only those of IPv6 have one of IPv4 in them",
}


def probes(syntax: ast.AST) -> Iterator[str]:
    """Calls that ask whether there is an attribute, and classes that answer for attributes they do not declare.

    `getattr` with two arguments is none: it fails where there is no such field.
    """
    for node in ast.walk(syntax):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name == "hasattr" or (name == "getattr" and len(node.args) == 3):
                yield ast.unparse(node)
        elif isinstance(node, ast.FunctionDef) and node.name in ("__getattr__", "__getattribute__"):
            yield node.name


def test_no_engine_and_no_store_is_probed() -> None:
    calls = [
        f"{source.name}: {probe}"
        for stage in STAGES
        for source in sources(PACKAGE / stage)
        for probe in probes(source.syntax)
        if probe not in FOREIGN
    ]
    assert not calls, "declare it in store/interfaces.py or query/engine.py, None where it is absent"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('getattr(engine, "append", None)', ["getattr(engine, 'append', None)"]),
        ('hasattr(engine, "append")', ["hasattr(engine, 'append')"]),
        ("def __getattr__(self, name): ...", ["__getattr__"]),
        ("getattr(status, name)", []),
    ],
)
def test_a_field_read_by_its_name_is_no_probe(line: str, expected: list[str]) -> None:
    assert list(probes(ast.parse(line))) == expected
