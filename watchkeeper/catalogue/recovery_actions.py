"""The recovery actions that the driver requests after a fault: Xid 154 and NVML field 230.

`lookup` takes the number that NVML and DCGM report, `from_text` the words of the kernel line
`... GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from watchkeeper.catalogue import pack

FILE = "xid154.csv"


@dataclass(frozen=True, slots=True)
class RecoveryAction:
    """`text` is empty if no released driver prints the value yet."""

    value: int
    text: str
    nvml_name: str
    action: str
    needs_drain: bool
    meaning: str
    source: str


def lookup(value: int) -> RecoveryAction | None:
    return next((row for row in all_actions() if row.value == value), None)


def from_text(text: str) -> RecoveryAction | None:
    return next((row for row in all_actions() if row.text and row.text.lower() == text.strip().lower()), None)


@cache
def all_actions() -> tuple[RecoveryAction, ...]:
    return pack.load(FILE, read_row)


def read_row(cells: Mapping[str, str]) -> RecoveryAction:
    return RecoveryAction(
        value=int(cells["value"]),
        text=cells["text"],
        nvml_name=pack.required(cells["nvml_name"]),
        action=pack.required(cells["immediate_action"]),
        needs_drain=pack.yes_or_no(cells["needs_drain"]),
        meaning=pack.required(cells["meaning"]),
        source=pack.required(cells["source"]),
    )
