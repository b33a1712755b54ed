"""Score the pipeline: incidents of each scenario against its `truth`, and false alarms in healthy hours.

`score_best_incident` is pure: it compares the incidents of a MonitoredFleet with the injected fault. `run_scenario`,
`run_pair` (two faults on one node: each must be detected at its own place with its own cause) and `run_healthy` run the
fleet; `game_day` runs many of them in parallel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from watchkeeper.catalogue import causes
from watchkeeper.drill.monitored_fleet import HUB_INTERVALS, FleetIntervals, MonitoredFleet, temporary_fleet
from watchkeeper.kit import clock, durations, wire
from watchkeeper.model import alerts, diagnosis, fleet
from watchkeeper.model.incidents import Incident, IncidentId, Member
from watchkeeper.sim import scenario
from watchkeeper.sim.faults import SimFault
from watchkeeper.sim.simulation import SimSettings, Simulation

# Two racks and all four pools: one rack can fail and the other is the comparison.
SCENARIO_GPUS = 128
SEED = 7
# Detection times stay exact: they are the times at which incidents opened.
SCORE_EVERY_SECONDS = 15
# The longest `for` of the shipped rules is an hour.
DETECTION_TIMEOUT_SECONDS = 2 * 3600
# Within a minute and a half, jobs that a fault stopped must be part of its incident.
JOB_INCIDENT_SECONDS = 90
# Time after detection for place, severity and cause to become right: two minutes of evidence.
SETTLE_SECONDS = 180
# One node gets the faults; the others are for comparison.
PAIR_GPUS = 64
# Heat with bad memory, a network link with memory, a program fault with a hardware fault, and pairs with similar
# symptoms: faults that people confuse, or miss after they found the first one.
PAIRS = (
    ("fan-failure", "xid-48"),
    ("ib-symbol-errors", "ecc-storm"),
    ("ib-symbol-errors", "xid-48"),
    ("xid-63", "xid-31"),
    ("xid-79", "xid-63"),
    ("pcie-downtrained", "xid-31"),
    ("power-brake", "ecc-storm"),
    ("xid-119", "xid-48"),
    ("xid-74", "ecc-storm"),
    ("loss-diverged", "ecc-storm"),
)
# The second fault ends the job whose heat shows the first, so it is injected after the first is detected.
SECOND_AFTER_DETECTION = frozenset({("fan-failure", "xid-48")})


@dataclass(frozen=True, slots=True)
class ScenarioScore:
    """The result for one fault: what the best matching incident got right."""

    name: str
    detected: bool
    # From the fault to its incident, None without an incident.
    seconds_to_detect: float | None
    # `visible_after` of the scenario, plus 2 s for an event, or `for` and two evaluations for an alert.
    budget_seconds: float | None
    within_budget: bool
    place_right: bool
    severity_right: bool
    diagnosed: bool
    # False if a job that the fault stopped has a separate incident.
    has_no_duplicates: bool = wire.json_key("told_once", default=True)
    # The true cause, and that of the diagnosis.
    cause: str = ""
    named_cause: str | None = wire.json_key("named", default=None)

    @property
    def is_right(self) -> bool:
        return self.detected and self.place_right and self.severity_right and self.diagnosed and self.has_no_duplicates


@dataclass(frozen=True, slots=True)
class GameDayScore:
    """The output of `watchkeeper drill --json`."""

    scenarios: tuple[ScenarioScore, ...]
    # Critical incidents that no fault explains; false alarms include warnings.
    false_pages: int
    false_alarms_per_1000_gpu_hours: float
    healthy_gpu_hours: float = 0.0
    # One text for each false page, false alarm and duplicate incident of a job.
    mistakes: tuple[str, ...] = wire.json_key("for_nothing", default=())

    @property
    def is_right(self) -> bool:
        return all(score.is_right and score.within_budget for score in self.scenarios) and self.false_pages == 0


@dataclass(frozen=True, slots=True)
class ScenarioVerdict:
    """A score, the critical incidents that the fault does not explain, and duplicate incidents of stopped jobs."""

    score: ScenarioScore
    false_pages: tuple[Incident, ...] = ()
    duplicate_incidents: tuple[Incident, ...] = ()


def score_best_incident(
    fault: SimFault,
    place: fleet.Place,
    incidents: Sequence[Incident],
    *,
    diagnosis_of: Callable[[str], diagnosis.Diagnosis | None],
    allowed_seconds: Callable[[Member], float],
) -> ScenarioScore:
    """The score of the best incident whose family matches the fault's and whose place encloses or is inside `place`."""
    # `allowed_seconds` is the time limit for the signal that opened an incident.
    truth = fault.scenario.truth
    family = causes.lookup(truth.cause).family
    started_at = clock.from_ms(fault.at * 1000)
    visible_seconds = durations.parse_seconds(fault.scenario.visible_after)
    scores = []
    for incident in (incident for incident in incidents if incident.family == family):
        # An incident of the whole cluster would match every fault of its family.
        is_near = incident.place.encloses(place) or place.encloses(incident.place)
        if not is_near or incident.place.parent is None:
            continue
        latest_diagnosis = diagnosis_of(incident.id)
        best = None if latest_diagnosis is None else latest_diagnosis.best
        elapsed_seconds = (incident.opened_at - started_at).total_seconds()
        budget_seconds = allowed_seconds(incident.members[0]) + visible_seconds
        scores.append(
            ScenarioScore(
                fault.scenario.name,
                detected=True,
                seconds_to_detect=elapsed_seconds,
                budget_seconds=budget_seconds,
                within_budget=elapsed_seconds <= budget_seconds,
                place_right=place in (incident.place, best.place if best else None),
                severity_right=incident.severity is truth.severity,
                diagnosed=best is not None and best.cause == truth.cause,
                cause=truth.cause,
                named_cause=None if best is None else best.cause,
            )
        )
    undetected = ScenarioScore(fault.scenario.name, False, None, None, False, False, False, False, cause=truth.cause)
    return max(scores, key=lambda score: (score.diagnosed, score.place_right, score.severity_right), default=undetected)


