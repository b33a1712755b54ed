"""What conditions, taints, labels and annotations of other programs on a node mean, from packs/node_signals.csv.

`unhealthy` is a fault that another program reported; `held` means that another program works on the node, so no repair
starts. The Kubernetes driver looks up each condition, taint, label and annotation; others are ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cache

from watchkeeper.catalogue import pack


class SignalKind(StrEnum):
    CONDITION = "condition"
    TAINT = "taint"
    LABEL = "label"
    ANNOTATION = "annotation"


class Meaning(StrEnum):
    UNHEALTHY = "unhealthy"
    HELD = "held"


@dataclass(frozen=True, slots=True)
class NodeSignal:
    """`name` may hold `*`; without `values`, any value counts."""

    kind: SignalKind = pack.cell(SignalKind)
    name: str = pack.cell(pack.required)
    values: frozenset[str] = pack.cell(lambda text: frozenset(filter(None, text.split("|"))))
    means: Meaning = pack.cell(Meaning)
    whose: str = pack.cell(pack.required)


def find_signal(kind: SignalKind, name: str, value: str) -> NodeSignal | None:
    """The first row that matches; None if it has no meaning here."""
    rows = (row for row in _rows() if row.kind is kind and fnmatchcase(name, row.name))
    return next((row for row in rows if not row.values or value in row.values), None)


@cache
def _rows() -> tuple[NodeSignal, ...]:
    return pack.load("node_signals.csv", pack.row_reader(NodeSignal, "source"))
