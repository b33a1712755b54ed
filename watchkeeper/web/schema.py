"""JSON Schema of Python types: the JSON that `wire.to_plain` writes for a value of the type.

Each dataclass, enum or TypedDict becomes one component, named `module.Class`.
`Annotated[Incident, ResponseVariant("cards.Card", added={…}, omitted=(…))]` describes a response that adds fields to a
dataclass or omits some.
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
    """A variant of a dataclass in a response: its component name, added fields and omitted fields."""

    name: str
    added: Mapping[str, Any] = field(default_factory=dict)
    omitted: tuple[str, ...] = ()

    def __hash__(self) -> int:
        return hash(self.name)


class Schemas:
    """Schemas by type; `components` has every named schema that was used so far."""

    def __init__(self) -> None:
        self.components: dict[str, dict[str, Any]] = {}
        self._owners: dict[str, Any] = {}

    def of(self, kind: Any) -> dict[str, Any]:
        """The schema of a type, or of an object, given as a mapping of field names to types."""
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
            raise TypeError(f"{kind!r} has no JSON schema; use a type, a mapping of types, or Annotated")
        if issubclass(kind, Enum):
            return self._component(kind, lambda: {"enum": [member.value for member in kind]})
        if dataclasses.is_dataclass(kind):
            return self._component(kind, lambda: self._object(_fields(kind)))
        if typing.is_typeddict(kind):
            required: frozenset[str] = kind.__required_keys__  # type: ignore[attr-defined]  # TypedDicts have it
            return self._component(
                kind, lambda: self._object(typing.get_type_hints(kind, include_extras=True), required)
            )
        if issubclass(kind, Mapping):
            # Our only mapping class is Labels.
            return {"type": "object", "additionalProperties": {"type": "string"}}
        raise TypeError(f"{kind.__name__} has no JSON schema: it is not a dataclass, an enum or a TypedDict")

    def _object(self, fields: Mapping[str, Any], required: frozenset[str] | None = None) -> dict[str, Any]:
        """The schema of an object; without `required` all fields are required, because `wire` writes None too."""
        required_names = [name for name in fields if required is None or name in required]
        properties = {name: self.of(kind) for name, kind in fields.items()}
        return {"type": "object", "properties": properties} | ({"required": required_names} if required_names else {})

    def _variant(self, kind: Any, variant: ResponseVariant) -> dict[str, Any]:
        fields = {name: kind for name, kind in _fields(kind).items() if name not in variant.omitted}
        return self._register(variant.name, variant, lambda: self._object({**fields, **variant.added}), kind.__doc__)

    def _component(self, kind: Any, build: typing.Callable[[], dict[str, Any]]) -> dict[str, Any]:
        name = f"{kind.__module__.rpartition('.')[2]}.{kind.__name__}"
        # A TypedDict or enum without a docstring has its parent's.
        docstring = None if typing.is_typeddict(kind) or issubclass(kind, Enum) else kind.__doc__
        return self._register(name, kind, build, docstring)

    def _register(
        self, name: str, owner: Any, build: typing.Callable[[], dict[str, Any]], docstring: str | None
    ) -> dict[str, Any]:
        if name not in self._owners:
            self._owners[name] = owner
            self.components[name] = {}
            # Registered before its fields, because a type may contain itself.
            self.components[name] = build()
            # Python makes a docstring for a dataclass without one.
            if docstring and not docstring.startswith(f"{getattr(owner, '__name__', '')}("):
                self.components[name]["description"] = " ".join(docstring.split())
        elif self._owners[name] is not owner:
            raise TypeError(f"two types have the component name {name}. Rename one")
        return {"$ref": PREFIX + name}


def _fields(kind: Any) -> dict[str, Any]:
    """The types of the JSON fields of a dataclass, with their annotations."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {key: hints[name] for key, name in wire.field_names(kind).items()}
