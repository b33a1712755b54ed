"""Write the place and the title of a finding from the place fields of its evidence.

`report` calls `place_text` and `title_text`. If no line names the place, the text is general, such as "a GPU".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from watchkeeper.catalogue import causes
from watchkeeper.model import diagnosis

# A title that begins with one of these is capitalised; a node name at the start is not changed.
CAPITALISED_STARTS = ("this ", "the job", "a GPU", "rank ", "pod ", "job ")
MEMBER_PLACES = (("culprit_rank", "rank {}"), ("rank", "rank {}"), ("pod", "pod {}"), ("job", "job {}"))
HARDWARE_PLACES = (("gpu", "GPU {}"), ("pci", "GPU {}"), ("switch", "NVSwitch {}"), ("port_pci", "port {}"))
PORT_CAUSES = frozenset({"ib_link_degraded", "nccl_ib_link_error"})
MAX_PORTS = 4


def title_text(row: causes.CauseRow, where: Mapping[str, Any]) -> str:
    place = place_text(row, where)
    # A single rank is not "Ranks of" something.
    if row.title.startswith("Ranks of") and place.startswith("rank "):
        place = "this job"
    text = row.headline(place, single_value(where.get("node")) or "this system").replace("A rank of rank ", "rank ")
    missing = single_value(where.get("missing_rank"))
    if missing is not None and "rank" in text and f"rank {missing}" not in text:
        text = f"{text}: rank {missing}"
    if row.cause in PORT_CAUSES and (ports := _ports(where)):
        text = f"{text}: {ports}"
    return text[:1].upper() + text[1:] if text.startswith(CAPITALISED_STARTS) else text


def place_text(row: causes.CauseRow, where: Mapping[str, Any]) -> str:
    """The part that failed."""
    scope, node = row.scope, where.get("node")
    if row.cause == diagnosis.UNKNOWN_CAUSE and not {"gpu", "pci", "uuid"} & where.keys():
        # An unknown cause is about a GPU only if a line names one.
        scope = "node"
    suffix = f" of {node}" if isinstance(node, str) else f" of {len(node)} nodes" if isinstance(node, list) else ""
    member, hardware = _first_place(where, MEMBER_PLACES), _first_place(where, HARDWARE_PLACES)
    if scope == "workload":
        suffix = suffix if isinstance(node, str) else ""
        if member is not None:
            return member + (suffix.replace(" of ", " on ", 1) if member.startswith("pod ") else suffix)
        if isinstance(node, list) or not (hardware or node):
            return "this job"
        return f"the job on {hardware}{suffix}" if hardware else f"the job on {node}"
    if name := hardware or member:
        return name + suffix
    gpus = next((values for name in ("gpu", "pci") if isinstance(values := where.get(name), list)), None)
    if scope == "gpu":
        return (f"{len(gpus)} GPUs" if gpus else "a GPU") + (suffix or " of this system")
    return node if isinstance(node, str) else "this system"


def single_value(value: Any) -> str | None:
    """The only value; None if there are several or none."""
    if isinstance(value, list):
        return str(value[0]) if len(value) == 1 else None
    return None if value is None else str(value)


def _first_place(where: Mapping[str, Any], templates: Sequence[tuple[str, str]]) -> str | None:
    values = ((template, single_value(where.get(name))) for name, template in templates)
    return next((template.format(value) for template, value in values if value is not None), None)


def _ports(where: Mapping[str, Any]) -> str:
    """The ports of the adapter, or the interface, that the lines name."""
    owner = next((where[name] for name in ("hca", "owner", "interface") if name in where), None)
    if isinstance(owner, list):
        return ", ".join(map(str, owner[:MAX_PORTS])) + (", …" if len(owner) > MAX_PORTS else "")
    port = single_value(where.get("port"))
    return "" if owner is None else f"{owner} port {port}" if port is not None else str(owner)
