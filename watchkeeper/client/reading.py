"""Decode a hub's JSON into dataclasses: types must match, unknown fields are ignored.

Within a version of the API, fields and enum values are only added: an old client does not know some of a new hub, and a
new client misses some of an old hub. So a missing field of a `HubAnswer` raises HubError only when it is read, and an
unknown enum value stays a string.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

from watchkeeper.errors import HubError, quote
from watchkeeper.kit import wire

T = TypeVar("T")
Reader = Callable[[Any], Any]
NOT_A_HUB = "is this a Watchkeeper hub, or a proxy in front of one?"
# The Python types that each field type accepts; a boolean is not a number.
LEAF_TYPES: dict[Any, tuple[tuple[type, ...], str]] = {
    str: ((str,), "text"),
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    bool: ((bool,), "true or false"),
    type(None): ((type(None),), "null"),
}


class HubAnswer:
    """Base class of generated answers; `plain` is the unchanged JSON with all its fields."""

    __slots__ = ("plain",)
    plain: dict[str, Any]

    # Hidden from mypy, so that it still reports unknown attributes.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name not in self.__dataclass_fields__:
                raise AttributeError(name)
            raise missing_field(name)


@dataclasses.dataclass(slots=True)
class TypeMismatch(Exception):
    """A value has the wrong type; `reversed_path` leads to it, innermost part first."""

    expected: str
    value: Any
    reversed_path: list[str] = dataclasses.field(default_factory=list)

    def __str__(self) -> str:
        place = "".join(reversed(self.reversed_path)).lstrip(".")
        subject = f"`{place}` of the answer" if place else "the answer"
        return f"{subject} should be {self.expected} and is {quote(self.value)}"


def missing_field(name: str) -> HubError:
    problem = f"the hub's answer has no `{name}`: the hub is older than this client, or this is not a hub"
    return HubError(problem, remedy="Install the same version of Watchkeeper on both sides")


def read_answer(kind: type[T], plain: Any, *, path: str = "", where: str | None = None) -> T:
    """Decode into `kind`, or raise HubError with the path of the value that has the wrong type."""
    try:
        return typing.cast(T, _reader(typing.cast(Any, kind))(plain))
    except TypeMismatch as problem:
        problem.reversed_path.append(path)
        raise HubError(f"{problem}: {NOT_A_HUB}", where=where) from problem


@cache
def _reader(kind: Any) -> Reader:
    kind = getattr(kind, "__supertype__", kind)
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind in (Any, object):
        return lambda plain: plain
    if origin in (typing.Union, types.UnionType):
        return partial(_read_choice, [_reader(arg) for arg in args if arg is not type(None)], type(None) in args)
    if origin is tuple and args[-1] is not Ellipsis:
        return partial(_read_pair, [_reader(arg) for arg in args])
    if origin in (list, tuple, frozenset, Sequence):
        return partial(_read_list, _reader(args[0]), frozenset if origin is frozenset else tuple)
    if origin in (dict, Mapping):
        return partial(_read_mapping, _reader(args[1]))
    if kind in LEAF_TYPES:
        return partial(_read_leaf, kind)
    if kind is datetime:
        return _read_time
    if issubclass(kind, Enum):
        return partial(_read_enum, kind)
    # A type may contain itself, so its fields are resolved when the first value is read.
    return partial(_read_answer if issubclass(kind, HubAnswer) else _read_model, kind)


def _read_leaf(kind: Any, plain: Any) -> Any:
    types_of_leaf, type_name = LEAF_TYPES[kind]
    if not isinstance(plain, types_of_leaf) or (type(plain) is bool and kind is not bool):
        raise TypeMismatch(type_name, plain)
    return plain


def _read_time(plain: Any) -> datetime:
    if not isinstance(plain, str):
        raise TypeMismatch("text", plain)
    try:
        return wire.parse_time(plain)
    except ValueError as error:
        raise TypeMismatch("a time", plain) from error


def _read_enum(kind: type[Enum], plain: Any) -> Any:
    try:
        return kind(plain)
    except ValueError as error:
        words = [member.value for member in kind]
        if type(plain) not in {type(word) for word in words}:
            raise TypeMismatch(f"one of {', '.join(map(str, words))}", plain) from error
        return plain


def _read_choice(readers: Sequence[Reader], may_be_null: bool, plain: Any) -> Any:
    if plain is None and may_be_null:
        return None
    problems: list[TypeMismatch | HubError] = []
    for reader in readers:
        try:
            return reader(plain)
        except (TypeMismatch, HubError) as problem:
            problems.append(problem)
    raise problems[0]


def _expect_list(plain: Any) -> list[Any]:
    if not isinstance(plain, list):
        raise TypeMismatch("a list", plain)
    return plain


def _read_pair(readers: Sequence[Reader], plain: Any) -> Any:
    if len(_expect_list(plain)) != len(readers):
        raise TypeMismatch(f"a list of {len(readers)}", plain)
    return tuple(_read_at(readers[at], item, f"[{at}]") for at, item in enumerate(plain))


def _read_list(reader: Reader, container: Callable[[list[Any]], Any], plain: Any) -> Any:
    return container([_read_at(reader, item, f"[{at}]") for at, item in enumerate(_expect_list(plain))])


def _read_mapping(reader: Reader, plain: Any) -> Any:
    return {name: _read_at(reader, item, f".{name}") for name, item in _expect_object(plain).items()}


def _read_model(kind: Any, plain: Any) -> Any:
    """Read a dataclass of model/: every field without a default is required."""
    readers, field_names = _field_readers(kind), wire.field_names(kind)
    values = {
        name: _read_at(readers[name][0], item, f".{name}")
        for name, item in _expect_object(plain).items()
        if name in readers
    }
    for name, (_, is_required) in readers.items():
        if is_required and name not in values:
            raise missing_field(name)
    try:
        return kind(**{field_names[key]: value for key, value in values.items()})
    except ValueError as error:
        raise TypeMismatch(f"a {kind.__name__} ({error})", plain) from error


def _read_answer(kind: Any, plain: Any) -> Any:
    """Read a generated answer: a missing field raises HubError when it is read."""
    answer = object.__new__(kind)
    object.__setattr__(answer, "plain", plain)
    values = _expect_object(plain)
    for name, (reader, is_required) in _field_readers(kind).items():
        # `from` is a field of some answers, and a keyword of Python.
        json_key = name.removesuffix("_")
        if json_key in values:
            object.__setattr__(answer, name, _read_at(reader, values[json_key], f".{json_key}"))
        elif not is_required:
            object.__setattr__(answer, name, None)
    return answer


@cache
def _field_readers(kind: Any) -> dict[str, tuple[Reader, bool]]:
    """The reader of each field, and whether the field is required."""
    types_by_key, names = wire.field_types(kind), wire.field_names(kind)
    required = {
        field.name
        for field in dataclasses.fields(kind)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }
    return {key: (_reader(type_), names[key] in required) for key, type_ in types_by_key.items()}


def _expect_object(plain: Any) -> Mapping[str, Any]:
    if not isinstance(plain, dict):
        raise TypeMismatch("an object", plain)
    return plain


def _read_at(reader: Reader, plain: Any, path_part: str) -> Any:
    try:
        return reader(plain)
    except TypeMismatch as problem:
        problem.reversed_path.append(path_part)
        raise
