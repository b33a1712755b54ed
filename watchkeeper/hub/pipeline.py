"""The stages from samples to plans, connected without a clock, a loop or a thread.

Read it from top to bottom: rules make alerts, alerts and events make incidents, an incident gets a diagnosis and a
plan. The hub calls it from its loops; a drill calls it as fast as possible. `now` is a parameter.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import chain, islice

from watchkeeper.diagnose import corrections, diagnosis_changes, evidence, explain
from watchkeeper.errors import StoreError, WatchkeeperError
from watchkeeper.incidents import domains, external_alerts, footprint, holders, recovery, tracker
from watchkeeper.kit import clock
from watchkeeper.kit.logs import fields
from watchkeeper.model import actions, alerts, diagnosis, events, labels, samples
from watchkeeper.model import fleet as fleet_model
from watchkeeper.model.incidents import Incident
from watchkeeper.query import engine as engines
from watchkeeper.remediate import driver, plan, policy, shared_steps, trust_rules
from watchkeeper.remediate.drivers import dry_run
from watchkeeper.rules import evaluate, rulefile
from watchkeeper.scrape import fleet
from watchkeeper.store.journal import journal as journals

log = logging.getLogger(__name__)

# A tenth of a second of work.
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
    # The newest sample before this start: until then the previous hub was running.
    newest_ms: int | None = None


def dry_run_dependencies(
    engine: engines.Engine, inventory: fleet.ScrapedInventory, *, journal: journals.Journal, rules: rulefile.RuleSet
) -> PipelineDependencies:
    """The shipped policy and the dry-run driver, which changes nothing: for drills and tests."""
    return PipelineDependencies(
        engine, inventory, journal, rules, policy.load(), dry_run.DryRunDriver(), trust_rules.TrustRules()
    )


class Pipeline:
    """One thread may call `evaluate`, one `diagnose`, and one everything else; they may be three threads."""

    def __init__(self, parts: PipelineDependencies, *, now: datetime) -> None:
        self._parts = parts
        self._rules = parts.rules
        self._rule_engine = parts.engine.for_rules()
        self._now = now
        footprints = footprint.Footprints(parts.engine, lambda: self._now)
        self.holders = holders.Holders(parts.engine, lambda: self._now)
        self.incidents = tracker.IncidentTracker(
            parts.journal,
            now=now,
            names=parts.fleet.place_name,
            workloads=self.holders.workloads_at,
            domains=domains.Domains(
                parts.fleet.failure_domains, parts.fleet.nodes_in_domain, footprints.footprint_of, parts.fleet.pool_of
            ),
            under_repair=parts.under_repair,
            last_alive=None if parts.newest_ms is None else clock.from_ms(parts.newest_ms),
        )
        # Alerts that changed and are not in the journal yet, each in its newest state.
        self._undelivered: dict[labels.Labels, alerts.Alert] = {}
        self._external = external_alerts.ExternalAlerts(parts.journal.alerts(), now=now)
        self.lessons = corrections.Corrections(
            corrections.read_correction(entry.subject, entry.at, entry.actor, body=entry.body)
            for entry in parts.journal.entries_of(corrections.KIND)
        )
        self._ended_series: Sequence[samples.Sample] = ()
        self._started, self._evaluated_groups = now, set[str]()
        self._first_evaluation: datetime | None = None
        self._ages: dict[str, Mapping[labels.Labels, float]] = {}
        self.rule_state: evaluate.RuleStates = {}
        # Without loaded rules, a server evaluates them and reports which alerts are resolved.
        if parts.rules.groups:
            self._restore_alerts(now)

    def _restore_alerts(self, now: datetime) -> None:
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
        # The state before a restart does not apply to a group that was added later.
        self._evaluated_groups = (self._evaluated_groups & before) | ({group.key for group in rules.groups} - before)
        self._rules = rules
        self._ended_series = (*self._ended_series, *ended)
        self._end_series()
        return list(resolved)

    def _end_series(self) -> None:
        """Append stale markers for the series of removed rules; if that fails, the next evaluation retries."""
        if self._ended_series:
            try:
                self._parts.engine.appender.append(self._ended_series)
            except WatchkeeperError as error:
                log.warning("ending series of removed rules failed, retrying", extra=fields(error=error))
                return
            self._ended_series = ()

    def evaluate(self, group: rulefile.RuleGroup, now: datetime) -> list[alerts.Alert]:
        """Evaluate the rules in order, each after the samples of the one before; returns the alerts that changed.

        A group that a reload has removed is skipped.
        """
        changed: list[alerts.Alert] = []
        if not any(group is known_group for known_group in self._rules.groups):
            return changed
        self._end_series()
        self._first_evaluation = self._first_evaluation or now
        is_first = group.key not in self._evaluated_groups
        if is_first:
            self.rule_state = evaluate.with_series_before_restart(
                group, self.rule_state, partial(self._series_before_restart, now=now)
            )
            self._restore_keep_firing(group, now)
            self._delay_resolves(group, now)
        states: dict[str, evaluate.RuleState] = {}
        try:
            for result in evaluate.evaluate_each(group, self._rule_engine, self.rule_state, now=now):
                self._parts.engine.appender.append(result.samples, group_key=_group_key(result.key))
                states[result.key] = result.state
                changed += result.changes
        finally:
            # The state of a rule with appended samples is kept even if the next rule fails.
            self.rule_state = {**self.rule_state, **states}
        if is_first:
            self._evaluated_groups.add(group.key)
            self._restore_pending(group)
        return changed

    def _series_before_restart(self, key: str, *, now: datetime) -> Iterable[labels.Labels]:
        """The series of a rule from before a restart that are not ended; empty for a remote engine."""
        engine = self._parts.engine
        since_ms = clock.to_ms(now) - engine.limits().lookback_ms
        return engine.appender.active_series(_group_key(key), since_ms).values()

    def _delay_resolves(self, group: rulefile.RuleGroup, now: datetime) -> None:
        """Before a group's first evaluation: alerts from before this start do not resolve at once."""
        keys = [evaluate.rule_key(group, rule) for rule in group.rules]
        if not any(self.rule_state[key].alerts for key in keys):
            return
        try:
            since = evaluate.evaluated_since(self._parts.engine, now)
        except WatchkeeperError as error:
            log.warning("resolve delay of alerts unknown, starting again", extra=fields(group=group.name, error=error))
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
        keys = [evaluate.rule_key(group, rule) for rule in group.rules]
        state = {key: self.rule_state[key] for key in keys}
        if any(
            alert.state is alerts.AlertState.PENDING
            for rule_state in state.values()
            for alert in rule_state.alerts.values()
        ):
            pending_since = self._ages_before_restart(evaluate.ALERTS_FOR_STATE, group)
            self.rule_state = {**self.rule_state, **evaluate.restore_pending_ages(state, pending_since)}

    def _ages_before_restart(self, name: str, group: rulefile.RuleGroup) -> Mapping[labels.Labels, float]:
        """The series of alerts with this name from before the restart; empty if the query fails."""
        try:
            if name not in self._ages:
                self._ages[name] = evaluate.ages_before_restart(name, self._parts.engine, self._started)
        except WatchkeeperError as error:
            log.warning("alert ages unknown, starting again", extra=fields(group=group.name, series=name, error=error))
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
        """Queue changed alerts and apply one batch, so that events need not wait for all of a storm."""
        self._now = now
        self._undelivered.update((alert.labels, alert) for alert in changed)
        batch = list(islice(self._undelivered.values(), ALERT_BATCH))
        try:
            changed_incidents = self.incidents.apply_alerts(batch, now)
        except StoreError:
            raise
        # Deliberately everything else: one unexpected alert must not block all others for ever.
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

    def recoveries(self, broken: Sequence[recovery.BrokenGpu], now: datetime) -> list[events.Event]:
        """Events for those of these GPUs that work again."""
        return recovery.recovery_events(broken, engine=self._parts.engine, presence=self._presence, now=now)

    def _presence(self, place: fleet_model.Place) -> tuple[datetime, datetime] | None:
        gpu = self._parts.fleet.gpu(place.gpu or "")
        if gpu is None or gpu.gone_since_ms is not None or gpu.node != place.node:
            return None
        return clock.from_ms(gpu.steady_since_ms), clock.from_ms(gpu.last_seen_ms)

    def diagnose(self, incident: Incident, now: datetime) -> diagnosis.Finding | None:
        """Diagnose, plan and store both; returns the finding if it should change the incident's cause."""
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
        new_diagnosis = corrections.apply_corrections(explain.diagnose(facts, now), incident, self.lessons)
        draft = self._draft(incident, new_diagnosis.best)
        proposal = plan.dry_run(draft, parts.driver, now=now)
        rivals = self._plans_to_reboot(proposal)
        proposal = shared_steps.with_shared_incidents(proposal, [rival.incident for rival in rivals])
        with parts.journal.transaction():
            if diagnosis_changes.has_changed(new_diagnosis, parts.journal.diagnosis(incident.id)):
                parts.journal.save_diagnosis(new_diagnosis)
            if not shared_steps.have_same_steps(proposal, parts.journal.plan(incident.id)):
                parts.journal.save_plan(proposal)
            for rival in rivals:
                if not shared_steps.is_shared_with(rival, incident.id):
                    parts.journal.save_plan(shared_steps.with_shared_incidents(rival, [incident.id]))
        return (
            new_diagnosis.best
            if new_diagnosis.best is not None and explain.supersedes(new_diagnosis.best, incident)
            else None
        )

    def _draft(self, incident: Incident, finding: diagnosis.Finding | None) -> plan.PlanDraft:
        """The policy's steps for this pool, in the mode that the trust rules set for this cause and pool."""
        parts = self._parts
        place, cause = (finding.place, finding.cause) if finding is not None else (incident.place, incident.cause)
        node = None if place.node is None else parts.fleet.node(place.node, place.cluster)
        pool = "" if node is None else node.pool
        mode = parts.trust_rules.decide_mode(cause, pool).mode
        return plan.make_plan(
            incident, finding, parts.policy, mode=mode, pool=pool, format_place=parts.fleet.place_name
        )

    def correct(self, id: str, actor: str, *, cause: str, why: str, now: datetime) -> corrections.Correction:
        """Store a person's cause, or their confirmation; similar incidents get it as their first finding."""
        current, incident = self._parts.journal.diagnosis(id), self._parts.journal.incident(id)
        original = self.lessons.original_cause(id, current, incident)
        place = "" if incident is None else str(incident.place)
        correction = corrections.Correction(id, now, actor, original, cause, why, place)
        self.incidents.record_correction(id, actor, body=correction.as_body(), now=now)
        self.lessons.add(correction)
        return correction

    def apply_finding(self, incident: Incident, finding: diagnosis.Finding, now: datetime) -> list[Incident]:
        """The incident is the consequence of another fault: change its cause and title."""
        self._now = now
        return self.incidents.explain(incident.id, finding.cause, now)

    def _plans_to_reboot(self, proposal: actions.Plan) -> list[actions.Plan]:
        """The plans of other open incidents that reboot a node which this plan reboots too."""
        nodes = shared_steps.rebooted_nodes(proposal)
        if not nodes:
            return []
        incidents = {id for node in nodes for id in self._parts.journal.open_incidents_at(node)} - {proposal.incident}
        plans = (self._parts.journal.plan(id) for id in sorted(incidents))
        return [other for other in plans if other is not None and shared_steps.rebooted_nodes(other) & nodes]


def _group_key(key: str) -> str:
    """The key under which the appender groups the samples of a rule: they are appended together."""
    return f"rule {zlib.crc32(key.encode()):08x}"
