"""One of several hubs on one PostgreSQL, over a simulated fleet, with an agent that tells this hub alone.

`python -m tests.product.one_of_several SIMULATOR DATA PORT SPEED EPOCH URL_FILE LEASE DEATH`, where DEATH is `never`,
such as `before:drain` for kill -9, or such as `stop:reboot` to be stopped in the middle of that call. What the
simulator answers to each call is written into the file `calls` beside DATA.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

from tests.remediate import deadly_hub
from watchkeeper import agent, hub
from watchkeeper.cli import hub as hub_command
from watchkeeper.cli import processes, up
from watchkeeper.config import settings
from watchkeeper.kit import clock, logs
from watchkeeper.model.actions import Action, Mode
from watchkeeper.remediate.driver import Driver, Performed


class Stopping(deadly_hub.Deadly):
    has_stopped = False
    calls = Path("calls")

    def perform(self, action: Action) -> Performed:
        if (self.when, action.kind) == ("stop", self.kind) and not Stopping.has_stopped:
            Stopping.has_stopped = True
            os.kill(os.getpid(), signal.SIGSTOP)
        done = super().perform(action)
        with Stopping.calls.open("a") as file:
            file.write(f"{os.getpid()} {done.text}\n")
        return done


def main(simulator: str, data: str, port: str, speed: str, epoch: str, url_file: str, lease: str, death: str) -> None:
    logs.start(as_json=False)
    Stopping.calls = Path(data).parent / "calls"
    deadly_hub.Deadly.when, _, deadly_hub.Deadly.kind = death.partition(":")

    def stopping(*_: object, **__: object) -> Driver:
        return Stopping(simulator)

    hub.choose_driver = stopping
    time = clock.ScaledClock(speed=float(speed), epoch_seconds=float(epoch))
    configured = up.demo_settings("127.0.0.1", int(port), directory=data, tokens=None)
    configured = replace(
        configured,
        remediate=replace(configured.remediate, mode=Mode.ACT, xid_quiet="30s"),
        journal=settings.Journal(url_file=url_file, lease=lease),
    )
    watcher = agent.AgentSettings(
        hub_url=f"http://127.0.0.1:{port}",
        spool_directory=Path(data) / "spool",
        cluster=configured.fleet.cluster,
        simulator_url=simulator,
    )

    async def run(stop: asyncio.Event) -> None:
        with hub_command.opened(configured) as door:
            await hub_command.serve(
                hub_command.with_discovery(configured, f"{simulator}/sd"),
                door,
                time=time,
                stop=stop,
                simulator_url=simulator,
                beside=(lambda: agent.run(watcher, time, stop),),
                say="up",
            )

    asyncio.run(processes.until_stopped(run))


if __name__ == "__main__":
    main(*sys.argv[1:])
