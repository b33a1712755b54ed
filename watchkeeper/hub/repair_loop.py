"""Repairs while the hub runs: plans become repairs, due repairs advance, and people approve or stop them.

The hub creates one `RepairLoop`, joins it to its stages, and reports new plans and changed incidents to it. Changed
incidents take the fast path: for a critical hardware fault in mode `act`, the cordon is sent before there is a
diagnosis and without waiting for a loop. Calls to a cluster run in threads of their own, so that neither events nor
pages wait for them.
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
from watchkeeper.kit import clock, durations, own_metrics, quiet_hours
from watchkeeper.kit.logs import fields
from watchkeeper.model import actions, alerts, events
from watchkeeper.model import fleet as fleet_model
from watchkeeper.model.incidents import Incident
from watchkeeper.model.repairs import Repair, RepairId
from watchkeeper.query import engine as engines
from watchkeeper.remediate import (
    control,
    dependencies,
    driver,
    evidence,
    explanation,
    guards,
    hand_over,
    plan,
    policy,
    progress,
    reclaim,
    registry,
    repairs,
    trust_rules,
    validation,
)
from watchkeeper.remediate.driver import PersistentDriver
from watchkeeper.remediate.proposal import RepairProposal, is_urgent, propose_repair
from watchkeeper.remediate.repairs import Repairs
from watchkeeper.scrape import fleet
from watchkeeper.store.journal import chain
from watchkeeper.store.journal import journal as journals

log = logging.getLogger(__name__)
T = TypeVar("T")

TICK_SECONDS = 1.0
# An API server closes a connection that was idle for 90 s.
READY_SECONDS = 30.0
# Concurrent calls to a cluster; more would only reach its rate limits.
MAX_CALLS = 8
# Drivers of schedulers that other people and tools change too.
CLUSTER_DRIVERS = frozenset({config.DriverName.KUBERNETES, config.DriverName.SLURM})
# Transitions of one repair without a pause; a plan has about ten.
MAX_TRANSITIONS = 100


@dataclass(frozen=True, slots=True)
class RepairLoopDependencies:
    """`report` takes an event about a node that a repair keeps out of service."""

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
    # The cluster's driver, if it has connections to keep open and close.
    connected: PersistentDriver | None = None
    # The directory for evidence about nodes that are handed over; None: not written.
    bundles: Path | None = None


@dataclass(frozen=True, slots=True)
class JournalBinding:
    """The objects for one journal, replaced as a whole when another journal is opened."""

    parts: RepairLoopDependencies
    exempt: reclaim.Exemptions
    repairs: Repairs
    control: control.RepairControl
    hand_over: hand_over.NodeHandOver | None


class RepairLoop:
    def __init__(
        self, settings: config.RemediateSettings, *, cluster: str, time: clock.Clock, metrics: own_metrics.Registry
    ) -> None:
        """`cluster` is the cluster of the nodes that a scheduler's driver changes."""
        self._settings, self._clock = settings, time
        self._joined: JournalBinding | None = None
        self.trust_rules = build_trust_rules(settings)
        self.limits = build_limits(settings)
        if settings.driver in CLUSTER_DRIVERS:
            self.limits = replace(self.limits, cluster=cluster)
        self._threads = ThreadPoolExecutor(MAX_CALLS, thread_name_prefix="repair")
        self._followed: set[RepairId] = set()
        self._starting = 0
        # Repairs and incidents with a timeline entry that the cause stays unchanged.
        self._noted_causes: set[tuple[str, str]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._has_resubmitted = False
        gauge = metrics.gauge
        self._count = gauge(
            "watchkeeper_remediate_repairs", "Repairs that wait, run or keep a node out of service, by state"
        )
        self._out = gauge(
            "watchkeeper_remediate_nodes_out_of_service", "Nodes that are out of service because of repairs"
        )
        self._halted = gauge(
            "watchkeeper_remediate_halted", "1 while repairs are halted by a person or by the circuit breaker"
        )

    def join(self, parts: RepairLoopDependencies) -> None:
        """Continue with the repairs of another journal."""
        exempt = reclaim.Exemptions(self._settings.reclaim_exempt, parts.clusters.team_of)
        if self._settings.driver in CLUSTER_DRIVERS and not parts.clusters.schedulers:
            log.warning(
                "no scheduler configured, budgets do not count nodes that others cordoned",
                extra=fields(remedy="name the scheduler in [fleet]"),
            )
        own = validation.hub_validators(
            parts.engine, parts.journal, soak=timedelta(seconds=durations.parse_seconds(self._settings.xid_quiet))
        )
        repair_dependencies = dependencies.RepairDependencies(
            parts.journal,
            parts.driver,
            self.limits,
            {validator.name: validator for validator in (*own, *parts.validators)},
            list_nodes=parts.fleet.nodes,
            out_of_service=self._out_of_service,
            unreadable_schedulers=self._unreadable_schedulers,
            count_faulty_gpus=self._faulty_gpus,
            report_event=self._report,
            on_change=self._changed,
            current_mode=lambda repair: exempt.limit_mode(
                self.trust_rules.decide_mode(repair.cause, repair.pool), repair.actions
            ),
            check_idle=reclaim.IdleCheck(parts.engine).check,
        )
        journal_repairs = Repairs(repair_dependencies, now=self._clock.now())
        handover = None
        if parts.bundles is not None:
            sources = evidence.EvidenceSources(parts.journal, parts.engine, parts.fleet, __version__)
            limit = self._settings.hand_over_after
            handover = hand_over.NodeHandOver(parts.journal, sources, parts.bundles, limit=limit)
        life = timedelta(seconds=durations.parse_seconds(self._settings.approval))
        self._has_resubmitted = False
        self._joined = JournalBinding(
            parts, exempt, journal_repairs, control.RepairControl(journal_repairs, approval_lifetime=life), handover
        )

    @property
    def _now(self) -> JournalBinding:
        if self._joined is None:
            raise HubError("the journal is not read yet", status=503)
        return self._joined

    @property
    def repairs(self) -> Repairs:
        return self._now.repairs

    @property
    def control(self) -> control.RepairControl:
        return self._now.control

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

    # Incidents and plans

    def start_urgent(self, changed: Iterable[Incident]) -> None:
        """The fast path, on the hub's event loop: start urgent repairs without waiting for a diagnosis."""
        for incident in changed:
            if is_urgent(incident, self.decide_mode(incident.cause, incident.place).mode):
                self._start(self._start_urgent(incident))

    @property
    def is_stopped(self) -> bool:
        """Repairs are halted by a person; drivers check it during actions of several calls."""
        return self.repairs.switch.is_stopped

    @property
    def is_starting(self) -> bool:
        """A first cordon is being sent: less urgent work waits."""
        return self._starting > 0

    async def _start_urgent(self, incident: Incident) -> None:
        self._starting += 1
        try:
            repair = await self._in_thread(lambda: self._submit_urgent(incident))
        except Exception as error:  # Deliberately everything: the diagnosis starts the same repair a little later.
            self._now.parts.report_failure(f"fast path of {incident.id}", error)
            return
        finally:
            self._starting -= 1
        if repair is not None:
            await self._follow(repair.id)

    def _submit_urgent(self, incident: Incident) -> Repair | None:
        pool = self._pool(incident.place)
        draft = plan.make_plan(incident, None, self._now.parts.policy, pool=pool)
        proposal = self._proposal(incident, draft.cause, draft.actions)
        repair = None if proposal is None else self.repairs.submit(proposal, self._clock.now())
        if repair is not None and repair.is_running:
            self.repairs.advance(repair.id, self._clock.now())
        return repair

    def submit_plan(self, id: str) -> None:
        """Turn a new plan into a repair that waits, asks for approval or starts; from any thread."""
        incident = self._now.parts.journal.incident(id)
        requested = self.requested_repair(id) if incident is not None and incident.is_open else None
        repair = None if requested is None else self.repairs.submit(requested, self._clock.now())
        if repair is not None and repair.is_running and self._loop is not None:
            self._loop.call_soon_threadsafe(lambda: self._start(self._follow(repair.id)))

    def keeps_cause(self, incident: Incident) -> bool:
        """A node that a repair has just rebooted looks down: its incident keeps its cause."""
        repair = self.repairs.find(incident.id)
        if repair is None or not (repair.is_running and repair.has_acted):
            return False
        if self._now.parts.journal.diagnosis(incident.id) is None:
            return False
        if (repair.id, incident.id) not in self._noted_causes:
            if len(self._noted_causes) >= repairs.MAX_ACTIVE_REPAIRS:
                self._noted_causes.clear()
            self._noted_causes.add((repair.id, incident.id))
            self.repairs.note_unchanged_cause(repair, incident.id, self._clock.now())
        return True

    def acting_on(self, node: fleet_model.Place) -> Collection[str]:
        """The incidents with a repair on this node that cannot be rolled back any more."""
        return self.repairs.incidents_under_repair(node)

    def requested_repair(self, id: str) -> RepairProposal | None:
        """The repair that the plan of an incident requests; None if it requests none."""
        incident, incident_plan = self._now.parts.journal.incident(id), self._now.parts.journal.plan(id)
        if incident is None or incident_plan is None:
            return None
        return self._proposal(incident, incident_plan.cause, [receipt.action for receipt in incident_plan.receipts])

    def explain(self, incident: Incident) -> explanation.Explanation:
        """Why this plan, in which mode, and which guards refuse it now."""
        incident_plan, now = self._now.parts.journal.plan(incident.id), self._clock.now()
        repair = self.repairs.find(incident.id)
        if repair is not None and (repair.is_running or repair.keeps_cordon):
            # The running repair, not the plan of a newer diagnosis of a node that was just rebooted.
            cause, receipts = repair.cause, self._under_way(repair, now)
        else:
            cause = incident.cause if incident_plan is None else incident_plan.cause
            receipts = () if incident_plan is None else incident_plan.receipts
        steps = [receipt.action for receipt in receipts]
        mode_decision = self._now.exempt.limit_mode(self.decide_mode(cause, incident.place), steps)
        requested = self._proposal(incident, cause, steps)
        limits = {} if requested is None else requested.limit_seconds
        mode = mode_decision if requested is None else requested.allowed
        refusals = [] if requested is None else self.repairs.refusals(progress.new_repair(requested, 1, now), now)
        return explanation.Explanation(
            incident=incident.id,
            cause=cause,
            policy_key=self._now.parts.policy.entry(cause, self._pool(incident.place))[0],
            mode=mode.mode,
            mode_why=mode.why,
            digest=None if requested is None else requested.digest,
            why_not=explanation.why_no_machine_action(requested, mode_decision, steps)
            if receipts
            else "there is no plan yet",
            steps=tuple(
                explanation.ExplanationStep(step.kind, str(step.place), step.why, receipt.text, limits.get(step.id))
                for step, receipt in zip(steps, receipts, strict=True)
            ),
            refusals=tuple(refusals),
            repair=repair,
        )

    def _under_way(self, repair: Repair, now: datetime) -> tuple[actions.Receipt, ...]:
        done = {receipt.action.id: receipt for receipt in repair.receipts}
        draft = plan.PlanDraft(repair.incident, repair.cause, "", repair.mode, repair.actions)
        described = plan.dry_run(draft, self._now.parts.driver, now=now).receipts
        return tuple(done.get(receipt.action.id, receipt) for receipt in described)

    def simulate_policy(self, candidate: policy.RepairPolicy) -> list[explanation.ReplayedIncident]:
        """The plan of each incident in the journal under another policy."""
        past = self._now.parts.journal.incidents(limit=explanation.MAX_REPLAYED_INCIDENTS)
        rules = explanation.PolicyReplayRules(candidate, self.trust_rules, self.limits, self._now.parts.fleet.nodes())
        return explanation.replay_incidents(past, rules)

    def retry(self, id: str, actor: str) -> Repair:
        """Start another attempt for a person."""
        requested = self.requested_repair(id)
        incident = self._now.parts.journal.incident(id)
        if incident is not None and not incident.is_open:
            raise InvalidTransition("the incident is resolved, so there is nothing to repair", where=id)
        if requested is None:
            raise InvalidTransition(
                "its plan has no automatic step", where=id, remedy=f"See `watchkeeper act explain {id}`"
            )
        return self.control.retry(requested, actor=actor, now=self._clock.now())

    def audit(self, limit: int) -> list[chain.JournalEntry]:
        """The newest entries about repairs (decisions, approvals, refusals, calls, results), oldest first."""
        kinds = (registry.TIMELINE_ENTRY, registry.AUDIT_ENTRY, journals.REPAIR_SWITCH)
        entries = [entry for kind in kinds for entry in self._now.parts.journal.entries_of(kind, limit)]
        return sorted(entries, key=lambda entry: entry.seq)[-limit:]

    def _proposal(self, incident: Incident, cause: str, steps: Iterable[actions.Action]) -> RepairProposal | None:
        planned, pool = tuple(steps), self._pool(incident.place)
        mode_decision = self._now.exempt.limit_mode(self.decide_mode(cause, incident.place), planned)
        return propose_repair(
            incident, cause, planned, policy=self._now.parts.policy, pool=pool, mode_decision=mode_decision
        )

    def decide_mode(self, cause: str, place: fleet_model.Place) -> trust_rules.ModeDecision:
        return self.trust_rules.decide_mode(cause, self._pool(place))

    def _pool(self, place: fleet_model.Place) -> str:
        return self._now.parts.fleet.pool_of(place)

    # Loops

    async def _tick(self) -> None:
        for id in await self._in_thread(lambda: self.repairs.sweep(self._clock.now())):
            self._start(self._follow(id))
        handover = self._now.hand_over
        if handover is not None:
            await self._in_thread(lambda: handover.hand_over_failed(self.repairs.active_repairs(), self._clock.now()))
        # On a thread: reading the repairs waits for one that is being stored.
        await self._in_thread(self._measure)
        if not self._has_resubmitted:
            await self._in_thread(self._resubmit_plans)
            self._has_resubmitted = True

    def _resubmit_plans(self) -> None:
        """After a start: settings may allow more now, or a plan may be newer than its repair."""
        for incident in self._now.parts.journal.incidents(open_only=True, limit=repairs.MAX_ACTIVE_REPAIRS):
            self.submit_plan(incident.id)

    async def _follow(self, id: RepairId) -> None:
        """Advance one repair until it waits for longer than a tick."""
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
        except Exception as error:  # Deliberately everything: one broken repair must not block the others.
            self._now.parts.report_failure(f"repair {id}", error)
        finally:
            self._followed.discard(id)

    def _advance(self, id: RepairId) -> datetime | None:
        due: datetime | None = None
        for _ in range(MAX_TRANSITIONS):
            due = self.repairs.advance(id, self._clock.now())
            if due is None or due > self._clock.now():
                break
        return due

    def _measure(self) -> None:
        alive = self.repairs.active_repairs()
        self._count.values.clear()
        for state in {repair.state for repair in alive}:
            self._count.set(sum(repair.state is state for repair in alive), state=state)
        self._out.set(sum(repair.is_out_of_service for repair in alive))
        self._halted.set(float(self.repairs.switch.is_stopped), by="person")
        self._halted.set(float(self.repairs.switch.is_tripped), by="breaker")

    # Callbacks

    def _out_of_service(self) -> Mapping[fleet_model.Place, str]:
        return {
            fleet_model.Place(node.cluster, node=node.name): node.unschedulable_by or node.reason or "unknown"
            for view in self._now.parts.clusters.views()
            for node in view.nodes
            if not node.is_schedulable
        }

    def _unreadable_schedulers(self) -> list[str]:
        """Why nodes that others took out of service may be missing from `_out_of_service`."""
        now = self._clock.now().timestamp()
        return [
            f"{view.source} {'never answered' if view.at_ms is None else 'does not answer'}"
            f"{f': {view.problem}' if view.problem else ''}"
            for view in self._now.parts.clusters.views()
            if not cluster_series.speaks_for(view, now)
        ]

    def _faulty_gpus(self) -> Mapping[fleet_model.Place, int]:
        """GPUs with a critical hardware fault, by node; all GPUs of a node if the node itself has the fault."""
        if not self.limits.quorums:
            return {}
        faulty: dict[fleet_model.Place, set[str]] = {}
        whole_nodes: dict[fleet_model.Place, int] = {}
        for incident in self._now.parts.journal.incidents(open_only=True, limit=repairs.MAX_ACTIVE_REPAIRS):
            place, row = incident.place, causes.lookup(incident.cause)
            if place.node is None or not row.is_hardware or row.severity is not alerts.Severity.CRITICAL:
                continue
            node = place.whole_node
            inventory_node = self._now.parts.fleet.node(place.node, place.cluster)
            if place.gpu is not None:
                faulty.setdefault(node, set()).add(place.gpu)
            elif inventory_node is not None:
                whole_nodes[node] = inventory_node.expected_gpus or 0
        return {**{node: len(gpus) for node, gpus in faulty.items()}, **whole_nodes}

    def _report(self, event: events.Event) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(lambda: self._start(self._report_event(event)))

    async def _report_event(self, event: events.Event) -> None:
        try:
            await self._now.parts.report(event)
        except Exception as error:  # Deliberately everything: no caller awaits this task.
            self._now.parts.report_failure("repair report", error)

    def _changed(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._now.parts.changed)

    async def run_on_repair_thread(self, work: Callable[[], T]) -> T:
        """For requests of people that may wait for a call about the same node."""
        return await self._in_thread(work)

    async def run_now(self, work: Callable[[], T]) -> T:
        """For requests that must not wait behind calls that hang."""
        return await asyncio.to_thread(work)

    def advance_soon(self, repair: Repair) -> None:
        """Advance a repair after an approval, without waiting for a tick."""
        if repair.is_running:
            self._start(self._follow(repair.id))

    def recent_repairs(self, limit: int) -> list[Repair]:
        """The newest repairs, also ended ones."""
        return self._now.parts.journal.latest_repairs(limit=limit)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _start(self, body: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(body)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def build_trust_rules(settings: config.RemediateSettings) -> trust_rules.TrustRules:
    """SettingsError for an unknown cause: such a rule would never match."""
    problems = tuple(
        f"remediate.trust[{at}].cause: unknown cause {quote(rule.cause)}; packs/causes.csv lists all causes"
        for at, rule in enumerate(settings.trust)
        if rule.cause is not None and rule.cause not in {row.cause for row in causes.all_causes()}
    )
    if problems:
        raise SettingsError("the trust rules have errors", problems=problems, where="[remediate]")
    rules = tuple(trust_rules.TrustRule(rule.mode, rule.cause, rule.pool) for rule in settings.trust)
    return trust_rules.TrustRules(settings.mode, rules)


def build_limits(settings: config.RemediateSettings) -> guards.GuardLimits:
    def duration(text: str) -> timedelta:
        return timedelta(seconds=durations.parse_seconds(text))

    return guards.GuardLimits(
        settings.pool_percent,
        settings.fleet_percent,
        settings.starts,
        duration(settings.starts_window),
        settings.attempts,
        duration(settings.attempts_window),
        settings.breaker_nodes,
        duration(settings.breaker_window),
        settings.one_per_domain,
        tuple(quiet_hours.parse(text) for text in settings.quiet_hours),
        tuple(guards.Quorum(quorum.job_class, quorum.pool, quorum.gpus) for quorum in settings.quorum),
        settings.reclaims,
    )


def load_policy(settings: config.RemediateSettings, *, gives_orders: bool = False) -> policy.RepairPolicy:
    """The policy that the settings choose; agents that accept work orders check a node before it is uncordoned."""
    repair_policy = policy.load(None if settings.policy is None else Path(settings.policy), reclaim=settings.reclaim)
    with_wait = policy.set_owner_wait(repair_policy, settings.reclaim_wait if settings.reclaim else None)
    default_checks = tuple(validation.NODE_CHECKS) if gives_orders else ()
    return policy.add_checks(with_wait, default_checks if settings.node_checks is None else settings.node_checks)
