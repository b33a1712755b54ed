"""`watchkeeper preflight` as a program: with a real Slurm, with ssh, with a label selector, and with wrong options."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.probe.preflight import nodes
from tests.support.clusters import slurm_cluster
from tests.support.fake_nvml import driver

LINE = [sys.executable, "-m", "watchkeeper.cli.main", "preflight"]


def preflight(environment: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in environment.items() if not name.startswith("SLURM_JOB")}
    return subprocess.run([*LINE, *arguments], env=clean, capture_output=True, text=True, check=False, timeout=100)


def words(ran: subprocess.CompletedProcess[str]) -> dict[str, str]:
    return {node["name"]: node["word"] for node in json.loads(ran.stdout)["nodes"]}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[slurm_cluster.Cluster]:
    with slurm_cluster.running(tmp_path_factory.mktemp("slurm"), nodes=3) as running:
        yield running


@pytest.fixture
def job(cluster: slurm_cluster.Cluster) -> Iterator[str]:
    """All three nodes with two GPUs each, running."""
    id = cluster.submit("--nodes=3", "--gres=gpu:2")
    slurm_cluster.until(lambda: "R" in cluster.ask("squeue", "-h", "-j", id, "-o", "%t"))
    yield id
    cluster.cancel_all()


@pytest.mark.slow
def test_an_allocation_of_healthy_nodes_is_a_go(cluster: slurm_cluster.Cluster, job: str, tmp_path: Path) -> None:
    for name in ("n1", "n2", "n3"):
        (tmp_path / f"{name}.json").write_text(nodes.report())
    line = ["--slurm-job", job, "--no-bandwidth", "--command", nodes.command(tmp_path)]
    ran = preflight(cluster.environment, *line)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[1].split() == ["n1", "go", "8"]
    assert ran.stdout.splitlines()[-1].startswith("Go: 3 nodes by srun: 3 go")


@pytest.mark.slow
def test_each_no_go_has_a_reason_and_a_node_without_an_answer_is_never_a_go(
    cluster: slurm_cluster.Cluster, job: str, tmp_path: Path, fake: driver.FakeNvml
) -> None:
    """n1 is healthy, n2 runs the real `diag` with a lost GPU, n3 does not answer."""
    (tmp_path / "n1.json").write_text(nodes.report())
    (tmp_path / "n3.hang").touch()
    fake.tell(1, all=driver.GPU_IS_LOST)
    line = ["--slurm-job", job, "--json", "--timeout", "8", "--command", nodes.command(tmp_path)]
    ran = preflight({**fake.environment, **_slurm(cluster)}, *line)
    answer = json.loads(ran.stdout)
    assert (ran.returncode, answer["verdict"], answer["by"]) == (1, "no-go", "srun")
    assert words(ran) == {"n1": "go", "n2": "no-go", "n3": "cannot tell"}
    reasons = {node["name"]: node["reasons"] for node in answer["nodes"]}
    assert any("GPU_IS_LOST" in reason or "does not answer" in reason for reason in reasons["n2"])
    assert reasons["n3"] == ["no answer within 8 s"]


@pytest.mark.slow
def test_links_without_torch_mean_cannot_tell(
    cluster: slurm_cluster.Cluster, job: str, tmp_path: Path, fake: driver.FakeNvml
) -> None:
    for name in ("n1", "n2", "n3"):
        (tmp_path / f"{name}.json").write_text(nodes.report(gpus=2))
    line = ["--slurm-job", job, "--nodes", "n[1-2]", "--json", "--command", nodes.command(tmp_path)]
    ran = preflight({**fake.environment, **_slurm(cluster)}, *line)
    answer = json.loads(ran.stdout)
    assert (ran.returncode, words(ran)) == (3, {"n1": "go", "n2": "go"})
    assert "torch" in " ".join(answer["links"]["reasons"])


@pytest.mark.slow
def test_a_job_that_does_not_run_and_nodes_of_another_job_are_refused(cluster: slurm_cluster.Cluster, job: str) -> None:
    gone = preflight(cluster.environment, "--slurm-job", "99999")
    assert (gone.returncode, "job 99999" in gone.stderr) == (1, True)
    stranger = preflight(cluster.environment, "--slurm-job", job, "--nodes", "n1,n7")
    assert (stranger.returncode, "n7 is not one of the 3 nodes" in stranger.stderr) == (2, True)


def _slurm(cluster: slurm_cluster.Cluster) -> dict[str, str]:
    return {"SLURM_CONF": cluster.environment["SLURM_CONF"]}


def tool(folder: Path, name: str, script: str) -> dict[str, str]:
    """An environment with this program first in PATH."""
    path = folder / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return {**os.environ, "PATH": f"{path.parent}:{os.environ['PATH']}"}


# Runs the last argument in a shell, as ssh does on the node.
SSH = 'while [ "$1" = -o ]; do shift 2; done; shift; export NODE="$1"; [ "$NODE" = down ] && exit 255; exec sh -c "$2"'


def test_ssh_is_used_only_on_request(tmp_path: Path) -> None:
    (tmp_path / "a1.json").write_text(nodes.report())
    line = ["--nodes", "a1,down", "--ssh", "--no-bandwidth", "--json", "--command", nodes.command(tmp_path)]
    ran = preflight(tool(tmp_path, "ssh", SSH), *line)
    assert (ran.returncode, words(ran)) == (3, {"a1": "go", "down": "cannot tell"})


def items(*names: str) -> str:
    objects: list[dict[str, Any]] = [{"metadata": {"name": name}} for name in names]
    return json.dumps({"items": objects})


def test_a_label_selector_selects_nodes_and_an_unreachable_hub_is_never_a_go(tmp_path: Path) -> None:
    environment = tool(tmp_path, "kubectl", f"echo '{items('k1', 'k2')}'")
    ran = preflight(environment, "--selector", "gpu=h200", "--json", "--hub", "http://127.0.0.1:9")
    assert (ran.returncode, words(ran)) == (3, {"k1": "cannot tell", "k2": "cannot tell"})
    none = preflight(tool(tmp_path, "kubectl", f"echo '{items()}'"), "--selector", "gpu=none")
    assert (none.returncode, "0 nodes selected" in none.stderr) == (2, True)


def test_the_error_of_kubectl_is_shown(tmp_path: Path) -> None:
    ran = preflight(tool(tmp_path, "kubectl", "echo 'error: no such context' >&2; exit 1"), "--selector", "a=b")
    assert (ran.returncode, "error: no such context" in ran.stderr) == (1, True)


def test_without_nodes_the_error_names_the_options() -> None:
    ran = preflight(os.environ)
    assert (ran.returncode, "--slurm-job" in ran.stderr) == (2, True)
    assert preflight(os.environ, "--nodes", "a[1-").returncode == 2
    assert preflight(os.environ, "--nodes", "a", "--selector", "b=c").returncode == 2
