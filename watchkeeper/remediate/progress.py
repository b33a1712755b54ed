"""The next version of a repair after each thing that can happen to it. Pure; `repairs` keeps what these return.

A call is written down before it is made (`begun`) and after (`answered`, `troubled`), so that a crash between the two
is a call made once more, under the same id.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from watchkeeper.errors import InvalidTransition
from watchkeeper.model.actions import Action, ActionKind, Receipt, Result
from watchkeeper.model.repairs import BY_PERSON, ENDED, REPAIR_MOVES, Repair, RepairId, RepairState
from watchkeeper.model.trust import Mode
from watchkeeper.remediate.driver import ActionOutcome
from watchkeeper.remediate.ladder import ModeDecision
from watchkeeper.remediate.moves import PAUSES, Move, end, enter, state_of, validate_step
from watchkeeper.remediate.proposal import RepairProposal, number_actions

# An action that is not complete is performed again after a tenth of the time it has taken: pods end in a second or in
# an hour, machines boot in minutes.
SHORTEST_POLL, LONGEST_POLL = timedelta(milliseconds=200), timedelta(seconds=5)
# A cordon that a failed repair left is not tried again before this.
HELD_PAUSE = timedelta(seconds=60)
TEXT_LIMIT = 500


def new_repair(want: RepairProposal, attempt: int, now: datetime) -> Repair:
    """A repair that nobody has approved."""
    steps, limits = number_actions(want, attempt)
    return Repair(
        id=RepairId(f"{want.incident}.{attempt}"),
        incident=want.incident,
        node=want.node,
        pool=want.pool,
        cause=want.cause,
        mode=want.allowed.mode,
        mode_why=want.allowed.why,
        digest=want.digest,
        actions=steps,
        state=RepairState.PLANNED,
        reason=want.allowed.why,
        made_at=now,
        since=now,
        openings={want.incident: want.opening},
        limit_seconds=limits,
    )


def replan(repair: Repair, want: RepairProposal, now: datetime) -> Repair:
    """The same attempt with another plan: whoever approved the old one has not approved this one."""
    attempt = int(repair.id.rpartition(".")[2])
    return replace(new_repair(want, attempt, now), made_at=repair.made_at, openings=repair.openings)


def lower_mode(repair: Repair, rung: ModeDecision, now: datetime) -> Repair:
    """One that waits, under more careful settings than those it was planned under."""
    if rung.mode is Mode.OBSERVE:
        return end_repair(repair, end(RepairState.ROLLED_BACK, rung.why, keeps_cordon=False), now)
    changed = replace(repair, mode=rung.mode, mode_why=rung.why)
    if repair.state is RepairState.PLANNED:
        return replace(changed, reason=rung.why)
    return enter_state(changed, enter(RepairState.PLANNED, rung.why), now)


def approve(repair: Repair, actor: str, *, until: datetime | None, now: datetime) -> Repair:
    said = f"Approved by {actor}" if until is None else f"Approved by {actor} until {until:%Y-%m-%d %H:%M}Z"
    # A plan that begins with a look by a person is approved by somebody who has looked.
    first = next((at for at, step in enumerate(repair.actions) if step.kind not in BY_PERSON), 0)
    moved = _moved(repair, RepairState.APPROVED, said, now)
    return replace(moved, approved_by=actor, approved_until=until, step=first)


def enter_state(repair: Repair, move: Move, now: datetime) -> Repair:
    """In another state. A repair that begins may carry our cordon from then on."""
    assert move.state is not None
    is_start = repair.state is RepairState.APPROVED and move.state is not RepairState.PLANNED
    moved = _moved(repair, move.state, move.why, now)
    if is_start:
        moved = replace(moved, started_at=now)
    if move.state is RepairState.PLANNED:
        return replace(moved, approved_by=None, approved_until=None, step=0)
    if move.state is RepairState.RESTORING:
        return replace(moved, outcome=move.outcome, undone=())
    if move.state is RepairState.VALIDATING and repair.is_ended:
        return replace(moved, step=validate_step(repair) or 0)
    return moved


def end_repair(repair: Repair, move: Move, now: datetime) -> Repair:
    assert move.state is not None
    moved = _moved(repair, move.state, move.why, now)
    has_cordon = repair.has_cordon and move.keeps_cordon and move.state is RepairState.FAILED
    retry_at = now + HELD_PAUSE if has_cordon else None
    return replace(moved, has_cordon=has_cordon, ended_at=now, retry_at=retry_at, waits_for=())


def release_node(repair: Repair, why: str) -> Repair:
    return replace(repair, has_cordon=False, reason=why, retry_at=None)


def next_step(repair: Repair, why: str, now: datetime) -> Repair:
    """At the next step, in the state that belongs to it."""
    at = repair.step + 1
    following = repair.actions[at] if at < len(repair.actions) else None
    # The last two steps are one for the state machine: what is given back is given back in `restoring`.
    to = repair.state if following is not None and following.kind is ActionKind.UNCORDON else state_of(following)
    return replace(_moved(repair, to, why, now), step=at)


def begin_action(repair: Repair, action: Action) -> Repair:
    """Written before the call: from here on it may have happened."""
    if repair.state is RepairState.RESTORING:
        return replace(repair, is_begun=True)
    # To move what holds one GPU needs no cordon.
    may_cordon = action.kind is ActionKind.CORDON or (action.kind is ActionKind.DRAIN and action.place.gpu is None)
    has_cordon = repair.has_cordon or may_cordon
    has_acted = repair.has_acted or repair.state is RepairState.ACTING
    return replace(repair, is_begun=True, has_cordon=has_cordon, has_acted=has_acted)


def record_outcome(repair: Repair, action: Action, done: ActionOutcome, *, now: datetime) -> Repair:
    if not done.is_complete:
        waits_for = tuple(text[:TEXT_LIMIT] for text in done.waits_for[:20]) or (done.text[:TEXT_LIMIT],)
        return replace(repair, tries=0, retry_at=now + _poll(repair, now), waits_for=waits_for)
    noted = _noted(replace(repair, tries=0, retry_at=None, waits_for=()), action, Result.DONE, text=done.text, now=now)
    if repair.state is RepairState.RESTORING:
        return replace(noted, undone=(*repair.undone, action.id), is_begun=False)
    # Whoever was told has time; `moves` says when it is over.
    if action.kind is ActionKind.WARN_OWNER:
        return noted
    # A cordon is done when it is seen on the node.
    if action.kind is ActionKind.CORDON:
        return replace(noted, retry_at=now + _poll(repair, now))
    return next_step(noted, done.text[:TEXT_LIMIT], now)


def _poll(repair: Repair, now: datetime) -> timedelta:
    return min(LONGEST_POLL, max(SHORTEST_POLL, (now - repair.since) / 10))


def record_failure(repair: Repair, action: Action, problem: str, *, now: datetime) -> Repair:
    """It did not succeed and may the next time; the step's limit says when that is enough."""
    pause = timedelta(seconds=PAUSES.delay_seconds(repair.tries + 1))
    noted = _noted(repair, action, Result.FAILED, text=problem, now=now)
    return replace(noted, tries=repair.tries + 1, retry_at=now + pause, waits_for=(problem[:TEXT_LIMIT],))


