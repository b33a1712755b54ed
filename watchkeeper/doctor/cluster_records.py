"""Records of more than one machine: outputs of many nodes in one file, objects of Kubernetes, the events of a pod.

Ansible, clush, salt and a loop over ssh print the name of a machine above what it said; an object of Kubernetes names
itself in its metadata. `records` asks for them, and `places` gives the names to the signs below.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from watchkeeper.doctor import headings
from watchkeeper.doctor.facts import TextRecord
from watchkeeper.doctor.listing import Listing
from watchkeeper.readers import flight_recorder
from watchkeeper.readers.logs import line_prefix

# gpu07 | FAILED | rc=18 >>      (ansible)
# ---------------                (clush -b, dshbak)
# gpu07 (1)
# ---------------
# [2] 04:12:02 [FAILURE] gpu07 Exited with error code 18      (pssh)
# gpu07:                         (salt)
#     what it printed
# Host: gpu07      ===== gpu07 =====      ### node: gpu07      (what people print in a loop)
MACHINE = re.compile(
    r"^(?P<told>[A-Za-z][\w.-]*) \| (?:CHANGED|SUCCESS|FAILED!?|UNREACHABLE!?)(?: \| rc=-?\d+)? (?:>>|=>)"
    r"|^-{5,}\n(?P<gathered>[A-Za-z][\w.\[\],-]*)(?: \(\d+\))?\n-{5,}$"
    r"|^\[\d+\] \d\d:\d\d:\d\d \[(?:SUCCESS|FAILURE)\] (?P<reached>[A-Za-z][\w.-]*)"
    r"|^(?:[Hh]ost|[Nn]ode|[Ss]erver|[Mm]achine)(?:[Nn]ame)?: ?(?P<named>[A-Za-z][\w.-]*\d[\w.-]*)$"
    r"|^(?P<indenting>[A-Za-z][\w.-]*\d[\w.-]*):\n(?= {4}\S)"
    r"|^(?:[=#*>]{2,}|-{3,}) ?(?P<said>(?:host|node|server|machine)(?:name)?:? )?"
    r"(?P<ruled>[A-Za-z][\w.-]*\d[\w.-]*) ?:?(?: ?(?:[=#*<]{2,}|-{3,}))?$",
    re.MULTILINE,
)
# What people also put between rules, numbered like machines.
NO_MACHINE = re.compile(r"(?i)(?:rank|step|epoch|iter\w*|test|stage|phase|part|run|layer|case|round|v)[\d_.-]|gpu\d$")
LEAST_NAMES = 2
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
FILE = re.compile(r"^==> (?P<path>.+) <==$", re.MULTILINE)
#   Normal   Scheduled  73s   default-scheduler  Successfully assigned team-a/trainer-0 to gpu07
ASSIGNED = re.compile(r"Successfully assigned (?P<namespace>[\w.-]+)/(?P<pod>[\w.-]+) to (?P<node>[\w.-]+)")
EVENT = re.compile(r"\s*(?:Normal|Warning|Type|-{4,})\s")
# Objects stand at the edge or in a list; what is deeper belongs to one.
MAX_DEPTH = 64
# apiVersion: v1      - apiVersion: v1      "apiVersion": "v1",
OBJECT = re.compile(r'^[ \t]*(?:- )?"?apiVersion"?:', re.MULTILINE)
KEY = re.compile(r'\s*(?:- )?"?(?P<key>\w+)"?:(?: "?(?P<value>[\w./-]+)"?,?)?')


def machines(listing: Listing) -> Iterator[TextRecord]:
    """What each machine said, until the name of the next; what only looks like a heading must be a habit."""
    matches = list(headings.until_next(listing, MACHINE))
    names = {name for _, _, match in matches if (name := _habitual(match))}
    shapes = Counter(re.sub(r"\d", "", name) for name in names)
    for first, last, match in matches:
        name = match["told"] or match["gathered"] or match["reached"] or _habitual(match) or ""
        is_habit = not _habitual(match) or match["said"] or shapes[re.sub(r"\d", "", name)] >= LEAST_NAMES
        if is_habit and not NO_MACHINE.match(name) and not line_prefix.DEVICE.match(name):
            yield TextRecord(listing.name, first, last, {"node": name})


def _habitual(match: re.Match[str]) -> str | None:
    """A name that is a machine's only where others like it stand in the same way."""
    return match["ruled"] or match["indenting"] or match["named"]


