"""The repairs: what plans, people and time do to them, and the calls that come of it.

The hub owns one `Repairs`. It hands over what plans want (`take`), asks now and then what is due (`sweep`), and has
each due one taken further in a thread (`advance`). What is remembered is `register`'s. Decisions are made under one
lock, so two repairs never take the last place of a budget; calls are made outside it, one at a time for each node.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import datetime, timedelta

from watchkeeper.errors import ActionFailed, ActionRefused, InvalidTransition
from watchkeeper.kit.logs import fields
from watchkeeper.model import actions, events, fleet, incidents, trust
from watchkeeper.model.repairs import RECLAIMS, WAITING, Repair, RepairId, RepairState
from watchkeeper.remediate import guards, progress, validation
from watchkeeper.remediate.driver import NodeObservation
from watchkeeper.remediate.ladder import MODES_WITHOUT_CHANGES
from watchkeeper.remediate.moves import MOST_AHEAD, Move, MoveContext, MoveKind, next_move, restore, warned_at
from watchkeeper.remediate.proposal import RepairProposal
from watchkeeper.remediate.register import COUNTED_NODES, MOST_STARTS, STEP, STORY, RepairRegister, request_of
from watchkeeper.store.journal.journal import HUB

log = logging.getLogger(__name__)

POLICY = "policy"
# Where nothing hurries, a node is looked at this often.
LOOKS = {
    RepairState.FAILED: timedelta(seconds=30),
    RepairState.WARNING: timedelta(seconds=30),
    RepairState.VALIDATING: timedelta(seconds=5),
    RepairState.ACTING: timedelta(seconds=2),
}
JUST_WRITTEN = timedelta(seconds=1)
MOST_WANTED = 50_000
# Repairs of one fleet that may wait, run or be held: as many as a hub keeps open incidents.
MOST_ALIVE = 20_000


class Repairs(RepairRegister):
    """Every method may be called from any thread."""

    # What plans want

    def submit(self, want: RepairProposal, now: datetime) -> Repair | None:
        """Make a repair of what a plan wants, or let it wait for the one that its node has; None: nothing changed."""
        with self.transaction(now):
            self._open.add(want.incident)
            held, current = self._holding(want.node), self._in_the_way(want)
            if held is not None and held.openings.get(want.incident) != want.opening:
                self.save(progress.join_incident(held, want), now, text=f"{want.incident} waits for it too", kind=STEP)
            if current is not None:
                return self._meet(current, want, now)
            if self._was_tried(want) or len(self._alive) >= MOST_ALIVE:
                return None
            return self._make(want, now)

    def start_another(self, want: RepairProposal, now: datetime) -> Repair:
        """Another attempt, whatever became of those before; InvalidTransition while one waits or runs."""
        current = self._in_the_way(want)
        if current is not None:
            raise InvalidTransition(
                f"{current.id} is {current.state} on {want.node.node}", where=want.incident, now=current.reason
            )
        self._open.add(want.incident)
        return self._make(want, now)

    def _make(self, want: RepairProposal, now: datetime) -> Repair:
        before = self._around.journal.repairs_of(want.incident, limit=1)
        attempt = 1 + max((int(one.id.rpartition(".")[2]) for one in before), default=0)
        repair = progress.new_repair(want, attempt, now)
        self.save(repair, now, text=f"{repair.id} for {want.node.node}: {want.allowed.why}")
        # Who wants back what is idle says nothing about machines: the breaker is for rules that break a fleet.
        if want.allowed.mode is not trust.Mode.SUGGEST and not want.is_reclaim:
            self._want(want.node, now)
        return self.decide(repair, now)

    def _want(self, node: fleet.Place, now: datetime) -> None:
        """Count it, and open the breaker where too many nodes want something at once."""
        if len(self._wanted) >= MOST_WANTED:
            self._wanted.clear()
        self._wanted[node] = now
        if self.switch.is_tripped:
            return
        why = guards.breaker_trip_reason(self._wanted, self._around.limits, since=self.switch.reset_at, now=now)
        if why is not None:
            log.error("The circuit breaker of repairs tripped", extra=fields(why=why))
            self.save_switch(
                replace(self.switch, tripped_at=now, tripped_why=why), now, actor=HUB, text=f"Tripped: {why}"
            )

    def _meet(self, current: Repair, want: RepairProposal, now: datetime) -> Repair | None:
        """The node has a repair: a changed plan replaces one that waits, anybody else's incident waits with it."""
        if current.openings.get(want.incident) != want.opening:
            self._tell(want.incident, f"{current.id} is at work on {want.node.node}: this incident waits for it", now)
            return self.save(
                progress.join_incident(current, want), now, text=f"{want.incident} waits for it too", kind=STEP
            )
        is_same = (current.digest, current.mode) == (want.digest, want.allowed.mode)
        if current.incident != want.incident or current.state not in WAITING or is_same:
            return None
        changed = progress.replan(current, want, now)
        why = "The plan has changed" if current.digest != want.digest else want.allowed.why
        self.save(changed, now, text=f"{why}: {' → '.join(step.kind for step in changed.actions)}")
        return self.decide(changed, now)

    def _was_tried(self, want: RepairProposal) -> bool:
        """This incident had its repair, and nothing but a person asks for another.

        Unless it has come back since, or broke again after the node was given back: that is a new fault, also while
        its incident is still open. A fault that merely stays is none, and the guard of attempts bounds how often.
        """
        past = self._around.journal.repairs_at(want.node)
        last = next((one for one in past if one.openings.get(want.incident, -1) >= want.opening), None)
        if last is None or last.state is not RepairState.DONE or last.ended_at is None:
            return last is not None
        given_back = last.ended_at
        return all(self._heard_at(fault) <= given_back for fault in want.faults)

    def _heard_at(self, fault: incidents.Member) -> datetime:
        """By our own clock, as the end of a repair is: that of a machine may be minutes off."""
        event = self._around.journal.event(fault.ref) if fault.kind is incidents.MemberKind.EVENT else None
        return fault.since if event is None or event.received_at is None else event.received_at

    # What time brings

    def sweep(self, now: datetime) -> list[RepairId]:
        """Decide about everything that waits, and say which repairs are to be advanced now."""
        if self.switch.is_stopped:
            return []
        with self._lock:
            self._census(now, COUNTED_NODES)
        late = self._take_off_late(now)
        with self.transaction(now):
            self._open = self._around.journal.open_incident_ids()
            for repair in sorted(self._alive.values(), key=lambda one: one.made_at):
                if repair.state in WAITING:
                    self.decide(repair, now)
                elif repair.is_running and (why := self._counts_anew(repair, now)):
                    self.save(progress.resume(repair, now), now, text=f"{why}: its time counts anew", kind=STEP)
            self._has_swept = True
            return [*late, *(one.id for one in self._alive.values() if self._is_due(one, now))]

    def _counts_anew(self, repair: Repair, now: datetime) -> str | None:
        """Why the time that a step has taken is not held against it."""
        if repair.since - now > MOST_AHEAD:
            return "The clock was put back"
        # A hub that was away cannot have done it in time; checks go by when the repair ended, and keep that.
        is_call = repair.is_begun and repair.state is not RepairState.VALIDATING
        return "The hub was started again" if is_call and not self._has_swept else None

    def _is_due(self, repair: Repair, now: datetime) -> bool:
        if not (repair.is_running or repair.keeps_cordon):
            return False
        last, pause = self._looked.get(repair.id), LOOKS.get(repair.state, timedelta())
        return last is None or not timedelta() <= now - last < pause

    def decide(self, repair: Repair, now: datetime) -> Repair:
        """Moves that need nobody's answer: approve, start, expire, end."""
        rung = self._around.current_mode(repair) if repair.state in WAITING else None
        if rung is not None and rung.is_below(repair.mode):
            repair = self.save(
                progress.lower_mode(repair, rung, now), now, text=f"The settings are more careful now: {rung.why}"
            )
        while repair.state in WAITING:
            refusal = self._refusal(repair, now) if repair.state is RepairState.APPROVED else None
            is_over = not self._open.intersection(repair.openings)
            seen = MoveContext(
                is_over=is_over, is_stopped=self.switch.is_stopped, refusal=None if refusal is None else refusal.text
            )
            move = next_move(repair, seen, now)
            if move.kind is MoveKind.WAIT:
                return self._say_refusal(repair, refusal, now)
            repair = self._carry_out(repair, move, seen, now=now)
        return repair

    def _refusal(self, repair: Repair, now: datetime) -> guards.GuardRefusal | None:
        # Cheap first: with the breaker open a thousand repairs wait, and none of them needs a count of the fleet.
        empty = guards.FleetAvailability({}, {}, switch=self.switch)
        wish, limits = request_of(repair), self._around.limits
        for name in ("stop", "breaker"):
            if (text := guards.GUARDS[name](wish, empty, limits, now)) is not None:
                return guards.GuardRefusal(name, text)
        return guards.find_first_refusal(wish, self.fleet_availability(now, repair.node), limits, now=now)

    def _say_refusal(self, repair: Repair, refusal: guards.GuardRefusal | None, now: datetime) -> Repair:
        """Once for each guard that holds it up, and again after each yes."""
        if refusal is None or repair.reason.startswith(begins := f"Refused by {refusal.guard}: "):
            return repair
        told = replace(repair, reason=begins + refusal.text)
        return self.save(told, now, text=told.reason)

    # Taking one further

    def advance(self, id: RepairId, now: datetime) -> datetime | None:
        """One look and one move; returns when the next one may be due, None to leave that to `sweep`."""
        with self._lock:
            repair = self._alive.get(id)
        if repair is None or not (repair.is_running or repair.keeps_cordon):
            return None
        if (left := self._hands_off(repair)) is not None:
            self._leave(repair, left, now)
            return None
        with self.lock_node(repair.node):
            is_fresh = id in self._fresh and now - repair.since < JUST_WRITTEN
            seen = self._look(repair, now)
            with self._lock:
                current = self._alive.get(id)
                if current is None or self.switch.is_stopped or self._is_torn:
                    return None
                if current != repair:
                    return now
                move = next_move(current, seen, now)
                self._looked[id] = now
                if move.kind is MoveKind.WAIT:
                    return self._say_wait(current, move, now)
                # Each transaction asks whether we still lead. One was made a moment ago for a first cordon, and another
                # would have to wait for the commits of others.
                if not is_fresh or move.action is None or progress.begin_action(current, move.action) != current:
                    with self.transaction(now):
                        current = self._carry_out(current, move, seen, now=now)
            if move.kind is not MoveKind.PERFORM:
                return now if current.is_running else None
            assert move.action is not None
            return self._perform(current, move.action, now)

    def _hands_off(self, repair: Repair) -> str | None:
        """What a repair that was begun under other settings waits for; None where those of today let it go on."""
        rung = self._around.current_mode(repair)
        if rung is None:
            return None
        if rung.mode in MODES_WITHOUT_CHANGES:
            return f"a person, or a higher mode: {rung.why}"
        is_careful = rung.is_below(repair.mode) and repair.approved_by == POLICY
        # To take back what is ours needs nobody's yes.
        is_undone = repair.state is RepairState.RESTORING or repair.keeps_cordon
        return f"a person's yes: {rung.why}" if is_careful and not is_undone else None

    def _leave(self, repair: Repair, waits_for: str, now: datetime) -> None:
        """Nothing is touched, and it says so; a node that stays out of service for it has an open incident."""
        with self._lock:
            self._looked[repair.id] = now
            # Whatever somebody said about it since we looked counts, and not what we saw.
            if repair.waits_for != (waits_for,) and self._alive.get(repair.id) == repair:
                self._alive[repair.id] = replace(repair, waits_for=(waits_for,))
                self._around.on_change()
            if repair.has_cordon and not self._open.intersection(repair.openings):
                self._around.report_event(_still_broken(repair, now))

    def _look(self, repair: Repair, now: datetime) -> MoveContext:
        is_over = not self._open.intersection(repair.openings)
        with self._lock:
            is_fresh = repair.id in self._fresh
            self._fresh.discard(repair.id)
        observed = None if is_fresh else self._observe(repair.node)
        mark_of = None if observed is None else self._own_mark(observed)
        verdicts = self._validate(repair, now)
        return MoveContext(observed, mark_of, is_over=is_over, verdicts=verdicts, watched_since=self._watched_since)

    def _observe(self, node: fleet.Place) -> NodeObservation | None:
        try:
            seen = self._around.driver.observe(node)
            self._unseen.discard(node)
            return seen
        except (ActionFailed, ActionRefused) as error:
            # Once, not each second for as long as a cluster is silent.
            if node not in self._unseen:
                self._unseen.add(node)
                log.warning("A node cannot be looked at", extra=fields(node=node.node, error=error))
            return None

    def _validate(self, repair: Repair, now: datetime) -> tuple[validation.CheckResult, ...]:
        action = repair.action
        if action is not None and action.kind in RECLAIMS:
            return (self._around.check_idle(action, warned_at(repair) or repair.since, now),)
        if (
            repair.state is not RepairState.VALIDATING
            or action is None
            or action.kind is not actions.ActionKind.VALIDATE
        ):
            return ()
        names = [name for name in action.arguments.get("checks", "").split(",") if name] or list(validation.CHECKS)
        asked = validation.run_checks(names, self._around.validators, repair.node, since=repair.since, now=now)
        return tuple(asked)

    def _carry_out(self, repair: Repair, move: Move, seen: MoveContext, *, now: datetime) -> Repair:
        """Keep what the move makes of the repair; a call is made by `_perform` after this."""
        if move.kind is MoveKind.PERFORM:
            assert move.action is not None
            begun = progress.begin_action(repair, move.action)
            # Asked again and again, an action is written down when it begins.
            text = f"{move.action.kind} {repair.node.node} under {move.action.mark}"
            return repair if begun == repair else self.save(begun, now, text=text, kind=STEP)
        if move.kind is MoveKind.NEXT:
            known = repair if seen.observed is None else replace(repair, incarnation=seen.observed.incarnation)
            return self.save(progress.next_step(known, move.why, now), now, text=move.why)
        if move.kind is MoveKind.LET_GO:
            return self.save(progress.release_node(repair, move.why), now, text=move.why)
        if move.kind is MoveKind.END:
            done = self.save(progress.end_repair(repair, move, now), now, text=_story(move))
            if done.keeps_cordon and seen.is_over:
                self._around.report_event(_still_broken(done, now))
            return done
        if move.state is RepairState.APPROVED:
            return self.save(
                progress.approve(repair, POLICY, until=None, now=now), now, text=f"Approved: {move.why}", actor=POLICY
            )
        if repair.state is RepairState.APPROVED and move.state is not RepairState.PLANNED:
            return self._start(progress.enter_state(repair, move, now), _story(move), now)
        return self.save(progress.enter_state(repair, move, now), now, text=_story(move))

    def _start(self, repair: Repair, text: str, now: datetime) -> Repair:
        """Count it, and take over the cordon of a failed repair; a first cordon is written down as begun with it."""
        self._starts = [*self._starts[-MOST_STARTS:], _start_of(repair, now)]
        held = self._holding(repair.node)
        if held is not None and repair.takes_node_out:
            self.save(
                progress.release_node(held, f"{repair.id} goes on"),
                now,
                text=f"{repair.id} goes on with {held.id}'s cordon",
            )
            repair = replace(repair, has_cordon=True)
        elif repair.action is not None and repair.action.kind is actions.ActionKind.CORDON:
            # A cordon is harmless twice and not to be waited for: neither a look nor another commit comes before it.
            repair = progress.begin_action(repair, repair.action)
            self._fresh.add(repair.id)
        kept = self.save(repair, now, text=text)
        self._counted = None
        return kept

    def _perform(self, repair: Repair, action: actions.Action, now: datetime) -> datetime | None:
        if self.switch.is_stopped:
            return None
        try:
            done = self._around.driver.perform(action)
            after = progress.record_outcome(repair, action, done, now=now)
            text = done.text
        except ActionRefused as error:
            after = progress.record_refusal(repair, action, str(error), now=now)
            text = after.reason
        # Deliberately everything: whatever breaks in a driver, the repair must end in a state that is written down.
        except Exception as error:
            if not isinstance(error, ActionFailed):
                log.exception("A driver broke", extra=fields(repair=repair.id, action=action.id))
            after = progress.record_failure(repair, action, f"{error}" or type(error).__name__, now=now)
            text = f"{action.kind} did not succeed, try {after.tries}: {error}"
        with self.transaction(now):
            current = self._alive.get(repair.id, repair)
            # Meanwhile other incidents may have joined, a person said yes, or everything been stopped and resumed.
            since = after.since if current.since == repair.since else max(after.since, current.since)
            openings = {**after.openings, **current.openings}
            after = replace(after, openings=openings, approved_by=current.approved_by, since=since)
            kind = STORY if after.state is not repair.state or after.step != repair.step or after.tries == 1 else STEP
            if after != repair:
                self.save(after, now, text=text, kind=kind)
            if after.keeps_cordon and not self._open.intersection(after.openings):
                self._around.report_event(_still_broken(after, now))
            if not after.is_running:
                return None
            # Whether a cordon is ours stands on the node: look at once.
            return now if action.kind is actions.ActionKind.CORDON and not after.tries else after.retry_at or now

    def _say_wait(self, repair: Repair, move: Move, now: datetime) -> datetime | None:
        """What a repair waits for, for pages; kept in memory, because the next look says it again."""
        if move.waits_for and repair.waits_for != move.waits_for:
            self._alive[repair.id] = replace(repair, waits_for=move.waits_for)
            self._around.on_change()
        return repair.retry_at if repair.retry_at is not None and repair.retry_at > now else None

    def _take_off_late(self, now: datetime) -> list[RepairId]:
        """Take off what is ours and belongs to nothing."""
        found = []
        for id, observed in self._late.look(self._observe, lambda node: bool(self._by_node.get(node)), now):
            mark_of = self._own_mark(observed)
            if mark_of is None:
                continue
            node = observed.place
            with self.transaction(now):
                past = next((one for one in self._around.journal.repairs_at(node) if one.id == id), None)
                if past is not None and not self._by_node.get(node):
                    why = f"{node.node} carries our cordon of {mark_of}, and nothing needs it"
                    revived = progress.enter_state(replace(past, has_cordon=True), restore(past.state, why), now)
                    found.append(self.save(revived, now, text=why).id)
        return found


def _start_of(repair: Repair, now: datetime) -> guards.RepairStart:
    return guards.RepairStart(now, repair.node, repair.cause, repair.gpu, repair.is_reclaim)


def _story(move: Move) -> str:
    return f"{str(move.state).capitalize().replace('_', ' ')}: {move.why}"


def _still_broken(repair: Repair, now: datetime) -> events.Event:
    """A node that we keep out of service has an open incident: this makes or reopens it."""
    gpu = repair.gpu if repair.gpu and any(step.place.gpu for step in repair.actions) else None
    place = fleet.Place(repair.node.cluster, node=repair.node.node, gpu=gpu)
    id = f"{place.cluster}/{place.node}/{HUB}/{repair.id}/{now.timestamp():.0f}"
    text = f"{repair.node.node} stays out of service after its repair: {repair.reason}"
    about = {"cause": repair.cause, "source": HUB, "repair": repair.id}
    return events.Event(id, events.EventKind.DRIVER_EVENT, None, place, now, text, fields=about)
