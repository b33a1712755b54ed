"""Read nodes, jobs, topology and limits from Slurm's JSON and text output, for every Slurm version.

Formats and keys change between versions, so each value is read from every key that a version uses; a record without a
name is dropped, and every other missing value is unknown. `clusters.slurm` (the hub) and `agent.attribution.slurm_jobs`
run the Slurm commands; the doctor uses `slurm_text` for pasted output.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from watchkeeper.errors import CollectError
from watchkeeper.readers import json_facts
from watchkeeper.readers.clusters import hostlist

# gpu:h200:2(IDX:0-1) · gres:gpu:8 · gres/gpu=8 · gres/gpu:h200=8 · gpu:3g.20gb:2(S:0)
GPUS = re.compile(
    r"(?:^|[,/:])gpu(?:(?::(?P<type>[^:=,()]+))?[:=](?P<count>\d+)|(?::(?P<alone>[^:=,()]+))?)(?=[,(]|$)"
    r"(?:\((?P<inside>[^)]*)\))?"
)
SEPARATORS = re.compile(r"[\s,]*")
ASSIGNMENT = re.compile(r"(?:^|\s)(?P<name>[A-Za-z][\w/:.]*)=")
EMPTY_VALUES = ("", "(null)", "None", "N/A", "n/a", "Unknown", "(none)")
# The values that Slurm writes for "no limit" and "not set".
INFINITE = 0xFFFFFFFF
NO_VALUE = 0xFFFFFFFE
UNUSABLE = frozenset({"DRAIN", "DRAINED", "DRAINING", "MAINT", "MAINTENANCE", "PLANNED_MAINT", "REBOOT_ISSUED"})
BROKEN = frozenset({"DOWN", "FAIL", "FAILING", "ERROR", "NOT_RESPONDING", "INVALID_REG", "POWERED_DOWN", "FUTURE"})
BUSY = frozenset({"ALLOCATED", "MIXED", "COMPLETING"})


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A node in slurmctld. `states` are upper case: the state, then its flags. Each MIG instance counts as one GPU."""

    name: str
    states: tuple[str, ...] = ()
    reason: str = ""
    reason_user: str = ""
    gpus: int | None = None
    address: str = ""
    hostname: str = ""
    partitions: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    gres: str = ""

    @property
    def state_name(self) -> str:
        """The state as sinfo prints it: `idle`, `draining`, `down*`."""
        flags = set(self.states)
        if not flags:
            return "unknown"
        name = self.states[0].lower()
        if "DOWN" in flags:
            name = "down"
        elif "INVALID_REG" in flags:
            name = "inval"
        elif flags & {"DRAIN", "DRAINED", "DRAINING"}:
            name = "draining" if flags & BUSY or "DRAINING" in flags else "drained"
        elif flags & {"MAINT", "MAINTENANCE"}:
            name = "maint"
        elif "COMPLETING" in flags:
            name = "completing"
        return name + ("*" if "NOT_RESPONDING" in flags else "")

    @property
    def is_ready(self) -> bool | None:
        """None if Slurm reports no state, or UNKNOWN."""
        if not self.states or self.states[0] == "UNKNOWN":
            return None
        return not BROKEN.intersection(self.states)

    @property
    def is_schedulable(self) -> bool:
        return self.is_ready is True and not UNUSABLE.intersection(self.states)


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job. `gpus_by_node` has the GPU indexes on each node; the tuple is empty if Slurm does not list them."""

    # `id` is the number that processes, job files and steps use; `array` the name of an array task in squeue, `17_3`.
    id: str
    states: tuple[str, ...] = ()
    array: str = ""
    name: str = ""
    user: str = ""
    account: str = ""
    partition: str = ""
    reason: str = ""
    detail: str = ""
    gpus: int = 0
    nodes: tuple[str, ...] = ()
    gpus_by_node: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    submitted_at: float | None = None
    started_at: float | None = None

    @property
    def is_running(self) -> bool:
        return bool({"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED"}.intersection(self.states[:1]))

    @property
    def is_pending(self) -> bool:
        return self.states[:1] == ("PENDING",)


@dataclass(frozen=True, slots=True)
class AccountLimit:
    """The limit of GPUs that all jobs of an account may use together."""

    account: str
    gpus: int


def read_nodes_json(text: str, *, where: str) -> list[NodeRecord]:
    """Read `sinfo --json` of 22.05, `scontrol show nodes --json` of later versions, and slurmrestd's nodes."""
    return [node for item in _records(text, "nodes", where=where) if (node := _json_node(item)) is not None]


