"""The hub's settings as a TOML file for another machine: values that differ from the defaults, and overrides.

A setting that names a file of this machine is written as a comment.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any

from watchkeeper.config import loading
from watchkeeper.config import settings as config


def toml(settings: config.Settings, overrides: Mapping[str, Any]) -> str:
    """The TOML text; `overrides` are values by dotted key, None to omit a key."""
    # The hub does not need the settings of `render`.
    sections = [field.name for field in dataclasses.fields(settings) if field.name != "render"]
    tables = {name: list(_lines(name, getattr(settings, name), overrides)) for name in sections}
    return "\n".join("\n".join([f"[{name}]", *lines]) + "\n" for name, lines in tables.items() if lines)


def _lines(section: str, table: Any, overrides: Mapping[str, Any]) -> Iterator[str]:
    for field in dataclasses.fields(table):
        key, value = f"{section}.{field.name}", getattr(table, field.name)
        if key in overrides:
            if overrides[key] is not None:
                yield f"{field.name} = {_toml_value(overrides[key])}"
        elif value == field.default:
            continue
        elif key in loading.PATH_KEYS:
            yield f"# Omitted: {field.name} = {_toml_value(value)}: files of another machine. Mount them and set it."
        else:
            yield f"{field.name} = {_toml_value(value)}"


def _toml_value(value: Any) -> str:
    """Format a value: strings, numbers, lists and booleans of JSON are valid TOML."""
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)
