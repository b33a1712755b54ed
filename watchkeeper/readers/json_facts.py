"""Facts out of JSON that may have any shape: what is not as promised is empty or None, never an exception.

`kubernetes_objects` reads objects of an API with these; only an object without a name is refused, because nothing can
be kept of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from sys import intern
from typing import Any

from watchkeeper.errors import CollectError, quote


def count(value: Any) -> int | None:
    """A whole number, as JSON has it or as a quantity; GPUs have no fractions."""
    if isinstance(value, int):
        return value
    text = value.removesuffix("k") if isinstance(value, str) else ""
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        return None
    return int(text) * (1000 if text != value else 1)


def time(value: Any) -> float | None:
    """Seconds since 1970 of an RFC 3339 time."""
    try:
        return datetime.fromisoformat(value).timestamp()
    except (TypeError, ValueError):
        return None


def name_of(about: Mapping[str, Any]) -> str:
    name = about.get("name")
    if not isinstance(name, str) or not name:
        raise CollectError(f"an object without a name: {quote(dict(about))}")
    return name


def text(facts: Mapping[str, Any], name: str, *, intern_it: bool = True) -> str:
    """A text, kept once for all objects that have it; long ones that no other object has need not be."""
    value = facts.get(name)
    if not isinstance(value, str):
        return ""
    return intern(value) if intern_it else value


def mapping(facts: Any, name: str | None = None) -> Mapping[str, Any]:
    """`found` itself, or what stands in it under `name`."""
    value = facts if name is None else facts.get(name) if isinstance(facts, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def items(facts: Mapping[str, Any], name: str) -> Iterable[Any]:
    value = facts.get(name)
    return value if isinstance(value, list) else ()
