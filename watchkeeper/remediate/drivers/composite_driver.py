"""Combine the drivers of a cluster and of its nodes: the scheduler moves workloads, the node's agent repairs the node.

The hub uses this if it has a cluster and a key for work orders. An order to reboot says whether the scheduler reports
the node as drained, because a reboot ends all workloads.
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
from watchkeeper.remediate.drivers.node import ORDER_TEMPLATES, NodeAgentDriver
from watchkeeper.remediate.orders import OrderQueue

# The simulator has no agents, and a dry run changes nothing.
DRIVERS_WITH_AGENTS = frozenset({config.DriverName.KUBERNETES, config.DriverName.SLURM})


def uses_node_agents(settings: config.Settings) -> bool:
    """Whether agents perform the actions that the cluster has no call for."""
    return settings.hub.order_key_file is not None and settings.remediate.driver in DRIVERS_WITH_AGENTS


def add_node_agents(
    cluster: Driver, settings: config.Settings, order_queue: Callable[[], OrderQueue | None], *, time: clock.Clock
) -> Driver:
    """Return the cluster's driver, combined with the node agents if the hub has a key for work orders."""
    if not uses_node_agents(settings):
        return cluster
    return CompositeDriver(cluster, NodeAgentDriver(order_queue, time))


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
        return self._driver_for(action).describe(action)

    def perform(self, action: Action) -> ActionOutcome:
        if action.kind is ActionKind.REBOOT and self._is_drained(action.place):
            action = replace(action, arguments={**action.arguments, "drained": "yes"})
        return self._driver_for(action).perform(action)

    def _driver_for(self, action: Action) -> Driver:
        return self.node if action.kind in ORDER_TEMPLATES else self.cluster

    def _is_drained(self, place: Place) -> bool:
        """Whether the node is unschedulable and has no workloads; False if the scheduler does not answer."""
        try:
            observed = self.cluster.observe(place)
        except ActionFailed:
            return False
        return observed.exists and observed.is_schedulable is False and not observed.workloads
