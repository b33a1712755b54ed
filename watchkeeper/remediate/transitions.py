"""Decide the next transition of a repair from its state, what was observed, and the time. Pure.

`repairs` observes the node, calls `decide_transition`, and applies the result; nothing else decides. Every end of a
repair is decided here: done, failed with a reason, or rolled back because nothing is left to repair or because another
user maintains the node.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from watchkeeper.kit import backoff, durations
from watchkeeper.model import repairs
from watchkeeper.model.actions import Action, ActionId, ActionKind, Result
from watchkeeper.model.fleet import Place
from watchkeeper.model.incidents import IncidentId
from watchkeeper.model.repairs import MANUAL_KINDS, NOTIFY_KINDS, RECLAIM_KINDS, WAITING, Repair, RepairState
from watchkeeper.model.trust import Mode
from watchkeeper.remediate.driver import NodeObservation
from watchkeeper.remediate.drivers.cluster_driver import describe_manual_command
from watchkeeper.remediate.policy import DEFAULT_LIMIT_SECONDS
from watchkeeper.remediate.validation import CheckResult, CheckState

MARK_PREFIX = "watchkeeper:"
# Steps on the machine that are undone when the repair ends.
REVERSIBLE = frozenset({ActionKind.LOWER_POWER})
# The time limit of a warning without `wait`.
DEFAULT_WAIT = "1h"
# A failed uncordon is retried as long as the node has our mark.
RESTORE_LIMIT_SECONDS = 600.0
RETRY_BACKOFF = backoff.Backoff(1.0, 60.0)
# A repair whose last change is further in the future was changed before the clock was set back.
MAX_CLOCK_STEP = timedelta(minutes=1)


class TransitionKind(StrEnum):
    WAIT = "wait"
    ENTER = "enter"
    PERFORM = "perform"
    NEXT = "next"
    END = "end"
    # The node no longer has our cordon; the state of the repair stays.
    RELEASE = "release"


@dataclass(frozen=True, slots=True)
class Transition:
    kind: TransitionKind
    why: str = ""
    state: RepairState | None = None
    action: Action | None = None
    # The node may still have our cordon afterwards.
    keeps_cordon: bool = True
    # The final state, once restoring is done.
    outcome: RepairState | None = None
    waits_for: tuple[str, ...] = ()
    # The current step is not made on its node, and the repair continues.
    skips: bool = False


@dataclass(frozen=True, slots=True)
class TransitionContext:
    """The inputs of a decision; None where the cluster did not answer or was not read."""

    observed: NodeObservation | None = None
    # The incident of our cordon on the node; None: the node has no cordon of ours.
    marked_incident: IncidentId | None = None
    # All incidents that share the repair are resolved, or recovering until it ends.
    is_resolved: bool = False
    is_stopped: bool = False
    # The first refusal of a guard, before the repair starts, or before the next node of a rack is cordoned.
    refusal: str | None = None
    check_results: tuple[CheckResult, ...] = ()
    # Whether the node has booted since its reboot began; None if no source reports its boots.
    boot: CheckResult | None = None
    # Time before the start of this hub does not count towards a step's time limit.
    hub_started_at: datetime | None = None


def read_marked_incident(mark: str | None) -> IncidentId | None:
    """Return the incident in a mark on a node; None if the mark is not Watchkeeper's."""
    if mark is None or not mark.startswith(MARK_PREFIX) or "/" not in mark:
        return None
    return IncidentId(mark.removeprefix(MARK_PREFIX).partition("/")[0])


def wait(*waits_for: str) -> Transition:
    return Transition(TransitionKind.WAIT, "; ".join(waits_for), waits_for=tuple(text for text in waits_for if text))


def enter(state: RepairState, why: str) -> Transition:
    return Transition(TransitionKind.ENTER, why, state)


def restore(outcome: RepairState, why: str) -> Transition:
    return Transition(TransitionKind.ENTER, why, RepairState.RESTORING, outcome=outcome)


