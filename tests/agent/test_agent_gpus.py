"""The whole agent on a node with fake GPUs: its page, its events and its registration."""

from __future__ import annotations

import asyncio
import os
import select
import subprocess
import time
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests import servers
from tests.agent.conftest import MakeFake
from tests.support.fake_nvml import driver
from tests.support.fake_nvml.driver import UUID
from tests.support.running_agent import machine, running
from tests.support.waiting import until_async
from watchkeeper.agent import agent
from watchkeeper.agent.gpus import driver_events
from watchkeeper.cli.main import watchkeeper
from watchkeeper.kit.clock import ScaledClock
from watchkeeper.kit.wire import loads
from watchkeeper.model.events import EventKind
from watchkeeper.model.fleet import NodeRegistration

XID = "4,{},{},-;NVRM: Xid (PCI:0000:10:00): 31, pid=7, name=python, MMU Fault\n"
BURST_BYTES = 100 * 1024 * 1024


@pytest.fixture
def machine_of(library: Path, tmp_path: Path) -> MakeFake:
    return lambda gpus: driver.FakeNvml(library, tmp_path / "control", gpus=gpus)


@pytest.mark.slow
def test_a_scrape_shows_gpus_host_and_the_agent_itself(tmp_path: Path, machine_of: MakeFake) -> None:
    async def story() -> None:
        async with running(machine(tmp_path), machine_of(2)) as node:
            page = await node.until_page(lambda text: text.count("\nDCGM_FI_DEV_GPU_TEMP{") == 2 and "_host_" in text)
            assert 'watchkeeper_host_disk_bytes{path="/"' not in page, "this /proc has no mounts"
            assert "watchkeeper_agent_kernel_log_readable 1" in page
            await until_async(
                lambda: any(request.path == "/api/nodes" and b'"GPU-' in request.body for request in node.hub.heard)
            )
            body = [request.body for request in node.hub.heard if request.path == "/api/nodes"][-1]
            registration = loads(NodeRegistration, body)
            assert (registration.node, len(registration.gpus), registration.metrics_port) == ("n1", 2, None)

    asyncio.run(story())


@pytest.mark.slow
@pytest.mark.servers
def test_promtool_finds_no_problem_in_the_metrics_of_the_agent(tmp_path: Path, machine_of: MakeFake) -> None:
    promtool = str(servers.require("promtool"))

    async def story() -> None:
        async with running(machine(tmp_path), machine_of(2)) as node:
            page = await node.until_page(lambda text: "\nDCGM_FI_DEV_GPU_TEMP{" in text and "_host_" in text)
            # Deliberately only our own: DCGM's names are upper case, which promtool does not like.
            lines = page.partition("\r\n\r\n")[2].splitlines(keepends=True)
            own = "".join(line for line in lines if "DCGM_FI_" not in line)
            checked = subprocess.run(
                [promtool, "check", "metrics"], input=own, capture_output=True, text=True, timeout=60, check=False
            )
            assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")

    asyncio.run(story())


