"""The doctor's report: inputs, events and findings, as values and as documented JSON.

`examine` creates it, the command line prints it. JSON keys are added, never renamed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, IntEnum
from functools import cache
from typing import Any

from watchkeeper.catalogue import causes, pack
from watchkeeper.doctor import signatures
from watchkeeper.doctor.facts import DoctorFacts, Input, Opinion, Sighting
from watchkeeper.doctor.ranking import MIN_UNKNOWN_CONFIDENCE
from watchkeeper.model import diagnosis, fleet

FILE = "doctor_actions.csv"
# What to collect next if the cause is unknown.
INPUTS_FILE = "doctor_inputs.csv"
# The fields of a finding's place, in display order.
PLACES = (
    "node", "gpu", "pci", "uuid", "port_pci", "switch_pci", "culprit_rank", "rank", "local_rank", "missing_rank",
    "missing_node", "missing_gpu", "noticed_rank", "noticed_node", "pod", "namespace", "container", "job", "step",
    "interface", "hca", "owner", "port", "switch", "link", "peer", "process", "pid", "collective", "resource",
    "taint",
)  # fmt: skip
NUMBERS = frozenset({
    "gpu", "culprit_rank", "rank", "local_rank", "missing_rank", "missing_gpu", "noticed_rank", "pid", "link",
    "switch", "port",
})  # fmt: skip
MAX_VALUES = 16
# The end of the first clause of a reason.
FIRST_CLAUSE = re.compile(r"\. |; ")
# Placeholders in commands.
COMMAND_FIELDS = ("node", "gpu", "pci", "pod", "job", "pid", "hca", "peer", "port")
# A title that begins with one of these is capitalised; a node name at the start is not changed.
CAPITALISED_STARTS = ("this ", "the job", "a GPU", "rank ", "pod ", "job ")
MEMBER_PLACES = (("culprit_rank", "rank {}"), ("rank", "rank {}"), ("pod", "pod {}"), ("job", "job {}"))
HARDWARE_PLACES = (("gpu", "GPU {}"), ("pci", "GPU {}"), ("switch", "NVSwitch {}"), ("port_pci", "port {}"))
PORT_CAUSES = frozenset({"ib_link_degraded", "ib_management_drops", "nccl_ib_link_error", "port_in_use"})
MAX_PORTS = 4


class JobScheduler(Enum):
    KUBERNETES = "kubernetes"
    SLURM = "slurm"
    UNKNOWN = "unknown"


# Beginnings of kinds of input and of signs; exit codes are the same everywhere.
KUBERNETES_KINDS = ("kube", "device_plugin", "k8s-", "plugin-", "operator-", "coredns-", "pod-cannot-")
ANY_SCHEDULER = ("k8s-exit-",)
SLURM_KINDS = ("slurm", "scontrol", "sinfo", "squeue", "sacct", "sdiag")
_SCONTROL_DRAIN = "scontrol update nodename={node} state=drain reason=gpu-fault"
NODE_COMMANDS = {
    "drain": f"kubectl drain {{node}} --ignore-daemonsets --delete-emptydir-data   (Slurm: {_SCONTROL_DRAIN})",
    "cordon": f"kubectl cordon {{node}}   (Slurm: {_SCONTROL_DRAIN})",
}
# kubectl describe node gpu07   (Slurm: scontrol show node gpu07)
BY_SCHEDULER = re.compile(r"(?P<kubernetes>.*?) {3}\(Slurm: (?P<slurm>.*)\)")


class DoctorVerdict(IntEnum):
    """The verdict of a report, which is also the exit code."""

    NOTHING_FOUND = 0
    CAUSE_FOUND = 1
    CANNOT_TELL = 3


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """A cause with place, reason, evidence and next steps; a value of `where` is a single value or a list."""

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
    """The findings, best first; empty if no fault was found in the inputs.

    `is_partial` if required data could not be read; a note says which.
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


def build(facts: DoctorFacts, candidates: Iterable[Opinion]) -> DoctorReport:
    notes = [f"{facts.dropped_events:,} more events are not listed"] if facts.dropped_events else []
    notes += [f"{entry.name}: {entry.problem}" for entry in facts.inputs if entry.problem]
    notes += facts.notes
    findings = tuple(_make_finding(candidate, facts) for candidate in candidates)
    return DoctorReport(tuple(facts.inputs), tuple(facts.events), findings, tuple(notes))


def _detect_scheduler(facts: DoctorFacts) -> JobScheduler:
    """The scheduler that the inputs come from: the commands to drain a node differ."""
    names = [name for name in (*facts.kinds(), *facts.signs()) if not name.startswith(ANY_SCHEDULER)]
    slurm, kubernetes = (any(name.startswith(kinds) for name in names) for kinds in (SLURM_KINDS, KUBERNETES_KINDS))
    if slurm is kubernetes:
        return JobScheduler.UNKNOWN
    return JobScheduler.SLURM if slurm else JobScheduler.KUBERNETES


