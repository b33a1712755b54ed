"""Keep the nodes whose agents registered with the hub: a source of expected nodes and targets.

The hub passes every `POST /api/nodes` to `register` and merges `discovered_nodes` with discovery, which has priority: a
node that a list already names keeps its targets. Nothing is stored on disk, because agents repeat their registration.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from watchkeeper.errors import CollectError
from watchkeeper.model.fleet import MAX_GPUS_PER_NODE, NodeRegistration
from watchkeeper.net import addresses
from watchkeeper.scrape import discovery

# After a day without its agent a node is no longer expected; to expect it longer, list it.
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
    def __init__(self) -> None:
        self._nodes: dict[tuple[str, str], RegisteredNode] = {}

    def register(self, registration: NodeRegistration, peer: str, *, now: datetime) -> None:
        """Register a node; CollectError if a value is invalid."""
        _check(registration)
        key = (registration.cluster, registration.node)
        if key not in self._nodes and len(self._nodes) >= MAX_NODES:
            raise CollectError(f"{len(self._nodes)} nodes are registered, the limit is {MAX_NODES}")
        self._nodes[key] = RegisteredNode(registration, peer, now)

    def discovered_nodes(self, listed: discovery.DiscoveredTargets, *, now: datetime) -> discovery.DiscoveredTargets:
        """The registered nodes; nodes without a target in a list are scraped at their registered port."""
        has_target = {(target.cluster, target.node) for target in listed.targets}
        self._nodes = {key: entry for key, entry in self._nodes.items() if now - entry.at < REGISTRATION_LIFETIME}
        groups = [_build_group(entry, is_target=key not in has_target) for key, entry in self._nodes.items()]
        return discovery.read_groups(groups, SOURCE)


def _check(registration: NodeRegistration) -> None:
    for name in (registration.cluster, registration.node):
        if not 0 < len(name) <= MAX_NAME_LENGTH or not name.isprintable() or " " in name:
            raise CollectError(
                f"a name needs 1 to {MAX_NAME_LENGTH} printable characters without spaces, found {len(name)} characters"
            )
    if registration.metrics_port is not None and not 1 <= registration.metrics_port <= 65_535:
        raise CollectError(f"port {registration.metrics_port} is not between 1 and 65535")
    if registration.expected_gpus is not None and not 0 <= registration.expected_gpus <= MAX_GPUS_PER_NODE:
        raise CollectError(f"{registration.expected_gpus} expected GPUs, the limit is {MAX_GPUS_PER_NODE}")
    if len(registration.gpus) > MAX_GPUS_PER_NODE:
        raise CollectError(f"{len(registration.gpus)} GPUs, the limit is {MAX_GPUS_PER_NODE}")


def _build_group(entry: RegisteredNode, *, is_target: bool) -> dict[str, object]:
    registration = entry.registration
    labels = {f"{discovery.META}cluster": registration.cluster, f"{discovery.META}node": registration.node}
    if registration.expected_gpus is not None:
        labels[f"{discovery.META}expected_gpus"] = str(registration.expected_gpus)
    if registration.metrics_tls:
        labels["__scheme__"] = "https"
    port = registration.metrics_port if is_target else None
    return {"targets": [] if port is None else [addresses.join_port(entry.peer, port)], "labels": labels}
