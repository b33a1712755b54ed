"""Read plain values from a pickle without executing it.

The instructions are only decoded, with `pickletools`, and those that build numbers, texts, lists and mappings are
interpreted. An instruction that imports or calls anything else raises `UnsafePickle`. So does a value that is larger
than it looks: a list that contains itself, or that contains another one many times, which contains another one.
"""

from __future__ import annotations

import pickletools
from collections.abc import Iterable, Set
from dataclasses import dataclass
from typing import Any

from watchkeeper.errors import WatchkeeperError

# A dump with 2,000 entries has about 200,000 instructions, and its values are nested 6 deep.
MAX_INSTRUCTIONS = 5_000_000
MAX_BYTES = 256 << 20
# Of the value as text, where a part counts as often as it is contained.
MAX_VALUES, MAX_CHARACTERS, MAX_DEPTH = 5_000_000, 64 << 20, 32
# Times in nanoseconds and addresses have 64 bits.
MAX_INTEGER_BITS = 128
# PyTorch writes lists of numbers with these functions; each returns its argument as a list.
LIST_CONSTRUCTORS = frozenset({f"torch.jit._pickle build_{kind}list" for kind in ("int", "double", "bool", "tensor")})
MAPPING_CONSTRUCTORS = frozenset({"collections OrderedDict"})
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
LITERALS: Set[str] = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
}
MARK = object()
# Only these may be keys: the hash of a deeply nested tuple overflows the C stack.
Scalar = str | bytes | bytearray | int | float | None
# What Python's own functions raise for a pickle that does not fit together.
INVALID = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError),
)


class UnsafePickle(WatchkeeperError):
    """The pickle imports or calls something, or is not a valid pickle of plain values."""


@dataclass(frozen=True, slots=True)
class _Constructor:
    """The name of a constructor in the pickle; harmless, because it is never imported."""

    name: str


def loads(raw: bytes) -> Any:
    """The value of a pickle of plain values; UnsafePickle if it is truncated, invalid or unsafe."""
    if len(raw) > MAX_BYTES:
        raise UnsafePickle(f"the pickle has {len(raw):,} bytes, the limit is {MAX_BYTES:,}")
    machine = _PickleMachine()
    try:
        for count, (opcode, argument, position) in enumerate(pickletools.genops(raw)):
            if count > MAX_INSTRUCTIONS:
                raise UnsafePickle(f"the pickle has more than {MAX_INSTRUCTIONS:,} instructions")
            if opcode.name == "STOP":
                value = machine.stack.pop()
                check_plain(value)
                return value
            machine.execute(opcode.name, argument, position or 0)
    except INVALID as error:
        raise UnsafePickle(f"the pickle is invalid or truncated: {error}") from error
    raise UnsafePickle("the pickle is truncated: it has no STOP instruction")


def check_plain(value: Any) -> None:
    """Raise UnsafePickle unless the value consists of a limited number of plain values, also if written as text."""
    remaining, values, characters = [(value, 0)], 0, 0
    while remaining:
        part, depth = remaining.pop()
        values += 1
        if isinstance(part, list | tuple | dict):
            _check_limit("values nested in each other", depth, MAX_DEPTH)
            inner = part if not isinstance(part, dict) else (*part.keys(), *part.values())
            _check_limit("values", values + len(remaining) + len(inner), MAX_VALUES)
            remaining += [(each, depth + 1) for each in inner]
        elif isinstance(part, str | bytes | bytearray):
            characters += len(part)
            _check_limit("characters", characters, MAX_CHARACTERS)
        elif isinstance(part, int):
            _check_limit("bits in a number", part.bit_length(), MAX_INTEGER_BITS)
        elif not isinstance(part, float | None):
            raise UnsafePickle("the pickle contains something that is not a plain value")


def _check_limit(unit: str, count: int, limit: int) -> None:
    if count > limit:
        raise UnsafePickle(f"the content has {count:,} {unit} or more, the limit is {limit:,}")


