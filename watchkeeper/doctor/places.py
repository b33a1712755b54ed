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
    plain = {seen.input for seen in sightings if LABEL.match(seen.text) is None and UNLABELLED.match(seen.text) is None}
    return [
        _adding(seen, {"rank": str(int(label[1]))})
        if kinds.get(seen.input) in LABELLED_KINDS
        and seen.input not in plain
        and (label := LABEL.match(seen.text)) is not None
        else seen
        for seen in sightings
    ]


def _with_their_line(sightings: Sequence[Sighting]) -> list[Sighting]:
    """Of several signs on one line each knows what one of them reads."""
    told: dict[tuple[str, int], dict[str, str]] = {}
    for seen in sightings:
        more = {"local_rank": seen.fields["local_rank"]} if "local_rank" in seen.fields else {}
        told.setdefault((seen.input, seen.line), {}).update(_place(seen) | more)
    return [_adding(seen, told[seen.input, seen.line]) for seen in sightings]


def _with_their_heading(sightings: Sequence[Sighting]) -> list[Sighting]:
    """An error without a place is that of the traceback above it."""
    headings: dict[str, list[Sighting]] = {}
    for seen in sorted(sightings, key=lambda one: one.line):
        if seen.sign == HEADING:
            headings.setdefault(seen.input, []).append(seen)
    found = []
    for seen in sightings:
        above = headings.get(seen.input, [])
        at = bisect_right(above, seen.line, key=lambda one: one.line) - 1
        is_near = at >= 0 and 0 < seen.line - above[at].line <= TRACEBACK_LINES
        found.append(_adding(seen, _place(above[at])) if is_near and not _place(seen) else seen)
    return found


def _with_their_record(facts: DoctorFacts, sightings: Sequence[Sighting]) -> list[Sighting]:
    """What a sign does not say itself, the heading of its record or the row of its table may."""
    found = []
    for seen in sightings:
        for record in records.around(facts.records.get(seen.input, ()), seen.line):
            seen = _adding(seen, record.fields)
        if not {"gpu", "pci"} & seen.fields.keys():
            for name, pattern in (("pci", GPU_ADDRESS), ("gpu", GPU_NUMBER)):
                if len(numbers := set(pattern.findall(seen.text))) == 1:
                    seen = _adding(seen, {name: numbers.pop()})
        if (row := EVENT_ROW.match(seen.text)) is not None:
            seen = _adding(seen, {row["kind"]: row["name"]})
        for pair in STRUCTURED.finditer(seen.text) if "=" in seen.text or " IP" in seen.text else ():
            named = {"node" if name == "address" else name: value for name, value in pair.groupdict().items() if value}
            seen = _adding(seen, named)
        found.append(seen)
    return found


def _with_their_gpu(sightings: Sequence[Sighting]) -> list[Sighting]:
    """A line of the driver without an address is about the GPU that the lines around it name, if that is one."""
    named: dict[tuple[str, int], set[str]] = {}
    for seen in sightings:
        if DRIVER in seen.text and (pci := seen.fields.get("pci")) and ADDRESS.match(pci):
            named.setdefault((seen.input, seen.line), set()).add(fleet.normalise_pci(pci))
    found = []
    for seen in sightings:
        if named and DRIVER in seen.text and not {"pci", "gpu"} & seen.fields.keys():
            around = range(seen.line - DRIVER_LINES, seen.line + DRIVER_LINES + 1)
            near = set().union(*(named.get((seen.input, line), set()) for line in around))
            seen = _adding(seen, {"pci": near.pop()}) if len(near) == 1 else seen
        found.append(seen)
    return found


def _with_the_first_to_fail(sightings: Sequence[Sighting]) -> list[Sighting]:
    """An error of a rank that no line names is that of the rank which torchrun saw failing first."""
    roots: dict[str, list[Sighting]] = {}
    named: set[str] = set()
    for seen in sightings:
        if seen.sign == ROOT:
            roots.setdefault(seen.input, []).append(seen)
        elif _is_cause(seen) and _place(seen):
            named.add(seen.input)
    first = {name: place for name, found in roots.items() if len(found) == 1 and (place := _below(found[0], sightings))}
    return [
        _adding(seen, first[seen.input])
        if seen.input in first and seen.input not in named and _is_cause(seen) and seen.line < roots[seen.input][0].line
        else seen
        for seen in sightings
    ]


def _below(root: Sighting, sightings: Iterable[Sighting]) -> dict[str, str]:
    """The rank and the node that stand in the block below this line."""
    place: dict[str, str] = {}
    for seen in sightings:
        is_near = seen.input == root.input and 0 < seen.line - root.line <= ROOT_LINES
        if is_near and seen.sign in ("elastic-block-host", "elastic-block-rank"):
            place = _place(seen) | place
    return place


def _is_cause(seen: Sighting) -> bool:
    sign = signatures.table().signs.get(seen.sign)
    return sign is not None and sign.role is signatures.Role.CAUSE


def _homes(sightings: Iterable[Sighting]) -> dict[str, str]:
    """The node of each rank, where every line that names both agrees."""
    named: dict[str, set[str]] = {}
    hosts: dict[str, Sighting] = {}
    for seen in sorted(sightings, key=lambda one: (one.input, one.line)):
        node = seen.fields.get("node")
        if seen.sign == "elastic-block-host":
            hosts[seen.input] = seen
        host = hosts.get(seen.input)
        if seen.sign == "elastic-block-rank" and host is not None and 0 < seen.line - host.line <= BLOCK_LINES:
            node = host.fields["node"]
        if node and (ranks := seen.fields.get("rank")):
            for rank in _numbers(ranks):
                named.setdefault(rank, set()).add(node)
    return {rank: next(iter(nodes)) for rank, nodes in named.items() if len(nodes) == 1}


def _with_their_node(sightings: Iterable[Sighting], homes: Mapping[str, str]) -> list[Sighting]:
    return [
        _adding(seen, {"node": homes[seen.fields["rank"]]}) if seen.fields.get("rank") in homes else seen
        for seen in sightings
    ]


def _numbers(text: str) -> list[str]:
    """`3`, or Slurm's `0,4-7`."""
    if text.isdigit():
        return [text]
    try:
        return hostlist.expand(f"[{text}]")[:MOST_TASKS]
    except ValueError:
        return []


def _place(seen: Sighting) -> dict[str, str]:
    rank = seen.fields.get("rank") or seen.fields.get("rank2")
    node = seen.fields.get("node") or seen.fields.get("node2")
    return {name: value for name, value in (("rank", rank), ("node", node)) if value}


def _adding(seen: Sighting, more: Mapping[str, str]) -> Sighting:
    missing = {name: value for name, value in more.items() if not seen.fields.get(name)}
    return replace(seen, fields={**seen.fields, **missing}) if missing else seen
