"""Assign ranks, nodes and GPUs from other lines to sightings: a line with an error rarely names its whole place.

A launcher writes the rank before each line, a traceback has it in its heading, and lines of a launcher, NCCL or `srun`
have both the rank and its node. Fields on which lines disagree are omitted.
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
# Lines of Slurm itself and of a batch script have no number.
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
# The error at the end of a traceback is within this many lines below its heading.
TRACEBACK_LINES = 60
# In torchrun's block, the host is one line above the rank.
BLOCK_LINES = 2
FIRST_FAILURE, FIRST_FAILURE_LINES = "elastic-root", 5
MAX_TASKS = 4096
# The driver logs a fault of a GPU in a few lines, not all with its address.
DRIVER = "NVRM: "
DRIVER_LINES = 4
ADDRESS = re.compile(r"[0-9A-Fa-f]{1,8}:[0-9A-Fa-f]{1,2}(?::[0-9A-Fa-f]{1,2})?(?:\.|$)")


def assign_places(facts: DoctorFacts) -> None:
    sightings = _with_label_rank(facts, facts.all_sightings())
    sightings = _with_line_fields(sightings)
    sightings = _with_traceback_place(sightings)
    sightings = _with_record_fields(facts, sightings)
    sightings = _with_driver_gpu(sightings)
    sightings = _with_first_failed_rank(sightings)
    nodes = {rank: {"node": node} for rank, node in _nodes_by_rank(sightings).items()}
    facts.replace_all(_with_fields(sighting, nodes.get(sighting.fields.get("rank", ""), {})) for sighting in sightings)


def _with_label_rank(facts: DoctorFacts, sightings: Sequence[Sighting]) -> list[Sighting]:
    """Read the number before a line as its rank, if all lines of the input's programs have one."""
    labelled_inputs = {given.name for given in facts.inputs if given.kind in LABELLED_KINDS}
    labelled_inputs -= {
        sighting.input
        for sighting in sightings
        if not LABEL.match(sighting.text) and not UNLABELLED.match(sighting.text)
    }
    labels = (LABEL.match(sighting.text) if sighting.input in labelled_inputs else None for sighting in sightings)
    return [
        sighting if label is None else _with_fields(sighting, {"rank": str(int(label[1]))})
        for sighting, label in zip(sightings, labels, strict=True)
    ]


def _with_line_fields(sightings: Sequence[Sighting]) -> list[Sighting]:
    """Share the place fields between all signs on one line."""
    fields_by_line: dict[tuple[str, int], dict[str, str]] = {}
    for sighting in sightings:
        local_rank = {"local_rank": sighting.fields["local_rank"]} if "local_rank" in sighting.fields else {}
        fields_by_line.setdefault((sighting.input, sighting.line), {}).update(_rank_and_node(sighting) | local_rank)
    return [_with_fields(sighting, fields_by_line[sighting.input, sighting.line]) for sighting in sightings]


def _with_traceback_place(sightings: Sequence[Sighting]) -> list[Sighting]:
    """Give an error without a place the place of the traceback above it."""
    headings: dict[str, list[Sighting]] = {}
    for sighting in sorted(sightings, key=lambda sighting: sighting.line):
        if sighting.sign == HEADING:
            headings.setdefault(sighting.input, []).append(sighting)
    resolved = []
    for sighting in sightings:
        above = headings.get(sighting.input, [])
        at = bisect_right(above, sighting.line, key=lambda sighting: sighting.line) - 1
        is_near = at >= 0 and 0 < sighting.line - above[at].line <= TRACEBACK_LINES
        place = _rank_and_node(above[at]) if is_near and not _rank_and_node(sighting) else {}
        resolved.append(_with_fields(sighting, place))
    return resolved


def _with_record_fields(facts: DoctorFacts, sightings: Sequence[Sighting]) -> list[Sighting]:
    """Add missing fields from the heading of the record, or from the row of a table."""
    resolved = []
    for sighting in sightings:
        for record in records.enclosing_records(facts.records.get(sighting.input, ()), sighting.line):
            sighting = _with_fields(sighting, record.fields)
        if not {"gpu", "pci"} & sighting.fields.keys():
            for name, pattern in (("pci", GPU_ADDRESS), ("gpu", GPU_NUMBER)):
                if len(numbers := set(pattern.findall(sighting.text))) == 1:
                    sighting = _with_fields(sighting, {name: numbers.pop()})
        if (row := EVENT_ROW.match(sighting.text)) is not None:
            sighting = _with_fields(sighting, {row["kind"]: row["name"]})
        for pair in STRUCTURED.finditer(sighting.text) if "=" in sighting.text or " IP" in sighting.text else ():
            fields = {"node" if name == "address" else name: value for name, value in pair.groupdict().items() if value}
            sighting = _with_fields(sighting, fields)
        resolved.append(sighting)
    return resolved


