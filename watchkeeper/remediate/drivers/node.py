"""Perform actions on a node with work orders for its agent; the receipt is the result.

The id of an order consists of the ids of the incident and the action, so that performing an action again finds its
order, also after a restart of the hub. A failed order is issued again with a new id if the action allows several tries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from watchkeeper.config import settings as config
from watchkeeper.errors import ActionFailed, ActionRefused
from watchkeeper.kit import clock
from watchkeeper.model import orders
from watchkeeper.model.actions import Action, ActionKind, Result
from watchkeeper.model.fleet import Place
from watchkeeper.remediate.driver import ActionOutcome, Driver, NodeObservation
from watchkeeper.remediate.drivers.cluster_driver import build_refusal, describe_manual_command
from watchkeeper.remediate.orders import OrderQueue, OrderRequest

ACTOR = "repair"
# An agent polls again within half a minute.
MAX_POLL_AGE = timedelta(minutes=2)
# The simulator has no agents, and a dry run changes nothing.
DRIVERS_WITH_AGENTS = frozenset({config.DriverName.KUBERNETES, config.DriverName.SLURM})


@dataclass(frozen=True, slots=True)
class OrderTemplate:
    """The work order of a kind of action: its kind, the arguments that it passes on, and the number of tries."""

    kind: str
    arguments: tuple[str, ...] = ()
    needs_gpu: bool = False
    tries: int = 2
    # Without a GPU the order is for all GPUs of the node.
    takes_all_gpus: bool = False


ORDER_TEMPLATES: Mapping[ActionKind, OrderTemplate] = {
    ActionKind.RESET_GPU: OrderTemplate("reset_gpu", needs_gpu=True),
    ActionKind.LOWER_POWER: OrderTemplate(
        "lower_power", ("percent", "watts", "restore"), needs_gpu=True, takes_all_gpus=True
    ),
    ActionKind.APPLY_MIG: OrderTemplate("apply_mig", ("layout",)),
    ActionKind.RESTART_SERVICE: OrderTemplate("restart_service", ("service",)),
    # A person must check a node that did not come back after a reboot.
    ActionKind.REBOOT: OrderTemplate("reboot", ("drained",), tries=1),
    # The scan reads the node's end of each link; the fabric watch reads the other end.
    ActionKind.CHECK_FABRIC: OrderTemplate("scan"),
}


@dataclass(frozen=True, slots=True)
class NodeAgentDriver:
    """`order_queue` returns None on a hub without a key for work orders."""

    order_queue: Callable[[], OrderQueue | None]
    time: clock.Clock
    name: str = "node"

    def observe(self, place: Place) -> NodeObservation:
        """Assume that the node exists: an agent does not know whether it is schedulable."""
        return NodeObservation(place, exists=True)

    def describe(self, action: Action) -> str:
        request, queue = build_request(action), self.order_queue()
        if request.arguments.get("gpu") == orders.ALL_GPUS and queue is not None:
            _check_polls(queue.polled_at(request.cluster, request.node), self.time.now(), request.node)
        arguments = "".join(f" {name}={text}" for name, text in request.arguments.items())
        manual = describe_manual_command(action)
        return f"work order {request.kind}{arguments} for the agent of {request.node} ({manual})"

    def perform(self, action: Action) -> ActionOutcome:
        queue, request = self.order_queue(), build_request(action)
        if queue is None:
            remedy = "Set hub.order_key_file, and give each agent its key"
            raise build_refusal(f"{action.kind} needs work orders", action.place.node, remedy)
        last_receipt: orders.Receipt | None = None
        tries = ORDER_TEMPLATES[action.kind].tries
        for number in range(1, tries + 1):
            id = order_id(action, number)
            tracked = queue.find_order(id)
            if tracked is None or tracked.receipt is None:
                return self._issue(queue, replace(request, id=id), failed=last_receipt if tracked is None else None)
            last_receipt = tracked.receipt
            if last_receipt.result in (Result.DONE, Result.ALREADY_SO):
                return ActionOutcome(f"{action.place.node}: {last_receipt.text}")
            if last_receipt.result is Result.REFUSED:
                proof = "" if tracked.is_proven else " (not signed by the node: check the agent's key)"
                raise ActionRefused(last_receipt.text + proof, where=action.place.node)
        assert last_receipt is not None
        problem = f"{action.kind} failed {tries} times, the limit is {tries}: {last_receipt.text}"
        raise ActionRefused(problem, where=action.place.node)

    def _issue(self, queue: OrderQueue, request: OrderRequest, *, failed: orders.Receipt | None) -> ActionOutcome:
        """Issue or renew the order; ActionFailed reports the failed order that it repeats."""
        now = self.time.now()
        tracked = queue.issue(request, now=now, actor=ACTOR)
        if failed is not None:
            raise ActionFailed(f"{failed.text}. The order is issued again", where=request.node)
        state, agent = tracked.state(now), f"the agent of {request.node}"
        if state is orders.OrderState.EXPIRED:
            raise ActionRefused(
                f"the work order {request.kind} of {tracked.order.issued_at:%H:%M:%S}Z expired without a receipt",
                where=request.node,
                now="It is unknown whether it was carried out",
                remedy="Check the agent's log on the node",
            )
        if state is orders.OrderState.WAITING:
            blocker = f"{agent} has not fetched the order {request.kind} of {tracked.order.issued_at:%H:%M:%S}Z"
        else:
            blocker = f"{agent} is working on the order {request.kind}, fetched {tracked.fetched_at:%H:%M:%S}Z"
        return ActionOutcome(f"work order {request.kind} issued", is_complete=False, waits_for=(blocker,))


def _check_polls(polled_at: datetime | None, now: datetime, node: str) -> None:
    """Refuse a node of a rack whose agent takes no orders now: the rack is changed as a whole."""
    if polled_at is not None and now - polled_at <= MAX_POLL_AGE:
        return
    limit = f"{MAX_POLL_AGE.total_seconds():.0f} s"
    age = "never" if polled_at is None else f"{(now - polled_at).total_seconds():.0f} s ago"
    remedy = "Check that the agent runs there, with --order-key and --allow-order lower_power"
    raise build_refusal(f"its agent last asked for orders {age}, the limit is {limit}", node, remedy)


def order_id(action: Action, number: int) -> str:
    """Return the order id: the parts of the action's mark without a slash, because it is part of a URL."""
    id = f"{action.incident}:{action.id}"
    return id if number == 1 else f"{id}~{number}"


def build_request(action: Action) -> OrderRequest:
    """Build the work order of an action; ActionRefused if agents cannot perform the action."""
    template, place = ORDER_TEMPLATES.get(action.kind), action.place
    if template is None or place.node is None:
        raise build_refusal(f"the node's agent cannot perform {action.kind}", place.node)
    gpu = place.gpu or (orders.ALL_GPUS if template.takes_all_gpus else None)
    if template.needs_gpu and gpu is None:
        raise build_refusal(f"{action.kind} needs a GPU, and the GPU is unknown", place.node)
    arguments = {name: action.arguments[name] for name in template.arguments if name in action.arguments}
    if template.needs_gpu and gpu is not None:
        arguments = {"gpu": gpu, **arguments}
    # The time limit of the work, plus time to fetch the order.
    lifetime = timedelta(seconds=orders.KINDS[template.kind].seconds) + orders.DEFAULT_LIFETIME
    why = f"{action.incident}: {action.why}"
    return OrderRequest(place.cluster, place.node, template.kind, arguments, why, lifetime, order_id(action, 1))


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
