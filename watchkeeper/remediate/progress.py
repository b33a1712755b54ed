"""Return the next version of a repair after each event. Pure; `repairs` stores what these functions return.

A call is stored before it is made (`begin_action`) and after (`record_outcome`, `record_failure`, `record_refusal`), so
that a crash in between repeats the call under the same id.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from watchkeeper.errors import InvalidTransition
from watchkeeper.model.actions import Action, ActionKind, Receipt, Result
from watchkeeper.model.repairs import ENDED, MANUAL_KINDS, REPAIR_MOVES, Repair, RepairId, RepairState
from watchkeeper.model.trust import Mode
from watchkeeper.remediate import transitions
from watchkeeper.remediate.driver import ActionOutcome
from watchkeeper.remediate.proposal import RepairProposal, number_actions
from watchkeeper.remediate.transitions import Transition, end, enter
from watchkeeper.remediate.trust_rules import ModeDecision

# An incomplete action is performed again after a tenth of its time so far: a pod takes a second or an hour to end, a
# machine minutes to boot.
SHORTEST_POLL, LONGEST_POLL = timedelta(milliseconds=200), timedelta(seconds=5)
# The delay before the next try to remove the cordon of a failed repair.
KEPT_CORDON_RETRY = timedelta(seconds=60)
MAX_TEXT_LENGTH = 500


def new_repair(proposal: RepairProposal, attempt: int, now: datetime) -> Repair:
    steps, limits = number_actions(proposal, attempt)
    return Repair(
        id=RepairId(f"{proposal.incident}.{attempt}"),
        incident=proposal.incident,
        node=proposal.node,
        pool=proposal.pool,
        cause=proposal.cause,
        mode=proposal.mode,
        mode_why=proposal.allowed.why,
        digest=proposal.digest,
        actions=steps,
        state=RepairState.PLANNED,
        reason=proposal.allowed.why,
        made_at=now,
        since=now,
        openings={proposal.incident: proposal.opening},
        limit_seconds=limits,
    )


def replan(repair: Repair, proposal: RepairProposal, now: datetime) -> Repair:
    """Return the same attempt with another plan, which needs a new approval."""
    attempt = int(repair.id.rpartition(".")[2])
    return replace(new_repair(proposal, attempt, now), made_at=repair.made_at, openings=repair.openings)


def lower_mode(repair: Repair, mode_decision: ModeDecision, now: datetime) -> Repair:
    if mode_decision.mode is Mode.OBSERVE:
        return end_repair(repair, end(RepairState.ROLLED_BACK, mode_decision.why, keeps_cordon=False), now)
    changed = replace(repair, mode=mode_decision.mode, mode_why=mode_decision.why)
    if repair.state is RepairState.PLANNED:
        return replace(changed, reason=mode_decision.why)
    return enter_state(changed, enter(RepairState.PLANNED, mode_decision.why), now)


def approve(repair: Repair, actor: str, *, until: datetime | None, now: datetime) -> Repair:
    reason = f"Approved by {actor}" if until is None else f"Approved by {actor} until {until:%Y-%m-%d %H:%M}Z"
    # Approving a plan also confirms its first manual steps.
    first_step = next((at for at, step in enumerate(repair.actions) if step.kind not in MANUAL_KINDS), 0)
    approved = _change_state(repair, RepairState.APPROVED, reason, now)
    return replace(approved, approved_by=actor, approved_until=until, step=first_step)


def enter_state(repair: Repair, transition: Transition, now: datetime) -> Repair:
    assert transition.state is not None
    is_start = repair.state is RepairState.APPROVED and transition.state is not RepairState.PLANNED
    changed = _change_state(repair, transition.state, transition.why, now)
    if is_start:
        changed = replace(changed, started_at=now)
    if transition.state is RepairState.PLANNED:
        return replace(changed, approved_by=None, approved_until=None, step=0)
    if transition.state is RepairState.RESTORING:
        return replace(changed, outcome=transition.outcome, undone=())
    if transition.state is RepairState.VALIDATING and repair.is_ended:
        return replace(changed, step=transitions.find_validate_step(repair) or 0)
    return changed


def end_repair(repair: Repair, transition: Transition, now: datetime) -> Repair:
    assert transition.state is not None
    ended = _change_state(repair, transition.state, transition.why, now)
    has_cordon = repair.has_cordon and transition.keeps_cordon and transition.state is RepairState.FAILED
    retry_at = now + KEPT_CORDON_RETRY if has_cordon else None
    return replace(ended, has_cordon=has_cordon, ended_at=now, retry_at=retry_at, waits_for=())


def release_node(repair: Repair, why: str) -> Repair:
    return replace(repair, has_cordon=False, reason=why, retry_at=None)


def next_step(repair: Repair, why: str, now: datetime) -> Repair:
    index = repair.step + 1
    next_action = repair.actions[index] if index < len(repair.actions) else None
    # The transition to `restoring` follows once the uncordon is the current step.
    is_uncordon = next_action is not None and next_action.kind is ActionKind.UNCORDON
    state = repair.state if is_uncordon else transitions.state_for_action(next_action)
    return replace(_change_state(repair, state, why, now), step=index)


def begin_action(repair: Repair, action: Action, now: datetime) -> Repair:
    """Mark the action as begun; stored before the call, because from then on it may have taken effect."""
    if repair.state is RepairState.RESTORING:
        return replace(repair, is_begun=True)
    # A drain of one GPU needs no cordon.
    may_cordon = action.kind is ActionKind.CORDON or (action.kind is ActionKind.DRAIN and action.place.gpu is None)
    has_cordon = repair.has_cordon or may_cordon
    has_acted = repair.has_acted or repair.state is RepairState.ACTING
    if repair.is_of_domain and not repair.is_begun:
        # The time that a budget took to allow the step is not the step's.
        repair = replace(repair, since=now)
    return replace(repair, is_begun=True, has_cordon=has_cordon, has_acted=has_acted)


def record_outcome(repair: Repair, action: Action, outcome: ActionOutcome, *, now: datetime) -> Repair:
    if not outcome.is_complete:
        waits_for = tuple(text[:MAX_TEXT_LENGTH] for text in outcome.waits_for[:20] or (outcome.text,))
        waiting = replace(repair, tries=0, retry_at=now + _poll_interval(repair, now), waits_for=waits_for)
        if repair.is_of_domain and repair.state is RepairState.RESTORING:
            # The other nodes of a rack are next: this one may not answer.
            return _add_receipt(waiting, action, Result.FAILED, text=outcome.text, now=now)
        return waiting
    succeeded = replace(repair, tries=0, retry_at=None, waits_for=())
    recorded = _add_receipt(succeeded, action, Result.DONE, text=outcome.text, now=now)
    if repair.state is RepairState.RESTORING:
        return replace(recorded, undone=(*repair.undone, action.id), is_begun=False)
    # The owner has time to react; `transitions` decides when it is over.
    if action.kind is ActionKind.WARN_OWNER:
        return recorded
    # A reboot is done when the boot is observed, not when the call returned.
    if action.kind is ActionKind.REBOOT:
        return recorded
    # A cordon is done when it is observed on the node.
    if action.kind is ActionKind.CORDON:
        return replace(recorded, retry_at=now + _poll_interval(repair, now))
    return next_step(recorded, outcome.text[:MAX_TEXT_LENGTH], now)


def _poll_interval(repair: Repair, now: datetime) -> timedelta:
    return min(LONGEST_POLL, max(SHORTEST_POLL, (now - repair.since) / 10))


def record_failure(repair: Repair, action: Action, problem: str, *, now: datetime) -> Repair:
    """Record a failed call, which is retried until the step's time limit."""
    delay = timedelta(seconds=transitions.RETRY_BACKOFF.delay_seconds(repair.tries + 1))
    recorded = _add_receipt(repair, action, Result.FAILED, text=problem, now=now)
    return replace(recorded, tries=repair.tries + 1, retry_at=now + delay, waits_for=(problem[:MAX_TEXT_LENGTH],))


