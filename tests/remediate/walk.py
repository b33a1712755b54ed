"""A random walk through everything that can happen to repairs, with the laws checked after every step.

Nodes break and mend, people and other programs cordon and uncordon, nodes are deleted, the API server fails before or
after the fact, the hub is killed in the middle of a call. `tests/remediate/test_laws.py` walks a little; `python -m
bench repair` walks further.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from tests.remediate.cluster import OURS, Machine, Troubles
from tests.remediate.world import World, limits
from watchkeeper.errors import InvalidTransition
from watchkeeper.model.actions import Action, ActionKind
from watchkeeper.model.trust import Mode
from watchkeeper.remediate import guards
from watchkeeper.remediate.driver import ActionOutcome
from watchkeeper.remediate.trust_rules import ModeDecision

CAUSES = (
    "gpu_fell_off_bus",
    "ecc_uncorrectable",
    "cooling_failure",
    "row_remap_failure",
    "gpu_missing",
    "thermal_throttle",
)
TROUBLES = Troubles(before=0.1, after=0.1, observe=0.1, refuse=0.1, slow=0.4)
NODES, POOL_PERCENT, FLEET_PERCENT = 12, 50, 30


class Killed(BaseException):
    """The hub ends here, as by kill -9."""


class Walk:
    def __init__(self, folder: Path, seed: int) -> None:
        self.dice = random.Random(seed)
        chosen = limits(
            pool_percent=POOL_PERCENT, fleet_percent=FLEET_PERCENT, attempts=3, attempts_window=timedelta(hours=1)
        )
        self.world = World(folder, NODES, chosen)
        self.world.cluster.dice = self.dice
        self.world.cluster.troubles = TROUBLES
        self.performed: Counter[tuple[str, str]] = Counter()
        self._watch()
        self.steps: list[Callable[[], None]] = [
            *[self.time_passes] * 12,
            *[self.breaks] * 4,
            *[self.ends] * 2,
            *[self.mends] * 2,
            *(self.reopens, self.somebody_cordons, self.somebody_uncordons, self.killed, self.restarts),
            *(self.approves, self.rejects, self.says_done, self.stops, self.vanishes, self.settings_change),
        ]

    def _watch(self) -> None:
        """Count reboots and resets that took effect, and kill the hub before or after some calls."""
        cluster, perform = self.world.cluster, self.world.cluster._effect
        self.kill_at: int | None = None

        def effect(action: Action, machine: Machine) -> ActionOutcome:
            self._may_die()
            is_new = not cluster.effects[action.mark]
            done = perform(action, machine)
            if is_new and action.kind in (ActionKind.REBOOT, ActionKind.RESET_GPU):
                self.performed[action.incident, action.kind] += 1
            self._may_die()
            return done

        cluster._effect = effect  # type: ignore[method-assign]

    def _may_die(self) -> None:
        if self.kill_at is not None:
            self.kill_at -= 1
            if self.kill_at < 0:
                self.kill_at = None
                raise Killed

    def step(self) -> None:
        try:
            self.dice.choice(self.steps)()
        except Killed:
            self.world.restart()
        self._hear()
        self.check()

    def check(self) -> None:
        world = self.world
        ours = world.cluster.ours()
        most = guards.out_of_service_budget(NODES, FLEET_PERCENT)
        assert len(ours) <= most, f"{len(ours)} nodes carry our cordon, the budget is {most}"
        pools = Counter(node.pool for node in world.nodes if node.name in ours)
        assert all(count <= guards.out_of_service_budget(NODES // 2, POOL_PERCENT) for count in pools.values()), pools
        for (id, kind), count in self.performed.items():
            incident = world.journal.incident(id)
            assert incident is not None
            allowed = 1 + incident.reopened
            assert count <= allowed, f"{kind} took effect {count} times for {id}, which asked {allowed} times"

    def finish(self) -> None:
        """The troubles end, the machines are well, the incidents are over: nothing of ours may be left."""
        world = self.world
        world.cluster.troubles = Troubles()
        self.kill_at, world.mode_decision = None, None
        if world.repairs.switch.is_stopped:
            world.control.resume(actor="ada", now=world.now)
        for _ in range(3):
            for machine in world.cluster.machines.values():
                machine.is_sick = False
            for id in world.journal.open_incident_ids():
                world.ends(id)
            for _ in range(60):
                world.step(30)
                self._hear()
        assert world.cluster.ours() == [], world.repairs.active_repairs()
        assert world.repairs.active_repairs() == []
        assert world.journal.verify() is None
        world.close()

    def _hear(self) -> None:
        """What the hub does with an event about a node that stays out of service: its incident is open again."""
        for event in self.world.reported:
            id = event.fields["repair"].rpartition(".")[0]
            incident = self.world.journal.incident(id)
            if incident is not None and not incident.is_open:
                self.world.take(self.world.reopens(id))
        self.world.reported.clear()

    # What can happen

    def time_passes(self) -> None:
        self.world.step(self.dice.choice((0.2, 1, 1, 5, 60, 700)))

    def breaks(self) -> None:
        node = self.dice.choice(self.world.nodes).name
        mode = self.dice.choice((Mode.ACT, Mode.ACT, Mode.ASK, Mode.SUGGEST, Mode.OBSERVE))
        self.world.take(self.world.breaks(node, self.dice.choice(CAUSES)), mode)

    def ends(self) -> None:
        if ids := sorted(self.world.journal.open_incident_ids()):
            self.world.ends(self.dice.choice(ids))

    def mends(self) -> None:
        self.dice.choice(list(self.world.cluster.machines.values())).is_sick = False

    def reopens(self) -> None:
        over = [incident for incident in self.world.journal.incidents() if not incident.is_open]
        if over:
            self.world.take(self.world.reopens(self.dice.choice(over).id))

    def somebody_cordons(self) -> None:
        machine = self.dice.choice(list(self.world.cluster.machines.values()))
        machine.cordon = machine.cordon or "ada"

    def somebody_uncordons(self) -> None:
        machine = self.dice.choice(list(self.world.cluster.machines.values()))
        machine.cordon = None

    def vanishes(self) -> None:
        """Deleted, and made anew some other time."""
        machine = self.dice.choice(list(self.world.cluster.machines.values()))
        if machine.exists:
            machine.exists = False
        else:
            machine.exists, machine.cordon, machine.incarnation = True, None, machine.incarnation + 1

    def killed(self) -> None:
        """In one of the next calls: before it, or after it took effect."""
        self.kill_at = self.dice.randrange(4)

    def restarts(self) -> None:
        self.world.restart()

    def approves(self) -> None:
        self._person(
            lambda repair_id, digest: self.world.control.approve(repair_id, digest, actor="ada", now=self.world.now)
        )

    def rejects(self) -> None:
        self._person(lambda repair_id, _: self.world.control.reject(repair_id, "no", actor="ada", now=self.world.now))

    def says_done(self) -> None:
        self._person(lambda repair_id, _: self.world.control.step_done(repair_id, actor="ada", now=self.world.now))

    def settings_change(self) -> None:
        """The mode is another one from now on, as after a restart with other settings."""
        mode = self.dice.choice([Mode.ASK, Mode.ASK, Mode.ASK, Mode.SUGGEST])
        self.world.mode_decision = (
            ModeDecision(mode, f"mode {mode} by the walk") if self.world.mode_decision is None else None
        )

    def stops(self) -> None:
        if self.world.repairs.switch.is_stopped:
            self.world.control.resume(actor="ada", now=self.world.now)
        else:
            self.world.control.stop("let me look", actor="ada", now=self.world.now)

    def _person(self, say: Callable[[str, str], object]) -> None:
        if alive := self.world.repairs.active_repairs():
            chosen = self.dice.choice(alive)
            try:
                say(chosen.id, chosen.digest)
            except InvalidTransition:
                return


def walk(folder: Path, seed: int, steps: int) -> Walk:
    walked = Walk(folder, seed)
    for _ in range(steps):
        walked.step()
    walked.finish()
    return walked


__all__ = ["OURS", "Walk", "walk"]
