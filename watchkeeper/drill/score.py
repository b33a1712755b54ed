"""How well the pipeline did: each scenario against its truth, and healthy hours against silence.

`judge` is pure: it compares the incidents of a watch with the fault that was injected. `run_scenario` and
`run_healthy` let a `Watch` live through it; `game_day` runs many of them side by side.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from watchkeeper.catalogue import causes
from watchkeeper.drill.monitored_fleet import HUB_PACE, MonitoredFleet, Pace
from watchkeeper.kit import clock, durations
from watchkeeper.model import alerts, diagnosis, fleet
from watchkeeper.model.incidents import Incident, Member
from watchkeeper.sim import scenario
from watchkeeper.sim.faults import SimFault
from watchkeeper.sim.simulation import SimSettings, Simulation

# Two racks and all four pools; large enough for a rack to fail and others to be the comparison.
SCENARIO_GPUS = 128
SEED = 7
# Looked at this often while waiting for a verdict; a finer answer is not needed, opening times are exact.
LOOK_SECONDS = 15
# The longest `for` of the shipped rules is an hour; what is not seen by then is not seen.
PATIENCE_SECONDS = 2 * 3600
# Jobs that a fault stops are told of within a minute and a half; by then they must have become a part of its incident.
AFTERMATH_SECONDS = 90
# After the first sign, this long for place, severity and cause to become right: two minutes of evidence.
SETTLE_SECONDS = 180


@dataclass(frozen=True, slots=True)
class ScenarioScore:
    """`seconds_to_detect` is from the fault to the incident, None when there was none.

    `budget_seconds` is what it may take: 2 s for an event; for an alert the `for` of its rule and two evaluations, and
    before that the time until the fault shows at all (`visible_after` of the scenario). `told_once` is False when a job
    that the fault stopped has an incident of its own. `cause` is the right answer, `named` the one that was given.
    """

    name: str
    detected: bool
    seconds_to_detect: float | None
    budget_seconds: float | None
    within_budget: bool
    place_right: bool
    severity_right: bool
    diagnosed: bool
    told_once: bool = True
    cause: str = ""
    named: str | None = None

    @property
    def is_right(self) -> bool:
        return self.detected and self.place_right and self.severity_right and self.diagnosed and self.told_once


@dataclass(frozen=True, slots=True)
class DrillScore:
    """What `watchkeeper drill --json` prints.

    `false_pages` are critical incidents that no fault explains; false alarms are those and the warnings.
    """

    scenarios: tuple[ScenarioScore, ...]
    false_pages: int
    false_alarms_per_1000_gpu_hours: float
    healthy_gpu_hours: float = 0.0
    # Each false page and alarm, and each job that was told of beside its cause, in words.
    for_nothing: tuple[str, ...] = ()

    @property
    def is_right(self) -> bool:
        return all(one.is_right and one.within_budget for one in self.scenarios) and self.false_pages == 0


@dataclass(frozen=True, slots=True)
class ScenarioVerdict:
    """One scenario's score, the critical incidents elsewhere that the fault does not explain, and those of its jobs."""

    score: ScenarioScore
    false_pages: tuple[Incident, ...] = ()
    duplicate_incidents: tuple[Incident, ...] = ()


def judge(
    fault: SimFault,
    place: fleet.Place,
    incidents: Sequence[Incident],
    *,
    diagnosis_of: Callable[[str], diagnosis.Diagnosis | None],
    allowed_seconds: Callable[[Member], float],
) -> ScenarioScore:
    """The best incident for the fault: same family of causes at a place that touches the struck one.

    `allowed` is how many seconds the signal that opened an incident may take.
    """
    truth = fault.scenario.truth
    family = causes.lookup(truth.cause).family
    fitting = [
        incident
        for incident in incidents
        if incident.family == family and (incident.place.encloses(place) or place.encloses(incident.place))
    ]
    scores = [
        _score(fault, place, incident, found=diagnosis_of(incident.id), seconds=allowed_seconds(incident.members[0]))
        for incident in fitting
    ]
    nothing = ScenarioScore(fault.scenario.name, False, None, None, False, False, False, False, cause=truth.cause)
    return max(scores, key=lambda one: (one.diagnosed, one.place_right, one.severity_right), default=nothing)


def _score(
    fault: SimFault, place: fleet.Place, incident: Incident, *, found: diagnosis.Diagnosis | None, seconds: float
) -> ScenarioScore:
    truth, best = fault.scenario.truth, None if found is None else found.best
    taken = (incident.opened_at - clock.from_ms(fault.at * 1000)).total_seconds()
    budget = seconds + durations.parse_seconds(fault.scenario.visible_after)
    return ScenarioScore(
        fault.scenario.name,
        detected=True,
        seconds_to_detect=taken,
        budget_seconds=budget,
        within_budget=taken <= budget,
        place_right=place in (incident.place, best.place if best else None),
        severity_right=incident.severity is truth.severity,
        diagnosed=best is not None and best.cause == truth.cause,
        cause=truth.cause,
        named=None if best is None else best.cause,
    )


async def run_scenario(name: str, *, pace: Pace = HUB_PACE) -> ScenarioVerdict:
    """A fresh fleet, its history, one fault, and what became of it."""
    simulation = Simulation(SimSettings(gpus=SCENARIO_GPUS, seed=SEED))
    with tempfile.TemporaryDirectory(prefix="watchkeeper-drill-") as folder:
        watch = MonitoredFleet(simulation, Path(folder), pace=pace)
        try:
            return await _live_through(watch, scenario.find(simulation.scenarios, name))
        finally:
            watch.close()


