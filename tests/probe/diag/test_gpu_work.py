"""The worker process: its protocol everywhere, its tests on the CPU where torch is installed."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.support.paths import ROOT
from watchkeeper.probe.gpu_work import memory_patterns, worker_child
from watchkeeper.probe.gpu_work.bench import MIB, Bench

HAS_TORCH = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")


def child(*orders: dict[str, Any]) -> list[dict[str, Any]]:
    """The child's first message and its reply to each request; then its input is closed, and it must exit."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "WATCHKEEPER_DIAG_DEVICE": "cpu"}
    line = [sys.executable, "-m", "watchkeeper.probe.gpu_work.worker_child"]
    pipe = subprocess.PIPE
    with subprocess.Popen(line, env=environment, stdin=pipe, stdout=pipe, text=True, bufsize=1) as ran:
        assert ran.stdin is not None
        assert ran.stdout is not None
        messages = [json.loads(ran.stdout.readline())]
        for order in orders:
            ran.stdin.write(json.dumps(order) + "\n")
            messages.append(json.loads(ran.stdout.readline()))
        ran.stdin.close()
        assert ran.wait(60) == 0
    return messages


@pytest.fixture
def bench() -> Bench:
    return Bench(pytest.importorskip("torch"), "cpu", lambda **_: None)


@pytest.mark.skipif(HAS_TORCH, reason="torch is installed")
def test_without_torch_the_child_reports_it_and_exits() -> None:
    (message,) = child()
    assert (message["type"], "No module named 'torch'" in message["why"]) == ("no_torch", True)


@needs_torch
def test_the_child_exits_when_its_input_is_closed() -> None:
    assert [line["type"] for line in child()] == ["ready"]


@pytest.mark.parametrize("name", [name for name in worker_child.TESTS if name not in ("p2p", "stress")])
def test_healthy_hardware_has_no_problem_in_any_test(bench: Bench, name: str) -> None:
    options = {"bytes": 8 * MIB, "share": 0.05, "size": 64}
    answer = worker_child.TESTS[name](bench, options)
    assert answer["problems"] == []
    assert answer["measured"] > 0
    assert json.loads(json.dumps(answer)) == answer


@pytest.mark.parametrize("pattern", [pattern.name for pattern in memory_patterns.PATTERNS])
@pytest.mark.parametrize("bit", [0, 31, 63])
def test_a_planted_flip_is_detected_with_address_and_both_values(bench: Bench, pattern: str, bit: int) -> None:
    plant = {"pattern": pattern, "word": 777_777, "bit": bit}
    answer = worker_child.TESTS["memory_patterns"](bench, {"share": 0.1, "plant": plant})
    (problem,) = answer["problems"]
    assert problem.startswith(f"byte {777_777 * 8:#x} (address 0x")
    read, written = (int(part.split(",")[0], 16) for part in problem.split("read ")[1].split(", written "))
    assert read ^ written == 1 << bit
    assert answer["facts"]["wrong_words"] == 1


@pytest.mark.parametrize("kind", ["bf16", "fp16", "fp8", "tf32", "fp32", "fp64"])
@pytest.mark.parametrize("where", ["repeat", "sample", "exact"])
def test_one_wrong_element_of_a_product_is_detected(bench: Bench, kind: str, where: str) -> None:
    answer = worker_child.TESTS[f"matmul_{kind}"](bench, {"size": 64, "plant": where})
    assert len(answer["problems"]) == 1
    assert answer["problems"][0].startswith(("repetition", "1 of"))


def test_every_direction_between_gpus_is_measured_and_a_changed_word_is_detected(bench: Bench) -> None:
    options = {"names": [0, 3, 5], "bytes": MIB}
    answer = worker_child.TESTS["p2p"](bench, options)
    assert list(answer["facts"]["pairs"]) == ["0 to 3", "0 to 5", "3 to 0", "3 to 5", "5 to 0", "5 to 3"]
    assert answer["problems"] == []
    wrong = worker_child.TESTS["p2p"](bench, options | {"plant": [1, 2]})
    assert wrong["problems"] == ["data from GPU 3 to GPU 5 changed on the way"]


def test_wrong_results_under_load_are_detected(bench: Bench) -> None:
    assert worker_child.TESTS["stress"](bench, {"seconds": 0.2, "size": 64})["problems"] == []
    wrong = worker_child.TESTS["stress"](bench, {"seconds": 0.5, "size": 64, "plant": True})
    assert wrong["problems"][0].endswith("s of load 1 of 4096 elements differ")


@needs_torch
def test_each_request_is_answered_in_order_even_after_a_failure() -> None:
    messages = child({"test": "p2p"}, {"test": "no such test"}, {"test": "memory_copy", "options": {"bytes": MIB}})
    assert [line["type"] for line in messages] == ["ready", "skipped", "failed", "done"]
