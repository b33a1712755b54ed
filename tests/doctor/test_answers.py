"""How an answer reads at three in the morning: titles name the place, commands fit it, lines are in order."""

from __future__ import annotations

import pytest

from tests.doctor.asking import ask, causes

LOST = "Aug 10 05:36:05 n7 kernel: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"
DRAIN = "kubectl drain n7 --ignore-daemonsets --delete-emptydir-data"
SLURM = "scontrol update nodename=n7 state=drain reason=gpu-fault"


@pytest.mark.parametrize(
    ("beside", "command"),
    [
        ("", f"{DRAIN}   (Slurm: {SLURM})"),
        ("NodeName=n7 Arch=x86_64 Gres=gpu:8\n   State=ALLOCATED\n", SLURM),
        ("NAME   READY   STATUS    RESTARTS   AGE\ntrain-0   0/1   Error   0   3d\n", DRAIN),
    ],
    ids=["unknown", "Slurm", "Kubernetes"],
)
def test_the_command_to_drain_is_the_scheduler_s_own(beside: str, command: str) -> None:
    answer = ask(LOST, beside) if beside else ask(LOST)
    assert answer.findings[0].actions[0].command == command


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("NVRM: Xid (PCI:0000:3b:00): 63, pid=7, Row Remapper: New row marked", "GPU 0000:3b:00 has a memory row"),
        ("nvml: GPU is lost", "A GPU of this system fell off the bus"),
        ("RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB", "This job ran out of GPU memory"),
        ("n7   NotReady   <none>   17h   v1.31.1", "n7 is down"),
    ],
)
def test_a_title_says_what_kind_of_thing_failed_where_no_line_names_it(text: str, title: str) -> None:
    assert ask(text).findings[0].title.startswith(title)


def test_a_gpu_without_an_index_is_reset_by_its_address() -> None:
    answer = ask("NVRM: Xid (PCI:0000:3b:00): 63, pid=7, Row Remapper: New row marked for remapping")
    assert answer.findings[0].actions[0].command == "nvidia-smi --gpu-reset -i 0000:3b:00.0"


def test_a_gpu_that_is_named_two_lines_above_is_the_place_and_its_lines_are_in_order() -> None:
    text = (
        "[   77.3] NVRM: The NVIDIA GPU 0000:c1:00.0\n"
        "          NVRM: (PCI ID: 10de:2335) installed in this system has\n"
        "          NVRM: fallen off the bus and is not responding to commands.\n"
        "[   77.4] NVRM: The NVIDIA probe routine failed for 1 device(s).\n"
    )
    first, second = ask(text).findings
    assert (first.cause, first.where["pci"]) == ("gpu_fell_off_bus", "0000:c1:00")
    assert [sighting.line for sighting in first.evidence] == [1, 3]
    assert (second.cause, second.confidence < 0.5) == ("driver_not_loaded", True)


def test_an_error_that_nothing_explains_is_not_repeated_beside_a_known_cause() -> None:
    text = 'level=fatal msg="Error starting nv-hostengine: DCGM initialization error"'
    assert "unknown" not in causes(ask(text))


def test_a_connection_that_failed_names_the_peer_to_test() -> None:
    text = "n5:2:3 [6] NCCL WARN socketPollConnect: Connect to 10.0.0.4<568> returned 113(No route to host) errno 115"
    command = ask(text).findings[0].actions[0].command
    assert command is not None
    assert command.startswith("ip route get 10.0.0.4;")