async def run_scenario(name: str) -> ScenarioVerdict:
    with temporary_fleet(SimSettings(gpus=SCENARIO_GPUS, seed=SEED), HUB_INTERVALS) as monitored:
        chosen = scenario.find_scenario(monitored.simulation.scenarios, name)
        await _advance_history(monitored, [chosen])
        fault = monitored.simulation.inject(name)
        await _advance_to_fault(monitored, fault)
        earlier_ids = {incident.id for incident in monitored.incidents()}
        (score,) = await _score_until_right(monitored, [fault], earlier_ids)
        duplicates = await _find_duplicate_incidents(monitored, fault) if score.is_right else ()
        score = replace(score, has_no_duplicates=not duplicates)
        return ScenarioVerdict(score, tuple(_unexplained_pages(monitored, fault)), duplicates)


async def run_pair(names: tuple[str, str]) -> list[ScenarioVerdict]:
    with temporary_fleet(SimSettings(gpus=PAIR_GPUS, seed=SEED), HUB_INTERVALS) as monitored:
        first, second = (scenario.find_scenario(monitored.simulation.scenarios, name) for name in names)
        await _advance_history(monitored, [first, second])
        earlier_ids = {incident.id for incident in monitored.incidents()}
        faults = [monitored.simulation.inject(first.name)]
        if names in SECOND_AFTER_DETECTION:
            await _score_until_right(monitored, faults, earlier_ids)
        faults.append(_inject_beside(monitored.simulation, faults[0], second))
        scores = await _score_until_right(monitored, faults, earlier_ids)
        verdicts = []
        for result, other, fault in zip(scores, reversed(names), faults, strict=True):
            named = replace(result, name=f"{result.name} beside {other}")
            verdicts.append(ScenarioVerdict(named, tuple(_unexplained_pages(monitored, fault))))
        return verdicts


def _inject_beside(simulation: Simulation, first: SimFault, second: scenario.Scenario) -> SimFault:
    index = None
    if second.strikes is scenario.FaultTarget.GPU:
        first_row = None if first.gpu is None else first.gpu.row
        index = next(at for at, gpu in reversed(list(enumerate(first.node.gpus))) if gpu.row != first_row)
    return simulation.inject(second.name, node=first.node.name, gpu=index)


async def _advance_history(monitored: MonitoredFleet, scenarios: Sequence[scenario.Scenario]) -> None:
    """Advance by the longest history of the scenarios without rules, then by two evaluations of the rules."""
    history_seconds = max(durations.parse_seconds(chosen.history) for chosen in scenarios)
    await monitored.advance(round(history_seconds), with_rules=False)
    await monitored.advance(2 * monitored.intervals.rule_seconds)


async def _score_until_right(
    monitored: MonitoredFleet, faults: Sequence[SimFault], earlier_ids: set[IncidentId]
) -> list[ScenarioScore]:
    """Advance until the score of every fault is right, or until the time limit of a single fault."""

    def score_faults(opened: Sequence[Incident]) -> list[ScenarioScore]:
        return [
            score_best_incident(
                fault,
                monitored.simulation.fault_place(fault),
                opened,
                diagnosis_of=monitored.journal.diagnosis,
                allowed_seconds=monitored.allowed_seconds,
            )
            for fault in faults
        ]

    scores = score_faults([])
    settled_seconds, waited_seconds = 0, 0
    while not all(score.is_right for score in scores):
        if waited_seconds >= DETECTION_TIMEOUT_SECONDS or settled_seconds >= SETTLE_SECONDS:
            break
        await monitored.advance(SCORE_EVERY_SECONDS)
        waited_seconds += SCORE_EVERY_SECONDS
        settled_seconds += SCORE_EVERY_SECONDS if all(score.detected for score in scores) else 0
        scores = score_faults([incident for incident in monitored.incidents() if incident.id not in earlier_ids])
    return scores


