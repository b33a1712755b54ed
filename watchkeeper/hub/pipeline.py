"""The stages from samples to plans, wired together without a clock, a loop or a thread.

Read it from top to bottom: rules make alerts, alerts and events make incidents, an incident gets a
diagnosis and a plan. The hub drives it with its loops and owns the time; a drill drives the same object
as fast as the machine allows. Every call is given `now`.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import chain, islice

from watchkeeper.diagnose import corrections, diagnosis_changes, evidence, explain
from watchkeeper.errors import StoreError, WatchkeeperError
from watchkeeper.incidents import domains, external_alerts, footprint, recovery, tracker
from watchkeeper.kit import clock, own_metrics
from watchkeeper.kit.logs import fields
from watchkeeper.model import actions, alerts, diagnosis, events, labels, samples
from watchkeeper.model import fleet as fleet_model
from watchkeeper.model.incidents import Incident
from watchkeeper.query import engine as engines
from watchkeeper.remediate import driver, ladder, plan, policy, shared_steps
from watchkeeper.remediate.drivers import dry_run
from watchkeeper.rules import evaluate, rulefile
from watchkeeper.scrape import fleet, status_series
from watchkeeper.store.journal import journal as journals

log = logging.getLogger(__name__)

# A GPU that fell off the bus stops reporting; its job is the one it had just before.
HOLDER_WINDOW = "2m"
HOLDERS_KEPT, MOST_HOLDERS = timedelta(seconds=15), 10_000
# A tenth of a second of work.
ALERTS_AT_ONCE = 200
# Events of one place that a diagnosis looks at: twenty minutes of a machine that reports twice a second.
MOST_EVIDENCE = 2_000
# Who holds a GPU stands in the labels of an exporter, and in our own series where an agent tells it.
HOLDER_SERIES = ("DCGM_FI_DEV_GPU_UTIL", status_series.WORKLOAD_INFO)


@dataclass(frozen=True, slots=True)
class PipelineDependencies:
    """What the stages work with."""

    engine: engines.Engine
    fleet: fleet.ScrapedInventory
    journal: journals.Journal
    rules: rulefile.RuleSet
    policy: policy.RepairPolicy
    driver: driver.Driver
    ladder: ladder.TrustLadder
    # Incidents of which a repair is at work on a machine; asked without a lock, from the thread of the incidents.
    under_repair: Callable[[fleet_model.Place], Collection[str]] = lambda _: ()
    # The newest sample that the hub before this one has left: until then it was at work.
    newest_ms: int | None = None


def dry_run_dependencies(
    engine: engines.Engine, known: fleet.ScrapedInventory, *, journal: journals.Journal, rules: rulefile.RuleSet
) -> PipelineDependencies:
    """The shipped policy, plans that are only described, and nobody who acts: for drills and stories."""
    return PipelineDependencies(
        engine, known, journal, rules, policy.load(), dry_run.DryRunDriver(), ladder.TrustLadder()
    )


class Pipeline:
    """Rule states and open incidents.

    One thread at a time may call `evaluate`, one `diagnose`, and one everything else; they may be three threads.
    """

    def __init__(self, parts: PipelineDependencies, *, now: datetime) -> None:
        self._parts = parts
        self._rules = parts.rules
        self._rule_engine = parts.engine.for_rules()
        self._now = now
        runs_on = footprint.Footprints(parts.engine, lambda: self._now)
        self.incidents = tracker.IncidentTracker(
            parts.journal,
            now=now,
            names=parts.fleet.place_name,
            workloads=self.workloads_at,
            domains=domains.Domains(
                parts.fleet.failure_domains, parts.fleet.nodes_in_domain, runs_on.footprint_of, parts.fleet.pool_of
            ),
            under_repair=parts.under_repair,
            last_alive=None if parts.newest_ms is None else clock.from_ms(parts.newest_ms),
        )
        # Alerts that changed and are not in the journal yet, each as it was last.
        self._unheard: dict[labels.Labels, alerts.Alert] = {}
        self._foreign = external_alerts.ExternalAlerts(parts.journal.alerts(), now=now)
        # Who holds what, as asked moments ago: in a storm each place is asked about again and again.
        self._holders: dict[fleet_model.Place, tuple[datetime, Sequence[str]]] = {}
        self.lessons = corrections.Corrections(
            corrections.read_correction(entry.subject, entry.at, entry.actor, body=entry.body)
            for entry in parts.journal.entries_of(corrections.KIND)
        )
        self._ended_series: Sequence[samples.Sample] = ()
        self._started, self._begun = now, set[str]()
        self._first_turn: datetime | None = None
        self._remembered: dict[str, Mapping[labels.Labels, float]] = {}
        self.rule_state: evaluate.RuleStates = {}
        # Without rules of our own somebody else evaluates them, and knows which alerts are over.
        if parts.rules.groups:
            self._restore_alerts(now)

    def _restore_alerts(self, now: datetime) -> None:
        # Alerts of somebody else's rules live until their own Alertmanager says that they are over.
        own = [one for one in self._parts.journal.alerts() if external_alerts.SOURCE_LABEL not in one.labels]
        restored = evaluate.restore_alerts(self._rules, own)
        self.rule_state, self._ended_series, over = evaluate.retire_rules(restored, self._rules, now=now)
        self._unheard.update((alert.labels, alert) for alert in over)

    def change_rules(self, rules: rulefile.RuleSet, now: datetime) -> list[alerts.Alert]:
        """Put other rules in force and return the alerts of rules that are gone, ended, for `take_alerts`.

        A rule that stays the same keeps its pending and firing alerts. Call it where `evaluate` is called.
        """
        before = {group.key for group in self._rules.groups}
        self.rule_state, ended, over = evaluate.retire_rules(self.rule_state, rules, now=now)
        # What was so before a restart says nothing about a group that came later.
        self._begun = (self._begun & before) | ({group.key for group in rules.groups} - before)
        self._rules = rules
        self._ended_series = (*self._ended_series, *ended)
        self._end_series()
        return list(over)

    def _end_series(self) -> None:
        """Stale markers for what gone rules wrote; where they cannot be appended now, the next evaluation tries."""
        if self._ended_series:
            try:
                self._parts.engine.appender.append(self._ended_series)
            except WatchkeeperError as error:
                log.warning("Series of rules that are gone are not ended yet", extra=fields(error=error))
                return
            self._ended_series = ()

    def evaluate(self, group: rulefile.RuleGroup, now: datetime) -> list[alerts.Alert]:
        """Rule by rule, so that a rule sees what the one before it recorded; returns the alerts that changed.

        A group that a reload has taken out of force between two calls is left alone.
        """
        changed: list[alerts.Alert] = []
        if not any(group is one for one in self._rules.groups):
            return changed
        self._end_series()
        self._first_turn = self._first_turn or now
        is_first = group.key not in self._begun
        if is_first:
            self.rule_state = evaluate.with_series_before_restart(group, self.rule_state, partial(self._wrote, now=now))
            self._restore_silences(group, now)
            self._hold_alerts(group, now)
        states: dict[str, evaluate.RuleState] = {}
        try:
            for result in evaluate.evaluate_each(group, self._rule_engine, self.rule_state, now=now):
                self._parts.engine.appender.append(result.samples, group_key=_together(result.key))
                states[result.key] = result.state
                changed += result.changes
        finally:
            # What was appended is remembered even where the next rule's samples could not be.
            self.rule_state = {**self.rule_state, **states}
        if is_first:
            self._begun.add(group.key)
            self._restore_holds(group)
        return changed

    def _wrote(self, key: str, *, now: datetime) -> Iterable[labels.Labels]:
        """What a rule wrote before a restart and nobody has ended; a server does not tell."""
        engine = self._parts.engine
        since_ms = clock.to_ms(now) - engine.limits().lookback_ms
        return engine.appender.active_series(_together(key), since_ms).values()

    def _hold_alerts(self, group: rulefile.RuleGroup, now: datetime) -> None:
        """Before a group's first evaluation: alerts from before this start do not end at once."""
        keys = [evaluate.rule_key(group, rule) for rule in group.rules]
        if not any(self.rule_state[key].alerts for key in keys):
            return
        try:
            since = evaluate.evaluated_since(self._parts.engine, now)
        except WatchkeeperError as error:
            log.warning("Alerts wait for their end once more", extra=fields(group=group.name, error=error))
            return
        if since is not None:
            watch = evaluate.EvaluationCoverage(self._first_turn or now, since)
            self.rule_state = evaluate.with_resolve_delays(group, self.rule_state, watch)

    def _restore_silences(self, group: rulefile.RuleGroup, now: datetime) -> None:
        """Before a group's first evaluation: alerts that `keep_firing_for` kept are not kept for all of it again."""
        keeping = [rule for rule in group.rules if isinstance(rule, rulefile.AlertingRule) and rule.keep_firing_seconds]
        state = {key: self.rule_state[key] for key in (evaluate.rule_key(group, rule) for rule in keeping)}
        if any(one.alerts for one in state.values()):
            silent = self._remember(evaluate.KEPT_SINCE, group)
            self.rule_state = {**self.rule_state, **evaluate.restore_keep_firing(state, silent, now=now)}

    def _restore_holds(self, group: rulefile.RuleGroup) -> None:
        """After a group's first evaluation: what was pending before a restart goes on being so."""
        keys = [evaluate.rule_key(group, rule) for rule in group.rules]
        state = {key: self.rule_state[key] for key in keys}
        if any(alert.state is alerts.AlertState.PENDING for one in state.values() for alert in one.alerts.values()):
            held = self._remember(evaluate.ALERTS_FOR_STATE, group)
            self.rule_state = {**self.rule_state, **evaluate.restore_pending_ages(state, held)}

    def _remember(self, name: str, group: rulefile.RuleGroup) -> Mapping[labels.Labels, float]:
        """What the last hub wrote of alerts under this name; nothing where that cannot be asked now."""
        try:
            if name not in self._remembered:
                self._remembered[name] = evaluate.ages_before_restart(name, self._parts.engine, self._started)
        except WatchkeeperError as error:
            log.warning("Alerts wait once more", extra=fields(group=group.name, since=name, error=error))
        return self._remembered.get(name, {})

    def active_alerts(self) -> list[alerts.Alert]:
        return [alert for state in self.rule_state.values() for alert in state.alerts.values()]

    def ingest_alerts(self, changed: Sequence[alerts.Alert], now: datetime) -> list[Incident]:
        """Hand alerts that changed to the incidents; what the journal cannot keep now is handed over again later."""
        self._now = now
        found = self.ingest_alert_batch(now, changed)
        while self._unheard:
            found += self.ingest_alert_batch(now)
        return found

    @property
    def has_undelivered_alerts(self) -> bool:
        return bool(self._unheard)

    def ingest_alert_batch(self, now: datetime, changed: Iterable[alerts.Alert] = ()) -> list[Incident]:
        """Remember alerts that changed, and hand over some, so that events need not wait for all of a storm."""
        self._now = now
        self._unheard.update((alert.labels, alert) for alert in changed)
        some = list(islice(self._unheard.values(), ALERTS_AT_ONCE))
        try:
            found = self.incidents.apply_alerts(some, now)
        except StoreError:
            raise
        # Deliberately everything else: one alert that nobody foresaw must not hold up all others for ever.
        except Exception:
            log.exception("Alerts are handed over one by one", extra=fields(count=len(some)))
            return list(self._take_singly(some, now))
        self._foreign.update(some, now)
        for alert in some:
            del self._unheard[alert.labels]
        return found

    def _take_singly(self, some: Sequence[alerts.Alert], now: datetime) -> Iterator[Incident]:
        for alert in some:
            try:
                yield from self.incidents.apply_alerts([alert], now)
                self._foreign.update([alert], now)
            except StoreError:
                raise
            except Exception:
                log.exception("An alert could not become an incident", extra=fields(alert=str(alert.labels)))
            del self._unheard[alert.labels]

    def ingest_events(self, batch: Sequence[events.Event], now: datetime) -> tracker.EventsApplied:
        self._now = now
        return self.incidents.apply_events(batch, now)

    def tick(self, now: datetime, others: Iterable[alerts.Alert] = ()) -> list[Incident]:
        """Let time pass; `others` are alerts of rules that somebody else evaluates."""
        self._now = now
        overdue = self._foreign.expired(now)
        heard = self.ingest_alerts(overdue, now) if self._unheard or overdue else []
        return heard + self.incidents.tick(now, chain(self.active_alerts(), self._foreign.firing(), others))

    def recoveries(self, broken: Sequence[recovery.BrokenGpu], now: datetime) -> list[events.Event]:
        """Which of these GPUs show to work again, as events to take."""
        return recovery.recovery_events(broken, engine=self._parts.engine, presence=self._presence, now=now)

    def _presence(self, place: fleet_model.Place) -> tuple[datetime, datetime] | None:
        seen = self._parts.fleet.gpu(place.gpu or "")
        if seen is None or seen.gone_since_ms is not None or seen.node != place.node:
            return None
        return clock.from_ms(seen.steady_since_ms), clock.from_ms(seen.last_seen_ms)

    def diagnose(self, incident: Incident, now: datetime) -> diagnosis.Finding | None:
        """Find out why, propose what to do, and keep both; returns a finding that `explain` should hear of."""
        parts = self._parts
        facts = evidence.gather_facts(
            incident,
            now,
            engine=parts.engine,
            events_at=lambda place, since, until: parts.journal.events_at(
                place, since=since, until=until, limit=MOST_EVIDENCE
            ),
            firing=self.active_alerts(),
            names=parts.fleet.place_name,
        )
        found = corrections.apply_corrections(explain.diagnose(facts, now), incident, self.lessons)
        draft = self._draft(incident, found.best)
        proposal = plan.dry_run(draft, parts.driver, now=now)
        rivals = self._plans_to_reboot(proposal)
        proposal = shared_steps.with_shared_incidents(proposal, [rival.incident for rival in rivals])
        with parts.journal.transaction():
            if diagnosis_changes.has_changed(found, parts.journal.diagnosis(incident.id)):
                parts.journal.save_diagnosis(found)
            if not shared_steps.have_same_steps(proposal, parts.journal.plan(incident.id)):
                parts.journal.save_plan(proposal)
            for rival in rivals:
                if not shared_steps.is_shared_with(rival, incident.id):
                    parts.journal.save_plan(shared_steps.with_shared_incidents(rival, [incident.id]))
        return found.best if found.best is not None and explain.supersedes(found.best, incident) else None

    def _draft(self, incident: Incident, finding: diagnosis.Finding | None) -> plan.Draft:
        """The policy's steps for this pool, under the mode that the ladder has for this cause in it."""
        parts = self._parts
        place, cause = (finding.place, finding.cause) if finding is not None else (incident.place, incident.cause)
        node = None if place.node is None else parts.fleet.node(place.node, place.cluster)
        pool = "" if node is None else node.pool
        mode = parts.ladder.decide_mode(cause, pool).mode
        return plan.make_plan(incident, finding, parts.policy, mode=mode, pool=pool, names=parts.fleet.place_name)

    def correct(self, id: str, actor: str, *, cause: str, why: str, now: datetime) -> corrections.Correction:
        """A person says what it was, or that we were right: kept, and the first answer from now on."""
        found, incident = self._parts.journal.diagnosis(id), self._parts.journal.incident(id)
        was = self.lessons.original_cause(id, found, incident)
        place = "" if incident is None else str(incident.place)
        said = corrections.Correction(id, now, actor, was, cause, why, place)
        self.incidents.record_correction(id, actor, body=said.as_body(), now=now)
        self.lessons.add(said)
        return said

    def apply_finding(self, incident: Incident, finding: diagnosis.Finding, now: datetime) -> list[Incident]:
        """The incident is the consequence of another fault: let cause and title follow."""
        self._now = now
        return self.incidents.explain(incident.id, finding.cause, now)

    def _plans_to_reboot(self, proposal: actions.Plan) -> list[actions.Plan]:
        """The plans of other open incidents that reboot a node which this one reboots as well."""
        nodes = shared_steps.rebooted_nodes(proposal)
        if not nodes:
            return []
        found = {id for node in nodes for id in self._parts.journal.open_incidents_at(node)} - {proposal.incident}
        plans = (self._parts.journal.plan(id) for id in sorted(found))
        return [other for other in plans if other is not None and shared_steps.rebooted_nodes(other) & nodes]

    def workloads_at(self, place: fleet_model.Place) -> Sequence[str]:
        """Pods and Slurm jobs on a node or GPU, as its samples of the last minutes say; also of a GPU that is gone."""
        if place.node is None:
            return ()
        asked_at, known = self._holders.get(place, (self._now, None))
        if known is not None and abs(self._now - asked_at) < HOLDERS_KEPT:
            return known
        if len(self._holders) >= MOST_HOLDERS:
            self._holders.clear()
        found = self._ask_for_workloads(place)
        if found is not None:
            self._holders[place] = (self._now, found)
        return found or ()

    def _ask_for_workloads(self, place: fleet_model.Place) -> Sequence[str] | None:
        cluster, node = own_metrics.escape(place.cluster), own_metrics.escape(place.node or "")
        gpu = f',UUID="{own_metrics.escape(place.gpu)}"' if place.gpu else ""
        selector = f'{{cluster="{cluster}",Hostname="{node}"{gpu}}}[{HOLDER_WINDOW}]'
        expr = " or ".join(f"last_over_time({name}{selector})" for name in HOLDER_SERIES)
        try:
            answer = self._parts.engine.instant(expr, clock.to_ms(self._now))
        # Deliberately everything: that something broke is worth more than who suffers from it.
        except Exception as error:
            log.warning("Workloads are unknown", extra=fields(place=str(place), error=error))
            return None
        return sorted({name for labels in answer.frame.labels if (name := fleet_model.holder_from_labels(labels))})


def _together(key: str) -> str:
    """What the samples of a rule are kept under: they come again and again at one time."""
    return f"rule {zlib.crc32(key.encode()):08x}"
