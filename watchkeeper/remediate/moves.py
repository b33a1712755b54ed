"""What a repair does next: one pure function over what it is, what is seen, and the time.

`repairs` looks, asks `next_move`, and carries the move out; nothing else decides. Every way a repair can end is here:
done, failed with a reason, or rolled back because there was nothing left to repair or somebody else has the node.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from watchkeeper.kit import backoff, durations
from watchkeeper.model.actions import Action, ActionId, ActionKind, Result
from watchkeeper.model.incidents import IncidentId
from watchkeeper.model.repairs import BY_OTHERS, BY_PERSON, RECLAIMS, STATE_OF_KIND, Repair, RepairState
from watchkeeper.model.trust import Mode
from watchkeeper.remediate.driver import NodeObservation
from watchkeeper.remediate.policy import USUAL_LIMIT_SECONDS
from watchkeeper.remediate.validation import CheckResult, CheckState

MARK = "watchkeeper:"
# What can be taken back when it is over.
REVERSIBLE = frozenset({ActionKind.LOWER_POWER})
# A warning whose policy names no time.
USUAL_WAIT = "1h"
# An uncordon that failed is tried again for as long as the node carries our mark.
RESTORE_LIMIT_SECONDS = 600.0
PAUSES = backoff.Backoff(1.0, 60.0)
# A yes from later than this was given before the clock was put back: nobody knows how old it is.
MOST_AHEAD = timedelta(minutes=1)


class MoveKind(StrEnum):
    WAIT = "wait"
    ENTER = "enter"
    PERFORM = "perform"
    NEXT = "next"
    END = "end"
    # The node no longer carries anything of ours; the state stays.
    LET_GO = "let_go"


@dataclass(frozen=True, slots=True)
class Move:
    kind: MoveKind
    why: str = ""
    state: RepairState | None = None
    action: Action | None = None
    # The node may still carry our cordon afterwards.
    keeps_cordon: bool = True
    # What the repair will be once everything is undone.
    outcome: RepairState | None = None
    waits_for: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MoveContext:
    """What is known when a move is decided; None where nobody could say, or nobody was asked."""

    observed: NodeObservation | None = None
    # The incident whose cordon of ours is on the node; None: none of ours is.
    mark_of: IncidentId | None = None
    # All incidents that wait for the repair are resolved.
    is_over: bool = False
    is_stopped: bool = False
    # What the first guard that says no says; asked before a repair begins.
    refusal: str | None = None
    verdicts: tuple[CheckResult, ...] = ()
    # When this hub began to look: what lasted too long while none did is not held against a repair.
    watched_since: datetime | None = None


def mark_incident(mark: str | None) -> IncidentId | None:
    """The incident that a mark on a machine names; None for a mark that is not Watchkeeper's."""
    if mark is None or not mark.startswith(MARK) or "/" not in mark:
        return None
    return IncidentId(mark.removeprefix(MARK).partition("/")[0])


def wait(*waits_for: str) -> Move:
    return Move(MoveKind.WAIT, "; ".join(waits_for), waits_for=tuple(one for one in waits_for if one))


def enter(state: RepairState, why: str) -> Move:
    return Move(MoveKind.ENTER, why, state)


def restore(outcome: RepairState, why: str) -> Move:
    return Move(MoveKind.ENTER, why, RepairState.RESTORING, outcome=outcome)


def end(state: RepairState, why: str, *, keeps_cordon: bool = True) -> Move:
    return Move(MoveKind.END, why, state, keeps_cordon=keeps_cordon)


def next_move(repair: Repair, seen: MoveContext, now: datetime) -> Move:
    if seen.is_stopped:
        return wait("everything is stopped")
    if repair.state is RepairState.PLANNED:
        return _planned(repair, seen)
    if repair.state is RepairState.APPROVED:
        return _approved(repair, seen, now)
    if repair.is_running or repair.keeps_cordon:
        gone = _taken_from_us(repair, seen)
        if gone is not None:
            return gone
        if repair.state is RepairState.RESTORING:
            return _restoring(repair, seen, now)
        return _held(repair, seen, now) if repair.keeps_cordon else _step(repair, seen, now)
    return wait("it is over")


