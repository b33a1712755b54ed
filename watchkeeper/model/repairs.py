"""A repair is a plan that is carried out: its current step, its approval, and what it changed on the node.

`remediate.transitions` decides the next transition, `remediate.repairs` makes it and stores every version in the
journal. That version is enough to continue after a crash: a step that had started runs again, and the node is checked
for a cordon of ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import NewType

from watchkeeper.model.actions import Action, ActionId, ActionKind, Receipt, Result
from watchkeeper.model.fleet import Place
from watchkeeper.model.incidents import IncidentId
from watchkeeper.model.trust import Mode

RepairId = NewType("RepairId", str)


class RepairState(StrEnum):
    PLANNED = "planned"
    APPROVED = "approved"
    # The owner of an idle GPU was notified; the time limit to use it again runs.
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
RUNNING = frozenset({
    RepairState.WARNING, RepairState.CORDONING, RepairState.DRAINING, RepairState.ACTING, RepairState.VALIDATING,
    RepairState.RESTORING,
})  # fmt: skip
ENDED = frozenset({RepairState.DONE, RepairState.FAILED, RepairState.ROLLED_BACK, RepairState.REJECTED})
_ANY_STEP = RUNNING | {RepairState.FAILED, RepairState.ROLLED_BACK, RepairState.DONE}
REPAIR_MOVES: Mapping[RepairState, frozenset[RepairState]] = {
    RepairState.PLANNED: frozenset({RepairState.APPROVED, RepairState.REJECTED, RepairState.ROLLED_BACK}),
    RepairState.APPROVED: WAITING | _ANY_STEP | {RepairState.REJECTED},
    **dict.fromkeys(RUNNING - {RepairState.RESTORING}, _ANY_STEP),
    RepairState.RESTORING: ENDED,
    # The cordon of a failed repair is checked again when its fault has ended.
    RepairState.FAILED: frozenset({RepairState.VALIDATING, RepairState.RESTORING}),
    # A call that took effect after its timeout leaves a mark to remove.
    RepairState.ROLLED_BACK: frozenset({RepairState.RESTORING}),
    RepairState.DONE: frozenset({RepairState.RESTORING}),
    RepairState.REJECTED: frozenset({RepairState.RESTORING}),
}
# The state of each kind of step; kinds not listed here act on the machine.
STATE_OF_KIND = {
    ActionKind.WARN_OWNER: RepairState.WARNING,
    ActionKind.CORDON: RepairState.CORDONING,
    ActionKind.DRAIN: RepairState.DRAINING,
    ActionKind.VALIDATE: RepairState.VALIDATING,
    ActionKind.UNCORDON: RepairState.RESTORING,
}
OUT_OF_SERVICE_KINDS = frozenset({ActionKind.CORDON, ActionKind.DRAIN, ActionKind.REBOOT})
# What a repair is doing, by its step; other steps are named by their kind.
ACTIVITIES = {
    ActionKind.WARN_OWNER: "waiting for the owner",
    ActionKind.CORDON: "cordoning",
    ActionKind.DRAIN: "draining",
    ActionKind.REBOOT: "rebooting",
    ActionKind.RESET_GPU: "resetting the GPU",
    ActionKind.VALIDATE: "validating",
    ActionKind.UNCORDON: "uncordoning",
}
# Steps for holders of an idle GPU; each names the pods and jobs.
RECLAIM_KINDS = frozenset({ActionKind.WARN_OWNER, ActionKind.RECLAIM})
# Steps that a repair of a rack makes on each of its nodes; all of them are undone when the repair ends.
DOMAIN_KINDS = frozenset({ActionKind.LOWER_POWER, ActionKind.CORDON, ActionKind.DRAIN})
# Manual steps.
MANUAL_KINDS = frozenset({ActionKind.INSPECT, ActionKind.HAND_OVER})
# Steps that another system takes: [notify] decides who is notified.
NOTIFY_KINDS = frozenset({ActionKind.NOTIFY_OWNER})


@dataclass(frozen=True, slots=True)
class Repair:
    """One attempt at one incident's plan; several incidents of the node may share it."""

    id: RepairId
    incident: IncidentId
    node: Place
    pool: str
    cause: str
    mode: Mode
    # The rule that set the mode, as text.
    mode_why: str
    # The digest of the plan: an approval is valid for exactly this plan.
    digest: str
    actions: tuple[Action, ...]
    state: RepairState
    # Why it is in this state.
    reason: str = field(metadata={"json_key": "said"})
    made_at: datetime
    # When this step, or this state, began.
    since: datetime
    # Every incident that shares this repair, with its number of reopenings at that time.
    openings: Mapping[IncidentId, int]
    limit_seconds: Mapping[str, float] = field(default_factory=dict)
    step: int = 0
    # The current step was passed to the driver at least once: after a crash it may have taken effect.
    is_begun: bool = False
    tries: int = 0
    retry_at: datetime | None = None
    approved_by: str | None = None
    approved_until: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    # The node may have our cordon.
    has_cordon: bool = False
    # The node's unique id in its cluster: a node may be deleted and created again under the same name.
    incarnation: str | None = None
    # A step ran that an uncordon does not undo.
    has_acted: bool = False
    # The final state, once restoring is done.
    outcome: RepairState | None = None
    undone: tuple[ActionId, ...] = ()
    waits_for: tuple[str, ...] = ()
    # Who stopped it before its next call, and why; no call is made until it is resumed.
    stopped_by: str | None = None
    stopped_why: str = ""
    receipts: tuple[Receipt, ...] = ()

    @property
    def action(self) -> Action | None:
        """The current step; None when all are done."""
        return self.actions[self.step] if self.step < len(self.actions) else None

    @property
    def is_ended(self) -> bool:
        return self.state in ENDED

    @property
    def is_running(self) -> bool:
        return self.state in RUNNING

    @property
    def activity(self) -> str:
        """What it is doing: `rebooting n1`; of a repair that does nothing now, its state."""
        if not self.is_running:
            return f"{self.state}{f': {self.node_name} stays cordoned' if self.keeps_cordon else ''}"
        if self.state is RepairState.RESTORING:
            verb = ACTIVITIES[ActionKind.UNCORDON] if self.outcome is RepairState.DONE else "undoing the changes of"
        elif self.action is None:
            verb = "waiting on"
        else:
            verb = ACTIVITIES.get(self.action.kind, f"at the step {self.action.kind.replace('_', ' ')} of")
        stopped = "" if self.stopped_by is None else f"stopped by {self.stopped_by} while "
        return f"{stopped}{verb} {self.node_name}"

    @property
    def keeps_cordon(self) -> bool:
        """Whether it failed and the node is still cordoned."""
        return self.state is RepairState.FAILED and self.has_cordon

    @property
    def has_node(self) -> bool:
        """Whether it runs, or keeps the node cordoned: its incidents stay open for that long."""
        return self.is_running or self.keeps_cordon

    @property
    def takes_node_out(self) -> bool:
        """Whether it needs a place in the budgets before it starts; a rack asks for each node later."""
        return not self.is_of_domain and any(action.kind in OUT_OF_SERVICE_KINDS for action in self.actions)

    @property
    def is_reclaim(self) -> bool:
        """Whether it reclaims idle GPUs; no hardware has failed."""
        return any(action.kind in RECLAIM_KINDS for action in self.actions)

    @property
    def is_out_of_service(self) -> bool:
        """Whether the node is, or will be, out of service because of it."""
        return self.has_cordon or (self.is_running and self.takes_node_out)

    @property
    def nodes_out(self) -> frozenset[Place]:
        """The nodes that are, or will be, out of service because of it."""
        if not self.is_of_domain:
            return frozenset({self.node}) if self.is_out_of_service else frozenset()
        if not self.is_alive:
            return frozenset()
        begun = (action for action in self.actions if action.kind is ActionKind.CORDON and self.may_have_run(action))
        return frozenset(action.place for action in begun if f"undo-{action.id}" not in self.undone)

    def may_have_run(self, action: Action) -> bool:
        """Whether a step has taken effect, or may have: it was begun, and was not refused."""
        if self.is_begun and action == self.action:
            return True
        receipts = (receipt for receipt in self.receipts if receipt.action.id == action.id)
        return any(receipt.result in (Result.DONE, Result.FAILED) for receipt in receipts)

    def covers(self, place: Place) -> bool:
        """Whether the repair is of this node, or of a rack with a step on it."""
        return self.node == place or (self.is_of_domain and any(action.place == place for action in self.actions))

    @property
    def gpu(self) -> str | None:
        return next((action.place.gpu for action in self.actions if action.place.gpu), None)

    @property
    def is_of_domain(self) -> bool:
        """Whether it changes every node of a rack or another failure domain; then `node` is the domain."""
        return self.node.domain is not None

    @property
    def node_name(self) -> str:
        """`n1`, or `rack r01`."""
        return self.node.node or (self.node.domain or "").replace("=", " ", 1)

    @property
    def is_alive(self) -> bool:
        """Whether it can still change, or its cordon remains."""
        return not self.is_ended or self.keeps_cordon


@dataclass(frozen=True, slots=True)
class RepairSwitch:
    """Whether a user or the circuit breaker has halted repairs; kept until a user resumes them."""

    stopped_at: datetime | None = None
    stopped_by: str = ""
    stopped_why: str = ""
    tripped_at: datetime | None = None
    tripped_why: str = ""
    # Repair requests before this time no longer count.
    reset_at: datetime | None = None

    @property
    def is_stopped(self) -> bool:
        return self.stopped_at is not None

    @property
    def is_tripped(self) -> bool:
        return self.tripped_at is not None
