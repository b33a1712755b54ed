"""Records of more than one machine: outputs of many nodes in one file, objects of Kubernetes, the events of a pod.

Ansible, clush and a loop over ssh print the name of a machine above what it said; an object of Kubernetes names itself
in its metadata. `records` asks for them, and `places` gives the names to the signs below.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from watchkeeper.diagnose.doctor import headings
from watchkeeper.diagnose.doctor.facts import Record
from watchkeeper.diagnose.doctor.listing import Listing

# gpu07 | FAILED | rc=18 >>      (ansible)
# ---------------                (clush -b, dshbak)
# gpu07 (1)
# ---------------
# ===== gpu07 =====      ### node: gpu07      (what people print in a loop)
MACHINE = re.compile(
    r"^(?P<told>[A-Za-z][\w.-]*) \| (?:CHANGED|SUCCESS|FAILED!?|UNREACHABLE!?)(?: \| rc=-?\d+)? (?:>>|=>)"
    r"|^-{5,}\n(?P<gathered>[A-Za-z][\w.\[\],-]*)(?: \(\d+\))?\n-{5,}$"
    r"|^(?:[=#*>]{2,}|-{3,}) ?(?P<said>(?:host|node|server|machine)(?:name)?:? )?"
    r"(?P<ruled>[A-Za-z][\w.-]*\d[\w.-]*) ?:?(?: ?(?:[=#*<]{2,}|-{3,}))?$",
    re.MULTILINE,
)
# What people also put between rules, numbered like machines.
NO_MACHINE = re.compile(r"(?i)(?:rank|step|epoch|iter\w*|test|stage|phase|part|run|layer|case|round|v)[\d_.-]|gpu\d$")
LEAST_RULED = 2
#   Normal   Scheduled  73s   default-scheduler  Successfully assigned team-a/trainer-0 to gpu07
ASSIGNED = re.compile(r"Successfully assigned (?P<namespace>[\w.-]+)/(?P<pod>[\w.-]+) to (?P<node>[\w.-]+)")
EVENT = re.compile(r"\s*(?:Normal|Warning|Type|-{4,})\s")
# apiVersion: v1      - apiVersion: v1      "apiVersion": "v1",
OBJECT = re.compile(r'^[ \t]*(?:- )?"?apiVersion"?:', re.MULTILINE)
KEY = re.compile(r'\s*(?:- )?"?(?P<key>\w+)"?:(?: "?(?P<value>[\w./-]+)"?,?)?')


def machines(listing: Listing) -> Iterator[Record]:
    """What each machine said, until the name of the next."""
    found = list(headings.until_next(listing, MACHINE))
    shapes = Counter(re.sub(r"\d", "", match["ruled"]) for _, _, match in found if match["ruled"])
    for first, last, match in found:
        ruled = match["ruled"]
        is_habit = ruled and (match["said"] or shapes[re.sub(r"\d", "", ruled)] >= LEAST_RULED)
        name = match["told"] or match["gathered"] or (ruled if is_habit and not NO_MACHINE.match(ruled) else None)
        if name:
            yield Record(listing.name, first, last, {"node": name})


def events(listing: Listing) -> Iterator[Record]:
    """The events of one pod, of which one says where it was placed."""
    placed = dict(headings.numbered(listing, ASSIGNED))
    for number, found in placed.items():
        first = last = number
        while first > 1 and EVENT.match(listing.lines[first - 2]):
            first -= 1
        while last < len(listing.lines) and EVENT.match(listing.lines[last]):
            last += 1
        if not any(first <= other <= last for other in placed if other != number):
            yield Record(listing.name, first, last, found.groupdict())


def objects(listing: Listing) -> Iterator[Record]:
    """Pods and nodes as `kubectl get -o yaml` or `-o json` prints them, one key a line."""
    starts = [number for number, _ in headings.numbered(listing, OBJECT)]
    depths = [_depth(listing.lines[number - 1]) for number in starts]
    for at, (first, depth) in enumerate(zip(starts, depths, strict=True)):
        # What is owned by an object has a version of its own, deeper inside.
        ends = (start - 1 for start, other in zip(starts[at + 1 :], depths[at + 1 :], strict=True) if other <= depth)
        last = next(ends, len(listing.lines))
        if named := _named(listing.lines[first - 1 : last], depth):
            yield Record(listing.name, first, last, named)


def _named(block: Sequence[str], depth: int) -> dict[str, str]:
    own = {match["key"]: match["value"] for line in block if _depth(line) == depth and (match := KEY.match(line))}
    inside = [
        at for at, line in enumerate(block) if _depth(line) == depth and line.lstrip(' "-').startswith("metadata")
    ]
    if own.get("kind") not in ("Node", "Pod") or not inside:
        return {}
    below = block[inside[0] + 1 :]
    children = _depth(below[0]) if below else depth
    name = next((match["value"] for line in below if _depth(line) == children and (match := _key("name", line))), None)
    if not name or children <= depth:
        return {}
    node = next((match["value"] for line in block if (match := _key("nodeName", line))), None)
    return {"node": name} if own["kind"] == "Node" else {"pod": name} | ({"node": node} if node else {})


def _key(name: str, line: str) -> re.Match[str] | None:
    match = KEY.match(line)
    return match if match is not None and match["key"] == name and match["value"] else None


def _depth(line: str) -> int:
    """How deep a key stands; the dash of a list's item counts as a space."""
    bare = line.lstrip()
    return headings.depth_of(line) + 2 * bare.startswith("- ")
