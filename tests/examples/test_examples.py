"""Every example runs, and says what its reader is told it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import torch_python
from tests.support.paths import ROOT
from tests.support.running_product import await_that, up

EXAMPLES = ROOT / "examples"
SAYS = {
    "02_break_a_fleet_in_memory.py": "7 of 8 GPUs report; the right cause is gpu_fell_off_bus",
    "03_query_your_own_samples.py": "n1: 700 W\nn2: 300 W\n",
    "04_gpus_in_your_logs.py": "step 2 | ",
}


def run(name: str, *arguments: str, seconds: float = 30) -> str:
    line = [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments]
    return subprocess.run(line, capture_output=True, text=True, check=True, timeout=seconds).stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", SAYS)
def test_an_example_runs_by_itself(name: str) -> None:
    assert SAYS[name] in run(name)


@pytest.mark.slow
def test_a_hub_answers_the_first_example(tmp_path: Path) -> None:
    with up(tmp_path) as product:
        await_that(product.scraped)
        said = run("01_ask_a_hub.py", product.url)
    assert said.count("°C") == 3
    assert "No open incidents." in said


@pytest.mark.servers
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_each_of_four_faults_of_a_training_job_is_pinned_on_the_right_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAD_RANK", "1")
    said = run("06_which_rank_is_it.py", str(torch_python.require()), seconds=150).splitlines()
    assert [line.split(": ")[:2] for line in said] == [
        ["slow", "nccl_timeout_straggler"],
        ["die", "nccl_rank_died"],
        ["diverge", "training_diverged"],
        ["wrong-shape", "nccl_shape_or_collective_mismatch"],
    ]
    assert [re.findall(r"\brank (\d)", line, re.IGNORECASE)[0] for line in said] == ["1"] * 4


def test_no_example_is_left_out() -> None:
    trained = {"05_train_on_four_ranks.py", "06_which_rank_is_it.py"}
    assert {path.name for path in EXAMPLES.glob("*.py")} == {"01_ask_a_hub.py", *trained, *SAYS}
