"""A cluster and its nodes as one driver: the scheduler moves work, the node's agent repairs the machine.

The hub makes one where it has a cluster and a key for work orders. The one thing they tell each other: an agent is
told that its node is drained when the cluster says so, because a reboot ends whatever runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from watchkeeper.config import settings as config
from watchkeeper.errors import ActionFailed
from watchkeeper.kit import clock
from watchkeeper.model.actions import Action, ActionKind
from watchkeeper.model.fleet import Place
from watchkeeper.remediate.driver import ActionOutcome, Driver, NodeObservation
from watchkeeper.remediate.drivers.node import ORDERED, NodeAgentDriver
from watchkeeper.remediate.orders import OrderQueue

# The simulator has its own machines, and a dry run has none.
WITH_NODES = frozenset({config.DriverName.KUBERNETES, config.DriverName.SLURM})


def uses_node_agents(settings: config.Settings) -> bool:
    """Whether agents are asked to do what the cluster cannot."""
    return settings.hub.order_key_file is not None and settings.remediate.driver in WITH_NODES


def with_node_agents(
    cluster: Driver, settings: config.Settings, outbox: Callable[[], OrderQueue | None], *, time: clock.Clock
) -> Driver:
    """The cluster's driver, with the agents of its nodes where the hub has a key for them."""
    if not uses_node_agents(settings):
        return cluster
    return CompositeDriver(cluster, NodeAgentDriver(outbox, time))


@dataclass(frozen=True, slots=True)
class CompositeDriver:
    cluster: Driver
    node: NodeAgentDriver

    @property
    def name(self) -> str:
        return f"{self.cluster.name} and agents"

    def observe(self, place: Place) -> NodeObservation:
        return self.cluster.observe(place)

    def describe(self, action: Action) -> str:
        return self._driver(action).describe(action)

    def perform(self, action: Action) -> ActionOutcome:
        if action.kind is ActionKind.REBOOT and self._is_drained(action.place):
            action = replace(action, arguments={**action.arguments, "drained": "yes"})
        return self._driver(action).perform(action)

    def _driver(self, action: Action) -> Driver:
        return self.node if action.kind in ORDERED else self.cluster

    def _is_drained(self, place: Place) -> bool:
        """The scheduler starts nothing there and has nothing there; one that cannot be asked has not said so."""
        try:
            seen = self.cluster.observe(place)
        except ActionFailed:
            return False
        return seen.exists and seen.is_schedulable is False and not seen.workloads