class _PickleMachine:
    """The stack and memo of a pickle interpreter for plain values."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self._copied = 0

    def execute(self, name: str, argument: Any, position: int) -> None:
        if name in CONSTANTS:
            self.stack.append(CONSTANTS[name])
        elif name in LITERALS:
            self.stack.append(argument)
        elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
            self.memo[int(argument)] = self.stack[-1]
        elif name == "MEMOIZE":
            self.memo[len(self.memo)] = self.stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            self.stack.append(self.memo[int(argument)])
        elif name in BUILDERS:
            BUILDERS[name](self)
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            self._push_constructor(
                argument if name == "GLOBAL" else " ".join(reversed([self.stack.pop(), self.stack.pop()])), position
            )
        elif name == "REDUCE":
            self._call_constructor(position)
        elif name not in ("PROTO", "FRAME"):
            raise UnsafePickle(f"instruction {name} at byte {position} would run code; it was not run")

    def items_since_mark(self) -> list[Any]:
        position = len(self.stack) - 1
        while self.stack[position] is not MARK:
            position -= 1
            if position < 0:
                raise ValueError("no mark on the stack")
        items = self.stack[position + 1 :]
        del self.stack[position:]
        return items

    def _push_constructor(self, name: str, position: int) -> None:
        if name not in LIST_CONSTRUCTORS | MAPPING_CONSTRUCTORS:
            raise UnsafePickle(f"the pickle imports {name} at byte {position}; it was not imported and nothing was run")
        self.stack.append(_Constructor(name))

    def _call_constructor(self, position: int) -> None:
        arguments, constructor = self.stack.pop(), self.stack.pop()
        if not isinstance(constructor, _Constructor):
            raise UnsafePickle(f"the pickle calls something at byte {position}; it was not called")
        # The same list may be copied by every instruction.
        self._copied += len(arguments[0]) if arguments else 0
        _check_limit("copied values", self._copied, MAX_VALUES)
        if constructor.name in LIST_CONSTRUCTORS:
            self.stack.append(list(arguments[0]))
        else:
            self.stack.append(_set_pairs({}, arguments[0]) if arguments else {})


def _set_pairs(mapping: Any, pairs: Iterable[tuple[Any, Any]]) -> Any:
    for key, value in pairs:
        if not isinstance(mapping, dict) or not isinstance(key, Scalar):
            raise TypeError(f"a {type(key).__name__} is a key of a {type(mapping).__name__}")
        mapping[key] = value
    return mapping


def _extend(values: Any, items: list[Any]) -> None:
    if not isinstance(values, list):
        raise TypeError(f"a value is appended to a {type(values).__name__}")
    values.extend(items)


def _append(machine: _PickleMachine) -> None:
    item = machine.stack.pop()
    _extend(machine.stack[-1], [item])


def _appends(machine: _PickleMachine) -> None:
    items = machine.items_since_mark()
    _extend(machine.stack[-1], items)


def _set_item(machine: _PickleMachine) -> None:
    value, key = machine.stack.pop(), machine.stack.pop()
    _set_pairs(machine.stack[-1], [(key, value)])


def _set_items(machine: _PickleMachine) -> None:
    items = machine.items_since_mark()
    _set_pairs(machine.stack[-1], zip(items[::2], items[1::2], strict=True))


def _tuple_builder(count: int) -> Any:
    def build(machine: _PickleMachine) -> None:
        items = tuple(machine.stack[len(machine.stack) - count :])
        del machine.stack[len(machine.stack) - count :]
        machine.stack.append(items)

    return build


BUILDERS: dict[str, Any] = {
    "MARK": lambda machine: machine.stack.append(MARK),
    "POP": lambda machine: machine.stack.pop(),
    "POP_MARK": lambda machine: machine.items_since_mark(),
    "DUP": lambda machine: machine.stack.append(machine.stack[-1]),
    "EMPTY_LIST": lambda machine: machine.stack.append([]),
    "EMPTY_DICT": lambda machine: machine.stack.append({}),
    "EMPTY_TUPLE": lambda machine: machine.stack.append(()),
    "LIST": lambda machine: machine.stack.append(machine.items_since_mark()),
    "TUPLE": lambda machine: machine.stack.append(tuple(machine.items_since_mark())),
    "TUPLE1": _tuple_builder(1),
    "TUPLE2": _tuple_builder(2),
    "TUPLE3": _tuple_builder(3),
    "APPEND": _append,
    "APPENDS": _appends,
    "SETITEM": _set_item,
    "SETITEMS": _set_items,
}
