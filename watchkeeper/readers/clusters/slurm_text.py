"""Read nodes and jobs with their states and reasons from pasted Slurm output, text or JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from watchkeeper.readers import json_facts


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """A node or a node range; `gres` is None if the output does not list it."""

    name: str
    state: str
    reason: str
    gres: str | None
    line: int


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A job with its state, and the reason why it is pending or ended."""

    id: str
    state: str
    reason: str
    nodes: str
    line: int


NODE_NAME = re.compile(r"^NodeName=(?P<name>\S+)")
ASSIGNED = re.compile(r"(?:^|\s)(?P<name>State|Gres|Reason)=(?P<value>\(null\)|[^=]*?)(?=\s+\w+=|\s*$|\s\[)")
# REASON               USER      TIMESTAMP           NODELIST
REASON_HEADER = re.compile(r"^REASON\s.*NODELIST\s*$")
# NODELIST   NODES PARTITION STATE
NODE_HEADER = re.compile(r"^NODELIST\s+NODES\s+PARTITION\s+STATE\b")
# compute*     up   infinite      3  drain compute[001-003]
SINFO = re.compile(
    r"^\S+\s+(?:up|down|drain|inact)\s+\S+\s+(?P<count>\d+)\s+(?P<state>[a-z]+[*~#!%$@^-]?)\s+(?P<nodes>\S+)\s*$"
)
# sinfo -N, and -l:  gpu07  1  gpu*  down*  64  2:16:2  515000  0  1  (null)  Not responding
SINFO_NODE = re.compile(
    r"^(?P<node>\S+)\s+\d+\s+\S+\s+(?P<state>[a-z]+[*~#!%$@^-]?)"
    r"(?:\s+\d+\s+\d+:\d+:\d+\s+\d+\s+\d+\s+\d+\s+\S+\s+(?P<reason>\S.*))?\s*$"
)
# NODELIST   STATE   REASON      HOSTNAMES PARTITION STATE CPUS(A/I/O/T)      (sinfo -o with custom columns)
NODE_COLUMNS = frozenset({"NODELIST", "HOSTNAMES"})
# 2  gpu  t2  root PD  0:00  3 (Resources)      48211|gpu|train|ana|PD|0:00|4|(Resources)      48211 PENDING Resources
SQUEUE = re.compile(
    r'^[\s"]*(?P<id>\d+(?:_[^\s|,"]+)?)[\s|,"]+(?:\S.*[\s|,"])?(?:PD|PENDING)[\s|,"]+'
    r'(?:[^(]*\((?P<reason>[^()]*)\)|(?:\S.*[\s|,"])?(?P<plain>[A-Z][A-Za-z]+)\b)'
)
# JobId=48211 JobName=train      then      JobState=PENDING Reason=Resources Dependency=(null)      (scontrol show job)
SCONTROL_JOB = re.compile(r"^\s*JobId=(?P<id>\d+)\b")
PENDING_JOB = re.compile(r"\bJobState=PENDING Reason=(?P<reason>[^\s,]+)")
STATE = re.compile(r"[A-Za-z_+]+[*~#!%$@^-]?")
DOWN = re.compile(r"^(?:DOWN|down|NOT_RESPONDING|fail|FAIL|no_respond)|\*$", re.IGNORECASE)
DRAINED = re.compile(r"drain|drng|maint", re.IGNORECASE)


