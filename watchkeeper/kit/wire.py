"""Convert our dataclasses to JSON and back.

Used for everything that is sent or stored; standard library only, because the agent uses it too. Decoding reads the
type hints, checks everything and reports all problems together, each with its dotted path.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from functools import cache
from typing import Any, TypeVar

from watchkeeper.errors import WireError, quote

T = TypeVar("T")

# The types of nine in ten values; checked first, because a storm of events is encoded here.
JSON_SCALARS = frozenset({str, int, float, bool, type(None)})


def to_plain(value: Any) -> Any:
    """Convert dataclasses, enums, times and containers to values that `json` can write; None fields are kept."""
    kind: Any = type(value)
    if kind in JSON_SCALARS:
        return value
    if _is_record(kind):
        return {key: to_plain(getattr(value, name)) for key, name in field_names(kind).items()}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return format_time(value)
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_plain(item) for item in value]
    return value


def dumps(value: Any) -> str:
    """Compact JSON with sorted keys: equal values give equal text, which the journal's hash needs."""
    return json.dumps(to_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def loads(kind: type[T], text: str | bytes) -> T:
    """Decode JSON text into `kind`, or raise WireError with every problem found."""
    try:
        plain = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WireError((f"not JSON: {error}",)) from error
    return from_plain(kind, plain)


def from_plain(kind: type[T], plain: Any, *, path: str = "") -> T:
    """Build `kind` from plain values, or raise WireError with every problem found."""
    problems: list[str] = []
    value = _build(kind, plain, path, problems)
    if problems:
        raise WireError(tuple(problems))
    return typing.cast(T, value)


def format_time(at: datetime) -> str:
    """RFC 3339 in UTC with microseconds: sorts as text in the order of time."""
    utc = at if at.tzinfo is UTC else at.astimezone(UTC)
    # Not strftime, which writes the year 999 with three digits.
    return utc.isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


def parse_time(text: str) -> datetime:
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise ValueError("has no time zone; end it with Z for UTC")
    return at.astimezone(UTC)


@cache
def _is_record(kind: type) -> bool:
    return dataclasses.is_dataclass(kind)


def json_key(key: str, **options: Any) -> Any:
    """A dataclass field whose JSON key is `key`, for a key that must not change when the field is renamed."""
    return dataclasses.field(metadata={"json_key": key}, **options)


@cache
def field_names(kind: type) -> dict[str, str]:
    return {field.metadata.get("json_key", field.name): field.name for field in dataclasses.fields(kind) if field.init}


@cache
def field_types(kind: type) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {key: hints[name] for key, name in field_names(kind).items()}


def fields_of(record: Any) -> dict[str, Any]:
    kind: Any = type(record)
    return {key: getattr(record, name) for key, name in field_names(kind).items()}


def _add_problem(problems: list[str], path: str, problem: str) -> None:
    problems.append(f"{path}: {problem}" if path else problem)


def _build(kind: Any, plain: Any, path: str, problems: list[str]) -> Any:
    """Build a value by its type hint; problems are collected, never raised."""
    kind = getattr(kind, "__supertype__", kind)
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return plain
    if origin in (typing.Union, types.UnionType):
        return _build_union(args, plain, path, problems)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _build_dataclass(kind, plain, path, problems)
    if origin in (tuple, list, frozenset, Sequence):
        return _build_sequence(origin, args, plain, path, problems)
    if origin in (dict, Mapping):
        return _build_mapping(args, plain, path, problems)
    return _build_leaf(kind, plain, path, problems)


def _build_union(args: tuple[Any, ...], plain: Any, path: str, problems: list[str]) -> Any:
    if plain is None and type(None) in args:
        return None
    choices = [arg for arg in args if arg is not type(None)]
    for choice in choices[:-1]:
        choice_problems: list[str] = []
        value = _build(choice, plain, path, choice_problems)
        if not choice_problems:
            return value
    return _build(choices[-1], plain, path, problems)


def _build_dataclass(kind: type, plain: Any, path: str, problems: list[str]) -> Any:
    if not isinstance(plain, Mapping):
        _add_problem(problems, path, f"expected a table, found {quote(plain)}")
        return None
    names, types_by_key, values, problems_before = field_names(kind), field_types(kind), {}, len(problems)
    required = {
        field.name
        for field in dataclasses.fields(kind)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }
    for key in plain:
        if key not in names:
            _add_problem(problems, f"{path}.{key}".lstrip("."), f"unknown key; valid keys: {', '.join(names)}")
    for key, name in names.items():
        if key in plain:
            values[name] = _build(types_by_key[key], plain[key], f"{path}.{key}".lstrip("."), problems)
        elif name in required:
            _add_problem(problems, f"{path}.{key}".lstrip("."), "is missing")
    if len(problems) > problems_before:
        return None
    try:
        return kind(**values)
    except ValueError as error:
        _add_problem(problems, path, str(error))
        return None


def _build_sequence(origin: Any, args: tuple[Any, ...], plain: Any, path: str, problems: list[str]) -> Any:
    if not isinstance(plain, (list, tuple)):
        _add_problem(problems, path, f"expected a list, found {quote(plain)}")
        return None
    if origin is tuple and not (len(args) == 2 and args[1] is Ellipsis):
        if len(plain) != len(args):
            _add_problem(problems, path, f"expected {len(args)} items, found {len(plain)}")
            return None
        return tuple(
            _build(arg, item, f"{path}[{index}]", problems)
            for index, (arg, item) in enumerate(zip(args, plain, strict=True))
        )
    items = [_build(args[0], item, f"{path}[{index}]", problems) for index, item in enumerate(plain)]
    return items if origin is list else frozenset(items) if origin is frozenset else tuple(items)


def _build_mapping(args: tuple[Any, ...], plain: Any, path: str, problems: list[str]) -> Any:
    if not isinstance(plain, Mapping):
        _add_problem(problems, path, f"expected a table, found {quote(plain)}")
        return None
    return {
        _build(args[0], key, f"{path}.{key}".lstrip("."), problems): _build(
            args[1], item, f"{path}.{key}".lstrip("."), problems
        )
        for key, item in plain.items()
    }


def _build_leaf(kind: Any, plain: Any, path: str, problems: list[str]) -> Any:
    try:
        if kind is datetime:
            return parse_time(plain)
        if isinstance(kind, type) and issubclass(kind, Enum):
            return kind(plain)
        if kind is float and isinstance(plain, int) and not isinstance(plain, bool):
            return float(plain)
        if kind is float and isinstance(plain, float) and not math.isfinite(plain):
            raise ValueError
        if kind is str and isinstance(plain, str):
            plain.encode()  # JSON can contain half a surrogate pair, which no file, page or database accepts.
        if isinstance(kind, type) and isinstance(plain, kind) and not (kind is int and isinstance(plain, bool)):
            return plain
        raise ValueError
    except (ValueError, TypeError, OverflowError):
        _add_problem(problems, path, f"expected {_describe(kind)}, found {quote(plain)}")
        return None


def _describe(kind: Any) -> str:
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "one of " + ", ".join(str(member.value) for member in kind)
    names = {
        str: "text",
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        datetime: "a time such as 2026-01-31T09:00:00Z",
    }
    return names.get(kind, getattr(kind, "__name__", str(kind)))