def _with_driver_gpu(sightings: Sequence[Sighting]) -> list[Sighting]:
    """Give a driver line without an address the GPU of the lines around it, if these name exactly one."""
    addresses_by_line: dict[tuple[str, int], set[str]] = {}
    for sighting in sightings:
        if DRIVER in sighting.text and (pci := sighting.fields.get("pci")) and ADDRESS.match(pci):
            addresses_by_line.setdefault((sighting.input, sighting.line), set()).add(fleet.normalise_pci(pci))
    resolved = []
    for sighting in sightings:
        if addresses_by_line and DRIVER in sighting.text and not {"pci", "gpu"} & sighting.fields.keys():
            nearby = range(sighting.line - DRIVER_LINES, sighting.line + DRIVER_LINES + 1)
            addresses = set().union(*(addresses_by_line.get((sighting.input, line), set()) for line in nearby))
            sighting = _with_fields(sighting, {"pci": addresses.pop()}) if len(addresses) == 1 else sighting
        resolved.append(sighting)
    return resolved


def _with_first_failed_rank(sightings: Sequence[Sighting]) -> list[Sighting]:
    """Give an error without a rank the rank that torchrun reports as the first to fail."""
    first_failures: dict[str, list[Sighting]] = {}
    inputs_with_places: set[str] = set()
    for sighting in sightings:
        if sighting.sign == FIRST_FAILURE:
            first_failures.setdefault(sighting.input, []).append(sighting)
        elif _is_cause(sighting) and _rank_and_node(sighting):
            inputs_with_places.add(sighting.input)
    place_by_input = {
        name: _place_below(headings[0], sightings)
        for name, headings in first_failures.items()
        if len(headings) == 1 and name not in inputs_with_places
    }
    resolved = []
    for sighting in sightings:
        if place := place_by_input.get(sighting.input):
            is_above = sighting.line < first_failures[sighting.input][0].line
            sighting = _with_fields(sighting, place) if is_above and _is_cause(sighting) else sighting
        resolved.append(sighting)
    return resolved


def _place_below(heading: Sighting, sightings: Iterable[Sighting]) -> dict[str, str]:
    """The rank and the node in the block below this line."""
    place: dict[str, str] = {}
    for sighting in sightings:
        is_near = sighting.input == heading.input and 0 < sighting.line - heading.line <= FIRST_FAILURE_LINES
        if is_near and sighting.sign in ("elastic-block-host", "elastic-block-rank"):
            place = _rank_and_node(sighting) | place
    return place


def _is_cause(sighting: Sighting) -> bool:
    sign = signatures.table().signs.get(sighting.sign)
    return sign is not None and sign.role is signatures.Role.CAUSE


def _nodes_by_rank(sightings: Iterable[Sighting]) -> dict[str, str]:
    """The node of each rank, if all lines that name both agree."""
    nodes_by_rank: dict[str, set[str]] = {}
    hosts: dict[str, Sighting] = {}
    for sighting in sorted(sightings, key=lambda sighting: (sighting.input, sighting.line)):
        node = sighting.fields.get("node")
        if sighting.sign == "elastic-block-host":
            hosts[sighting.input] = sighting
        host = hosts.get(sighting.input)
        if sighting.sign == "elastic-block-rank" and host is not None and 0 < sighting.line - host.line <= BLOCK_LINES:
            node = host.fields["node"]
        if node and (ranks := sighting.fields.get("rank")):
            for rank in _expand_ranks(ranks):
                nodes_by_rank.setdefault(rank, set()).add(node)
    return {rank: next(iter(nodes)) for rank, nodes in nodes_by_rank.items() if len(nodes) == 1}


def _expand_ranks(text: str) -> list[str]:
    """`3`, or Slurm's `0,4-7`."""
    if text.isdigit():
        return [text]
    try:
        return hostlist.expand(f"[{text}]")[:MAX_TASKS]
    except ValueError:
        return []


def _rank_and_node(sighting: Sighting) -> dict[str, str]:
    rank = sighting.fields.get("rank") or sighting.fields.get("rank2")
    node = sighting.fields.get("node") or sighting.fields.get("node2")
    return {name: value for name, value in (("rank", rank), ("node", node)) if value}


def _with_fields(sighting: Sighting, fields: Mapping[str, str]) -> Sighting:
    missing = {name: value for name, value in fields.items() if not sighting.fields.get(name)}
    return replace(sighting, fields={**sighting.fields, **missing}) if missing else sighting