async def _live_through(watch: MonitoredFleet, one: scenario.Scenario) -> ScenarioVerdict:
    quiet_seconds = 2 * watch.pace.rule_seconds
    await watch.advance(round(durations.parse_seconds(one.history)), with_rules=False)
    await watch.advance(quiet_seconds)
    fault = watch.simulation.inject(one.name)
    await _until_it_strikes(watch, fault)
    before = watch.incidents()
    settled, seen_for = 0, 0
    score = score_now(watch, fault, [])
    while not score.is_right and seen_for < PATIENCE_SECONDS and settled < SETTLE_SECONDS:
        await watch.advance(LOOK_SECONDS)
        seen_for += LOOK_SECONDS
        settled += LOOK_SECONDS if score.detected else 0
        known = {incident.id for incident in before}
        opened = [incident for incident in watch.incidents() if incident.id not in known]
        score = score_now(watch, fault, opened)
    twice = await _told_twice(watch, fault) if score.is_right else ()
    return ScenarioVerdict(replace(score, told_once=not twice), tuple(unexplained_pages(watch, fault)), twice)


async def _until_it_strikes(watch: MonitoredFleet, fault: SimFault) -> None:
    """What rules learn from hours of work they learn from a look each minute: nothing is to be found yet."""
    usual = watch.pace
    watch.pace = replace(usual, rule_seconds=max(usual.rule_seconds, HEALTHY_PACE.rule_seconds))
    await watch.advance(fault.at - watch.simulation.second)
    watch.pace = usual


async def _told_twice(watch: MonitoredFleet, fault: SimFault) -> tuple[Incident, ...]:
    """Open incidents of jobs that a fault of the hardware made stand still."""
    is_of_hardware = causes.lookup(fault.scenario.truth.cause).is_hardware
    if not is_of_hardware or not any(effect.stall for effect in fault.scenario.effects):
        return ()
    struck = set(fault.rows) | {row for lasting in fault.effects for row in lasting.rows}
    running = watch.simulation.machines.jobs.running.values()
    places = {f"job={job.name}" for job in running if struck & set(job.rows)}
    await watch.advance(AFTERMATH_SECONDS)
    return tuple(one for one in watch.incidents() if one.is_open and one.place.domain in places)


def score_now(watch: MonitoredFleet, fault: SimFault, opened: Sequence[Incident]) -> ScenarioScore:
    place = watch.simulation.fault_place(fault)
    return judge(fault, place, opened, diagnosis_of=watch.journal.diagnosis, allowed_seconds=watch.allowed_seconds)


def unexplained_pages(watch: MonitoredFleet, fault: SimFault) -> Iterable[Incident]:
    """Pages at places that the fault does not reach: another node, another rack, another job."""
    layout = watch.simulation.layout
    reached = {int(layout.node_of_gpu[row]) for lasting in fault.effects for row in lasting.rows} | {fault.node.row}
    if fault.job is not None:
        reached |= {int(layout.node_of_gpu[row]) for row in fault.job.rows}
    names = {layout.nodes[row].name for row in reached}
    struck = watch.simulation.fault_place(fault)
    for incident in watch.incidents():
        is_near = incident.place.node in names or incident.place == struck
        if incident.severity is alerts.Severity.CRITICAL and not is_near:
            yield incident


@dataclass(frozen=True, slots=True)
class HealthyHours:
    """What was cried for nothing while nothing was broken."""

    gpu_hours: float = 0.0
    alarms: tuple[Incident, ...] = ()

    @property
    def pages(self) -> int:
        return sum(incident.severity is alerts.Severity.CRITICAL for incident in self.alarms)


# Rules once a minute and scrapes twice, so that a simulated day takes minutes.
HEALTHY_PACE = Pace(scrape_seconds=30, rule_seconds=60)


async def run_healthy(
    *, hours: float, gpus: int, seed: int = SEED, on_progress: Callable[[float], None] = lambda _: None
) -> HealthyHours:
    """Hours in which nothing breaks; `say` hears of each piece of them that is over."""
    simulation = Simulation(SimSettings(gpus=gpus, seed=seed))
    with tempfile.TemporaryDirectory(prefix="watchkeeper-drill-") as folder:
        watch = MonitoredFleet(simulation, Path(folder), pace=HEALTHY_PACE)
        try:
            left = round(hours * 3600)
            while left > 0:
                turn = min(left, 600)
                await watch.advance(turn)
                left -= turn
                on_progress(turn / 3600)
            return HealthyHours(hours * gpus, tuple(alarms(watch.incidents())))
        finally:
            watch.close()


def merge_healthy(parts: Sequence[HealthyHours]) -> HealthyHours:
    return HealthyHours(sum(one.gpu_hours for one in parts), tuple(alarm for one in parts for alarm in one.alarms))


def alarms(incidents: Iterable[Incident]) -> list[Incident]:
    """Pages and tickets; an info is a remark and wakes nobody."""
    return [incident for incident in incidents if incident.severity is not alerts.Severity.INFO]


def total_score(verdicts: Sequence[ScenarioVerdict], healthy: HealthyHours) -> DrillScore:
    pages = healthy.pages + sum(len(one.false_pages) for one in verdicts)
    rate = len(healthy.alarms) / healthy.gpu_hours * 1000 if healthy.gpu_hours else 0.0
    cried = [*(page for one in verdicts for page in one.false_pages), *healthy.alarms]
    said = [f"{one.severity} {one.title} ({one.cause}, {one.opened_at:%a %H:%M})" for one in cried]
    said += [f"told twice at {one.score.name}: {twice.title}" for one in verdicts for twice in one.duplicate_incidents]
    return DrillScore(tuple(one.score for one in verdicts), pages, round(rate, 4), healthy.gpu_hours, tuple(said))
