"""Slurm's scripts: only a sure fault drains a node, and Slurm itself says how many GPUs there should be."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import servers
from tests.render import fleet_settings
from tests.support.clusters import slurm_cluster
from tests.support.fake_nvml import driver
from watchkeeper.config import loading
from watchkeeper.config import settings as config
from watchkeeper.readers.clusters import hostlist
from watchkeeper.render import slurm


def scripts(folder: Path, command: Path) -> dict[str, Path]:
    """The rendered scripts, which call `command`."""
    found = {}
    for file in slurm.files(loading.load(None, {"render.command": str(command)})):
        path = folder / Path(file.path).name
        path.write_text(file.text)
        path.chmod(0o755 if file.is_executable else 0o644)
        found[path.name.removeprefix("watchkeeper-").removesuffix(".sh")] = path
    return found


def answering(folder: Path, body: str) -> Path:
    path = folder / "watchkeeper"
    path.write_text(f"#!/bin/bash\n{body}\n")
    path.chmod(0o755)
    return path


def ran(script: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    around = {"PATH": os.environ["PATH"], **environment}
    return subprocess.run([script], env=around, capture_output=True, text=True, check=False, timeout=50)


@pytest.mark.servers
def test_shellcheck_has_nothing_to_say_about_the_scripts(tmp_path: Path) -> None:
    made = [path for path in scripts(tmp_path, Path("/usr/bin/watchkeeper")).values() if path.suffix == ".sh"]
    line = [servers.require("shellcheck"), *made]
    checked = subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)
    assert (checked.returncode, checked.stdout) == (0, "")
    assert len(made) == 3


@pytest.mark.parametrize(("code", "fails"), [(0, 0), (1, 1), (2, 0), (3, 0), (124, 0)])
def test_a_prolog_fails_only_when_the_gpus_are_surely_broken(tmp_path: Path, code: int, fails: int) -> None:
    command = answering(tmp_path, f'echo "$@" > {tmp_path}/asked; exit {code}')
    made = scripts(tmp_path, command)
    assert ran(made["prolog"], SLURM_JOB_GPUS="0,3", SLURM_JOB_ID="7").returncode == fails
    assert (tmp_path / "asked").read_text() == "scan --slurm-prolog --watch 0 -i 0,3\n"
    assert ran(made["epilog"], SLURM_JOB_GPUS="1").returncode == fails
    assert (tmp_path / "asked").read_text().startswith("scan --slurm-epilog")


def test_a_node_without_watchkeeper_still_starts_jobs(tmp_path: Path) -> None:
    made = scripts(tmp_path, tmp_path / "not-installed")
    assert ran(made["prolog"], SLURM_JOB_GPUS="0").returncode == 0
    assert ran(made["health"], SLURMD_NODENAME="n1").returncode == 0


def test_a_job_without_gpus_is_none_of_its_business(tmp_path: Path) -> None:
    made = scripts(tmp_path, answering(tmp_path, f"touch {tmp_path}/asked; exit 1"))
    assert ran(made["prolog"]).returncode == 0
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize(
    ("gres", "options"),
    [
        ("gpu:h200:8(S:0-1)", "--expected-gpus 8"),
        ("gpu:a100:4(S:0,1),gpu:h100:4,shard:16", "--expected-gpus 8"),
        ("gpu:2", "--expected-gpus 2"),
        ("(null)", ""),
    ],
)
def test_the_health_program_expects_what_slurm_has_promised(tmp_path: Path, gres: str, options: str) -> None:
    command = answering(tmp_path, f'echo "$@" > {tmp_path}/asked; echo "This node is healthy."')
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(f"#!/bin/bash\necho 'NodeName=n1 Arch=x86_64 Gres={gres} State=IDLE'\n")
    scontrol.chmod(0o755)
    made = scripts(tmp_path, command)
    assert ran(made["health"], SLURMD_NODENAME="n1", PATH=f"{tmp_path}:{os.environ['PATH']}").returncode == 0
    assert (tmp_path / "asked").read_text() == f"scan --slurm-health --drain {options}".rstrip() + "\n"


def real(folder: Path, fake: driver.FakeNvml) -> Path:
    """Our own scan on a machine with fake GPUs and a quiet kernel log."""
    around = " ".join(f"{name}={fake.environment[name]}" for name in ("LD_LIBRARY_PATH", "FAKE_NVML_CONTROL"))
    return answering(folder, f'{around} exec {sys.executable} -m watchkeeper.cli.main "$@" --kmsg /dev/null')


@pytest.mark.slow
def test_a_real_scan_lets_a_healthy_gpu_through_and_stops_a_broken_one(tmp_path: Path, fake: driver.FakeNvml) -> None:
    made = scripts(tmp_path, real(tmp_path, fake))
    assert ran(made["prolog"], SLURM_JOB_GPUS="0,1").returncode == 0
    fake.tell(1, "Temperature", driver.GPU_IS_LOST)
    fake.tell(1, "HandleByIndex", driver.GPU_IS_LOST)
    broken = ran(made["prolog"], SLURM_JOB_GPUS="0,1")
    assert broken.returncode == 1, broken.stderr


@pytest.mark.servers
@pytest.mark.slow
def test_a_real_slurmd_runs_the_health_program_with_what_it_has_promised(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    made = scripts(tmp_path, answering(tmp_path, f'echo "$SLURMD_NODENAME $*" >> {asked}; exit 0'))
    # The fragment as it is, but for its places and its patience.
    fragment = made["watchkeeper.conf"].read_text().replace("/etc/slurm", str(tmp_path)).replace("=300", "=1")
    with configured(tmp_path, fragment, made["health"]) as cluster:
        slurm_cluster.until(asked.exists, cluster.folder, seconds=40)
        said = cluster.ask("scontrol", "show", "config")
    for wanted in (
        f"HealthCheckProgram      = {made['health']}",
        "PrologEpilogTimeout     = 120",
        "HealthCheckNodeState    = CYCLE,ANY",
        "Alloc",
    ):
        assert wanted in said
    assert f"scan --slurm-health --drain --expected-gpus {slurm_cluster.GPUS}" in asked.read_text()


@pytest.mark.servers
@pytest.mark.slow
def test_a_real_slurmd_asks_about_the_gpus_of_the_job_and_drains_for_a_broken_one(tmp_path: Path) -> None:
    asked, broken = tmp_path / "asked", tmp_path / "broken"
    command = answering(tmp_path, f'echo "$*" >> {asked}; [ ! -e {broken} ]')
    prolog = scripts(tmp_path, command)["prolog"]
    with configured(tmp_path, f"Prolog={prolog}\nPrologFlags=Alloc\n", prolog) as cluster:
        cluster.submit("--gres=gpu:2", script="true")
        slurm_cluster.until(asked.exists, cluster.folder, seconds=40)
        assert asked.read_text() == "scan --slurm-prolog --watch 0 -i 0,1\n"
        broken.touch()
        cluster.submit("--gres=gpu:1", "-w", "n1")
        slurm_cluster.until(lambda: "drain" in cluster.ask("sinfo", "-h", "-n", "n1", "-o", "%T"), seconds=40)
        assert "Prolog error" in cluster.ask("scontrol", "show", "node", "n1")


@contextlib.contextmanager
def configured(tmp_path: Path, more: str, script: Path) -> Iterator[slurm_cluster.Cluster]:
    """A Slurm of two nodes with more in its slurm.conf, which lies at an unusual place."""
    folder = tmp_path / "slurm"
    folder.mkdir()
    with slurm_cluster.running(folder, nodes=2) as cluster:
        conf = folder / "slurm.conf"
        script.write_text(script.read_text().replace("set -u\n", f"set -u\nexport SLURM_CONF={conf}\n"))
        conf.write_text(f"{conf.read_text()}\n{more}")
        cluster.ask("scontrol", "reconfigure")
        yield cluster


def test_gres_says_what_the_inventory_expects_in_slurms_own_short_form(tmp_path: Path) -> None:
    settings = fleet_settings.load(tmp_path)
    assert "NodeName=gpu-[01-04] Name=gpu File=/dev/nvidia[0-7]" in slurm.gres_text(settings)
    assert "#   NodeName=gpu-[01-04] … Gres=gpu:8" in slurm.nodes_text(settings)
    assert "AutoDetect=nvml" in slurm.gres_text(config.Settings())


@pytest.mark.parametrize("names", ["a[01-03,05],b,c9", "gpu-r[01-02]-[1-4]", "x[8-11]"])
def test_the_short_form_means_the_same_names(names: str) -> None:
    written = hostlist.expand(names)
    assert hostlist.expand(slurm.fold_names(written)) == written
