"""Idle is what the samples of every GPU of a workload say since the warning; silence is not idle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

import pytest

from watchkeeper.errors import QueryError
from watchkeeper.kit.clock import to_ms
from watchkeeper.model.actions import Action, ActionId, ActionKind
from watchkeeper.model.fleet import Place
from watchkeeper.model.incidents import IncidentId
from watchkeeper.model.labels import Labels
from watchkeeper.model.samples import Sample
from watchkeeper.query.embedded import EmbeddedEngine
from watchkeeper.remediate.reclaim import SM_ACTIVE, UTILISATION, IdleCheck
from watchkeeper.remediate.validation import CheckState
from watchkeeper.store.head.head import Head

NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)
POD = {"namespace": "research", "pod": "nb-1"}


def engine(*gpus: Mapping[str, Sequence[float]], holder: Mapping[str, str] = POD) -> EmbeddedEngine:
    """One sample every ten minutes of the hour after noon, by name of the series, for each GPU."""
    made = EmbeddedEngine(Head())
    for at, series in enumerate(gpus):
        for name, values in series.items():
            labels = Labels(
                {"__name__": name, "cluster": "main", "Hostname": f"n{at // 8}", "UUID": f"GPU-{at}", **holder}
            )
            made.appender.append(
                [Sample(labels, to_ms(NOON + step * HOUR / 6) + 1, value) for step, value in enumerate(values)]
            )
    return made


def judged(samples: EmbeddedEngine, **named: str) -> tuple[CheckState, str]:
    place = Place("main", node="n0", gpu="GPU-0")
    arguments = named or {"pods": "research/nb-1"}
    action = Action(ActionId("3-reclaim"), ActionKind.RECLAIM, place, IncidentId("INC-1"), "why", arguments)
    verdict = IdleCheck(samples).check(action, NOON, NOON + HOUR)
    return verdict.state, verdict.text


def test_a_gpu_without_a_kernel_since_the_warning_is_idle() -> None:
    still = {SM_ACTIVE: [0.0] * 6, UTILISATION: [0.0] * 6}
    assert judged(engine(still)) == (CheckState.PASSED, "research/nb-1: 1 of 1 GPUs idle for 60 min")


@pytest.mark.parametrize("series", [SM_ACTIVE, UTILISATION])
def test_one_kernel_within_the_time_is_use(series: str) -> None:
    used = {SM_ACTIVE: [0.0] * 6, UTILISATION: [0.0] * 6} | {series: [0.0, 0.0, 50.0, 0.0, 0.0, 0.0]}
    assert judged(engine(used))[0] is CheckState.FAILED


def test_a_workload_with_one_gpu_at_work_keeps_all_of_them() -> None:
    state, text = judged(engine({SM_ACTIVE: [0.0] * 6}, {SM_ACTIVE: [0.6] * 6}))
    assert (state, text) == (
        CheckState.FAILED,
        "research/nb-1: 1 of 2 GPUs idle for 60 min, 1 in use",
    )


def test_ranks_that_spin_for_a_crashed_one_are_waste_too() -> None:
    crashed = {SM_ACTIVE: [0.0] * 6, UTILISATION: [0.0] * 6}
    spinning = {SM_ACTIVE: [0.1] * 6, UTILISATION: [100.0] * 6}
    state, text = judged(engine(crashed, spinning, spinning))
    assert (state, text) == (
        CheckState.PASSED,
        "research/nb-1: 1 of 3 GPUs idle for 60 min, 2 spinning",
    )
    assert judged(engine(spinning))[0] is CheckState.FAILED


def test_profiling_that_broke_does_not_make_a_gpu_idle() -> None:
    assert judged(engine({SM_ACTIVE: [0.0] * 6, UTILISATION: [60.0] * 6}))[0] is CheckState.FAILED


def test_without_samples_idleness_is_unknown() -> None:
    assert judged(engine()) == (CheckState.UNKNOWN, "no samples of the GPUs of research/nb-1")


def test_a_slurm_job_is_asked_for_on_every_node_it_has() -> None:
    still = {UTILISATION: [0.0] * 6}
    samples = engine(*([still] * 9), holder={"hpc_job": "4711"})
    assert judged(samples, jobs="4711") == (CheckState.PASSED, "4711: 9 of 9 GPUs idle for 60 min")


def test_labels_that_prometheus_renamed_are_the_same_workload() -> None:
    samples = engine({UTILISATION: [70.0] * 6}, holder={"exported_namespace": "research", "exported_pod": "nb-1"})
    assert judged(samples)[0] is CheckState.FAILED


def test_a_failed_query_leaves_idleness_unknown() -> None:
    class Gone(EmbeddedEngine):
        def instant(self, expr: str, at_ms: int, **_: object) -> object:  # type: ignore[override]
            raise QueryError("the server does not answer")

    state, text = judged(Gone(Head()))
    assert state is CheckState.UNKNOWN
    assert "the server does not answer" in text
