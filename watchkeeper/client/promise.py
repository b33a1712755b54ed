"""What a hub's answers hold, by the API's own document: an answer of another shape is no hub's.

`HubClient` asks here about every answer, so that no command meets a list where it wants an object. `promised.json` is
written from the hub's table of endpoints (`make golden`). Only what an answer has is looked at: fields that it lacks
are told when somebody asks for them, and fields and words that are new are passed over, as within a version of the
API things are only added.
"""

from __future__ import annotations

import json
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


def broken(method: str, path: str, answer: Any) -> str | None:
    """What of an answer is not as the API promises it, or None; `path` may have a query."""
    shape = _promised(method, path.partition("?")[0])
    return None if shape is None else _problem(shape, answer, "")


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


def _problem(shape: dict[str, Any], value: Any, where: str) -> str | None:
    if "$ref" in shape:
        return _problem(_document()["schemas"][shape["$ref"].rpartition("/")[2]], value, where)
    if "anyOf" in shape:
        found = [_problem(each, value, where) for each in shape["anyOf"]]
        return None if None in found else found[0]
    if "allOf" in shape:
        return _first(_problem(each, value, where) for each in shape["allOf"])
    if "enum" in shape:
        is_alike = type(value) in {type(word) for word in shape["enum"]}
        return None if is_alike else _told(where, f"one of {', '.join(map(str, shape['enum']))}", value)
    if "type" not in shape:
        return None
    kinds, called = KINDS[shape["type"]]
    if type(value) not in kinds and not (dict in kinds and isinstance(value, dict)):
        return _told(where, called, value)
    if isinstance(value, dict):
        return _in_object(shape, value, where)
    if isinstance(value, list):
        return _in_list(shape, value, where)
    return _told(where, "a time", value) if "format" in shape and not _is_time(value) else None


def _in_object(shape: dict[str, Any], value: dict[str, Any], where: str) -> str | None:
    fields, others = shape.get("properties", {}), shape.get("additionalProperties", {})
    return _first(
        _problem(fields.get(name, others), held, f"{where}.{name}" if where else name) for name, held in value.items()
    )


def _in_list(shape: dict[str, Any], value: list[Any], where: str) -> str | None:
    if "prefixItems" not in shape:
        each = shape.get("items", {})
        return _first(_problem(each, held, f"{where}[{at}]") for at, held in enumerate(value))
    wanted = shape["prefixItems"]
    if len(value) != len(wanted):
        return _told(where, f"a list of {len(wanted)}", value)
    return _first(
        _problem(kind, held, f"{where}[{at}]") for at, (kind, held) in enumerate(zip(wanted, value, strict=True))
    )


def _first(problems: Any) -> str | None:
    return next((problem for problem in problems if problem is not None), None)


def _told(where: str, wanted: str, value: Any) -> str:
    return f"{f'`{where}` of the answer' if where else 'the answer'} should be {wanted} and is {quote(value)}"


def _is_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True