def end(state: RepairState, why: str, *, keeps_cordon: bool = True) -> Transition:
    return Transition(TransitionKind.END, why, state, keeps_cordon=keeps_cordon)


def decide_transition(repair: Repair, context: TransitionContext, now: datetime) -> Transition:
    if context.is_stopped:
        return wait("repairs are halted")
    if repair.state in WAITING and context.is_resolved:
        return end(RepairState.ROLLED_BACK, "The fault ended before any change", keeps_cordon=False)
    if repair.state is RepairState.PLANNED:
        if repair.mode is Mode.ACT:
            return enter(RepairState.APPROVED, repair.mode_why)
        return wait("approval" if repair.mode is Mode.ASK else "Manual: the mode is suggest")
    if repair.state is RepairState.APPROVED:
        return _decide_approved(repair, context, now)
    if repair.is_running or repair.keeps_cordon:
        ownership_change = None if repair.is_of_domain else _check_ownership(repair, context)
        if ownership_change is not None:
            return ownership_change
        if repair.stopped_by is not None:
            return wait(f"stopped by {repair.stopped_by}: {repair.stopped_why}")
        if repair.state is RepairState.RESTORING:
            return _decide_restoring(repair, context, now)
        return _decide_failed(repair, context, now) if repair.keeps_cordon else _decide_step(repair, context, now)
    return wait("the repair has ended")


def _decide_approved(repair: Repair, context: TransitionContext, now: datetime) -> Transition:
    if repair.approved_until is not None and now > repair.approved_until:
        return enter(RepairState.PLANNED, f"The approval by {repair.approved_by} expired")
    if repair.approved_until is not None and repair.since - now > MAX_CLOCK_STEP:
        reason = f"The clock was set back: the approval by {repair.approved_by} may have expired"
        return enter(RepairState.PLANNED, reason)
    if context.refusal is not None:
        return wait(context.refusal)
    return enter(state_for_action(repair.action), f"Approved by {repair.approved_by}; no guard refuses")


def state_for_action(action: Action | None) -> RepairState:
    return RepairState.ACTING if action is None else repairs.STATE_OF_KIND.get(action.kind, RepairState.ACTING)


def _check_ownership(repair: Repair, context: TransitionContext) -> Transition | None:
    """Return how to end a repair whose node was removed, or is maintained or uncordoned by another user."""
    observed = context.observed
    if observed is None:
        return None
    node, is_early = repair.node.node, repair.state is RepairState.CORDONING
    if not observed.exists:
        return _release(repair, f"{node} no longer exists: nothing is left to repair or uncordon")
    if None not in (repair.incarnation, observed.incarnation) and repair.incarnation != observed.incarnation:
        return _release(repair, f"{node} was replaced by another machine with the same name: the repair ends")
    is_undoable = repair.is_running and not repair.has_acted and repair.state is not RepairState.RESTORING
    if observed.maintained_by and is_undoable:
        return restore(RepairState.ROLLED_BACK, f"{node} is maintained by {', '.join(observed.maintained_by[:3])}")
    if context.marked_incident is not None:
        return _check_still_cordoned(repair, observed)
    # The node has no cordon of ours (any more); a cordon of another user may name its owner, or not.
    if is_early and observed.is_schedulable is False:
        owner = observed.cordoned_by or "another user"
        return end(RepairState.ROLLED_BACK, f"{node} is already cordoned by {owner}", keeps_cordon=False)
    if is_early or not repair.has_cordon or repair.state is RepairState.RESTORING:
        return None
    return _release(repair, f"Our cordon of {node} was removed by another user: the repair ends")


def _check_still_cordoned(repair: Repair, observed: NodeObservation) -> Transition | None:
    """End a repair whose node has our mark but was uncordoned by another user."""
    is_to_be_cordoned = repair.is_running and repair.state not in (RepairState.CORDONING, RepairState.RESTORING)
    if not is_to_be_cordoned or observed.is_schedulable is not True:
        return None
    return restore(RepairState.FAILED, f"{repair.node.node} was uncordoned by another user: the repair ends")


