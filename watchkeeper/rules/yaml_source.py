"""YAML values with their lines, and the positions of expressions inside them, for error messages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import yaml

BLOCK_STYLES = frozenset({"|", ">"})


@dataclass(frozen=True, slots=True)
class YamlEntry:
    """A YAML value, and the line (from 1) of its key or dash."""

    node: yaml.Node
    line: int

    @classmethod
    def from_node(cls, node: yaml.Node) -> YamlEntry:
        return cls(node, node.start_mark.line + 1)

    @property
    def is_null(self) -> bool:
        return isinstance(self.node, yaml.ScalarNode) and self.node.tag == "tag:yaml.org,2002:null"

    @property
    def is_text(self) -> bool:
        """Whether the value is a scalar; numbers and yes/no count as text, as in Prometheus."""
        return isinstance(self.node, yaml.ScalarNode)

    @property
    def text(self) -> str:
        return "" if self.is_null or not self.is_text else str(self.node.value)


def mapping_entries(node: yaml.MappingNode) -> Iterator[tuple[str, YamlEntry]]:
    for key, value in node.value:
        yield str(key.value), YamlEntry(value, key.start_mark.line + 1)


@dataclass(frozen=True, slots=True)
class YamlSource:
    path: str
    text: str

    def position(self, entry: YamlEntry, expression: str, *, at: tuple[int, int]) -> tuple[int, int]:
        """Convert a line and column in an expression to those in the file, both from 1."""
        # YAML may fold lines and strip indents, but it keeps every character that is not white space.
        lines = expression.split("\n")
        before = "".join(lines[: at[0] - 1]) + lines[min(at[0], len(lines)) - 1][: at[1] - 1]
        visible_before = sum(not character.isspace() for character in before)
        positions = list(self._visible_positions(entry.node))
        if visible_before < len(positions):
            return positions[visible_before]
        return positions[-1][0], positions[-1][1] + 1

    def _visible_positions(self, node: yaml.Node) -> Iterator[tuple[int, int]]:
        """The line and column of each character of a value that is not white space."""
        start, end, source = node.start_mark, node.end_mark, self.text.split("\n")
        style = node.style if isinstance(node, yaml.ScalarNode) else None
        is_block = style in BLOCK_STYLES
        for line in range(start.line + is_block, min(end.line + 1, len(source))):
            first = start.column + bool(style) if line == start.line else 0
            last = end.column - (bool(style) and not is_block) if line == end.line else None
            for column, character in enumerate(source[line][first:last], first):
                if not character.isspace():
                    yield line + 1, column + 1
