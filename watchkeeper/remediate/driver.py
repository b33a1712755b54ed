"""The interface to a system that can change machines: Kubernetes, Slurm, a node, the simulator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from watchkeeper.model.actions import Action
from watchkeeper.model.fleet import Place


@dataclass(frozen=True, slots=True)
class NodeObservation:
    """What a cluster says about a node now; None where it does not say."""

    place: Place
    exists: bool
    is_schedulable: bool | None = None
    cordoned_by: str | None = None
    workloads: tuple[str, ...] = ()
    # Who else has the node in hand (a cordon, an upgrade, an autoscaler, NVSentinel): such a node is left alone.
    held_by: tuple[str, ...] = ()
    # What others have found wrong with it, in their words.
    unhealthy: tuple[str, ...] = ()
    # Another value means another machine under the same name.
    incarnation: str | None = None


@dataclass(frozen=True, slots=True)
class ActionOutcome:
    """What one call did. Where it is not complete, the same action is to be performed again a little later."""

    text: str
    is_complete: bool = True
    # What is still in the way, for people: pods that end, jobs that run, a node that boots.
    waits_for: tuple[str, ...] = ()


class PersistentDriver(Protocol):
    """A driver that keeps connections to its cluster."""

    def keep_connected(self) -> None: ...

    def close(self) -> None: ...


class Driver(Protocol):
    """`describe` is the dry run: the exact call, without making it. `perform` is idempotent by action id.

    No call waits for a machine: a drain that takes an hour is a `perform` each few seconds, not one of an hour. Calls
    come from any thread, two about one node never at once.
    """

    @property
    def name(self) -> str: ...

    def observe(self, place: Place) -> NodeObservation: ...

    def describe(self, action: Action) -> str: ...

    def perform(self, action: Action) -> ActionOutcome:
        """Do it, or go on with it; ActionFailed when the cluster said no, ActionRefused when it must not be done."""
        ...