def _release(repair: Repair, why: str) -> Transition:
    if repair.is_ended:
        return Transition(TransitionKind.RELEASE, why)
    return end(RepairState.FAILED, why, keeps_cordon=False)


def _decide_step(repair: Repair, context: TransitionContext, now: datetime) -> Transition:
    action = repair.action
    if context.is_resolved and (after_resolution := _decide_after_resolution(repair)) is not None:
        return after_resolution
    if action is None:
        # A node that could not be observed may have our cordon.
        marked_incident = repair.incident if context.observed is None else context.marked_incident
        has_pending = bool(pending_undo_actions(repair, marked_incident))
        return wait("the fault has not ended") if has_pending else end(RepairState.DONE, "All steps are done")
    if action.kind in MANUAL_KINDS:
        return wait(f"{describe_manual_command(action)} ({action.why})")
    if action.kind in NOTIFY_KINDS:
        return Transition(TransitionKind.NEXT, "[notify] notifies its owner")
    if action.kind is ActionKind.UNCORDON:
        return restore(RepairState.DONE, "All steps are done; the node passed validation")
    if action.kind in RECLAIM_KINDS:
        return _decide_reclaim(repair, action, context, now=now)
    if (timeout := timeout_text(repair, context, limit_seconds(repair, action), now=now)) is not None:
        return end(RepairState.FAILED, timeout)
    is_observed_cordoned = context.observed is not None and context.observed.is_schedulable is not True
    if action.kind is ActionKind.CORDON and context.marked_incident is not None and is_observed_cordoned:
        return Transition(TransitionKind.NEXT, f"{repair.node.node} is cordoned by Watchkeeper")
    if is_backing_off(repair, now):
        return wait(*repair.waits_for)
    if action.kind is ActionKind.VALIDATE:
        return _decide_validation(context)
    if is_booting(repair):
        return _decide_boot(repair, context)
    if context.observed is None and action.kind is not ActionKind.CORDON:
        # A cordon reads the node itself; all later steps need to know that the node still has our cordon.
        return wait(f"the state of {repair.node.node} is unknown: the cluster does not answer")
    return Transition(TransitionKind.PERFORM, action.why, action=action)


def _decide_reclaim(repair: Repair, action: Action, context: TransitionContext, *, now: datetime) -> Transition:
    """Warn the owner, wait, and reclaim only what stayed idle; any use ends the repair."""
    use = next((result.text for result in context.check_results if result.state is CheckState.FAILED), None)
    if use is not None and not repair.has_acted:
        return end(RepairState.ROLLED_BACK, f"In use again, not reclaimed: {use}", keeps_cordon=False)
    if (timeout := timeout_text(repair, context, limit_seconds(repair, action), now=now)) is not None:
        return end(RepairState.FAILED if repair.has_acted else RepairState.ROLLED_BACK, timeout)
    if is_backing_off(repair, now):
        return wait(*repair.waits_for)
    owner_warned_at = warned_at(repair)
    if action.kind is ActionKind.WARN_OWNER and owner_warned_at is not None:
        # After a restart the wait starts again, because use was not checked meanwhile.
        wait_seconds = durations.parse_seconds(action.arguments.get("wait", DEFAULT_WAIT))
        until = max(owner_warned_at, repair.since) + timedelta(seconds=wait_seconds)
        if now < until:
            return wait(f"the owner was warned and has until {until:%H:%M}Z to use it again")
    idle_texts = [result.text for result in context.check_results if result.state is CheckState.PASSED]
    if not idle_texts and not repair.has_acted:
        return wait(*(result.text for result in context.check_results))
    if action.kind is ActionKind.WARN_OWNER and owner_warned_at is not None:
        return Transition(TransitionKind.NEXT, f"Still idle: {idle_texts[0]}")
    if context.observed is None:
        return wait(f"the state of {repair.node.node} is unknown: the cluster does not answer")
    return Transition(TransitionKind.PERFORM, action.why, action=action)


