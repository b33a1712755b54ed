"""Find the records of a printout: the place that a heading names applies to the lines below it.

`kubectl describe` names a pod or a node once, `scontrol` a node or a job, `lspci` and the table of nvidia-smi a GPU,
the prompt of a shell the node. `documents` calls `read`; `places` adds the place of a heading to the signs below it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from watchkeeper.doctor import cluster_records
from watchkeeper.doctor.facts import TextRecord
from watchkeeper.doctor.listing import Listing, indent_of
from watchkeeper.readers.nvidia_smi import TABLE_FIRST

MAX_RECORDS = 4096
# The fields of an object in `kubectl describe` are within this many lines below its name.
DESCRIBED_LINES = 60
TABLE_LINES = 3
# Name:         trainer-0      then      Namespace:    team-a      and      Node:         gpu07/10.0.0.7
DESCRIBED = re.compile(r"^(?P<indent>[ \t]*)Name:[ \t]+(?P<name>[\w.-]+)[ \t]*$", re.MULTILINE)
DESCRIBED_KEY = re.compile(r"[A-Z][\w ().-]{0,40}:(?:\s|$)")
NAMESPACE, NODE = (re.compile(rf"^\s*{key}:\s+(?P<value>[\w.-]+)(?:/\S*)?\s*$") for key in ("Namespace", "Node"))
POD_FIELDS = re.compile(r"^\s*(?:Node|Priority|QoS Class|Node-Selectors|Containers|Init Containers):")
NODE_FIELDS = re.compile(r"^\s*(?:Roles|Taints|Unschedulable|Capacity|System Info):")
# NodeName=gpu07 Arch=x86_64 …      JobId=4711 JobName=train      (scontrol show)
SCONTROL = re.compile(r"^[ \t]*(?:NodeName=(?P<node>[\w.-]+)|JobId=(?P<job>\d+))(?= )", re.MULTILINE)
# 3b:00.0 3D controller: NVIDIA Corporation GA100 [A100 PCIe 40GB] (rev a1)
LSPCI = re.compile(
    r"^(?P<pci>(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) (?:3D|VGA|Display)[^\n]*(?:NVIDIA|\[10de:)[^\n]*$",
    re.MULTILINE,
)
#     gpuId 3:      (dcgmi nvlink --link-status)
DCGMI_GPU = re.compile(r"^[ \t]*gpuId (?P<gpu>\d{1,2}):[ \t]*$", re.MULTILINE)
# # Port info: Lid 2 port 36      (ibportstate, perfquery)
PORT_INFO = re.compile(r"^# Port [\w ]+: (?P<owner>Lid \d+) port (?P<port>\d+)", re.MULTILINE)
# root@gpu07:~# nvidia-smi      [ana@gpu07 ~]$ sudo dmesg -T      (base) ana@gpu07:/data$ python train.py
# $ kubectl -n gpu-operator logs nvidia-operator-validator-x7k2p -c driver-validation
PROMPT = re.compile(
    r"^[ \t]*(?:(?:\([\w.-]+\) )?\[?[\w.-]+@(?P<node>[A-Za-z][\w.-]*)[: ][^\n#$%>]{0,120}\]?[#$%>] *"
    r"|[$\u276f] ?|(?=kubectl ))"
    r"(?:sudo (?:-\S+ )*)?(?:\S*/)?(?P<command>[\w.-]*)(?P<rest>[^\n|]*)",
    re.MULTILINE,
)
KUBECTL = frozenset({"kubectl", "k", "oc"})
# Options of kubectl whose value is the next argument.
KUBECTL_VALUE_OPTIONS = frozenset(
    {"-n", "--namespace", "-c", "--container", "--tail", "--since", "--context", "--kubeconfig", "-o"}
)
NAME = re.compile(r"[a-z0-9][\w.-]*")
OBJECT_KINDS = {"pod": "pod", "pods": "pod", "po": "pod", "node": "node", "nodes": "node", "no": "node"}
SSH_VALUE_OPTIONS = frozenset({"-p", "-i", "-o", "-l", "-J", "-F", "-L", "-R", "-D"})
# These commands print a log, which is about the node that wrote it.
FILE_READERS = frozenset({"cat", "zcat", "grep", "egrep", "zgrep", "rg", "tail", "head", "less", "more"})
# The output of these commands is about the node on which they run.
LOCAL_COMMANDS = frozenset({
    "nvidia-smi", "nvidia-container-cli", "nvidia-bug-report.sh", "nv-fabricmanager", "dcgmi", "lspci", "dmesg",
    "free", "journalctl", "systemctl", "service", "lsmod", "modinfo", "modprobe", "dkms", "df", "rdma", "show_gids",
    "ibstat", "ibstatus", "ibv_devinfo", "ibv_devices",
})  # fmt: skip


def read(listing: Listing) -> None:
    for needles, reader in READERS:
        if any(needle in listing.text for needle in needles):
            rows = sorted(islice(reader(listing), MAX_RECORDS), key=lambda record: record.first)
            listing.facts.records.setdefault(listing.name, []).extend([rows] if rows else [])


def enclosing_records(records: Sequence[Sequence[TextRecord]], line: int) -> Iterator[TextRecord]:
    """The records that contain a line: of each kind the one with the nearest heading."""
    for group in records:
        at = bisect_right(group, line, key=lambda record: record.first) - 1
        if at >= 0 and line <= group[at].last:
            yield group[at]


def describe_records(listing: Listing) -> Iterator[TextRecord]:
    """Pods and nodes as `kubectl describe` prints them."""
    lines = listing.lines
    for first, match in listing.numbered_matches(DESCRIBED):
        indent, last = len(match["indent"]), first
        while last < len(lines) and _is_in_block(lines[last], indent):
            last += 1
        block = lines[first : min(last, first + DESCRIBED_LINES)]
        namespace, node = _first_value(NAMESPACE, block), _first_value(NODE, block)
        if namespace and any(map(POD_FIELDS.match, block)):
            fields = {"pod": match["name"], "namespace": namespace} | ({"node": node} if node else {})
            yield TextRecord(listing.name, first, last, fields)
        elif not namespace and any(map(NODE_FIELDS.match, block)):
            yield TextRecord(listing.name, first, last, {"node": match["name"]})


def _is_in_block(line: str, indent: int) -> bool:
    """Whether a line belongs to the same object of `kubectl describe`."""
    if not line.strip() or indent_of(line) > indent:
        return True
    return DESCRIBED_KEY.match(line, indent) is not None and not line.lstrip().startswith("Name:")


def _first_value(pattern: re.Pattern[str], lines: Sequence[str]) -> str | None:
    return next((match["value"] for line in lines if (match := pattern.match(line)) is not None), None)


def _indented_reader(pattern: re.Pattern[str]) -> Callable[[Listing], Iterator[TextRecord]]:
    """Return a reader of records that end at a line that is not indented deeper than their heading."""

    def reading(listing: Listing) -> Iterator[TextRecord]:
        for first, match in listing.numbered_matches(pattern):
            indent, last = indent_of(listing.lines[first - 1]), first
            while last < len(listing.lines) and not (
                listing.lines[last].strip() and indent_of(listing.lines[last]) <= indent
            ):
                last += 1
            fields = {key: value for key, value in match.groupdict().items() if value}
            yield TextRecord(listing.name, first, last, fields)

    return reading


def _table_rows(listing: Listing) -> Iterator[TextRecord]:
    for number, line in enumerate(listing.lines, 1):
        if line.startswith("|") and (row := TABLE_FIRST.match(line)) is not None:
            fields = {"gpu": row["index"], "pci": row["pci"]}
            yield TextRecord(listing.name, number, number + TABLE_LINES - 1, fields)


def _command_records(listing: Listing) -> Iterator[TextRecord]:
    """Commands at a shell prompt, each with its output up to the next prompt."""
    for first, last, prompt in listing.sections(PROMPT):
        command, arguments = prompt["command"], prompt["rest"].split()
        if command in KUBECTL:
            fields = _kubectl_object(arguments)
        elif command == "ssh":
            fields = _ssh_target(arguments)
        else:
            is_local = command in LOCAL_COMMANDS or (command in FILE_READERS and "/var/log/" in prompt["rest"])
            fields = {"node": prompt["node"]} if prompt["node"] and is_local else {}
        if fields:
            yield TextRecord(listing.name, first, last, fields)


def _ssh_target(arguments: Sequence[str]) -> dict[str, str]:
    """The node on which ssh runs a command."""
    pairs = zip(arguments, ["", *arguments], strict=False)
    positional = [word for word, before in pairs if word[0] != "-" and before not in SSH_VALUE_OPTIONS]
    name = positional[0].rpartition("@")[2] if len(positional) > 1 else ""
    return {"node": name} if NAME.fullmatch(name) else {}


def _kubectl_object(arguments: Sequence[str]) -> dict[str, str]:
    """The object of `kubectl logs`, `exec` or `describe`."""
    pairs = list(zip(arguments, ["", *arguments], strict=False))
    verb, *rest = [word for word, before in pairs if word[0] != "-" and before not in KUBECTL_VALUE_OPTIONS] or [""]
    options = {before.strip("-")[:1]: word for word, before in pairs if before in ("-n", "--namespace")}
    if verb == "describe" and len(rest) == 1:
        rest = rest[0].split("/")
    elif verb in ("logs", "exec") and rest:
        rest = rest[0].split("/") if "/" in rest[0] else ["pod", rest[0]]
    kind = OBJECT_KINDS.get(rest[0]) if len(rest) > 1 and verb in ("describe", "logs", "exec") else None
    if kind is None or NAME.fullmatch(rest[1]) is None:
        return {}
    return {kind: rest[1]} | ({"namespace": options["n"]} if options and kind == "pod" else {})


def _port_records(listing: Listing) -> Iterator[TextRecord]:
    for first, last, match in listing.sections(PORT_INFO):
        yield TextRecord(listing.name, first, last, {"owner": match["owner"].lower(), "port": match["port"]})


NODE_HEADINGS = ("ost: ", "ode: ", "erver: ", "achine: ", "ame: ")
# Each reader with texts; it runs only on a printout that contains one of them.
READERS: tuple[tuple[tuple[str, ...], Callable[[Listing], Iterator[TextRecord]]], ...] = (
    (("Name:",), describe_records),
    (("NodeName=", "JobId="), _indented_reader(SCONTROL)),
    (("LnkSta",), _indented_reader(LSPCI)),
    (("gpuId ",), _indented_reader(DCGMI_GPU)),
    (("MiB |", "GPU is lost"), _table_rows),
    (("# Port ",), _port_records),
    (("Successfully assigned ",), cluster_records.pod_event_records),
    (("apiVersion",), cluster_records.object_records),
    ((" >>\n", " => {", "-----\n", "==", "##", "[FAILURE]", ":\n    ", *NODE_HEADINGS), cluster_records.node_records),
    (("_HOSTNAME=",), cluster_records.journal_records),
    (("==> ",), cluster_records.file_records),
    (("RayActorError", "ActorDiedError"), cluster_records.actor_records),
    (("@", "kubectl ", "$ "), _command_records),
)
