"""Find records of several nodes: outputs of many nodes in one file, Kubernetes objects, the events of a pod.

Ansible, clush, salt and a loop over ssh print the name of a node above its output; a Kubernetes object has its name in
its metadata. `records` calls this, and `places` adds the names to the signs below.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from watchkeeper.doctor.facts import TextRecord
from watchkeeper.doctor.listing import Listing, indent_of
from watchkeeper.readers import flight_recorder
from watchkeeper.readers.logs import line_prefix

# gpu07 | FAILED | rc=18 >>      (ansible)
# ---------------                (clush -b, dshbak)
# gpu07 (1)
# ---------------
# [2] 04:12:02 [FAILURE] gpu07 Exited with error code 18      (pssh)
# gpu07:                         (salt)
#     its output
# Host: gpu07      ===== gpu07 =====      ### node: gpu07      (in a shell loop)
NODE_HEADING = re.compile(
    r"^(?P<ansible>[A-Za-z][\w.-]*) \| (?:CHANGED|SUCCESS|FAILED!?|UNREACHABLE!?)(?: \| rc=-?\d+)? (?:>>|=>)"
    r"|^-{5,}\n(?P<clush>[A-Za-z][\w.\[\],-]*)(?: \(\d+\))?\n-{5,}$"
    r"|^\[\d+\] \d\d:\d\d:\d\d \[(?:SUCCESS|FAILURE)\] (?P<pssh>[A-Za-z][\w.-]*)"
    r"|^(?:[Hh]ost|[Nn]ode|[Ss]erver|[Mm]achine)(?:[Nn]ame)?: ?(?P<labelled>[A-Za-z][\w.-]*\d[\w.-]*)$"
    r"|^(?P<salt>[A-Za-z][\w.-]*\d[\w.-]*):\n(?= {4}\S)"
    r"|^(?:[=#*>]{2,}|-{3,}) ?(?P<prefix>(?:host|node|server|machine)(?:name)?:? )?"
    r"(?P<ruled>[A-Za-z][\w.-]*\d[\w.-]*) ?:?(?: ?(?:[=#*<]{2,}|-{3,}))?$",
    re.MULTILINE,
)
# Other headings between rules, with numbers like node names.
NOT_A_NODE = re.compile(r"(?i)(?:rank|step|epoch|iter\w*|test|stage|phase|part|run|layer|case|round|v)[\d_.-]|gpu\d$")
MIN_NAMES = 2
# _HOSTNAME=gpu07      among      MESSAGE=…      _TRANSPORT=kernel
HOSTNAME = re.compile(r"^[ \t]*_HOSTNAME=(?P<node>\S+)$")
ASSIGNMENT = re.compile(r"\s*[A-Z_][A-Z0-9_]*=")
# ray.exceptions.RayActorError: The actor died unexpectedly before finishing this task.      and below      ip: 10.0.0.7
ACTOR = re.compile(
    r"^[^\n]*(?:RayActorError|ActorDiedError)[^\n]*\n(?:[ \t]+\w+: [^\n]*\n){0,8}?[ \t]+ip: (?P<node>[\w.:-]+)$",
    re.MULTILINE,
)
ACTOR_LINES = 12
# ==> logs/rank_9.log <==
FILE_HEADING = re.compile(r"^==> (?P<path>.+) <==$", re.MULTILINE)
#   Normal   Scheduled  73s   default-scheduler  Successfully assigned team-a/trainer-0 to gpu07
ASSIGNED = re.compile(r"Successfully assigned (?P<namespace>[\w.-]+)/(?P<pod>[\w.-]+) to (?P<node>[\w.-]+)")
EVENT = re.compile(r"\s*(?:Normal|Warning|Type|-{4,})\s")
# Objects are at the top level or in a list; deeper keys belong to an object.
MAX_DEPTH = 64
# apiVersion: v1      - apiVersion: v1      "apiVersion": "v1",
OBJECT = re.compile(r'^[ \t]*(?:- )?"?apiVersion"?:', re.MULTILINE)
KEY = re.compile(r'\s*(?:- )?"?(?P<key>\w+)"?:(?: "?(?P<value>[\w./-]+)"?,?)?')


def node_records(listing: Listing) -> Iterator[TextRecord]:
    """The output of each node, up to the name of the next; an informal heading counts only if similar ones exist."""
    matches = list(listing.sections(NODE_HEADING))
    names = {name for _, _, match in matches if (name := _informal_name(match))}
    shapes = Counter(re.sub(r"\d", "", name) for name in names)
    for first, last, match in matches:
        name = match["ansible"] or match["clush"] or match["pssh"] or _informal_name(match) or ""
        is_heading = not _informal_name(match) or match["prefix"] or shapes[re.sub(r"\d", "", name)] >= MIN_NAMES
        if is_heading and not NOT_A_NODE.match(name) and not line_prefix.DEVICE.match(name):
            yield TextRecord(listing.name, first, last, {"node": name})


def _informal_name(match: re.Match[str]) -> str | None:
    """A name that counts as a node name only if similar names have the same kind of heading."""
    return match["ruled"] or match["salt"] or match["labelled"]


def journal_records(listing: Listing) -> Iterator[TextRecord]:
    """Entries of `journalctl -o export` or `-o verbose`, each a block of lines with the name of its node."""
    yield from _owned_blocks(listing, ASSIGNMENT, HOSTNAME)


def actor_records(listing: Listing) -> Iterator[TextRecord]:
    """Ray actors that died, with their node."""
    for first, match in listing.numbered_matches(ACTOR):
        yield TextRecord(listing.name, first, first + ACTOR_LINES, match.groupdict())


def file_records(listing: Listing) -> Iterator[TextRecord]:
    """Several files in sequence, as `tail` and `head` print them; a file name may contain the rank."""
    for first, last, match in listing.sections(FILE_HEADING):
        if (rank := flight_recorder.RANK_OF_NAME.search(match["path"].rsplit("/", 1)[-1])) is not None:
            yield TextRecord(listing.name, first, last, {"rank": rank[1]})


def pod_event_records(listing: Listing) -> Iterator[TextRecord]:
    """The events of one pod, one of which names its node."""
    yield from _owned_blocks(listing, EVENT, ASSIGNED)


def _owned_blocks(listing: Listing, line: re.Pattern[str], heading: re.Pattern[str]) -> Iterator[TextRecord]:
    """Blocks of adjacent lines of one kind, if exactly one line of the block has the heading."""
    first = 0
    owners: list[re.Match[str]] = []
    for number, text in enumerate((*listing.lines, ""), 1):
        if line.match(text):
            first = first or number
            owners += [owner] if (owner := heading.search(text)) is not None else []
            continue
        if first and len(owners) == 1:
            yield TextRecord(listing.name, first, number - 1, owners[0].groupdict())
        first, owners = 0, []


def object_records(listing: Listing) -> Iterator[TextRecord]:
    """Pods and nodes as `kubectl get -o yaml` or `-o json` prints them, one key per line."""
    starts = [(number, _depth(listing.lines[number - 1])) for number, _ in listing.numbered_matches(OBJECT)]
    # Nested objects also have an apiVersion, at a deeper level; an object ends where the next at its level starts.
    later_starts: list[tuple[int, int]] = []
    for first, depth in reversed([start for start in starts if start[1] <= MAX_DEPTH]):
        while later_starts and later_starts[-1][1] > depth:
            later_starts.pop()
        last = later_starts[-1][0] - 1 if later_starts else len(listing.lines)
        later_starts.append((first, depth))
        if fields := _object_fields(listing.lines[first - 1 : last], depth):
            yield TextRecord(listing.name, first, last, fields)


def _object_fields(block: Sequence[str], depth: int) -> dict[str, str]:
    """The node or pod name of an object; an event has the name of its involved object."""
    own = {match["key"]: match["value"] for line in block if _depth(line) == depth and (match := KEY.match(line))}
    if own.get("kind") == "Event":
        involved = _child_values(block, depth, "involvedObject") or _child_values(block, depth, "regarding")
        kind, name = involved.get("kind"), involved.get("name")
    else:
        kind, name = own.get("kind"), _child_values(block, depth, "metadata").get("name")
    if kind not in ("Node", "Pod") or not name:
        return {}
    node = next((match["value"] for line in block if (match := _match_key("nodeName", line)) and match["value"]), None)
    return {"node": name} if kind == "Node" else {"pod": name} | ({"node": node} if node else {})


def _child_values(block: Sequence[str], depth: int, key: str) -> dict[str, str]:
    """The keys directly below a key of an object."""
    at = next((at for at, line in enumerate(block) if _depth(line) == depth and _match_key(key, line)), len(block) - 1)
    below = block[at + 1 :]
    child_depth = _depth(below[0]) if below else depth
    values: dict[str, str] = {}
    for line in below:
        if _depth(line) <= depth:
            break
        if _depth(line) == child_depth and (match := KEY.match(line)) and match["value"]:
            values.setdefault(match["key"], match["value"])
    return values


def _match_key(name: str, line: str) -> re.Match[str] | None:
    match = KEY.match(line)
    return match if match is not None and match["key"] == name else None


def _depth(line: str) -> int:
    """The indent of a key; the dash of a list item counts as indent."""
    return indent_of(line) + 2 * line.lstrip().startswith("- ")