def record_refusal(repair: Repair, action: Action, problem: str, *, now: datetime) -> Repair:
    """Record an action that is not allowed, and end the repair: a retry cannot help."""
    was_changed = any(
        receipt.result is Result.DONE and receipt.action.kind is not ActionKind.WARN_OWNER
        for receipt in repair.receipts
    )
    recorded = _add_receipt(repair, action, Result.REFUSED, text=problem, now=now)
    if repair.is_of_domain:
        return skip_action(recorded, action, problem, now)
    has_cordon = repair.has_cordon and action.kind is not ActionKind.CORDON
    if repair.state is RepairState.RESTORING and action.kind is ActionKind.UNCORDON:
        has_cordon = False
    transition = end(RepairState.FAILED, f"{action.kind} was refused: {problem[:MAX_TEXT_LENGTH]}")
    if not was_changed and not has_cordon:
        transition = end(RepairState.ROLLED_BACK, transition.why, keeps_cordon=False)
    return end_repair(replace(recorded, has_cordon=has_cordon), transition, now)


def skip_action(repair: Repair, action: Action, why: str, now: datetime) -> Repair:
    """Continue with the next node of a rack: one node must not keep the others hot, or cordoned."""
    text = f"{action.place.node} is skipped: {why}"[:MAX_TEXT_LENGTH]
    if repair.state is RepairState.RESTORING:
        return replace(repair, undone=(*repair.undone, action.id), is_begun=False, tries=0, retry_at=None, waits_for=())
    return next_step(repair, text, now)


