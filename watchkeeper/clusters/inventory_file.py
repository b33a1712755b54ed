"""Read the inventory file (TOML or YAML): the expected nodes, their place and pool, and the owners of workloads.

    [[nodes]]
    match = ["gpu-r[01-16]-[01-04]"]     # names, ranges as Slurm writes them, or patterns with *
    rack = "r{1}"                        # {1} is the part that the first bracket matched
    leaf = "leaf-{1}"
    pool = "training"
    expected_gpus = 8

    [[teams]]
    team = "llm"
    namespaces = ["research", "research-*"]
    accounts = ["llm"]

If several rows match a node, each fact comes from the first row that has it; for teams the first matching row is used.
`NodeInventory` reloads the file when it changes. Errors name the file and the row.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

from watchkeeper.errors import SettingsError
from watchkeeper.kit import yaml_text
from watchkeeper.readers.clusters import hostlist

MAX_BYTES = 8 * 1024 * 1024
MAX_ROWS = 20_000
DOMAINS = ("rack", "leaf", "nvlink", "power", "row", "zone")
NODE_KEYS = frozenset({"match", "cluster", "pool", "expected_gpus", "aliases", "domains", *DOMAINS})
TEAM_KEYS = frozenset({"team", "project", "namespaces", "accounts", "users", "labels"})
WILDCARDS = frozenset("*?")


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One [[nodes]] row. Nodes in `names` are expected to exist; `patterns` only describe nodes from other sources."""

    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    patterns: tuple[str, ...] = ()
    cluster: str | None = None
    pool: str = ""
    expected_gpus: int | None = None
    domains: Mapping[str, str] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()

    def matches(self, cluster: str, name: str) -> bool:
        if self.cluster is not None and self.cluster != cluster:
            return False
        return name in self.names or any(fnmatchcase(name, pattern) for pattern in self.patterns)

    def fill(self, text: str, name: str) -> str:
        """Replace `{1}` in `r{1}` with the part of the node's name that the first bracket matched."""
        for number, part in enumerate(self.names.get(name, ()), 1):
            text = text.replace(f"{{{number}}}", part)
        return text


@dataclass(frozen=True, slots=True)
class TeamRow:
    """One [[teams]] row; it matches a workload by any of its lists, or by all of its labels."""

    team: str
    project: str = ""
    namespaces: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)

    def matches(self, *, namespace: str, account: str, user: str, labels: Mapping[str, str]) -> bool:
        for patterns, value in ((self.namespaces, namespace), (self.accounts, account), (self.users, user)):
            if value and any(fnmatchcase(value, pattern) for pattern in patterns):
                return True
        return bool(self.labels) and all(labels.get(name) == value for name, value in self.labels.items())


@dataclass(frozen=True, slots=True)
class InventoryFile:
    nodes: tuple[NodeRow, ...] = ()
    teams: tuple[TeamRow, ...] = ()
    # Row indexes by node name; rows with patterns are under "". A fleet has thousands of either.
    by_name: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def matching_rows(self, cluster: str, name: str) -> list[NodeRow]:
        """The rows that match a node, in the order of the file."""
        indexes = {*self.by_name.get(name, ()), *self.by_name.get("", ())}
        return [self.nodes[index] for index in sorted(indexes) if self.nodes[index].matches(cluster, name)]


def read(path: Path) -> InventoryFile:
    """Read and validate the file; SettingsError names the file and the row."""
    loaded = _load(path)
    where = str(path)
    if not isinstance(loaded, dict):
        raise SettingsError("expected the tables `nodes` and `teams`", where=where)
    if unknown := sorted(loaded.keys() - {"nodes", "teams"}):
        problem = f"`{unknown[0]}` is not a table of the inventory file"
        raise SettingsError(problem, where=where, remedy="Use nodes or teams")
    nodes = [_parse_node_row(table, row_where) for table, row_where in _rows(loaded, "nodes", where)]
    teams = [_parse_team_row(table, row_where) for table, row_where in _rows(loaded, "teams", where)]
    by_name: dict[str, list[int]] = {}
    for index, node in enumerate(nodes):
        for name in (*node.names, *([""] if node.patterns else [])):
            by_name.setdefault(name, []).append(index)
    return InventoryFile(tuple(nodes), tuple(teams), {name: tuple(indexes) for name, indexes in by_name.items()})


