"""Run repairs: plans become repairs, due repairs advance, and people approve or stop them.

Changed incidents have a fast path: for a critical hardware fault in mode `act`, the cordon is sent before the diagnosis
and without waiting for a loop. Calls to a cluster run in separate threads, so that neither events nor pages wait for
them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from watchkeeper import __version__
from watchkeeper.catalogue import causes
from watchkeeper.clusters import cluster_series, clusters
from watchkeeper.config import settings as config
from watchkeeper.errors import HubError, InvalidTransition, SettingsError, quote
from watchkeeper.hub.runtime import Loop
from watchkeeper.kit import clock, durations, own_metrics, quiet_hours
from watchkeeper.kit.logs import fields
from watchkeeper.model import actions, alerts, events
from watchkeeper.model import fleet as fleet_model
from watchkeeper.model.incidents import Incident
from watchkeeper.model.repairs import Repair, RepairId
from watchkeeper.query import engine as engines
from watchkeeper.remediate import (
    control,
    driver,
    evidence,
    explanation,
    guards,
    plan,
    policy,
    progress,
    reclaim,
    registry,
    repairs,
    trust_rules,
    validation,
)
from watchkeeper.remediate.drivers import kubernetes
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
# Concurrent calls to a cluster; more would only hit its rate limits.
MAX_CALLS = 8
# Drivers of schedulers that other people and tools change too.
CLUSTER_DRIVERS = frozenset({config.DriverName.KUBERNETES, config.DriverName.SLURM})
# Maximum transitions of a repair without a pause; a plan has about ten.
MAX_TRANSITIONS = 100


@dataclass(frozen=True, slots=True)
class RepairLoopDependencies:
    """`report` receives an event about a node that a repair keeps out of service."""

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
    connected: kubernetes.KubernetesDriver | None = None
    # The directory for evidence about handed-over nodes; None: do not write it.
    bundles: Path | None = None


@dataclass(frozen=True, slots=True)
class JournalBinding:
    """The objects that belong to one journal, replaced together when another journal is opened."""

    parts: RepairLoopDependencies
    exemptions: reclaim.Exemptions
    repairs: Repairs
    control: control.RepairControl
    hand_over: evidence.NodeHandOver | None


class RepairLoop:
    def __init__(
        self, settings: config.RemediateSettings, *, cluster: str, time: clock.Clock, metrics: own_metrics.Registry
    ) -> None:
        """`cluster` is the cluster of the nodes that a scheduler's driver changes."""
        self._settings, self._clock = settings, time
        self._binding: JournalBinding | None = None
        self.trust_rules = build_trust_rules(settings)
        self.limits = build_limits(settings)
        if settings.driver in CLUSTER_DRIVERS:
            self.limits = replace(self.limits, cluster=cluster)
        self._threads = ThreadPoolExecutor(MAX_CALLS, thread_name_prefix="repair")
        self._advancing: set[RepairId] = set()
        self._urgent_starts = 0
        # Repairs and incidents with a timeline entry that the cause stays unchanged.
        self._noted_causes: set[tuple[str, str]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._has_resubmitted = False
        gauge = metrics.gauge
        self._repair_count = gauge(
            "watchkeeper_remediate_repairs", "Repairs that wait, run or keep a node out of service, by state"
        )
        self._nodes_out_of_service = gauge(
            "watchkeeper_remediate_nodes_out_of_service", "Nodes that are out of service because of repairs"
        )
        self._halted = gauge(
            "watchkeeper_remediate_halted", "1 while repairs are halted by a person or by the circuit breaker"
        )

    def bind_journal(self, parts: RepairLoopDependencies) -> None:
        exemptions = reclaim.Exemptions(self._settings.reclaim_exempt, parts.clusters.team_of)
        if self._settings.driver in CLUSTER_DRIVERS and not parts.clusters.schedulers:
            log.warning(
                "no scheduler configured, budgets do not count nodes that others cordoned",
                extra=fields(remedy="Set the scheduler in [fleet]"),
            )
        soak = _duration(self._settings.xid_quiet)
        hub_validators = validation.hub_validators(parts.engine, parts.journal, soak=soak)
        repair_dependencies = registry.RepairDependencies(
            parts.journal,
            parts.driver,
            self.limits,
            {validator.name: validator for validator in (*hub_validators, *parts.validators)},
            list_nodes=parts.fleet.nodes,
            out_of_service=self._out_of_service,
            unreadable_schedulers=self._unreadable_schedulers,
            count_faulty_gpus=self._count_faulty_gpus,
            report_event=self._report,
            on_change=self._announce_change,
            current_mode=lambda repair: exemptions.limit_mode(
                self.trust_rules.decide_mode(repair.cause, repair.pool), repair.actions
            ),
            check_idle=reclaim.IdleCheck(parts.engine).check,
            check_boot=validation.BootCheck(parts.engine, parts.journal).check,
        )
        journal_repairs = Repairs(repair_dependencies, now=self._clock.now())
        handover = None
        if parts.bundles is not None:
            sources = evidence.EvidenceSources(parts.journal, parts.engine, parts.fleet, __version__)
            limit = self._settings.hand_over_after
            handover = evidence.NodeHandOver(parts.journal, sources, parts.bundles, limit=limit)
        self._has_resubmitted = False
        self._binding = JournalBinding(
            parts,
            exemptions,
            journal_repairs,
            control.RepairControl(journal_repairs, approval_lifetime=_duration(self._settings.approval)),
            handover,
        )

    @property
    def _current(self) -> JournalBinding:
        if self._binding is None:
            raise HubError("the journal is not read yet", status=503)
        return self._binding

    @property
    def _parts(self) -> RepairLoopDependencies:
        return self._current.parts

    @property
    def repairs(self) -> Repairs:
        return self._current.repairs

    @property
    def control(self) -> control.RepairControl:
        return self._current.control

    def loops(self) -> list[Loop]:
        self._loop = asyncio.get_running_loop()
        loops = [Loop("repairs", self._tick, TICK_SECONDS)]
        if (connected := self._parts.connected) is not None:
            keep_connected = partial(self.run_on_repair_thread, connected.keep_connected)
            loops.append(Loop("repair connection", keep_connected, READY_SECONDS))
        return loops

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)
        if self._binding is not None and self._binding.parts.connected is not None:
            self._binding.parts.connected.close()

    # Incidents and plans

    def start_urgent(self, changed: Iterable[Incident]) -> None:
        """Start urgent repairs without waiting for a diagnosis; runs on the hub's event loop."""
        for incident in changed:
            if is_urgent(incident, self.decide_mode(incident.cause, incident.place).mode):
                self._start_task(self._start_urgent(incident))

    @property
    def is_stopped(self) -> bool:
        """Whether a person halted repairs; drivers check this between the calls of an action."""
        return self.repairs.switch.is_stopped

    @property
    def is_starting(self) -> bool:
        """Whether an urgent cordon is being sent; less urgent work waits."""
        return self._urgent_starts > 0

    async def _start_urgent(self, incident: Incident) -> None:
        self._urgent_starts += 1
        try:
            repair = await self.run_on_repair_thread(lambda: self._submit_urgent(incident))
        except Exception as error:  # Deliberately everything: the diagnosis starts the same repair later.
            self._parts.report_failure(f"urgent repair of {incident.id}", error)
            return
        finally:
            self._urgent_starts -= 1
        if repair is not None:
            await self._advance_until_waiting(repair.id)

    def _submit_urgent(self, incident: Incident) -> Repair | None:
        pool = self._pool_of(incident.place)
        nodes_of = self._parts.fleet.nodes_in_domain
        draft = plan.make_plan(incident, None, self._parts.policy, pool=pool, nodes_of=nodes_of)
        proposal = self._propose(incident, draft.cause, draft.actions)
        repair = None if proposal is None else self.repairs.submit(proposal, self._clock.now())
        if repair is not None and repair.is_running:
            self.repairs.advance(repair.id, self._clock.now())
        return repair

    def submit_plan(self, id: str) -> None:
        """Submit the plan of an incident as a repair, which waits, asks for approval or starts; from any thread."""
        incident = self._parts.journal.incident(id)
        is_faulty = incident is not None and incident.is_open and incident.recovering_since is None
        requested = self.requested_repair(id) if is_faulty else None
        repair = None if requested is None else self.repairs.submit(requested, self._clock.now())
        if repair is not None and repair.is_running and self._loop is not None:
            self._loop.call_soon_threadsafe(lambda: self._start_task(self._advance_until_waiting(repair.id)))

    def keeps_cause(self, incident: Incident) -> bool:
        """Whether the cause stays unchanged because a running repair may explain new symptoms, such as a reboot."""
        repair = self.repairs.find(incident.id)
        if repair is None or not (repair.is_running and repair.has_acted):
            return False
        if self._parts.journal.diagnosis(incident.id) is None:
            return False
        if (repair.id, incident.id) not in self._noted_causes:
            if len(self._noted_causes) >= repairs.MAX_ACTIVE_REPAIRS:
                self._noted_causes.clear()
            self._noted_causes.add((repair.id, incident.id))
            self.repairs.note_unchanged_cause(repair, incident.id, self._clock.now())
        return True

    def requested_repair(self, id: str) -> RepairProposal | None:
        """The repair that the plan of an incident requests; None if it requests none."""
        incident, incident_plan = self._parts.journal.incident(id), self._parts.journal.plan(id)
        if incident is None or incident_plan is None:
            return None
        return self._propose(incident, incident_plan.cause, [receipt.action for receipt in incident_plan.receipts])

    def explain(self, incident: Incident) -> explanation.Explanation:
        """Explain the plan of an incident, its mode, and which guards refuse it now."""
        incident_plan, now = self._parts.journal.plan(incident.id), self._clock.now()
        repair = self.repairs.find(incident.id)
        if repair is not None and (repair.is_running or repair.keeps_cordon):
            # Show the running repair, not the plan of a newer diagnosis of the rebooted node.
            cause, receipts = repair.cause, self._receipts_of(repair, now)
        else:
            cause = incident.cause if incident_plan is None else incident_plan.cause
            receipts = () if incident_plan is None else incident_plan.receipts
        steps = [receipt.action for receipt in receipts]
        mode_decision = self._current.exemptions.limit_mode(self.decide_mode(cause, incident.place), steps)
        requested = self._propose(incident, cause, steps)
        limits = {} if requested is None else requested.limit_seconds
        mode = mode_decision if requested is None else requested.allowed
        refusals = [] if requested is None else self.repairs.refusals(progress.new_repair(requested, 1, now), now)
        return explanation.Explanation(
            incident=incident.id,
            cause=cause,
            policy_key=self._parts.policy.entry(cause, self._pool_of(incident.place))[0],
            mode=mode.mode,
            mode_why=mode.why,
            digest=None if requested is None else requested.digest,
            why_not=explanation.why_no_machine_action(requested, mode_decision.mode, steps)
            if receipts
            else "no plan yet",
            steps=tuple(
                explanation.ExplanationStep(step.kind, str(step.place), step.why, receipt.text, limits.get(step.id))
                for step, receipt in zip(steps, receipts, strict=True)
            ),
            refusals=tuple(refusals),
            repair=repair,
        )

    def _receipts_of(self, repair: Repair, now: datetime) -> tuple[actions.Receipt, ...]:
        receipts_by_action = {receipt.action.id: receipt for receipt in repair.receipts}
        draft = plan.PlanDraft(repair.incident, repair.cause, "", repair.mode, repair.actions)
        dry_run_receipts = plan.dry_run(draft, self._parts.driver, now=now).receipts
        return tuple(receipts_by_action.get(receipt.action.id, receipt) for receipt in dry_run_receipts)

    def simulate_policy(self, candidate: policy.RepairPolicy) -> list[explanation.ReplayedIncident]:
        past = self._parts.journal.incidents(limit=explanation.MAX_REPLAYED_INCIDENTS)
        nodes = self._parts.fleet.nodes()
        return explanation.PolicyReplay(candidate, self.trust_rules, self.limits, nodes=nodes).replay(past)

    def retry(self, id: str, actor: str) -> Repair:
        requested = self.requested_repair(id)
        incident = self._parts.journal.incident(id)
        if incident is not None and not incident.is_open:
            raise InvalidTransition("the incident is resolved; nothing to repair", where=id)
        if requested is None:
            remedy = f"See `watchkeeper act explain {id}`"
            raise InvalidTransition("the plan has no automatic step", where=id, remedy=remedy)
        return self.control.retry(requested, actor=actor, now=self._clock.now())

    def audit(self, limit: int) -> list[chain.JournalEntry]:
        """The newest entries about repairs (decisions, approvals, refusals, calls, results), oldest first."""
        kinds = (registry.TIMELINE_ENTRY, registry.AUDIT_ENTRY, journals.REPAIR_SWITCH)
        entries = [entry for kind in kinds for entry in self._parts.journal.entries_of(kind, limit)]
        return sorted(entries, key=lambda entry: entry.seq)[-limit:]

    def _propose(self, incident: Incident, cause: str, steps: Iterable[actions.Action]) -> RepairProposal | None:
        planned, pool, policy = tuple(steps), self._pool_of(incident.place), self._parts.policy
        mode_decision = self._current.exemptions.limit_mode(self.decide_mode(cause, incident.place), planned)
        return propose_repair(incident, cause, planned, policy=policy, pool=pool, mode_decision=mode_decision)

    def decide_mode(self, cause: str, place: fleet_model.Place) -> trust_rules.ModeDecision:
        return self.trust_rules.decide_mode(cause, self._pool_of(place))

    def _pool_of(self, place: fleet_model.Place) -> str:
        return self._parts.fleet.pool_of(place)

    # Loops

    async def _tick(self) -> None:
        for id in await self.run_on_repair_thread(lambda: self.repairs.sweep(self._clock.now())):
            self._start_task(self._advance_until_waiting(id))
        if (handover := self._current.hand_over) is not None:
            await self.run_on_repair_thread(
                lambda: handover.hand_over_failed(self.repairs.active_repairs(), self._clock.now())
            )
        # On a thread: reading repairs can wait for a write.
        await self.run_on_repair_thread(self._update_metrics)
        if not self._has_resubmitted:
            await self.run_on_repair_thread(self._resubmit_plans)
            self._has_resubmitted = True

    def _resubmit_plans(self) -> None:
        """After a start, submit all plans again: settings may allow more, or a plan may be newer than its repair."""
        for incident in self._parts.journal.incidents(open_only=True, limit=repairs.MAX_ACTIVE_REPAIRS):
            self.submit_plan(incident.id)

    async def _advance_until_waiting(self, id: RepairId) -> None:
        """Advance a repair until it waits for longer than a tick."""
        if id in self._advancing:
            return
        self._advancing.add(id)
        try:
            while (due := await self.run_on_repair_thread(lambda: self._advance(id))) is not None:
                pause = (due - self._clock.now()).total_seconds()
                if pause > TICK_SECONDS:
                    return
                if pause > 0:
                    await self._clock.sleep(pause)
        except Exception as error:  # Deliberately everything: one broken repair must not block the others.
            self._parts.report_failure(f"repair {id}", error)
        finally:
            self._advancing.discard(id)

    def _advance(self, id: RepairId) -> datetime | None:
        due: datetime | None = None
        for _ in range(MAX_TRANSITIONS):
            due = self.repairs.advance(id, self._clock.now())
            if due is None or due > self._clock.now():
                break
        return due

    def _update_metrics(self) -> None:
        active = self.repairs.active_repairs()
        self._repair_count.values.clear()
        for state in {repair.state for repair in active}:
            self._repair_count.set(sum(repair.state is state for repair in active), state=state)
        self._nodes_out_of_service.set(sum(repair.is_out_of_service for repair in active))
        self._halted.set(float(self.repairs.switch.is_stopped), by="person")
        self._halted.set(float(self.repairs.switch.is_tripped), by="breaker")

    # Callbacks

    def _out_of_service(self) -> Mapping[fleet_model.Place, str]:
        return {
            fleet_model.Place(node.cluster, node=node.name): node.unschedulable_by or node.reason or "unknown"
            for view in self._parts.clusters.views()
            for node in view.nodes
            if not node.is_schedulable
        }

    def _unreadable_schedulers(self) -> list[str]:
        """Schedulers without a current answer, whose cordoned nodes may be missing from `_out_of_service`."""
        now = self._clock.now().timestamp()
        return [
            f"{view.source} {'never answered' if view.at_ms is None else 'does not answer'}"
            f"{f': {view.problem}' if view.problem else ''}"
            for view in self._parts.clusters.views()
            if not cluster_series.is_current(view, now)
        ]

    def _count_faulty_gpus(self) -> Mapping[fleet_model.Place, int]:
        """The number of GPUs with a critical hardware fault, by node; all its GPUs if the node has the fault."""
        if not self.limits.quorums:
            return {}
        faulty: dict[fleet_model.Place, set[str]] = {}
        whole_nodes: dict[fleet_model.Place, int] = {}
        for incident in self._parts.journal.incidents(open_only=True, limit=repairs.MAX_ACTIVE_REPAIRS):
            place, row = incident.place, causes.lookup(incident.cause)
            if place.node is None or not row.is_hardware or row.severity is not alerts.Severity.CRITICAL:
                continue
            node = place.whole_node
            inventory_node = self._parts.fleet.node(place.node, place.cluster)
            if place.gpu is not None:
                faulty.setdefault(node, set()).add(place.gpu)
            elif inventory_node is not None:
                whole_nodes[node] = inventory_node.expected_gpus or 0
        return {**{node: len(gpus) for node, gpus in faulty.items()}, **whole_nodes}

    def _report(self, event: events.Event) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(lambda: self._start_task(self._report_event(event)))

    async def _report_event(self, event: events.Event) -> None:
        try:
            await self._parts.report(event)
        except Exception as error:  # Deliberately everything: no caller awaits this task.
            self._parts.report_failure("repair report", error)

    def _announce_change(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._parts.changed)

    async def run_on_repair_thread(self, work: Callable[[], T]) -> T:
        """Run work, such as a request of a person, that may wait for a call about the same node."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def run_now(self, work: Callable[[], T]) -> T:
        """Run a request that must not wait for calls that hang."""
        return await asyncio.to_thread(work)

    def advance_soon(self, repair: Repair) -> None:
        """Advance a repair after an approval, without waiting for a tick."""
        if repair.is_running:
            self._start_task(self._advance_until_waiting(repair.id))

    def recent_repairs(self, limit: int) -> list[Repair]:
        return self._parts.journal.latest_repairs(limit=limit)

    def _start_task(self, body: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(body)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def build_trust_rules(settings: config.RemediateSettings) -> trust_rules.TrustRules:
    """The trust rules of the settings; SettingsError for an unknown cause, which would never match."""
    problems = tuple(
        f"remediate.trust[{at}].cause: unknown cause {quote(rule.cause)}; packs/causes.csv lists all causes"
        for at, rule in enumerate(settings.trust)
        if rule.cause is not None and rule.cause not in {row.cause for row in causes.all_causes()}
    )
    if problems:
        raise SettingsError("invalid trust rules", problems=problems, where="[remediate]")
    rules = tuple(trust_rules.TrustRule(rule.mode, rule.cause, rule.pool) for rule in settings.trust)
    return trust_rules.TrustRules(settings.mode, rules)


def _duration(text: str) -> timedelta:
    return timedelta(seconds=durations.parse_seconds(text))


def build_limits(settings: config.RemediateSettings) -> guards.GuardLimits:
    return guards.GuardLimits(
        settings.pool_percent,
        settings.fleet_percent,
        settings.starts,
        _duration(settings.starts_window),
        settings.attempts,
        _duration(settings.attempts_window),
        settings.breaker_nodes,
        _duration(settings.breaker_window),
        settings.one_per_domain,
        tuple(quiet_hours.parse(text) for text in settings.quiet_hours),
        tuple(guards.Quorum(quorum.job_class, quorum.pool, quorum.gpus) for quorum in settings.quorum),
        settings.reclaims,
    )


def load_policy(settings: config.RemediateSettings, *, gives_orders: bool = False) -> policy.RepairPolicy:
    """The policy of the settings; with work orders, agents check a node before it is uncordoned."""
    repair_policy = policy.load(None if settings.policy is None else Path(settings.policy), reclaim=settings.reclaim)
    with_wait = policy.set_owner_wait(repair_policy, settings.reclaim_wait if settings.reclaim else None)
    default_checks = tuple(validation.NODE_CHECKS) if gives_orders else ()
    return policy.add_checks(with_wait, default_checks if settings.node_checks is None else settings.node_checks)