def _planned(repair: Repair, seen: MoveContext) -> Move:
    if seen.is_over:
        return end(RepairState.ROLLED_BACK, "The incident was over before anything was touched", keeps_cordon=False)
    if repair.mode is Mode.ACT:
        return enter(RepairState.APPROVED, repair.mode_why)
    return wait("a person's yes" if repair.mode is Mode.ASK else "a person who does it: the mode is suggest")


def _approved(repair: Repair, seen: MoveContext, now: datetime) -> Move:
    if seen.is_over:
        return end(RepairState.ROLLED_BACK, "The incident was over before anything was touched", keeps_cordon=False)
    if repair.approved_until is not None and now > repair.approved_until:
        return enter(RepairState.PLANNED, f"The yes of {repair.approved_by} has expired")
    if repair.approved_until is not None and repair.since - now > MOST_AHEAD:
        return enter(RepairState.PLANNED, f"The clock was put back: the yes of {repair.approved_by} may have expired")
    if seen.refusal is not None:
        return wait(seen.refusal)
    return enter(state_of(repair.action), f"Approved by {repair.approved_by}, and no guard objects")


def state_of(action: Action | None) -> RepairState:
    return RepairState.ACTING if action is None else STATE_OF_KIND.get(action.kind, RepairState.ACTING)


def _taken_from_us(repair: Repair, seen: MoveContext) -> Move | None:
    """The node is gone, or is no longer ours to work on."""
    observed = seen.observed
    if observed is None:
        return None
    node, is_early = repair.node.node, repair.state is RepairState.CORDONING
    if not observed.exists:
        return _let_go(repair, f"{node} no longer exists: there is nothing left to repair or to give back")
    if None not in (repair.incarnation, observed.incarnation) and repair.incarnation != observed.incarnation:
        return _let_go(repair, f"{node} was deleted and is another machine by now: nothing more is done to it")
    if observed.held_by and repair.is_running and not repair.has_acted and repair.state is not RepairState.RESTORING:
        return restore(RepairState.ROLLED_BACK, f"{node} is in the hands of {', '.join(observed.held_by[:3])}")
    if seen.mark_of is not None:
        return _uncordoned(repair, observed)
    # Ours was never there, or is not there any more; whose it is stands on the node, or nobody wrote it there.
    if is_early and observed.is_schedulable is False:
        owner = observed.cordoned_by or "somebody else"
        return end(RepairState.ROLLED_BACK, f"{node} is cordoned by {owner}, and it is theirs", keeps_cordon=False)
    if is_early or not repair.has_cordon or repair.state is RepairState.RESTORING:
        return None
    return _let_go(
        repair, f"{node} no longer carries our cordon: somebody else took it off. Nothing more is done to it"
    )


def _uncordoned(repair: Repair, observed: NodeObservation) -> Move | None:
    """Our mark without its cordon: somebody took that off, and the rest goes too."""
    is_to_be_cordoned = repair.is_running and repair.state not in (RepairState.CORDONING, RepairState.RESTORING)
    if not is_to_be_cordoned or observed.is_schedulable is not True:
        return None
    return restore(RepairState.FAILED, f"Somebody has uncordoned {repair.node.node}; nothing more is done to it")


def _let_go(repair: Repair, why: str) -> Move:
    if repair.is_ended:
        return Move(MoveKind.LET_GO, why)
    return end(RepairState.FAILED, why, keeps_cordon=False)


