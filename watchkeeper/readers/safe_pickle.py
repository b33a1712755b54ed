"""Plain values out of a pickle without ever running it.

A pickle is a program, and loading one runs what it says. Here its instructions are only read with
`pickletools`, and those that build numbers, texts, lists and mappings are carried out by hand. An
instruction that would import or call something ends the reading with `UnsafePickle`, which names it.
"""

from __future__ import annotations

import pickletools
from typing import Any

from watchkeeper.errors import WatchkeeperError

# A dump with 2,000 entries has some 200,000 instructions.
MAX_INSTRUCTIONS = 20_000_000
MAX_BYTES = 256 << 20
# PyTorch writes lists of numbers through these; each is the list it was given.
LIST_MAKERS = frozenset({f"torch.jit._pickle build_{kind}list" for kind in ("int", "double", "bool", "tensor")})
MAPPING_MAKERS = frozenset({"collections OrderedDict"})
CONSTANTS = {
    "NONE": None,
    "NEWTRUE": True,
    "NEWFALSE": False,
}
LITERALS = frozenset(
    [
        "INT",
        "BININT",
        "BININT1",
        "BININT2",
        "LONG",
        "LONG1",
        "LONG4",
        "FLOAT",
        "BINFLOAT",
        "STRING",
        "BINSTRING",
        "SHORT_BINSTRING",
        "UNICODE",
        "BINUNICODE",
        "SHORT_BINUNICODE",
        "BINUNICODE8",
        "BINBYTES",
        "SHORT_BINBYTES",
        "BINBYTES8",
        "BYTEARRAY8",
    ]
)
MARK = object()


class UnsafePickle(WatchkeeperError):
    """The pickle wants to import or call something, or is not a pickle of plain values."""


class _Maker:
    """A name that the pickle mentions; harmless, because it is never looked up."""

    def __init__(self, name: str) -> None:
        self.name = name


def loads(raw: bytes) -> Any:
    """The value of a pickle of plain values; a cut-off pickle raises UnsafePickle with what is true."""
    if len(raw) > MAX_BYTES:
        raise UnsafePickle(f"the pickle has {len(raw):,} bytes, more than {MAX_BYTES:,}")
    machine = _Machine()
    try:
        for count, (opcode, argument, position) in enumerate(pickletools.genops(raw)):
            if count > MAX_INSTRUCTIONS:
                raise UnsafePickle(f"the pickle has more than {MAX_INSTRUCTIONS:,} instructions")
            if opcode.name == "STOP":
                return machine.stack.pop()
            machine.perform(opcode.name, argument, position or 0)
    except (ValueError, IndexError, TypeError, KeyError, OverflowError) as error:
        raise UnsafePickle(f"the pickle is broken or cut off: {error}") from error
    raise UnsafePickle("the pickle ends before its last instruction")


class _Machine:
    """The stack and the memo of pickle's language, for values only."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def perform(self, name: str, argument: Any, position: int) -> None:
        if name in CONSTANTS:
            self.stack.append(CONSTANTS[name])
        elif name in LITERALS:
            self.stack.append(argument)
        elif name in ("PROTO", "FRAME"):
            pass
        elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
            self.memo[int(argument)] = self.stack[-1]
        elif name == "MEMOIZE":
            self.memo[len(self.memo)] = self.stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            self.stack.append(self.memo[int(argument)])
        elif name in BUILDERS:
            BUILDERS[name](self)
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            self._name(
                argument if name == "GLOBAL" else " ".join(reversed([self.stack.pop(), self.stack.pop()])), position
            )
        elif name == "REDUCE":
            self._reduce(position)
        else:
            raise UnsafePickle(f"instruction {name} at byte {position} would run code; it was not run")

    def items_since_mark(self) -> list[Any]:
        at = len(self.stack) - 1
        while self.stack[at] is not MARK:
            at -= 1
            if at < 0:
                raise ValueError("no mark on the stack")
        items = self.stack[at + 1 :]
        del self.stack[at:]
        return items

    def _name(self, name: str, position: int) -> None:
        if name not in LIST_MAKERS | MAPPING_MAKERS:
            raise UnsafePickle(f"the pickle asks for {name} at byte {position}; nothing was loaded and nothing was run")
        self.stack.append(_Maker(name))

    def _reduce(self, position: int) -> None:
        arguments, maker = self.stack.pop(), self.stack.pop()
        if not isinstance(maker, _Maker):
            raise UnsafePickle(f"the pickle calls something at byte {position}; it was not called")
        if maker.name in LIST_MAKERS:
            self.stack.append(list(arguments[0]))
        else:
            self.stack.append(dict(arguments[0]) if arguments else {})


def _push_mark(machine: _Machine) -> None:
    machine.stack.append(MARK)


def _pop(machine: _Machine) -> None:
    machine.stack.pop()


def _pop_mark(machine: _Machine) -> None:
    machine.items_since_mark()


def _dup(machine: _Machine) -> None:
    machine.stack.append(machine.stack[-1])


def _append(machine: _Machine) -> None:
    item = machine.stack.pop()
    machine.stack[-1].append(item)


def _appends(machine: _Machine) -> None:
    items = machine.items_since_mark()
    machine.stack[-1].extend(items)


def _set_item(machine: _Machine) -> None:
    value, key = machine.stack.pop(), machine.stack.pop()
    machine.stack[-1][key] = value


def _set_items(machine: _Machine) -> None:
    items = machine.items_since_mark()
    machine.stack[-1].update(zip(items[::2], items[1::2], strict=True))


def _tuple_of(count: int) -> Any:
    def build(machine: _Machine) -> None:
        items = tuple(machine.stack[len(machine.stack) - count :])
        del machine.stack[len(machine.stack) - count :]
        machine.stack.append(items)

    return build


BUILDERS: dict[str, Any] = {
    "MARK": _push_mark,
    "POP": _pop,
    "POP_MARK": _pop_mark,
    "DUP": _dup,
    "EMPTY_LIST": lambda machine: machine.stack.append([]),
    "EMPTY_DICT": lambda machine: machine.stack.append({}),
    "EMPTY_TUPLE": lambda machine: machine.stack.append(()),
    "LIST": lambda machine: machine.stack.append(machine.items_since_mark()),
    "TUPLE": lambda machine: machine.stack.append(tuple(machine.items_since_mark())),
    "TUPLE1": _tuple_of(1),
    "TUPLE2": _tuple_of(2),
    "TUPLE3": _tuple_of(3),
    "APPEND": _append,
    "APPENDS": _appends,
    "SETITEM": _set_item,
    "SETITEMS": _set_items,
}
