"""Every fault of the harness, with how many rounds it has in its short form and in its long one."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tests.faults import away, clocks, damages, disks, kills, lines, queries
from tests.faults.world import Outcome


class Run(Protocol):
    def __call__(self, folder: Path, outcome: Outcome, rng: random.Random, *, rounds: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Fault:
    name: str
    run: Run
    short: int
    long: int
    # False: a test of another folder tells it in CI already.
    is_for_ci: bool = True


FAULTS = (
    Fault("hub killed", kills.hub_kills, 5, 200),
    Fault("disk refuses", disks.disk_refuses, 1, 50),
    Fault("files damaged", damages.files_damaged, 6, 200),
    Fault("clock jumps", clocks.clock_jumps, 1, 20),
    Fault("agent behind a bad line", lines.agent_behind_a_bad_line, 4, 150),
    Fault("queries abandoned", queries.abandoned_queries, 1, 5),
    Fault("prometheus away", away.prometheus_away, 1, 20),
    *(Fault(name, away.story(name), 1, 3, is_for_ci=False) for name in away.STORIES),
)
