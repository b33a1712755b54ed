"""JSON Schema of our own types: what `wire.to_plain` makes of a value of the type, and nothing else.

`openapi` asks for the schemas of parameters, bodies and answers. A dataclass, an enum or a TypedDict becomes a named
component once, called by its module and name. What an answer adds to a dataclass, or leaves out, is said with
`Annotated[Incident, Shown("Card", also={…}, without=(…))]`.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Annotated, Any

from watchkeeper.kit import wire

PREFIX = "#/components/schemas/"
SIMPLE_TYPES: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    datetime: {"type": "string", "format": "date-time"},
    object: {},
    Any: {},
    dict: {"type": "object"},
    list: {"type": "array"},
}


@dataclass(frozen=True, slots=True)
class ResponseVariant:
    """A dataclass as an answer shows it: under which name, with what beside its fields, and without which of them."""

    name: str
    added: Mapping[str, Any] = field(default_factory=dict)
    omitted: tuple[str, ...] = ()

    def __hash__(self) -> int:
        return hash(self.name)


class Schemas:
    """Schemas by type; `components` has every named one that was met."""

    def __init__(self) -> None:
        self.components: dict[str, dict[str, Any]] = {}
        self._owners: dict[str, Any] = {}

    def of(self, kind: Any) -> dict[str, Any]:
        """The schema of a type, a mapping from the names of fields to their types, or a list of alternatives."""
        kind = getattr(kind, "__supertype__", kind)
        origin, args = typing.get_origin(kind), typing.get_args(kind)
        if isinstance(kind, Mapping):
            return self._object(kind)
        if kind in SIMPLE_TYPES:
            return dict(SIMPLE_TYPES[kind])
        if origin in (typing.Required, typing.NotRequired):
            return self.of(args[0])
        if origin is Annotated:
            return self._variant(args[0], args[1])
        if origin in (typing.Union, types.UnionType):
            return {"anyOf": [self.of(arg) for arg in args]}
        if origin is typing.Literal:
            return {"enum": list(args)}
        if origin in (list, frozenset, set, Sequence) or (origin is tuple and args[-1] is Ellipsis):
            return {"type": "array", "items": self.of(args[0])}
        if origin is tuple:
            return {"type": "array", "prefixItems": [self.of(arg) for arg in args], "minItems": len(args)}
        if origin in (dict, Mapping):
            return {"type": "object", "additionalProperties": self.of(args[1])}
        return self._class(kind)

    def _class(self, kind: Any) -> dict[str, Any]:
        if not isinstance(kind, type):
            raise TypeError(f"{kind!r} has no JSON schema; `schema` knows types, mappings of types and Annotated ones")
        if issubclass(kind, Enum):
            return self._component(kind, lambda: {"enum": [member.value for member in kind]})
        if dataclasses.is_dataclass(kind):
            return self._component(kind, lambda: self._object(_fields(kind)))
        if typing.is_typeddict(kind):
            required: frozenset[str] = kind.__required_keys__  # type: ignore[attr-defined]  # is_typeddict says that it has
            return self._component(
                kind, lambda: self._object(typing.get_type_hints(kind, include_extras=True), required)
            )
        if issubclass(kind, Mapping):
            # Labels, the one mapping class of ours.
            return {"type": "object", "additionalProperties": {"type": "string"}}
        raise TypeError(f"{kind.__name__} has no JSON schema: it is no dataclass, enum or TypedDict")

    def _object(self, fields: Mapping[str, Any], required: frozenset[str] | None = None) -> dict[str, Any]:
        """An object with these fields; all are required unless told otherwise, because `wire` writes None too."""
        required_names = [name for name in fields if required is None or name in required]
        properties = {name: self.of(kind) for name, kind in fields.items()}
        return {"type": "object", "properties": properties} | ({"required": required_names} if required_names else {})

    def _variant(self, kind: Any, variant: ResponseVariant) -> dict[str, Any]:
        fields = {name: kind for name, kind in _fields(kind).items() if name not in variant.omitted}
        return self._register(variant.name, variant, lambda: self._object({**fields, **variant.added}), kind.__doc__)

    def _component(self, kind: Any, build: typing.Callable[[], dict[str, Any]]) -> dict[str, Any]:
        name = f"{kind.__module__.rpartition('.')[2]}.{kind.__name__}"
        # A dataclass and a TypedDict without a docstring have one that Python made, or their parent's.
        docstring = None if typing.is_typeddict(kind) or issubclass(kind, Enum) else kind.__doc__
        return self._register(name, kind, build, docstring)

    def _register(
        self, name: str, owner: Any, build: typing.Callable[[], dict[str, Any]], docstring: str | None
    ) -> dict[str, Any]:
        if name not in self._owners:
            self._owners[name] = owner
            self.components[name] = {}
            # A type may hold itself, so its name is taken before its fields are looked at.
            self.components[name] = build() | _description(owner, docstring)
        elif self._owners[name] is not owner:
            raise TypeError(f"two types would be called {name} in the API's document. Rename one")
        return {"$ref": PREFIX + name}


def _fields(kind: Any) -> dict[str, Any]:
    """The fields that cross a wire, with what an answer shows beside a dataclass."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {key: hints[name] for key, name in wire.field_names(kind).items()}


def _description(owner: Any, docstring: str | None) -> dict[str, str]:
    made_by_python = f"{getattr(owner, '__name__', '')}("
    return {} if not docstring or docstring.startswith(made_by_python) else {"description": " ".join(docstring.split())}
