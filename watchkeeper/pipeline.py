"""The stages from samples to plans, wired together without a clock, a loop or a thread.

Read it from top to bottom: rules make alerts, alerts and events make incidents, an incident gets a
diagnosis and a plan. The hub drives it with its loops and owns the time; a drill drives the same object
as fast as the machine allows. Every call is given `now`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from watchkeeper.collect import fleet
from watchkeeper.diagnose import evidence, explain
from watchkeeper.incidents import core
from watchkeeper.kit import clock, own_metrics
from watchkeeper.model import actions, alerts, diagnosis, events
from watchkeeper.model import fleet as fleet_model
from watchkeeper.model.incidents import Incident
from watchkeeper.query import engine as engines
from watchkeeper.remediate import driver, plan, policy
from watchkeeper.rules import evaluate, rulefile
from watchkeeper.store import journal as journals

# A GPU that fell off the bus stops reporting; its job is the one it had just before.
HOLDER_WINDOW = "2m"


@dataclass(frozen=True, slots=True)
class Parts:
    """What the stages work with."""

    engine: engines.Engine
    fleet: fleet.Fleet
    journal: journals.Journal
    rules: rulefile.RuleSet
    policy: policy.Policy
    driver: driver.Driver
    mode: actions.Mode


class Pipeline:
    """Rule states and open incidents.

    One thread at a time may call `evaluate`, one `diagnose`, and one everything else; they may be three threads.
    """

    def __init__(self, parts: Parts, *, now: datetime) -> None:
        self._parts = parts
        self._now = now
        self.incidents = core.Incidents(
            parts.journal, now=now, names=parts.fleet.place_name, workloads=self.workloads_at
        )
        self.rule_state: evaluate.State = {}
        kept = parts.journal.alerts()
        for group in parts.rules.groups:
            self.rule_state = evaluate.restore(group, self.rule_state, kept)

    def evaluate(self, group: rulefile.Group, now: datetime) -> list[alerts.Alert]:
        """Rule by rule, so that a rule sees what the one before it recorded; returns the alerts that changed."""
        changed: list[alerts.Alert] = []
        for result in evaluate.evaluate_each(group, self._parts.engine, self.rule_state, now=now):
            self._parts.engine.append(result.samples)
            self.rule_state = {**self.rule_state, result.key: result.state}
            changed += result.changes
        return changed

    def active_alerts(self) -> list[alerts.Alert]:
        return [alert for state in self.rule_state.values() for alert in state.alerts.values()]

    def take_alerts(self, changed: Sequence[alerts.Alert], now: datetime) -> list[Incident]:
        self._now = now
        with self._parts.journal.together():
            self._parts.journal.save_alerts(changed, at=now)
            return [incident for alert in changed for incident in self.incidents.take_alert(alert, now)]

    def take_events(self, batch: Sequence[events.Event], now: datetime) -> core.Taken:
        self._now = now
        return self.incidents.take_events(batch, now)

    def tick(self, now: datetime) -> list[Incident]:
        self._now = now
        return self.incidents.tick(now)

    def diagnose(self, incident: Incident, now: datetime) -> None:
        """Find out why, propose what to do, and keep both."""
        parts = self._parts
        facts = evidence.gather(
            incident,
            now,
            engine=parts.engine,
            events_at=lambda place, since, until: parts.journal.events_at(place, since=since, until=until),
            firing=self.active_alerts(),
            names=parts.fleet.place_name,
        )
        found = explain.diagnose(facts, now)
        draft = plan.make_plan(incident, found.best, parts.policy, mode=parts.mode, names=parts.fleet.place_name)
        proposal = plan.dry_run(draft, parts.driver, now=now)
        with parts.journal.together():
            # Looked at again, an incident mostly says the same: the timeline is for what changed.
            if _gist(found) != _gist(parts.journal.diagnosis(incident.id)):
                parts.journal.save_diagnosis(found)
            if _steps(proposal) != _steps(parts.journal.plan(incident.id)):
                parts.journal.save_plan(proposal)

    def workloads_at(self, place: fleet_model.Place) -> Sequence[str]:
        """Pods and Slurm jobs on a node or GPU, as its samples of the last minutes say; also of a GPU that is gone."""
        if place.node is None:
            return ()
        cluster, node = own_metrics.escape(place.cluster), own_metrics.escape(place.node)
        gpu = f',UUID="{own_metrics.escape(place.gpu)}"' if place.gpu else ""
        selector = f'DCGM_FI_DEV_GPU_UTIL{{cluster="{cluster}",Hostname="{node}"{gpu}}}'
        answer = self._parts.engine.instant(f"last_over_time({selector}[{HOLDER_WINDOW}])", clock.to_ms(self._now))
        return sorted({name for labels in answer.frame.labels if (name := fleet_model.holder(labels))})


def _gist(found: diagnosis.Diagnosis | None) -> object:
    """What a person would call the same diagnosis: the same causes at the same places, as sure as before."""
    return found and [(one.cause, one.place, round(one.confidence, 1), len(one.evidence)) for one in found.findings]


def _steps(proposal: actions.Plan | None) -> object:
    return proposal and [(receipt.action, receipt.result) for receipt in proposal.receipts]
