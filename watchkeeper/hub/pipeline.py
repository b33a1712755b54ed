"""Connect the stages from samples to repair plans, without a clock, a loop or a thread.

Rules make alerts, alerts and events make incidents, and an incident gets a diagnosis and a plan. The hub calls the
pipeline from its loops; a drill calls it as fast as possible. `now` is a parameter.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, islice

from watchkeeper.diagnose import corrections, evidence, explain
from watchkeeper.errors import StoreError, WatchkeeperError
from watchkeeper.incidents import domains, external_alerts, footprint, recovery, tracker
from watchkeeper.kit import clock
from watchkeeper.kit.logs import fields
from watchkeeper.model import actions, alerts, diagnosis, events, labels, samples
from watchkeeper.model import fleet as fleet_model
from watchkeeper.model.incidents import Incident, IncidentId
from watchkeeper.model.repairs import Repair
from watchkeeper.query import engine as engines
from watchkeeper.remediate import driver, plan, policy, trust_rules
from watchkeeper.remediate.drivers import cluster_driver
from watchkeeper.rules import evaluate, rulefile
from watchkeeper.scrape import fleet
from watchkeeper.store.journal import journal as journals

log = logging.getLogger(__name__)

# Takes about a tenth of a second.
ALERT_BATCH = 200
# Events of one place that a diagnosis reads: twenty minutes of a node that reports twice a second.
MAX_EVENTS = 2_000


@dataclass(frozen=True, slots=True)
class PipelineDependencies:
    engine: engines.Engine
    fleet: fleet.ScrapedInventory
    journal: journals.Journal
    rules: rulefile.RuleSet
    policy: policy.RepairPolicy
    driver: driver.Driver
    trust_rules: trust_rules.TrustRules
    # Incidents with a running repair on a node; called without a lock, on the journal thread.
    under_repair: Callable[[fleet_model.Place], Collection[str]] = lambda _: ()
    # The repair that runs for an incident, or keeps its node cordoned; called as `under_repair`.
    active_repair: Callable[[IncidentId], Repair | None] = lambda _: None
    # The time of the newest sample before this start, when the previous hub was still running.
    newest_ms: int | None = None


def dry_run_dependencies(
    engine: engines.Engine, inventory: fleet.ScrapedInventory, *, journal: journals.Journal, rules: rulefile.RuleSet
) -> PipelineDependencies:
    """The shipped policy and the dry-run driver, which changes nothing: for drills and tests."""
    driver, no_rules = cluster_driver.DryRunDriver(), trust_rules.TrustRules()
    return PipelineDependencies(engine, inventory, journal, rules, policy.load(), driver, no_rules)


class Pipeline:
    """Not thread-safe, except that `evaluate`, `diagnose` and all other methods may run on one thread each."""

    def __init__(self, parts: PipelineDependencies, *, now: datetime) -> None:
        self._parts = parts
        self._rules = parts.rules
        self._rule_engine = parts.engine.for_rules()
        self._now = now
        footprints = footprint.Footprints(parts.engine, lambda: self._now)
        self.holders = footprint.Holders(parts.engine, lambda: self._now)
        self.incidents = tracker.IncidentTracker(
            parts.journal,
            now=now,
            names=parts.fleet.place_name,
            workloads=self.holders.workloads_at,
            domains=domains.Domains(
                parts.fleet.failure_domains, parts.fleet.nodes_in_domain, footprints.footprint_of, parts.fleet.pool_of
            ),
            under_repair=parts.under_repair,
            active_repair=parts.active_repair,
            last_alive=None if parts.newest_ms is None else clock.from_ms(parts.newest_ms),
        )
        # Alerts that changed and are not in the journal yet, each in its newest state.
        self._undelivered: dict[labels.Labels, alerts.Alert] = {}
        self._external = external_alerts.ExternalAlerts(parts.journal.alerts(), now=now)
        self.corrections = corrections.Corrections(
            corrections.read_correction(entry.subject, entry.at, entry.actor, body=entry.body)
            for entry in parts.journal.entries_of(corrections.KIND)
        )
        self._ended_series: Sequence[samples.Sample] = ()
        self._started_at, self._evaluated_groups = now, set[str]()
        self._first_evaluation: datetime | None = None
        self._ages: dict[str, Mapping[labels.Labels, float]] = {}
        self.rule_state: evaluate.RuleStates = {}
        # Without loaded rules, a server evaluates rules and reports resolved alerts.
        if parts.rules.groups:
            # External alerts last until their own Alertmanager reports them as resolved.
            own = [alert for alert in self._parts.journal.alerts() if external_alerts.SOURCE_LABEL not in alert.labels]
            restored = evaluate.restore_alerts(self._rules, own)
            self.rule_state, self._ended_series, ended = evaluate.retire_rules(restored, self._rules, now=now)
            self._undelivered.update((alert.labels, alert) for alert in ended)

    def change_rules(self, rules: rulefile.RuleSet, now: datetime) -> list[alerts.Alert]:
        """Replace the rules and return the resolved alerts of removed rules, for `ingest_alerts`.

        An unchanged rule keeps its pending and firing alerts. Call it on the thread that calls `evaluate`.
        """
        before = {group.key for group in self._rules.groups}
        self.rule_state, ended, resolved = evaluate.retire_rules(self.rule_state, rules, now=now)
        # State from before a restart does not apply to groups that were added later.
        self._evaluated_groups = (self._evaluated_groups & before) | ({group.key for group in rules.groups} - before)
        self._rules = rules
        self._ended_series = (*self._ended_series, *ended)
        self._append_stale_markers()
        return list(resolved)

    def _append_stale_markers(self) -> None:
        """Append stale markers for the series of removed rules; if that fails, the next evaluation retries."""
        if self._ended_series:
            try:
                self._parts.engine.appender.append(self._ended_series)
            except WatchkeeperError as error:
                log.warning("appending stale markers failed, retrying", extra=fields(error=error))
                return
            self._ended_series = ()

    def evaluate(self, group: rulefile.RuleGroup, now: datetime) -> list[alerts.Alert]:
        """Evaluate the rules of a group in order, each after the samples of the previous one; return changed alerts.

        A group that a reload has removed is skipped.
        """
        changed: list[alerts.Alert] = []
        if not any(group is known_group for known_group in self._rules.groups):
            return changed
        self._append_stale_markers()
        self._first_evaluation = self._first_evaluation or now
        is_first = group.key not in self._evaluated_groups
        if is_first:
            since_ms = clock.to_ms(now) - self._parts.engine.limits().lookback_ms

            def series_before_restart(key: str) -> Iterable[labels.Labels]:
                """The series of a rule without a stale marker; empty for a remote engine."""
                return self._parts.engine.appender.active_series(_group_key(key), since_ms).values()

            self.rule_state = evaluate.with_series_before_restart(group, self.rule_state, series_before_restart)
            self._restore_keep_firing(group, now)
            self._delay_resolves(group, now)
        states: dict[str, evaluate.RuleState] = {}
        try:
            for result in evaluate.evaluate_each(group, self._rule_engine, self.rule_state, now=now):
                self._parts.engine.appender.append(result.samples, group_key=_group_key(result.key))
                states[result.key] = result.state
                changed += result.changes
        finally:
            # Keep the state of rules with appended samples even if a later rule fails.
            self.rule_state = {**self.rule_state, **states}
        if is_first:
            self._evaluated_groups.add(group.key)
            self._restore_pending(group)
        return changed

    def _delay_resolves(self, group: rulefile.RuleGroup, now: datetime) -> None:
        """Before the first evaluation of a group: delay the resolution of alerts from before this start."""
        keys = [evaluate.rule_key(group, rule) for rule in group.rules]
        if not any(self.rule_state[key].alerts for key in keys):
            return
        try:
            since = evaluate.evaluated_since(self._parts.engine, now)
        except WatchkeeperError as error:
            details = fields(group=group.name, error=error)
            log.warning("restoring resolve delay failed, alerts may resolve early", extra=details)
            return
        if since is not None:
            watch = evaluate.EvaluationCoverage(self._first_evaluation or now, since)
            self.rule_state = evaluate.with_resolve_delays(group, self.rule_state, watch)

    def _restore_keep_firing(self, group: rulefile.RuleGroup, now: datetime) -> None:
        """Before a group's first evaluation: restore how much of `keep_firing_for` has passed."""
        keeping = [rule for rule in group.rules if isinstance(rule, rulefile.AlertingRule) and rule.keep_firing_seconds]
        state = {key: self.rule_state[key] for key in (evaluate.rule_key(group, rule) for rule in keeping)}
        if any(rule_state.alerts for rule_state in state.values()):
            kept_since = self._ages_before_restart(evaluate.KEPT_SINCE, group)
            self.rule_state = {**self.rule_state, **evaluate.restore_keep_firing(state, kept_since, now=now)}

    def _restore_pending(self, group: rulefile.RuleGroup) -> None:
        """After a group's first evaluation: restore how long an alert was pending before the restart."""
        state = {key: self.rule_state[key] for key in (evaluate.rule_key(group, rule) for rule in group.rules)}
        active = (alert for rule_state in state.values() for alert in rule_state.alerts.values())
        if any(alert.state is alerts.AlertState.PENDING for alert in active):
            pending_since = self._ages_before_restart(evaluate.ALERTS_FOR_STATE, group)
            self.rule_state = {**self.rule_state, **evaluate.restore_pending_ages(state, pending_since)}

    def _ages_before_restart(self, name: str, group: rulefile.RuleGroup) -> Mapping[labels.Labels, float]:
        """The series of alerts with this name from before the restart; empty if the query fails."""
        try:
            if name not in self._ages:
                self._ages[name] = evaluate.ages_before_restart(name, self._parts.engine, self._started_at)
        except WatchkeeperError as error:
            details = fields(group=group.name, series=name, error=error)
            log.warning("restoring alert ages failed, ages start at zero", extra=details)
        return self._ages.get(name, {})

    def active_alerts(self) -> list[alerts.Alert]:
        return [alert for state in self.rule_state.values() for alert in state.alerts.values()]

    def ingest_alerts(self, changed: Sequence[alerts.Alert], now: datetime) -> list[Incident]:
        """Apply changed alerts to the incidents; alerts that the journal cannot store are retried later."""
        self._now = now
        changed_incidents = self.ingest_alert_batch(now, changed)
        while self._undelivered:
            changed_incidents += self.ingest_alert_batch(now)
        return changed_incidents

    @property
    def has_undelivered_alerts(self) -> bool:
        return bool(self._undelivered)

    def ingest_alert_batch(self, now: datetime, changed: Iterable[alerts.Alert] = ()) -> list[Incident]:
        """Queue changed alerts and apply one batch, so that events do not wait for all of them."""
        self._now = now
        self._undelivered.update((alert.labels, alert) for alert in changed)
        batch = list(islice(self._undelivered.values(), ALERT_BATCH))
        try:
            changed_incidents = self.incidents.apply_alerts(batch, now)
        except StoreError:
            raise
        # Deliberately everything else: one unexpected alert must not block the others.
        except Exception:
            log.exception("applying alerts failed, applying one by one", extra=fields(alerts=len(batch)))
            return list(self._ingest_one_by_one(batch, now))
        self._external.update(batch, now)
        for alert in batch:
            del self._undelivered[alert.labels]
        return changed_incidents

    def _ingest_one_by_one(self, batch: Sequence[alerts.Alert], now: datetime) -> Iterator[Incident]:
        for alert in batch:
            try:
                yield from self.incidents.apply_alerts([alert], now)
                self._external.update([alert], now)
            except StoreError:
                raise
            except Exception:
                log.exception("applying alert failed, alert dropped", extra=fields(alert=str(alert.labels)))
            del self._undelivered[alert.labels]

    def ingest_events(self, batch: Sequence[events.Event], now: datetime) -> tracker.EventsApplied:
        self._now = now
        return self.incidents.apply_events(batch, now)

    def tick(self, now: datetime, external_alerts: Iterable[alerts.Alert] = ()) -> list[Incident]:
        """Advance the incidents to `now`; `external_alerts` are those of rules that a server evaluates."""
        self._now = now
        overdue = self._external.expired(now)
        updated = self.ingest_alerts(overdue, now) if self._undelivered or overdue else []
        return updated + self.incidents.tick(now, chain(self.active_alerts(), self._external.firing(), external_alerts))

    def find_recoveries(self, broken: Sequence[recovery.BrokenGpu], now: datetime) -> list[events.Event]:
        return recovery.recovery_events(broken, engine=self._parts.engine, presence=self._find_presence, now=now)

    def _find_presence(self, place: fleet_model.Place) -> tuple[datetime, datetime] | None:
        gpu = self._parts.fleet.gpu(place.gpu or "")
        if gpu is None or gpu.gone_since_ms is not None or gpu.node != place.node:
            return None
        return clock.from_ms(gpu.steady_since_ms), clock.from_ms(gpu.last_seen_ms)

    def diagnose(self, incident: Incident, now: datetime) -> diagnosis.Finding | None:
        """Store a diagnosis and a plan; return the best finding if it should replace the incident's cause."""
        parts = self._parts
        facts = evidence.gather_facts(
            incident,
            now,
            engine=parts.engine,
            events_at=lambda place, since, until: parts.journal.events_at(
                place, since=since, until=until, limit=MAX_EVENTS
            ),
            firing=self.active_alerts(),
            names=parts.fleet.place_name,
        )
        new_diagnosis = corrections.apply_corrections(explain.diagnose(facts, now), incident, self.corrections)
        draft = self._draft_plan(incident, new_diagnosis.best)
        proposal = plan.dry_run(draft, parts.driver, now=now)
        sharing_plans = self._plans_to_reboot(proposal)
        proposal = plan.with_shared_incidents(proposal, [sharing_plan.incident for sharing_plan in sharing_plans])
        with parts.journal.transaction():
            if corrections.has_changed(new_diagnosis, parts.journal.diagnosis(incident.id)):
                parts.journal.save_diagnosis(new_diagnosis)
            if not plan.have_same_steps(proposal, parts.journal.plan(incident.id)):
                parts.journal.save_plan(proposal)
            for sharing_plan in sharing_plans:
                if not plan.is_shared_with(sharing_plan, incident.id):
                    parts.journal.save_plan(plan.with_shared_incidents(sharing_plan, [incident.id]))
        best = new_diagnosis.best
        return best if best is not None and explain.supersedes(best, incident) else None

    def _draft_plan(self, incident: Incident, finding: diagnosis.Finding | None) -> plan.PlanDraft:
        """The plan of the policy for this cause and pool, in the mode of the trust rules."""
        parts = self._parts
        place, cause = (finding.place, finding.cause) if finding is not None else (incident.place, incident.cause)
        node = None if place.node is None else parts.fleet.node(place.node, place.cluster)
        pool = "" if node is None else node.pool
        mode, names = parts.trust_rules.decide_mode(cause, pool).mode, parts.fleet.place_name
        nodes_of = parts.fleet.nodes_in_domain
        return plan.make_plan(
            incident, finding, parts.policy, mode=mode, pool=pool, format_place=names, nodes_of=nodes_of
        )

    def correct(self, id: str, actor: str, *, cause: str, why: str, now: datetime) -> corrections.Correction:
        """Store a cause that a person corrected or confirmed; similar incidents get it as their first finding."""
        current_diagnosis, incident = self._parts.journal.diagnosis(id), self._parts.journal.incident(id)
        original = self.corrections.original_cause(id, current_diagnosis, incident)
        place = "" if incident is None else str(incident.place)
        correction = corrections.Correction(id, now, actor, original, cause, why, place)
        self.incidents.record_correction(id, actor, body=correction.as_body(), now=now)
        self.corrections.add(correction)
        return correction

    def apply_finding(self, incident: Incident, finding: diagnosis.Finding, now: datetime) -> list[Incident]:
        self._now = now
        return self.incidents.explain(incident.id, finding.cause, now)

    def _plans_to_reboot(self, proposal: actions.Plan) -> list[actions.Plan]:
        """The plans of other open incidents that reboot the same node as this plan."""
        nodes = plan.rebooted_nodes(proposal)
        if not nodes:
            return []
        incidents = {id for node in nodes for id in self._parts.journal.open_incidents_at(node)} - {proposal.incident}
        plans = (self._parts.journal.plan(id) for id in sorted(incidents))
        return [other for other in plans if other is not None and plan.rebooted_nodes(other) & nodes]


def _group_key(key: str) -> str:
    """The key by which the appender groups the samples of a rule."""
    return f"rule {zlib.crc32(key.encode()):08x}"
