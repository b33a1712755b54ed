"""Run two faults at once on one node: each must be detected at its own place with its own cause.

The second fault is injected into another GPU of the same node in the same second. `game_day` runs the pairs in addition
to the single scenarios (`--pairs`); the name of a score contains both faults.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from watchkeeper.drill import score
from watchkeeper.drill.monitored_fleet import HUB_INTERVALS, FleetIntervals, MonitoredFleet
from watchkeeper.kit import durations
from watchkeeper.model import incidents
from watchkeeper.sim import scenario
from watchkeeper.sim.faults import SimFault
from watchkeeper.sim.simulation import SimSettings, Simulation

# One node gets the faults; the others are for comparison.
GPUS = 64
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


async def run_pair(
    names: tuple[str, str], *, seed: int = score.SEED, intervals: FleetIntervals = HUB_INTERVALS
) -> list[score.ScenarioVerdict]:
    """Inject two faults into one node of a new fleet and score each."""
    simulation = Simulation(SimSettings(gpus=GPUS, seed=seed))
    with tempfile.TemporaryDirectory(prefix="watchkeeper-drill-") as folder:
        monitored = MonitoredFleet(simulation, Path(folder), intervals=intervals)
        try:
            return await _score_pair(monitored, names)
        finally:
            monitored.close()


async def _score_pair(monitored: MonitoredFleet, names: tuple[str, str]) -> list[score.ScenarioVerdict]:
    scenarios = [scenario.find_scenario(monitored.simulation.scenarios, name) for name in names]
    history = max(round(durations.parse_seconds(chosen.history)) for chosen in scenarios)
    await monitored.advance(history, with_rules=False)
    await monitored.advance(2 * monitored.intervals.rule_seconds)
    earlier_ids = {incident.id for incident in monitored.incidents()}
    faults = [monitored.simulation.inject(scenarios[0].name)]
    if names in SECOND_AFTER_DETECTION:
        await _score_until_right(monitored, faults, earlier_ids)
    faults.append(_inject_beside(monitored.simulation, faults[0], scenarios[1]))
    scores = await _score_until_right(monitored, faults, earlier_ids)
    return [
        score.ScenarioVerdict(
            replace(result, name=f"{result.name} beside {other}"), tuple(score.unexplained_pages(monitored, fault))
        )
        for result, other, fault in zip(scores, reversed(names), faults, strict=True)
    ]


async def _score_until_right(
    monitored: MonitoredFleet, faults: list[SimFault], earlier_ids: set[incidents.IncidentId]
) -> list[score.ScenarioScore]:
    """Advance until the score of every fault is right, or until the time limit of a single fault."""
    scores = [score.score_fault(monitored, fault, []) for fault in faults]
    settled_seconds, waited_seconds = 0, 0
    while not all(result.is_right for result in scores) and waited_seconds < score.DETECTION_TIMEOUT_SECONDS:
        await monitored.advance(score.SCORE_EVERY_SECONDS)
        waited_seconds += score.SCORE_EVERY_SECONDS
        settled_seconds += score.SCORE_EVERY_SECONDS if all(result.detected for result in scores) else 0
        opened = [incident for incident in monitored.incidents() if incident.id not in earlier_ids]
        scores = [score.score_fault(monitored, fault, opened) for fault in faults]
        if settled_seconds >= score.SETTLE_SECONDS:
            break
    return scores


def _inject_beside(simulation: Simulation, first: SimFault, second: scenario.Scenario) -> SimFault:
    index = None
    if second.strikes is scenario.FaultTarget.GPU:
        first_row = None if first.gpu is None else first.gpu.row
        index = next(at for at, gpu in reversed(list(enumerate(first.node.gpus))) if gpu.row != first_row)
    return simulation.inject(second.name, node=first.node.name, gpu=index)
