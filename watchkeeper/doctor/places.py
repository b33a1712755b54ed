"""Ranks and nodes that one line names and another needs: a line that fails rarely says everything about where it is.

A launcher puts a number before each line, a traceback names its rank in its heading, and the node of a rank stands
wherever a launcher, NCCL or `srun` wrote both. `examine` calls `settle` once, after all inputs are read; what lines
disagree about is left out.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from watchkeeper.doctor import records, signatures
from watchkeeper.doctor.facts import DoctorFacts, Sighting
from watchkeeper.model import fleet
from watchkeeper.readers.clusters import hostlist

# 9: RuntimeError: CUDA error: …      (srun --label)
LABEL = re.compile(r"^\s*(\d{1,6}): ")
# Slurm's own lines have no number, and so have those of a batch script.
UNLABELLED = re.compile(r"^\s*(?:srun|slurmstepd|salloc|sbatch)[:-]")
LABELLED_KINDS = frozenset({"slurm_log", "training_log", "nccl_log", "application_log", "python_traceback"})
HEADING = "python-traceback"
# Detected 12 PCIe replays per minute for GPU 4, above the threshold
GPU_NUMBER = re.compile(r"\bGPU ?#?(\d{1,2})(?!\d|[:.]\d)")
# 3m12s       Warning   SystemOOM   node/gpu07          System OOM encountered      (kubectl get events)
EVENT_ROW = re.compile(r"^\s*\S+\s+(?:Warning|Normal)\s+\w+\s+(?P<kind>pod|node)/(?P<name>[\w.-]+)\s")
# … err="…" pod="team-a/trainer-0"      … node="gpu07"      (klog, logfmt)
STRUCTURED = re.compile(
    r'\bpods?(?:Name)?=\[?"?(?:(?P<namespace>[a-z0-9][\w.-]*)/)?(?P<pod>[a-z0-9][\w.-]*)"?'
    r'|\b(?:node|nodeName|node_name|nodename|hostname)="?(?P<node>[A-Za-z][\w.-]*)"?'
    r"|\b(?:Worker|Node) IP(?: address)?: (?P<address>[\w.:]+\w)"
)
# The following GPUs could not be reset: GPU 00000000:07:00.0: In use by another client      detected on PCI:0000:07:00
GPU_ADDRESS = re.compile(
    r"\b(?:GPU ?(?:at )?(?:PCI:)?|PCI:)((?:[0-9A-Fa-f]{8}|[0-9A-Fa-f]{4}):[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2})\b"
)
# The error that a traceback ends with stands at most so far below its heading.
TRACEBACK_LINES = 60
# torchrun's block has the host a line above the rank.
BLOCK_LINES = 2
ROOT, ROOT_LINES = "elastic-root", 5
MOST_TASKS = 4096
# The driver says what goes wrong with one GPU in a few lines, of which not all have its address.
DRIVER = "NVRM: "
DRIVER_LINES = 4
ADDRESS = re.compile(r"[0-9A-Fa-f]{1,8}:[0-9A-Fa-f]{1,2}(?::[0-9A-Fa-f]{1,2})?(?:\.|$)")


def settle(facts: DoctorFacts) -> None:
    """Sightings with the rank and the node that other lines tell."""
    sightings = _labelled(facts, facts.all())
    sightings = _with_their_line(sightings)
    sightings = _with_their_heading(sightings)
    sightings = _with_their_record(facts, sightings)
    sightings = _with_their_gpu(sightings)
    sightings = _with_the_first_to_fail(sightings)
    facts.replace_all(_with_their_node(sightings, _homes(sightings)))


def _labelled(facts: DoctorFacts, sightings: Sequence[Sighting]) -> list[Sighting]:
    """The number before each line is a rank, where all lines of the input's programs have one."""
    kinds = {given.name: given.kind for given in facts.inputs}
    plain = {
        sighting.input
        for sighting in sightings
        if LABEL.match(sighting.text) is None and UNLABELLED.match(sighting.text) is None
    }
    return [
        _adding(sighting, {"rank": str(int(label[1]))})
        if kinds.get(sighting.input) in LABELLED_KINDS
        and sighting.input not in plain
        and (label := LABEL.match(sighting.text)) is not None
        else sighting
        for sighting in sightings
    ]


def _with_their_line(sightings: Sequence[Sighting]) -> list[Sighting]:
    """Of several signs on one line each knows what one of them reads."""
    fields_by_line: dict[tuple[str, int], dict[str, str]] = {}
    for sighting in sightings:
        more = {"local_rank": sighting.fields["local_rank"]} if "local_rank" in sighting.fields else {}
        fields_by_line.setdefault((sighting.input, sighting.line), {}).update(_place(sighting) | more)
    return [_adding(sighting, fields_by_line[sighting.input, sighting.line]) for sighting in sightings]


def _with_their_heading(sightings: Sequence[Sighting]) -> list[Sighting]:
    """An error without a place is that of the traceback above it."""
    headings: dict[str, list[Sighting]] = {}
    for sighting in sorted(sightings, key=lambda sighting: sighting.line):
        if sighting.sign == HEADING:
            headings.setdefault(sighting.input, []).append(sighting)
    resolved = []
    for sighting in sightings:
        above = headings.get(sighting.input, [])
        at = bisect_right(above, sighting.line, key=lambda sighting: sighting.line) - 1
        is_near = at >= 0 and 0 < sighting.line - above[at].line <= TRACEBACK_LINES
        resolved.append(_adding(sighting, _place(above[at])) if is_near and not _place(sighting) else sighting)
    return resolved