def read_jobs_json(text: str, *, where: str) -> list[JobRecord]:
    """Read `squeue --json`, `scontrol show jobs --json` and slurmrestd's jobs."""
    return [job for item in _records(text, "jobs", where=where) if (job := _json_job(item)) is not None]


def read_nodes_text(text: str) -> list[NodeRecord]:
    """Read `scontrol show node`, with or without -o and -d, of every version."""
    return [_text_node(block) for block in _blocks(text, "NodeName")]


def read_jobs_text(text: str) -> list[JobRecord]:
    """Read `scontrol show job -d`, without -o: with -o, the end of a job's name is ambiguous."""
    return [job for block in _job_blocks(text) if (job := _text_job(block)) is not None]


def read_job_text(text: str, id: str) -> JobRecord | None:
    """The job with this id; None if the output has further records and is not of an array job."""
    head = text.partition(" JobName=")[0]
    if "\nJobId=" in text and "ArrayJobId=" not in head:
        return None
    return next((job for job in read_jobs_text(text) if job.id == id), None)


def read_topology_leaves(text: str) -> dict[str, str]:
    """Read `scontrol show topology` (or topology.conf): the leaf switch of each node."""
    leaves: dict[str, str] = {}
    for line in text.splitlines():
        assignments = dict(_assignments(line.partition("#")[0]))
        name = assignments.get("SwitchName") or assignments.get("BlockName")
        # A switch above leaves lists its nodes too, but also has Switches.
        if not name or assignments.get("Switches", "") not in EMPTY_VALUES or not assignments.get("Nodes"):
            continue
        for node in _expand(assignments["Nodes"]):
            leaves.setdefault(node, name)
    return leaves


def read_limits_text(text: str) -> list[AccountLimit]:
    """Read account limits from `sacctmgr -nP show assoc format=account,user,grptres`; limits of users are ignored."""
    limits: dict[str, int] = {}
    for line in text.splitlines():
        cells = line.strip().split("|")
        if len(cells) >= 3 and cells[0] and not cells[1] and (gpus := gpu_count(cells[2])) is not None:
            limits.setdefault(cells[0], gpus)
    return [AccountLimit(account, gpus) for account, gpus in limits.items()]


def gpu_count(text: str | None) -> int | None:
    """GPUs in a Gres or TRES text; None if it names no GPU. A total has precedence over the counts by type."""
    if not text or text in EMPTY_VALUES:
        return None
    plain: list[int] = []
    typed: list[int] = []
    for match in GPUS.finditer(text):
        (plain if match["type"] is match["alone"] is None else typed).append(int(match["count"] or 1))
    if plain and typed and "gres/" in text:
        return plain[0]
    return sum(plain + typed) if plain or typed else None


def gpu_indexes(text: str) -> tuple[int, ...]:
    """`gpu:h200:2(IDX:0-1,4)` → 0, 1, 4."""
    indexes: list[int] = []
    for match in GPUS.finditer(text):
        inside = match["inside"] or ""
        if inside.startswith("IDX:") and inside != "IDX:N/A":
            indexes += [int(number) for number in _expand(f"[{inside.removeprefix('IDX:')}]") if number.isdigit()]
    return tuple(indexes)


def _records(text: str, key: str, *, where: str) -> Iterator[Mapping[str, Any]]:
    """The items of one list of a JSON answer, also if Slurm prints warnings before or after the JSON."""
    # Items are decoded one at a time: a job takes 14 KiB in 24.11, and ten thousand jobs as Python objects a gigabyte.
    decoder = json.JSONDecoder()
    start = re.search(rf'"{key}"\s*:\s*\[', text)
    if start is None:
        raise CollectError(_slurm_error(text) or f"the answer has no list of {key}", where=where)
    position = start.end()
    while True:
        position = SEPARATORS.match(text, position).end()  # type: ignore[union-attr]
        if text.startswith("]", position):
            return
        try:
            item, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            raise CollectError(f"not JSON: {error}", where=where) from error
        if isinstance(item, dict):
            yield item


def _slurm_error(text: str) -> str:
    """Slurm's own error message: from the `errors` of its JSON, or the first line of its output."""
    try:
        answer, _ = json.JSONDecoder().raw_decode(text[max(0, text.find("{")) :])
    except (ValueError, RecursionError):
        return text.strip().partition("\n")[0][:200]
    return "; ".join(_text(error, "error", "description") for error in json_facts.rows(answer, "errors"))[:200]


