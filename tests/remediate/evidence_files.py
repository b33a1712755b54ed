"""What a bundle of evidence is made from, and what is in it."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from watchkeeper.kit import evidence_file
from watchkeeper.model import events, fleet


@dataclass
class Inventory:
    expected_node: fleet.Node

    def node(self, name: str, cluster: str | None = None) -> fleet.Node | None:
        return self.expected_node if (name, cluster or "main") == ("n1", "main") else None

    def nodes(self) -> list[fleet.Node]:
        return [self.expected_node]


def files(made: bytes | None) -> tuple[dict[str, bytes], dict[str, str]]:
    """What is in a bundle, and what is missing in it with the reason."""
    assert made is not None
    bundle = evidence_file.read(made)
    pieces = json.loads(bundle["manifest.json"])["pieces"]
    return bundle, {piece["name"]: piece["missing"] for piece in pieces if "missing" in piece}


NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
NODE = fleet.Place("main", node="n1")
GPU = replace(NODE, gpu="GPU-1")


def xid(code: int, at: datetime) -> events.Event:
    return events.Event(f"e{code}", events.EventKind.XID, code, GPU, at, f"Xid {code}")
