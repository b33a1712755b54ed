"""What people say about repairs: yes, no, done, again, stop and go on. Each word is kept with who said it.

A yes is for one plan, named by its digest, and for a time. The hub hands the words of the API, the console and the
command line over to this; guards have the last word all the same.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from watchkeeper.errors import HubError, InvalidTransition
from watchkeeper.model import trust
from watchkeeper.model.repairs import BY_PERSON, WAITING, Repair, RepairState, RepairSwitch
from watchkeeper.remediate import progress
from watchkeeper.remediate.moves import restore
from watchkeeper.remediate.proposal import RepairProposal
from watchkeeper.remediate.repairs import POLICY, Repairs

# Until here nothing has happened that a cordon taken off does not undo; a warning is only words.
UNDOABLE = frozenset({RepairState.WARNING, RepairState.CORDONING, RepairState.DRAINING})


class Approval:
    def __init__(self, repairs: Repairs, *, life: timedelta) -> None:
        self._repairs = repairs
        self._life = life

    def approve(self, id: str, digest: str, *, actor: str, now: datetime) -> Repair:
        """Let the plan with this digest be carried out, unless it is another one by now."""
        with self._repairs.transaction(now):
            repair = self._find(id)
            if repair.mode is trust.Mode.SUGGEST:
                raise InvalidTransition(
                    "the mode is suggest, so people carry it out", where=repair.id, remedy=_raise_mode(repair)
                )
            if repair.is_running and repair.approved_by == POLICY:
                return self._confirm(repair, digest, actor=actor, now=now)
            if repair.state is not RepairState.PLANNED:
                raise InvalidTransition(
                    f"it is {repair.state}, and only a planned repair can be approved", where=repair.id
                )
            _same_plan(repair, digest)
            approved = progress.approve(repair, actor, until=now + self._life, now=now)
            self._repairs.save(approved, now, text=f"{actor} approved plan {digest}", actor=actor)
            return self._repairs.decide(approved, now)

    def _confirm(self, repair: Repair, digest: str, *, actor: str, now: datetime) -> Repair:
        """One that began by itself goes on under more careful settings, on a person's word."""
        _same_plan(repair, digest)
        text = f"{actor} approved that it goes on with plan {digest}"
        return self._repairs.save(replace(repair, approved_by=actor), now, text=text, actor=actor)

    def reject(self, id: str, why: str, *, actor: str, now: datetime) -> Repair:
        """Do not carry it out; what was done so far is undone, also the cordon that a failed repair left."""
        with self._repairs.lock_node(self._find(id).node), self._repairs.transaction(now):
            repair = self._find(id)
            text = f"{actor} rejected it: {why}"
            if repair.state in WAITING:
                rejected = replace(repair, state=RepairState.REJECTED, reason=text, since=now, ended_at=now)
                return self._repairs.save(rejected, now, text=text, actor=actor)
            if repair.state in UNDOABLE or repair.keeps_cordon or self._waits_for_person(repair):
                undone = progress.enter_state(repair, restore(RepairState.REJECTED, text), now)
                return self._repairs.save(undone, now, text=text, actor=actor)
            raise InvalidTransition(
                f"it is {repair.state}, which cannot be taken back",
                where=repair.id,
                now=repair.reason,
                remedy="`watchkeeper act stop` keeps it from going on",
            )

    def step_done(self, id: str, *, actor: str, now: datetime) -> Repair:
        """A person has done the step that only a person can do."""
        with self._repairs.lock_node(self._find(id).node), self._repairs.transaction(now):
            repair = self._find(id)
            if not self._waits_for_person(repair):
                waits = repair.action.kind if repair.action is not None else "nothing"
                raise InvalidTransition(
                    f"it does not wait for a person but for {waits}", where=repair.id, now=repair.reason
                )
            text = f"{actor} has done: {repair.action.why}" if repair.action is not None else f"{actor} says done"
            return self._repairs.save(progress.next_step(repair, text, now), now, text=text, actor=actor)

    def retry(self, want: RepairProposal, *, actor: str, now: datetime) -> Repair:
        """Another attempt at a plan that had its repair; guards count it."""
        with self._repairs.transaction(now):
            made = self._repairs.start_another(want, now)
            self._repairs.save(made, now, text=f"{actor} wants another attempt", actor=actor)
            return made

    def stop(self, why: str, *, actor: str, now: datetime) -> RepairSwitch:
        """Nothing is called any more, from this moment; repairs stay where they are."""
        switch = replace(self._repairs.switch, stopped_at=now, stopped_by=actor, stopped_why=why)
        self._repairs.stop_immediately(switch)
        with self._repairs.transaction(now):
            return self._repairs.save_switch(switch, now, actor=actor, text=f"{actor} stopped everything: {why}")

    def resume(self, *, actor: str, now: datetime) -> RepairSwitch:
        with self._repairs.transaction(now):
            if not self._repairs.switch.is_stopped:
                raise InvalidTransition("nothing is stopped", where="repairs")
            switch = replace(self._repairs.switch, stopped_at=None, stopped_by="", stopped_why="")
            for repair in self._repairs.active_repairs():
                if (resumed := progress.resume(repair, now)) != repair:
                    self._repairs.save(resumed, now, text=f"{actor} let it go on", actor=actor)
            return self._repairs.save_switch(switch, now, actor=actor, text=f"{actor} let everything go on")

    def reset(self, *, actor: str, now: datetime) -> RepairSwitch:
        """Close the circuit breaker; nodes that wanted a repair before are not counted again."""
        with self._repairs.transaction(now):
            if not self._repairs.switch.is_tripped:
                raise InvalidTransition("the circuit breaker is closed", where="repairs")
            switch = replace(self._repairs.switch, tripped_at=None, tripped_why="", reset_at=now)
            return self._repairs.save_switch(switch, now, actor=actor, text=f"{actor} closed the circuit breaker")

    def _find(self, id: str) -> Repair:
        repair = self._repairs.find(id)
        if repair is None:
            remedy = "`watchkeeper act list` shows what there is, `watchkeeper act explain` why there is nothing"
            raise HubError(f"there is no repair for {id[:40]}", status=404, remedy=remedy)
        return repair

    @staticmethod
    def _waits_for_person(repair: Repair) -> bool:
        return repair.is_running and repair.action is not None and repair.action.kind in BY_PERSON


def _same_plan(repair: Repair, digest: str) -> None:
    if digest != repair.digest:
        raise InvalidTransition(
            f"the yes is for plan {digest[:40]}, the plan is {repair.digest}",
            where=repair.id,
            now="Nothing was approved",
            remedy=f"Look at it again with `watchkeeper act explain {repair.incident}`",
        )


def _raise_mode(repair: Repair) -> str:
    return f'Raise it: [[remediate.trust]] cause = "{repair.cause}", mode = "ask"'
