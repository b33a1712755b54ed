"""What a heading names belongs to the lines below it: pods, nodes, GPUs, ports, and the machine of a prompt."""

from __future__ import annotations

import pytest

from tests.doctor.asking import ask

POD = """Name:             trainer-0
Namespace:        team-a
Priority:         0
Node:             gpu07/10.0.0.7
Status:           Pending
Events:
  Type     Reason            Age   From               Message
  Warning  FailedScheduling  8s    default-scheduler  0/3 nodes are available: 3 Insufficient nvidia.com/gpu.
"""
NODE = """NodeName=gpu09 Arch=x86_64 CoresPerSocket=48
   Gres=gpu:h100:8
   State=IDLE+DRAIN ThreadsPerCore=2
   Reason=gres/gpu count reported lower than configured (7 < 8) [slurm@2026-03-01T11:03:34]
"""
WIDTH = """4b:00.0 3D controller: NVIDIA Corporation GA100 [A100 PCIe 40GB] (rev a1)
		LnkCap:	Port #0, Speed 16GT/s, Width x16, ASPM not supported
		LnkSta:	Speed 16GT/s (ok), Width x4 (downgraded)
"""
ROW = """|   5  NVIDIA A100-SXM...  ERR! | 00000000:8A:00.0 Off |                 ERR! |
|ERR!  ERR! ERR!   ERR! / ERR! |   GPU is lost        |     ERR!      ERR!   |
"""
PORT = """# Port info: Lid 12 port 31
LinkState:.......................Down
PhysLinkState:...................Polling
"""
TYPED = """[ana@gpu11 ~]$ sudo systemctl restart nvidia-fabricmanager.service
Job for nvidia-fabricmanager.service failed because the control process exited with error code.
"""
KUBECTL_COMMANDS = """$ kubectl -n gpu-operator logs nvidia-operator-validator-x7k2p -c driver-validation
chroot: failed to run command 'nvidia-smi': No such file or directory
"""
LINKS = "GPUs:\n    gpuId 2:\n        U U U D U U\n    gpuId 3:\n        U U U U U U\n"
HEALTH = "|       -> PCIe system      | Warning  Detected 12 PCIe replays per minute for GPU 4, above the threshold |\n"
EVENT = "3m12s   Warning   SystemOOM   node/gpu13   System OOM encountered, victim process: python3, pid: 120033\n"
TAGGED = "[1,23]<stdout>:gpu02:725:734 [7] alloc.h:178 NCCL WARN Cuda failure 'out of memory'\n"
STRUCTURED = "<4>1 2026-02-03T10:11:12.1Z gpu17 kernel - - - NVRM: Xid (PCI:0000:cd:00): 48, pid=9, DBE error\n"
BARRIER = "Rank 1 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 6.\n"
ENDED = "elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 3 (pid: 8129) of binary: /usr/bin/python3\n"
CONDITION = "  GpuLost   True   Tue, 03 Feb 2026 10:11:12 +0000   GpuFallenOff   GPU 3 has fallen off the bus\n"
CHOSEN = "NODELIST   STATE   REASON\ngpu21      idle    none\ngpu22      down*   Not responding\n"
FIRMWARE = """NVRM: RmInitAdapter: Cannot initialize GSP firmware RM
NVRM: GPU 0000:98:00.0: RmInitAdapter failed! (0x62:0x65:1792)
"""


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (POD, {"pod": "trainer-0", "namespace": "team-a", "node": "gpu07"}),
        (NODE, {"node": "gpu09"}),
        (WIDTH, {"pci": "0000:4b:00"}),
        (ROW, {"gpu": 5, "pci": "0000:8a:00"}),
        (PORT, {"owner": "lid 12", "port": 31}),
        (TYPED, {"node": "gpu11"}),
        (KUBECTL_COMMANDS, {"pod": "nvidia-operator-validator-x7k2p", "namespace": "gpu-operator"}),
        (LINKS, {"gpu": 2}),
        (HEALTH, {"gpu": 4}),
        (EVENT, {"node": "gpu13"}),
        (TAGGED, {"rank": 23, "node": "gpu02"}),
        (FIRMWARE, {"pci": "0000:98:00"}),
        (STRUCTURED, {"node": "gpu17", "pci": "0000:cd:00"}),
        (BARRIER, {"rank": 6}),
        (ENDED, {"local_rank": 3}),
        (CONDITION, {"gpu": 3}),
        (CHOSEN, {"node": "gpu22"}),
    ],
)
def test_a_finding_has_the_place_of_the_heading_above_its_lines(text: str, where: dict[str, object]) -> None:
    named = ask(text).findings[0].where
    assert {key: named.get(key) for key in where} == where


def test_what_comes_after_a_record_is_not_its_own() -> None:
    after = ask(
        f"{POD.replace('0/3 nodes are available: 3 Insufficient nvidia.com/gpu.', 'waits')}\nnvml: GPU is lost\n"
    )
    assert "pod" not in after.findings[0].where
    typed = ask("ana@login1:~$ kubectl get nodes\nn7   NotReady   <none>   17h   v1.31.1\n")
    assert typed.findings[0].where["node"] == "n7"
    assert (
        ask("ana@login1:~$ cat ibstat.txt\nState: Down\nPhysical state: Polling\n").findings[0].where.get("node")
        is None
    )
