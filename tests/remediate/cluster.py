"""A cluster in memory behind the Driver interface: it can fail in every way a real one does, and counts effects.

Actions are idempotent by id, as the contract of a driver asks. Whatever is called, `effects` says how often each
action changed something, and `most_ours` how many nodes carried our cordon at the same time.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from watchkeeper.errors import ActionFailed, ActionRefused
from watchkeeper.model.actions import Action, ActionKind
from watchkeeper.model.fleet import Node, Place
from watchkeeper.remediate.driver import ActionOutcome, NodeObservation

OURS = "watchkeeper:"


@dataclass
class Machine:
    exists: bool = True
    cordon: str | None = None
    workloads: int = 2
    incarnation: int = 1
    is_sick: bool = False


@dataclass
class Troubles:
    """How likely each trouble is, from 0 to 1."""

    before: float = 0.0
    after: float = 0.0
    observe: float = 0.0
    refuse: float = 0.0
    slow: float = 0.0


@dataclass
class TestCluster:
    machines: dict[str, Machine]
    dice: random.Random = field(default_factory=lambda: random.Random(1))
    troubles: Troubles = field(default_factory=Troubles)
    name: str = "test cluster"
    effects: Counter[str] = field(default_factory=Counter)
    calls: list[str] = field(default_factory=list)
    most_ours: int = 0
    __test__ = False

    def observe(self, place: Place) -> NodeObservation:
        if self.dice.random() < self.troubles.observe:
            raise ActionFailed("the API server does not answer")
        machine = self.machines[place.node or ""]
        if not machine.exists:
            return NodeObservation(place, exists=False)
        jobs = tuple(f"job-{at}" for at in range(machine.workloads))
        return NodeObservation(
            place, True, machine.cordon is None, machine.cordon, jobs, incarnation=str(machine.incarnation)
        )

    def describe(self, action: Action) -> str:
        return f"{action.kind} {action.place.node}"

    def perform(self, action: Action) -> ActionOutcome:
        self.calls.append(f"{action.kind} {action.place.node}")
        if self.dice.random() < self.troubles.before:
            raise ActionFailed("409: the object has been modified")
        if self.dice.random() < self.troubles.refuse and action.kind is ActionKind.RESET_GPU:
            raise ActionRefused("the GPU is in use")
        done = self._effect(action, self.machines[action.place.node or ""])
        if self.dice.random() < self.troubles.after:
            raise ActionFailed("timed out; the effect is unknown")
        return done

    def _effect(self, action: Action, machine: Machine) -> ActionOutcome:
        if not machine.exists:
            raise ActionFailed("404: no such node")
        if action.kind is ActionKind.CORDON:
            return self._cordon(action, machine)
        if action.kind is ActionKind.UNCORDON:
            return self._uncordon(action, machine)
        if action.kind is ActionKind.DRAIN:
            return self._drain(action, machine)
        if not self.effects[action.mark]:
            self.effects[action.mark] += 1
            machine.is_sick = machine.is_sick and self.dice.random() < 0.2
        return ActionOutcome(f"{action.kind} done")

    def _cordon(self, action: Action, machine: Machine) -> ActionOutcome:
        if machine.cordon is None:
            machine.cordon = action.mark
            self.most_ours = max(self.most_ours, len(self.ours()))
        return ActionOutcome("cordoned")

    def _uncordon(self, action: Action, machine: Machine) -> ActionOutcome:
        if machine.cordon is not None and not machine.cordon.startswith(f"{OURS}{action.incident}/"):
            raise ActionRefused(f"the cordon belongs to {machine.cordon}")
        machine.cordon = None
        return ActionOutcome("uncordoned")

    def _drain(self, action: Action, machine: Machine) -> ActionOutcome:
        if machine.workloads and self.dice.random() < self.troubles.slow:
            return ActionOutcome("evicting", is_complete=False, waits_for=("job-0",))
        self.effects[action.mark] += machine.workloads > 0
        machine.workloads = 0
        return ActionOutcome("drained")

    def ours(self) -> list[str]:
        """Nodes that carry a cordon of ours."""
        return [
            name
            for name, machine in self.machines.items()
            if machine.exists and (machine.cordon or "").startswith(OURS)
        ]


def nodes(count: int, *, per_rack: int = 4, pools: int = 2) -> list[Node]:
    return [
        Node("main", f"n{at}", f"pool-{at % pools}", expected_gpus=8, domains={"rack": f"r{at // per_rack}"})
        for at in range(count)
    ]
