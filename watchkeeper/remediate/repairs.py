"""Create repairs from plans, decide what they do next, and make the calls.

The hub owns one `Repairs`. It submits what plans propose (`submit`), asks every second which repairs are due (`sweep`),
and advances each of those in a thread (`advance`). Decisions are made under one lock, so that two repairs never take
the last place of a budget; calls are made outside the lock, one at a time for each node.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import datetime, timedelta

from watchkeeper.errors import ActionFailed, ActionRefused, InvalidTransition, WatchkeeperError
from watchkeeper.kit.logs import fields
from watchkeeper.model import actions, events, fleet, incidents, trust
from watchkeeper.model.repairs import RECLAIM_KINDS, WAITING, Repair, RepairId, RepairState
from watchkeeper.remediate import domain_repair, guards, progress, transitions, validation
from watchkeeper.remediate.driver import NodeObservation
from watchkeeper.remediate.proposal import RepairProposal, build_request
from watchkeeper.remediate.registry import AUDIT_ENTRY, INVENTORY_MAX_AGE, MAX_STARTS, TIMELINE_ENTRY, RepairRegistry
from watchkeeper.remediate.transitions import Transition, TransitionContext, TransitionKind, decide_transition
from watchkeeper.remediate.trust_rules import MODES_WITHOUT_CHANGES
from watchkeeper.store.journal.journal import HUB

log = logging.getLogger(__name__)

POLICY = "policy"
# How often a node is observed in these states; in all others at every sweep.
CHECK_INTERVALS = {
    RepairState.FAILED: timedelta(seconds=30),
    RepairState.WARNING: timedelta(seconds=30),
    RepairState.VALIDATING: timedelta(seconds=5),
    RepairState.ACTING: timedelta(seconds=2),
}
FRESH_PERIOD = timedelta(seconds=1)
MAX_COUNTED_NODES = 50_000
# Repairs that wait, run or keep a cordon: as many as a hub has open incidents.
MAX_ACTIVE_REPAIRS = 20_000


class Repairs(RepairRegistry):
    # Proposals of plans

    def submit(self, proposal: RepairProposal, now: datetime) -> Repair | None:
        """Create the repair that a plan proposes, or share the node's current repair; None: nothing changed."""
        with self.transaction(now):
            self._open_incidents.add(proposal.incident)
            kept_cordon, current = self._find_kept_cordon(proposal.node), self._find_conflict(proposal)
            if kept_cordon is not None and kept_cordon.openings.get(proposal.incident) != proposal.opening:
                self._join(kept_cordon, proposal, now)
            if current is not None:
                return self._merge(current, proposal, now)
            if self._was_attempted(proposal) or len(self._active) >= MAX_ACTIVE_REPAIRS:
                return None
            return self._create(proposal, now)

    def start_another(self, proposal: RepairProposal, now: datetime) -> Repair:
        """Start another attempt after earlier ones ended; InvalidTransition while one waits or runs."""
        current = self._find_conflict(proposal)
        if current is not None:
            raise InvalidTransition(
                f"{current.id} is {current.state} on {current.node_name}", where=proposal.incident, now=current.reason
            )
        self._open_incidents.add(proposal.incident)
        return self._create(proposal, now)

    def _create(self, proposal: RepairProposal, now: datetime) -> Repair:
        previous = self._dependencies.journal.repairs_of(proposal.incident, limit=1)
        attempt = 1 + max((int(repair.id.rpartition(".")[2]) for repair in previous), default=0)
        repair = progress.new_repair(proposal, attempt, now)
        self.save(repair, now, text=f"{repair.id} for {repair.node_name}: {proposal.allowed.why}")
        # The breaker counts repairs of faulty nodes; a reclaim says nothing about faults.
        if proposal.mode is not trust.Mode.SUGGEST and not proposal.is_reclaim:
            self._count_request(proposal.node, now)
        return self.decide(repair, now)

    def _count_request(self, node: fleet.Place, now: datetime) -> None:
        """Count the request, and trip the circuit breaker if too many nodes need a repair at once."""
        if len(self._requested_at) >= MAX_COUNTED_NODES:
            self._requested_at.clear()
        self._requested_at[node] = now
        if self.switch.is_tripped:
            return
        limits, since = self._dependencies.limits, self.switch.reset_at
        trip_reason = guards.breaker_trip_reason(self._requested_at, limits, since=since, now=now)
        if trip_reason is not None:
            log.error("circuit breaker tripped", extra=fields(reason=trip_reason))
            tripped = replace(self.switch, tripped_at=now, tripped_why=trip_reason)
            self.save_switch(tripped, now, actor=HUB, text=f"Tripped: {trip_reason}")

    def _merge(self, current: Repair, proposal: RepairProposal, now: datetime) -> Repair | None:
        """Share the node's current repair with a new incident, or update its plan while the repair waits."""
        if current.openings.get(proposal.incident) != proposal.opening:
            text = f"{current.id} is already repairing {current.node_name}: this incident shares it"
            self._add_timeline_entry(proposal.incident, text, now)
            return self._join(current, proposal, now)
        is_unchanged = (current.digest, current.mode) == (proposal.digest, proposal.mode)
        if current.incident != proposal.incident or current.state not in WAITING or is_unchanged:
            return None
        changed = progress.replan(current, proposal, now)
        why = "The plan changed" if current.digest != proposal.digest else proposal.allowed.why
        self.save(changed, now, text=f"{why}: {' → '.join(step.kind for step in changed.actions)}")
        return self.decide(changed, now)

    def _join(self, repair: Repair, proposal: RepairProposal, now: datetime) -> Repair:
        joined = replace(repair, openings={**repair.openings, proposal.incident: proposal.opening})
        return self.save(joined, now, text=f"{proposal.incident} shares this repair", kind=AUDIT_ENTRY)

    def _was_attempted(self, proposal: RepairProposal) -> bool:
        """Whether the incident had its repair already, so that only a user can start another one.

        False if the incident was reopened since, or if all its faults are newer than the last repair: those are new
        faults. A fault that lasts is not a new one; the guard of attempts limits the repairs of new ones.
        """
        past = self._dependencies.journal.repairs_at(proposal.node)
        last = next((repair for repair in past if repair.openings.get(proposal.incident, -1) >= proposal.opening), None)
        if last is None or last.state is not RepairState.DONE or last.ended_at is None:
            return last is not None
        returned_at = last.ended_at
        return all(self._received_at(fault) <= returned_at for fault in proposal.faults)

    def _received_at(self, fault: incidents.Member) -> datetime:
        """Return when the hub received a fault: the clock of a node may be minutes off."""
        event = self._dependencies.journal.event(fault.ref) if fault.kind is incidents.MemberKind.EVENT else None
        return fault.since if event is None or event.received_at is None else event.received_at

    # Periodic decisions

    def sweep(self, now: datetime) -> list[RepairId]:
        """Decide about waiting repairs, and return the repairs to advance now."""
        if self.switch.is_stopped:
            return []
        with self._lock:
            self._count_inventory(now, INVENTORY_MAX_AGE)
        stray = self._remove_stray_cordons(now)
        with self.transaction(now):
            self._open_incidents = self._dependencies.journal.open_incident_ids(with_recovering=False)
            for repair in sorted(self._active.values(), key=lambda repair: repair.made_at):
                if repair.state in WAITING:
                    self.decide(repair, now)
                elif repair.is_running and (reset_reason := self._timer_reset_reason(repair, now)):
                    text = f"{reset_reason}: the time limit of the step starts again"
                    self.save(progress.resume(repair, now), now, text=text, kind=AUDIT_ENTRY)
            self._has_swept = True
            return [*stray, *(repair.id for repair in self._active.values() if self._is_due(repair, now))]

    def _timer_reset_reason(self, repair: Repair, now: datetime) -> str | None:
        """Return why the time limit of the current step starts again, or None."""
        if repair.since - now > transitions.MAX_CLOCK_STEP:
            return "The clock was set back"
        # The hub could not call while it was down; checks keep their start, the end of the step before.
        is_call = repair.is_begun and repair.state is not RepairState.VALIDATING
        return "The hub restarted" if is_call and not self._has_swept else None

    def _is_due(self, repair: Repair, now: datetime) -> bool:
        if not (repair.is_running or repair.keeps_cordon):
            return False
        last_check, interval = self._checked_at.get(repair.id), CHECK_INTERVALS.get(repair.state, timedelta())
        return last_check is None or not timedelta() <= now - last_check < interval

    def decide(self, repair: Repair, now: datetime) -> Repair:
        """Make all transitions of a waiting repair that need no call: approve, start, expire, end."""
        mode_decision = self._dependencies.current_mode(repair) if repair.state in WAITING else None
        if mode_decision is not None and mode_decision.is_below(repair.mode):
            repair = self.save(
                progress.lower_mode(repair, mode_decision, now), now, text=f"The mode was lowered: {mode_decision.why}"
            )
        while repair.state in WAITING:
            refusal = self._find_refusal(repair, now) if repair.state is RepairState.APPROVED else None
            context = TransitionContext(
                is_resolved=self._is_resolved(repair),
                is_stopped=self.switch.is_stopped,
                refusal=None if refusal is None else refusal.text,
            )
            transition = decide_transition(repair, context, now)
            if transition.kind is TransitionKind.WAIT:
                return self._record_refusal(repair, refusal, now)
            repair = self._apply(repair, transition, context, now=now)
        return repair

    def _find_refusal(self, repair: Repair, now: datetime) -> guards.GuardRefusal | None:
        request, limits = build_request(repair), self._dependencies.limits
        # Check the switch first: while repairs are halted, thousands may wait, and none needs a count of the fleet.
        empty = guards.FleetAvailability({}, {}, switch=self.switch)
        for name in ("stop", "breaker"):
            if (text := guards.GUARDS[name](guards.GuardInputs(request, empty, limits, now))) is not None:
                return guards.GuardRefusal(name, text)
        return next(iter(self.refusals(repair, now)), None)

    def _record_refusal(self, repair: Repair, refusal: guards.GuardRefusal | None, now: datetime) -> Repair:
        """Store a refusal once for each guard, and again after each approval."""
        if refusal is None or repair.reason.startswith(begins := f"Refused by {refusal.guard}: "):
            return repair
        refused = replace(repair, reason=begins + refusal.text)
        return self.save(refused, now, text=refused.reason)

    # Running repairs

    def advance(self, id: RepairId, now: datetime) -> datetime | None:
        """Observe the node and make one transition; return when the next may be due, None: `sweep` decides."""
        with self._lock:
            repair = self._active.get(id)
        if repair is None or not (repair.is_running or repair.keeps_cordon):
            return None
        if (blocker := self._mode_blocker(repair)) is not None:
            self._block(repair, blocker, now)
            return None
        with self._lock_repair(repair):
            is_fresh = id in self._uncalled and now - repair.since < FRESH_PERIOD
            context = self._read_context(repair, now)
            with self._lock:
                current = self._active.get(id)
                if current is None or self.switch.is_stopped or self._is_inconsistent:
                    return None
                if current != repair:
                    return now
                decide = domain_repair.decide_transition if current.is_of_domain else decide_transition
                transition = decide(current, context, now)
                self._checked_at[id] = now
                if transition.kind is TransitionKind.WAIT:
                    return self._record_wait(current, transition, now)
                # A transaction checks that this hub still leads. A first cordon has just had one; a second would wait
                # for other commits.
                action = transition.action
                if not is_fresh or action is None or progress.begin_action(current, action, now) != current:
                    with self.transaction(now):
                        current = self._apply(current, transition, context, now=now)
            if transition.kind is not TransitionKind.PERFORM:
                return now if current.is_running else None
            assert transition.action is not None
            return self._perform(current, transition.action, now)

    @contextmanager
    def _lock_repair(self, repair: Repair) -> Iterator[None]:
        """Lock the node of a repair; of a rack also the node that is changed now, always in this order."""
        changed = transitions.changed_node(repair)
        with ExitStack() as locks:
            for place in dict.fromkeys((repair.node, changed)):
                locks.enter_context(self.lock_node(place))
            yield

    def _mode_blocker(self, repair: Repair) -> str | None:
        """Return what blocks a repair that started under another mode; None if the current mode allows it."""
        mode_decision = self._dependencies.current_mode(repair)
        if mode_decision is None:
            return None
        if mode_decision.mode in MODES_WITHOUT_CHANGES:
            return f"Auto-repair: off ({mode_decision.why})"
        needs_approval = mode_decision.is_below(repair.mode) and repair.approved_by == POLICY
        # Undoing our own changes needs no approval.
        is_restoring = repair.state is RepairState.RESTORING or repair.keeps_cordon
        return f"approval ({mode_decision.why})" if needs_approval and not is_restoring else None

    def _block(self, repair: Repair, blocker: str, now: datetime) -> None:
        """Show what blocks the repair; if its node stays out of service, an incident is opened for it."""
        with self._lock:
            self._checked_at[repair.id] = now
            # A change that a user made since we read the repair must not be overwritten.
            if repair.waits_for != (blocker,) and self._active.get(repair.id) == repair:
                self._active[repair.id] = replace(repair, waits_for=(blocker,))
                self._dependencies.on_change()
            if repair.has_cordon and self._is_resolved(repair):
                self._dependencies.report_event(_build_out_of_service_event(repair, now))

    def _read_context(self, repair: Repair, now: datetime) -> TransitionContext:
        is_resolved = self._is_resolved(repair)
        with self._lock:
            is_fresh = repair.id in self._uncalled
            self._uncalled.discard(repair.id)
        changed_node = transitions.changed_node(repair)
        # A rack has no state in a cluster.
        observed = None if is_fresh or changed_node.domain else self._observe(changed_node)
        marked_incident = None if observed is None else self._find_own_mark(observed)
        return TransitionContext(
            observed,
            marked_incident,
            is_resolved=is_resolved,
            refusal=self._find_drain_refusal(repair, now),
            check_results=self._run_checks(repair, now, is_resolved=is_resolved),
            boot=self._check_boot(repair, now),
            hub_started_at=self._hub_started_at,
        )

    def _find_drain_refusal(self, repair: Repair, now: datetime) -> str | None:
        """Return why the next node of a rack may not be cordoned; the guards saw the rack only when it started."""
        action = repair.action
        is_next = repair.is_running and not repair.is_begun and repair.state is RepairState.CORDONING
        if not (repair.is_of_domain and is_next) or action is None:
            return None
        return self.drain_refusal(repair, action.place, now)

    def _observe(self, node: fleet.Place) -> NodeObservation | None:
        try:
            observed = self._dependencies.driver.observe(node)
            self._unreachable_nodes.discard(node)
            return observed
        except (ActionFailed, ActionRefused) as error:
            # Log once per outage, not every second.
            if node not in self._unreachable_nodes:
                self._unreachable_nodes.add(node)
                log.warning("node observation failed", extra=fields(node=node.node, error=error))
            return None

    def _check_boot(self, repair: Repair, now: datetime) -> validation.CheckResult | None:
        if not transitions.is_booting(repair):
            return None
        try:
            return self._dependencies.check_boot(repair.node, transitions.reboot_began_at(repair), now)
        except WatchkeeperError as error:
            text = f"whether {repair.node_name} has booted is unknown: {error}"
            return validation.CheckResult(validation.BOOTED, validation.CheckState.UNKNOWN, text)

    def _run_checks(self, repair: Repair, now: datetime, *, is_resolved: bool) -> tuple[validation.CheckResult, ...]:
        action = repair.action
        if repair.is_of_domain:
            names = [validation.COOL] if is_resolved else []
            return validation.run_checks(names, self._dependencies.validators, repair.node, since=repair.since, now=now)
        if action is not None and action.kind in RECLAIM_KINDS:
            return (self._dependencies.check_idle(action, transitions.warned_at(repair) or repair.since, now),)
        is_validating = repair.state is RepairState.VALIDATING
        if not is_validating or action is None or action.kind is not actions.ActionKind.VALIDATE:
            return ()
        names = [name for name in action.arguments.get("checks", "").split(",") if name] or list(validation.CHECKS)
        return validation.run_checks(names, self._dependencies.validators, repair.node, since=repair.since, now=now)

    def _apply(self, repair: Repair, transition: Transition, context: TransitionContext, *, now: datetime) -> Repair:
        """Store the repair after a transition; `_perform` makes the call afterwards."""
        if transition.kind is TransitionKind.PERFORM:
            assert transition.action is not None
            begun = progress.begin_action(repair, transition.action, now)
            # Stored when the action starts, not for each of its calls.
            place = transition.action.place.node or repair.node_name
            text = f"Started {transition.action.kind} on {place} ({transition.action.mark})"
            return repair if begun == repair else self.save(begun, now, text=text, kind=AUDIT_ENTRY)
        if transition.kind is TransitionKind.NEXT:
            observed = None if repair.is_of_domain else context.observed
            updated = repair if observed is None else replace(repair, incarnation=observed.incarnation)
            if transition.skips:
                updated = progress.record_skip(updated, transition.why, now)
            elif transitions.is_booting(repair):
                updated = progress.record_boot(updated, transition.why, now)
            return self.save(progress.next_step(updated, transition.why, now), now, text=transition.why)
        if transition.kind is TransitionKind.RELEASE:
            return self.save(progress.release_node(repair, transition.why), now, text=transition.why)
        if transition.kind is TransitionKind.END:
            ended = self.save(progress.end_repair(repair, transition, now), now, text=_describe_transition(transition))
            if ended.keeps_cordon and context.is_resolved:
                self._dependencies.report_event(_build_out_of_service_event(ended, now))
            return ended
        if transition.state is RepairState.APPROVED:
            approved = progress.approve(repair, POLICY, until=None, now=now)
            return self.save(approved, now, text=f"Approved: {transition.why}", actor=POLICY)
        if repair.state is RepairState.APPROVED and transition.state is not RepairState.PLANNED:
            return self._start(progress.enter_state(repair, transition, now), _describe_transition(transition), now)
        return self.save(progress.enter_state(repair, transition, now), now, text=_describe_transition(transition))

    def _start(self, repair: Repair, text: str, now: datetime) -> Repair:
        """Count the start, and take over the cordon of a failed repair; a first cordon is stored as begun."""
        start = guards.RepairStart(now, repair.node, repair.cause, repair.gpu, repair.is_reclaim)
        self._starts = [*self._starts[-MAX_STARTS:], start]
        kept_cordon = self._find_kept_cordon(repair.node)
        if kept_cordon is not None and repair.takes_node_out:
            why = f"{repair.id} took over the cordon"
            self.save(progress.release_node(kept_cordon, why), now, text=f"{why} of {kept_cordon.id}")
            repair = replace(repair, has_cordon=True)
        elif repair.action is not None and repair.action.kind is actions.ActionKind.CORDON:
            # A cordon is urgent and harmless twice: no observation and no second commit before it.
            repair = progress.begin_action(repair, repair.action, now)
            self._uncalled.add(repair.id)
        saved = self.save(repair, now, text=text)
        self._availability = None
        return saved

    def _perform(self, repair: Repair, action: actions.Action, now: datetime) -> datetime | None:
        # A stop that was requested since the decision is in force already.
        requested = self._active.get(repair.id, repair)
        if self.switch.is_stopped or requested.stopped_by is not None:
            return None
        try:
            outcome = self._dependencies.driver.perform(action)
            changed = progress.record_outcome(repair, action, outcome, now=now)
            text = outcome.text
        except ActionRefused as error:
            changed = progress.record_refusal(repair, action, str(error), now=now)
            text = changed.reason
        # Deliberately everything: whatever a driver raises, the repair must end in a stored state.
        except Exception as error:
            if not isinstance(error, ActionFailed):
                log.exception("driver call failed", extra=fields(repair=repair.id, action=action.id))
            changed = progress.record_failure(repair, action, f"{error}" or type(error).__name__, now=now)
            text = f"{action.kind} failed, try {changed.tries}: {error}"
        with self.transaction(now):
            current = self._active.get(repair.id, repair)
            # Meanwhile incidents may have joined, a user may have approved it, or repairs were halted and resumed.
            since = changed.since if current.since == repair.since else max(changed.since, current.since)
            openings = {**changed.openings, **current.openings}
            changed = replace(
                changed,
                openings=openings,
                approved_by=current.approved_by,
                since=since,
                stopped_by=current.stopped_by,
                stopped_why=current.stopped_why,
            )
            is_news = changed.state is not repair.state or changed.step != repair.step or changed.tries == 1
            if changed != repair:
                self.save(changed, now, text=text, kind=TIMELINE_ENTRY if is_news else AUDIT_ENTRY)
            if changed.keeps_cordon and self._is_resolved(changed):
                self._dependencies.report_event(_build_out_of_service_event(changed, now))
            if not changed.is_running:
                return None
            # Only an observation shows that a cordon is ours: make it at once.
            return now if action.kind is actions.ActionKind.CORDON and not changed.tries else changed.retry_at or now

    def _record_wait(self, repair: Repair, transition: Transition, now: datetime) -> datetime | None:
        """Keep what blocks a repair in memory only: the next observation finds it again."""
        if transition.waits_for and repair.waits_for != transition.waits_for:
            self._active[repair.id] = replace(repair, waits_for=transition.waits_for)
            self._dependencies.on_change()
        return repair.retry_at if repair.retry_at is not None and repair.retry_at > now else None

    def _remove_stray_cordons(self, now: datetime) -> list[RepairId]:
        """Revive ended repairs whose cordon appeared late, so that it is removed; return their ids."""
        restored = []
        for id, observed in self._stray_cordons.check_nodes(
            self._observe, lambda node: bool(self._ids_by_node.get(node)), now
        ):
            marked_incident = self._find_own_mark(observed)
            if marked_incident is None:
                continue
            node = observed.place
            with self.transaction(now):
                past = next((repair for repair in self._dependencies.journal.repairs_at(node) if repair.id == id), None)
                if past is not None and not self._ids_by_node.get(node):
                    why = f"{node.node} still has our cordon of {marked_incident}: it is removed"
                    restoring = transitions.restore(past.state, why)
                    revived = progress.enter_state(replace(past, has_cordon=True), restoring, now)
                    restored.append(self.save(revived, now, text=why).id)
        return restored


def _describe_transition(transition: Transition) -> str:
    return f"{str(transition.state).capitalize().replace('_', ' ')}: {transition.why}"


def _build_out_of_service_event(repair: Repair, now: datetime) -> events.Event:
    """Build the event that opens or reopens an incident for a node that stays out of service."""
    gpu = repair.gpu if repair.gpu and any(step.place.gpu for step in repair.actions) else None
    place = replace(repair.node, gpu=gpu)
    id = f"{place.cluster}/{place.node or place.domain}/{HUB}/{repair.id}/{now.timestamp():.0f}"
    text = f"{repair.node_name} stays out of service after its repair: {repair.reason}"
    event_fields = {"cause": repair.cause, "source": HUB, "repair": repair.id}
    return events.Event(id, events.EventKind.DRIVER_EVENT, None, place, now, text, fields=event_fields)
