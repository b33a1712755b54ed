"""Attribution: results of all sources are combined, and a GPU without a holder has a reason."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as some

from tests.support.waiting import until_async
from watchkeeper.agent.attribution import attribution
from watchkeeper.agent.attribution.attribution import (
    Attributor,
    Holders,
    NamedSource,
    RunningProgram,
    SourceResult,
    attribute,
)
from watchkeeper.agent.attribution.node_holders import HolderDisplay, build_holder_labels, render
from watchkeeper.agent.gpus.gpu_samples import GpuSample, MigInstanceSample, Program
from watchkeeper.errors import CollectError
from watchkeeper.kit.own_metrics import Registry
from watchkeeper.model.workloads import Attribution, Holding, UnattributedReason, Workload, WorkloadKind

POD = Workload(WorkloadKind.POD, "llm-0", namespace="research", container="main")
OTHER = Workload(WorkloadKind.POD, "chat-0", namespace="serving", container="main")
JOB = Workload(WorkloadKind.SLURM_JOB, "4711")


def gpu(index: int = 0, *slices: MigInstanceSample, programs: Sequence[Program] | None = ()) -> GpuSample:
    identity = {"uuid": f"GPU-{index}", "minor": str(7 - index), "pci": "", "model": "H200"}
    sampled = None if programs is None else tuple(programs)
    return GpuSample(index, identity, {}, {}, mig_instances=tuple(slices), programs=sampled)


def result(name: str = "kubelet", **holders: Workload) -> SourceResult:
    return SourceResult(name, {key.replace("_", "-"): (Holding(workload),) for key, workload in holders.items()})


def ran(pid: int, workload: Workload, busy: int | None = None, **more: object) -> RunningProgram:
    return RunningProgram(Program(pid, busy_percent=busy), workload, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("key", ["GPU_0", "0", "nvidia7"])
def test_a_gpu_is_found_by_uuid_by_index_and_by_its_device_file(key: str) -> None:
    attributions = attribute([gpu(0)], [result(**{key: POD})], {})
    assert attributions["GPU-0"].holdings == (Holding(POD),)


def test_a_mig_instance_is_found_by_its_new_and_old_uuid() -> None:
    cut = gpu(0, MigInstanceSample(3, "1g.18gb", {}, "MIG-abc"))
    old = "MIG-GPU-00000000-0000-0000-0000-000000000000/5/0"
    named = GpuSample(1, {"uuid": "GPU-00000000-0000-0000-0000-000000000000", "minor": "1"}, {}, {})
    holders = {"MIG-abc": (Holding(POD, slice="MIG-abc"),), old: (Holding(OTHER, slice=old),)}
    attributions = attribute([cut, named], [SourceResult("kubelet", holders)], {})
    assert attributions["GPU-0"].holdings == (Holding(POD, slice="3"),)
    assert attributions[named.identity["uuid"]].holdings == (Holding(OTHER, slice="5"),)


@pytest.mark.parametrize(
    ("sources", "programs", "reason", "says"),
    [
        ([SourceResult("kubelet", {})], (), UnattributedReason.FREE, "checked kubelet, programs"),
        ([], (), UnattributedReason.FREE, "checked programs"),
        ([], None, UnattributedReason.NO_SOURCE, "no kubelet, no Slurm"),
        ([SourceResult("kubelet", None, "hangs")], (), UnattributedReason.SOURCE_FAILED, "kubelet: hangs"),
        ([result(GPU_9=POD)], (), UnattributedReason.FREE, "checked kubelet, programs"),
        ([result(gpu_claim_9=POD)], (), UnattributedReason.UNKNOWN_DEVICE, "gpu-claim-9"),
    ],
)
def test_a_gpu_without_a_holder_has_a_reason(
    sources: list[SourceResult], programs: Sequence[Program] | None, reason: UnattributedReason, says: str
) -> None:
    running = {} if programs is None else {"GPU-0": ()}
    attribution_of_gpu = attribute([gpu(0, programs=programs)], sources, running)["GPU-0"]
    assert (attribution_of_gpu.reason, attribution_of_gpu.holdings) == (reason, ())
    assert says in attribution_of_gpu.detail


def test_processes_belong_to_their_job_and_others_are_separate_holders() -> None:
    stray = Workload(WorkloadKind.PROGRAM, "train.py", user="ada")
    programs = {"GPU-0": [ran(1, Workload(WorkloadKind.SLURM_JOB, "4711", user="eve"), 60), ran(2, stray, 20)]}
    attribution_of_gpu = attribute([gpu(0)], [result("slurm", nvidia7=JOB)], programs)["GPU-0"]
    assert [(held.workload, held.share) for held in attribution_of_gpu.holdings] == [(JOB, 0.75), (stray, 0.25)]


def test_two_pods_on_one_gpu_are_distinguished_by_their_host_names() -> None:
    unknown = Workload(WorkloadKind.PROGRAM, "python", user="root")
    shared = SourceResult("kubelet", {"GPU-0": (Holding(POD), Holding(OTHER))})
    programs = [
        ran(1, unknown, 30, is_in_pod=True, pod_hostname="chat-0"),
        ran(2, unknown, 10, is_in_pod=True, pod_hostname="llm-0"),
    ]
    attribution_of_gpu = attribute([gpu(0)], [shared], {"GPU-0": programs})["GPU-0"]
    assert {held.workload.name: held.share for held in attribution_of_gpu.holdings} == {"llm-0": 0.25, "chat-0": 0.75}


def test_without_utilisation_by_process_there_are_no_shares() -> None:
    shared = SourceResult("kubelet", {"GPU-0": (Holding(POD), Holding(OTHER))})
    programs = [ran(1, POD, None, is_in_pod=True), ran(2, OTHER, None, is_in_pod=True)]
    attribution_of_gpu = attribute([gpu(0)], [shared], {"GPU-0": programs})["GPU-0"]
    assert [held.share for held in attribution_of_gpu.holdings] == [None, None]


@given(some.lists(some.integers(0, 100), min_size=2, max_size=8))
def test_the_shares_of_a_gpu_sum_to_one(busy: list[int]) -> None:
    programs = [ran(at, Workload(WorkloadKind.PROGRAM, f"p{at}"), percent) for at, percent in enumerate(busy)]
    shares = [held.share for held in attribute([gpu(0)], [], {"GPU-0": programs})["GPU-0"].holdings]
    if sum(busy):
        assert sum(share or 0.0 for share in shares) == pytest.approx(1.0)
    else:
        assert shares == [None] * len(busy), "there is nothing to split"


def test_labels_are_those_of_dcgm_exporter_for_gpus_with_one_holder() -> None:
    current = {
        "GPU-0": Attribution((Holding(POD),)),
        "GPU-1": Attribution((Holding(JOB),)),
        "GPU-2": Attribution((Holding(POD), Holding(OTHER))),
        "GPU-3": Attribution((Holding(POD, slice="3"), Holding(OTHER, slice="4"))),
    }
    assert build_holder_labels(current, HolderDisplay.LABELS) == {
        ("GPU-0", None): {"container": "main", "namespace": "research", "pod": "llm-0"},
        ("GPU-1", None): {"hpc_job": "4711"},
        ("GPU-3", "3"): {"container": "main", "namespace": "research", "pod": "llm-0"},
        ("GPU-3", "4"): {"container": "main", "namespace": "serving", "pod": "chat-0"},
    }
    assert build_holder_labels(current, HolderDisplay.INFO) == {}


def test_the_info_series_is_one_for_each_gpu_and_workload() -> None:
    gpus = [gpu(index) for index in range(8)]
    before = {f"GPU-{index}": Attribution((Holding(POD),)) for index in range(8)}
    after = before | {"GPU-3": Attribution((Holding(JOB),))}
    pages = [
        set(render(gpus, held, hostname="n1", display=HolderDisplay.INFO).splitlines()) for held in (before, after)
    ]
    assert len(pages[1] - pages[0]) == 1
    assert 'workload_kind="slurm_job",workload="4711"' in (pages[1] - pages[0]).pop()


def test_each_gpu_has_its_reason_on_the_page_and_a_shared_one_its_shares() -> None:
    current = {
        "GPU-0": Attribution((Holding(POD, share=0.75), Holding(OTHER, share=0.25))),
        "GPU-1": Attribution(reason=UnattributedReason.SOURCE_FAILED, detail="kubelet: hangs"),
    }
    page = render([gpu(0), gpu(1)], current, hostname="n1", display=HolderDisplay.LABELS)
    assert 'watchkeeper_gpu_attribution{gpu="0",UUID="GPU-0",Hostname="n1",reason="attributed"} 2\n' in page
    assert 'watchkeeper_gpu_attribution{gpu="1",UUID="GPU-1",Hostname="n1",reason="source_failed"} 0\n' in page
    assert 'workload="chat-0",namespace="serving",container="main"} 0.25\n' in page
    assert page.count("\nwatchkeeper_gpu_workload_info{") == 2, "labels cannot name two holders"


@dataclass
class Kubelet:
    """Answers, or breaks, as told."""

    answers: list[Holders | Exception] = field(default_factory=list)

    async def read(self) -> Mapping[str, tuple[Holding, ...]]:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_source_that_fails_keeps_its_last_result_for_a_minute() -> None:
    kubelet = Kubelet([{"GPU-0": (Holding(POD),)}, CollectError("hangs"), RuntimeError("new"), CollectError("hangs")])
    failures = Registry().counter("failures", "")
    attributor = Attributor([NamedSource("kubelet", kubelet)], lambda _: {}, failures)
    reasons = [asyncio.run(attributor.refresh([gpu(0)], now))["GPU-0"].reason for now in (0.0, 30.0, 59.0, 61.0)]
    assert reasons == [None, None, None, UnattributedReason.SOURCE_FAILED]
    assert failures.get(source="kubelet") == 3


def test_a_process_whose_files_hang_blocks_one_thread_and_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attribution, "SOURCE_TIMEOUT_SECONDS", 0.05)
    is_over, calls = threading.Event(), []

    def look_up(programs: Sequence[Program]) -> Mapping[int, RunningProgram]:
        calls.append(programs)
        is_over.wait(60)
        return {7: ran(7, JOB)}

    async def story() -> None:
        attributor = Attributor([], look_up)
        for now in (0.0, 2.0, 4.0):
            attributions = await attributor.refresh([gpu(0, programs=[Program(7)])], now)
            assert attributions["GPU-0"].reason is UnattributedReason.SOURCE_FAILED
            assert attributions["GPU-0"].detail.startswith("programs: no answer within")
        assert len(calls) == 1
        is_over.set()

        async def is_known() -> bool:
            return (await attributor.refresh([gpu(0, programs=[Program(7)])], 6.0))["GPU-0"].reason is None

        await until_async(is_known)

    asyncio.run(story())
