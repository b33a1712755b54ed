"""Run two faults at once on one node: each must be detected at its own place with its own cause.

The second fault is injected into another GPU of the same node in the same second. `game_day` runs the pairs in addition
to the single scenarios (`--pairs`); the name of a score contains both faults.
"""

from __future__ import annotations

from dataclasses import replace

from watchkeeper.drill import score
from watchkeeper.drill.monitored_fleet import HUB_INTERVALS, temporary_fleet
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


async def run_pair(names: tuple[str, str]) -> list[score.ScenarioVerdict]:
    """Inject two faults into one node of a new fleet and score each."""
    with temporary_fleet(SimSettings(gpus=GPUS, seed=score.SEED), HUB_INTERVALS) as monitored:
        first, second = (scenario.find_scenario(monitored.simulation.scenarios, name) for name in names)
        await score.advance_history(monitored, [first, second])
        earlier_ids = {incident.id for incident in monitored.incidents()}
        faults = [monitored.simulation.inject(first.name)]
        if names in SECOND_AFTER_DETECTION:
            await score.score_until_right(monitored, faults, earlier_ids)
        faults.append(_inject_beside(monitored.simulation, faults[0], second))
        scores = await score.score_until_right(monitored, faults, earlier_ids)
        return [
            score.ScenarioVerdict(
                replace(result, name=f"{result.name} beside {other}"), tuple(score.unexplained_pages(monitored, fault))
            )
            for result, other, fault in zip(scores, reversed(names), faults, strict=True)
        ]


def _inject_beside(simulation: Simulation, first: SimFault, second: scenario.Scenario) -> SimFault:
    index = None
    if second.strikes is scenario.FaultTarget.GPU:
        first_row = None if first.gpu is None else first.gpu.row
        index = next(at for at, gpu in reversed(list(enumerate(first.node.gpus))) if gpu.row != first_row)
    return simulation.inject(second.name, node=first.node.name, gpu=index)
