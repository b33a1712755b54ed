"""The YAML of a prometheus.yml with the line of each key, and its values as text, numbers and sizes.

Scalars stay the text as written, because `on` and `1e3` can be names. The read_* methods convert a value and raise
ValueError if it is invalid.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from watchkeeper.errors import CollectError, quote
from watchkeeper.kit import durations, yaml_text

# `<<: *defaults`
MERGE = "tag:yaml.org,2002:merge"
SIZES = {"": 1, "B": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


class YamlTable(dict[str, Any]):
    """A YAML mapping whose scalars stay the text as written; `lines` has the line of each key."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[str, int] = {}

    @property
    def first_line(self) -> int:
        return min(self.lines.values(), default=0)

    def inherit(self, other: YamlTable) -> None:
        """Copy the keys of the other table that this table does not have."""
        for key in other.keys() - self.keys():
            self[key], self.lines[key] = other[key], other.lines[key]

    def read_texts(self, key: str) -> list[str]:
        value = self.get(key)
        items = value if isinstance(value, list) else [value]
        return [str(item) for item in items if item is not None]

    def read_labels(self, key: str) -> dict[str, str]:
        table = self.get(key)
        items = table.items() if isinstance(table, YamlTable) else ()
        return {name: str(value) for name, value in items if value is not None}

    def read_table(self, key: str) -> YamlTable:
        """The table under a key; empty if the key is absent."""
        table = self.get(key)
        if table is None or isinstance(table, YamlTable):
            return table or YamlTable()
        raise ValueError(f"`{key}` must be a table, found {quote(table)}")

    def read_bool(self, key: str, default: bool) -> bool:
        text = self.get(key)
        if text is None:
            return default
        if str(text).lower() not in ("true", "false"):
            raise ValueError(f"{key} must be true or false, found {quote(text)}")
        return str(text).lower() == "true"

    def read_count(self, key: str) -> int:
        text = str(self.get(key) or "0")
        if not (text.isascii() and text.isdigit() and len(text) < 16):
            raise ValueError(f"{key} must be a whole number, found {quote(text)}")
        return int(text)

    def read_seconds(self, key: str, default: float) -> float:
        text = self.get(key)
        if text is None:
            return default
        try:
            seconds = durations.parse_seconds(str(text))
        except ValueError as error:
            raise ValueError(f"{key}: {error}") from error
        if seconds <= 0:
            raise ValueError(f"{key} must be longer than 0s")
        return seconds

    def read_size(self, key: str) -> int:
        text = str(self.get(key) or "0")
        digits = text.rstrip("BKMGibkmg")
        unit = text[len(digits) :].upper()
        if not (digits.isascii() and digits.isdigit()) or unit not in SIZES:
            raise ValueError(f"{key} must be a size such as 10MB, found {quote(text)}")
        return int(digits) * SIZES[unit]


def parse_file(path: Path) -> YamlTable:
    try:
        root = _convert_node(yaml_text.compose(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8 text"
        raise CollectError(f"cannot be read: {reason}", where=str(path)) from error
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = str(path) if mark is None else f"{path}:{mark.line + 1}"
        raise CollectError(f"not YAML: {getattr(error, 'problem', None) or error}", where=where) from error
    if not isinstance(root, YamlTable):
        raise CollectError("is not a Prometheus configuration: expected keys such as scrape_configs", where=str(path))
    return root


def _convert_node(node: yaml.Node | None) -> Any:
    if isinstance(node, yaml.MappingNode):
        table = YamlTable()
        for key, value in node.value:
            if key.tag == MERGE:
                continue
            table[str(key.value)] = _convert_node(value)
            table.lines[str(key.value)] = key.start_mark.line + 1
        for parent in (value for key, value in node.value if key.tag == MERGE):
            for alias in parent.value if isinstance(parent, yaml.SequenceNode) else [parent]:
                inherited = _convert_node(alias)
                table.inherit(inherited if isinstance(inherited, YamlTable) else YamlTable())
        return table
    if isinstance(node, yaml.SequenceNode):
        return [_convert_node(item) for item in node.value]
    if node is None or node.tag == "tag:yaml.org,2002:null":
        return None
    return str(node.value)
