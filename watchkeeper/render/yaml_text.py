"""Readable YAML: keys in insertion order, block style for long texts, and comments above parts.

Every target writes YAML with `document`, so that all files look alike.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml

WIDTH = 118


@dataclass(frozen=True, slots=True)
class YamlPart:
    """Some keys of the document, with an optional comment above."""

    value: Any
    comment: str = ""


class InlineMapping(dict[str, Any]):
    """A mapping that is written on one line."""


def document(about: str, parts: Sequence[YamlPart]) -> str:
    return comment(about) + "".join("\n" + comment(part.comment) + dump(part.value) for part in parts)


def dump_list(key: str, entries: Sequence[YamlPart]) -> str:
    if not entries:
        return f"{key}: []\n"
    texts = (comment(entry.comment) + dump([entry.value]) for entry in entries)
    return f"{key}:\n" + textwrap.indent("\n".join(texts), "  ", lambda line: bool(line.strip()))


def comment(text: str) -> str:
    """The text as wrapped comment lines; lines that begin with two spaces are not wrapped."""
    lines: list[str] = []
    for line in text.strip("\n").splitlines() if text else []:
        lines += [line] if line.startswith("  ") or not line else textwrap.wrap(line, WIDTH - 2)
    return "".join(f"# {line}".rstrip() + "\n" for line in lines)


def dump(value: Any) -> str:
    return yaml.dump(value, Dumper=_Writer, sort_keys=False, allow_unicode=True, width=WIDTH, default_flow_style=False)


class _Writer(yaml.SafeDumper):
    """A dumper that indents lists and writes no anchors."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002
        return True

    def represent_str(self, text: str) -> yaml.ScalarNode:
        return self.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)

    def represent_inline(self, value: InlineMapping) -> yaml.MappingNode:
        return self.represent_mapping("tag:yaml.org,2002:map", value.items(), flow_style=True)


_Writer.add_representer(str, _Writer.represent_str)
_Writer.add_representer(InlineMapping, _Writer.represent_inline)
