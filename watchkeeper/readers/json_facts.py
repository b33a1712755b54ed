"""Read values from untrusted JSON: a missing or malformed value is empty or None, never an exception.

`kubernetes_objects` reads API objects with these functions; only an object without a name is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from sys import intern
from typing import Any

from watchkeeper.errors import CollectError, quote


def count(value: Any) -> int | None:
    """A whole number, from a JSON number or a Kubernetes quantity; None for anything else."""
    if isinstance(value, int):
        return value
    text = value.removesuffix("k") if isinstance(value, str) else ""
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        return None
    return int(text) * (1000 if text != value else 1)


def time(value: Any) -> float | None:
    """An RFC 3339 time in seconds since 1970; None for anything else."""
    try:
        return datetime.fromisoformat(value).timestamp()
    except (TypeError, ValueError):
        return None


def require_name(metadata: Mapping[str, Any]) -> str:
    name = metadata.get("name")
    if not isinstance(name, str) or not name:
        raise CollectError(f"the object has no name: {quote(dict(metadata))}")
    return name


def text(facts: Mapping[str, Any], name: str, *, intern_it: bool = True) -> str:
    """A text value, interned to save memory; pass `intern_it=False` for texts that are unique to an object."""
    value = facts.get(name)
    if not isinstance(value, str):
        return ""
    return intern(value) if intern_it else value


def mapping(facts: Any, name: str | None = None) -> Mapping[str, Any]:
    """`facts` itself, or its value under `name`; empty if that is not a mapping."""
    value = facts if name is None else facts.get(name) if isinstance(facts, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def items(facts: Mapping[str, Any], name: str) -> Iterable[Any]:
    value = facts.get(name)
    return value if isinstance(value, list) else ()


def rows(facts: Any, name: str) -> list[Mapping[str, Any]]:
    """The mappings in the list under `name`; other values are dropped."""
    return [row for row in items(mapping(facts), name) if isinstance(row, Mapping)]
