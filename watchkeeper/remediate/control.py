"""Apply what users do with repairs: approve, reject, confirm a manual step, retry, halt, resume, reset.

The API, the console and the command line end here, and every change is stored with the user who made it. An approval
is valid for one plan, identified by its digest, and for a limited time; guards can still refuse the repair.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from watchkeeper.errors import HubError, InvalidTransition
from watchkeeper.model import trust
from watchkeeper.model.repairs import MANUAL_KINDS, WAITING, Repair, RepairState, RepairSwitch
from watchkeeper.remediate import progress
from watchkeeper.remediate.proposal import RepairProposal
from watchkeeper.remediate.repairs import POLICY, Repairs
from watchkeeper.remediate.transitions import restore

# In these states an uncordon undoes everything: no step has changed the machine.
UNDOABLE = frozenset({RepairState.WARNING, RepairState.CORDONING, RepairState.DRAINING})


class RepairControl:
    def __init__(self, repairs: Repairs, *, approval_lifetime: timedelta) -> None:
        self._repairs = repairs
        self._approval_lifetime = approval_lifetime

    def approve(self, id: str, digest: str, *, actor: str, now: datetime) -> Repair:
        """Approve the plan with this digest; InvalidTransition if the repair has another plan by now."""
        with self._repairs.transaction(now):
            repair = self._get_repair(id)
            if repair.mode is trust.Mode.SUGGEST:
                raise InvalidTransition(
                    "the mode is suggest: Watchkeeper does not run the plan",
                    where=repair.id,
                    remedy=f'Set [[remediate.trust]] cause = "{repair.cause}", mode = "ask", or run the plan manually',
                )
            if repair.is_running and repair.approved_by == POLICY:
                # It started automatically, before the mode was lowered.
                _check_digest(repair, digest)
                text = f"{actor} approved continuing with plan {digest}"
                return self._repairs.save(replace(repair, approved_by=actor), now, text=text, actor=actor)
            if repair.state is not RepairState.PLANNED:
                problem = f"the repair is {repair.state}; only a planned repair can be approved"
                raise InvalidTransition(problem, where=repair.id)
            _check_digest(repair, digest)
            approved = progress.approve(repair, actor, until=now + self._approval_lifetime, now=now)
            self._repairs.save(approved, now, text=f"{actor} approved plan {digest}", actor=actor)
            return self._repairs.decide(approved, now)

    def reject(self, id: str, why: str, *, actor: str, now: datetime) -> Repair:
        """Reject a repair and undo its changes, including a cordon that a failed repair left."""
        with self._repairs.lock_node(self._get_repair(id).node), self._repairs.transaction(now):
            repair = self._get_repair(id)
            text = f"{actor} rejected the repair: {why}"
            if repair.state in WAITING:
                rejected = replace(repair, state=RepairState.REJECTED, reason=text, since=now, ended_at=now)
                return self._repairs.save(rejected, now, text=text, actor=actor)
            if repair.state in UNDOABLE or repair.keeps_cordon or self._is_at_manual_step(repair):
                unstopped = progress.end_stop(repair, text, now)
                restoring = progress.enter_state(unstopped, restore(RepairState.REJECTED, text), now)
                return self._repairs.save(restoring, now, text=text, actor=actor)
            raise InvalidTransition(
                f"the repair is {repair.state} and cannot be undone",
                where=repair.id,
                now=repair.reason,
                remedy="`watchkeeper act stop` halts all repairs",
            )

    def step_done(self, id: str, *, actor: str, now: datetime) -> Repair:
        with self._repairs.lock_node(self._get_repair(id).node), self._repairs.transaction(now):
            repair = self._get_repair(id)
            if not self._is_at_manual_step(repair):
                current_step = "not started" if repair.action is None else repair.action.kind
                problem = f"the current step is {current_step}, not a manual step"
                raise InvalidTransition(problem, where=repair.id, now=repair.reason)
            assert repair.action is not None
            text = f"{actor} completed: {repair.action.why}"
            return self._repairs.save(progress.next_step(repair, text, now), now, text=text, actor=actor)

    def retry(self, proposal: RepairProposal, *, actor: str, now: datetime) -> Repair:
        """Start another attempt at a plan; the guard of attempts counts it."""
        with self._repairs.transaction(now):
            repair = self._repairs.start_another(proposal, now)
            self._repairs.save(repair, now, text=f"{actor} requested another attempt", actor=actor)
            return repair

    def stop_repair(self, id: str, why: str, *, actor: str, now: datetime) -> Repair:
        """Stop one repair before its next call; a call that is being made now may still take effect."""
        with self._repairs.transaction(now):
            repair = self._get_repair(id)
            if not repair.has_node or repair.stopped_by is not None:
                raise InvalidTransition(
                    f"the repair is {repair.activity}; only one that runs can be stopped",
                    where=repair.id,
                    now=repair.reason,
                    remedy=f"`watchkeeper act reject {repair.incident}` rejects one that waits",
                )
            text = f"{actor} stopped the repair, which was {repair.activity}: {why}"
            return self._repairs.save(progress.stop(repair, actor, why), now, text=text, actor=actor)

    def resume_repair(self, id: str, *, actor: str, now: datetime) -> Repair:
        with self._repairs.transaction(now):
            repair = self._get_repair(id)
            if repair.stopped_by is None or not repair.has_node:
                raise InvalidTransition("the repair is not stopped", where=repair.id, now=repair.reason)
            resumed = progress.end_stop(repair, f"{actor} resumed the repair", now)
            return self._repairs.save(resumed, now, text=resumed.reason, actor=actor)

    def stop(self, why: str, *, actor: str, now: datetime) -> RepairSwitch:
        """Halt all repairs now: no more calls to machines; repairs keep their state."""
        switch = replace(self._repairs.switch, stopped_at=now, stopped_by=actor, stopped_why=why)
        self._repairs.halt_immediately(switch)
        with self._repairs.transaction(now):
            return self._repairs.save_switch(switch, now, actor=actor, text=f"{actor} halted all repairs: {why}")

    def resume(self, *, actor: str, now: datetime) -> RepairSwitch:
        with self._repairs.transaction(now):
            if not self._repairs.switch.is_stopped:
                raise InvalidTransition("repairs are not halted", where="repairs")
            switch = replace(self._repairs.switch, stopped_at=None, stopped_by="", stopped_why="")
            for repair in self._repairs.active_repairs():
                if (resumed := progress.resume(repair, now)) != repair:
                    self._repairs.save(resumed, now, text=f"{actor} resumed the repair", actor=actor)
            return self._repairs.save_switch(switch, now, actor=actor, text=f"{actor} resumed all repairs")

    def reset(self, *, actor: str, now: datetime) -> RepairSwitch:
        """Close the circuit breaker; repair requests before now no longer count."""
        with self._repairs.transaction(now):
            if not self._repairs.switch.is_tripped:
                raise InvalidTransition("the circuit breaker is already closed", where="repairs")
            switch = replace(self._repairs.switch, tripped_at=None, tripped_why="", reset_at=now)
            return self._repairs.save_switch(switch, now, actor=actor, text=f"{actor} closed the circuit breaker")

    def _get_repair(self, id: str) -> Repair:
        repair = self._repairs.find(id)
        if repair is None:
            remedy = "`watchkeeper act list` lists repairs; `watchkeeper act explain` says why an incident has none"
            raise HubError(f"no repair for {id[:40]}", status=404, remedy=remedy)
        return repair

    @staticmethod
    def _is_at_manual_step(repair: Repair) -> bool:
        return repair.is_running and repair.action is not None and repair.action.kind in MANUAL_KINDS


def _check_digest(repair: Repair, digest: str) -> None:
    if digest != repair.digest:
        raise InvalidTransition(
            f"the approval is for plan {digest[:40]}, but the plan is now {repair.digest}",
            where=repair.id,
            now="Nothing was approved",
            remedy=f"Review the plan with `watchkeeper act explain {repair.incident}`, then approve it",
        )
