"""The hub's settings as a TOML file for another machine: what differs from the defaults, and what that machine needs.

A setting that names a file of this machine cannot go along; it is named in a comment, so that nobody misses it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any

from watchkeeper.config import loading
from watchkeeper.config import settings as config

# Not the hub's: what `render` itself is told.
LEFT_OUT = frozenset({"render"})


def toml(settings: config.Settings, there: Mapping[str, Any]) -> str:
    """The file; `there` are dotted keys that have another value there, or None where they have none."""
    sections = [field.name for field in dataclasses.fields(settings) if field.name not in LEFT_OUT]
    tables = {name: list(_lines(name, getattr(settings, name), there)) for name in sections}
    return "\n".join("\n".join([f"[{name}]", *lines]) + "\n" for name, lines in tables.items() if lines)


def _lines(section: str, table: Any, there: Mapping[str, Any]) -> Iterator[str]:
    for field in dataclasses.fields(table):
        key, value = f"{section}.{field.name}", getattr(table, field.name)
        if key in there:
            if there[key] is not None:
                yield f"{field.name} = {_written(there[key])}"
        elif value == field.default:
            continue
        elif key in loading.PATH_KEYS:
            yield f"# Not here: {field.name} = {_written(value)}, which names files of another machine. Mount them."
        else:
            yield f"{field.name} = {_written(value)}"


def _written(value: Any) -> str:
    """JSON's texts, numbers, lists and booleans are TOML's; text of other scripts is left readable."""
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)