def record_refusal(repair: Repair, action: Action, problem: str, *, now: datetime) -> Repair:
    """It must not be done: no other try will help."""
    was_changed = any(
        receipt.result is Result.DONE and receipt.action.kind is not ActionKind.WARN_OWNER
        for receipt in repair.receipts
    )
    noted = _noted(repair, action, Result.REFUSED, text=problem, now=now)
    has_cordon = repair.has_cordon and action.kind is not ActionKind.CORDON
    if repair.state is RepairState.RESTORING and action.kind is ActionKind.UNCORDON:
        has_cordon = False
    move = end(RepairState.FAILED, f"{action.kind} was refused: {problem[:TEXT_LIMIT]}")
    if not was_changed and not has_cordon:
        move = end(RepairState.ROLLED_BACK, move.why, keeps_cordon=False)
    return end_repair(replace(noted, has_cordon=has_cordon), move, now)


def join_incident(repair: Repair, want: RepairProposal) -> Repair:
    return replace(repair, openings={**repair.openings, want.incident: want.opening})


def resume(repair: Repair, now: datetime) -> Repair:
    """After everything was stopped: the time it stood still does not count against its step."""
    return replace(repair, since=now) if repair.is_running else repair


def _moved(repair: Repair, to: RepairState, why: str, now: datetime) -> Repair:
    if to is not repair.state and to not in REPAIR_MOVES[repair.state]:
        raise InvalidTransition(f"a repair that is {repair.state} cannot become {to}", where=repair.id)
    revived = None if repair.state in ENDED and to not in ENDED else repair.ended_at
    return replace(
        repair,
        state=to,
        reason=why,
        since=now,
        is_begun=False,
        tries=0,
        retry_at=None,
        waits_for=(),
        ended_at=revived,
    )


def _noted(repair: Repair, action: Action, result: Result, *, text: str, now: datetime) -> Repair:
    """One receipt for each action: the newest."""
    kept = tuple(receipt for receipt in repair.receipts if receipt.action.id != action.id)
    return replace(repair, receipts=(*kept, Receipt(action, now, result, text[:TEXT_LIMIT])))