def read_nodes(lines: Sequence[str]) -> Iterator[SlurmNode]:
    """Read the output of `scontrol show node`, `sinfo` and `sinfo -R`."""
    name, name_line = "", 0
    fields: dict[str, str] = {}
    in_reasons = in_node_rows = False
    columns: list[str] = []
    for number, line in enumerate(lines, 1):
        if (header := NODE_NAME.match(line.strip())) is not None:
            if name:
                yield SlurmNode(name, fields.get("State", ""), fields.get("Reason", ""), fields.get("Gres"), name_line)
            name, fields, name_line = header["name"], {}, number
        if name:
            fields.update({item["name"]: item["value"].strip() for item in ASSIGNED.finditer(line)})
        if REASON_HEADER.match(line):
            in_reasons = True
        elif in_reasons and line.strip():
            cells = line.split()
            yield SlurmNode(cells[-1], "drained", line[: line.rfind(cells[-1])].strip(), None, number)
        elif (row := SINFO.match(line)) is not None and row["count"] != "0":
            yield SlurmNode(row["nodes"], row["state"], "", None, number)
        elif in_node_rows and (row := SINFO_NODE.match(line)) is not None:
            yield SlurmNode(row["node"], row["state"], (row["reason"] or "").strip(), None, number)
        elif columns and (node := _read_custom_row(columns, line, number)) is not None:
            yield node
        words = line.split()
        if NODE_COLUMNS & set(words) and "STATE" in words:
            columns = words
        in_node_rows = in_node_rows or NODE_HEADER.match(line) is not None
    if name:
        yield SlurmNode(name, fields.get("State", ""), fields.get("Reason", ""), fields.get("Gres"), name_line)


def _read_custom_row(columns: Sequence[str], line: str, number: int) -> SlurmNode | None:
    """Read a row with custom columns; a reason may contain spaces if it is the last column."""
    cells = line.split(maxsplit=len(columns) - 1)
    row = dict(zip(columns, cells, strict=False))
    name = next((row[column] for column in columns if column in NODE_COLUMNS and column in row), "")
    if len(cells) < len(columns) or not STATE.fullmatch(row["STATE"]):
        return None
    reason = row.get("REASON", "")
    return SlurmNode(name, row["STATE"], "" if reason == "none" else reason.strip(), None, number)


def read_jobs(lines: Sequence[str]) -> Iterator[SlurmJob]:
    """Read the pending jobs of `squeue` in any format, and of `scontrol show job`."""
    job = ""
    for number, line in enumerate(lines, 1):
        if (header := SCONTROL_JOB.match(line)) is not None:
            job = header["id"]
        if (row := SQUEUE.match(line)) is not None:
            yield SlurmJob(row["id"], "PENDING", row["reason"] or row["plain"], "", number)
        elif (row := PENDING_JOB.search(line)) is not None:
            yield SlurmJob(job, "PENDING", row["reason"], "", number)


def read_json(text: str) -> tuple[list[SlurmNode], list[SlurmJob]]:
    """Read `sinfo --json`, `scontrol show nodes --json` and `squeue --json` of Slurm 22.05 and later."""
    try:
        loaded = json.loads(text)
    except (ValueError, RecursionError):
        return [], []
    nodes: list[SlurmNode] = []
    jobs: list[SlurmJob] = []
    for item in json_facts.rows(loaded, "nodes"):
        state = "+".join(_states(item.get("state"))) + "+" + "+".join(_states(item.get("state_flags")))
        nodes.append(SlurmNode(_text(item, "name", "hostname"), state, _text(item, "reason"), _text(item, "gres"), 1))
    for item in json_facts.rows(loaded, "sinfo"):
        state = "+".join(_states(json_facts.mapping(item, "node").get("state")))
        name = ",".join(map(str, json_facts.mapping(item, "nodes").get("nodes", [])))
        reason = str(json_facts.mapping(item, "reason").get("description", "")) or _text(item, "reason")
        nodes.append(SlurmNode(name, state, reason, None, 1))
    for item in json_facts.rows(loaded, "jobs"):
        state = "+".join(_states(item.get("job_state")))
        jobs.append(SlurmJob(str(item.get("job_id", "")), state, _text(item, "state_reason"), _text(item, "nodes"), 1))
    return nodes, jobs


def _states(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    return [str(item) for item in value] if isinstance(value, list) else []


def _text(item: Mapping[str, Any], *names: str) -> str:
    return next((str(item[name]) for name in names if isinstance(item.get(name), str) and item[name]), "")