def _json_node(item: Mapping[str, Any]) -> NodeRecord | None:
    name = _text(item, "name")
    if not name:
        return None
    states = (*_parse_states(item.get("state")), *_parse_states(item.get("state_flags")))
    return NodeRecord(
        name,
        tuple(dict.fromkeys(states)),
        reason=_text(item, "reason"),
        reason_user=_text(item, "reason_set_by_user") if _text(item, "reason") else "",
        gpus=gpu_count(_text(item, "gres")),
        address=_text(item, "address"),
        hostname=_text(item, "hostname"),
        partitions=tuple(_parse_names(item.get("partitions"))),
        features=tuple(_parse_names(item.get("active_features") or item.get("features"))),
        gres=_text(item, "gres"),
    )


def _json_job(item: Mapping[str, Any]) -> JobRecord | None:
    number = _number(item.get("job_id"))
    if number is None:
        return None
    states = tuple(_parse_states(item.get("job_state")))
    nodes = _expand(_text(item, "nodes"))
    gres_detail = item.get("gres_detail")
    gres_texts = [text for text in gres_detail if isinstance(text, str)] if isinstance(gres_detail, list) else []
    hosts = _allocated_nodes(item.get("job_resources")) or nodes
    gpus_by_node = {host: gpu_indexes(text) for host, text in zip(hosts, gres_texts, strict=False)}
    allocated_gpus = sum(gpu_count(text) or 0 for text in gres_texts)
    reason = _text(item, "state_reason")
    array, task = _number(item.get("array_job_id")), _number(item.get("array_task_id"))
    return JobRecord(
        str(number),
        states,
        array=f"{array}_{task}" if array and task is not None else "",
        name=_text(item, "name"),
        user=_text(item, "user_name") or str(_number(item.get("user_id")) or ""),
        account=_text(item, "account"),
        partition=_text(item, "partition"),
        reason="" if reason in EMPTY_VALUES else reason,
        detail=_text(item, "state_description"),
        gpus=allocated_gpus or _requested_gpus(item),
        nodes=tuple(hosts),
        gpus_by_node=gpus_by_node,
        submitted_at=_time(item.get("submit_time")),
        started_at=_time(item.get("start_time")) if states[:1] != ("PENDING",) else None,
    )


def _requested_gpus(item: Mapping[str, Any]) -> int:
    """The GPUs that a pending job requests: in total, or per node or task."""
    total = gpu_count(_text(item, "tres_req_str")) or gpu_count(_text(item, "tres_per_job"))
    if total is not None:
        return total
    per_node, per_task = gpu_count(_text(item, "tres_per_node")), gpu_count(_text(item, "tres_per_task"))
    if per_node is not None:
        return per_node * (_number(item.get("node_count")) or 1)
    return (per_task or 0) * (_number(item.get("tasks")) or 1)


def _allocated_nodes(resources: Any) -> list[str]:
    """The nodes in the order of `gres_detail`; the key of the list depends on the version."""
    newer_entries = json_facts.rows(json_facts.mapping(resources, "nodes"), "allocation")
    entries = json_facts.rows(resources, "allocated_nodes") or newer_entries
    return [name for entry in entries if (name := _text(entry, "nodename", "name"))]


def _text_node(fields: Mapping[str, str]) -> NodeRecord:
    reason, _, set_by = fields.get("Reason", "").rpartition(" [")
    states = fields.get("State", "").replace("*", "+NOT_RESPONDING").upper().split("+")
    return NodeRecord(
        fields["NodeName"],
        tuple(dict.fromkeys(word for word in states if word)),
        reason=reason or ("" if set_by in EMPTY_VALUES else set_by),
        reason_user=set_by.partition("@")[0] if reason else "",
        gpus=gpu_count(fields.get("Gres")),
        address=fields.get("NodeAddr", ""),
        hostname=fields.get("NodeHostName", ""),
        partitions=tuple(part for part in fields.get("Partitions", "").split(",") if part),
        features=tuple(part for part in fields.get("ActiveFeatures", "").split(",") if part not in EMPTY_VALUES),
        gres=fields.get("Gres", ""),
    )


def _text_job(fields: Mapping[str, str]) -> JobRecord | None:
    if not fields.get("JobId", "").isdigit():
        return None
    states = tuple(fields.get("JobState", "").upper().split())
    node_list = fields.get("NodeList", "")
    nodes = tuple(_expand("" if node_list in EMPTY_VALUES else node_list))
    gpus_by_node = {name: gpu_indexes(gres) for names, gres in _node_lines(fields) for name in _expand(names)}
    allocated_gpus = sum(gpu_count(gres) or 0 for names, gres in _node_lines(fields) for _ in _expand(names))
    array, task = fields.get("ArrayJobId"), fields.get("ArrayTaskId", "")
    reason = fields.get("Reason", "")
    return JobRecord(
        fields["JobId"],
        states,
        array=f"{array}_{task}" if array and task.isdigit() else "",
        name=fields.get("JobName", ""),
        user=fields.get("UserId", "").partition("(")[0],
        account="" if fields.get("Account", "") in EMPTY_VALUES else fields["Account"],
        partition=fields.get("Partition", ""),
        reason="" if reason in EMPTY_VALUES else reason,
        gpus=allocated_gpus or _requested_gpus_in_text(fields),
        nodes=nodes,
        gpus_by_node=gpus_by_node,
        submitted_at=_local_time(fields.get("SubmitTime")),
        started_at=_local_time(fields.get("StartTime")) if states != ("PENDING",) else None,
    )