def test_values_of_a_host_that_stopped_answering_are_not_repeated(
    tmp_path: Path, machine_of: MakeFake, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with running(machine(tmp_path), machine_of(1)) as node:
            await node.until_page(lambda text: "\nwatchkeeper_host_" in text)
            monkeypatch.setattr(agent, "HOST_STALE_SECONDS", 0.0)
            page = await node.until_page(lambda text: "DCGM_FI_DEV_GPU_TEMP{" in text)
            assert "\nwatchkeeper_host_" not in page

    asyncio.run(story())


@pytest.mark.slow
def test_the_two_reports_about_one_xid_become_one_event(
    tmp_path: Path, machine_of: MakeFake, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine the second may come later than it does in life.
    monkeypatch.setattr(driver_events, "MERGE_SECONDS", 6.0)
    # The driver's pages in /proc do not list this GPU: what was read of it says where it sits.
    fake, root = machine_of(1), machine(tmp_path)

    async def story() -> None:
        async with running(root, fake) as node:
            await node.until_page(lambda text: "DCGM_FI_DEV_XID_ERRORS{" in text)
            fake.raise_event(0, 8, 31)
            await node.until_page(lambda text: 'driver_events_total{kind="xid"} 1' in text)
            os.write(node.pipe, XID.format(9, int(time.monotonic() * 1e6)).encode())
            await until_async(lambda: bool(node.told(EventKind.XID)))
            fake.raise_event(0, 8, 48)
            await until_async(lambda: len(node.told(EventKind.XID)) == 2)
            first, second = node.told(EventKind.XID)
            assert (first.code, first.fields["also_reported_by"], first.fields["policy"]) == (31, "nvml", "xid")
            assert first.place.gpu == UUID(0)
            assert (second.code, second.fields["source"], second.place.gpu) == (48, "nvml", UUID(0))

    asyncio.run(story())


@pytest.mark.slow
def test_a_driver_fault_is_reported_with_its_cause(tmp_path: Path, machine_of: MakeFake) -> None:
    fake = machine_of(2)

    async def story() -> None:
        async with running(machine(tmp_path), fake) as node:
            await node.until_page(lambda text: text.count("\nDCGM_FI_DEV_GPU_TEMP{") == 2)
            fake.tell(1, all=driver.GPU_IS_LOST)
            await until_async(lambda: bool(node.told(EventKind.DRIVER_FAULT)))
            (event,) = node.told(EventKind.DRIVER_FAULT)
            assert (event.fields["cause"], event.code, event.place.gpu) == ("gpu_fell_off_bus", 15, UUID(1))

    asyncio.run(story())


@pytest.mark.slow
def test_a_violated_policy_is_reported_with_both_numbers(tmp_path: Path, machine_of: MakeFake) -> None:
    fake = machine_of(1)
    # Six degrees beyond slowdown, which lies two beyond the end of the margin.
    fake.tell(0, MarginTemperature=-8)

    async def story() -> None:
        async with running(machine(tmp_path), fake) as node:
            await until_async(lambda: bool(node.told(EventKind.POLICY_VIOLATION)))
            event = node.told(EventKind.POLICY_VIOLATION)[0]
            assert (event.fields["policy"], event.fields["cause"], event.code) == ("thermal", "thermal_throttle", 8)
            assert (event.fields["value"], event.fields["limit"]) == ("-6", "0")

    asyncio.run(story())


@pytest.mark.slow
def test_a_limit_that_a_person_sets_applies_to_the_running_agent(tmp_path: Path, machine_of: MakeFake) -> None:
    fake = machine_of(1)
    fake.tell(0, Temperature=61)

    async def story() -> None:
        async with running(machine(tmp_path), fake) as node:
            await node.until_page(lambda text: "\nDCGM_FI_DEV_GPU_TEMP{" in text)
            assert not node.told(EventKind.POLICY_VIOLATION)
            spool = next(tmp_path.rglob("spool"))
            CliRunner().invoke(watchkeeper, ["agent", "policy", "set", "thermal", "60", "--spool", str(spool)])
            await until_async(lambda: bool(node.told(EventKind.POLICY_VIOLATION)))
            event = node.told(EventKind.POLICY_VIOLATION)[0]
            assert (event.fields["policy"], event.fields["value"], event.fields["limit"]) == ("thermal", "61", "60")

    asyncio.run(story())


def test_unknown_fields_of_a_counters_file_are_logged_and_ignored(
    tmp_path: Path, machine_of: MakeFake, caplog: pytest.LogCaptureFixture
) -> None:
    counters = tmp_path / "counters.csv"
    counters.write_text("DCGM_FI_DEV_GPU_TEMP, gauge, Temperature.\nDCGM_FI_DEV_NOT_A_FIELD, gauge, What.\nbroken\n")

    async def story() -> None:
        async with running(machine(tmp_path), machine_of(1), counters=counters) as node:
            page = await node.until_page(lambda text: "DCGM_FI_DEV_GPU_TEMP{" in text)
            assert "DCGM_FI_DEV_POWER_USAGE" not in page

    asyncio.run(story())
    problems = [record.fields["problem"] for record in caplog.records if record.message == "counter ignored"]
    assert [text.partition(":")[0] for text in problems] == ["line 3", "line 2"]


class JumpingClock(ScaledClock):
    """A wall clock that is set while the agent runs."""

    jump = timedelta()

    def now(self) -> datetime:
        return super().now() + self.jump


@pytest.mark.slow
@pytest.mark.parametrize("days", [-1, 1])
def test_a_clock_that_jumps_by_a_day_hides_no_value_and_no_fault(
    tmp_path: Path, machine_of: MakeFake, days: int
) -> None:
    fake, wall = machine_of(2), JumpingClock()

    async def story() -> None:
        async with running(machine(tmp_path), fake, wall=wall) as node:
            await node.until_page(lambda text: text.count("\nDCGM_FI_DEV_GPU_TEMP{") == 2)
            wall.jump = timedelta(days=days)
            fake.tell(0, Temperature=61)
            await node.until_page(lambda text: "} 61\n" in text)
            fake.tell(1, all=driver.GPU_IS_LOST)
            await until_async(lambda: bool(node.told(EventKind.DRIVER_FAULT)))
            assert abs(node.told(EventKind.DRIVER_FAULT)[0].at - wall.now()) < timedelta(minutes=1)

    asyncio.run(story())


@pytest.mark.alone
@pytest.mark.slow
def test_metrics_are_served_during_a_burst_of_100_mb_in_the_kernel_log(tmp_path: Path, machine_of: MakeFake) -> None:
    block = "".join(f"6,{n},1000000,-;usb 1-1: new high-speed USB device number {n}\n" for n in range(1000)).encode()

    async def story() -> None:
        async with running(machine(tmp_path), machine_of(1)) as node:
            await node.until_page(lambda text: "DCGM_FI_DEV_GPU_TEMP{" in text)
            written = asyncio.create_task(asyncio.to_thread(pour, node.pipe, block))
            pages, slowest = 0, 0.0
            while not written.done():
                started = time.monotonic()
                assert "DCGM_FI_DEV_GPU_TEMP{" in await node.page()
                pages, slowest = pages + 1, max(slowest, time.monotonic() - started)
            assert await written >= BURST_BYTES
            assert (slowest < 1.0, pages > 3) == (True, True), (slowest, pages)

    asyncio.run(story())


def pour(pipe: int, block: bytes) -> int:
    """Write until it is enough; a pipe that no process reads must not block the test forever."""
    until, written = time.monotonic() + 50, 0
    while written < BURST_BYTES and time.monotonic() < until:
        try:
            written += os.write(pipe, block)
        except BlockingIOError:
            select.select([], [pipe], [], 1.0)
    return written
