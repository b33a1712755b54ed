"""What the doctor answers: inputs, events and findings, as values and in the documented JSON shape.

`examine` makes it, the command line prints it. Keys of the JSON are added, never renamed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from functools import cache
from typing import Any

from watchkeeper.catalogue import causes, pack
from watchkeeper.doctor import collecting, signatures, wording
from watchkeeper.doctor.facts import DoctorFacts, Input, Sighting
from watchkeeper.doctor.ranking import WORTH_ASKING, Weighed
from watchkeeper.model import diagnosis, fleet

FILE = "doctor_actions.csv"
# What a finding may name as its place, in the order in which people read it.
PLACES = (
    *(
        "node",
        "gpu",
        "pci",
        "uuid",
        "port_pci",
        "switch_pci",
        "culprit_rank",
        "rank",
        "local_rank",
        "missing_rank",
        "missing_node",
        "missing_gpu",
        "noticed_rank",
        "noticed_node",
        "pod",
        "namespace",
        "container",
        "job",
        "step",
    ),
    *(
        "interface",
        "hca",
        "owner",
        "port",
        "switch",
        "link",
        "peer",
        "process",
        "pid",
        "collective",
        "resource",
        "taint",
    ),
)
NUMBERS = frozenset(
    {
        "gpu",
        "culprit_rank",
        "rank",
        "local_rank",
        "missing_rank",
        "missing_gpu",
        "noticed_rank",
        "pid",
        "link",
        "switch",
        "port",
    }
)
MAX_VALUES_OF_A_PLACE = 16
# Where the first thing that a reason says ends.
FIRST_CLAUSE = re.compile(r"\. |; ")
# What commands may name.
FILLED = ("node", "gpu", "pci", "pod", "job", "pid", "hca", "peer")


class JobScheduler(Enum):
    KUBERNETES = "kubernetes"
    SLURM = "slurm"
    UNKNOWN = "unknown"


KUBERNETES_KINDS = ("kube", "device_plugin")
SLURM_KINDS = ("slurm", "scontrol", "sinfo", "squeue", "sacct", "sdiag")
SLURM_SIGNS = ("slurm-oom", "slurm-task-oom", "slurm-node-fail", "slurm-gres-count")
_KUBECTL_DRAIN = "kubectl drain {node} --ignore-daemonsets --delete-emptydir-data"
_SCONTROL_DRAIN = "scontrol update nodename={node} state=drain reason=gpu-fault"
DRAIN = {
    JobScheduler.KUBERNETES: _KUBECTL_DRAIN,
    JobScheduler.SLURM: _SCONTROL_DRAIN,
    JobScheduler.UNKNOWN: f"{_KUBECTL_DRAIN}   (Slurm: {_SCONTROL_DRAIN})",
}
CORDON = {
    JobScheduler.KUBERNETES: "kubectl cordon {node}",
    JobScheduler.SLURM: _SCONTROL_DRAIN,
    JobScheduler.UNKNOWN: f"kubectl cordon {{node}}   (Slurm: {_SCONTROL_DRAIN})",
}


class DoctorVerdict(IntEnum):
    """The exit code."""

    NOTHING_FOUND = 0
    CAUSE_FOUND = 1
    CANNOT_TELL = 3


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """One cause, where, why, on which lines, and what to do. `where` values are one thing or several."""

    cause: str
    confidence: float
    where: Mapping[str, Any]
    title: str
    why: str
    evidence: tuple[Sighting, ...]
    actions: tuple[diagnosis.DiagnosisStep, ...]
    ruled_out: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """Findings best first; none means that nothing wrong was found in what was read.

    `is_partial`: something that the answer hangs on could not be asked, and a note says what.
    """

    inputs: tuple[Input, ...]
    events: tuple[Mapping[str, Any], ...]
    findings: tuple[DoctorFinding, ...]
    notes: tuple[str, ...]
    is_partial: bool = False

    @property
    def verdict(self) -> DoctorVerdict:
        if any(finding.cause != diagnosis.UNKNOWN_CAUSE for finding in self.findings):
            return DoctorVerdict.CAUSE_FOUND
        unread = all(given.kind in ("binary", "empty", "text") or given.problem for given in self.inputs)
        return DoctorVerdict.CANNOT_TELL if self.findings or unread or self.is_partial else DoctorVerdict.NOTHING_FOUND


@dataclass(frozen=True, slots=True)
class _Ways:
    """What can be done about each cause here."""

    scheduler: JobScheduler
    steps: Mapping[str, tuple[diagnosis.DiagnosisStep, ...]]


def build(facts: DoctorFacts, weighed: Iterable[Weighed]) -> DoctorReport:
    notes = [f"{facts.dropped_events:,} further events are not listed"] if facts.dropped_events else []
    notes += [f"{given.name}: {given.problem}" for given in facts.inputs if given.problem]
    notes += facts.notes
    ways = _Ways(_scheduler(facts), _steps() | {diagnosis.UNKNOWN_CAUSE: collecting.steps(facts.kinds())})
    findings = tuple(_finding(candidate, ways) for candidate in weighed)
    return DoctorReport(tuple(facts.inputs), tuple(facts.events), findings, tuple(notes))


def _scheduler(facts: DoctorFacts) -> JobScheduler:
    """Who places the jobs here, as far as the inputs tell: commands to drain a node differ."""
    kinds = facts.kinds()
    slurm = facts.has(*SLURM_SIGNS) or any(kind.startswith(SLURM_KINDS) for kind in kinds)
    kubernetes = any(kind.startswith(KUBERNETES_KINDS) for kind in kinds)
    if slurm is kubernetes:
        return JobScheduler.UNKNOWN
    return JobScheduler.SLURM if slurm else JobScheduler.KUBERNETES


def _finding(candidate: Weighed, ways: _Ways) -> DoctorFinding:
    row = causes.lookup(candidate.cause)
    where = _where(candidate)
    title = wording.title(row, where)
    if candidate.cause == diagnosis.UNKNOWN_CAUSE and candidate.confidence >= WORTH_ASKING and candidate.why:
        # No cause of the catalogue, but a sign that says what it is: a job that Slurm ended, a disk that was full.
        title = FIRST_CLAUSE.split(candidate.why, maxsplit=1)[0].rstrip(".")
    steps = tuple(diagnosis.DiagnosisStep(text) for text in candidate.advice)
    return DoctorFinding(
        cause=candidate.cause,
        confidence=round(candidate.confidence, 2),
        where=where,
        title=title,
        why=candidate.why or row.why,
        evidence=tuple(
            {(sighting.input, sighting.line, sighting.text): sighting for sighting in candidate.sightings}.values()
        ),
        actions=(*steps, *_actions(candidate.cause, where, ways)),
        ruled_out=candidate.ruled_out,
    )


def _where(candidate: Weighed) -> dict[str, Any]:
    places: dict[str, list[str]] = {}
    for name, value in candidate.extra_where:
        places.setdefault(name, []).append(value)
    for sighting in candidate.sightings:
        fields = _own_fields(sighting)
        for name in PLACES:
            # A pattern with alternatives names the same place `node`, `node2`, `node3`.
            spellings = [fields.get(f"{name}{suffix}") for suffix in ("", "2", "3")]
            places.setdefault(name, []).extend(_one_spelling(name, text) for text in spellings if text)
    places = {name: texts for name, texts in places.items() if texts}
    return {name: _shape(name, list(dict.fromkeys(places[name]))) for name in PLACES if name in places}


def _own_fields(sighting: Sighting) -> Mapping[str, str]:
    """What a sighting names as the place of its cause; who only noticed what befell another is not it."""
    sign = signatures.table().signs.get(sighting.sign)
    if sign is None or sign.role is not signatures.Role.EFFECT:
        return sighting.fields
    noticed = {f"noticed_{name}": value for name in ("rank", "node") if (value := sighting.fields.get(name))}
    return noticed | ({"peer": sighting.fields["peer"]} if "peer" in sighting.fields else {})


def _one_spelling(name: str, value: str) -> str:
    if name != "pci":
        return value
    try:
        return fleet.normalise_pci(value)
    except ValueError:
        return value


def _shape(name: str, values: Sequence[str]) -> Any:
    shaped = [int(value) if name in NUMBERS and value.isdigit() else value for value in values[:MAX_VALUES_OF_A_PLACE]]
    return shaped[0] if len(shaped) == 1 else shaped


def _actions(cause: str, where: Mapping[str, Any], ways: _Ways) -> tuple[diagnosis.DiagnosisStep, ...]:
    row = causes.lookup(cause)
    place, node = wording.place(row, where), wording.one(where.get("node"))
    filled = {name: wording.one(where.get(name)) or name.upper() for name in FILLED}
    if "pci" not in where and isinstance(where.get("port_pci"), str):
        filled["pci"] = where["port_pci"]
    if "gpu" not in where and isinstance(pci := where.get("pci"), str):
        # nvidia-smi takes an address in the place of an index; the kernel's has no function behind it.
        filled["gpu"] = pci if "." in pci else f"{pci}.0"
    filled |= {
        name: _fill(text, filled)
        for name, text in (("drain", DRAIN[ways.scheduler]), ("cordon", CORDON[ways.scheduler]))
    }
    listed = tuple(
        diagnosis.DiagnosisStep(step.do, None if step.command is None else _fill(step.command, filled), step.risk)
        for step in ways.steps.get(cause, ())
    )
    return listed or (diagnosis.DiagnosisStep(row.advice(place, node)),)


def _fill(command: str, filled: Mapping[str, str]) -> str:
    for name, value in filled.items():
        command = command.replace("{" + name + "}", value)
    return command


@cache
def _steps() -> dict[str, tuple[diagnosis.DiagnosisStep, ...]]:
    steps_by_cause: dict[str, list[diagnosis.DiagnosisStep]] = {}
    for cause, step in pack.load(FILE, _read_row):
        steps_by_cause.setdefault(cause, []).append(step)
    return {cause: tuple(steps) for cause, steps in steps_by_cause.items()}


def _read_row(cells: Mapping[str, str]) -> tuple[str, diagnosis.DiagnosisStep]:
    cause_ids = frozenset(row.cause for row in causes.all_causes())
    step = diagnosis.DiagnosisStep(pack.required(cells["do"]), cells["command"] or None, diagnosis.Risk(cells["risk"]))
    return pack.choice(cells["cause"], cause_ids), step


def as_plain(report: DoctorReport) -> dict[str, Any]:
    """The documented JSON of `watchkeeper doctor --json`."""
    return {
        "inputs": [
            {"name": given.name, "kind": given.kind} | ({"problem": given.problem} if given.problem else {})
            for given in report.inputs
        ],
        "events": list(report.events),
        "findings": [
            {
                "cause": finding.cause,
                "confidence": finding.confidence,
                "where": dict(finding.where),
                "title": finding.title,
                "why": finding.why,
                "evidence": [
                    {"input": sighting.input, "line": sighting.line, "text": sighting.text}
                    for sighting in finding.evidence
                ],
                "actions": [
                    {"do": step.do, "command": step.command, "risk": step.risk.value} for step in finding.actions
                ],
                "not": list(finding.ruled_out),
            }
            for finding in report.findings
        ],
        "notes": list(report.notes),
    }
