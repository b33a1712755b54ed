"""What a hub's answers hold, by the API's own document: an answer of another shape is no hub's.

`HubClient` asks here about every answer, so that no command meets a list where it wants an object. `promised.json` is
written from the hub's table of endpoints (`make golden`). Only what an answer has is looked at: fields that it lacks
are told when somebody asks for them, and fields and words that are new are passed over, as within a version of the
API things are only added.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from watchkeeper.errors import quote

FILE = Path(__file__).with_name("promised.json")
# JSON's kinds as Python reads them: a boolean is no number.
KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "string": ((str,), "text"),
    "integer": ((int,), "a whole number"),
    "number": ((int, float), "a number"),
    "boolean": ((bool,), "true or false"),
    "null": ((type(None),), "null"),
    "object": ((dict,), "an object"),
    "array": ((list,), "a list"),
}


@dataclass(slots=True)
class _Problem:
    """Something that is of another kind than it should be; `steps` lead to it, the last one first."""

    wanted: str
    value: Any
    steps: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        place = "".join(reversed(self.steps)).lstrip(".")
        named = f"`{place}` of the answer" if place else "the answer"
        return f"{named} should be {self.wanted} and is {quote(self.value)}"


def broken(method: str, path: str, answer: Any) -> str | None:
    """What of an answer is not as the API promises it, or None; `path` may have a query."""
    shape = _promised(method, path.partition("?")[0])
    found = None if shape is None else _problem(shape, answer)
    return None if found is None else str(found)


@cache
def _document() -> dict[str, dict[str, Any]]:
    document: dict[str, dict[str, Any]] = json.loads(FILE.read_text())
    return document


def _promised(method: str, path: str) -> Any:
    """The shape of what is answered there; of two ways to read a path the one with more words of its own."""
    fits = [row for row in _document()["answers"] if row.startswith(f"{method} ") and _fits(row.split(" ")[1], path)]
    return _document()["answers"][min(fits, key=lambda row: row.count("{"))] if fits else None


def _fits(row: str, path: str) -> bool:
    wanted, given = row.split("/"), path.split("/")
    if wanted[-1].endswith(":path}"):
        # The last name takes whatever is left, with slashes.
        given[len(wanted) - 1 :] = ["/".join(given[len(wanted) - 1 :])]
    return len(wanted) == len(given) and all(
        ours == theirs or ours.startswith("{") for ours, theirs in zip(wanted, given, strict=True)
    )


def _problem(shape: dict[str, Any], value: Any) -> _Problem | None:
    kind = shape.get("type")
    if kind is None:
        return _in_choice(shape, value)
    kinds, called = KINDS[kind]
    is_alike = isinstance(value, kinds) and (type(value) is not bool or kind == "boolean")
    if not is_alike:
        return _Problem(called, value)
    if kind == "object":
        return _in_object(shape, value)
    if kind == "array":
        return _in_list(shape, value)
    return _Problem("a time", value) if "format" in shape and not _is_time(value) else None


def _in_choice(shape: dict[str, Any], value: Any) -> _Problem | None:
    if "$ref" in shape:
        return _problem(_document()["schemas"][shape["$ref"].rpartition("/")[2]], value)
    if "enum" in shape:
        is_alike = type(value) in {type(word) for word in shape["enum"]}
        return None if is_alike else _Problem(f"one of {', '.join(map(str, shape['enum']))}", value)
    found = [_problem(each, value) for each in shape.get("anyOf", ())]
    if found:
        return None if None in found else found[0]
    return next((one for each in shape.get("allOf", ()) if (one := _problem(each, value)) is not None), None)


def _in_object(shape: dict[str, Any], value: dict[str, Any]) -> _Problem | None:
    fields, others = shape.get("properties", {}), shape.get("additionalProperties", {})
    for name, held in value.items():
        if (found := _problem(fields.get(name, others), held)) is not None:
            found.steps.append(f".{name}")
            return found
    return None


def _in_list(shape: dict[str, Any], value: list[Any]) -> _Problem | None:
    wanted = shape.get("prefixItems")
    if wanted is not None and len(value) != len(wanted):
        return _Problem(f"a list of {len(wanted)}", value)
    each = shape.get("items", {})
    for at, held in enumerate(value):
        if (found := _problem(each if wanted is None else wanted[at], held)) is not None:
            found.steps.append(f"[{at}]")
            return found
    return None


def _is_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True
