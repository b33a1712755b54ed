"""Two faults at once on one node: each must be found at its own place, under its own cause.

The second fault strikes another GPU of the node that the first has chosen, in the same second. `game_day` runs the
pairs beside the single scenarios when asked; a fault's score says in its name what happened beside it.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from watchkeeper.drill import score
from watchkeeper.drill.monitored_fleet import HUB_PACE, MonitoredFleet, Pace
from watchkeeper.kit import durations
from watchkeeper.model import incidents
from watchkeeper.sim import scenario
from watchkeeper.sim.faults import SimFault
from watchkeeper.sim.simulation import SimSettings, Simulation

# One node is struck; the others are there to be compared with.
GPUS = 64
# Heat beside bad memory, a network link beside memory, a program's fault beside the hardware's, and each of two that
# look alike from far away: what people confuse, or stop looking for once the first is found.
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
# The second ends the job whose heat shows the first: it strikes once the first has been seen.
ONE_AFTER_THE_OTHER = frozenset({("fan-failure", "xid-48")})


async def run_pair(
    names: tuple[str, str], *, seed: int = score.SEED, pace: Pace = HUB_PACE
) -> list[score.ScenarioVerdict]:
    """A fresh fleet, two faults on one node, and what became of each."""
    simulation = Simulation(SimSettings(gpus=GPUS, seed=seed))
    with tempfile.TemporaryDirectory(prefix="watchkeeper-drill-") as folder:
        watch = MonitoredFleet(simulation, Path(folder), pace=pace)
        try:
            return await _live_through(watch, names)
        finally:
            watch.close()


async def _live_through(watch: MonitoredFleet, names: tuple[str, str]) -> list[score.ScenarioVerdict]:
    chosen = [scenario.find(watch.simulation.scenarios, name) for name in names]
    history = max(round(durations.parse_seconds(one.history)) for one in chosen)
    await watch.advance(history, with_rules=False)
    await watch.advance(2 * watch.pace.rule_seconds)
    before = {incident.id for incident in watch.incidents()}
    faults = [watch.simulation.inject(chosen[0].name)]
    if names in ONE_AFTER_THE_OTHER:
        await _wait(watch, faults, before)
    faults.append(_beside(watch.simulation, faults[0], chosen[1]))
    found = await _wait(watch, faults, before)
    both = zip(found, reversed(names), faults, strict=True)
    return [
        score.ScenarioVerdict(
            replace(one, name=f"{one.name} beside {other}"), tuple(score.unexplained_pages(watch, fault))
        )
        for one, other, fault in both
    ]


async def _wait(
    watch: MonitoredFleet, faults: list[SimFault], before: set[incidents.IncidentId]
) -> list[score.ScenarioScore]:
    """Until every fault is found and right, or for as long as a single one would be waited for."""
    found = [score.score_now(watch, fault, []) for fault in faults]
    settled, seen_for = 0, 0
    while not all(one.is_right for one in found) and seen_for < score.PATIENCE_SECONDS:
        await watch.advance(score.LOOK_SECONDS)
        seen_for += score.LOOK_SECONDS
        settled += score.LOOK_SECONDS if all(one.detected for one in found) else 0
        opened = [incident for incident in watch.incidents() if incident.id not in before]
        found = [score.score_now(watch, fault, opened) for fault in faults]
        if settled >= score.SETTLE_SECONDS:
            break
    return found


def _beside(simulation: Simulation, first: SimFault, second: scenario.Scenario) -> SimFault:
    index = None
    if second.strikes is scenario.FaultTarget.GPU:
        taken = None if first.gpu is None else first.gpu.row
        index = next(at for at, gpu in reversed(list(enumerate(first.node.gpus))) if gpu.row != taken)
    return simulation.inject(second.name, node=first.node.name, gpu=index)