def _load(path: Path) -> Any:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SettingsError(f"cannot be read: {error.strerror}", where=str(path)) from error
    if len(content) > MAX_BYTES:
        raise SettingsError(f"has {len(content):,} bytes, the limit is {MAX_BYTES:,}", where=str(path))
    kind = "YAML" if path.suffix in (".yml", ".yaml") else "TOML"
    try:
        return yaml_text.load(content) if kind == "YAML" else tomllib.loads(content.decode())
    except (yaml.YAMLError, ValueError) as error:
        raise SettingsError(f"is not {kind}: {error}", where=str(path)) from error


def _rows(loaded: Mapping[str, Any], table: str, where: str) -> list[tuple[Mapping[str, Any], str]]:
    rows = loaded.get(table) or []
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise SettingsError(f"`{table}` must be a list of tables", where=where)
    if len(rows) > MAX_ROWS:
        raise SettingsError(f"`{table}` has {len(rows):,} rows, the limit is {MAX_ROWS:,}", where=where)
    return [(row, f"{where}: {table}[{number}]") for number, row in enumerate(rows, 1)]


def _parse_node_row(row: Mapping[str, Any], where: str) -> NodeRow:
    _check_keys(row, NODE_KEYS, where)
    names: dict[str, tuple[str, ...]] = {}
    patterns: list[str] = []
    for text in _texts(row, "match", where):
        if WILDCARDS.intersection(text):
            patterns.append(text)
            continue
        try:
            names |= {host.name: host.parts for host in hostlist.expand_parts(text)}
        except hostlist.BadHostlist as error:
            raise SettingsError(str(error), where=f"{where}.match") from error
    if not names and not patterns:
        raise SettingsError("the row matches no node", where=f"{where}.match", remedy='Write match = ["gpu-[01-16]"]')
    expected = row.get("expected_gpus")
    is_count = isinstance(expected, int) and not isinstance(expected, bool) and 0 <= expected < 1024
    if expected is not None and not is_count:
        raise SettingsError(f"`{expected}` is not a count from 0 to 1023", where=f"{where}.expected_gpus")
    domains = _pairs(row, "domains", where) | {name: _text(row, name, where) for name in DOMAINS if row.get(name)}
    return NodeRow(
        names,
        tuple(patterns),
        cluster=_text(row, "cluster", where) or None,
        pool=_text(row, "pool", where),
        expected_gpus=expected,
        domains=domains,
        aliases=_texts(row, "aliases", where),
    )


def _parse_team_row(row: Mapping[str, Any], where: str) -> TeamRow:
    _check_keys(row, TEAM_KEYS, where)
    team = _text(row, "team", where)
    if not team:
        raise SettingsError("the row has no team", where=f"{where}.team")
    lists = {name: _texts(row, name, where) for name in ("namespaces", "accounts", "users")}
    labels = _pairs(row, "labels", where)
    if not any(lists.values()) and not labels:
        remedy = "Add namespaces, accounts, users or labels"
        raise SettingsError(f"the team `{team}` matches no workload", where=where, remedy=remedy)
    return TeamRow(team, _text(row, "project", where), labels=labels, **lists)


def _check_keys(row: Mapping[str, Any], allowed: frozenset[str], where: str) -> None:
    if unknown := sorted(str(key) for key in row if key not in allowed):
        remedy = f"Use {', '.join(sorted(allowed))}"
        raise SettingsError(f"unknown key `{unknown[0][:60]}`", where=where, remedy=remedy)


def _text(row: Mapping[str, Any], name: str, where: str) -> str:
    value = row.get(name, "")
    if not isinstance(value, str) or not value.isprintable() or len(value) > 253:
        raise SettingsError("expected a name of at most 253 printable characters", where=f"{where}.{name}")
    return value


def _texts(row: Mapping[str, Any], name: str, where: str) -> tuple[str, ...]:
    value = row.get(name, [])
    texts: Sequence[Any] = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise SettingsError("expected a list of names", where=f"{where}.{name}")
    return tuple(texts)


def _pairs(row: Mapping[str, Any], name: str, where: str) -> dict[str, str]:
    value = row.get(name, {})
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise SettingsError("expected a table of names with text values", where=f"{where}.{name}")
    return {str(key): text for key, text in value.items()}