def journal(listing: Listing) -> Iterator[TextRecord]:
    """Entries of `journalctl -o export` or `-o verbose`, each a block of lines with the name of its machine."""
    yield from _blocks(listing, ASSIGNMENT, HOSTNAME)


def actors(listing: Listing) -> Iterator[TextRecord]:
    """Actors of Ray that died, and the machine on which each ran."""
    for first, match in headings.numbered(listing, ACTOR):
        yield TextRecord(listing.name, first, first + ACTOR_LINES, match.groupdict())


def files(listing: Listing) -> Iterator[TextRecord]:
    """Several files behind each other, as `tail` and `head` print them; a name may tell the rank."""
    for first, last, match in headings.until_next(listing, FILE):
        if (rank := flight_recorder.RANK_OF_NAME.search(match["path"].rsplit("/", 1)[-1])) is not None:
            yield TextRecord(listing.name, first, last, {"rank": rank[1]})


def events(listing: Listing) -> Iterator[TextRecord]:
    """The events of one pod, of which one says where it was placed."""
    yield from _blocks(listing, EVENT, ASSIGNED)


def _blocks(listing: Listing, line: re.Pattern[str], heading: re.Pattern[str]) -> Iterator[TextRecord]:
    """Lines of one kind that follow each other, where exactly one of them says whose they are."""
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


def objects(listing: Listing) -> Iterator[TextRecord]:
    """Pods and nodes as `kubectl get -o yaml` or `-o json` prints them, one key a line."""
    starts = [(number, _depth(listing.lines[number - 1])) for number, _ in headings.numbered(listing, OBJECT)]
    # What is owned by an object has a version of its own, deeper inside; an object ends where none that is begins.
    later: list[tuple[int, int]] = []
    for first, depth in reversed([start for start in starts if start[1] <= MAX_DEPTH]):
        while later and later[-1][1] > depth:
            later.pop()
        last = later[-1][0] - 1 if later else len(listing.lines)
        later.append((first, depth))
        if named := _named(listing.lines[first - 1 : last], depth):
            yield TextRecord(listing.name, first, last, named)


def _named(block: Sequence[str], depth: int) -> dict[str, str]:
    """What an object is called; an event is about another one."""
    own = {match["key"]: match["value"] for line in block if _depth(line) == depth and (match := KEY.match(line))}
    if own.get("kind") == "Event":
        about = _inside(block, depth, "involvedObject") or _inside(block, depth, "regarding")
        kind, name = about.get("kind"), about.get("name")
    else:
        kind, name = own.get("kind"), _inside(block, depth, "metadata").get("name")
    if kind not in ("Node", "Pod") or not name:
        return {}
    node = next((match["value"] for line in block if (match := _key("nodeName", line)) and match["value"]), None)
    return {"node": name} if kind == "Node" else {"pod": name} | ({"node": node} if node else {})


def _inside(block: Sequence[str], depth: int, key: str) -> dict[str, str]:
    """The keys right below one of an object's own keys."""
    at = next((at for at, line in enumerate(block) if _depth(line) == depth and _key(key, line)), len(block) - 1)
    below = block[at + 1 :]
    children = _depth(below[0]) if below else depth
    values: dict[str, str] = {}
    for line in below:
        if _depth(line) <= depth:
            break
        if _depth(line) == children and (match := KEY.match(line)) and match["value"]:
            values.setdefault(match["key"], match["value"])
    return values


def _key(name: str, line: str) -> re.Match[str] | None:
    match = KEY.match(line)
    return match if match is not None and match["key"] == name else None


def _depth(line: str) -> int:
    """How deep a key stands; the dash of a list's item counts as a space."""
    bare = line.lstrip()
    return headings.depth_of(line) + 2 * bare.startswith("- ")
