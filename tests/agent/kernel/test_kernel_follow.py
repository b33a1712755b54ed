"""Kernel logs are followed as they are written: a stream of many nodes, and this node's /dev/kmsg."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.support.loopback import Heard, reply, serve
from tests.support.manual_clock import ManualClock, settle
from tests.support.waiting import until_async
from watchkeeper.agent.kernel.gpu_addresses import GpuAddresses, read_proc_inventory, read_simulator_inventory
from watchkeeper.agent.kernel.kernel_follow import (
    EventRateLimiter,
    KernelEvents,
    KernelRecord,
    follow_kmsg,
    follow_stream,
)
from watchkeeper.agent.kernel.kernel_position import KernelLogPosition, KernelLogSettings
from watchkeeper.errors import CollectError
from watchkeeper.kit.clock import ScaledClock
from watchkeeper.model.events import Event, EventKind
from watchkeeper.model.fleet import Gpu, Place

START = datetime(2026, 3, 1, tzinfo=UTC)
UUID = "GPU-509665ad-b600-ac93-3616-d754b23d636d"
XID = "NVRM: Xid (PCI:0000:5d:00): 79, pid=7, name=python, GPU has fallen off the bus."


def line(text: str, *, sequence: int = 1042, priority: int = 4, at: datetime = START) -> KernelRecord:
    return KernelRecord("n1", "boot-1", f"{priority},{sequence},532113221,-;{text}", at)


def events_of(*lines: KernelRecord, inventory: Sequence[Gpu] | CollectError = ()) -> list[Event]:
    async def ask(_: str) -> Sequence[Gpu]:
        if isinstance(inventory, CollectError):
            raise inventory
        return inventory

    async def story() -> list[Event]:
        reading = KernelEvents("sim", GpuAddresses(ask))
        return [event for line in lines if (event := await reading.build_event(line)) is not None]

    return asyncio.run(story())


def test_an_xid_becomes_an_event_at_the_gpu_with_a_stable_id() -> None:
    (event,) = events_of(line(XID), inventory=[Gpu(UUID, index=3, pci="0000:5d:00")])
    assert (event.id, event.kind, event.code) == ("sim/n1/boot-1/kmsg/1042", EventKind.XID, 79)
    assert event.place == Place("sim", node="n1", gpu=UUID)
    assert (event.at, event.text, event.fields) == (START, XID, {"pci": "0000:5d:00", "gpu": "3"})
    assert event.process is not None
    assert (event.process.pid, event.process.name) == (7, "python")


def test_the_driver_naming_the_gpu_is_enough_without_an_inventory() -> None:
    (event,) = events_of(line(f"NVRM: GPU at PCI:0000:5d:00: {UUID}"), line(XID), inventory=CollectError("away"))
    assert event.place.gpu == UUID


def test_a_gpu_that_the_driver_names_gets_its_index_from_the_inventory() -> None:
    named = line(f"NVRM: GPU at PCI:0000:5d:00: {UUID}")
    (event,) = events_of(named, line(XID), inventory=[Gpu(UUID, index=3, pci="0000:5d:00")])
    assert (event.place.gpu, event.fields["gpu"]) == (UUID, "3")


def test_the_drivers_uuid_takes_precedence_over_the_inventory() -> None:
    named = line(f"NVRM: GPU at PCI:0000:5d:00: {UUID}")
    (event,) = events_of(named, line(XID), inventory=[Gpu("GPU-before", index=3, pci="0000:5d:00")])
    assert (event.place.gpu, event.fields) == (UUID, {"pci": "0000:5d:00"})


@pytest.mark.parametrize(
    ("inventory", "why"),
    [
        ([], "the inventory of n1 has no GPU at 0000:5d:00"),
        (CollectError("away"), "the inventory could not be read: away"),
    ],
)
def test_an_event_of_an_unknown_gpu_is_at_the_node_with_a_reason(
    inventory: Sequence[Gpu] | CollectError, why: str
) -> None:
    (event,) = events_of(line(XID), inventory=inventory)
    assert event.place == Place("sim", node="n1")
    assert event.fields == {"pci": "0000:5d:00", "gpu_unknown_because": why}


def test_a_bridge_is_not_an_unknown_gpu() -> None:
    (event,) = events_of(line("pcieport 0000:00:03.0: PCIe Bus Error: severity=Corrected, type=Physical Layer"))
    assert (event.place.gpu, "gpu_unknown_because" in event.fields) == (None, False)


def test_a_line_of_user_space_is_not_an_event() -> None:
    assert events_of(line(XID, priority=12)) == []


def test_a_flood_is_rate_limited_and_counted_and_other_events_pass() -> None:
    flood = [line(XID, sequence=n, at=START + timedelta(seconds=n / 10)) for n in range(100)]
    other = line("Linux version 6.8 (x) y", sequence=100)
    late = line(XID, sequence=101, at=START + timedelta(seconds=61))
    passed = events_of(*flood, other, late)
    assert len(passed) == 20 + 1 + 1
    assert passed[-1].fields["alike_left_out"] == "80"


def test_the_return_of_each_of_many_file_servers_is_reported() -> None:
    """One that were held back would leave its server away for ever."""
    lines = [line(f"nfs: server filer-{n} OK", sequence=n, at=START + timedelta(seconds=n / 10)) for n in range(50)]
    assert len(events_of(*lines)) == 50


def test_the_return_of_a_lost_file_server_is_reported_despite_the_rate_limit() -> None:
    back = [line("nfs: server filer OK", sequence=n, at=START) for n in range(30)]
    lost = line("nfs: server filer not responding, still trying", sequence=40, at=START + timedelta(seconds=2))
    again = line("nfs: server filer OK", sequence=41, at=START + timedelta(seconds=3))
    assert [event.id.rpartition("/")[2] for event in events_of(*back, lost, again)][-2:] == ["40", "41"]


def test_a_clock_that_is_set_back_does_not_drop_events() -> None:
    gate, earlier = EventRateLimiter(per_minute=1), START - timedelta(hours=2)
    assert [gate.admit("x", START), gate.admit("x", START)] == [0, None]
    assert [gate.admit("x", earlier), gate.admit("x", earlier)] == [1, None]


def test_the_rate_limiter_drops_the_oldest_key_above_its_limit() -> None:
    gate = EventRateLimiter(per_minute=1)
    assert [gate.admit(n, START) for n in range(10_001)] == [0] * 10_001
    assert (gate.admit(10_000, START), gate.admit(0, START)) == (None, 0)


def stream_line(seq: int, *, boot: str = "b") -> bytes:
    at = "2026-03-01T00:00:00.000000Z"
    return json.dumps({"seq": seq, "node": "n1", "boot": boot, "record": f"6,{seq},1,-;x", "at": at}).encode() + b"\n"


def chunked(*pieces: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)


async def take(count: int, url: str) -> list[tuple[str, int]]:
    taken = []
    records = follow_stream(url, time=ScaledClock(speed=1000.0))
    async for record in records:
        taken.append((record.boot, record.seq))
        if len(taken) == count:
            break
    await records.aclose()
    return taken


def test_a_disconnected_stream_continues_after_the_last_record() -> None:
    def answer(request: Heard) -> bytes:
        after = int(request.path.partition("=")[2])
        numbers = [seq for seq in (1, 2, 3, 4) if after < seq <= after + 2]
        request.writer.write(chunked(b"\n", *map(stream_line, numbers), b"not json\n"))
        return b""

    async def story() -> None:
        async with serve(answer) as server:
            assert await take(4, f"{server.origin}/kmsg") == [("b", 1), ("b", 2), ("b", 3), ("b", 4)]
            assert [request.path for request in server.heard] == ["/kmsg?after=0", "/kmsg?after=1", "/kmsg?after=2"]

    asyncio.run(story())


def test_a_stream_that_is_another_log_is_read_from_its_start() -> None:
    answers = [chunked(*map(stream_line, (7, 8))), chunked(b"\n", b"\n"), chunked(stream_line(1, boot="other"))]

    def answer(request: Heard) -> bytes:
        request.writer.write(answers.pop(0))
        return b""

    async def story() -> None:
        async with serve(answer) as server:
            assert await take(3, f"{server.origin}/kmsg") == [("b", 7), ("b", 8), ("other", 1)]
            assert [request.path[-1] for request in server.heard] == ["0", "7", "0"]

    asyncio.run(story())


def test_the_simulators_inventory_has_normalised_addresses() -> None:
    gpus = [{"uuid": UUID, "index": 3, "pci": "00000000:5D:00.0", "model": "NVIDIA H200"}]

    async def story() -> None:
        async with serve(lambda _: reply(json.dumps({"node": "n1", "boot": "b", "gpus": gpus}))) as server:
            assert await read_simulator_inventory(server.origin, "n1") == [Gpu(UUID, 3, "0000:5d:00", "NVIDIA H200")]
            assert server.heard[0].path == "/nodes/n1/inventory"
        async with serve(lambda _: reply("[]")) as server:
            with pytest.raises(CollectError, match="is not an inventory"):
                await read_simulator_inventory(server.origin, "n1")

    asyncio.run(story())


def test_the_drivers_files_in_proc_are_an_inventory(tmp_path: Path) -> None:
    page = tmp_path / "driver/nvidia/gpus/0000:5d:00.0/information"
    page.parent.mkdir(parents=True)
    page.write_text(f"Model: \t NVIDIA H200\nGPU UUID: \t {UUID}\nBus Location: \t 0000:5d:00.0\n")
    assert asyncio.run(_ask(tmp_path)) == [Gpu(UUID, pci="0000:5d:00", model="NVIDIA H200")]
    assert asyncio.run(_ask(tmp_path / "none")) == []


async def _ask(proc: Path) -> Sequence[Gpu]:
    return read_proc_inventory(proc)


def kmsg(path: Path) -> KernelLogSettings:
    return KernelLogSettings("kmsg", "n1", "b", kmsg=path, needles=())


def follow(source: KernelLogSettings, clock: ManualClock, records: list[KernelRecord]) -> asyncio.Task[None]:
    async def collect() -> None:
        async for record in follow_kmsg(source, time=clock):
            records.append(record)  # noqa: PERF401  an endless stream never extends

    return asyncio.create_task(collect())


def test_records_of_a_pipe_arrive_as_they_are_written(tmp_path: Path) -> None:
    async def story() -> None:
        os.mkfifo(tmp_path / "kmsg")
        records: list[KernelRecord] = []
        position = KernelLogPosition(sequence=1)
        source = replace(kmsg(tmp_path / "kmsg"), position=position, monotonic=lambda: 100.0)
        task = follow(source, ManualClock(START), records)
        await settle()
        writer = os.open(tmp_path / "kmsg", os.O_WRONLY | os.O_NONBLOCK)
        os.write(writer, b"6,1,90000000,-;known already\n6,2,90000000,-;first\n SUBSYSTEM=pci\n6,3,95000")
        await until_async(lambda: len(records) == 1)
        os.write(writer, b"000,-;second\n")
        os.close(writer)
        await until_async(lambda: len(records) == 2)
        task.cancel()
        assert [(record.seq, record.at) for record in records] == [
            (2, START - timedelta(seconds=10)),
            (3, START - timedelta(seconds=5)),
        ]

    asyncio.run(story())


def test_a_regular_file_is_polled(tmp_path: Path) -> None:
    async def story() -> None:
        path, clock, records = tmp_path / "kmsg", ManualClock(START), list[KernelRecord]()
        path.write_text("6,1,0,-;one\n")
        task = follow(kmsg(path), clock, records)
        await settle()
        with path.open("a") as file:
            file.write("6,2,0,-;two\n")
        await clock.advance(1)
        assert [record.seq for record in records] == [1, 2]
        task.cancel()

    asyncio.run(story())


def test_a_kernel_log_that_cannot_be_opened_says_what_to_do(tmp_path: Path) -> None:
    async def story() -> None:
        with pytest.raises(CollectError, match=r"cannot be opened: No such file or directory\. Run as root"):
            await follow(kmsg(tmp_path / "none"), ManualClock(START), [])

    asyncio.run(story())
