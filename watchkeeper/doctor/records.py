"""Records of a printout: what a heading names belongs to the lines below it.

`kubectl describe` names a pod or a node once, `scontrol` a node or a job, `lspci` and the table of nvidia-smi a GPU,
the prompt of a shell the machine. `documents` calls `read`; `places` gives what a heading names to the signs below it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from watchkeeper.doctor import cluster_records, headings
from watchkeeper.doctor.facts import DoctorFacts, TextRecord
from watchkeeper.doctor.listing import Listing
from watchkeeper.readers.nvidia_smi import TABLE_FIRST

MAX_RECORDS = 4096
# What a heading of `kubectl describe` says stands at most so far below its first line.
DESCRIBED_LINES = 60
TABLE_LINES = 3
# Name:         trainer-0      then      Namespace:    team-a      and      Node:         gpu07/10.0.0.7
DESCRIBED = re.compile(r"^(?P<indent>[ \t]*)Name:[ \t]+(?P<name>[\w.-]+)[ \t]*$", re.MULTILINE)
DESCRIBED_KEY = re.compile(r"[A-Z][\w ().-]{0,40}:(?:\s|$)")
NAMESPACE, NODE = (re.compile(rf"^\s*{key}:\s+(?P<value>[\w.-]+)(?:/\S*)?\s*$") for key in ("Namespace", "Node"))
OF_A_POD = re.compile(r"^\s*(?:Node|Priority|QoS Class|Node-Selectors|Containers|Init Containers):")
OF_A_NODE = re.compile(r"^\s*(?:Roles|Taints|Unschedulable|Capacity|System Info):")
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
TYPED = re.compile(
    r"^[ \t]*(?:(?:\([\w.-]+\) )?\[?[\w.-]+@(?P<node>[A-Za-z][\w.-]*)[: ][^\n#$%>]{0,120}\]?[#$%>] *"
    r"|[$\u276f] ?|(?=kubectl ))"
    r"(?:sudo (?:-\S+ )*)?(?:\S*/)?(?P<command>[\w.-]*)(?P<rest>[^\n|]*)",
    re.MULTILINE,
)
KUBECTL = frozenset({"kubectl", "k", "oc"})
# Options of kubectl that take their value from the next word.
WITH_VALUE = frozenset(
    {"-n", "--namespace", "-c", "--container", "--tail", "--since", "--context", "--kubeconfig", "-o"}
)
NAME = re.compile(r"[a-z0-9][\w.-]*")
OBJECTS = {"pod": "pod", "pods": "pod", "po": "pod", "node": "node", "nodes": "node", "no": "node"}
SSH_WITH_VALUE = frozenset({"-p", "-i", "-o", "-l", "-J", "-F", "-L", "-R", "-D"})
# What these print of a log is about the machine whose log it is.
READERS = frozenset({"cat", "zcat", "grep", "egrep", "zgrep", "rg", "tail", "head", "less", "more"})
# What these print is about the machine on which they are typed.
LOCAL = frozenset(
    {
        "nvidia-smi",
        "nvidia-container-cli",
        "nvidia-bug-report.sh",
        "nv-fabricmanager",
        "dcgmi",
        "lspci",
        "dmesg",
        "free",
    }
    | {"journalctl", "systemctl", "service", "lsmod", "modinfo", "modprobe", "dkms", "df", "rdma", "show_gids"}
    | {"ibstat", "ibstatus", "ibv_devinfo", "ibv_devices"}
)


def read(listing: Listing, facts: DoctorFacts) -> None:
    for needles, reading in READINGS:
        if any(needle in listing.text for needle in needles):
            rows = sorted(islice(reading(listing), MAX_RECORDS), key=lambda record: record.first)
            facts.records.setdefault(listing.name, []).extend([rows] if rows else [])


def enclosing_records(records: Sequence[Sequence[TextRecord]], line: int) -> Iterator[TextRecord]:
    """The records that have a line, of each kind the one whose heading is nearest."""
    for group in records:
        at = bisect_right(group, line, key=lambda record: record.first) - 1
        if at >= 0 and line <= group[at].last:
            yield group[at]


def _described(listing: Listing) -> Iterator[TextRecord]:
    lines = listing.lines
    for first, match in headings.numbered(listing, DESCRIBED):
        indent, last = len(match["indent"]), first
        while last < len(lines) and _goes_on(lines[last], indent):
            last += 1
        block = lines[first : min(last, first + DESCRIBED_LINES)]
        values = {name: _first(pattern, block) for name, pattern in (("namespace", NAMESPACE), ("node", NODE))}
        if values["namespace"] and any(map(OF_A_POD.match, block)):
            named = {"pod": match["name"]} | {name: value for name, value in values.items() if value}
            yield TextRecord(listing.name, first, last, named)
        elif not values["namespace"] and any(map(OF_A_NODE.match, block)):
            yield TextRecord(listing.name, first, last, {"node": match["name"]})


def _goes_on(line: str, indent: int) -> bool:
    """Whether a line belongs to what `kubectl describe` prints of one object."""
    if not line.strip() or len(line) - len(line.lstrip()) > indent:
        return True
    return DESCRIBED_KEY.match(line, indent) is not None and not line.lstrip().startswith("Name:")


def _first(pattern: re.Pattern[str], lines: Sequence[str]) -> str | None:
    return next((match["value"] for line in lines if (match := pattern.match(line)) is not None), None)


def _indented(pattern: re.Pattern[str]) -> Callable[[Listing], Iterator[TextRecord]]:
    """A reading of records that end where a line is indented no deeper than their heading."""

    def reading(listing: Listing) -> Iterator[TextRecord]:
        for first, match in headings.numbered(listing, pattern):
            heading, last = listing.lines[first - 1], first
            depth = len(heading) - len(heading.lstrip())
            while last < len(listing.lines):
                line = listing.lines[last]
                if line.strip() and len(line) - len(line.lstrip()) <= depth:
                    break
                last += 1
            yield TextRecord(
                listing.name, first, last, {key: value for key, value in match.groupdict().items() if value}
            )

    return reading


def _table_rows(listing: Listing) -> Iterator[TextRecord]:
    for number, line in enumerate(listing.lines, 1):
        if line.startswith("|") and (row := TABLE_FIRST.match(line)) is not None:
            named = {"gpu": row["index"], "pci": row["pci"]}
            yield TextRecord(listing.name, number, number + TABLE_LINES - 1, named)


def _typed(listing: Listing) -> Iterator[TextRecord]:
    """What people typed, each with what it printed until the next."""
    for first, last, typed in headings.until_next(listing, TYPED):
        command, words = typed["command"], typed["rest"].split()
        if command in KUBECTL:
            named = _asked_of_kubectl(words)
        elif command == "ssh":
            named = _asked_of_ssh(words)
        else:
            is_local = command in LOCAL or (command in READERS and "/var/log/" in typed["rest"])
            named = {"node": typed["node"]} if typed["node"] and is_local else {}
        if named:
            yield TextRecord(listing.name, first, last, named)


def _asked_of_ssh(words: Sequence[str]) -> dict[str, str]:
    """The machine on which ssh was told to run something."""
    pairs = zip(words, ["", *words], strict=False)
    plain = [word for word, before in pairs if word[0] != "-" and before not in SSH_WITH_VALUE]
    name = plain[0].rpartition("@")[2] if len(plain) > 1 else ""
    return {"node": name} if NAME.fullmatch(name) else {}


def _asked_of_kubectl(words: Sequence[str]) -> dict[str, str]:
    """The object that `kubectl logs`, `exec` or `describe` was asked about."""
    pairs = list(zip(words, ["", *words], strict=False))
    verb, *rest = [word for word, before in pairs if word[0] != "-" and before not in WITH_VALUE] or [""]
    named = {before.strip("-")[:1]: word for word, before in pairs if before in ("-n", "--namespace")}
    if verb == "describe" and len(rest) == 1:
        rest = rest[0].split("/")
    elif verb in ("logs", "exec") and rest:
        rest = rest[0].split("/") if "/" in rest[0] else ["pod", rest[0]]
    kind = OBJECTS.get(rest[0]) if len(rest) > 1 and verb in ("describe", "logs", "exec") else None
    if kind is None or NAME.fullmatch(rest[1]) is None:
        return {}
    return {kind: rest[1]} | ({"namespace": named["n"]} if named and kind == "pod" else {})


def _ports(listing: Listing) -> Iterator[TextRecord]:
    for first, last, match in headings.until_next(listing, PORT_INFO):
        yield TextRecord(listing.name, first, last, {"owner": match["owner"].lower(), "port": match["port"]})


MACHINE_WORDS = ("ost: ", "ode: ", "erver: ", "achine: ", "ame: ")
# Each with texts of which a printout must have one before it is looked through.
READINGS: tuple[tuple[tuple[str, ...], Callable[[Listing], Iterator[TextRecord]]], ...] = (
    (("Name:",), _described),
    (("NodeName=", "JobId="), _indented(SCONTROL)),
    (("LnkSta",), _indented(LSPCI)),
    (("gpuId ",), _indented(DCGMI_GPU)),
    (("MiB |", "GPU is lost"), _table_rows),
    (("# Port ",), _ports),
    (("Successfully assigned ",), cluster_records.events),
    (("apiVersion",), cluster_records.objects),
    ((" >>\n", " => {", "-----\n", "==", "##", "[FAILURE]", ":\n    ", *MACHINE_WORDS), cluster_records.machines),
    (("_HOSTNAME=",), cluster_records.journal),
    (("==> ",), cluster_records.files),
    (("RayActorError", "ActorDiedError"), cluster_records.actors),
    (("@", "kubectl ", "$ "), _typed),
)
