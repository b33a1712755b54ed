"""A complete run with stand-in children: hangs, crashes, wrong results and heat become results with a reason."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.probe.diag.standins import NOON, UUID, options, row
from tests.support.paths import ROOT
from watchkeeper.model import gpu_selectors
from watchkeeper.model.diag import DiagOutcome, DiagReport, DiagVerdict, TestResult
from watchkeeper.probe.diag import plan, runner, work_loop


def run(level: int, chosen: runner.DiagOptions) -> DiagReport:
    return runner.run(level, now=NOON, options=chosen)


def about(report: DiagReport, test: str, gpu: int = 0) -> TestResult:
    return next(result for result in report.results if result.test == test and result.gpu in (None, f"{UUID}{gpu}"))


def test_a_healthy_gpu_passes_every_test_with_both_numbers(tmp_path: Path) -> None:
    report = run(2, options(tmp_path))
    assert report.exit is DiagOutcome.PASSED
    result = about(report, "matmul_bf16")
    assert (result.verdict, result.measured, result.expected, result.unit) == (
        DiagVerdict.PASS,
        780.0,
        799.0,
        "TFLOP/s",
    )
    assert result.why == "780 TFLOP/s; this model reaches 799 (98%)"
    assert {step.test for step in plan.LEVEL_2} <= {result.test for result in report.results}


def test_level_1_checks_the_software_and_starts_no_worker(tmp_path: Path) -> None:
    report = run(1, options(tmp_path, "crash", "pcie_to_gpu"))
    assert {"nvml", "cuda", "denylist"} <= {result.test for result in report.results}
    assert not {"pcie_to_gpu", "gpu_work"} & {result.test for result in report.results}


def test_a_crash_fails_its_test_and_skips_the_rest(tmp_path: Path) -> None:
    report = run(2, options(tmp_path, "crash", "memory_copy"))
    assert report.exit is DiagOutcome.FAILED
    assert about(report, "memory_copy").why == (
        "the test process exited (signal 6: an illegal memory access was encountered)"
    )
    assert about(report, "pcie_to_gpu").verdict is DiagVerdict.PASS
    assert about(report, "matmul_bf16").verdict is DiagVerdict.SKIP


@pytest.mark.slow
def test_a_hang_is_a_failed_test_with_its_timeout_and_other_gpus_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = tuple(replace(step, timeout_seconds=1.0) for step in plan.LEVEL_2)
    monkeypatch.setattr(plan, "LEVEL_2", quick)
    report = run(2, options(tmp_path, "hang", "matmul_fp8", gpus=2))
    result = about(report, "matmul_fp8")
    assert (result.verdict, result.why) == (DiagVerdict.FAIL, "no answer within 1 s: the GPU or CUDA hangs")
    assert about(report, "matmul_bf16", gpu=1).verdict is DiagVerdict.PASS


def test_a_wrong_result_is_silent_data_corruption(tmp_path: Path) -> None:
    report = run(2, options(tmp_path, "corrupt", "matmul_fp16"))
    assert report.exit is DiagOutcome.FAILED
    assert about(report, "matmul_fp16").why == "silent data corruption: 1 of 64 elements are wrong"


def test_a_gpu_at_half_its_speed_fails(tmp_path: Path) -> None:
    assert about(run(2, options(tmp_path, "slow", "pcie_to_gpu")), "pcie_to_gpu").verdict is DiagVerdict.FAIL


def test_without_torch_the_outcome_is_cannot_tell_with_a_remedy(tmp_path: Path) -> None:
    report = run(2, options(tmp_path, "no_torch"))
    assert report.exit is DiagOutcome.CANNOT_TELL
    assert "No module named 'torch'" in about(report, "gpu_work").why
    assert "--python" in about(report, "gpu_work").why


def test_a_cuda_that_does_not_start_is_a_failure(tmp_path: Path) -> None:
    report = run(2, options(tmp_path, "start_failed"))
    assert (report.exit, about(report, "gpu_work").why) == (DiagOutcome.FAILED, "CUDA does not start: error 802")


@pytest.mark.parametrize(
    ("busy", "words"),
    [
        (row(programs=[[4711, None, 80]]), "used by processes 4711"),
        (row(DCGM_FI_DEV_FB_USED=60_000), "60000 MiB of memory used, the limit is 1024"),
        (row(DCGM_FI_DEV_GPU_UTIL=97), "97 % busy, the limit is 5"),
    ],
)
def test_a_busy_gpu_is_skipped_without_busy_ok(tmp_path: Path, busy: dict[str, object], words: str) -> None:
    report = run(2, options(tmp_path, rows=[busy]))
    assert report.exit is DiagOutcome.CANNOT_TELL
    assert words in about(report, "gpu_work").why
    assert run(2, options(tmp_path, rows=[busy], is_busy_ok=True)).exit is DiagOutcome.PASSED


def test_a_gpu_with_mig_enabled_is_skipped(tmp_path: Path) -> None:
    report = run(2, options(tmp_path, rows=[row(DCGM_FI_DEV_MIG_MODE=1)]))
    assert about(report, "gpu_work").why == "MIG is enabled: only whole GPUs can be tested"


@pytest.mark.parametrize(
    ("later", "words"),
    [
        ({"values": {"watchkeeper_gpu_slowdown_margin_celsius": 1}}, "1 °C below its slowdown temperature"),
        ({"values": {"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": 3}}, "3 new uncorrectable memory errors"),
        ({"event": {"kind": "xid", "gpu": f"{UUID}0", "detail": 79}}, "reports Xid 79"),
        ({"end": True}, "GPU monitoring failed: exit status 7"),
    ],
)
def test_a_safety_limit_stops_everything_at_once(tmp_path: Path, later: dict[str, object], words: str) -> None:
    start = time.monotonic()
    report = run(3, options(tmp_path, "hang", "stress", later=later))
    assert words in report.stopped
    assert report.exit is not DiagOutcome.PASSED
    # A worker that hangs does so for ten minutes.
    assert time.monotonic() - start < 60


@pytest.mark.slow
def test_a_silent_nvml_child_stops_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = work_loop.WorkLoop
    monkeypatch.setattr(runner, "WorkLoop", lambda *given: usual(*given, nvml_timeout_seconds=0.5))
    report = run(2, options(tmp_path, "hang", "memory_copy", later={"silent": True}))
    assert report.stopped == "no answer from NVML for 0.5 s: a driver call hangs"


def test_pcie_is_measured_on_one_gpu_at_a_time(tmp_path: Path) -> None:
    log = tmp_path / "log"
    run(2, options(tmp_path, "log", str(log), gpus=3))
    alone = [line for line in log.read_text().splitlines() if "pcie" in line]
    assert len(alone) == 12
    assert all(start.replace("begins", "ends") == end for start, end in zip(alone[::2], alone[1::2], strict=True))


def test_the_link_between_two_gpus_is_measured(tmp_path: Path) -> None:
    result = about(run(2, options(tmp_path, gpus=2)), "p2p")
    assert (result.verdict, result.measured) == (DiagVerdict.PASS, 400.0)


def test_only_selected_gpus_are_tested_and_a_missing_one_fails(tmp_path: Path) -> None:
    chosen = options(tmp_path, gpus=3, selection=gpu_selectors.parse_selection(["1,7"]))
    report = run(2, chosen)
    assert [gpu.index for gpu in report.gpus] == [1]
    assert {result.gpu for result in report.results} == {None, f"{UUID}1"}
    assert "GPU 7 not found" in [result.why for result in report.results]


def test_ctrl_c_ends_the_command_and_kills_every_child(tmp_path: Path) -> None:
    program = tmp_path / "interrupted.py"
    program.write_text(
        "import signal, sys; from pathlib import Path; from tests.probe.diag.standins import *\n"
        # A background process of a shell ignores SIGINT.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"chosen = options(Path({str(tmp_path)!r}), 'hang', 'memory_copy')\n"
        "report = lambda worker, test, done, facts: print(test, flush=True)\n"
        "runner.run(2, now=NOON, options=chosen, report_progress=report)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, str(program)], env=environment, stdout=pipe, stderr=pipe, text=True) as ran:
        assert ran.stdout is not None
        for line in ran.stdout:
            if line.strip() == "memory_copy":
                break
        children = Path(f"/proc/{ran.pid}/task/{ran.pid}/children").read_text().split()
        ran.send_signal(signal.SIGINT)
        ran.wait(60)
    assert children
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]


def test_the_memory_test_uses_half_of_the_free_memory_of_a_shared_gpu() -> None:
    shares = [step.options.get("share") for step in plan.plan_steps(3, 60.0, is_shared=True) if "patterns" in step.test]
    assert shares == [0.5, 0.5]
    assert not [step for step in plan.plan_steps(3, 60.0) if "share" in step.options]


def test_a_run_of_hours_repeats_the_memory_test() -> None:
    tests = [step.test for step in plan.plan_steps(4, 2 * 3600.0)]
    assert tests.count("stress") == 12
    assert tests.count("memory_patterns") == 13
    load = [step.options["seconds"] for step in plan.plan_steps(4, 2 * 3600.0) if step.test == "stress"]
    assert sum(load) == 2 * 3600.0
