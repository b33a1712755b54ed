"""What Slurm says about nodes, jobs, switches and limits, in one shape whichever version said it.

JSON of 22.05 has plain words and numbers, later versions have lists of words and `{set, infinite, number}`; keys
move between versions as well. So each fact is looked for where any version has put it, a record without a name
is left out and counted, and everything else that is missing is unknown. `collect/slurm_watch` (the hub) and
`collect/slurm_jobs` (the agent) ask Slurm and read the answers here; the doctor has its own reader for pasted text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from watchkeeper.errors import CollectError
from watchkeeper.readers.clusters import hostlist

# gpu:h200:2(IDX:0-1) · gres:gpu:8 · gres/gpu=8 · gres/gpu:h200=8 · gpu:3g.20gb:2(S:0)
GPUS = re.compile(
    r"(?:^|[,/:])gpu(?:(?::(?P<type>[^:=,()]+))?[:=](?P<count>\d+)|(?::(?P<alone>[^:=,()]+))?)(?=[,(]|$)"
    r"(?:\((?P<inside>[^)]*)\))?"
)
NEXT = re.compile(r"[\s,]*")
ASSIGNMENT = re.compile(r"(?:^|\s)(?P<name>[A-Za-z][\w/:.]*)=")
NOT_THERE = ("", "(null)", "None", "N/A", "n/a", "Unknown", "(none)")
# What Slurm calls a limit or a number that was never set.
INFINITE = 0xFFFFFFFF
NO_VALUE = 0xFFFFFFFE
UNUSABLE = frozenset({"DRAIN", "DRAINED", "DRAINING", "MAINT", "MAINTENANCE", "PLANNED_MAINT", "REBOOT_ISSUED"})
BROKEN = frozenset({"DOWN", "FAIL", "FAILING", "ERROR", "NOT_RESPONDING", "INVALID_REG", "POWERED_DOWN", "FUTURE"})
BUSY = frozenset({"ALLOCATED", "MIXED", "COMPLETING"})


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A node as slurmctld knows it. `states` are upper-case words, the state first and its flags after it.

    `gpus` are those of `gres`, MIG slices counted one by one as Slurm does.
    """

    name: str
    states: tuple[str, ...] = ()
    reason: str = ""
    reason_user: str = ""
    gpus: int | None = None
    allocated_gpus: int | None = None
    address: str = ""
    hostname: str = ""
    partitions: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    gres: str = ""

    @property
    def state_name(self) -> str:
        """The state in sinfo's own word: `idle`, `draining`, `down*`."""
        flags = set(self.states)
        if not flags:
            return "unknown"
        first = self.states[0].lower()
        if "DOWN" in flags:
            first = "down"
        elif "INVALID_REG" in flags:
            first = "inval"
        elif flags & {"DRAIN", "DRAINED", "DRAINING"}:
            first = "draining" if flags & BUSY or "DRAINING" in flags else "drained"
        elif flags & {"MAINT", "MAINTENANCE"}:
            first = "maint"
        elif "COMPLETING" in flags:
            first = "completing"
        return first + ("*" if "NOT_RESPONDING" in flags else "")

    @property
    def is_ready(self) -> bool | None:
        """None where Slurm does not know either."""
        if not self.states or self.states[0] == "UNKNOWN":
            return None
        return not BROKEN.intersection(self.states)

    @property
    def is_schedulable(self) -> bool:
        return self.is_ready is True and not UNUSABLE.intersection(self.states)


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job. `held` has the GPU indexes on each node where Slurm tells them; a node without them has an empty tuple.

    `id` is the number under which processes, job files and steps know it; `array` is what squeue shows for a task of
    an array, `17_3`.
    """

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
    """GPUs that an account may hold together; only accounts with such a limit have one."""

    account: str
    gpus: int


def nodes_of_json(text: str, *, where: str) -> list[NodeRecord]:
    """`sinfo --json` of 22.05, `scontrol show nodes --json` of later versions, and slurmrestd's nodes."""
    return [node for item in _records(text, "nodes", where=where) if (node := _json_node(item)) is not None]


