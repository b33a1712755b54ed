"""Scenario files: new ones need no code, invalid ones name the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from watchkeeper.catalogue import causes
from watchkeeper.errors import PackError
from watchkeeper.model.fleet import Place
from watchkeeper.remediate import policy
from watchkeeper.sim import scenario
from watchkeeper.sim.fleet import UnknownName
from watchkeeper.sim.simulation import SimSettings, Simulation

SLOW_CARD = """
name: slow-card
title: A GPU runs at half its clocks
story: Someone left a clock limit behind.
strikes: gpu
for: 2m
effects:
  - clock: 0.5
  - pcie_replays: 40
    after: 10s
repaired_by: [reset_gpu]
truth: {cause: unknown, action: inspect, severity: warning, place: gpu}
"""


SHIPPED = scenario.load_scenarios()


@pytest.mark.parametrize("shipped", SHIPPED.values(), ids=SHIPPED.keys())
def test_the_truth_of_a_shipped_scenario_is_in_the_catalogue_and_the_policy(shipped: scenario.Scenario) -> None:
    row = causes.lookup(shipped.truth.cause)
    assert row.cause == shipped.truth.cause
    assert shipped.truth.severity.rank >= row.severity.rank
    is_rack = shipped.truth.place is scenario.FaultTarget.RACK
    place = Place("main", domain="rack=r1") if is_rack else Place("main", node="n1")
    assert shipped.truth.action in {step.action for step in policy.load().steps(shipped.truth.cause, place=place)}
    assert len(shipped.story) > 100


def test_a_new_scenario_with_existing_effects_needs_no_code(tmp_path: Path) -> None:
    (tmp_path / "slow-card.yaml").write_text(SLOW_CARD)
    fleet = Simulation(SimSettings(gpus=8))
    fleet.scenarios = scenario.load_scenarios(tmp_path)
    before = int(fleet.machines.physics.pcie_replays[2])
    fleet.inject("slow-card", node="gpu-r01-01", gpu=2)
    fleet.advance(15)
    assert fleet.machines.physics.clock_share[2] <= 0.5 < fleet.machines.physics.clock_share[3]
    assert int(fleet.machines.physics.pcie_replays[2]) == before + 40
    fleet.advance(120)
    assert fleet.machines.physics.clock_share[2] > 0.5


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("strikes: gpu", "strikes: roof"), r"strikes: expected one of gpu, node, rack, .*, found 'roof'"),
        (("clock: 0.5", "clok: 0.5"), r"effects\[0\]\.clok: unknown key"),
        (("clock: 0.5", "clock: 1.5"), r"effects\[0\]: `clock: 1.5` is not a share"),
        (("clock: 0.5", "after: 5s"), r"effects\[0\]: an effect must change something"),
        (("for: 2m", "for: 120"), r"for: expected text, found 120"),
        (("title: A GPU", "titel: A GPU"), r"title: is missing"),
        (("name: slow-card", "name: fast-card"), r"name: `fast-card` must be the name of the file"),
        (("effects:", "kernel: ['NVRM: {bus}']\neffects:"), r"unknown placeholder \{bus\}"),
        (("story: Some", "story: [Some"), r"not YAML"),
    ],
)
def test_an_invalid_file_is_named_with_its_key(change: tuple[str, str], problem: str) -> None:
    with pytest.raises(PackError, match=rf"packs/scenarios/slow-card\.yaml: .*{problem}"):
        scenario.parse_scenario(SLOW_CARD.replace(*change), file="slow-card.yaml")


def test_an_unknown_scenario_suggests_a_similar_one() -> None:
    with pytest.raises(UnknownName, match=r"no scenario `gpu-idle`\. .*Did you mean held-idle\?"):
        scenario.find_scenario(SHIPPED, "gpu-idle")
