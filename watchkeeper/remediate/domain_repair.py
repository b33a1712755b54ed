"""Decide the next transition of a repair that changes every node of a rack or another failure domain. Pure.

`repairs` calls it instead of `transitions.decide_transition` for the steps of such a repair. A node that cannot be
changed is skipped, because it must not keep the others hot; what was changed is undone when the rack is cool.
"""

from __future__ import annotations

from datetime import datetime

from watchkeeper.model.actions import Action, ActionKind
from watchkeeper.model.repairs import MANUAL_KINDS, Repair, RepairState
from watchkeeper.remediate import transitions
from watchkeeper.remediate.drivers.cluster_driver import describe_manual_command
from watchkeeper.remediate.transitions import Transition, TransitionContext, TransitionKind, restore, wait
from watchkeeper.remediate.validation import CheckState


def decide_transition(repair: Repair, context: TransitionContext, now: datetime) -> Transition:
    is_halted = context.is_stopped or repair.stopped_by is not None
    if is_halted or not repair.is_running or repair.state is RepairState.RESTORING:
        return transitions.decide_transition(repair, context, now)
    if context.is_resolved and not repair.is_begun:
        return _decide_resolved(context)
    action = repair.action
    if action is None or action.kind in MANUAL_KINDS:
        return _decide_waiting(repair, action)
    if (skip := _skip_reason(repair, action, context)) is not None:
        return Transition(TransitionKind.NEXT, f"{action.place.node} is skipped: {skip}", skips=True)
    if action.kind is ActionKind.CORDON:
        if context.marked_incident is not None and _is_cordoned(context):
            return Transition(TransitionKind.NEXT, f"{action.place.node} is cordoned by Watchkeeper")
        if context.refusal is not None:
            return wait(f"{action.place.node} is not drained yet: refused by {context.refusal}")
    if repair.is_begun:
        timeout = transitions.timeout_text(repair, context, transitions.limit_seconds(repair, action), now=now)
        if timeout is not None:
            return Transition(TransitionKind.NEXT, f"{action.place.node} is skipped: {timeout}", skips=True)
    if transitions.is_backing_off(repair, now):
        return wait(*repair.waits_for)
    if context.observed is None and action.kind is not ActionKind.LOWER_POWER:
        return wait(f"the state of {action.place.node} is unknown: the cluster does not answer")
    return Transition(TransitionKind.PERFORM, action.why, action=action)


def _decide_resolved(context: TransitionContext) -> Transition:
    """Undo everything only when the rack has been cool for some time: at full power it may heat up again."""
    result = next(iter(context.check_results), None)
    if result is None or result.state is not CheckState.PASSED:
        return wait("the fault has ended" if result is None else f"until it is cool: {result.text}")
    return restore(RepairState.DONE, f"The fault has ended: {result.text}")


def _decide_waiting(repair: Repair, action: Action | None) -> Transition:
    caps = [step for step in repair.actions if step.kind is ActionKind.LOWER_POWER]
    capped = [step for step in caps if repair.may_have_run(step)]
    if caps and not capped:
        skipped = next((receipt.text for receipt in repair.receipts), "no node answered")
        problem = f"0 of {len(caps)} nodes of {repair.node_name} could lower their power limit, 1 is needed: {skipped}"
        return restore(RepairState.FAILED, problem)
    progress = f"{len(capped)} of {len(caps)} nodes have the lower power limit; {len(repair.nodes_out)} are cordoned"
    if action is None:
        return wait(f"{progress}; the fault has not ended")
    return wait(f"{progress}; {describe_manual_command(action)} ({action.why})")


def _skip_reason(repair: Repair, action: Action, context: TransitionContext) -> str | None:
    """Return why this node is not changed: it is gone, other people work on it, or it is not cordoned by us."""
    observed, is_drain = context.observed, action.kind is ActionKind.DRAIN
    if observed is None:
        return None
    if not observed.exists:
        return "it no longer exists"
    if observed.maintained_by and not repair.is_begun:
        return f"it is maintained by {', '.join(observed.maintained_by[:3])}"
    if context.marked_incident is None and action.kind is ActionKind.CORDON and _is_cordoned(context):
        return f"it is already cordoned by {observed.cordoned_by or 'another user'}"
    if is_drain and not (context.marked_incident == repair.incident and _is_cordoned(context)):
        return "it has no cordon of this repair"
    return None


def _is_cordoned(context: TransitionContext) -> bool:
    return context.observed is not None and context.observed.is_schedulable is False
