"""What a job is bound by, and the fix that goes with it."""

from __future__ import annotations

import pytest

from watchkeeper.model.jobs import BoundBy, Straggler
from watchkeeper.workloads.efficiency import JobFacts, assess_efficiency, find_bottleneck

SLOW = Straggler(5, "n1", "5", "GPU-5", 0.1, "computes 10% longer than the others at each step")
BUSY = {"active": 0.85, "tensor": 0.6, "dram": 0.4, "utilisation": 0.98, "memory": 0.8}


@pytest.mark.parametrize(
    ("facts", "bound"),
    [
        (JobFacts(8, BUSY), BoundBy.COMPUTE),
        (JobFacts(8, BUSY | {"dram": 0.7, "tensor": 0.2}), BoundBy.MEMORY_BANDWIDTH),
        (JobFacts(8, BUSY, input_wait=0.3), BoundBy.INPUT),
        (JobFacts(8, BUSY, straggler=SLOW), BoundBy.STRAGGLER),
        (JobFacts(8, {"active": 0.3, "tensor": 0.1, "utilisation": 0.99}), BoundBy.COMMUNICATION),
        (JobFacts(1, {"active": 0.1, "tensor": 0.05, "utilisation": 0.2}), BoundBy.INPUT),
        # SMs that are idle for half of the time do not compute most of it.
        (JobFacts(8, {"active": 0.5, "tensor": 0.2, "dram": 0.2, "utilisation": 0.6}), BoundBy.UNKNOWN),
        # The program says that it does not wait for input.
        (JobFacts(1, {"active": 0.1, "tensor": 0.05, "utilisation": 0.2}, input_wait=0.02), BoundBy.UNKNOWN),
        (JobFacts(8, BUSY, throttled_gpus=1), BoundBy.POWER_OR_HEAT),
        (JobFacts(8, {"active": 0.0, "utilisation": 0.0}), BoundBy.NOTHING),
        (JobFacts(8, {"active": 0.5}), BoundBy.UNKNOWN),
        (JobFacts(8), BoundBy.UNKNOWN),
    ],
)
def test_the_first_thing_that_explains_it_is_named(facts: JobFacts, bound: BoundBy) -> None:
    assert find_bottleneck(facts) is bound


def test_a_report_says_used_against_held_and_the_exact_fix() -> None:
    assessed = assess_efficiency(
        JobFacts(8, BUSY | {"active": 0.4, "memory": 0.25}, input_wait=0.5, memory_bytes=8e9), 3600
    )
    assert [(use.what, use.held, use.used, use.share) for use in assessed.uses] == [
        ("GPU", 8, pytest.approx(3.2), 0.4),
        ("GPU memory", 8e9, 2e9, 0.25),
        ("CPU", None, None, None),
    ]
    assert assessed.fixes[0].command.startswith("DataLoader(num_workers=")
    assert "75% of the GPU memory is free" in assessed.fixes[1].do
    assert "input wait 50%" in assessed.why


def test_missing_metrics_are_listed_and_never_zero() -> None:
    assessed = assess_efficiency(JobFacts(8), 3600)
    assert assessed.uses[0].share is None
    assert any("DCGM_FI_PROF_SM_ACTIVE" in gap for gap in assessed.unmeasured)
    assert assessed.fixes == ()


def test_idle_gpus_without_input_metrics_are_not_blamed_on_the_data_loader() -> None:
    assessed = assess_efficiency(JobFacts(1, {"active": 0.2, "tensor": 0.05, "utilisation": 0.3}), 3600)
    assert assessed.why.startswith("GPUs are idle most of the time: SMs 20%")
    assert assessed.fixes[0].do == "See what the program waits for: requests, input, or its CPUs"


def test_the_fix_for_a_missing_rank_is_to_read_its_log() -> None:
    gone = Straggler(7, "n1", "7", "GPU-7", None, "stopped exporting metrics, and the others wait", is_gone=True)
    fix = assess_efficiency(JobFacts(8, {"active": 0.1, "utilisation": 0.87}, straggler=gone), 3600).fixes[0]
    assert fix.do == "Read the last log lines of rank 7 on n1, and the kernel log of its node"
    assert "py-spy" not in fix.command


def test_the_fix_for_a_hung_rank_is_to_find_the_blocking_call() -> None:
    hang = Straggler(None, "n1", "7", "GPU-7", None, "is idle while 7 of 8 GPUs spin in a collective")
    fix = assess_efficiency(JobFacts(8, {"active": 0.1, "utilisation": 0.87}, straggler=hang), 3600).fixes[0]
    assert fix.do == "See which call blocks GPU 7 on n1"
    assert (fix.why, fix.command) == ("unblocks the job", "py-spy dump --pid PID")
