"""`watchkeeper scan`, `gpus` and `dmon` as programs, over fake GPUs and without any."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.diagnose.scan.command import run, scan
from tests.support.fake_nvml import driver
from watchkeeper.cli.node.scan import EXIT_CODES, Caller
from watchkeeper.diagnose.scan.verdicts import ScanVerdict


def test_a_healthy_node_exits_with_0_and_lists_details(fake: driver.FakeNvml, tmp_path: Path) -> None:
    ran = scan(fake.environment, tmp_path, "--json")
    answer = json.loads(ran.stdout)
    assert (ran.returncode, answer["verdict"], len(answer["gpus"])) == (0, "healthy", 2)
    assert [result["looked_at"] for result in answer["results"] if result["check"] == "temperature_known"] == [
        "37 °C",
        "37 °C",
    ]


def test_a_lost_gpu_ends_with_1_and_is_named(fake: driver.FakeNvml, tmp_path: Path) -> None:
    fake.tell(1, all=driver.GPU_IS_LOST)
    ran = scan(fake.environment, tmp_path)
    assert ran.returncode == 1
    assert "gpu_fell_off_bus" in ran.stdout


@pytest.mark.slow
def test_without_a_driver_the_verdict_is_unknown(tmp_path: Path) -> None:
    bare = {**os.environ, "LD_LIBRARY_PATH": ""}
    assert scan(bare, tmp_path).returncode == 3
    assert scan(bare, tmp_path, "--slurm-prolog").returncode == 0
    npd = scan(bare, tmp_path, "--npd")
    assert (npd.returncode, len(npd.stdout.splitlines())) == (2, 1)


def test_wrong_use_ends_with_2(tmp_path: Path) -> None:
    assert scan(dict(os.environ), tmp_path, "--without", "nothing").returncode == 2
    assert scan(dict(os.environ), tmp_path, "--drain").returncode == 2


def test_slurm_drains_only_for_a_sure_fault_and_only_when_told(fake: driver.FakeNvml, tmp_path: Path) -> None:
    called = tmp_path / "called"
    shown = tmp_path / "shown"
    shown.write_text("NodeName=gpu7 State=MIXED Reason=none\n")
    (tmp_path / "scontrol").write_text(f'#!/bin/sh\n[ "$1" = show ] && exec cat {shown}\necho "$@" > {called}\n')
    (tmp_path / "scontrol").chmod(0o755)
    fake.tell(1, all=driver.GPU_IS_LOST)
    environment = {**fake.environment, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURMD_NODENAME": "gpu7"}
    assert scan(environment, tmp_path, "--slurm-health").returncode == 0
    assert not called.exists()
    assert scan(environment, tmp_path, "--slurm-health", "--drain").returncode == 0
    assert called.read_text().startswith("update NodeName=gpu7 State=DRAIN Reason=watchkeeper: unhealthy")
    # A node that is drained keeps its reason: it may be the mark of a repair.
    called.unlink()
    shown.write_text("NodeName=gpu7 State=IDLE+DRAIN Reason=watchkeeper:INC-1/1-cordon\n")
    assert scan(environment, tmp_path, "--slurm-health", "--drain").returncode == 0
    assert not called.exists()


@pytest.mark.parametrize("caller", Caller)
def test_only_for_a_person_and_a_probe_unknown_is_a_failure(caller: Caller) -> None:
    codes = EXIT_CODES[caller]
    assert codes[ScanVerdict.HEALTHY] == 0
    if caller in (Caller.SLURM_PROLOG, Caller.SLURM_EPILOG, Caller.SLURM_HEALTH):
        assert codes[ScanVerdict.UNKNOWN] == codes[ScanVerdict.DEGRADED] == 0
    else:
        assert codes[ScanVerdict.UNKNOWN] != 0


def test_gpus_lists_what_answers(fake: driver.FakeNvml) -> None:
    ran = run(fake.environment, "gpus", "--json")
    gpus = json.loads(ran.stdout)["gpus"]
    assert (ran.returncode, [gpu["index"] for gpu in gpus], gpus[0]["pci"]) == (0, [0, 1], "0000:10:00")


@pytest.mark.slow
def test_dmon_prints_as_many_rounds_as_asked_and_na_for_what_is_not_there(fake: driver.FakeNvml) -> None:
    fields = "150,DCGM_FI_DEV_FAN_SPEED"
    ran = run(fake.environment, "dmon", "-e", fields, "-d", "0.5", "-c", "2", "-i", "1")
    assert [line.split() for line in ran.stdout.splitlines()] == [
        ["#GPU", "GPU_TEMP", "FAN_SPEED"],
        ["1", "37", "N/A"],
        ["1", "37", "N/A"],
    ]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(("gpus",), 1), (("dmon", "-c", "1"), 0), (("top", "--once"), 1)],
    ids=["gpus", "dmon", "top"],
)
def test_a_lost_gpu_is_reported_on_stderr(fake: driver.FakeNvml, arguments: tuple[str, ...], code: int) -> None:
    fake.tell(1, all=driver.GPU_IS_LOST)
    ran = run(fake.environment, *arguments)
    assert (ran.returncode, "gpu_fell_off_bus: " in ran.stderr) == (code, True)


def test_dmon_names_a_field_that_does_not_exist(fake: driver.FakeNvml) -> None:
    ran = run(fake.environment, "dmon", "-e", "99999", "-c", "1")
    assert (ran.returncode, "-e 99999" in ran.stderr) == (2, True)


@pytest.mark.slow
def test_top_without_a_gpu_says_how_to_see_those_of_a_hub() -> None:
    ran = run({**os.environ, "LD_LIBRARY_PATH": ""}, "top", "--once")
    assert (ran.returncode, "watchkeeper top --hub URL" in ran.stderr) == (3, True)
