"""From a hub's answer to a value: what is there must be of its kind, what is new is passed over.

Within a version of the API things are only added: a client that is older than its hub does not know a field or a
word, and one that is newer misses a field. So a field that an `Answer` lacks is told when somebody asks for it, and a
word that an enum does not have stays a text. `client.hub` reads every answer through here.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from watchkeeper.errors import HubError, quote
from watchkeeper.kit import wire

T = TypeVar("T")
Reader = Callable[[Any], Any]
NOT_A_HUB = "is this a Watchkeeper hub, or something in front of one?"
# JSON's kinds as Python reads them: a boolean is no number.
LEAVES: dict[Any, tuple[tuple[type, ...], str]] = {
    str: ((str,), "text"),
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    bool: ((bool,), "true or false"),
    type(None): ((type(None),), "null"),
}


class HubAnswer:
    """What a hub answered; `plain` is the same as it came, with what this client has no name for."""

    __slots__ = ("plain",)
    plain: dict[str, Any]

    # Hidden from mypy, for which a field that no class has is an error.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name not in self.__dataclass_fields__:
                raise AttributeError(name)
            raise missing_field(name)


@dataclasses.dataclass(slots=True)
class TypeMismatch(Exception):
    """Something is of another kind than it should be; `steps` lead to it, the last one first."""

    expected: str
    value: Any
    steps: list[str] = dataclasses.field(default_factory=list)

    def __str__(self) -> str:
        place = "".join(reversed(self.steps)).lstrip(".")
        named = f"`{place}` of the answer" if place else "the answer"
        return f"{named} should be {self.expected} and is {quote(self.value)}"


def missing_field(name: str) -> HubError:
    problem = f"the hub's answer has no `{name}`: the hub is older than this command, or is none"
    return HubError(problem, remedy="Install the same version of Watchkeeper on both sides")


def read_answer(kind: type[T], plain: Any, *, step: str = "", where: str | None = None) -> T:
    """A value of `kind`; HubError names the place of what is of another kind, which `step` leads to."""
    try:
        return typing.cast(T, _reader(typing.cast(Any, kind))(plain))
    except TypeMismatch as problem:
        problem.steps.append(step)
        raise HubError(f"{problem}: {NOT_A_HUB}", where=where) from problem


@cache
def _reader(kind: Any) -> Reader:
    kind = getattr(kind, "__supertype__", kind)
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind in (Any, object):
        return lambda plain: plain
    if origin in (typing.Union, types.UnionType):
        return _choice(args)
    if origin is tuple and args[-1] is not Ellipsis:
        return _pair(args)
    if origin in (list, tuple, frozenset, Sequence):
        return _list(args[0], frozenset if origin is frozenset else tuple)
    if origin in (dict, Mapping):
        return _mapping(args[1])
    if kind in LEAVES or kind is datetime or issubclass(kind, Enum):
        return _leaf(kind)
    # A type may hold itself, so its fields are looked at when the first value comes.
    return _answer(kind) if issubclass(kind, HubAnswer) else _record(kind)


def _leaf(kind: Any) -> Reader:
    if kind is datetime:
        return _time
    if kind not in LEAVES:
        return lambda plain: _word(kind, plain)
    kinds, called = LEAVES[kind]

    def read_leaf(plain: Any) -> Any:
        if not isinstance(plain, kinds) or (type(plain) is bool and kind is not bool):
            raise TypeMismatch(called, plain)
        return plain

    return read_leaf


def _time(plain: Any) -> datetime:
    if not isinstance(plain, str):
        raise TypeMismatch("text", plain)
    try:
        return wire.parse_time(plain)
    except ValueError as error:
        raise TypeMismatch("a time", plain) from error


def _word(kind: type[Enum], plain: Any) -> Any:
    try:
        return kind(plain)
    except ValueError as error:
        words = [member.value for member in kind]
        if type(plain) not in {type(word) for word in words}:
            raise TypeMismatch(f"one of {', '.join(map(str, words))}", plain) from error
        return plain


def _choice(args: tuple[Any, ...]) -> Reader:
    readers = [_reader(arg) for arg in args if arg is not type(None)]
    may_be_null = len(readers) < len(args)

    def read_choice(plain: Any) -> Any:
        if plain is None and may_be_null:
            return None
        problems: list[TypeMismatch | HubError] = []
        for reader in readers:
            try:
                return reader(plain)
            except (TypeMismatch, HubError) as problem:
                problems.append(problem)
        raise problems[0]

    return read_choice


def _pair(args: tuple[Any, ...]) -> Reader:
    readers = [_reader(arg) for arg in args]

    def read_pair(plain: Any) -> Any:
        if not isinstance(plain, list):
            raise TypeMismatch("a list", plain)
        if len(plain) != len(readers):
            raise TypeMismatch(f"a list of {len(readers)}", plain)
        return tuple(_inside(readers[at], one, f"[{at}]") for at, one in enumerate(plain))

    return read_pair


def _list(kind: Any, made: type[tuple[Any, ...]] | type[frozenset[Any]]) -> Reader:
    reader = _reader(kind)

    def read_list(plain: Any) -> Any:
        if not isinstance(plain, list):
            raise TypeMismatch("a list", plain)
        return made([_inside(reader, one, f"[{at}]") for at, one in enumerate(plain)])

    return read_list


def _mapping(kind: Any) -> Reader:
    reader = _reader(kind)

    def read_mapping(plain: Any) -> Any:
        return {name: _inside(reader, one, f".{name}") for name, one in _object(plain).items()}

    return read_mapping


def _record(kind: Any) -> Reader:
    """One of model/: all of it must be there, or have a default."""

    def read_record(plain: Any) -> Any:
        fields, names = _fields(kind), wire.field_names(kind)
        values = {
            name: _inside(fields[name][0], one, f".{name}") for name, one in _object(plain).items() if name in fields
        }
        for name, (_, is_needed) in fields.items():
            if is_needed and name not in values:
                raise missing_field(name)
        try:
            return kind(**{names[key]: value for key, value in values.items()})
        except ValueError as error:
            raise TypeMismatch(f"a {kind.__name__} ({error})", plain) from error

    return read_record


def _answer(kind: Any) -> Reader:
    """A generated one: what is missing is told when it is asked for."""

    def read_answer(plain: Any) -> Any:
        made = object.__new__(kind)
        object.__setattr__(made, "plain", plain)
        given = _object(plain)
        for name, (reader, is_needed) in _fields(kind).items():
            # `from` is a field of some answers and a word of Python.
            named = name.removesuffix("_")
            if named in given:
                object.__setattr__(made, name, _inside(reader, given[named], f".{named}"))
            elif not is_needed:
                object.__setattr__(made, name, None)
        return made

    return read_answer


@cache
def _fields(kind: Any) -> dict[str, tuple[Reader, bool]]:
    """For each field how it is read, and whether it has no default."""
    types_by_key, names = wire.field_types(kind), wire.field_names(kind)
    required = {
        field.name
        for field in dataclasses.fields(kind)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }
    return {key: (_reader(type_), names[key] in required) for key, type_ in types_by_key.items()}


def _object(plain: Any) -> Mapping[str, Any]:
    if not isinstance(plain, dict):
        raise TypeMismatch("an object", plain)
    return plain


def _inside(reader: Reader, plain: Any, step: str) -> Any:
    try:
        return reader(plain)
    except TypeMismatch as problem:
        problem.steps.append(step)
        raise
