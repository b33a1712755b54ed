"""The driver of the nodes themselves: an action becomes a work order for the node's agent, and its receipt the answer.

The order's id is made of the action's and its incident's, so performing an action again finds the order that was
given, also after a restart of the hub. Nothing waits here: an order that is not answered is an action that is not
complete. What failed is ordered once more where that can help, under an id of its own; then no other try will.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import NoReturn

from watchkeeper.errors import ActionFailed, ActionRefused
from watchkeeper.kit import clock
from watchkeeper.model import orders
from watchkeeper.model.actions import Action, ActionKind, Result
from watchkeeper.model.fleet import Place
from watchkeeper.remediate.driver import ActionOutcome, NodeObservation
from watchkeeper.remediate.drivers.dry_run import describe_by_hand
from watchkeeper.remediate.orders import OrderQueue, OrderRequest

ACTOR = "repair"


@dataclass(frozen=True, slots=True)
class OrderTemplate:
    """What an action asks of an agent: the kind of order, the arguments it hands on, and how often it is tried."""

    kind: str
    arguments: tuple[str, ...] = ()
    needs_gpu: bool = False
    tries: int = 2


ORDERED: Mapping[ActionKind, OrderTemplate] = {
    ActionKind.RESET_GPU: OrderTemplate("reset_gpu", needs_gpu=True),
    ActionKind.LOWER_POWER: OrderTemplate("lower_power", ("percent", "watts", "restore"), needs_gpu=True),
    ActionKind.APPLY_MIG: OrderTemplate("apply_mig", ("layout",)),
    ActionKind.RESTART_SERVICE: OrderTemplate("restart_service", ("service",)),
    # Whether a machine that did not come back restarted is for a person to see.
    ActionKind.REBOOT: OrderTemplate("reboot", ("drained",), tries=1),
    # The scan reads this node's end of each link; the other end is the fabric watch's.
    ActionKind.CHECK_FABRIC: OrderTemplate("scan"),
}


@dataclass(frozen=True, slots=True)
class NodeAgentDriver:
    """`outbox` gives None on a hub without a key."""

    outbox: Callable[[], OrderQueue | None]
    time: clock.Clock
    name: str = "node"

    def observe(self, place: Place) -> NodeObservation:
        """A node's agent says nothing about its schedule."""
        return NodeObservation(place, exists=True)

    def describe(self, action: Action) -> str:
        wanted = wanted_of(action)
        told = "".join(f" {name}={text}" for name, text in wanted.arguments.items())
        return f"work order {wanted.kind}{told} for the agent of {wanted.node} ({describe_by_hand(action)})"

    def perform(self, action: Action) -> ActionOutcome:
        outbox, wanted = self.outbox(), wanted_of(action)
        if outbox is None:
            raise ActionRefused(
                f"{action.kind} needs work orders",
                where=action.place.node,
                now="Nothing was touched",
                remedy="Set hub.order_key_file, and give each agent its key",
            )
        last: orders.Receipt | None = None
        for number in range(1, ORDERED[action.kind].tries + 1):
            id = order_id(action, number)
            tracked = outbox.find_order(id)
            if tracked is None or tracked.receipt is None:
                return self._ask(outbox, replace(wanted, id=id), after=last if tracked is None else None)
            last = tracked.receipt
            if last.result in (Result.DONE, Result.ALREADY_SO):
                return ActionOutcome(f"{action.place.node}: {last.text}")
            if last.result is Result.REFUSED:
                proof = "" if tracked.is_proven else " (without the seal of the node: is its key right?)"
                raise ActionRefused(last.text + proof, where=action.place.node)
        assert last is not None
        raise _gave_up(action, last)

    def _ask(self, outbox: OrderQueue, wanted: OrderRequest, *, after: orders.Receipt | None) -> ActionOutcome:
        """Give the order, or go on wanting it; ActionFailed tells of the one `after` which this one is given."""
        now = self.time.now()
        tracked = outbox.issue(wanted, now=now, actor=ACTOR)
        if after is not None:
            raise ActionFailed(f"{after.text}. It is ordered once more", where=wanted.node)
        state, where = tracked.state(now), f"the agent of {wanted.node}"
        if state is orders.OrderState.EXPIRED:
            raise ActionRefused(
                f"{wanted.kind} was ordered at {tracked.order.issued_at:%H:%M:%S}Z and never answered",
                where=wanted.node,
                now="Whether it was done is not known",
                remedy="Look at the agent's log there",
            )
        if state is orders.OrderState.WAITING:
            waits = f"{where} to fetch the order for {wanted.kind}, given at {tracked.order.issued_at:%H:%M:%S}Z"
        else:
            waits = f"{where}, which fetched the order for {wanted.kind} at {tracked.fetched_at:%H:%M:%S}Z"
        return ActionOutcome(f"{wanted.kind} is ordered", is_complete=False, waits_for=(waits,))


def order_id(action: Action, number: int) -> str:
    """Of the same parts as the action's mark, without a slash: it is a part of an address when it is answered."""
    id = f"{action.incident}:{action.id}"
    return id if number == 1 else f"{id}~{number}"


def wanted_of(action: Action) -> OrderRequest:
    """The order that an action is; ActionRefused where it is none."""
    row, place = ORDERED.get(action.kind), action.place
    if row is None or place.node is None:
        _refuse(action, f"{action.kind} is nothing that a node's agent does")
    if row.needs_gpu and place.gpu is None:
        _refuse(action, f"{action.kind} needs a GPU, and nobody knows which")
    told = {name: action.arguments[name] for name in row.arguments if name in action.arguments}
    if row.needs_gpu and place.gpu is not None:
        told = {"gpu": place.gpu, **told}
    # As long as the work may take, and some time to fetch it.
    life = timedelta(seconds=orders.KINDS[row.kind].seconds) + orders.USUAL_LIFE
    why = f"{action.incident}: {action.why}"
    return OrderRequest(place.cluster, place.node, row.kind, told, why, life, order_id(action, 1))


def _refuse(action: Action, what: str) -> NoReturn:
    raise ActionRefused(what, where=action.place.node, now="Nothing was touched", remedy="A person has to do it")


def _gave_up(action: Action, last: orders.Receipt) -> ActionRefused:
    tries = ORDERED[action.kind].tries
    return ActionRefused(f"it failed {tries} of at most {tries} times: {last.text}", where=action.place.node)
