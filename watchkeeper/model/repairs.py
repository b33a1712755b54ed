"""A repair is a plan on its way: which step it is at, on whose word, and what is ours on the node.

The life cycle is a table, as for incidents. `remediate.moves` decides the next move, `remediate.repairs` makes it and
keeps every version in the journal, pages and commands show it. What is kept is enough to go on after a crash: a step
that was begun is performed again, and a cordon that may be ours is looked for on the node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import NewType

from watchkeeper.model.actions import Action, ActionId, ActionKind, Receipt
from watchkeeper.model.fleet import Place
from watchkeeper.model.incidents import IncidentId
from watchkeeper.model.trust import Mode

RepairId = NewType("RepairId", str)


class RepairState(StrEnum):
    PLANNED = "planned"
    APPROVED = "approved"
    # The owner of what is idle was told; the time to use it again runs.
    WARNING = "warning"
    CORDONING = "cordoning"
    DRAINING = "draining"
    ACTING = "acting"
    VALIDATING = "validating"
    RESTORING = "restoring"
    DONE = "done"
    FAILED = "failed"
    ROLLED_BACK = "rolled_back"
    REJECTED = "rejected"


WAITING = frozenset({RepairState.PLANNED, RepairState.APPROVED})
RUNNING = frozenset(
    {
        RepairState.WARNING,
        RepairState.CORDONING,
        RepairState.DRAINING,
        RepairState.ACTING,
        RepairState.VALIDATING,
        RepairState.RESTORING,
    }
)
ENDED = frozenset({RepairState.DONE, RepairState.FAILED, RepairState.ROLLED_BACK, RepairState.REJECTED})
_ANY_STEP = RUNNING | {RepairState.FAILED, RepairState.ROLLED_BACK, RepairState.DONE}
REPAIR_MOVES: Mapping[RepairState, frozenset[RepairState]] = {
    RepairState.PLANNED: frozenset({RepairState.APPROVED, RepairState.REJECTED, RepairState.ROLLED_BACK}),
    RepairState.APPROVED: WAITING | _ANY_STEP | {RepairState.REJECTED},
    **dict.fromkeys(RUNNING - {RepairState.RESTORING}, _ANY_STEP),
    RepairState.RESTORING: ENDED,
    # A cordon that a failed repair left standing is looked at again when its incident is over.
    RepairState.FAILED: frozenset({RepairState.VALIDATING, RepairState.RESTORING}),
    # A call that took effect after we had given it up leaves a mark to take off.
    RepairState.ROLLED_BACK: frozenset({RepairState.RESTORING}),
    RepairState.DONE: frozenset({RepairState.RESTORING}),
    RepairState.REJECTED: frozenset({RepairState.RESTORING}),
}
# Which state a step of a plan belongs to; what is not here acts on the machine.
STATE_OF_KIND = {
    ActionKind.WARN_OWNER: RepairState.WARNING,
    ActionKind.CORDON: RepairState.CORDONING,
    ActionKind.DRAIN: RepairState.DRAINING,
    ActionKind.VALIDATE: RepairState.VALIDATING,
    ActionKind.UNCORDON: RepairState.RESTORING,
}
TAKES_OUT = frozenset({ActionKind.CORDON, ActionKind.DRAIN, ActionKind.REBOOT})
# Steps for whoever holds a GPU without using it; each names the pods and jobs that are meant.
RECLAIMS = frozenset({ActionKind.WARN_OWNER, ActionKind.RECLAIM})
# Steps that no machine can take.
BY_PERSON = frozenset({ActionKind.INSPECT, ActionKind.HAND_OVER})
# Steps that somebody else takes: whom to tell is the business of [notify].
BY_OTHERS = frozenset({ActionKind.NOTIFY_OWNER})


@dataclass(frozen=True, slots=True)
class Repair:
    """One attempt at one incident's plan, which several incidents of the node may wait for."""

    id: RepairId
    incident: IncidentId
    node: Place
    pool: str
    cause: str
    mode: Mode
    # The rule that gave the mode, in words.
    mode_why: str
    # Of the plan: an approval is for exactly this one.
    digest: str
    actions: tuple[Action, ...]
    state: RepairState
    # Why it is in this state.
    said: str
    made_at: datetime
    # When this step, or this state, began.
    since: datetime
    # Every incident that waits for it, and how often each had come back by then.
    openings: Mapping[IncidentId, int]
    limit_seconds: Mapping[str, float] = field(default_factory=dict)
    step: int = 0
    # The current step was handed to the driver at least once: after a crash it may have happened.
    is_begun: bool = False
    tries: int = 0
    retry_at: datetime | None = None
    approved_by: str | None = None
    approved_until: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    # The node may carry our cordon.
    has_cordon: bool = False
    # Which machine it is, where the cluster says: a node may be deleted and made anew under the same name.
    incarnation: str | None = None
    # Something was done that a cordon does not undo.
    has_acted: bool = False
    # What it will be when restoring is done.
    outcome: RepairState | None = None
    undone: tuple[ActionId, ...] = ()
    waits_for: tuple[str, ...] = ()
    receipts: tuple[Receipt, ...] = ()

    @property
    def action(self) -> Action | None:
        """The step it is at; None when all are done."""
        return self.actions[self.step] if self.step < len(self.actions) else None

    @property
    def is_ended(self) -> bool:
        return self.state in ENDED

    @property
    def is_running(self) -> bool:
        return self.state in RUNNING

    @property
    def keeps_cordon(self) -> bool:
        """It failed, and the node still carries our cordon."""
        return self.state is RepairState.FAILED and self.has_cordon

    @property
    def takes_node_out(self) -> bool:
        """Its plan takes the node out of service."""
        return any(action.kind in TAKES_OUT for action in self.actions)

    @property
    def is_reclaim(self) -> bool:
        """It takes back what is held without use; no machine is at fault."""
        return any(action.kind in RECLAIMS for action in self.actions)

    @property
    def is_out_of_service(self) -> bool:
        """The node is out of service, or about to be, because of it."""
        return self.has_cordon or (self.is_running and self.takes_node_out)

    @property
    def gpu(self) -> str | None:
        return next((action.place.gpu for action in self.actions if action.place.gpu), None)

    @property
    def is_alive(self) -> bool:
        return not self.is_ended or self.keeps_cordon


@dataclass(frozen=True, slots=True)
class RepairSwitch:
    """What a person or the circuit breaker has switched off; kept until a person switches it on again."""

    stopped_at: datetime | None = None
    stopped_by: str = ""
    stopped_why: str = ""
    tripped_at: datetime | None = None
    tripped_why: str = ""
    # Nodes that wanted a repair before this are not counted again.
    reset_at: datetime | None = None

    @property
    def is_stopped(self) -> bool:
        return self.stopped_at is not None

    @property
    def is_tripped(self) -> bool:
        return self.tripped_at is not None