def _make_finding(candidate: Opinion, facts: DoctorFacts) -> DoctorFinding:
    row = causes.lookup(candidate.cause)
    where = _collect_places(candidate)
    title = title_text(row, where)
    if candidate.cause == diagnosis.UNKNOWN_CAUSE and candidate.confidence >= MIN_UNKNOWN_CONFIDENCE and candidate.why:
        # The catalogue has no such cause, but the sign describes it: a job that Slurm ended, a full disk.
        title = FIRST_CLAUSE.split(candidate.why, maxsplit=1)[0].rstrip(".")
    evidence = {(sighting.input, sighting.line, sighting.text): sighting for sighting in candidate.sightings}
    return DoctorFinding(
        cause=candidate.cause,
        confidence=round(candidate.confidence, 2),
        where=where,
        title=title,
        why=candidate.why or row.why,
        evidence=tuple(evidence.values()),
        actions=(
            *map(diagnosis.DiagnosisStep, candidate.advice),
            *(_steps_of_signs(candidate) or _next_steps(row, where, facts)),
        ),
        ruled_out=candidate.ruled_out,
    )


def _steps_of_signs(candidate: Opinion) -> tuple[diagnosis.DiagnosisStep, ...]:
    """What to do about a line with an answer of its own, although the catalogue has no cause for it."""
    if candidate.cause != diagnosis.UNKNOWN_CAUSE:
        return ()
    signs = signatures.table().signs
    names = dict.fromkeys(sighting.sign for sighting in candidate.sightings if sighting.sign in signs)
    return tuple(diagnosis.DiagnosisStep(do, command) for name in names for do, command in signs[name].steps)


def _collect_places(candidate: Opinion) -> dict[str, Any]:
    places: dict[str, list[str]] = {}
    for name, value in candidate.extra_where:
        places.setdefault(name, []).append(value)
    for sighting in candidate.sightings:
        fields = _place_fields(sighting)
        for name in PLACES:
            # A pattern with alternatives names the same place `node`, `node2`, `node3`.
            values = [fields.get(f"{name}{suffix}") for suffix in ("", "2", "3")]
            places.setdefault(name, []).extend(_normalise_place(name, value) for value in values if value)
    return {name: _place_value(name, list(dict.fromkeys(places[name]))) for name in PLACES if places.get(name)}


def _place_fields(sighting: Sighting) -> Mapping[str, str]:
    """The place fields of a sighting; a rank or node that only noticed the fault of another is marked as such."""
    sign = signatures.table().signs.get(sighting.sign)
    if sign is None or sign.role is not signatures.Role.EFFECT:
        return sighting.fields
    noticed = {f"noticed_{name}": value for name in ("rank", "node") if (value := sighting.fields.get(name))}
    return noticed | ({"peer": sighting.fields["peer"]} if "peer" in sighting.fields else {})


def _normalise_place(name: str, value: str) -> str:
    if name != "pci":
        return value
    try:
        return fleet.normalise_pci(value)
    except ValueError:
        return value


def _place_value(name: str, values: Sequence[str]) -> Any:
    converted = [int(value) if name in NUMBERS and value.isdigit() else value for value in values[:MAX_VALUES]]
    return converted[0] if len(converted) == 1 else converted


def _next_steps(
    row: causes.CauseRow, where: Mapping[str, Any], facts: DoctorFacts
) -> tuple[diagnosis.DiagnosisStep, ...]:
    replacements = {name: single_value(where.get(name)) or name.upper() for name in COMMAND_FIELDS}
    if "pci" not in where and isinstance(where.get("port_pci"), str):
        replacements["pci"] = where["port_pci"]
    if "gpu" not in where and isinstance(pci := where.get("pci"), str):
        # nvidia-smi accepts an address instead of an index; kernel addresses have no function number.
        replacements["gpu"] = pci if "." in pci else f"{pci}.0"
    replacements |= {name: _fill_command(text, replacements) for name, text in NODE_COMMANDS.items()}
    scheduler = _detect_scheduler(facts)
    is_unknown = row.cause == diagnosis.UNKNOWN_CAUSE
    steps = collection_steps(facts.kinds()) if is_unknown else _steps_by_cause().get(row.cause, ())
    if not steps:
        place, node = place_text(row, where), single_value(where.get("node"))
        return (diagnosis.DiagnosisStep(row.advice(place, node)),)
    commands = (step.command and _fill_command(step.command, replacements) for step in steps)
    return tuple(
        replace(step, command=command and _command_for(scheduler, command))
        for step, command in zip(steps, commands, strict=True)
    )


def _command_for(scheduler: JobScheduler, command: str) -> str:
    """The command of the scheduler that the inputs come from; both if it is unknown."""
    match = BY_SCHEDULER.fullmatch(command)
    return command if match is None or scheduler is JobScheduler.UNKNOWN else match[scheduler.value]


