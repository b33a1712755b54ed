"""Why a GPU has no holder: free, or unknown."""

from __future__ import annotations

from watchkeeper.hub.holders import GpuHolder, GpuHolders

HELD = {"GPU-1": (GpuHolder("GPU-1", "n1", "main", "pod", "train", namespace="ml"),)}


def test_a_gpu_is_free_where_its_cluster_names_the_holders_of_others() -> None:
    holders = GpuHolders(HELD)
    assert holders.no_holder_reason("GPU-2", "main") == "free"
    assert holders.no_holder_reason("GPU-9", "other") == "exporter reports no holder"


def test_what_an_agent_or_a_failed_query_says_comes_first() -> None:
    assert GpuHolders(HELD, {"GPU-2": "source_failed"}).no_holder_reason("GPU-2", "main") == "source_failed"
    assert GpuHolders(HELD, problem="timeout").no_holder_reason("GPU-2", "main") == "timeout"
    assert GpuHolders().no_holder_reason("GPU-2", "main") == "exporter reports no holder"
