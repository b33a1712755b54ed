"""A finding's place and title, in words: what broke as far as the lines name it, else the kind of thing that breaks so.

`report` calls `place` and `title` with the names that the evidence of a finding has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from watchkeeper.catalogue import causes
from watchkeeper.model import diagnosis

# A title that begins with one of these begins with a capital; one that begins with a node's name keeps it.
OUR_WORDS = ("this ", "the job", "a GPU", "rank ", "pod ", "job ")
MEMBERS = (("culprit_rank", "rank {}"), ("rank", "rank {}"), ("pod", "pod {}"), ("job", "job {}"))
BOARDS = (("gpu", "GPU {}"), ("pci", "GPU {}"), ("switch", "NVSwitch {}"), ("port_pci", "port {}"))
ABOUT_PORTS = frozenset({"ib_link_degraded", "nccl_ib_link_error"})
MOST_PORTS = 4


def title(row: causes.CauseRow, where: Mapping[str, Any]) -> str:
    words = place(row, where)
    # A place that is a rank already is not one of several, and has none.
    if row.title.startswith("Ranks of") and words.startswith("rank "):
        words = "this job"
    said = row.headline(words, one(where.get("node")) or "this system").replace("A rank of rank ", "rank ")
    missing = one(where.get("missing_rank"))
    if missing is not None and "rank" in said and f"rank {missing}" not in said:
        said = f"{said}: rank {missing}"
    if row.cause in ABOUT_PORTS and (ports := _ports(where)):
        said = f"{said}: {ports}"
    return said[:1].upper() + said[1:] if said.startswith(OUR_WORDS) else said


def place(row: causes.CauseRow, where: Mapping[str, Any]) -> str:
    """What broke."""
    scope, node = _scope(row, where), where.get("node")
    suffix = f" of {node}" if isinstance(node, str) else f" of {len(node)} nodes" if isinstance(node, list) else ""
    member, board = _named(where, MEMBERS), _named(where, BOARDS)
    if scope == "workload":
        suffix = suffix if isinstance(node, str) else ""
        if member is not None:
            return member + (suffix.replace(" of ", " on ", 1) if member.startswith("pod ") else suffix)
        if isinstance(node, list) or not (board or node):
            return "this job"
        return f"the job on {board}{suffix}" if board else f"the job on {node}"
    if found := board or member:
        return found + suffix
    gpus = next((found for name in ("gpu", "pci") if isinstance(found := where.get(name), list)), None)
    if scope == "gpu":
        return (f"{len(gpus)} GPUs" if gpus else "a GPU") + (suffix or " of this system")
    return node if isinstance(node, str) else "this system"


def one(value: Any) -> str | None:
    """The only one; None where there are several or none."""
    if isinstance(value, list):
        return str(value[0]) if len(value) == 1 else None
    return None if value is None else str(value)


def _scope(row: causes.CauseRow, where: Mapping[str, Any]) -> str:
    """What a cause is about; an unknown one is about a GPU only where a line names one."""
    if row.cause == diagnosis.UNKNOWN_CAUSE and not {"gpu", "pci", "uuid"} & where.keys():
        return "node"
    return row.scope


def _named(where: Mapping[str, Any], words: Sequence[tuple[str, str]]) -> str | None:
    found = ((word, one(where.get(name))) for name, word in words)
    return next((word.format(value) for word, value in found if value is not None), None)


def _ports(where: Mapping[str, Any]) -> str:
    """The adapter's ports, or the interface, that the lines name."""
    owner = next((where[name] for name in ("hca", "owner", "interface") if name in where), None)
    if isinstance(owner, list):
        return ", ".join(map(str, owner[:MOST_PORTS])) + (", …" if len(owner) > MOST_PORTS else "")
    port = one(where.get("port"))
    return "" if owner is None else f"{owner} port {port}" if port is not None else str(owner)
