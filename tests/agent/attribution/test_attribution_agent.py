"""The whole agent on fake GPUs: the holder of a GPU is on the page within seconds, and shares sum to one."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from tests.agent.attribution.programs import make_program
from tests.agent.reading import reader
from tests.support.fake_nvml import driver
from tests.support.fake_nvml.driver import UUID
from tests.support.running_agent import machine, running
from watchkeeper.agent.attribution.node_holders import HolderDisplay, HolderSettings


def put_programs(fake: driver.FakeNvml, gpu: int, **busy: int) -> None:
    """`p7=60`: pid 7 keeps 60 % of the GPU busy."""
    fake.tell(gpu, ComputeProcesses=len(busy))
    for at, (pid, percent) in enumerate(busy.items()):
        fake.tell(gpu, f"ComputeProcesses.pid{at}", pid[1:])
        fake.tell(gpu, f"ProcessUtilization.{pid[1:]}", percent)


def test_processes_have_shares_only_if_several_use_the_gpu(fake: driver.FakeNvml) -> None:
    put_programs(fake, 0, p7=60, p8=20)
    put_programs(fake, 1, p9=90)
    with reader(fake) as child:
        assert child.ask(0)["programs"] == [[7, None, 60], [8, None, 20]]
        assert child.ask(1)["programs"] == [[9, None, None]], "alone, it is all of it"
        put_programs(fake, 1, p9=90, p10=5)
        fake.tell(1, ProcessUtilization=driver.NOT_SUPPORTED)
        assert child.ask(1)["programs"] == [[9, None, None], [10, None, None]]


def test_a_mig_instance_has_its_own_uuid_and_processes(fake: driver.FakeNvml) -> None:
    fake.tell(0, MigMode=1, slices=1, ComputeProcesses=1)
    fake.tell(0, "ComputeProcesses.slice0", 1)
    with reader(fake) as child:
        answer = child.ask(0)
        assert [part["uuid"] for part in answer["slices"]] == ["MIG-00000000-0000-0000-0000-000000000000"]
        assert answer["programs"] == [[1000, 1, None]]


def test_a_job_file_labels_every_family_and_a_shared_gpu_is_split_to_its_whole(
    tmp_path: Path, fake: driver.FakeNvml
) -> None:
    root = machine(tmp_path)
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    (jobs / "0").write_text("4711\n")
    for pid in (7, 8):
        make_program(root / "proc", pid, cmdline=f"/opt/serve{pid}\0")
    put_programs(fake, 1, p7=61, p8=20)
    fake.tell(1, "UtilizationRates.gpu", 83)

    async def story() -> str:
        async with running(root, fake, holder_settings=HolderSettings(HolderDisplay.BOTH, jobs)) as node:
            return await node.until_page(lambda text: "hpc_job=" in text and "workload_share{" in text)

    page = asyncio.run(story())
    families = [line for line in page.splitlines() if line.startswith("DCGM_") and UUID(0) in line]
    assert families
    assert all('hpc_job="4711"' in line for line in families)
    shares = [float(number) for number in re.findall(r"^watchkeeper_gpu_workload_share{.*} (\S+)$", page, re.MULTILINE)]
    assert len(shares) == 2
    assert sum(83 * share for share in shares) == pytest.approx(83, rel=0.05)
    assert f'watchkeeper_gpu_attribution{{gpu="1",UUID="{UUID(1)}",Hostname="n1",reason="attributed"}} 2' in page


def test_a_free_gpu_has_the_reason_free(tmp_path: Path, fake: driver.FakeNvml) -> None:
    async def story() -> str:
        async with running(machine(tmp_path), fake) as node:
            return await node.until_page(lambda text: "watchkeeper_gpu_attribution{" in text)

    page = asyncio.run(story())
    assert page.count('reason="free"} 0\n') == 2
    assert "watchkeeper_gpu_workload_info{" not in page


def test_utilisation_by_process_is_read_every_fifth_time_and_after_a_change(fake: driver.FakeNvml) -> None:
    put_programs(fake, 0, p7=60, p8=20)
    with reader(fake) as child:
        assert child.ask(0, "fast")["programs"] == [[7, None, 60], [8, None, 20]]
        put_programs(fake, 0, p7=10, p8=70)
        percents = [child.ask(0, "fast")["programs"][0][2] for _ in range(5)]
        assert percents == [60, 60, 60, 60, 10]
        put_programs(fake, 0, p7=10, p8=70, p9=5)
        assert child.ask(0, "fast")["programs"][2] == [9, None, 5]