def warned_at(repair: Repair) -> datetime | None:
    for receipt in repair.receipts:
        if receipt.action.kind is ActionKind.WARN_OWNER and receipt.result is Result.DONE:
            return receipt.at
    return None


def _decide_after_resolution(repair: Repair) -> Transition | None:
    """Undo the changes if the incidents were resolved during the repair, unless a step on the machine resolved them."""
    action = repair.action
    if action is None or action.kind in MANUAL_KINDS:
        return restore(RepairState.DONE, "The fault has ended")
    if repair.has_acted or repair.state is RepairState.VALIDATING:
        return None
    if repair.is_reclaim:
        return restore(RepairState.ROLLED_BACK, "The fault has ended: the GPU is in use again or was released")
    return restore(RepairState.ROLLED_BACK, "The fault ended before the repair: its changes are undone")


def is_booting(repair: Repair) -> bool:
    """Whether the reboot of the current step was ordered: it is done when the boot is observed."""
    action = repair.action
    is_reboot = repair.is_running and action is not None and action.kind is ActionKind.REBOOT
    return is_reboot and any(receipt.action == action and receipt.result is Result.DONE for receipt in repair.receipts)


def reboot_began_at(repair: Repair) -> datetime:
    """Return a time shortly before the reboot of the current step: the end of the step before."""
    return max(
        (receipt.at for receipt in repair.receipts if receipt.action != repair.action),
        default=repair.started_at or repair.made_at,
    )


def _decide_boot(repair: Repair, context: TransitionContext) -> Transition:
    if context.boot is None:
        text = f"The reboot was ordered; no source of this hub reports when {repair.node_name} boots"
        return Transition(TransitionKind.NEXT, text)
    if context.boot.state is CheckState.PASSED:
        return Transition(TransitionKind.NEXT, context.boot.text)
    return wait(context.boot.text)


def _decide_validation(context: TransitionContext) -> Transition:
    """Pass only if every check passed; wait while one is unknown, fail if one failed."""
    failed = [result for result in context.check_results if result.state is CheckState.FAILED]
    if failed:
        return end(RepairState.FAILED, f"Validation failed: {failed[0]}")
    unknown = [result for result in context.check_results if result.state is CheckState.UNKNOWN]
    if unknown or not context.check_results:
        return wait(*(result.text for result in unknown)) if unknown else wait("no check has a result yet")
    return Transition(TransitionKind.NEXT, "; ".join(map(str, context.check_results)))


def _decide_restoring(repair: Repair, context: TransitionContext, now: datetime) -> Transition:
    outcome = repair.outcome or RepairState.DONE
    marked_incident = context.marked_incident if context.observed is not None else repair.incident
    pending = pending_undo_actions(repair, repair.incident if repair.is_of_domain else marked_incident)
    if not pending:
        return end(outcome, repair.reason, keeps_cordon=False)
    if (timeout := timeout_text(repair, context, RESTORE_LIMIT_SECONDS, now=now)) is not None:
        return end(RepairState.FAILED, timeout)
    if is_backing_off(repair, now):
        return wait(*repair.waits_for)
    return Transition(TransitionKind.PERFORM, pending[0].why, action=pending[0])


def _decide_failed(repair: Repair, context: TransitionContext, now: datetime) -> Transition:
    if not context.is_resolved:
        return wait("the fault has not ended")
    if is_backing_off(repair, now):
        return wait("a retry is pending")
    if repair.has_acted and find_validate_step(repair) is not None:
        return enter(RepairState.VALIDATING, "The fault has ended: the node is validated before it is uncordoned")
    return restore(RepairState.ROLLED_BACK, "The fault has ended: the changes are undone")


