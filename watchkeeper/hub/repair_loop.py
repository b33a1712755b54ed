"""Repairs while the hub runs: plans become repairs, due ones are taken further, and people are heard.

The hub makes one `RepairLoop`, joins it to its stages, and tells it of two things: a plan that was made, and incidents
that events changed. The second is the fast path: where nothing is to be gathered first and the mode is act, the
cordon goes out before there is a diagnosis and without waiting for a loop. Calls to a cluster are made in threads of
their own, so that neither events nor pages wait for them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from watchkeeper import __version__
from watchkeeper.catalogue import causes
from watchkeeper.clusters import cluster_series, clusters
from watchkeeper.config import settings as config
from watchkeeper.errors import HubError, InvalidTransition, SettingsError, quote
from watchkeeper.hub.loops import Loop
from watchkeeper.incidents import signals
from watchkeeper.kit import clock, durations, own_metrics, quiet_hours
from watchkeeper.model import actions, alerts, events, trust
from watchkeeper.model import fleet as fleet_model
from watchkeeper.model.incidents import Incident
from watchkeeper.model.repairs import Repair, RepairId
from watchkeeper.query import engine as engines
from watchkeeper.remediate import (
    approval,
    dependencies,
    driver,
    evidence,
    explanation,
    guards,
    hand_over,
    ladder,
    plan,
    policy,
    progress,
    reclaim,
    register,
    repairs,
    validation,
)
from watchkeeper.remediate.driver import PersistentDriver
from watchkeeper.remediate.proposal import RepairProposal, propose_repair
from watchkeeper.remediate.repairs import Repairs
from watchkeeper.scrape import fleet
from watchkeeper.store.journal import chain
from watchkeeper.store.journal import journal as journals

log = logging.getLogger(__name__)
T = TypeVar("T")

TICK_SECONDS = 1.0
# An API server closes a connection that was idle for 90 s.
READY_SECONDS = 30.0
# Calls to a cluster at the same time; more would only meet its rate limits.
CALLS_AT_ONCE = 8
# Those that change a scheduler which others change as well.
CLUSTER_DRIVERS = frozenset({config.DriverName.KUBERNETES, config.DriverName.SLURM})
# Moves of one repair in a row without a pause; a plan has some ten.
MOVES_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class RepairLoopDependencies:
    """What the loop works with. `report` takes an event about a node that we keep out of service."""

    journal: journals.Journal
    engine: engines.Engine
    driver: driver.Driver
    policy: policy.RepairPolicy
    fleet: fleet.ScrapedInventory
    clusters: clusters.Clusters
    report: Callable[[events.Event], Coroutine[Any, Any, object]]
    changed: Callable[[], None]
    report_failure: Callable[[str, Exception], None]
    validators: tuple[validation.Validator, ...] = ()
    # The cluster's driver itself, where it has connections to be kept and closed.
    connected: PersistentDriver | None = None
    # Where the evidence about nodes lies that are handed over; None: nowhere.
    bundles: Path | None = None


@dataclass(frozen=True, slots=True)
class JournalBinding:
    """What is made for one journal, and replaced as a whole where another one comes."""

    parts: RepairLoopDependencies
    exempt: reclaim.Exemptions
    repairs: Repairs
    people: approval.Approval
    hand_over: hand_over.HandOver | None


class RepairLoop:
    def __init__(
        self, settings: config.RemediateSettings, *, cluster: str, time: clock.Clock, metrics: own_metrics.Registry
    ) -> None:
        """`cluster` is what the nodes are under that a scheduler's driver changes."""
        self._settings, self._clock = settings, time
        self._joined: JournalBinding | None = None
        self.ladder = build_ladder(settings)
        self.limits = build_limits(settings)
        if settings.driver in CLUSTER_DRIVERS:
            self.limits = replace(self.limits, cluster=cluster)
        self._threads = ThreadPoolExecutor(CALLS_AT_ONCE, thread_name_prefix="repair")
        self._followed: set[RepairId] = set()
        self._starting = 0
        # Of which incidents it was said that they keep their cause.
        self._told: set[tuple[str, str]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._has_caught_up = False
        self._count = metrics.gauge("watchkeeper_remediate_repairs", "Repairs that wait, run or hold a node, by state")
        self._out = metrics.gauge(
            "watchkeeper_remediate_nodes_out_of_service", "Nodes that are out of service because of repairs"
        )
        self._halted = metrics.gauge(
            "watchkeeper_remediate_halted", "1 while repairs are stopped, by what stopped them"
        )

    def join(self, parts: RepairLoopDependencies) -> None:
        """Go on with the repairs of another journal."""
        exempt = reclaim.Exemptions(self._settings.reclaim_exempt, parts.clusters.team_of)
        if self._settings.driver in CLUSTER_DRIVERS and not parts.clusters.schedulers:
            log.warning("Budgets count only nodes that Watchkeeper itself takes out: [fleet] watches no scheduler")
        own = validation.hub_validators(
            parts.engine, parts.journal, quiet=timedelta(seconds=durations.parse_seconds(self._settings.xid_quiet))
        )
        around = dependencies.RepairDependencies(
            parts.journal,
            parts.driver,
            self.limits,
            {one.name: one for one in (*own, *parts.validators)},
            list_nodes=parts.fleet.nodes,
            out_of_service=self._others_out,
            unreadable_schedulers=self._blind,
            count_sick_gpus=self._sick_gpus,
            report_event=self._report,
            on_change=self._changed,
            current_mode=lambda repair: exempt.limit_mode(
                self.ladder.decide_mode(repair.cause, repair.pool), repair.actions
            ),
            check_idle=reclaim.IdleCheck(parts.engine).check,
        )
        found = Repairs(around, now=self._clock.now())
        handing = None
        if parts.bundles is not None:
            sources = evidence.EvidenceSources(parts.journal, parts.engine, parts.fleet, __version__)
            limit = self._settings.hand_over_after
            handing = hand_over.HandOver(parts.journal, sources, parts.bundles, limit=limit)
        life = timedelta(seconds=durations.parse_seconds(self._settings.approval))
        self._has_caught_up = False
        self._joined = JournalBinding(parts, exempt, found, approval.Approval(found, life=life), handing)

    @property
    def _now(self) -> JournalBinding:
        if self._joined is None:
            raise HubError("the journal is not read yet", status=503)
        return self._joined

    @property
    def repairs(self) -> Repairs:
        return self._now.repairs

    @property
    def approvals(self) -> approval.Approval:
        return self._now.people

    def loops(self) -> list[Loop]:
        self._loop = asyncio.get_running_loop()
        own = [Loop("repairs", self._tick, TICK_SECONDS)]
        if self._now.parts.connected is not None:
            own.append(Loop("repair connection", self._keep_ready, READY_SECONDS))
        return own

    async def _keep_ready(self) -> None:
        if self._now.parts.connected is not None:
            await self._in_thread(self._now.parts.connected.keep_connected)

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)
        if self._joined is not None and self._joined.parts.connected is not None:
            self._joined.parts.connected.close()

    # From incidents and plans

    def start_urgent(self, changed: Iterable[Incident]) -> None:
        """The fast path, from the hub's event loop: begin at once where waiting changes nothing."""
        for incident in changed:
            if self._is_urgent(incident):
                self._start(self._begin(incident))

    @property
    def is_stopped(self) -> bool:
        """A person has stopped everything: drivers ask in the middle of an action that takes several calls."""
        return self.repairs.switch.is_stopped

    @property
    def is_starting(self) -> bool:
        """A first cordon is on its way: whatever is not urgent lets it pass."""
        return self._starting > 0

    def _is_urgent(self, incident: Incident) -> bool:
        row = causes.lookup(incident.cause)
        if not incident.is_open or not row.is_hardware or row.severity is not alerts.Severity.CRITICAL:
            return False
        is_settled = signals.settle_seconds(incident.cause) == 0
        return is_settled and self.rung(incident.cause, incident.place).mode is trust.Mode.ACT

    async def _begin(self, incident: Incident) -> None:
        self._starting += 1
        try:
            made = await self._in_thread(lambda: self._take_urgent(incident))
        except Exception as error:  # Deliberately everything: the thorough path makes the same repair a little later.
            self._now.parts.report_failure(f"fast path of {incident.id}", error)
            return
        finally:
            self._starting -= 1
        if made is not None:
            await self._follow(made.id)

    def _take_urgent(self, incident: Incident) -> Repair | None:
        pool = self._pool(incident.place)
        draft = plan.make_plan(incident, None, self._now.parts.policy, pool=pool)
        want = self._wanted(incident, draft.cause, draft.actions)
        made = None if want is None else self.repairs.submit(want, self._clock.now())
        if made is not None and made.is_running:
            self.repairs.advance(made.id, self._clock.now())
        return made

    def submit_plan(self, id: str) -> None:
        """A plan was made: let it wait, ask, or begin; from any thread."""
        incident, proposal = self._now.parts.journal.incident(id), self._now.parts.journal.plan(id)
        if incident is None or proposal is None or not incident.is_open:
            return
        want = self._wanted(incident, proposal.cause, [receipt.action for receipt in proposal.receipts])
        made = None if want is None else self.repairs.submit(want, self._clock.now())
        if made is not None and made.is_running and self._loop is not None:
            self._loop.call_soon_threadsafe(lambda: self._start(self._follow(made.id)))

    def keeps_cause(self, incident: Incident) -> bool:
        """A machine that we have just rebooted looks like one that is down: its incident keeps the cause it has."""
        repair = self.repairs.find(incident.id)
        if repair is None or not (repair.is_running and repair.has_acted):
            return False
        if self._now.parts.journal.diagnosis(incident.id) is None:
            return False
        if (repair.id, incident.id) not in self._told:
            if len(self._told) >= repairs.MOST_ALIVE:
                self._told.clear()
            self._told.add((repair.id, incident.id))
            self.repairs.note_unchanged_cause(repair, incident.id, self._clock.now())
        return True

    def acting_on(self, node: fleet_model.Place) -> Collection[str]:
        """The incidents whose repair is past what can be undone on this node."""
        return self.repairs.incidents_under_repair(node)

    def requested_repair(self, id: str) -> RepairProposal | None:
        """What the plan of an incident wants of a machine."""
        incident, proposal = self._now.parts.journal.incident(id), self._now.parts.journal.plan(id)
        if incident is None or proposal is None:
            return None
        return self._wanted(incident, proposal.cause, [receipt.action for receipt in proposal.receipts])

    def explain(self, incident: Incident) -> explanation.Explanation:
        """Why this plan, in which mode, and who would object now."""
        proposal, now = self._now.parts.journal.plan(incident.id), self._clock.now()
        repair = self.repairs.find(incident.id)
        if repair is not None and (repair.is_running or repair.keeps_cordon):
            # What is under way, not what a newer diagnosis would do about a node that we have just rebooted.
            cause, receipts = repair.cause, self._under_way(repair, now)
        else:
            cause = incident.cause if proposal is None else proposal.cause
            receipts = () if proposal is None else proposal.receipts
        steps = [receipt.action for receipt in receipts]
        rung = self._now.exempt.limit_mode(self.rung(cause, incident.place), steps)
        want = self._wanted(incident, cause, steps)
        limits = {} if want is None else want.limit_seconds
        mode = rung if want is None else want.allowed
        return explanation.Explanation(
            incident=incident.id,
            cause=cause,
            policy_key=self._now.parts.policy.entry(cause, self._pool(incident.place))[0],
            mode=mode.mode,
            mode_why=mode.why,
            digest=None if want is None else want.digest,
            why_not=explanation.why_no_machine_action(want, rung, steps) if receipts else "there is no plan yet",
            steps=tuple(
                explanation.ExplanationStep(
                    one.action.kind, str(one.action.place), one.action.why, one.text, limits.get(one.action.id)
                )
                for one in receipts
            ),
            refusals=() if want is None else tuple(self._objections(want, now)),
            repair=repair,
        )

    def _under_way(self, repair: Repair, now: datetime) -> tuple[actions.Receipt, ...]:
        came = {receipt.action.id: receipt for receipt in repair.receipts}
        rest = plan.Draft(repair.incident, repair.cause, "", repair.mode, repair.actions)
        described = plan.dry_run(rest, self._now.parts.driver, now=now).receipts
        return tuple(came.get(receipt.action.id, receipt) for receipt in described)

    def _objections(self, want: RepairProposal, now: datetime) -> list[guards.GuardRefusal]:
        draft = progress.new_repair(want, 1, now)
        return self.repairs.refusals(draft, now)

    def simulate_policy(self, chosen: policy.RepairPolicy) -> list[explanation.Rehearsed]:
        """What each incident that the journal has would have got under another policy."""
        past = self._now.parts.journal.incidents(limit=explanation.MOST_REHEARSED)
        rules = explanation.RehearsalRules(chosen, self.ladder, self.limits, self._now.parts.fleet.nodes())
        return explanation.rehearse(past, rules)

    def retry(self, id: str, actor: str) -> Repair:
        """Another attempt, because a person wants one."""
        want = self.requested_repair(id)
        incident = self._now.parts.journal.incident(id)
        if incident is not None and not incident.is_open:
            raise InvalidTransition("it is resolved, so there is nothing to repair", where=id)
        if want is None:
            raise InvalidTransition(
                "its plan wants nothing of a machine", where=id, remedy=f"See `watchkeeper act explain {id}`"
            )
        return self.approvals.retry(want, actor=actor, now=self._clock.now())

    def audit(self, limit: int) -> list[chain.JournalEntry]:
        """Everything that was decided, asked, refused, called and answered, oldest first; the newest part of it."""
        kinds = (register.STORY, register.STEP, journals.REPAIR_SWITCH)
        found = [entry for kind in kinds for entry in self._now.parts.journal.entries_of(kind, limit)]
        return sorted(found, key=lambda entry: entry.seq)[-limit:]

    def _wanted(self, incident: Incident, cause: str, steps: Iterable[actions.Action]) -> RepairProposal | None:
        planned, pool = tuple(steps), self._pool(incident.place)
        rung = self._now.exempt.limit_mode(self.rung(cause, incident.place), planned)
        return propose_repair(incident, cause, planned, policy=self._now.parts.policy, pool=pool, rung=rung)

    def rung(self, cause: str, place: fleet_model.Place) -> ladder.ModeDecision:
        return self.ladder.decide_mode(cause, self._pool(place))

    def _pool(self, place: fleet_model.Place) -> str:
        return self._now.parts.fleet.pool_of(place)

    # While time passes

    async def _tick(self) -> None:
        for id in await self._in_thread(lambda: self.repairs.sweep(self._clock.now())):
            self._start(self._follow(id))
        handing = self._now.hand_over
        if handing is not None:
            await self._in_thread(lambda: handing.hand_over_failed(self.repairs.active_repairs(), self._clock.now()))
        # Away from the loop: to look at the repairs is to wait for one that is being written down.
        await self._in_thread(self._measure)
        if not self._has_caught_up:
            await self._in_thread(self._catch_up)
            self._has_caught_up = True

    def _catch_up(self) -> None:
        """After a start: a mode may have been raised, or a plan made just before the end."""
        for incident in self._now.parts.journal.incidents(open_only=True, limit=repairs.MOST_ALIVE):
            self.submit_plan(incident.id)

    async def _follow(self, id: RepairId) -> None:
        """Take one repair as far as it goes; what waits longer than a tick is left to the next one."""
        if id in self._followed:
            return
        self._followed.add(id)
        try:
            while (due := await self._in_thread(lambda: self._advance(id))) is not None:
                pause = (due - self._clock.now()).total_seconds()
                if pause > TICK_SECONDS:
                    return
                if pause > 0:
                    await self._clock.sleep(pause)
        except Exception as error:  # Deliberately everything: one broken repair must not hold up the others.
            self._now.parts.report_failure(f"repair {id}", error)
        finally:
            self._followed.discard(id)

    def _advance(self, id: RepairId) -> datetime | None:
        due: datetime | None = None
        for _ in range(MOVES_AT_ONCE):
            due = self.repairs.advance(id, self._clock.now())
            if due is None or due > self._clock.now():
                break
        return due

    def _measure(self) -> None:
        alive = self.repairs.active_repairs()
        self._count.values.clear()
        for state in {one.state for one in alive}:
            self._count.set(sum(one.state is state for one in alive), state=state)
        self._out.set(sum(one.is_out_of_service for one in alive))
        self._halted.set(float(self.repairs.switch.is_stopped), by="person")
        self._halted.set(float(self.repairs.switch.is_tripped), by="breaker")

    # What is asked and told

    def _others_out(self) -> Mapping[fleet_model.Place, str]:
        return {
            fleet_model.Place(node.cluster, node=node.name): node.unschedulable_by or node.reason or "somebody else"
            for view in self._now.parts.clusters.views()
            for node in view.nodes
            if not node.is_schedulable
        }

    def _blind(self) -> list[str]:
        """Why nodes that others have taken out may be missing from `_others_out`."""
        now = self._clock.now().timestamp()
        return [
            f"{view.source} has {'never answered' if view.at_ms is None else 'not answered for a while'}"
            f"{f': {view.problem}' if view.problem else ''}"
            for view in self._now.parts.clusters.views()
            if not cluster_series.speaks_for(view, now)
        ]

    def _sick_gpus(self) -> Mapping[fleet_model.Place, int]:
        """GPUs with a critical hardware fault, by node; all GPUs of a node where the node itself has one."""
        if not self.limits.quorums:
            return {}
        found: dict[fleet_model.Place, set[str]] = {}
        whole: dict[fleet_model.Place, int] = {}
        for incident in self._now.parts.journal.incidents(open_only=True, limit=repairs.MOST_ALIVE):
            place, row = incident.place, causes.lookup(incident.cause)
            if place.node is None or not row.is_hardware or row.severity is not alerts.Severity.CRITICAL:
                continue
            node = place.whole_node
            known = self._now.parts.fleet.node(place.node, place.cluster)
            if place.gpu is not None:
                found.setdefault(node, set()).add(place.gpu)
            elif known is not None:
                whole[node] = known.expected_gpus or 0
        return {**{node: len(gpus) for node, gpus in found.items()}, **whole}

    def _report(self, event: events.Event) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(lambda: self._start(self._hand_in(event)))

    async def _hand_in(self, event: events.Event) -> None:
        try:
            await self._now.parts.report(event)
        except Exception as error:  # Deliberately everything: nobody waits for this task.
            self._now.parts.report_failure("repair report", error)

    def _changed(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._now.parts.changed)

    async def run_on_repair_thread(self, work: Callable[[], T]) -> T:
        """For people's words: they wait for a call about the same node."""
        return await self._in_thread(work)

    async def run_now(self, work: Callable[[], T]) -> T:
        """For what must not wait behind calls that hang."""
        return await asyncio.to_thread(work)

    def advance_soon(self, repair: Repair) -> None:
        """A person's word may let a repair begin: it need not wait for a tick."""
        if repair.is_running:
            self._start(self._follow(repair.id))

    def recent_repairs(self, limit: int) -> list[Repair]:
        """The newest repairs, ended ones too."""
        return self._now.parts.journal.latest_repairs(limit=limit)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _start(self, body: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(body)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def build_ladder(settings: config.RemediateSettings) -> ladder.TrustLadder:
    """SettingsError for a cause that nobody knows: a rule that never fits would be trusted in vain."""
    problems = tuple(
        f"remediate.trust[{at}].cause: unknown cause {quote(rule.cause)}; the known ones are in packs/causes.csv"
        for at, rule in enumerate(settings.trust)
        if rule.cause is not None and rule.cause not in {row.cause for row in causes.all_causes()}
    )
    if problems:
        raise SettingsError("the trust ladder has mistakes", problems=problems, where="[remediate]")
    rules = tuple(ladder.TrustRule(rule.mode, rule.cause, rule.pool) for rule in settings.trust)
    return ladder.TrustLadder(settings.mode, rules)


def build_limits(settings: config.RemediateSettings) -> guards.GuardLimits:
    def span(text: str) -> timedelta:
        return timedelta(seconds=durations.parse_seconds(text))

    return guards.GuardLimits(
        settings.pool_percent,
        settings.fleet_percent,
        settings.starts,
        span(settings.starts_window),
        settings.attempts,
        span(settings.attempts_window),
        settings.breaker_nodes,
        span(settings.breaker_window),
        settings.one_per_domain,
        tuple(quiet_hours.parse(text) for text in settings.quiet_hours),
        tuple(guards.Quorum(one.job_class, one.pool, one.gpus) for one in settings.quorum),
        settings.reclaims,
    )


def load_policy(settings: config.RemediateSettings, *, gives_orders: bool = False) -> policy.RepairPolicy:
    """The plans that the settings choose; where agents take orders, they look at a node before it is given back."""
    read = policy.load(None if settings.policy is None else Path(settings.policy), reclaim=settings.reclaim)
    told = policy.with_wait(read, settings.reclaim_wait if settings.reclaim else None)
    usual = tuple(validation.NODE_CHECKS) if gives_orders else ()
    return policy.with_checks(told, usual if settings.node_checks is None else settings.node_checks)