def jobs_of_json(text: str, *, where: str) -> list[JobRecord]:
    """`squeue --json`, `scontrol show jobs --json` and slurmrestd's jobs."""
    return [job for item in _records(text, "jobs", where=where) if (job := _json_job(item)) is not None]


def nodes_of_text(text: str) -> list[NodeRecord]:
    """`scontrol show node`, with or without -o and -d, of every version."""
    return [_text_node(found) for found in _blocks(text, "NodeName")]


def jobs_of_text(text: str) -> list[JobRecord]:
    """`scontrol show job -d`; not with -o, where a job's name cannot be told from what follows it."""
    return [found for block in _job_blocks(text) if (found := _text_job(block)) is not None]


def job_of_text(text: str, id: str) -> JobRecord | None:
    """The job that scontrol was asked for; None if its answer holds records of others, which only an array's may."""
    head = text.partition(" JobName=")[0]
    if "\nJobId=" in text and "ArrayJobId=" not in head:
        return None
    return next((job for job in jobs_of_text(text) if job.id == id), None)


def leaves_of_topology(text: str) -> dict[str, str]:
    """`scontrol show topology` (or topology.conf): each node to the lowest switch it hangs on."""
    leaves: dict[str, str] = {}
    for line in text.splitlines():
        found = dict(_assignments(line.partition("#")[0]))
        name = found.get("SwitchName") or found.get("BlockName")
        # A switch above leaves lists its nodes too, but also has Switches.
        if not name or found.get("Switches", "") not in NOT_THERE or not found.get("Nodes"):
            continue
        for node in _expand(found["Nodes"]):
            leaves.setdefault(node, name)
    return leaves


