"""The benches of load, in their smallest size: nothing that was acknowledged is lost, whatever the machine."""

from __future__ import annotations

import argparse

import pytest

from bench import pushing


@pytest.mark.slow
@pytest.mark.servers
def test_agents_that_push_at_the_same_moment_lose_nothing_when_the_hub_is_killed_then() -> None:
    found = pushing.measure(argparse.Namespace(agents=60, pushes=2, events=3))
    assert (found["events"], found["pushes"], found["lost"]) == (360, 120, 0)