def _step(repair: Repair, seen: MoveContext, now: datetime) -> Move:
    action = repair.action
    if seen.is_over and (over := _over(repair)) is not None:
        return over
    if action is None:
        # A node that could not be looked at may carry our cordon.
        mark_of = repair.incident if seen.observed is None else seen.mark_of
        return wait("the end of the incident") if undo(repair, mark_of) else end(RepairState.DONE, "Every step is done")
    if action.kind in BY_PERSON:
        return wait(f"a person: {action.kind} ({action.why})")
    if action.kind in BY_OTHERS:
        return Move(MoveKind.NEXT, "Its owner is told by [notify]")
    if action.kind is ActionKind.UNCORDON:
        return restore(RepairState.DONE, "Every step is done, and the node has passed")
    if action.kind in RECLAIMS:
        return _reclaim(repair, action, seen, now=now)
    if (late := _late(repair, seen, limit_seconds(repair, action), now=now)) is not None:
        return end(RepairState.FAILED, late)
    is_seen = seen.observed is not None and seen.observed.is_schedulable is not True
    if action.kind is ActionKind.CORDON and seen.mark_of is not None and is_seen:
        return Move(MoveKind.NEXT, f"{repair.node.node} is cordoned by us")
    if _pauses(repair, now):
        return wait(*repair.waits_for)
    if action.kind is ActionKind.VALIDATE:
        return _validate(seen)
    if seen.observed is None and action.kind is not ActionKind.CORDON:
        # Only a cordon looks for itself; whatever follows it needs to know that the node is still ours.
        return wait(f"a look at {repair.node.node}, which cannot be had now: the cluster does not answer")
    return Move(MoveKind.PERFORM, action.why, action=action)


def _reclaim(repair: Repair, action: Action, seen: MoveContext, *, now: datetime) -> Move:
    """The owner is told, has time, and keeps everything by using it; only what is idle to the end is taken."""
    used = next((one.text for one in seen.verdicts if one.state is CheckState.FAILED), None)
    if used is not None and not repair.has_acted:
        return end(RepairState.ROLLED_BACK, f"It is used again, and kept: {used}", keeps_cordon=False)
    if (late := _late(repair, seen, limit_seconds(repair, action), now=now)) is not None:
        return end(RepairState.FAILED if repair.has_acted else RepairState.ROLLED_BACK, late)
    if _pauses(repair, now):
        return wait(*repair.waits_for)
    told_at = warned_at(repair)
    if action.kind is ActionKind.WARN_OWNER and told_at is not None:
        # A hub that was away begins the time anew: nobody looked whether it was used meanwhile.
        waits = durations.parse_seconds(action.arguments.get("wait", USUAL_WAIT))
        until = max(told_at, repair.since) + timedelta(seconds=waits)
        if now < until:
            return wait(f"its owner, who was told and has until {until:%H:%M}Z to use it again")
    idle = [one.text for one in seen.verdicts if one.state is CheckState.PASSED]
    if not idle and not repair.has_acted:
        return wait(*(f"{one.check}: {one.text}" for one in seen.verdicts))
    if action.kind is ActionKind.WARN_OWNER and told_at is not None:
        return Move(MoveKind.NEXT, f"Nobody used it: {idle[0]}")
    if seen.observed is None:
        return wait(f"a look at {repair.node.node}, which cannot be had now: the cluster does not answer")
    return Move(MoveKind.PERFORM, action.why, action=action)


def warned_at(repair: Repair) -> datetime | None:
    """When the owner of what is to be taken back was told."""
    told = (one.at for one in repair.receipts if one.action.kind is ActionKind.WARN_OWNER and one.result is Result.DONE)
    return next(told, None)


def _over(repair: Repair) -> Move | None:
    """The incidents ended while we were at it: undo what was done, unless it is what ended them."""
    action = repair.action
    if action is None or action.kind in BY_PERSON:
        return restore(RepairState.DONE, "The incident is over")
    if repair.has_acted or repair.state is RepairState.VALIDATING:
        return None
    if repair.is_reclaim:
        return restore(RepairState.ROLLED_BACK, "The incident is over: it is used again or was given back, and is kept")
    return restore(RepairState.ROLLED_BACK, "The incident was over before the repair: what was done is undone")


