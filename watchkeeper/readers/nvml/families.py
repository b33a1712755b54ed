"""A metric family: its name and type, and the NVML call and scale that give its value.

`choice` loads the families from packs/; the session calls NVML by `call` and `part`, and the metrics page writes `head`
above the samples. The agent sends the families to the reader child, which needs no table.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

ALL_PARTS = "*"


class Cadence(StrEnum):
    """How often a family is read; the sampler defines the intervals."""

    FAST = "fast"
    SLOW = "slow"
    RARE = "rare"
    PROFILE = "profile"
    ONCE = "once"
    EVENT = "event"


class NvmlFamily(NamedTuple):
    """One metric family. `labels` name the dot-separated parts of an answer, if `part` is `*`."""

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
