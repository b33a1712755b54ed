"""The laws of repairs hold on every path: budgets are kept, nothing is done twice, and nothing of ours stays behind.

The long form of this walk, over other paths, is `python -m bench repair --walks N`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.remediate.walk import walk


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_no_path_breaks_a_budget_or_leaves_a_cordon(tmp_path: Path, seed: int) -> None:
    walked = walk(tmp_path, seed, 250)
    assert walked.world.cluster.calls
