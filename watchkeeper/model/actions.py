"""Actions on machines: kinds, arguments, results and plans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import NewType

from watchkeeper.model import trust
from watchkeeper.model.fleet import Place
from watchkeeper.model.incidents import IncidentId

ActionId = NewType("ActionId", str)


class ActionKind(StrEnum):
    """One step on one machine, or a manual step."""

    RESTART_APP = "restart_app"
    CORDON = "cordon"
    DRAIN = "drain"
    RESET_GPU = "reset_gpu"
    REBOOT = "reboot"
    APPLY_MIG = "apply_mig"
    LOWER_POWER = "lower_power"
    RESTART_SERVICE = "restart_service"
    CHECK_FABRIC = "check_fabric"
    VALIDATE = "validate"
    UNCORDON = "uncordon"
    INSPECT = "inspect"
    NOTIFY_OWNER = "notify_owner"
    WARN_OWNER = "warn_owner"
    RECLAIM = "reclaim"
    HAND_OVER = "hand_over"


class Result(StrEnum):
    """`described` is the result of a dry run: nothing was touched."""

    DESCRIBED = "described"
    DONE = "done"
    ALREADY_SO = "already_so"
    REFUSED = "refused"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Action:
    """One step. Performing the same id twice has the effect of performing it once."""

    id: ActionId
    kind: ActionKind
    place: Place
    incident: IncidentId
    why: str
    # Parameters of the kind: a service name, a MIG layout, a limit in watts.
    arguments: Mapping[str, str] = field(default_factory=dict)

    @property
    def mark(self) -> str:
        """The mark written on a machine that we change, so that we undo only our own changes."""
        return f"watchkeeper:{self.incident}/{self.id}"


@dataclass(frozen=True, slots=True)
class Receipt:
    """The result of one action. `text` is the call that was made, or that a dry run would make.

    `shared_with` lists incidents whose plans contain the same action: it runs once for all of them.
    """

    action: Action
    at: datetime
    result: Result
    text: str
    shared_with: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """Ordered actions for one incident, each with its dry run. `next_step` is the label of the button."""

    incident: IncidentId
    cause: str
    mode: trust.Mode
    made_at: datetime
    next_step: str
    receipts: tuple[Receipt, ...]
