"""What if, over a real socket: recorded jobs on the hub's own fleet, before and after a change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.web.fake_hub import FakeHub
from tests.web.running import Reply, Site, serving

# Eight jobs of 8 GPUs that all come at once, an hour each: a fleet of 32 GPUs takes two rounds.
LINES = "".join(f"j{at},8,1000,1000,4600\n" for at in range(8))
JOBS = f"id,gpus,submitted,started,ended\n{LINES}"


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with serving(FakeHub()) as running:
        yield running


def asked(site: Site, **body: Any) -> Reply:
    return site.ask("/api/capacity/whatif", method="POST", body=body)


def test_twice_the_fleet_takes_the_waiting_away(site: Site) -> None:
    answer = asked(site, jobs=JOBS, add=32).json
    assert (answer["before"]["gpus"], answer["after"]["gpus"]) == (32, 64)
    assert answer["before"]["wait"]["max"] == 3600
    assert answer["after"]["wait"]["max"] == 0


def test_a_rack_less_makes_it_longer_and_an_unknown_rack_is_refused(site: Site) -> None:
    assert asked(site, jobs=JOBS, remove_racks=["r02"]).json["after"]["wait"]["max"] == 3 * 3600
    assert asked(site, jobs=JOBS, remove_racks=["r77"]).status == 400


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({}, "needs recorded jobs"),
        ({"jobs": JOBS, "add": -1}, "add must be a whole number"),
        ({"jobs": JOBS, "add": True}, "add must be a whole number"),
        ({"jobs": JOBS, "policy": "magic"}, "policy `magic`: there are"),
        ({"jobs": JOBS, "remove_racks": "r01"}, "list of at most"),
        ({"jobs": "neither here\nnor there"}, "jobs"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(site: Site, body: dict[str, Any], problem: str) -> None:
    reply = asked(site, **body)
    assert reply.status == 400
    assert problem in reply.json["error"]
