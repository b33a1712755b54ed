"""The short form of the harness: each fault a few times; `python -m tests.faults` has the long form and other seeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.__main__ import run
from tests.faults.plan import FAULTS, Fault

SEED = 1


@pytest.mark.slow
@pytest.mark.servers
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault.is_for_ci], ids=lambda fault: fault.name)
def test_a_fault_costs_nothing_that_was_acknowledged(fault: Fault, tmp_path: Path) -> None:
    outcome = run(fault, tmp_path, seed=SEED, is_long=False)
    assert not outcome.problems
    assert outcome.rounds == fault.short