async def _advance_to_fault(monitored: MonitoredFleet, fault: SimFault) -> None:
    """Advance to the start of the fault with fewer evaluations: until then, rules only build baselines."""
    usual_intervals = monitored.intervals
    rule_seconds = max(usual_intervals.rule_seconds, HEALTHY_INTERVALS.rule_seconds)
    monitored.intervals = replace(usual_intervals, rule_seconds=rule_seconds)
    await monitored.advance(fault.at - monitored.simulation.second)
    monitored.intervals = usual_intervals


async def _find_duplicate_incidents(monitored: MonitoredFleet, fault: SimFault) -> tuple[Incident, ...]:
    is_hardware = causes.lookup(fault.scenario.truth.cause).is_hardware
    if not is_hardware or not any(effect.stall for effect in fault.scenario.effects):
        return ()
    faulty_rows = set(fault.rows) | {row for effect in fault.effects for row in effect.rows}
    running = monitored.simulation.machines.jobs.running.values()
    places = {f"job={job.name}" for job in running if faulty_rows & set(job.rows)}
    await monitored.advance(JOB_INCIDENT_SECONDS)
    return tuple(incident for incident in monitored.incidents() if incident.is_open and incident.place.domain in places)


def _unexplained_pages(monitored: MonitoredFleet, fault: SimFault) -> Iterable[Incident]:
    """Critical incidents outside the nodes, rack and job that the fault affects."""
    layout = monitored.simulation.layout
    gpu_rows = [row for effect in fault.effects for row in effect.rows]
    gpu_rows += [] if fault.job is None else fault.job.rows
    affected_nodes = {fault.node.row, *(int(layout.node_of_gpu[row]) for row in gpu_rows)}
    names = {layout.nodes[row].name for row in affected_nodes}
    fault_place = monitored.simulation.fault_place(fault)
    for incident in monitored.incidents():
        is_near = incident.place.node in names or incident.place == fault_place
        if incident.severity is alerts.Severity.CRITICAL and not is_near:
            yield incident


@dataclass(frozen=True, slots=True)
class HealthyHours:
    gpu_hours: float = 0.0
    alarms: tuple[Incident, ...] = ()

    @property
    def pages(self) -> int:
        return sum(incident.severity is alerts.Severity.CRITICAL for incident in self.alarms)


# Long intervals: a simulated day takes minutes.
HEALTHY_INTERVALS = FleetIntervals(scrape_seconds=30, rule_seconds=60)


async def run_healthy(*, hours: float, gpus: int, seed: int, on_progress: Callable[[float], None]) -> HealthyHours:
    """Simulate hours without a fault; `on_progress` gets the simulated hours after each step."""
    with temporary_fleet(SimSettings(gpus=gpus, seed=seed), HEALTHY_INTERVALS) as monitored:
        remaining_seconds = round(hours * 3600)
        while remaining_seconds > 0:
            step_seconds = min(remaining_seconds, 600)
            await monitored.advance(step_seconds)
            remaining_seconds -= step_seconds
            on_progress(step_seconds / 3600)
        return HealthyHours(hours * gpus, tuple(pages_and_tickets(monitored.incidents())))


def pages_and_tickets(incidents: Iterable[Incident]) -> list[Incident]:
    """Incidents that notify a person: critical and warning, not info."""
    return [incident for incident in incidents if incident.severity is not alerts.Severity.INFO]


def total_score(verdicts: Sequence[ScenarioVerdict], healthy: HealthyHours) -> GameDayScore:
    pages = healthy.pages + sum(len(verdict.false_pages) for verdict in verdicts)
    rate = len(healthy.alarms) / healthy.gpu_hours * 1000 if healthy.gpu_hours else 0.0
    alarms = [*(page for verdict in verdicts for page in verdict.false_pages), *healthy.alarms]
    mistakes = [f"{alarm.severity} {alarm.title} ({alarm.cause}, {alarm.opened_at:%a %H:%M})" for alarm in alarms]
    for verdict in verdicts:
        mistakes += [f"duplicate in {verdict.score.name}: {incident.title}" for incident in verdict.duplicate_incidents]
    scores = tuple(verdict.score for verdict in verdicts)
    return GameDayScore(scores, pages, round(rate, 4), healthy.gpu_hours, tuple(mistakes))
