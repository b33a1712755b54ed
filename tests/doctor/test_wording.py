"""Titles say what broke: a switch is no GPU, a port is no GPU, and who noticed a death did not die."""

from __future__ import annotations

import pytest

from tests.doctor.asking import ask

SWITCH = "nvidia-nvswitch3: SXid (PCI:0000:c4:00.0): 20034, Fatal, Link 30 LTSSM Fault Up\n"
PORT = "Sep 19 16:18:02 gpu07 kernel: pcieport 0000:00:03.1: PCIe Bus Error: severity=Corrected, type=Data Link Layer\n"
NOTICED = """[rank3]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970, NCCL version 2.27.5
[rank3]: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.
[rank3]: socketProgress: Connection closed by remote peer gpu02<48210>
"""
KILLED = (
    "Mar  3 03:12:44 gpu11 kernel: Memory cgroup out of memory: Killed process 22110 (python) total-vm:183212344kB\n"
)
DOWN = "CA 'mlx5_7'\n\tPort 1:\n\t\tState: Down\n\t\tPhysical state: Polling\n"
MEMORY = "gpu02:725:734 [7] alloc.h:178 NCCL WARN Cuda failure 'out of memory'\n"
TWO_NODES = "".join(
    f"gpu0{node}:19:20 [1] net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.0.0.9<53> with error 12\n"
    for node in (1, 2)
)


@pytest.mark.parametrize(
    ("text", "title"),
    [
        (SWITCH, "NVLink of NVSwitch 3 reports errors"),
        (PORT * 3, "PCIe link of port 0000:00:03.1 of gpu07 is degraded"),
        (NOTICED, "A rank of this job died"),
        (KILLED, "The job on gpu11 was OOM-killed: out of host memory"),
        (DOWN, "NCCL of this job lost an InfiniBand link: mlx5_7 port 1"),
        (MEMORY, "The job on GPU 7 of gpu02 ran out of GPU memory"),
        (TWO_NODES, "NCCL of this job lost an InfiniBand link"),
        (
            "RuntimeError: CUDA error: device-side assert triggered",
            "This job: a program touched memory it does not own",
        ),
    ],
)
def test_a_title_names_what_broke_and_nothing_else(text: str, title: str) -> None:
    assert ask(text).findings[0].title == title


def test_the_rank_that_noticed_a_death_and_the_peer_stand_beside_the_finding() -> None:
    where = ask(NOTICED).findings[0].where
    assert (where["noticed_rank"], where["peer"], "rank" in where) == (3, "gpu02", False)


@pytest.mark.parametrize("line", ["22013, Non-fatal, Link 44 Minion Link DLREQ", "11012, Non-fatal, Link 3 ECC limit"])
def test_a_switch_error_without_any_effect_is_no_fault_of_nvlink(line: str) -> None:
    (finding,) = ask(f"nvidia-nvswitch3: SXid (PCI:0000:04:00.0): {line}\n").findings
    assert (finding.cause, finding.confidence) == ("unknown", 0.3)
    assert "is not a fault" in finding.why
