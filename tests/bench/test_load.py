"""The load benchmarks in their smallest size: no acknowledged event is lost on any machine."""

from __future__ import annotations

import argparse

import pytest

from bench import pushing


@pytest.mark.slow
@pytest.mark.servers
def test_no_acknowledged_event_is_lost_when_the_hub_is_killed() -> None:
    numbers = pushing.measure(argparse.Namespace(agents=60, pushes=2, events=3))
    assert (numbers["events"], numbers["pushes"], numbers["lost"]) == (360, 120, 0)
