"""Actions on machines: what may be done, in which order, under whose authority, and what came of it."""

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
    """One step on one machine, or one step that only a person can take."""

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
    # What the kind alone does not say: a service's name, a wanted layout, a limit in watts.
    arguments: Mapping[str, str] = field(default_factory=dict)

    @property
    def mark(self) -> str:
        """What is written on a machine that we touched, so that we undo only what is ours."""
        return f"watchkeeper:{self.incident}/{self.id}"


@dataclass(frozen=True, slots=True)
class Receipt:
    """What came of one action; `text` is what was called, or would be.

    `shared_with` are incidents whose plans have the same action: done once, it is done for all of them.
    """

    action: Action
    at: datetime
    result: Result
    text: str
    shared_with: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """Ordered actions for one incident, each with its dry run; `next_step` is the sentence on the button."""

    incident: IncidentId
    cause: str
    mode: trust.Mode
    made_at: datetime
    next_step: str
    receipts: tuple[Receipt, ...]
