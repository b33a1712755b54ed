"""A metric family: its name and type, and which NVML call with which scale fills it.

`choice` reads the families from packs/; the session asks NVML by `call` and `part`, the page writes `head`
above the samples. The reader child is handed its families as plain values and needs no table.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

ALL_PARTS = "*"


class Cadence(StrEnum):
    """How often a family is asked for; the sampler says how long each is."""

    FAST = "fast"
    SLOW = "slow"
    RARE = "rare"
    PROFILE = "profile"
    ONCE = "once"
    EVENT = "event"


class NvmlFamily(NamedTuple):
    """One metric family. `labels` are the names that the parts of an `*` answer fill, joined by a dot."""

    name: str
    prom_type: str
    help: str
    is_float: bool
    is_per_slice: bool
    call: str
    part: str
    scale: float
    cadence: Cadence
    labels: tuple[str, ...] = ()

    @property
    def head(self) -> str:
        return f"# HELP {self.name} {self.help}\n# TYPE {self.name} {self.prom_type}\n"

    def plain(self) -> dict[str, Any]:
        return self._asdict()

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> NvmlFamily:
        return cls(**{**plain, "cadence": Cadence(plain["cadence"]), "labels": tuple(plain["labels"])})