def _fill_command(command: str, replacements: Mapping[str, str]) -> str:
    for name, value in replacements.items():
        command = command.replace("{" + name + "}", value)
    return command


def title_text(row: causes.CauseRow, where: Mapping[str, Any]) -> str:
    place = place_text(row, where)
    # A single rank is not "Ranks of" something.
    if row.title.startswith("Ranks of") and place.startswith("rank "):
        place = "this job"
    text = row.headline(place, single_value(where.get("node")) or "this system").replace("A rank of rank ", "rank ")
    missing = single_value(where.get("missing_rank"))
    if missing is not None and "rank" in text and f"rank {missing}" not in text:
        text = f"{text}: rank {missing}"
    if row.cause in PORT_CAUSES and (ports := _ports(where)):
        text = f"{text}: {ports}"
    return text[:1].upper() + text[1:] if text.startswith(CAPITALISED_STARTS) else text


def place_text(row: causes.CauseRow, where: Mapping[str, Any]) -> str:
    """The part that failed."""
    scope, node = row.scope, where.get("node")
    if row.cause == diagnosis.UNKNOWN_CAUSE and not {"gpu", "pci", "uuid"} & where.keys():
        # An unknown cause is about a GPU only if a line names one.
        scope = "node"
    suffix = f" of {node}" if isinstance(node, str) else f" of {len(node)} nodes" if isinstance(node, list) else ""
    member, hardware = _first_place(where, MEMBER_PLACES), _first_place(where, HARDWARE_PLACES)
    if scope == "workload":
        suffix = suffix if isinstance(node, str) else ""
        if member is not None:
            return member + (suffix.replace(" of ", " on ", 1) if member.startswith("pod ") else suffix)
        if isinstance(node, list) or not (hardware or node):
            return "this job"
        return f"the job on {hardware}{suffix}" if hardware else f"the job on {node}"
    if name := hardware or member:
        return name + suffix
    gpus = next((values for name in ("gpu", "pci") if isinstance(values := where.get(name), list)), None)
    if scope == "gpu":
        return (f"{len(gpus)} GPUs" if gpus else "a GPU") + (suffix or " of this system")
    return node if isinstance(node, str) else "this system"


def single_value(value: Any) -> str | None:
    """The only value; None if there are several or none."""
    if isinstance(value, list):
        return str(value[0]) if len(value) == 1 else None
    return None if value is None else str(value)


def _first_place(where: Mapping[str, Any], templates: Sequence[tuple[str, str]]) -> str | None:
    values = ((template, single_value(where.get(name))) for name, template in templates)
    return next((template.format(value) for template, value in values if value is not None), None)


def _ports(where: Mapping[str, Any]) -> str:
    """The ports that the lines name, with their adapter or interface."""
    owner = next((where[name] for name in ("hca", "owner", "interface") if name in where), None)
    if isinstance(owner, list):
        return ", ".join(map(str, owner[:MAX_PORTS])) + (", …" if len(owner) > MAX_PORTS else "")
    port = single_value(where.get("port"))
    return " ".join(filter(None, (owner, port and f"port {port}")))


@cache
def _steps_by_cause() -> dict[str, tuple[diagnosis.DiagnosisStep, ...]]:
    steps_by_cause: dict[str, list[diagnosis.DiagnosisStep]] = {}
    for cause, step in pack.load(FILE, _read_action_row):
        steps_by_cause.setdefault(cause, []).append(step)
    return {cause: tuple(steps) for cause, steps in steps_by_cause.items()}


def _read_action_row(cells: Mapping[str, str]) -> tuple[str, diagnosis.DiagnosisStep]:
    return pack.choice(cells["cause"], frozenset(row.cause for row in causes.all_causes())), _read_step(cells)


def _read_step(cells: Mapping[str, str]) -> diagnosis.DiagnosisStep:
    return diagnosis.DiagnosisStep(pack.required(cells["do"]), cells["command"] or None, diagnosis.Risk(cells["risk"]))


def collection_steps(kinds: Iterable[str]) -> tuple[diagnosis.DiagnosisStep, ...]:
    """The steps whose `only` prefixes, if any, match an input, and whose `unless` prefixes match none."""
    input_kinds = tuple(kinds)
    return tuple(
        step
        for only, unless, step in pack.load(INPUTS_FILE, _read_input_row)
        if (not only or any(kind.startswith(only) for kind in input_kinds))
        and not any(kind.startswith(unless) for kind in input_kinds)
    )


def _read_input_row(cells: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[str, ...], diagnosis.DiagnosisStep]:
    return tuple(cells["only"].split()), tuple(cells["unless"].split()), _read_step(cells)


def as_plain(report: DoctorReport) -> dict[str, Any]:
    return {
        "inputs": [
            {"name": entry.name, "kind": entry.kind} | ({"problem": entry.problem} if entry.problem else {})
            for entry in report.inputs
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
