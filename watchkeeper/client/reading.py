"""From a hub's answer to a value: as `wire` does it, but a field that this client does not know yet is passed over.

Within a version of the API things are only added, so a client that is older than its hub must not stumble over what
is new. `client.typed` reads every answer through here.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from watchkeeper.errors import HubError, WireError
from watchkeeper.kit import wire

T = TypeVar("T")


def read(kind: type[T], plain: Any) -> T:
    """A value of `kind`; HubError where the answer lacks something that the API promises."""
    try:
        return wire.from_plain(kind, _known(kind, plain))
    except WireError as error:
        problem = f"the answer is not what the API promises: {error.problems[0]}"
        raise HubError(problem, remedy="Ask the hub for its version, and install the same here") from error


def _known(kind: Any, plain: Any) -> Any:
    """The part of an answer that the type has names for."""
    kind = getattr(kind, "__supertype__", kind)
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        # Of our unions one side is None, or both are leaves.
        chosen = [arg for arg in args if arg is not type(None)]
        return plain if plain is None or len(chosen) != 1 else _known(chosen[0], plain)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type) and isinstance(plain, Mapping):
        fields = wire.field_types(kind)
        return {name: _known(fields[name], value) for name, value in plain.items() if name in fields}
    if origin in (list, tuple, frozenset, Sequence) and isinstance(plain, list) and args:
        return [_known(args[0], item) for item in plain]
    if origin in (dict, Mapping) and isinstance(plain, Mapping):
        return {key: _known(args[1], item) for key, item in plain.items()}
    return plain
