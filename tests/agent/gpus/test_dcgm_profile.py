"""Profiling metrics through dcgmi on GPUs without GPM: shown while dcgmi prints them, absent when it stops."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.agent.conftest import MakeFake
from tests.support.fake_nvml.driver import UUID
from tests.support.running_agent import machine as make_machine
from tests.support.running_agent import running
from tests.support.waiting import until_async
from watchkeeper.agent.gpus.dcgm_profile import MIN_ROUNDS_WITHOUT, DcgmProfile
from watchkeeper.agent.gpus.gpu_samples import GpuSample
from watchkeeper.readers import dcgmi
from watchkeeper.readers.nvml import choice
from watchkeeper.readers.nvml.families import Cadence

NAMES = ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_PROF_PCIE_TX_BYTES")
# DCGM's ids need not be NVML's order.
DISCOVERY = f"""2 GPUs found.
+--------+----------------------------------------------------------------------+
| GPU ID | Device Information                                                   |
+--------+----------------------------------------------------------------------+
| 0      | Name: NVIDIA A100-SXM4-80GB                                          |
|        | PCI Bus ID: 00000000:11:00.0                                         |
|        | Device UUID: {UUID(1)}                |
+--------+----------------------------------------------------------------------+
| 1      | Name: NVIDIA A100-SXM4-80GB                                          |
|        | PCI Bus ID: 00000000:10:00.0                                         |
|        | Device UUID: {UUID(0)}                |
+--------+----------------------------------------------------------------------+
0 NvSwitches found.
"""
HEADER = "#Entity   GRACT        SMACT        PCITX        \nID                                               \n"
FIRST = "GPU 1     N/A          N/A          N/A          \nGPU 0     N/A          N/A          N/A          \n"
NEXT = "GPU 1     0.984        0.930        1048576      \nGPU 0     0.000        N/A          7            \n"


def read(lines: str, fields: tuple[int, ...] = (1001, 1002, 1009)) -> list[tuple[int, dict[int, float]]]:
    monitor = dcgmi.DmonReader(fields)
    rows = [monitor.read(line) for line in lines.splitlines()]
    return [(row[0], dict(row[1])) for row in rows if row is not None]


def test_values_are_read_by_the_header_and_na_is_absent() -> None:
    rows = read(HEADER + FIRST + HEADER + NEXT)
    assert rows == [(1, {}), (0, {}), (1, {1001: 0.984, 1002: 0.93, 1009: 1048576.0}), (0, {1001: 0.0, 1009: 7.0})]
    turned = HEADER.replace("GRACT", "X").replace("SMACT", "GRACT").replace("X    ", "SMACT")
    assert read(turned + "GPU 0   0.1  0.2  3\n") == [(0, {1002: 0.1, 1001: 0.2, 1009: 3.0})]


@pytest.mark.parametrize(
    "lines",
    [
        "GPU 0     0.5  0.5  1\n",
        "#Entity   GRACT   SMACT\nID\nGPU 0     0.5  0.5\n",
        HEADER + "GPU 0     0.5  0.5\n",
        HEADER + "GPU-I 3   0.5  0.5  1\n",
        "Error: Unable to connect to host engine. Host engine connection invalid/disconnected.\n",
    ],
)
def test_output_in_another_format_has_no_values(lines: str) -> None:
    assert read(lines) == []


def test_dcgms_gpu_ids_are_mapped_to_uuids() -> None:
    assert dcgmi.read_discovery(DISCOVERY.splitlines()) == {0: UUID(1), 1: UUID(0)}
    assert dcgmi.read_discovery(["Error: unable to establish a connection"]) == {}


def install_dcgmi(root: Path, dmon: str) -> dict[str, str]:
    program = root / "bin/dcgmi"
    program.parent.mkdir(exist_ok=True)
    (root / "discovery").write_text(DISCOVERY)
    program.write_text(
        f'#!/bin/sh\ncd "{root}"\necho "$@" >> asked\nif [ $1 = discovery ]; then cat discovery; exit; fi\n{dmon}\n'
    )
    program.chmod(0o755)
    return {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}


def profile_of(environment: dict[str, str]) -> tuple[DcgmProfile, GpuSample]:
    """A profile that has found a GPU without GPM."""
    families = [choice.load_dcgm_families()[name][0] for name in NAMES]
    profile = DcgmProfile(families, 1.0, environment)
    gpu = GpuSample(0, {"uuid": UUID(0)}, {Cadence.FAST: 1.0}, {})
    for _ in range(MIN_ROUNDS_WITHOUT):
        profile.add_metrics(gpu)
    return profile, gpu


def test_dcgms_values_fill_gaps_of_nvml_until_dcgmi_exits(tmp_path: Path) -> None:
    profile, gpu = profile_of(install_dcgmi(tmp_path, "cat start; cat rest"))
    os.mkfifo(tmp_path / "rest")
    (tmp_path / "start").write_text(HEADER + FIRST + NEXT)

    async def story() -> None:
        task = asyncio.create_task(profile.run_if_needed(lambda: False))
        await until_async(lambda: bool(profile.add_metrics(gpu).values))
        gpu_with_metrics = profile.add_metrics(gpu)
        assert dict(gpu_with_metrics.values) == {NAMES[0]: 0.984, NAMES[1]: 0.93, NAMES[2]: 1048576}
        assert isinstance(gpu_with_metrics.values[NAMES[2]], int)
        with_gpm = replace(gpu, read_at={Cadence.PROFILE: 5.0})
        assert profile.add_metrics(with_gpm) is with_gpm
        (tmp_path / "rest").write_text("")
        await task
        assert profile.add_metrics(gpu) is gpu

    asyncio.run(story())
    assert (tmp_path / "asked").read_text().splitlines()[-1] == "dmon -e 1001,1002,1009 -d 1000"


def test_a_failing_dcgmi_is_logged_once_and_retried_with_backoff(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    profile, _ = profile_of(install_dcgmi(tmp_path, "echo Error: Profiling is not supported >&2; exit 1"))
    now = 0.0
    profile.monotonic = lambda: now
    starts = []
    for second in range(60):
        now = float(second)
        asyncio.run(profile.run_if_needed(lambda: False))
        starts.append((tmp_path / "asked").read_text().count("dmon"))
    assert [starts.index(count) for count in range(1, starts[-1] + 1)] == [0, 5, 15, 35]
    assert len([record for record in caplog.records if record.message == "dcgmi profiling failed"]) == 1


def test_nothing_is_started_while_profiling_is_paused_or_every_gpu_has_gpm(tmp_path: Path) -> None:
    environment = install_dcgmi(tmp_path, "exit 1")
    profile, gpu = profile_of(environment)
    asyncio.run(profile.run_if_needed(lambda: True))
    profile.add_metrics(replace(gpu, read_at={Cadence.PROFILE: 5.0}))
    asyncio.run(profile.run_if_needed(lambda: False))
    assert not (tmp_path / "asked").exists()


@pytest.mark.slow
def test_a_scrape_has_dcgms_values_for_a_gpu_without_gpm(tmp_path: Path, machine: MakeFake) -> None:
    fake = machine(2)
    fake.tell("*", gpm=0)
    counters = tmp_path / "counters.csv"
    counters.write_text("".join(f"{name}, gauge, x.\n" for name in ("DCGM_FI_DEV_GPU_TEMP", *NAMES)))
    environment = install_dcgmi(tmp_path, "cat start; while :; do cat next; sleep 0.2; done")
    (tmp_path / "start").write_text(HEADER + FIRST)
    (tmp_path / "next").write_text(NEXT)
    fake.environment["PATH"] = environment["PATH"]

    async def story() -> None:
        async with running(make_machine(tmp_path), fake, counters=counters) as node:
            page = await node.until_page(lambda text: "DCGM_FI_PROF_SM_ACTIVE{" in text)
            assert page.count("\nDCGM_FI_PROF_SM_ACTIVE{") == 1, "the other GPU's is N/A"
            assert f'DCGM_FI_PROF_PCIE_TX_BYTES{{gpu="0",UUID="{UUID(0)}"' in page

    asyncio.run(story())
