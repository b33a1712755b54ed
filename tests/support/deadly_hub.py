"""A hub over a simulated fleet that dies by kill -9 before or after the next call of a kind, for tests of restarts.

`python -m tests.support.deadly_hub SIMULATOR DATA PORT SPEED EPOCH DEATH [free]`, where DEATH is `never`, or such as
`before:drain`; `free` lifts every budget, for measurements.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

from watchkeeper.agent import agent
from watchkeeper.cli import processes
from watchkeeper.cli.hub import serving, up
from watchkeeper.config import settings as config
from watchkeeper.hub import backends
from watchkeeper.kit import clock
from watchkeeper.model.actions import Action
from watchkeeper.model.trust import Mode
from watchkeeper.remediate.driver import ActionOutcome, Driver
from watchkeeper.remediate.drivers.simulated import SimulatedDriver


class Deadly(SimulatedDriver):
    when, kind = "never", ""

    def perform(self, action: Action) -> ActionOutcome:
        self.die("before", action)
        done = super().perform(action)
        self.die("after", action)
        return done

    def die(self, when: str, action: Action) -> None:
        if (when, action.kind) == (Deadly.when, Deadly.kind):
            os.kill(os.getpid(), signal.SIGKILL)


FREE = {
    "pool_percent": 100,
    "fleet_percent": 100,
    "one_per_domain": (),
    "starts": 10_000,
    "breaker_nodes": 10_000,
    "attempts": 10_000,
}


def main(simulator: str, data: str, port: str, speed: str, epoch: str, death: str, budget: str = "") -> None:
    Deadly.when, _, Deadly.kind = death.partition(":")
    configured = up.demo_settings("127.0.0.1", int(port), directory=data, tokens=None)
    chosen = replace(configured.remediate, mode=Mode.ACT, xid_quiet="30s", **(FREE if budget == "free" else {}))
    time = clock.ScaledClock(speed=float(speed), epoch_seconds=float(epoch))
    run(replace(configured, remediate=chosen), Deadly(simulator), time=time)


def run(configured: config.Settings, cluster: SimulatedDriver, *, time: clock.Clock) -> None:
    """A hub with this driver, and an agent that tells it of the driver's simulated fleet, until they are stopped."""

    def chosen(*_: object, **__: object) -> Driver:
        return cluster

    backends.build_driver = chosen
    watcher = agent.AgentSettings(
        hub_url=f"http://127.0.0.1:{configured.hub.port}",
        spool_directory=Path(configured.hub.data) / "spool",
        cluster=configured.fleet.cluster,
        simulator_url=cluster.url,
    )

    async def serve(stop: asyncio.Event) -> None:
        with serving.open_listener(configured) as door:
            await serving.serve(
                serving.add_discovery_url(configured, f"{cluster.url}/sd"),
                door,
                time=time,
                stop=stop,
                simulator_url=cluster.url,
                companions=(lambda: agent.run(watcher, time, stop),),
                greeting="up",
            )

    asyncio.run(processes.run_until_stopped(serve))


if __name__ == "__main__":
    main(*sys.argv[1:])
