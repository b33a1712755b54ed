"""Slurm's short form of many names, `gpu-r[01-16]-[01-04],login1`, into the names, and the numbers inside them.

Slurm writes it wherever nodes are listed, and the inventory file uses it because people who run racks know it.
A list that would be longer than any fleet is refused, so that a slip of the pen costs no memory.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

# Ten times the largest fleet one hub is meant for.
MAX_NAMES = 200_000
# Commas inside brackets belong to the range.
PARTS = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
BRACKETS = re.compile(r"\[([^\[\]]*)\]")
RANGE = re.compile(r"^(\d{1,18})(?:-(\d{1,18}))?$")


class BadHostlist(ValueError):
    """The text is no list of names, or names too many; the message says which."""


@dataclass(frozen=True, slots=True)
class HostlistName:
    """One name of a list, and what stood in each of its brackets: `gpu-r07-02` of the above has `07` and `02`."""

    name: str
    parts: tuple[str, ...] = ()


def expand(text: str) -> list[str]:
    """The names in the order of the list; BadHostlist where it is none."""
    return [found.name for found in expand_parts(text)]


def expand_parts(text: str) -> list[HostlistName]:
    if set("[]") & set(BRACKETS.sub("", text)):
        raise BadHostlist(f"`{text[:80]}` has a bracket without its partner")
    found: list[HostlistName] = []
    for part in PARTS.findall(text.strip()):
        found += itertools.islice(_names(part.strip()), MAX_NAMES + 1 - len(found))
        if len(found) > MAX_NAMES:
            raise BadHostlist(f"`{text[:80]}` stands for more than {MAX_NAMES:,} names")
    return found


def _names(part: str) -> Iterator[HostlistName]:
    pieces = BRACKETS.split(part)
    fixed, ranges = pieces[0::2], [_numbers(inside) for inside in pieces[1::2]]
    count = math.prod(len(numbers) for numbers in ranges)
    if count > MAX_NAMES:
        raise BadHostlist(f"`{part[:80]}` stands for {count:,} names, the limit is {MAX_NAMES:,}")
    for chosen in itertools.product(*ranges):
        name = fixed[0] + "".join(number + rest for number, rest in zip(chosen, fixed[1:], strict=True))
        if name:
            yield HostlistName(name, chosen)


def _numbers(inside: str) -> list[str]:
    """`01-03,7` → 01, 02, 03, 7; the width of the first number is kept."""
    found: list[str] = []
    for piece in inside.split(","):
        if (match := RANGE.match(piece.strip())) is None:
            raise BadHostlist(f"`[{inside[:80]}]` is not a range such as [01-16,20]")
        first, last = match[1], match[2] or match[1]
        count = int(last) - int(first) + 1
        if count < 1 or len(found) + count > MAX_NAMES:
            raise BadHostlist(f"`{piece[:40]}` counts {count:,} numbers, possible are 1 to {MAX_NAMES:,}")
        found += [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
    return found
