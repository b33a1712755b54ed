"""Orders that change a node: real processes, fake programs, and the fake NVML behind the real reader process."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.agent.conftest import MakeFake
from tests.support.fake_nvml.driver import FakeNvml
from tests.support.node_orders import NOON
from watchkeeper.agent.node_facts import Roots
from watchkeeper.agent.orders import order_work
from watchkeeper.agent.orders.order_context import NodeTools, OrderContext, OrderOutcome
from watchkeeper.agent.profiling import PauseFile
from watchkeeper.errors import CollectError
from watchkeeper.model.actions import Result

FIRST, SECOND = (f"GPU-00000000-0000-0000-0000-00000000000{index}" for index in (0, 1))
# Sets the limit in the file that the fake NVML reads, as the driver would.
SET_LIMIT = """
import os, sys
path, watts = os.environ["FAKE_NVML_CONTROL"], float(sys.argv[sys.argv.index("--power-limit") + 1])
row = sys.argv[sys.argv.index("-i") + 1][-1] + " PowerManagementLimit "
kept = [line for line in open(path) if not line.startswith(row)]
open(path, "w").writelines([*kept, f"{row}{watts * 1000:.0f}\\n"])
"""


class Machine:
    """A node of its own: /proc, programs that write down how they were called, and GPUs."""

    def __init__(self, root: Path, fake: FakeNvml) -> None:
        self.root, self.fake = root, fake
        self.calls = root / "calls"
        for folder in ("bin", "proc/1", "etc"):
            (root / folder).mkdir(parents=True)
        (root / "etc/passwd").write_text("ada:x:1000:1000::/:/bin/sh\n")
        names = ("nvidia-smi", "systemctl", "nvidia-mig-parted")
        smi, systemctl, parted = (str(root / "bin" / name) for name in names)
        tools = NodeTools(smi, systemctl, parted, mig_config=root / "mig.yaml", holder_timeout_seconds=0.0)
        roots = Roots(root / "proc", root / "sys", root)
        self.bench = OrderContext(PauseFile(root), environment=fake.environment, tools=tools, roots=roots)
        for name in names:
            self.program(name)

    def program(self, name: str, *, says: str = "", status: int = 0, python: str = "") -> None:
        path = self.root / "bin" / name
        body = f"python3 -c '{python}' \"$@\" || exit 9\n" if python else ""
        text = f"#!/bin/sh\necho {name} \"$@\" >> {self.calls}\n{body}echo '{says}'\nexit {status}\n"
        path.write_text(text)
        path.chmod(0o755)

    def running(self, pid: int, command: str, *, opens: str | None = None, cgroup: str = "0::/\n") -> None:
        folder = self.root / "proc" / str(pid)
        (folder / "fd").mkdir(parents=True)
        for name, text in (("status", "Name:\tx\nUid:\t1000\n"), ("cmdline", command.replace(" ", "\0"))):
            (folder / name).write_text(text)
        (folder / "comm").write_text(f"{command[:15]}\n")
        (folder / "cgroup").write_text(cgroup)
        if opens is not None:
            os.symlink(opens, folder / "fd/3")

    def order(self, kind: str, **arguments: str) -> OrderOutcome:
        work = order_work.ORDER_FUNCTIONS[kind]
        return asyncio.run(work(self.bench, arguments, NOON))  # type: ignore[arg-type]

    @property
    def called(self) -> list[str]:
        return self.calls.read_text().splitlines() if self.calls.exists() else []


@pytest.fixture
def node(tmp_path: Path, machine: MakeFake) -> Machine:
    return Machine(tmp_path, machine(2))


def test_a_gpu_without_a_holder_is_reset(node: Machine) -> None:
    node.program("nvidia-smi", says="GPU 00000000:11:00.0 was successfully reset.")
    done = node.order("reset_gpu", gpu=SECOND)
    assert (done.result, done.text) == (Result.DONE, f"{SECOND} was reset and answers")
    assert node.called == [f"nvidia-smi --gpu-reset -i {SECOND}"]
    assert "successfully reset" in done.output


def test_a_gpu_with_a_program_on_it_is_not_reset_and_the_program_is_named(node: Machine) -> None:
    node.fake.tell(0, ComputeProcesses=1)
    node.fake.tell(0, "ComputeProcesses.pid0", 4711)
    node.running(4711, "python train.py --lr 1", cgroup="0::/system.slice/slurmstepd.scope/job_17/step_0\n")
    done = node.order("reset_gpu", gpu="0")
    assert done.result is Result.REFUSED
    assert done.text == f"{FIRST} is held by pid 4711 train.py of ada (Slurm job 17); nothing was reset"
    assert node.called == []
    assert node.order("reset_gpu", gpu="1").result is Result.DONE


def test_a_process_with_an_open_device_file_holds_the_gpu_too(node: Machine) -> None:
    node.running(81, "nv-hostengine -n", opens="/dev/nvidia0")
    node.running(82, "nvidia-persistenced --verbose", opens="/dev/nvidia0")
    node.running(83, "nvidia-smi dmon", opens="/dev/nvidia1")
    done = node.order("reset_gpu", gpu=FIRST)
    assert (done.result, done.output) == (Result.REFUSED, "pid 81 nv-hostengine of ada")


def test_gpus_that_must_be_reset_together_are_named(node: Machine) -> None:
    says = "GPU 00000000:10:00.0 is linked by NVLink to GPU 00000000:11:00.0, which must be reset with it."
    node.program("nvidia-smi", says=says, status=255)
    with pytest.raises(CollectError, match=r"status 255; the driver requires a reset together with 00000000:11:00.0"):
        node.order("reset_gpu", gpu=FIRST)


def test_unreadable_processes_are_an_error_and_not_an_idle_gpu(node: Machine) -> None:
    node.fake.tell(0, ComputeProcesses="!3")
    with pytest.raises(CollectError, match=f"NVML does not report the processes on {FIRST}"):
        node.order("reset_gpu", gpu=FIRST)
    with pytest.raises(CollectError, match="this node has no GPU `GPU-7`; NVML lists: GPU-"):
        node.order("reset_gpu", gpu="GPU-7")
    blind = replace(node.bench, roots=Roots(node.root / "nowhere", node.root, node.root))
    with pytest.raises(CollectError, match="nowhere: cannot be read, so it is unknown which processes"):
        asyncio.run(order_work.reset_gpu(blind, {"gpu": SECOND}, NOON))
    assert node.called == []


@pytest.mark.slow
def test_a_power_limit_is_lowered_within_the_range_and_restored(node: Machine) -> None:
    node.program("nvidia-smi", python=SET_LIMIT)
    lowered = node.order("lower_power", gpu=FIRST, percent="80")
    assert (lowered.result, lowered.text) == (Result.DONE, f"{FIRST} has a limit of 560 W; it was 700 W")
    assert node.order("lower_power", gpu=FIRST, percent="80").result is Result.ALREADY_SO
    assert node.order("lower_power", gpu=FIRST, watts="500").text.endswith("it was 560 W")
    back = node.order("lower_power", gpu=FIRST, restore="default")
    assert back.text == f"{FIRST} has a limit of 700 W; it was 500 W"
    assert node.order("lower_power", gpu=FIRST, restore="default").result is Result.ALREADY_SO
    assert node.called[0] == f"nvidia-smi -i {FIRST} --power-limit 560.00"


@pytest.mark.slow
def test_all_power_limits_of_a_node_are_lowered_and_only_those_are_restored(node: Machine) -> None:
    node.program("nvidia-smi", python=SET_LIMIT)
    lowered = node.order("lower_power", gpu="all", percent="70")
    assert lowered.result is Result.DONE
    assert [f"{uuid} has a limit of 490 W; it was 700 W" in lowered.text for uuid in (FIRST, SECOND)] == [True, True]
    assert node.order("lower_power", gpu="all", percent="70").result is Result.ALREADY_SO
    node.order("lower_power", gpu=FIRST, restore="default")
    back = node.order("lower_power", gpu="all", restore="default")
    assert back.text == f"{SECOND} has a limit of 700 W; it was 490 W"
    again = node.order("lower_power", gpu="all", restore="default")
    assert (again.result, again.text) == (Result.ALREADY_SO, "no power limit of this node was lowered")


def test_no_limit_of_a_node_changes_if_one_board_refuses(node: Machine) -> None:
    done = node.order("lower_power", gpu="all", percent="20")
    assert (done.result, "allows 200 to 700 W, not 140 W" in done.text) == (Result.REFUSED, True)
    assert "(2 of 2 GPUs)" in done.text
    assert node.called == []


def test_a_limit_that_the_board_does_not_allow_is_refused_with_both_numbers(node: Machine) -> None:
    done = node.order("lower_power", gpu=FIRST, watts="50")
    assert (done.result, done.text) == (
        Result.REFUSED,
        f"{FIRST} allows 200 to 700 W, not 50 W; its limit is 700 W",
    )
    with pytest.raises(CollectError, match="`watts` or `percent` must be a number"):
        node.order("lower_power", gpu=FIRST)
    assert node.called == []


def test_a_power_limit_that_was_not_set_is_a_failure(node: Machine) -> None:
    node.program("nvidia-smi", says="Insufficient Permissions", status=4)
    with pytest.raises(
        CollectError, match="has a limit of 700 W, not 600 W; nvidia-smi exited with status 4: Insufficient"
    ):
        node.order("lower_power", gpu=FIRST, watts="600")


def test_only_services_of_the_agents_list_are_restarted(node: Machine) -> None:
    node.program("systemctl", says="active")
    done = node.order("restart_service", service="nvidia-fabricmanager.service")
    assert (done.result, done.text) == (Result.DONE, "nvidia-fabricmanager was restarted and is active")
    refused = node.order("restart_service", service="sshd")
    assert (refused.result, "`sshd` is not a service that this agent may restart" in refused.text) == (
        Result.REFUSED,
        True,
    )
    assert node.called == [
        "systemctl restart nvidia-fabricmanager.service",
        "systemctl is-active nvidia-fabricmanager.service",
    ]


def test_a_service_that_does_not_stay_up_is_a_failure(node: Machine) -> None:
    node.program("systemctl", says="Job for nvidia-dcgm failed.", status=1)
    with pytest.raises(
        CollectError, match=r"restart nvidia-dcgm.service exited with status 1: Job for nvidia-dcgm failed"
    ):
        node.order("restart_service", service="nvidia-dcgm")


def test_a_layout_is_applied_and_verified(node: Machine) -> None:
    node.fake.tell(0, MigMode=1, slices=2)
    done = node.order("apply_mig", layout="all-1g.18gb")
    assert done.text == "layout all-1g.18gb applied: gpu 0: 1g.18gb, 1g.18gb; gpu 1: no MIG instances"
    which = f"-f {node.root}/mig.yaml -c all-1g.18gb"
    assert node.called == [f"nvidia-mig-parted apply {which}", f"nvidia-mig-parted assert {which}"]
    assert node.order("apply_mig").text.startswith("`` is not a layout name")
    assert node.order("apply_mig", layout="-x; rm").result is Result.REFUSED


def test_a_node_with_running_processes_is_not_rebooted(node: Machine) -> None:
    node.fake.tell(1, ComputeProcesses=1)
    node.fake.tell(1, "ComputeProcesses.pid0", 4711)
    node.running(4711, "train")
    done = node.order("reboot")
    assert (done.result, done.text) == (Result.REFUSED, "a reboot would end pid 4711 train of ada; nothing was done")
    node.fake.tell("*", Init="!9")
    assert "NVML lists no GPU" in node.order("reboot").text
    assert node.called == []
    node.program("systemctl", says="Access denied", status=1)
    with pytest.raises(CollectError, match="reboot exited with status 1: Access denied"):
        node.order("reboot", drained="yes")


def test_the_report_for_vendors_is_the_output_of_nvidia_smi(node: Machine) -> None:
    node.program("nvidia-smi", says="Serial Number : 1650000000001")
    assert asyncio.run(order_work.describe_gpus(node.bench, {}, NOON)).output == "Serial Number : 1650000000001\n"
    node.program("nvidia-smi", says="No devices were found", status=6)
    with pytest.raises(CollectError, match="-q exited with status 6: No devices were found"):
        asyncio.run(order_work.describe_gpus(node.bench, {}, NOON))


def test_a_test_of_an_unknown_level_is_refused(node: Machine) -> None:
    assert node.order("diag", level="4").text == "`level` is 4, it must be one of 1, 2, 3"
