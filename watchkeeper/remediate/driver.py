"""The interface to a system that can change machines: Kubernetes, Slurm, a node, the simulator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from watchkeeper.model.actions import Action
from watchkeeper.model.fleet import Place


@dataclass(frozen=True, slots=True)
class Observed:
    """What a cluster says about a node now; None where it does not say."""

    place: Place
    exists: bool
    is_schedulable: bool | None = None
    cordoned_by: str | None = None
    workloads: tuple[str, ...] = ()


class Driver(Protocol):
    """`describe` is the dry run: the exact call, without making it. `perform` is idempotent by action id."""

    @property
    def name(self) -> str: ...

    def observe(self, place: Place) -> Observed: ...

    def describe(self, action: Action) -> str: ...

    def perform(self, action: Action) -> str:
        """Do it, and return what was called; ActionFailed when the cluster said no."""
        ...
