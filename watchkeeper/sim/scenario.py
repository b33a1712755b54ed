"""Read scenarios: the content of packs/scenarios/NAME.yaml.

A scenario has a description, the kernel lines and effects that `faults` applies, the repairs that end it, and the
correct diagnosis, with which drills score the product. A scenario with existing effects needs no code.
"""

from __future__ import annotations

import difflib
import string
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from importlib.resources.abc import Traversable

import yaml

from watchkeeper.catalogue import xid
from watchkeeper.errors import PackError, WireError
from watchkeeper.kit import durations, wire, yaml_text
from watchkeeper.model import actions, alerts
from watchkeeper.sim.effects import Effect
from watchkeeper.sim.fleet import UnknownName

# Placeholders of kernel lines.
GPU_PLACEHOLDERS = frozenset({"pci", "uuid", "serial"})
PLACEHOLDERS = GPU_PLACEHOLDERS | {"pid", "process", "channel", "address", "row"}


class FaultTarget(StrEnum):
    """What a scenario breaks; a job is a training job, and a pod is one that the scenario creates."""

    GPU = "gpu"
    NODE = "node"
    RACK = "rack"
    JOB = "job"
    SERVICE = "service"
    POD = "pod"
    NAMESPACE = "namespace"


class RequiredWork(StrEnum):
    """The work that must run at the place when the fault starts; it is started if necessary.

    Wide training has ranks on several nodes. A mute training job exports no metrics; it is always a new job, which runs
    from the injection on until the fault starts.
    """

    TRAINING = "training"
    WIDE_TRAINING = "wide_training"
    MUTE_TRAINING = "mute_training"
    SERVING = "serving"
    RESERVATION = "reservation"


class FaultRepair(StrEnum):
    """What ends a fault; `replace` means that a person replaces hardware (DELETE /faults/ID)."""

    REBOOT = "reboot"
    RESET_GPU = "reset_gpu"
    DRAIN = "drain"
    RESTART_APP = "restart_app"
    REPLACE = "replace"


@dataclass(frozen=True, slots=True)
class KernelLine:
    """One kernel log line, `after` the start of the fault."""

    text: str
    after: str = "0s"

    def __post_init__(self) -> None:
        durations.parse_ms(self.after)
        if unknown := sorted(self.placeholders - PLACEHOLDERS):
            raise ValueError(f"unknown placeholder {{{unknown[0]}}}; use {', '.join(sorted(PLACEHOLDERS))}")

    @property
    def placeholders(self) -> frozenset[str]:
        return frozenset(name for _, name, _, _ in string.Formatter().parse(self.text) if name is not None)


@dataclass(frozen=True, slots=True)
class ExpectedDiagnosis:
    """The correct diagnosis; `action` is the step that fixes the fault, not the cordon before it."""

    cause: str
    action: actions.ActionKind
    severity: alerts.Severity
    place: FaultTarget


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario file; `lasts` is its key `for`, None means until it is repaired."""

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
    # Only nodes of these pools; empty means any. A fabric needs NVSwitches, a pod needs Kubernetes.
    pools: tuple[str, ...] = ()
    # The time until any metric shows the fault: hardware heats up slowly, a trend needs several values.
    visible_after: str = "0s"
    # The history that a drill simulates before the fault, for rules that compare with a baseline.
    history: str = "10m"
    kernel: tuple[str | KernelLine, ...] = ()

    def __post_init__(self) -> None:
        for duration in (self.after, self.lasts, self.history, self.visible_after):
            if duration is not None:
                durations.parse_ms(duration)
        gpu_placeholders = sorted({name for line in self.kernel_lines for name in line.placeholders} & GPU_PLACEHOLDERS)
        if gpu_placeholders and self.strikes is not FaultTarget.GPU:
            line = f"a kernel line with {{{gpu_placeholders[0]}}}"
            raise ValueError(f"{line} needs a GPU, so the scenario needs `strikes: gpu`")

    @property
    def kernel_lines(self) -> tuple[KernelLine, ...]:
        return tuple(KernelLine(line) if isinstance(line, str) else line for line in self.kernel)


def load_scenarios(folder: Traversable | None = None) -> dict[str, Scenario]:
    source = folder or resources.files("watchkeeper.packs") / "scenarios"
    files = sorted((file for file in source.iterdir() if file.name.endswith(".yaml")), key=lambda file: file.name)
    parsed = (parse_scenario(file.read_text(encoding="utf-8"), file=file.name) for file in files)
    return {scenario.name: scenario for scenario in parsed}


def parse_scenario(text: str, *, file: str) -> Scenario:
    """Parse one scenario; PackError with the file and all invalid keys."""
    where = f"packs/scenarios/{file}"
    try:
        document = yaml_text.load(text)
    except yaml.YAMLError as error:
        raise PackError(f"not YAML: {error}", where=where) from error
    try:
        if isinstance(document, dict):
            # `for` cannot be the name of a field in Python.
            document = {"lasts" if key == "for" else key: value for key, value in document.items()}
        scenario = wire.from_plain(Scenario, document)
    except WireError as error:
        raise PackError("; ".join(error.problems).replace("lasts", "for"), where=where) from error
    if f"{scenario.name}.yaml" != file:
        expected = file.removesuffix(".yaml")
        raise PackError(f"name: `{scenario.name}` must be the name of the file, {expected}", where=where)
    return scenario


def find_scenario(scenarios: dict[str, Scenario], name: str) -> Scenario:
    """The scenario of this name; `xid-CODE` is one for each code of the Xid catalogue."""
    try:
        return scenarios[name]
    except KeyError:
        code = name.removeprefix("xid-")
        if code != name and code.isdecimal() and (row := xid.lookup(int(code))).is_known:
            return _xid_scenario(name, row)
        matches = difflib.get_close_matches(name[:80], scenarios, n=1, cutoff=0.5)
        remedy = f"Did you mean {matches[0]}?" if matches else None
        listed = f"Scenarios: {', '.join(scenarios)}; xid-CODE for each code of `explain xid`"
        raise UnknownName(f"no scenario `{name[:80]}`", now=listed, remedy=remedy) from None


def _xid_scenario(name: str, row: xid.XidRow) -> Scenario:
    """The driver logs the code and nothing else changes."""
    return Scenario(
        name=name,
        title=f"The driver logs Xid {row.code}: {row.name}",
        story=f"{row.likely_cause}. The driver logs Xid {row.code}, and no metric shows anything else.",
        strikes=FaultTarget.GPU,
        kernel=(f"NVRM: Xid (PCI:{{pci}}): {row.code}, pid={{pid}}, name={{process}}, {row.name}",),
        effects=(),
        repaired_by=(FaultRepair.RESET_GPU, FaultRepair.REBOOT, FaultRepair.REPLACE),
        truth=ExpectedDiagnosis(row.cause, actions.ActionKind.INSPECT, row.severity, FaultTarget.GPU),
    )
