"""The dependencies of repairs: journal, driver, checks, inventory and callbacks.

`hub.repair_loop` builds them from the hub's parts; tests use a cluster in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from watchkeeper.model import actions, events, fleet
from watchkeeper.model.repairs import Repair
from watchkeeper.remediate import guards, validation
from watchkeeper.remediate.driver import Driver
from watchkeeper.remediate.trust_rules import ModeDecision
from watchkeeper.store.journal.journal import Journal


def skip_idle_check(action: actions.Action, since: datetime, now: datetime) -> validation.CheckResult:  # noqa: ARG001
    return validation.CheckResult("idle", validation.CheckState.UNKNOWN, "no idle check is configured")


@dataclass(frozen=True, slots=True)
class RepairDependencies:
    """What repairs read and call. `list_nodes` is the inventory; `out_of_service` has nodes that others cordoned."""

    journal: Journal
    driver: Driver
    limits: guards.GuardLimits = field(default_factory=guards.GuardLimits)
    validators: Mapping[str, validation.Validator] = field(default_factory=dict)
    list_nodes: Callable[[], Iterable[fleet.Node]] = tuple
    out_of_service: Callable[[], Mapping[fleet.Place, str]] = dict
    # Why `out_of_service` may be incomplete; empty if it is complete.
    unreadable_schedulers: Callable[[], Sequence[str]] = tuple
    count_faulty_gpus: Callable[[], Mapping[fleet.Place, int]] = dict
    # Opens an incident for a node that stays out of service without one.
    report_event: Callable[[events.Event], None] = lambda _: None
    on_change: Callable[[], None] = lambda: None
    # The mode under the current settings; None: the mode of the plan is still valid.
    current_mode: Callable[[Repair], ModeDecision | None] = lambda _: None
    # Whether the workloads of an action were idle from the first time to the second.
    check_idle: Callable[[actions.Action, datetime, datetime], validation.CheckResult] = skip_idle_check