def is_backing_off(repair: Repair, now: datetime) -> bool:
    # A longer delay was set before the clock was set back.
    longest = timedelta(seconds=RETRY_BACKOFF.longest_seconds)
    return repair.retry_at is not None and timedelta() < repair.retry_at - now <= longest


def timeout_text(repair: Repair, context: TransitionContext, limit: float, *, now: datetime) -> str | None:
    elapsed_seconds = (now - max(repair.since, context.hub_started_at or repair.since)).total_seconds()
    if elapsed_seconds <= limit:
        return None
    blockers = f"; blocked on: {', '.join(repair.waits_for[:5])}" if repair.waits_for else ""
    activity = repair.state if repair.state is RepairState.RESTORING or repair.action is None else repair.action.kind
    return f"{activity} timed out after {elapsed_seconds:.0f} s, the limit is {limit:.0f} s{blockers}"


def limit_seconds(repair: Repair, action: Action) -> float:
    return repair.limit_seconds.get(action.id, DEFAULT_LIMIT_SECONDS)


def _pending_domain_undo(repair: Repair) -> list[Action]:
    """Return what undoes each step on each node of a rack; nodes whose undoing failed come last."""
    undo_kinds = {ActionKind.LOWER_POWER: ActionKind.LOWER_POWER, ActionKind.CORDON: ActionKind.UNCORDON}
    undo_actions = [
        replace(
            action,
            id=ActionId(f"undo-{action.id}"),
            kind=undo_kinds[action.kind],
            why="The repair has ended",
            arguments={"restore": "default"} if action.kind in REVERSIBLE else {},
        )
        for action in repair.actions
        if action.kind in undo_kinds and repair.may_have_run(action)
    ]
    failed = [receipt.action.id for receipt in repair.receipts if receipt.result is Result.FAILED]
    pending = [action for action in undo_actions if action.id not in repair.undone]
    return sorted(pending, key=lambda action: failed.index(action.id) + 1 if action.id in failed else 0)


def changed_node(repair: Repair) -> Place:
    """Return the node that the next call changes; of a rack it is another one for each step."""
    if not repair.is_of_domain:
        return repair.node
    pending = pending_undo_actions(repair, repair.incident) if repair.state is RepairState.RESTORING else []
    action = pending[0] if pending else repair.action
    return repair.node if action is None else action.place


def find_validate_step(repair: Repair) -> int | None:
    return next((index for index, action in enumerate(repair.actions) if action.kind is ActionKind.VALIDATE), None)


def pending_undo_actions(repair: Repair, marked_incident: IncidentId | None) -> list[Action]:
    """Return the actions that undo the repair, the uncordon last; `marked_incident` is the one of the node's mark."""
    if repair.is_of_domain:
        return _pending_domain_undo(repair)
    done = {receipt.action.id for receipt in repair.receipts if receipt.result is Result.DONE}
    begun_id = repair.action.id if repair.is_begun and repair.action is not None else None
    undo_actions = [
        replace(action, id=ActionId(f"undo-{action.id}"), why="The repair has ended", arguments={"restore": "default"})
        for action in repair.actions
        if action.kind in REVERSIBLE and (action.id in done or action.id == begun_id)
    ]
    if repair.has_cordon and marked_incident is not None:
        planned = next((action for action in repair.actions if action.kind is ActionKind.UNCORDON), None)
        # Action ids of this attempt are never those of an earlier attempt.
        number = repair.id.rpartition(".")[2]
        undo_id = ActionId("undo-cordon" if number == "1" else f"{number}.undo-cordon")
        uncordon_id = planned.id if planned is not None else undo_id
        why = planned.why if planned is not None else "The repair has ended"
        undo_actions.append(Action(uncordon_id, ActionKind.UNCORDON, repair.node, marked_incident, why))
    return [action for action in undo_actions if action.id not in repair.undone]
