"""What the repairs need around them: a journal to keep them in, a cluster to ask, checks, an inventory, and ears.

`repair_loop` puts it together from the hub's parts; tests put a cluster in memory into it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from watchkeeper.model import actions, events, fleet
from watchkeeper.model.repairs import Repair, RepairSwitch
from watchkeeper.remediate import guards, validation
from watchkeeper.remediate.driver import Driver
from watchkeeper.remediate.ladder import ModeDecision


class RepairJournal(Protocol):
    """What the repairs need of a journal."""

    def transaction(self) -> AbstractContextManager[None]: ...

    def record(self, kind: str, subject: str, *, at: datetime, actor: str, body: Mapping[str, Any]) -> Any: ...

    def save_repair(self, repair: Repair, *, at: datetime, actor: str, text: str, kind: str) -> None: ...

    def active_repairs(self) -> list[Repair]: ...

    def latest_repairs(self, *, limit: int = 100) -> list[Repair]: ...

    def repairs_at(self, node: fleet.Place, *, limit: int = 20) -> list[Repair]: ...

    def repairs_of(self, incident_id: str, *, limit: int = 20) -> list[Repair]: ...

    def save_switch(self, switch: RepairSwitch, *, at: datetime, actor: str, text: str) -> None: ...

    def switch(self) -> RepairSwitch: ...

    def open_incident_ids(self) -> set[str]: ...

    def event(self, id: str) -> events.Event | None: ...


def unknown_idleness(action: actions.Action, since: datetime, now: datetime) -> validation.CheckResult:  # noqa: ARG001
    return validation.CheckResult("idle", validation.CheckState.UNKNOWN, "nobody here can say whether it is used")


@dataclass(frozen=True, slots=True)
class RepairDependencies:
    """Who is asked and who is told. `nodes` is the inventory, `out` what others have taken out of service."""

    journal: RepairJournal
    driver: Driver
    limits: guards.GuardLimits = field(default_factory=guards.GuardLimits)
    validators: Mapping[str, validation.Validator] = field(default_factory=dict)
    list_nodes: Callable[[], Iterable[fleet.Node]] = tuple
    out_of_service: Callable[[], Mapping[fleet.Place, str]] = dict
    # Why `out` cannot be relied on; nothing where it can.
    unreadable_schedulers: Callable[[], Sequence[str]] = tuple
    count_sick_gpus: Callable[[], Mapping[fleet.Place, int]] = dict
    # A node that we keep out of service without an open incident needs one.
    report_event: Callable[[events.Event], None] = lambda _: None
    on_change: Callable[[], None] = lambda: None
    # How far one may go by the settings of today; None: as far as when it was planned.
    current_mode: Callable[[Repair], ModeDecision | None] = lambda _: None
    # Whether what an action names does nothing, since then; unknown where nobody can say.
    check_idle: Callable[[actions.Action, datetime, datetime], validation.CheckResult] = unknown_idleness
