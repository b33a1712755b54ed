"""Nodes whose agents have made themselves known to the hub, as one more source of expected nodes and targets.

The hub hands every `POST /api/nodes` to `take` and merges `found` with what discovery says, which goes first: a node
that a list already names keeps its targets. Nothing is kept on disk, because every agent repeats itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from watchkeeper.errors import CollectError
from watchkeeper.model.fleet import MAX_GPUS_OF_A_NODE, NodeRegistration
from watchkeeper.scrape import discovery

# An agent that is gone for a day is no longer missed by what it once said of itself; lists are for that.
REGISTRATION_LIFETIME = timedelta(hours=24)
MAX_NODES = 20_000
MAX_NAME_LENGTH = 253
SOURCE = "agents"


@dataclass(frozen=True, slots=True)
class RegisteredNode:
    registration: NodeRegistration
    peer: str
    at: datetime


class NodeRegistrations:
    """The last word of each node."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], RegisteredNode] = {}

    def register(self, told: NodeRegistration, peer: str, *, now: datetime) -> None:
        """Believe a node; CollectError says what of it cannot be."""
        _check(told)
        key = (told.cluster, told.node)
        if key not in self._known and len(self._known) >= MAX_NODES:
            raise CollectError(f"{len(self._known)} nodes are registered, the limit is {MAX_NODES}")
        self._known[key] = RegisteredNode(told, peer, now)

    def discovered_nodes(self, listed: discovery.DiscoveredTargets, *, now: datetime) -> discovery.DiscoveredTargets:
        """The registered nodes; those that a list gives no target for are read where they said."""
        has_target = {(target.cluster, target.node) for target in listed.targets}
        self._known = {key: entry for key, entry in self._known.items() if now - entry.at < REGISTRATION_LIFETIME}
        groups = [_group(entry, is_read=key not in has_target) for key, entry in self._known.items()]
        return discovery.read_groups(groups, SOURCE, defaults=discovery.DiscoveryDefaults())


def _check(told: NodeRegistration) -> None:
    for name in (told.cluster, told.node):
        if not 0 < len(name) <= MAX_NAME_LENGTH or not name.isprintable() or " " in name:
            raise CollectError(f"a name needs 1 to {MAX_NAME_LENGTH} visible characters, this one has {len(name)}")
    if told.metrics_port is not None and not 1 <= told.metrics_port <= 65_535:
        raise CollectError(f"port {told.metrics_port} is not between 1 and 65535")
    if told.expected_gpus is not None and not 0 <= told.expected_gpus <= MAX_GPUS_OF_A_NODE:
        raise CollectError(f"{told.expected_gpus} expected GPUs, the limit is {MAX_GPUS_OF_A_NODE}")
    if len(told.gpus) > MAX_GPUS_OF_A_NODE:
        raise CollectError(f"{len(told.gpus)} GPUs, the limit is {MAX_GPUS_OF_A_NODE}")


def _group(entry: RegisteredNode, *, is_read: bool) -> dict[str, object]:
    told = entry.registration
    labels = {f"{discovery.META}cluster": told.cluster, f"{discovery.META}node": told.node}
    if told.expected_gpus is not None:
        labels[f"{discovery.META}expected_gpus"] = str(told.expected_gpus)
    if told.metrics_tls:
        labels["__scheme__"] = "https"
    host = f"[{entry.peer}]" if ":" in entry.peer else entry.peer
    targets = [f"{host}:{told.metrics_port}"] if is_read and told.metrics_port is not None else []
    return {"targets": targets, "labels": labels}
