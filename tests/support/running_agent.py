"""An agent at work on a machine that a test makes: its page, what its hub heard, and its kernel log."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tests.support.fake_nvml import driver
from tests.support.loopback import Heard, Loopback, reply, serve
from tests.support.waiting import until_async
from watchkeeper.agent import agent, agent_server, node_facts
from watchkeeper.kit.clock import ScaledClock
from watchkeeper.kit.own_metrics import Registry
from watchkeeper.kit.wire import loads
from watchkeeper.model.events import Event, EventKind

UUID = "GPU-509665ad-b600-ac93-3616-d754b23d636d"


def machine(root: Path) -> Path:
    """A /proc with one GPU, and a pipe in place of /dev/kmsg."""
    page = root / "proc/driver/nvidia/gpus/0000:5d:00.0/information"
    page.parent.mkdir(parents=True)
    page.write_text(f"Model: \t NVIDIA H200\nGPU UUID: \t {UUID}\nBus Location: \t 0000:5d:00.0\n")
    boot = root / "proc/sys/kernel/random/boot_id"
    boot.parent.mkdir(parents=True)
    boot.write_text("b00t\n")
    os.mkfifo(root / "kmsg")
    return root


def settings(root: Path, hub: str) -> agent.AgentSettings:
    return agent.AgentSettings(
        hub,
        root / "spool",
        cluster="sim",
        node="n1",
        kmsg=root / "kmsg",
        roots=node_facts.Roots(proc=root / "proc", sysfs=root / "sys", root=root),
        reads_gpus=False,
        metrics_file=root / "agent.prom",
    )


def events(requests: list[Heard]) -> list[Event]:
    pushes = [request.body for request in requests if request.path == "/api/events"]
    return [event for body in pushes for event in loads(tuple[Event, ...], body)]  # type: ignore[arg-type]


@dataclass
class Running:
    """An agent at work: its page, what the hub heard, and the pipe that is its kernel log."""

    hub: Loopback
    socket: Path
    pipe: int

    async def page(self) -> str:
        reader, writer = await asyncio.open_unix_connection(self.socket)
        writer.write(b"GET /metrics HTTP/1.1\r\nConnection: close\r\n\r\n")
        text = (await reader.read()).decode()
        writer.close()
        await writer.wait_closed()
        return text

    async def until_page(self, has: Callable[[str], bool]) -> str:
        async def page() -> str:
            return text if has(text := await self.page()) else ""

        return await until_async(page)

    def told(self, kind: EventKind) -> list[Event]:
        return [event for event in events(self.hub.heard) if event.kind is kind]


@asynccontextmanager
async def running(
    root: Path, fake: driver.FakeNvml, *, wall: ScaledClock | None = None, **changed: object
) -> AsyncIterator[Running]:
    stop = asyncio.Event()
    async with serve(lambda _: reply('{"ok":true}')) as hub:
        chosen = replace(
            settings(root, hub.origin),
            reads_gpus=True,
            interval_seconds=0.6,
            environment=fake.environment,
            listen=agent_server.ListenSettings(socket=root / "socket"),
            **changed,  # type: ignore[arg-type]
        )
        pipe = os.open(root / "kmsg", os.O_RDWR | os.O_NONBLOCK)
        task = asyncio.create_task(agent.run(chosen, wall or ScaledClock(), stop, registry=Registry()))
        try:
            await until_async(lambda: task.done() or (root / "socket").exists())
            yield Running(hub, root / "socket", pipe)
        finally:
            stop.set()
            await task
            os.close(pipe)