def _validate(seen: MoveContext) -> Move:
    """Unknown is not passed; what has failed for good does not come right by waiting."""
    failed = [one for one in seen.verdicts if one.state is CheckState.FAILED]
    if failed:
        return end(RepairState.FAILED, f"Validation failed: {failed[0].check}: {failed[0].text}")
    missing = [one for one in seen.verdicts if one.state is CheckState.UNKNOWN]
    if missing or not seen.verdicts:
        return wait(*(f"{one.check}: {one.text}" for one in missing)) if missing else wait("its checks")
    return Move(MoveKind.NEXT, "; ".join(f"{one.check}: {one.text}" for one in seen.verdicts))


def _restoring(repair: Repair, seen: MoveContext, now: datetime) -> Move:
    outcome = repair.outcome or RepairState.DONE
    left = undo(repair, seen.mark_of if seen.observed is not None else repair.incident)
    if not left:
        return end(outcome, repair.reason, keeps_cordon=False)
    if (late := _late(repair, seen, RESTORE_LIMIT_SECONDS, now=now)) is not None:
        return end(RepairState.FAILED, late)
    if _pauses(repair, now):
        return wait(*repair.waits_for)
    return Move(MoveKind.PERFORM, left[0].why, action=left[0])


def _held(repair: Repair, seen: MoveContext, now: datetime) -> Move:
    if not seen.is_over:
        return wait("the end of the incident")
    if _pauses(repair, now):
        return wait("another try")
    if repair.has_acted and validate_step(repair) is not None:
        return enter(RepairState.VALIDATING, "The incident is over: the node is validated before it is given back")
    return restore(RepairState.ROLLED_BACK, "The incident is over: what was done is undone")


def _pauses(repair: Repair, now: datetime) -> bool:
    # A pause that seems longer was set before the clock was put back.
    longest = timedelta(seconds=PAUSES.longest_seconds)
    return repair.retry_at is not None and timedelta() < repair.retry_at - now <= longest


def _late(repair: Repair, seen: MoveContext, limit: float, *, now: datetime) -> str | None:
    took = (now - max(repair.since, seen.watched_since or repair.since)).total_seconds()
    if took <= limit:
        return None
    waits = f", waiting for {', '.join(repair.waits_for[:5])}" if repair.waits_for else ""
    what = repair.state if repair.state is RepairState.RESTORING or repair.action is None else repair.action.kind
    return f"{what} took {took:.0f} s, the limit is {limit:.0f} s{waits}"


def limit_seconds(repair: Repair, action: Action) -> float:
    return repair.limit_seconds.get(action.id, USUAL_LIMIT_SECONDS)


def validate_step(repair: Repair) -> int | None:
    return next((at for at, one in enumerate(repair.actions) if one.kind is ActionKind.VALIDATE), None)


def undo(repair: Repair, mark_of: IncidentId | None) -> list[Action]:
    """What is to be taken back, the cordon last; `mark_of` is the incident whose mark is on the node."""
    done = {receipt.action.id for receipt in repair.receipts if receipt.result is Result.DONE}
    begun = repair.action.id if repair.is_begun and repair.action is not None else None
    changed = [one for one in repair.actions if one.kind in REVERSIBLE and (one.id in done or one.id == begun)]
    found = [
        replace(one, id=ActionId(f"undo-{one.id}"), why="It is over", arguments={"restore": "default"})
        for one in changed
    ]
    if repair.has_cordon and mark_of is not None:
        planned = next((one for one in repair.actions if one.kind is ActionKind.UNCORDON), None)
        id = planned.id if planned is not None else ActionId(f"{_attempt(repair)}undo-cordon")
        why = planned.why if planned is not None else "Nothing of ours stays on a node that is not under repair"
        found.append(Action(id, ActionKind.UNCORDON, repair.node, mark_of, why))
    return [one for one in found if one.id not in repair.undone]


def _attempt(repair: Repair) -> str:
    """The prefix of this attempt's action ids, so that an earlier attempt's call is never taken for ours."""
    number = repair.id.rpartition(".")[2]
    return "" if number == "1" else f"{number}."
