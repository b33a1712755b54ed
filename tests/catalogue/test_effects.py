"""What a fault brings along: families at its place, and what it does to the jobs that run there."""

from __future__ import annotations

from datetime import timedelta

import pytest

from watchkeeper.catalogue import causes, pack
from watchkeeper.errors import PackError


def test_a_dead_node_explains_its_gpus_and_the_jobs_on_it() -> None:
    assert "gpu_lost" in causes.affected_families("node_down")
    assert causes.job_effects("node_down")["training_stalled"] == causes.ALWAYS
    assert causes.job_effects("thermal_throttle") == {
        "training_slow": timedelta(minutes=30),
        "nccl_timeout_straggler": timedelta(minutes=30),
    }


def test_what_leaves_a_job_alone_explains_none() -> None:
    for cause in ("row_remap_pending", "ecc_correctable_storm", "agent_down", "power_cap", "gpu_idle_waste", "unknown"):
        assert causes.job_effects(cause) == {}


def test_no_cause_explains_itself_by_way_of_another() -> None:
    for row in causes.all_causes():
        reached, waiting = set[str](), [row.cause]
        while waiting:
            for effect in causes.job_effects(waiting.pop()).keys() - reached:
                reached.add(effect)
                waiting.append(effect)
        assert row.cause not in reached


@pytest.mark.parametrize(
    "row", ["node_down,gremlins,,why", "nobody,training,,why", "node_down,gpu_lost,,", "node_down,gpu_lost,5,why"]
)
def test_a_row_that_cannot_be_is_refused_with_its_line(row: str) -> None:
    with pytest.raises(PackError, match=r"effects\.csv:2"):
        pack.read(f"cause,effect,within,why\n{row}\n", causes.read_effect, file=causes.EFFECTS_FILE)