def _with_their_record(facts: DoctorFacts, sightings: Sequence[Sighting]) -> list[Sighting]:
    """What a sign does not say itself, the heading of its record or the row of its table may."""
    resolved = []
    for sighting in sightings:
        for record in records.enclosing_records(facts.records.get(sighting.input, ()), sighting.line):
            sighting = _adding(sighting, record.fields)
        if not {"gpu", "pci"} & sighting.fields.keys():
            for name, pattern in (("pci", GPU_ADDRESS), ("gpu", GPU_NUMBER)):
                if len(numbers := set(pattern.findall(sighting.text))) == 1:
                    sighting = _adding(sighting, {name: numbers.pop()})
        if (row := EVENT_ROW.match(sighting.text)) is not None:
            sighting = _adding(sighting, {row["kind"]: row["name"]})
        for pair in STRUCTURED.finditer(sighting.text) if "=" in sighting.text or " IP" in sighting.text else ():
            named = {"node" if name == "address" else name: value for name, value in pair.groupdict().items() if value}
            sighting = _adding(sighting, named)
        resolved.append(sighting)
    return resolved


def _with_their_gpu(sightings: Sequence[Sighting]) -> list[Sighting]:
    """A line of the driver without an address is about the GPU that the lines around it name, if that is one."""
    named: dict[tuple[str, int], set[str]] = {}
    for sighting in sightings:
        if DRIVER in sighting.text and (pci := sighting.fields.get("pci")) and ADDRESS.match(pci):
            named.setdefault((sighting.input, sighting.line), set()).add(fleet.normalise_pci(pci))
    resolved = []
    for sighting in sightings:
        if named and DRIVER in sighting.text and not {"pci", "gpu"} & sighting.fields.keys():
            nearby = range(sighting.line - DRIVER_LINES, sighting.line + DRIVER_LINES + 1)
            near = set().union(*(named.get((sighting.input, line), set()) for line in nearby))
            sighting = _adding(sighting, {"pci": near.pop()}) if len(near) == 1 else sighting
        resolved.append(sighting)
    return resolved


def _with_the_first_to_fail(sightings: Sequence[Sighting]) -> list[Sighting]:
    """An error of a rank that no line names is that of the rank which torchrun saw failing first."""
    roots: dict[str, list[Sighting]] = {}
    named: set[str] = set()
    for sighting in sightings:
        if sighting.sign == ROOT:
            roots.setdefault(sighting.input, []).append(sighting)
        elif _is_cause(sighting) and _place(sighting):
            named.add(sighting.input)
    first = {
        name: place
        for name, roots_of_input in roots.items()
        if len(roots_of_input) == 1 and (place := _below(roots_of_input[0], sightings))
    }
    return [
        _adding(sighting, first[sighting.input])
        if sighting.input in first
        and sighting.input not in named
        and _is_cause(sighting)
        and sighting.line < roots[sighting.input][0].line
        else sighting
        for sighting in sightings
    ]


def _below(root: Sighting, sightings: Iterable[Sighting]) -> dict[str, str]:
    """The rank and the node that stand in the block below this line."""
    place: dict[str, str] = {}
    for sighting in sightings:
        is_near = sighting.input == root.input and 0 < sighting.line - root.line <= ROOT_LINES
        if is_near and sighting.sign in ("elastic-block-host", "elastic-block-rank"):
            place = _place(sighting) | place
    return place


def _is_cause(sighting: Sighting) -> bool:
    sign = signatures.table().signs.get(sighting.sign)
    return sign is not None and sign.role is signatures.Role.CAUSE


def _homes(sightings: Iterable[Sighting]) -> dict[str, str]:
    """The node of each rank, where every line that names both agrees."""
    named: dict[str, set[str]] = {}
    hosts: dict[str, Sighting] = {}
    for sighting in sorted(sightings, key=lambda sighting: (sighting.input, sighting.line)):
        node = sighting.fields.get("node")
        if sighting.sign == "elastic-block-host":
            hosts[sighting.input] = sighting
        host = hosts.get(sighting.input)
        if sighting.sign == "elastic-block-rank" and host is not None and 0 < sighting.line - host.line <= BLOCK_LINES:
            node = host.fields["node"]
        if node and (ranks := sighting.fields.get("rank")):
            for rank in _numbers(ranks):
                named.setdefault(rank, set()).add(node)
    return {rank: next(iter(nodes)) for rank, nodes in named.items() if len(nodes) == 1}


def _with_their_node(sightings: Iterable[Sighting], homes: Mapping[str, str]) -> list[Sighting]:
    return [
        _adding(sighting, {"node": homes[sighting.fields["rank"]]})
        if sighting.fields.get("rank") in homes
        else sighting
        for sighting in sightings
    ]


def _numbers(text: str) -> list[str]:
    """`3`, or Slurm's `0,4-7`."""
    if text.isdigit():
        return [text]
    try:
        return hostlist.expand(f"[{text}]")[:MOST_TASKS]
    except ValueError:
        return []


def _place(sighting: Sighting) -> dict[str, str]:
    rank = sighting.fields.get("rank") or sighting.fields.get("rank2")
    node = sighting.fields.get("node") or sighting.fields.get("node2")
    return {name: value for name, value in (("rank", rank), ("node", node)) if value}


def _adding(sighting: Sighting, more: Mapping[str, str]) -> Sighting:
    missing = {name: value for name, value in more.items() if not sighting.fields.get(name)}
    return replace(sighting, fields={**sighting.fields, **missing}) if missing else sighting
