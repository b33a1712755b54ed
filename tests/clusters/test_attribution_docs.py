"""The expressions of the how-to pages answer, on a small fleet that has what they speak of."""

from __future__ import annotations

import re

import pytest

from tests.support.paths import ROOT
from watchkeeper.model.labels import Labels
from watchkeeper.model.samples import Sample
from watchkeeper.query.embedded import EmbeddedEngine
from watchkeeper.store.head.head import Head

PAGES = ROOT / "docs" / "howto"
AT = 1_800_000_000_000
SHARED = {"workload_kind": "pod", "namespace": "serving", "team": "serving"}


def expressions() -> list[str]:
    texts = [(PAGES / page).read_text() for page in ("attribution.md", "slurm.md")]
    return [found.strip() for text in texts for found in re.findall(r"```promql\n(.*?)```", text, re.DOTALL)]


def gpu(index: int, **more: str) -> dict[str, str]:
    return {"cluster": "main", "Hostname": "n1", "UUID": f"GPU-{index}", "gpu": str(index), **more}


def small_fleet(*, is_shared: bool) -> EmbeddedEngine:
    """GPU 0 is held and idle; GPU 1 has one holder, or two."""
    pods = {f"chat-{number}": number / 4 for number in (1, 3)} if is_shared else {"chat-1": 1.0}
    rows: list[tuple[str, dict[str, str], float]] = [
        ("watchkeeper_gpu_workload_info", gpu(0, workload_kind="slurm_job", workload="7", team="llm"), 1),
        *(("watchkeeper_gpu_workload_info", gpu(1, workload=pod, **SHARED), 1) for pod in pods),
        *(("watchkeeper_gpu_workload_share", gpu(1, workload=pod, **SHARED), share) for pod, share in pods.items()),
        *(("DCGM_FI_DEV_POWER_USAGE", gpu(index), 500) for index in (0, 1)),
        *(("DCGM_FI_DEV_GPU_UTIL", gpu(index), 83.0 * index) for index in (0, 1)),
        ("watchkeeper_pending_gpus", {"source": "slurm", "queue": "gpu", "reason": "Resources"}, 16),
        ("watchkeeper_scheduler_node_state", {"cluster": "main", "Hostname": "n1", "state": "drained"}, 1),
        ("watchkeeper_node_expected_gpus", {"cluster": "main", "Hostname": "n1"}, 2),
        *(
            ("watchkeeper_quota_gpus", {"owner": "llm", "type": kind}, count)
            for kind, count in (("used", 2), ("hard", 12))
        ),
    ]
    engine = EmbeddedEngine(Head())
    engine.appender.append([Sample(Labels({"__name__": name, **labels}), AT, value) for name, labels, value in rows])
    return engine


@pytest.mark.parametrize("expr", expressions())
def test_every_expression_of_the_pages_gives_an_answer(expr: str) -> None:
    # The first join is for GPUs with one holder, as its page says; the others stand a shared one.
    engine = small_fleet(is_shared="avg by (team)" not in expr)
    answer = engine.instant(expr, AT + 1000)
    assert answer.frame.labels, f"nothing came of {expr}"


def test_the_split_of_a_shared_gpu_sums_to_its_utilisation() -> None:
    expr = next(one for one in expressions() if "workload_share" in one)
    parts = small_fleet(is_shared=True).instant(expr, AT + 1000).latest()
    assert sorted(parts.values()) == [83 / 4, 83 * 3 / 4]
