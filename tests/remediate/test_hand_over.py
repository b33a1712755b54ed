"""A node whose repairs keep failing is handed over once, with its evidence."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.remediate.evidence_files import Inventory, files
from tests.remediate.world import World
from watchkeeper.errors import StoreError
from watchkeeper.model import fleet
from watchkeeper.model.repairs import Repair, RepairState
from watchkeeper.query.embedded import EmbeddedEngine
from watchkeeper.remediate import evidence
from watchkeeper.remediate.evidence import EvidenceSources, NodeHandOver, find_failed_repairs
from watchkeeper.store.head.head import Head


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with closing(World(tmp_path, count=4)) as made:
        yield made


def hand_over_of(world: World) -> NodeHandOver:
    node = fleet.Node("main", world.nodes[0].name)
    sources = EvidenceSources(world.journal, EmbeddedEngine(Head(max_series=10)), Inventory(node), "1.0")
    return NodeHandOver(world.journal, sources, world.folder / "bundles", limit=2)


def fail(world: World, id: str) -> Repair:
    """Let the repair of an incident run against a node that stays sick."""
    name = world.nodes[0].name
    for _ in range(400):
        world.cluster.machines[name].is_sick = True
        world.step()
        if world.state(id) == RepairState.FAILED:
            break
    repair = world.repairs.find(id)
    assert repair is not None
    assert repair.keeps_cordon, repair.reason
    return repair


def hand_over_texts(world: World, id: str) -> list[str]:
    return [text for text in world.story(id) if "repair it manually" in text]


def test_a_node_is_handed_over_after_the_second_failed_repair_and_only_once(world: World) -> None:
    incident = world.breaks(world.nodes[0].name)
    world.take(incident)
    fail(world, incident.id)
    handing = hand_over_of(world)
    assert handing.hand_over_failed(world.repairs.active_repairs(), world.now) == []
    want = world.wants(incident)
    assert want is not None
    world.control.retry(want, actor="ada", now=world.now)
    last = fail(world, incident.id)
    assert handing.hand_over_failed(world.repairs.active_repairs(), world.now) == [incident.id]
    (text,) = hand_over_texts(world, incident.id)
    path = world.folder / "bundles" / f"{last.id}.tar.gz"
    assert text.startswith(f"2 repairs of {world.nodes[0].name} failed, the limit is 2")
    assert f"The evidence is in {path}" in text
    assert path.stat().st_mode & 0o777 == 0o600
    present, _ = files(path.read_bytes())
    assert b"Validation failed" in present["repairs.json"]
    world.restart()
    assert hand_over_of(world).hand_over_failed(world.repairs.active_repairs(), world.now) == []


def test_a_node_is_handed_over_even_if_its_evidence_cannot_be_written(world: World) -> None:
    (world.folder / "bundles").write_text("in the way")
    incident = world.breaks(world.nodes[0].name)
    world.take(incident)
    fail(world, incident.id)
    handing = NodeHandOver(world.journal, hand_over_of(world)._sources, world.folder / "bundles", limit=1)
    assert handing.hand_over_failed(world.repairs.active_repairs(), world.now) == [incident.id]
    assert "The evidence could not be written" in hand_over_texts(world, incident.id)[0]


def test_the_oldest_bundles_beyond_the_limit_are_deleted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "MAX_BUNDLES", 2)
    folder = world.folder / "bundles"
    folder.mkdir()
    for age, name in enumerate(("young", "middle", "old"), start=1):
        (folder / f"{name}.tar.gz").touch()
        os.utime(folder / f"{name}.tar.gz", (1000 - age, 1000 - age))
    incident = world.breaks(world.nodes[0].name)
    world.take(incident)
    repair = fail(world, incident.id)
    NodeHandOver(world.journal, hand_over_of(world)._sources, folder, limit=1).hand_over_failed(
        world.repairs.active_repairs(), world.now
    )
    assert {path.name for path in folder.iterdir()} == {"young.tar.gz", f"{repair.id}.tar.gz"}


def test_a_hand_over_that_the_journal_refuses_is_repeated(world: World) -> None:
    incident = world.breaks(world.nodes[0].name)
    world.take(incident)
    fail(world, incident.id)
    handing = NodeHandOver(world.journal, hand_over_of(world)._sources, world.folder / "bundles", limit=1)
    world.journal._connection.execute("PRAGMA query_only = 1")
    with pytest.raises(StoreError):
        handing.hand_over_failed(world.repairs.active_repairs(), world.now)
    world.journal._connection.execute("PRAGMA query_only = 0")
    assert handing.hand_over_failed(world.repairs.active_repairs(), world.now) == [incident.id]
    assert len(hand_over_texts(world, incident.id)) == 1


def test_only_failed_repairs_of_the_same_cause_that_acted_count(world: World) -> None:
    incident = world.breaks(world.nodes[0].name)
    world.take(incident)
    repair = fail(world, incident.id)
    others = [
        replace(repair, cause="thermal_throttle"),
        replace(repair, has_acted=False),
        replace(repair, state=RepairState.ROLLED_BACK),
    ]
    assert find_failed_repairs(repair, [repair, *others]) == [repair]
    assert find_failed_repairs(replace(repair, has_acted=False), others) == []
