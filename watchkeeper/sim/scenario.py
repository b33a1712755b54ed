"""Faults as data: what packs/scenarios/NAME.yaml may say, and how it is read.

A scenario tells its story to people, names the kernel lines and the primitive effects that faults.py
plays, which repairs end it, and the right answer, against which drills score the product. A scenario
that uses known effects needs no code.
"""

from __future__ import annotations

import string
from dataclasses import dataclass, fields
from enum import StrEnum
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

import yaml

from watchkeeper.errors import PackError, WireError
from watchkeeper.kit import durations, wire
from watchkeeper.model import actions, alerts
from watchkeeper.sim.fleet import UnknownName

# What a kernel line template may ask for.
PLACEHOLDERS = frozenset({"pci", "uuid", "serial", "pid", "process", "channel", "address", "row"})


class Strikes(StrEnum):
    GPU = "gpu"
    NODE = "node"


class Reach(StrEnum):
    """Which GPUs an effect touches: the struck place, its whole node, or all ranks of the job there."""

    PLACE = "place"
    NODE = "node"
    GANG = "gang"


class Bus(StrEnum):
    LOST = "lost"


class Work(StrEnum):
    """What runs at the place when the fault strikes; it is started if it is not there."""

    TRAINING = "training"
    RESERVATION = "reservation"


class Repair(StrEnum):
    """What ends a fault; `replace` is a person with a screwdriver (DELETE /faults/ID)."""

    REBOOT = "reboot"
    RESET_GPU = "reset_gpu"
    DRAIN = "drain"
    RESTART_APP = "restart_app"
    REPLACE = "replace"


@dataclass(frozen=True, slots=True)
class KernelLine:
    """One line of the driver, `after` the strike."""

    text: str
    after: str = "0s"

    def __post_init__(self) -> None:
        durations.parse_ms(self.after)
        asked = {name for _, name, _, _ in string.Formatter().parse(self.text) if name is not None}
        if strange := sorted(asked - PLACEHOLDERS):
            raise ValueError(f"unknown placeholder {{{strange[0]}}}; known: {', '.join(sorted(PLACEHOLDERS))}")


@dataclass(frozen=True, slots=True)
class Effect:
    """One change to the machines; counters are added once, everything else lasts until the fault ends."""

    after: str = "0s"
    reach: Reach = Reach.PLACE
    # The GPU leaves page and inventory: `lost` from the bus, `hidden` without the driver noticing.
    bus: Bus | None = None
    hidden: bool = False
    # Shares of what a healthy machine has.
    fan: float | None = None
    power_cap: float | None = None
    clock: float | None = None
    load: float | None = None
    # `hold` keeps the memory and does nothing, `stall` spins in a collective that never ends.
    hold: bool = False
    stall: bool = False
    app_crash: bool = False
    restart_after: str | None = None
    ecc_sbe: int = 0
    ecc_dbe: int = 0
    remapped_rows: int = 0
    pcie_replays: int = 0
    remap_pending: bool = False
    remap_failure: bool = False
    recovery_action: int = 0

    def __post_init__(self) -> None:
        durations.parse_ms(self.after)
        if self.restart_after is not None:
            durations.parse_ms(self.restart_after)
        for name in ("fan", "power_cap", "clock", "load"):
            share = getattr(self, name)
            if share is not None and not 0.0 <= share <= 1.0:
                raise ValueError(f"`{name}: {share}` is not a share between 0 and 1")
        framing = {"after", "reach", "restart_after"}
        if all(getattr(self, part.name) == part.default for part in fields(self) if part.name not in framing):
            raise ValueError("an effect must change something, for example `bus: lost` or `fan: 0.0`")


@dataclass(frozen=True, slots=True)
class Truth:
    """The right answer; `action` is the step that ends the trouble, not the cordon before it."""

    cause: str
    action: actions.ActionKind
    severity: alerts.Severity
    place: Strikes


@dataclass(frozen=True, slots=True)
class Scenario:
    """One file. `lasts` is the file's `for`: None means until it is repaired."""

    name: str
    title: str
    story: str
    strikes: Strikes
    effects: tuple[Effect, ...]
    repaired_by: tuple[Repair, ...]
    truth: Truth
    after: str = "0s"
    lasts: str | None = None
    work: Work | None = None
    kernel: tuple[str | KernelLine, ...] = ()

    def __post_init__(self) -> None:
        durations.parse_ms(self.after)
        if self.lasts is not None:
            durations.parse_ms(self.lasts)
        if self.kernel and self.strikes is Strikes.NODE:
            raise ValueError("kernel lines name a GPU, so a scenario with `kernel` must strike a gpu")
        _ = self.kernel_lines

    @property
    def kernel_lines(self) -> tuple[KernelLine, ...]:
        return tuple(KernelLine(line) if isinstance(line, str) else line for line in self.kernel)


def load_all(folder: Traversable | None = None) -> dict[str, Scenario]:
    """Every scenario of a folder by name; the shipped ones by default."""
    source = folder or resources.files("watchkeeper.packs") / "scenarios"
    files = sorted((file for file in source.iterdir() if file.name.endswith(".yaml")), key=lambda file: file.name)
    return {one.name: one for one in (read(file.read_text(encoding="utf-8"), file=file.name) for file in files)}


def read(text: str, *, file: str) -> Scenario:
    """One scenario, or a PackError that names the file and every key that is wrong."""
    where = f"packs/scenarios/{file}"
    try:
        plain = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise PackError(f"not YAML: {error}", where=where) from error
    try:
        one = wire.from_plain(Scenario, _without_keyword(plain))
    except WireError as error:
        raise PackError("; ".join(error.problems).replace("lasts", "for"), where=where) from error
    if f"{one.name}.yaml" != file:
        raise PackError(f"name: `{one.name}` must be the file's own name, {file.removesuffix('.yaml')}", where=where)
    return one


def find(known: dict[str, Scenario], name: str) -> Scenario:
    try:
        return known[name]
    except KeyError:
        raise UnknownName(f"there is no scenario `{name[:80]}`", now=f"Known: {', '.join(known)}") from None


def _without_keyword(plain: Any) -> Any:
    """`for` is the right word in a file and cannot be a field name in Python."""
    if not isinstance(plain, dict):
        return plain
    return {"lasts" if key == "for" else key: value for key, value in plain.items()}
