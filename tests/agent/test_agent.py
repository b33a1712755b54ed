"""The whole agent: a kernel line becomes an event at the hub."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.loopback import reply, serve
from tests.support.running_agent import UUID, events, machine, settings
from tests.support.waiting import until_async
from watchkeeper.agent import agent, agent_server
from watchkeeper.errors import SettingsError, StartRefused
from watchkeeper.kit.clock import ScaledClock
from watchkeeper.kit.own_metrics import Registry
from watchkeeper.model.fleet import Place

XID = "4,{},1000000,-;NVRM: Xid (PCI:0000:5d:00): 79, pid=7, name=python, GPU has fallen off the bus.\n"


async def run_until(root: Path, hub: str, lines: list[str], *, done: Callable[[Registry], bool]) -> Registry:
    stop, registry = asyncio.Event(), Registry()
    pipe = os.open(root / "kmsg", os.O_RDWR | os.O_NONBLOCK)
    os.write(pipe, "".join(lines).encode())
    running = asyncio.create_task(agent.run(settings(root, hub), ScaledClock(), stop, registry=registry))
    try:
        await until_async(lambda: running.done() or (bool(registry.metrics) and done(registry)))
    finally:
        stop.set()
        await running
        os.close(pipe)
    return registry


def pushed(count: int) -> Callable[[Registry], bool]:
    return lambda registry: registry.metrics["watchkeeper_agent_events_pushed_total"].get() == count


def test_an_xid_in_the_kernel_log_arrives_at_the_hub(tmp_path: Path) -> None:
    async def story() -> None:
        async with serve(lambda _: reply('{"ok":true}')) as server:
            registry = await run_until(machine(tmp_path), server.origin, [XID.format(5)], done=pushed(1))
            (event,) = events(server.heard)
            assert (event.id, event.code) == ("sim/n1/b00t/kmsg/5", 79)
            assert event.place == Place("sim", node="n1", gpu=UUID)
            assert registry.metrics["watchkeeper_agent_events_total"].get(kind="xid") == 1
            assert "watchkeeper_agent_spool_bytes" in (tmp_path / "agent.prom").read_text()

    asyncio.run(story())


def test_iommu_faults_and_lost_file_servers_become_events_of_gpu_and_node(tmp_path: Path) -> None:
    async def story() -> None:
        lines = [
            "4,5,1000000,-;nvidia 0000:5d:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x1 address=0x2]\n",
            "5,6,2000000,-;nfs: server filer-1 not responding, still trying\n",
            "14,7,3000000,-;nfs: server filer-2 not responding, still trying\n",
        ]
        async with serve(lambda _: reply('{"ok":true}')) as server:
            await run_until(machine(tmp_path), server.origin, lines, done=pushed(2))
            refused, away = events(server.heard)
            assert (refused.kind, refused.place) == ("iommu_fault", Place("sim", node="n1", gpu=UUID))
            assert (away.kind, away.place, away.fields["server"]) == (
                "storage_lost",
                Place("sim", node="n1"),
                "filer-1",
            )

    asyncio.run(story())


def test_events_wait_for_an_unreachable_hub_and_are_sent_once_by_the_next_agent(tmp_path: Path) -> None:
    async def story() -> None:
        root, silent = machine(tmp_path), "http://127.0.0.1:9"
        read = "watchkeeper_agent_events_total"
        await run_until(root, silent, [XID.format(5)], done=lambda own: own.metrics[read].get(kind="xid") == 1)
        async with serve(lambda _: reply('{"ok":true}')) as server:
            await run_until(root, server.origin, [XID.format(5), XID.format(6)], done=pushed(2))
            assert [event.id[-6:] for event in events(server.heard)] == ["kmsg/5", "kmsg/6"]

    asyncio.run(story())


def test_an_agent_without_access_to_the_kernel_log_logs_it_and_continues(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = machine(tmp_path)
    (root / "kmsg").unlink()

    async def story() -> None:
        stop, registry = asyncio.Event(), Registry()
        listening = replace(settings(root, "http://127.0.0.1:9"), listen=agent_server.ListenSettings(port=0))
        running = asyncio.create_task(agent.run(listening, ScaledClock(), stop, registry=registry))
        await until_async(lambda: "kernel log unreadable" in caplog.text)
        assert registry.metrics["watchkeeper_agent_kernel_log_readable"].values == {(): 0}
        assert not running.done()
        stop.set()
        await running

    asyncio.run(story())


def test_an_agent_without_a_usable_spool_does_not_start(tmp_path: Path) -> None:
    root = machine(tmp_path)
    (root / "spool").write_text("a file stands where the spool should be")
    with pytest.raises(StartRefused, match="the spool cannot be used"):
        asyncio.run(agent.run(settings(root, "http://127.0.0.1:9"), ScaledClock(), asyncio.Event()))


@pytest.mark.parametrize("hub", ["hub:9480", "ftp://hub", "http://", ""])
def test_an_invalid_hub_url_is_refused_at_the_start(tmp_path: Path, hub: str) -> None:
    with pytest.raises(SettingsError, match="is not an http or https URL"):
        asyncio.run(agent.run(settings(machine(tmp_path), hub), ScaledClock(), asyncio.Event()))


def test_a_kernel_log_that_fails_does_not_stop_the_agent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = machine(tmp_path)
    (root / "kmsg").unlink()
    # Reading a folder fails with an error that is not one of opening.
    (root / "kmsg").mkdir()

    async def story() -> None:
        stop, registry = asyncio.Event(), Registry()
        running = asyncio.create_task(
            agent.run(settings(root, "http://127.0.0.1:9"), ScaledClock(), stop, registry=registry)
        )
        await until_async(lambda: "kernel log unreadable" in caplog.text)
        assert not running.done()
        stop.set()
        await running

    asyncio.run(story())
