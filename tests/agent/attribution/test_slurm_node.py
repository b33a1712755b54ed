"""Slurm on the node: the job of each GPU from job files, slurmctld and /proc."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from tests.agent.attribution.programs import make_program
from tests.support.clusters import slurm_cluster
from tests.support.fake_nvml import driver
from tests.support.running_agent import machine as agent_machine
from tests.support.running_agent import running
from watchkeeper.agent import node_facts
from watchkeeper.agent.attribution.programs import ProgramWorkloads
from watchkeeper.agent.attribution.slurm_jobs import SlurmJobs
from watchkeeper.agent.gpus.gpu_samples import Program
from watchkeeper.errors import CollectError
from watchkeeper.kit import commands
from watchkeeper.model.workloads import Holding, Workload, WorkloadKind

CONTAINER = "c0ffee" + "0" * 58


def machine(root: Path) -> ProgramWorkloads:
    (root / "etc").mkdir()
    (root / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\nada:x:1000:1000::/srv/ada:/bin/sh\nbroken\n")
    (root / "proc").mkdir()
    return ProgramWorkloads(root / "proc", root)


@pytest.mark.parametrize(
    "cgroup",
    [
        "0::/system.slice/slurmstepd.scope/job_123/step_0/user/task_0\n",
        "9:memory:/user.slice\n5:devices:/slurm/uid_0/job_123/step_0/task_0\n",
        "5:devices:/slurm_n1/uid_1000/job_123/step_batch\n",
    ],
)
def test_the_cgroup_of_a_process_decides_its_job_before_its_environment(tmp_path: Path, cgroup: str) -> None:
    owners = machine(tmp_path)
    make_program(tmp_path / "proc", 7, cgroup=cgroup, environ="SLURM_JOB_ID=999")
    assert owners.find_workloads([Program(7)])[7].workload == Workload(WorkloadKind.SLURM_JOB, "123", user="ada")


def test_without_a_cgroup_of_slurm_the_environment_names_the_job(tmp_path: Path) -> None:
    owners = machine(tmp_path)
    make_program(tmp_path / "proc", 7, environ="SLURM_JOB_ID=55 SECRET=hunter2")
    assert owners.find_workloads([Program(7)])[7].workload.name == "55"


def test_a_plain_program_has_user_command_and_container(tmp_path: Path) -> None:
    owners = machine(tmp_path)
    path = f"0::/system.slice/docker-{CONTAINER}.scope\n"
    make_program(tmp_path / "proc", 7, cgroup=path, cmdline="/usr/bin/python3\0-u\0/srv/ada/train.py\0--key=secret\0")
    owner = owners.find_workloads([Program(7)])[7].workload
    assert owner == Workload(WorkloadKind.PROGRAM, "train.py", container=CONTAINER[:12], user="ada")
    assert owners.find_workloads([Program(8)])[8].workload.name == "pid 8", "it holds the GPU"


def test_a_container_is_named_after_its_pod_by_the_kubelets_log_files(tmp_path: Path) -> None:
    owners = machine(tmp_path)
    logs = tmp_path / "var/log/containers"
    logs.mkdir(parents=True)
    (logs / f"llm-0_research_main-{CONTAINER}.log").touch()
    slices = "kubepods-burstable-pod0d7b8a1c_0000_0000_0000_000000000000.slice"
    make_program(tmp_path / "proc", 7, cgroup=f"0::/kubepods.slice/{slices}/cri-containerd-{CONTAINER}.scope\n")
    running_program = owners.find_workloads([Program(7)])[7]
    pod = Workload(WorkloadKind.POD, "llm-0", namespace="research", container="main")
    assert (running_program.workload, running_program.is_in_pod) == (pod, True)


def test_job_files_name_gpus_by_index_and_mig_instances_after_a_dot(tmp_path: Path) -> None:
    files = tmp_path / "jobs"
    files.mkdir()
    (files / "0").write_text("4711\n4712\n")
    (files / "1.3").write_text("99_2")
    (files / "README").write_text("ignored")
    (files / "2").write_bytes(b"\xff\x00rubbish $(id)")
    jobs = SlurmJobs("n1", proc=tmp_path, job_directory=files)
    assert {
        key: [(held.workload.name, held.slice) for held in those] for key, those in jobs.find_holders(0.0).items()
    } == {
        "0": [("4711", None), ("4712", None)],
        "1": [("99_2", "3")],
    }


def test_job_files_that_cannot_be_read_are_an_error_and_not_an_idle_node(tmp_path: Path) -> None:
    jobs = SlurmJobs("n1", proc=tmp_path, job_directory=tmp_path / "absent")
    with pytest.raises(CollectError, match="absent: job files cannot be read"):
        jobs.find_holders(0.0)


def test_without_scontrol_the_gpus_come_from_the_environment_of_slurmd(tmp_path: Path) -> None:
    make_program(tmp_path, 1, name="slurmd")
    make_program(tmp_path, 20, name="slurmstepd", cmdline="slurmstepd: [123.batch]\0", children="21 ")
    make_program(tmp_path, 21, environ="SLURM_JOB_GPUS=2,5 CUDA_VISIBLE_DEVICES=0,1")
    jobs = SlurmJobs("n1", proc=tmp_path, uses_scontrol=False)
    assert jobs.is_present()
    held = (Holding(Workload(WorkloadKind.SLURM_JOB, "123")),)
    assert jobs.find_holders(0.0) == {"nvidia2": held, "nvidia5": held}


def test_a_node_without_slurm_has_no_slurm_failure(tmp_path: Path) -> None:
    make_program(tmp_path, 1, name="systemd")
    assert not SlurmJobs("n1", proc=tmp_path).is_present()


def test_an_scontrol_that_hangs_times_out_once_and_not_every_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "scontrol").write_text(f"#!/bin/sh\necho asked >>{tmp_path}/asked\nexec sleep 60\n")
    (folder / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    make_program(tmp_path / "proc", 20, name="slurmstepd", cmdline="slurmstepd: [5.0]\0")
    jobs = SlurmJobs("n1", proc=tmp_path / "proc", runner=commands.CommandRunner(timeout_seconds=0.3))
    assert [jobs.find_holders(now) for now in (0.0, 2.0, 4.0)] == [{}, {}, {}]
    assert (tmp_path / "asked").read_text() == "asked\n"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[slurm_cluster.Cluster]:
    with slurm_cluster.running(tmp_path_factory.mktemp("slurm"), nodes=2) as started:
        yield started


@pytest.mark.alone
@pytest.mark.servers
def test_a_job_is_attributed_within_five_seconds_of_its_start(
    cluster: slurm_cluster.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", str(cluster.folder / "slurm.conf"))
    jobs = SlurmJobs("n1")
    assert jobs.is_present()
    id = cluster.submit("--gres=gpu:2", "-w", "n1")
    other = cluster.submit("--gres=gpu:3", "-w", "n2")
    slurm_cluster.until(lambda: cluster.ask("squeue", "-h", "-o", "%T").split() == ["RUNNING"] * 2)
    started, holders = time.monotonic(), {}
    while time.monotonic() - started < 5.0 and set(holders) != {"nvidia0", "nvidia1"}:
        holders = dict(asyncio.run(jobs.read()))
    assert holders == dict.fromkeys(
        ["nvidia0", "nvidia1"], (Holding(Workload(WorkloadKind.SLURM_JOB, id, user="root")),)
    )
    assert other not in str(holders), "that one is on the other node"
    subprocess.run(["scancel", id, other], env=dict(cluster.environment), check=True)
    slurm_cluster.until(lambda: asyncio.run(jobs.read()) == {})


@pytest.mark.alone
@pytest.mark.servers
def test_the_agents_page_names_a_job_within_five_seconds_of_its_start(
    cluster: slurm_cluster.Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not driver.has_compiler():
        pytest.skip("gcc is needed to build the fake NVML")
    monkeypatch.setenv("SLURM_CONF", str(cluster.folder / "slurm.conf"))
    fake = driver.FakeNvml(driver.build(tmp_path), tmp_path / "control", gpus=8)

    async def story() -> tuple[str, float]:
        async with running(agent_machine(tmp_path), fake, roots=node_facts.Roots()) as node:
            await node.until_page(lambda text: 'reason="free"' in text)
            id = await asyncio.to_thread(cluster.submit, "--gres=gpu:3", "-w", "n1")
            page = await node.until_page(lambda text: f'hpc_job="{id}"' in text)
            shown_at = time.time()
            started = await asyncio.to_thread(cluster.ask, "squeue", "-h", "-j", id, "-O", "StartTime")
            return page, shown_at - datetime.fromisoformat(started.strip()).timestamp()

    page, seconds = asyncio.run(story())
    # Slurm tells whole seconds.
    assert seconds < 5.0 + 1.0
    assert page.count('reason="attributed"} 1') == 3
    cluster.cancel_all()
