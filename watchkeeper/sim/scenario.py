"""Faults as data: what packs/scenarios/NAME.yaml may say, and how it is read.

A scenario tells its story to people, names the kernel lines and the primitive effects that faults.py
plays, which repairs end it, and the right answer, against which drills score the product. A scenario
that uses known effects needs no code.
"""

from __future__ import annotations

import difflib
import string
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

import yaml

from watchkeeper.errors import PackError, WireError
from watchkeeper.kit import durations, wire, yaml_text
from watchkeeper.model import actions, alerts
from watchkeeper.sim.effects import Effect
from watchkeeper.sim.fleet import UnknownName

# What a kernel line template may ask for.
OF_A_GPU = frozenset({"pci", "uuid", "serial"})
PLACEHOLDERS = OF_A_GPU | {"pid", "process", "channel", "address", "row"}


class FaultTarget(StrEnum):
    """What breaks; a job is a training job, a service answers requests, a pod is one that the scenario brings along."""

    GPU = "gpu"
    NODE = "node"
    RACK = "rack"
    JOB = "job"
    SERVICE = "service"
    POD = "pod"
    NAMESPACE = "namespace"


class RequiredWork(StrEnum):
    """What runs at the place when the fault strikes; it is started if it is not there.

    Wide training has ranks on several nodes. A mute training job tells nobody about its steps; it is always one that
    the fault brings along, and it works from the injection on until the fault strikes.
    """

    TRAINING = "training"
    WIDE_TRAINING = "wide_training"
    MUTE_TRAINING = "mute_training"
    SERVING = "serving"
    RESERVATION = "reservation"


class FaultRepair(StrEnum):
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
        if strange := sorted(self.placeholders - PLACEHOLDERS):
            raise ValueError(f"unknown placeholder {{{strange[0]}}}; known: {', '.join(sorted(PLACEHOLDERS))}")

    @property
    def placeholders(self) -> frozenset[str]:
        return frozenset(name for _, name, _, _ in string.Formatter().parse(self.text) if name is not None)


@dataclass(frozen=True, slots=True)
class ExpectedDiagnosis:
    """The right answer; `action` is the step that ends the trouble, not the cordon before it."""

    cause: str
    action: actions.ActionKind
    severity: alerts.Severity
    place: FaultTarget


@dataclass(frozen=True, slots=True)
class Scenario:
    """One file. `lasts` is the file's `for`: None means until it is repaired."""

    name: str
    title: str
    story: str
    strikes: FaultTarget
    effects: tuple[Effect, ...]
    repaired_by: tuple[FaultRepair, ...]
    truth: ExpectedDiagnosis
    after: str = "0s"
    lasts: str | None = None
    work: RequiredWork | None = None
    # Nodes of these pools only; empty means any. A fabric needs NVSwitches, a pod needs Kubernetes.
    pools: tuple[str, ...] = ()
    # How long physics or the nature of the fault needs until any number shows it: metal heats up, a trend must be one.
    visible_after: str = "0s"
    # How much history a drill gathers before the fault: rules that compare with a baseline need one.
    history: str = "10m"
    kernel: tuple[str | KernelLine, ...] = ()

    def __post_init__(self) -> None:
        durations.parse_ms(self.after)
        if self.lasts is not None:
            durations.parse_ms(self.lasts)
        durations.parse_ms(self.history)
        durations.parse_ms(self.visible_after)
        of_a_gpu = sorted({name for line in self.kernel_lines for name in line.placeholders} & OF_A_GPU)
        if of_a_gpu and self.strikes is not FaultTarget.GPU:
            raise ValueError(f"a kernel line with {{{of_a_gpu[0]}}} names a GPU, so its scenario must strike a gpu")

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
        plain = yaml_text.load(text)
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
        near = difflib.get_close_matches(name[:80], known, n=1, cutoff=0.5)
        remedy = f"Did you mean {near[0]}?" if near else None
        raise UnknownName(
            f"there is no scenario `{name[:80]}`", now=f"Known: {', '.join(known)}", remedy=remedy
        ) from None


def _without_keyword(plain: Any) -> Any:
    """`for` is the right word in a file and cannot be a field name in Python."""
    if not isinstance(plain, dict):
        return plain
    return {"lasts" if key == "for" else key: value for key, value in plain.items()}
