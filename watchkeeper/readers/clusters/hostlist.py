"""Expand Slurm hostlists such as `gpu-r[01-16]-[01-04],login1` into names, with the numbers inside the brackets.

Slurm writes hostlists wherever it lists nodes, and the inventory file accepts them too. A list that expands to more
names than any fleet has is refused, so that a typing error does not exhaust the memory.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

# Ten times the largest fleet that one hub supports.
MAX_NAMES = 200_000
# Commas inside brackets belong to the range.
PARTS = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
BRACKETS = re.compile(r"\[([^\[\]]*)\]")
RANGE = re.compile(r"^(\d{1,18})(?:-(\d{1,18}))?$")


class BadHostlist(ValueError):
    """The text is not a hostlist, or expands to too many names."""


@dataclass(frozen=True, slots=True)
class HostlistName:
    """One name, and the number from each bracket: `gpu-r07-02` of `gpu-r[01-16]-[01-04]` has `07` and `02`."""

    name: str
    parts: tuple[str, ...] = ()


def expand(text: str) -> list[str]:
    """The names in the order of the list; BadHostlist if the text is not a hostlist."""
    return [hostlist_name.name for hostlist_name in expand_parts(text)]


def expand_parts(text: str) -> list[HostlistName]:
    if set("[]") & set(BRACKETS.sub("", text)):
        raise BadHostlist(f"`{text[:80]}` has an unmatched bracket")
    names: list[HostlistName] = []
    for part in PARTS.findall(text.strip()):
        names += itertools.islice(_names(part.strip()), MAX_NAMES + 1 - len(names))
        if len(names) > MAX_NAMES:
            raise BadHostlist(f"`{text[:80]}` expands to more than {MAX_NAMES:,} names")
    return names


def _names(part: str) -> Iterator[HostlistName]:
    pieces = BRACKETS.split(part)
    fixed, ranges = pieces[0::2], [_numbers(content) for content in pieces[1::2]]
    count = math.prod(len(numbers) for numbers in ranges)
    if count > MAX_NAMES:
        raise BadHostlist(f"`{part[:80]}` expands to {count:,} names, the limit is {MAX_NAMES:,}")
    for combination in itertools.product(*ranges):
        name = fixed[0] + "".join(number + rest for number, rest in zip(combination, fixed[1:], strict=True))
        if name:
            yield HostlistName(name, combination)


def _numbers(content: str) -> list[str]:
    """`01-03,7` → 01, 02, 03, 7; the width of the first number is kept."""
    numbers: list[str] = []
    for piece in content.split(","):
        if (match := RANGE.match(piece.strip())) is None:
            raise BadHostlist(f"`[{content[:80]}]` is not a range such as [01-16,20]")
        first, last = match[1], match[2] or match[1]
        count = int(last) - int(first) + 1
        if count < 1 or len(numbers) + count > MAX_NAMES:
            raise BadHostlist(f"`{piece[:40]}` has {count:,} numbers; allowed are 1 to {MAX_NAMES:,}")
        numbers += [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
    return numbers
