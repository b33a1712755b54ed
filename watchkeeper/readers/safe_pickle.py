"""Read plain values from a pickle without executing it.

The instructions are only decoded, with `pickletools`, and those that build numbers, texts, lists and mappings are
interpreted. An instruction that imports or calls anything else raises `UnsafePickle`.
"""

from __future__ import annotations

import pickletools
from collections.abc import Set
from typing import Any, NamedTuple

from watchkeeper.errors import WatchkeeperError

# A dump with 2,000 entries has about 200,000 instructions.
MAX_INSTRUCTIONS = 20_000_000
MAX_BYTES = 256 << 20
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


class UnsafePickle(WatchkeeperError):
    """The pickle imports or calls something, or is not a valid pickle of plain values."""


class _Constructor(NamedTuple):
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
                return machine.stack.pop()
            machine.execute(opcode.name, argument, position or 0)
    except (ValueError, IndexError, TypeError, KeyError, OverflowError) as error:
        raise UnsafePickle(f"the pickle is invalid or truncated: {error}") from error
    raise UnsafePickle("the pickle is truncated: it has no STOP instruction")


class _PickleMachine:
    """The stack and memo of a pickle interpreter for plain values."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

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
        if constructor.name in LIST_CONSTRUCTORS:
            self.stack.append(list(arguments[0]))
        else:
            self.stack.append(dict(arguments[0]) if arguments else {})


def _append(machine: _PickleMachine) -> None:
    item = machine.stack.pop()
    machine.stack[-1].append(item)


def _appends(machine: _PickleMachine) -> None:
    items = machine.items_since_mark()
    machine.stack[-1].extend(items)


def _set_item(machine: _PickleMachine) -> None:
    value, key = machine.stack.pop(), machine.stack.pop()
    machine.stack[-1][key] = value


def _set_items(machine: _PickleMachine) -> None:
    items = machine.items_since_mark()
    machine.stack[-1].update(zip(items[::2], items[1::2], strict=True))


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