def limits_of_text(text: str) -> list[AccountLimit]:
    """`sacctmgr -nP show assoc format=account,user,grptres`: limits of whole accounts."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        cells = line.strip().split("|")
        if len(cells) >= 3 and cells[0] and not cells[1] and (gpus := gpu_count(cells[2])) is not None:
            found.setdefault(cells[0], gpus)
    return [AccountLimit(account, gpus) for account, gpus in found.items()]


def gpu_count(text: str | None) -> int | None:
    """GPUs in a Gres or TRES text; None where it names none. A total wins over the types it is made of."""
    if not text or text in NOT_THERE:
        return None
    plain: list[int] = []
    typed: list[int] = []
    for found in GPUS.finditer(text):
        (plain if found["type"] is found["alone"] is None else typed).append(int(found["count"] or 1))
    if plain and typed and "gres/" in text:
        return plain[0]
    return sum(plain + typed) if plain or typed else None


def gpu_indexes(text: str) -> tuple[int, ...]:
    """`gpu:h200:2(IDX:0-1,4)` → 0, 1, 4."""
    found: list[int] = []
    for match in GPUS.finditer(text):
        inside = match["inside"] or ""
        if inside.startswith("IDX:") and inside != "IDX:N/A":
            found += [int(number) for number in _expand(f"[{inside.removeprefix('IDX:')}]") if number.isdigit()]
    return tuple(found)


def _records(text: str, key: str, *, where: str) -> Iterator[Mapping[str, Any]]:
    """The items of one list of an answer, also where Slurm wrote a warning before or after it.

    They are decoded one at a time: a job takes 14 KiB in 24.11, and ten thousand of them as Python objects a gigabyte.
    """
    decoder = json.JSONDecoder()
    start = re.search(rf'"{key}"\s*:\s*\[', text)
    if start is None:
        raise CollectError(_complaint(text) or f"the answer has no list of {key}", where=where)
    at = start.end()
    while True:
        at = NEXT.match(text, at).end()  # type: ignore[union-attr]
        if text.startswith("]", at):
            return
        try:
            item, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise CollectError(f"not JSON: {error}", where=where) from error
        if isinstance(item, dict):
            yield item


def _complaint(text: str) -> str:
    """What Slurm itself says is wrong, in the list of errors that its JSON has, or in its first line."""
    try:
        found, _ = json.JSONDecoder().raw_decode(text[max(0, text.find("{")) :])
    except (ValueError, RecursionError):
        return text.strip().partition("\n")[0][:200]
    listed = found.get("errors") if isinstance(found, dict) else None
    return "; ".join(_text(one, "error", "description") for one in _items(listed))[:200]


def _json_node(item: Mapping[str, Any]) -> NodeRecord | None:
    name = _text(item, "name")
    if not name:
        return None
    words = (*_words(item.get("state")), *_words(item.get("state_flags")))
    return NodeRecord(
        name,
        tuple(dict.fromkeys(words)),
        reason=_text(item, "reason"),
        reason_user=_text(item, "reason_set_by_user") if _text(item, "reason") else "",
        gpus=gpu_count(_text(item, "gres")),
        allocated_gpus=gpu_count(_text(item, "gres_used")),
        address=_text(item, "address"),
        hostname=_text(item, "hostname"),
        partitions=tuple(_names(item.get("partitions"))),
        features=tuple(_names(item.get("active_features") or item.get("features"))),
        gres=_text(item, "gres"),
    )


def _json_job(item: Mapping[str, Any]) -> JobRecord | None:
    number = _number(item.get("job_id"))
    if number is None:
        return None
    states = tuple(_words(item.get("job_state")))
    nodes = _expand(_text(item, "nodes"))
    told = item.get("gres_detail")
    detail = [text for text in told if isinstance(text, str)] if isinstance(told, list) else []
    hosts = _allocated(item.get("job_resources")) or nodes
    held = {host: gpu_indexes(text) for host, text in zip(hosts, detail, strict=False)}
    held_count = sum(gpu_count(text) or 0 for text in detail)
    reason = _text(item, "state_reason")
    return JobRecord(
        str(number),
        states,
        array=_array_name(_number(item.get("array_job_id")), _number(item.get("array_task_id"))),
        name=_text(item, "name"),
        user=_text(item, "user_name") or str(_number(item.get("user_id")) or ""),
        account=_text(item, "account"),
        partition=_text(item, "partition"),
        reason="" if reason in NOT_THERE else reason,
        detail=_text(item, "state_description"),
        gpus=held_count or _asked_gpus(item),
        nodes=tuple(hosts),
        gpus_by_node=held,
        submitted_at=_time(item.get("submit_time")),
        started_at=_time(item.get("start_time")) if states[:1] != ("PENDING",) else None,
    )


def _asked_gpus(item: Mapping[str, Any]) -> int:
    """What a waiting job asked for: the whole, or so many for each node or task."""
    whole = gpu_count(_text(item, "tres_req_str")) or gpu_count(_text(item, "tres_per_job"))
    if whole is not None:
        return whole
    per_node, per_task = gpu_count(_text(item, "tres_per_node")), gpu_count(_text(item, "tres_per_task"))
    if per_node is not None:
        return per_node * (_number(item.get("node_count")) or 1)
    return (per_task or 0) * (_number(item.get("tasks")) or 1)


def _allocated(resources: Any) -> list[str]:
    """The nodes in the order of `gres_detail`: 22.05 calls the list one thing, later versions another."""
    if not isinstance(resources, dict):
        return []
    listed = resources.get("allocated_nodes")
    if listed is None and isinstance(resources.get("nodes"), dict):
        listed = resources["nodes"].get("allocation")
    return [name for one in _items(listed) if (name := _text(one, "nodename", "name"))]


def _array_name(array: int | None, task: int | None) -> str:
    return f"{array}_{task}" if array and task is not None else ""


def _text_node(found: Mapping[str, str]) -> NodeRecord:
    reason, _, by = found.get("Reason", "").rpartition(" [")
    states = found.get("State", "").replace("*", "+NOT_RESPONDING").upper().split("+")
    return NodeRecord(
        found["NodeName"],
        tuple(dict.fromkeys(word for word in states if word)),
        reason=reason or ("" if by in NOT_THERE else by),
        reason_user=by.partition("@")[0] if reason else "",
        gpus=gpu_count(found.get("Gres")),
        allocated_gpus=gpu_count(found.get("GresUsed") or found.get("AllocTRES")),
        address=found.get("NodeAddr", ""),
        hostname=found.get("NodeHostName", ""),
        partitions=tuple(part for part in found.get("Partitions", "").split(",") if part),
        features=tuple(part for part in found.get("ActiveFeatures", "").split(",") if part not in NOT_THERE),
        gres=found.get("Gres", ""),
    )


def _text_job(found: Mapping[str, str]) -> JobRecord | None:
    if not found.get("JobId", "").isdigit():
        return None
    states = tuple(found.get("JobState", "").upper().split())
    listed = found.get("NodeList", "")
    nodes = tuple(_expand("" if listed in NOT_THERE else listed))
    held = {name: gpu_indexes(gres) for names, gres in _lines_of_nodes(found) for name in _expand(names)}
    held_count = sum(gpu_count(gres) or 0 for names, gres in _lines_of_nodes(found) for _ in _expand(names))
    array, task = found.get("ArrayJobId"), found.get("ArrayTaskId", "")
    reason = found.get("Reason", "")
    return JobRecord(
        found["JobId"],
        states,
        array=f"{array}_{task}" if array and task.isdigit() else "",
        name=found.get("JobName", ""),
        user=found.get("UserId", "").partition("(")[0],
        account="" if found.get("Account", "") in NOT_THERE else found["Account"],
        partition=found.get("Partition", ""),
        reason="" if reason in NOT_THERE else reason,
        gpus=held_count or _asked_in_text(found),
        nodes=nodes,
        gpus_by_node=held,
        submitted_at=_local_time(found.get("SubmitTime")),
        started_at=_local_time(found.get("StartTime")) if states != ("PENDING",) else None,
    )


def _asked_in_text(found: Mapping[str, str]) -> int:
    whole = gpu_count(found.get("TRES") or found.get("ReqTRES")) or gpu_count(found.get("TresPerJob"))
    if whole is not None:
        return whole
    count = found.get("NumNodes", "1").partition("-")[0]
    return (gpu_count(found.get("TresPerNode")) or 0) * (int(count) if count.isdigit() else 1)


def _lines_of_nodes(found: Mapping[str, str]) -> list[tuple[str, str]]:
    """The lines `Nodes=n[1-2] CPU_IDs=0 Mem=0 GRES=gpu:8(IDX:0-7)` that -d adds, one for each kind of node."""
    listed = found.get("Nodes\0", "")
    return [(line.partition("\t")[0], line.partition("\t")[2]) for line in listed.split("\n") if line]


def _blocks(text: str, key: str) -> Iterator[dict[str, str]]:
    """The `Name=value` blocks of scontrol, each beginning with `key`."""
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
    """One for each job. Whoever submits a job chooses its name, line feeds included, and scontrol prints it as it is.

    So nothing between `JobName=` and the last line that begins with UserId is believed, and nothing from Command on.
    """
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
    """`A=x y B=z` → (A, x y), (B, z): values may hold blanks, names may not."""
    starts = list(ASSIGNMENT.finditer(line))
    ends = [*(match.start() for match in starts[1:]), len(line)] if starts else []
    return [(match["name"], line[match.end() : end].strip()) for match, end in zip(starts, ends, strict=True)]


def _expand(text: str) -> list[str]:
    try:
        return hostlist.expand(text)
    except hostlist.BadHostlist:
        return []


def _items(value: Any) -> Iterable[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _text(item: Mapping[str, Any], *names: str) -> str:
    return next((item[name] for name in names if isinstance(item.get(name), str)), "")


def _words(value: Any) -> list[str]:
    """A state: `idle`, `IDLE+DRAIN` or `["IDLE", "DRAIN"]`."""
    if isinstance(value, str):
        value = value.split("+")
    listed = value if isinstance(value, list) else []
    return [word.strip().upper() for word in listed if isinstance(word, str) and word.strip()]


def _names(value: Any) -> list[str]:
    if isinstance(value, str):
        value = value.split(",")
    return [one for one in value if isinstance(one, str) and one not in NOT_THERE] if isinstance(value, list) else []


def _number(value: Any) -> int | None:
    """A number of any version; None where it is unset or infinite."""
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
    """scontrol writes local time without a zone; the hub is taken to be in the cluster's."""
    try:
        return datetime.fromisoformat(text).timestamp() if text else None
    except ValueError:
        return None