def record_boot(repair: Repair, why: str, now: datetime) -> Repair:
    """Record when the boot of the current step was observed."""
    assert repair.action is not None
    return _add_receipt(repair, repair.action, Result.DONE, text=why, now=now)


def record_skip(repair: Repair, why: str, now: datetime) -> Repair:
    """Record that the current step was skipped; if it was begun, it may have taken effect."""
    assert repair.action is not None
    result = Result.FAILED if repair.is_begun else Result.REFUSED
    return _add_receipt(repair, repair.action, result, text=why, now=now)


def resume(repair: Repair, now: datetime) -> Repair:
    """Restart the time limit of the current step."""
    return replace(repair, since=now) if repair.is_running else repair


def stop(repair: Repair, actor: str, why: str) -> Repair:
    """Stop before the next call; the reason says what is true now, and what to do."""
    begun = "none of its steps has begun" if repair.action is None else f"the step {repair.action.kind} has not begun"
    if repair.state is RepairState.VALIDATING:
        begun = "its validation has not ended"
    elif repair.action is not None and repair.is_begun:
        begun = f"the step {repair.action.kind} has begun, and its last call may still take effect"
    cordon = f"{repair.node_name} {'stays' if repair.has_cordon else 'is not'} cordoned"
    undo = "`act reject` undoes it"
    if repair.has_acted and not repair.keeps_cordon:
        undo = f"it cannot be undone; if you uncordon {repair.node_name} yourself, it ends"
    reason = f"Stopped by {actor}: {why}. {cordon}; {begun}. `act resume {repair.incident}` continues it; {undo}"
    return replace(repair, stopped_by=actor, stopped_why=why, reason=reason, waits_for=())


def end_stop(repair: Repair, why: str, now: datetime) -> Repair:
    """Continue after a stop; the time limit of the current step starts again."""
    return replace(resume(repair, now), stopped_by=None, stopped_why="", reason=why, waits_for=())


def _change_state(repair: Repair, new_state: RepairState, why: str, now: datetime) -> Repair:
    if new_state is not repair.state and new_state not in REPAIR_MOVES[repair.state]:
        raise InvalidTransition(f"a repair that is {repair.state} cannot become {new_state}", where=repair.id)
    ended_at = None if repair.state in ENDED and new_state not in ENDED else repair.ended_at
    return replace(
        repair,
        state=new_state,
        reason=why,
        since=now,
        is_begun=False,
        tries=0,
        retry_at=None,
        waits_for=(),
        ended_at=ended_at,
    )


def _add_receipt(repair: Repair, action: Action, result: Result, *, text: str, now: datetime) -> Repair:
    """Keep the newest receipt of each action."""
    other_receipts = tuple(receipt for receipt in repair.receipts if receipt.action.id != action.id)
    return replace(repair, receipts=(*other_receipts, Receipt(action, now, result, text[:MAX_TEXT_LENGTH])))
