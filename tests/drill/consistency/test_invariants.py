"""Each invariant catches a contradiction that is planted in the answers of a real hub."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.drill.consistency.planted import BEFORE, PLANTS, Plant
from watchkeeper.cli.doctor.drill_consistency import run_command
from watchkeeper.drill.consistency import judging, looks, product
from watchkeeper.drill.consistency.invariants import subjects
from watchkeeper.drill.consistency.jumping_time import JumpingLoop

MINIMUM = 40
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@dataclass(frozen=True, slots=True)
class Recorded:
    """Looks of one hub: a hung job, 20 s later, and while its node reboots."""

    before: looks.Look
    during: looks.Look
    repair: looks.Look


async def record(folder: Path) -> Recorded:
    async with product.running(folder, gpus=64, seed=7) as running:
        await running.advance(120)
        running.simulation.inject("xid-79")
        await running.advance(200)
        before = await looks.take_look(running, "before", run_command)
        await running.advance(20)
        during = await looks.take_look(running, "during", run_command)
        (repair,) = subjects.repairs(during)
        path = f"/api/incidents/{repair['incident']}/approve"
        assert (await running.post(path, {"digest": repair["digest"]}))["ok"]
        await running.advance(25)
        return Recorded(before, during, await looks.take_look(running, "repair", run_command))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    loop = JumpingLoop()
    yield loop.run_until_complete(record(tmp_path_factory.mktemp("hub")))
    loop.close()


def test_each_of_at_least_forty_invariants_has_a_planted_contradiction() -> None:
    assert sorted(PLANTS) == sorted(invariant.id for invariant in judging.INVARIANTS)
    assert len(PLANTS) >= MINIMUM
    assert len({invariant.sentence for invariant in judging.INVARIANTS}) == len(PLANTS)


@pytest.mark.parametrize("invariant", judging.INVARIANTS, ids=lambda invariant: invariant.id)
def test_a_planted_contradiction_is_caught(recorded: Recorded, invariant: judging.table.Invariant) -> None:
    look = copy.deepcopy(recorded.repair if invariant.subject == "repairs" else recorded.during)
    previous = copy.deepcopy(recorded.before)
    usual = [str(contradiction) for contradiction in invariant.check(look, previous)]
    plant(PLANTS[invariant.id], look, previous)
    caught = [str(contradiction) for contradiction in invariant.check(look, previous)]
    assert set(caught) - set(usual), f"{invariant.sentence} {PLANTS[invariant.id]}"


def plant(plants: Plant | tuple[Plant, ...], look: looks.Look, previous: looks.Look) -> None:
    names = names_of(look)
    for answer, keys, value in plants if isinstance(plants[0], tuple) else (plants,):
        target = previous if answer.startswith(BEFORE) else look
        set_value(target.answers, (fill(answer.removeprefix(BEFORE), names), *keys), value, names)


def set_value(container: Any, keys: tuple[Any, ...], value: Any, names: Mapping[str, str]) -> None:
    first = fill(keys[0], names) if isinstance(keys[0], str) else keys[0]
    if len(keys) > 1:
        if isinstance(container, dict):
            container.setdefault(first, {})
        set_value(container[first], keys[1:], value, names)
    else:
        container[first] = value(container[first]) if callable(value) else fill(value, names)


def fill(value: Any, names: Mapping[str, str]) -> Any:
    for name, text in names.items() if isinstance(value, str) else ():
        value = value.replace(name, text)
    return value


def names_of(look: looks.Look) -> dict[str, str]:
    card, job = subjects.cards(look)[0], subjects.jobs(look)[0]
    namespace, _, name = job["id"].rpartition("/")
    return {
        "{incident}": card["id"],
        "{job}": quote(job["id"], safe=""),
        "{job name}": job["name"],
        "{explained job}": f"/api/explain/job/{namespace}/{name}",
        "{node}": card["place"]["node"],
        "{gpu}": card["place"]["gpu"],
        "{up}": subjects.node_lines(look)[0]["name"],
    }


def test_every_endpoint_is_asked_or_has_a_reason_not_to_be(recorded: Recorded) -> None:
    paths = recorded.during.answers["/api/openapi.json"]["paths"]
    templates = {path for path, methods in paths.items() if "get" in methods} - looks.NOT_ASKED.keys()
    details = {looks.subject_key(path) for path in templates} & looks.list_subjects(recorded.during).keys()
    for path in sorted(templates):
        is_asked = path in recorded.during.answers or looks.subject_key(path) in details
        is_prometheus = path.startswith("/api/v1/")
        is_page = "console" in paths[path]["get"]["tags"]
        assert is_asked or is_prometheus or is_page, f"{path}: ask it in looks.py, or say there why not"


def test_a_look_without_an_answer_is_unknown_and_not_a_contradiction(recorded: Recorded) -> None:
    empty = replace(recorded.during, answers={"page: incidents": {}, "page: map": {}})
    assert judging.judge(empty, empty) == {}