def _requested_gpus_in_text(fields: Mapping[str, str]) -> int:
    total = gpu_count(fields.get("TRES") or fields.get("ReqTRES")) or gpu_count(fields.get("TresPerJob"))
    if total is not None:
        return total
    count = fields.get("NumNodes", "1").partition("-")[0]
    return (gpu_count(fields.get("TresPerNode")) or 0) * (int(count) if count.isdigit() else 1)


def _node_lines(fields: Mapping[str, str]) -> list[tuple[str, str]]:
    """Nodes and GRES from the lines `Nodes=n[1-2] CPU_IDs=0 Mem=0 GRES=gpu:8(IDX:0-7)` that -d adds."""
    node_lines = fields.get("Nodes\0", "")
    return [(line.partition("\t")[0], line.partition("\t")[2]) for line in node_lines.split("\n") if line]


def _blocks(text: str, key: str) -> Iterator[dict[str, str]]:
    """The `Name=value` blocks of scontrol's output; each starts with `key`."""
    block: dict[str, str] = {}
    for line in text.splitlines():
        for name, value in _assignments(line):
            if name == key:
                if block:
                    yield block
                block = {}
            if key in block or name == key:
                block.setdefault(name, value)
    if block:
        yield block


def _job_blocks(text: str) -> Iterator[dict[str, str]]:
    """The `Name=value` pairs of each job. A job's name is untrusted: scontrol prints it unescaped, with line feeds."""
    # So text between `JobName=` and the last line that starts with UserId is the name, and text from Command is
    # ignored.
    for part in re.split(r"(?m)^(?=JobId=)", text):
        head, _, rest = part.partition(" JobName=")
        start = rest.rfind("\n   UserId=")
        if not part.startswith("JobId=") or start < 0:
            continue
        block = {**dict(_assignments(head)), "JobName": rest[:start].strip()}
        for line in rest[start:].partition("\n   Command=")[0].splitlines():
            pairs = _assignments(line)
            if pairs and pairs[0][0] == "Nodes":
                gres = next((value for name, value in pairs if name == "GRES"), "")
                block["Nodes\0"] = block.get("Nodes\0", "") + f"{pairs[0][1]}\t{gres}\n"
            else:
                block |= dict(pairs)
        yield block


def _assignments(line: str) -> list[tuple[str, str]]:
    """`A=x y B=z` → (A, x y), (B, z): values may contain spaces, names may not."""
    starts = list(ASSIGNMENT.finditer(line))
    ends = [*(match.start() for match in starts[1:]), len(line)] if starts else []
    return [(match["name"], line[match.end() : end].strip()) for match, end in zip(starts, ends, strict=True)]


def _expand(text: str) -> list[str]:
    try:
        return hostlist.expand(text)
    except hostlist.BadHostlist:
        return []


def _text(item: Mapping[str, Any], *names: str) -> str:
    return next((item[name] for name in names if isinstance(item.get(name), str)), "")


def _parse_states(value: Any) -> list[str]:
    """The upper-case words of a state such as `idle`, `IDLE+DRAIN` or `["IDLE", "DRAIN"]`."""
    listed = value.split("+") if isinstance(value, str) else value if isinstance(value, list) else []
    return [word.strip().upper() for word in listed if isinstance(word, str) and word.strip()]


def _parse_names(value: Any) -> list[str]:
    listed = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else []
    return [name for name in listed if isinstance(name, str) and name not in EMPTY_VALUES]


def _number(value: Any) -> int | None:
    """A number in the format of any version; None if it is not set or infinite."""
    if isinstance(value, dict):
        if not value.get("set", True) or value.get("infinite"):
            return None
        value = value.get("number")
    if isinstance(value, str) and value.isdigit():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or int(value) in (INFINITE, NO_VALUE):
        return None
    return int(value)


def _time(value: Any) -> float | None:
    number = _number(value)
    return float(number) if number else None


def _local_time(text: str | None) -> float | None:
    """Parse scontrol's local time, which has no zone; the hub must run in the cluster's time zone."""
    try:
        return datetime.fromisoformat(text).timestamp() if text else None
    except ValueError:
        return None
