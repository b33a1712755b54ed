"""Commands of a result are those of the scheduler that the input came from."""

from __future__ import annotations

import pytest

from tests.doctor.asking import ask, causes

HEAD = "JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)\n"
PENDING = [
    HEAD + "48211       gpu    train      ana PD       0:00      4 (Resources)\n",
    (
        "JOBID PARTITION NAME USER    STATE  TIME TIME_LIMI NODES NODELIST(REASON)\n"
        "48211 gpu  train  ana  PENDING  0:00 2-00:00:00  4 (Priority)\n"
    ),
    "JOBID|PARTITION|NAME|USER|ST|TIME|NODES|NODELIST(REASON)\n48211|gpu|train|ana|PD|0:00|4|(Resources)\n",
    '$ squeue -o "%i %T %r %b"\nJOBID STATE REASON TRES_PER_NODE\n48211 PENDING Resources gres/gpu:8\n',
    "JobId=48211 JobName=train\n   JobState=PENDING Reason=Resources Dependency=(null)\n   NumNodes=4\n",
]


def commands(text: str) -> list[str]:
    return [step.command for finding in ask(text).findings for step in finding.actions if step.command]


@pytest.mark.parametrize("text", PENDING)
def test_a_pending_job_of_slurm_is_answered_with_slurm(text: str) -> None:
    assert causes(ask(text)) == ["insufficient_gpu_capacity"]
    assert ask(text).findings[0].where["job"] == "48211"
    assert any("squeue" in command for command in commands(text))
    assert not [command for command in commands(text) if "kubectl" in command]


@pytest.mark.parametrize(
    "text",
    [
        HEAD + "48211       gpu    train      ana PD       0:00      4 (QOSMaxGRESPerUser)\n",
        HEAD + "48211       gpu    train      ana PD       0:00      4 (BadConstraints)\n",
        "JobId=48211 JobName=train\n   JobState=PENDING Reason=BadConstraints Dependency=(null)\n",
        HEAD + "48211       gpu    train      ana PD       0:00      4 (ReqNodeNotAvail, UnavailableNodes:gpu03)\n",
        "slurm_load_jobs error: Unable to contact slurm controller\nslurmctld: error: Munge decode failed",
        "NodeName=gpu07 Arch=x86_64\n   Gres=(null)\n   State=IDLE\n",
        "[2026-08-10T10:00:00.101] Killing JobId=48211 on failed node gpu07\n",
    ],
)
def test_nothing_about_slurm_is_answered_with_kubectl(text: str) -> None:
    assert commands(text)
    assert not [command for command in commands(text) if "kubectl" in command]


def test_nothing_about_kubernetes_is_answered_with_slurm() -> None:
    for text in (
        "Warning  FailedScheduling  0/12 nodes are available: 12 Insufficient nvidia.com/gpu.",
        "'nvidia.com/gpu' device marked unhealthy: GPU-0a1b2c3d-1111-2222-3333-444455556666",
        'pods "train-0" is forbidden: exceeded quota: gpu-quota, requested: requests.nvidia.com/gpu=8',
    ):
        assert any("kubectl" in command for command in commands(text))
        assert not [command for command in commands(text) if "Slurm" in command or "scontrol" in command]


def test_an_input_without_a_scheduler_gets_the_commands_of_both() -> None:
    text = "NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, GPU has fallen off the bus."
    assert any("kubectl drain" in command and "Slurm: scontrol" in command for command in commands(text))
