"""The interface to a system that can change machines: Kubernetes, Slurm, a node, the simulator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from watchkeeper.model.actions import Action
from watchkeeper.model.fleet import Place


@dataclass(frozen=True, slots=True)
class NodeObservation:
    """The state of a node in its cluster; None where the cluster does not report it."""

    place: Place
    exists: bool
    is_schedulable: bool | None = None
    cordoned_by: str | None = None
    workloads: tuple[str, ...] = ()
    # Users and tools that maintain the node (a cordon, an upgrade, an autoscaler, NVSentinel): it must not be changed.
    maintained_by: tuple[str, ...] = ()
    # Faults that other tools report for the node.
    health_problems: tuple[str, ...] = ()
    # A different value means a different machine with the same name.
    incarnation: str | None = None


@dataclass(frozen=True, slots=True)
class ActionOutcome:
    """The result of one call. If it is not complete, perform the same action again later."""

    text: str
    is_complete: bool = True
    # What blocks completion, as text: terminating pods, running jobs, a booting node.
    waits_for: tuple[str, ...] = ()


class Driver(Protocol):
    """Changes the nodes of one system. `describe` is the dry run; `perform` is idempotent by action id.

    No call waits for a machine: a drain that takes an hour is one `perform` every few seconds. Calls come from any
    thread, but never two at once for the same node.
    """

    @property
    def name(self) -> str: ...

    def observe(self, place: Place) -> NodeObservation: ...

    def describe(self, action: Action) -> str: ...

    def perform(self, action: Action) -> ActionOutcome:
        """Start or continue an action. ActionFailed: the cluster refused the call. ActionRefused: it is not allowed."""
        ...
