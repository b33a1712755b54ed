"""`watchkeeper diag` as a program: over fake GPUs with a stand-in for torch, and on a node without GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.probe.diag.standins import RATES, WORKER
from tests.support.fake_nvml import driver
from watchkeeper.agent import diag_page
from watchkeeper.probe.diag import child_processes, runner, software_facts

# Answers like `worker_child`, whatever module it is asked to run.
PYTHON = "#!/bin/sh\nexec {python} -u {worker} healthy '{rates}'\n"


def diag(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "watchkeeper.cli.main", "diag", *arguments]
    return subprocess.run(line, env=environment, capture_output=True, text=True, check=False, timeout=50)


def stand_in(folder: Path) -> str:
    (folder / "worker.py").write_text(WORKER)
    program = folder / "python"
    text = PYTHON.format(python=sys.executable, worker=folder / "worker.py", rates=json.dumps(RATES))
    program.write_text(text)
    program.chmod(0o755)
    return str(program)


def test_without_a_gpu_the_outcome_is_cannot_tell(tmp_path: Path) -> None:
    ran = diag({**os.environ, "LD_LIBRARY_PATH": ""}, "-r", "2", "--no-keep")
    assert ran.returncode == 3
    assert "Cannot tell:" in ran.stdout


def test_software_is_judged_over_fake_gpus_and_the_answer_is_json(fake: driver.FakeNvml) -> None:
    ran = diag(fake.environment, "--json", "--no-keep")
    answer = json.loads(ran.stdout)
    assert [gpu["index"] for gpu in answer["gpus"]] == [0, 1]
    keys = {"test", "gpu", "verdict", "why", "measured", "expected", "peers", "unit", "facts"}
    assert all(set(result) == keys for result in answer["results"])
    assert {"nvml": "pass", "gpu_count": "pass"}.items() <= {
        result["test"]: result["verdict"] for result in answer["results"]
    }.items()


def test_level_2_uses_the_given_interpreter_and_saves_its_results(fake: driver.FakeNvml, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    ran = diag(fake.environment, "-r", "2", "-i", "1", "--python", stand_in(tmp_path), "--spool", str(spool))
    assert "gpu 1  pcie_to_gpu" in ran.stdout
    assert ran.stderr.splitlines()[0] == "gpu 1: pcie_to_gpu"
    kept = {entry.result.test for entry in diag_page.ResultFile(spool).read().results}
    assert {"nvml", "pcie_to_gpu", "matmul_fp64"} <= kept


def test_a_gpu_that_fell_off_the_bus_is_named(fake: driver.FakeNvml) -> None:
    fake.tell(1, all=driver.GPU_IS_LOST)
    ran = diag(fake.environment, "--no-keep")
    assert ran.returncode == 1
    assert "fail  node   gpus_answer        GPU 1 " in ran.stdout


def test_an_nvml_that_hangs_is_a_failure_with_its_deadline(fake: driver.FakeNvml) -> None:
    fake.tell(driver.EVERY, all=driver.HANG)
    programs = runner.DiagOptions().child_programs()
    bent = {name: replace(program, environment=fake.environment) for name, program in programs.items()}
    with child_processes.Children() as children:
        facts = software_facts.gather_facts(
            children, bent, node=None, paths=software_facts.SystemPaths(), timeout_seconds=1.5
        )
    assert (facts.driver.error_name, facts.driver.error_text) == ("TIMEOUT", "no answer within 1.5 s")


def test_a_missing_interpreter_is_named(fake: driver.FakeNvml) -> None:
    ran = diag(fake.environment, "-r", "2", "--python", "/nowhere/python", "--no-keep")
    assert ran.returncode == 1
    assert "/nowhere/python: No such file or directory" in ran.stdout


@pytest.mark.slow
def test_wrong_use_exits_with_2_and_names_the_valid_values(tmp_path: Path) -> None:
    environment = dict(os.environ)
    assert diag(environment, "-r", "5").returncode == 2
    short = diag(environment, "-r", "2", "--for", "1h")
    assert (short.returncode, "needs -r 3 or -r 4" in short.stderr) == (2, True)
    assert "from 1s to 7d" in diag(environment, "-r", "4", "--for", "60d").stderr
    assert diag(environment, "-i", "nonsense").returncode == 2
