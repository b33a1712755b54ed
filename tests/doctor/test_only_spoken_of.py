"""Failures that a text only speaks of: counted as none, named by a test, defined as an alert, written in a program."""

from __future__ import annotations

import io

import pytest

from tests.doctor.asking import ask, causes
from watchkeeper.doctor import examine
from watchkeeper.readers import bundles

RULES = """groups:
- name: gpu
  rules:
  - alert: GpuLost
    expr: DCGM_FI_DEV_XID_ERRORS == 79
    annotations:
      summary: GPU has fallen off the bus
"""
PROGRAM = """if code == 79:
    log.error("GPU has fallen off the bus")
"""
HARMLESS = (
    "2026-08-10 05:36:05 INFO checkpoint step_1000 saved in 40.1s, 0 errors, 0 failures, no timeouts",
    "tests/test_memory.py::test_cuda_out_of_memory_is_caught PASSED                [ 10%]",
    "      summary: GPU has fallen off the bus on {{ $labels.Hostname }}",
    "pcieport 0000:00:01.0: DPC: error containment capabilities: Int Msg #0, RPExt+ PoisonedTLP+ SwTrigger+",
    "nvidia: module verification failed: signature and/or required key missing - tainting kernel",
    RULES,
    "apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nspec:\n  " + RULES.replace("\n", "\n  "),
)


@pytest.mark.parametrize("text", HARMLESS)
def test_a_failure_that_is_only_quoted_is_no_finding(text: str) -> None:
    assert not ask(text).findings


@pytest.mark.parametrize("name", ["watch.py", "bundle/health.go"])
def test_source_code_is_not_checked_and_a_note_says_so(name: str) -> None:
    answer = examine.examine([bundles.Stream(name, io.BytesIO(PROGRAM.encode()))])
    assert not answer.findings
    assert answer.inputs[0].kind == "source_code"
    assert "not a log" in (answer.inputs[0].problem or "")


@pytest.mark.parametrize(
    "line",
    [
        "checkpoint step_1000 saved with errors: No space left on device, 3 failures",
        "tests/test_memory.py::test_training FAILED torch.OutOfMemoryError: CUDA out of memory. Tried to allocate",
        "GPU 0 has fallen off the bus",
    ],
)
def test_a_failure_that_happened_is_still_found(line: str) -> None:
    assert causes(ask(line))[:1] not in ([], ["unknown"])
