"""`watchkeeper up`: simulator, hub and agent on this machine, with one address to open."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from watchkeeper.agent import agent
from watchkeeper.cli import processes
from watchkeeper.client.address import DEFAULT_URL
from watchkeeper.config import loading, settings
from watchkeeper.errors import StartRefused
from watchkeeper.kit import clock, logs, memory
from watchkeeper.model import trust

# A demo should move: five seconds between readings, and rules that follow them.
DEMO_INTERVAL = "5s"
# More than a simulated fleet has, jobs and pods included.
SERIES_PER_GPU = 100
READY_WITHIN_SECONDS = 30.0
SCENARIO_AFTER_SECONDS = 15
STOP_WITHIN_SECONDS = 3.0


@click.command("up")
@click.option("--gpus", type=click.IntRange(1, 200_000), default=512, help="Simulated GPUs, eight to a node.")
@click.option("--scenario", "scenarios", multiple=True, metavar="NAME", help="Start with this fault; repeatable.")
@click.option("--host", default="127.0.0.1", help="Address to listen on; beyond loopback needs --tokens.")
@click.option("--port", type=click.IntRange(0, 65_535), default=9480, help="Port of the console; 0 takes a free one.")
@click.option("--data", "directory", metavar="DIR", help="What is kept; by default in the user's state directory.")
@click.option("--tokens", metavar="FILE", help="Access tokens, one `name role token` a line.")
@click.option("--seed", type=int, default=1, help="The same seed gives the same fleet.")
@click.option("--speed", type=click.FloatRange(0.1, 100), default=1.0, help="Simulated seconds per second.")
@click.option(
    "--mode",
    type=click.Choice([mode.value for mode in trust.Mode]),
    default="observe",
    help="How far repairs may go.",
)
@click.option("--verbose", is_flag=True, help="Say more in the log.")
def command(gpus: int, scenarios: tuple[str, ...], seed: int, speed: float, verbose: bool, **hub: Any) -> None:
    """Everything on this machine: a simulated fleet, the hub that watches it, and the console.

    Stop it with Ctrl-C. While it runs, break something from a second terminal; `watchkeeper sim list`
    shows what can be broken:

    \b
    watchkeeper sim inject xid-79
    """
    from watchkeeper.sim import scenario

    logs.configure(level="debug" if verbose else "warning")
    known = scenario.load_all()
    for name in scenarios:
        scenario.find(known, name)
    world = ["--gpus", str(gpus), "--seed", str(seed), "--speed", str(speed)]
    world += [part for name in scenarios for part in ("--scenario", name)]
    # A fault strikes a fleet that has been seen healthy, so that everything about it has a name and a past.
    world += ["--scenario-after", str(round(SCENARIO_AFTER_SECONDS * max(1.0, speed)))]
    configured = demo_settings(**hub, gpus=gpus)
    memory.release_eagerly()
    memory.collect_garbage_rarely()
    asyncio.run(
        processes.run_until_stopped(lambda stop: run(configured, world, clock.ScaledClock(speed=speed), stop=stop))
    )


def demo_settings(
    host: str, port: int, *, directory: str | None, tokens: str | None, mode: str = "observe", gpus: int = 0
) -> settings.Settings:
    """Settings of a hub that watches the simulated fleet of this machine."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    overrides = {
        "hub.host": host,
        "hub.port": port,
        "hub.data": directory or str(Path(state) / "watchkeeper" / f"up-{port}"),
        "hub.tokens": tokens,
        "fleet.cluster": "sim",
        "fleet.scrape_interval": DEMO_INTERVAL,
        "rules.interval": DEMO_INTERVAL,
        # A demo shares a laptop: six minutes in memory, which is all that rules over five minutes read, a day on disk.
        "query.memory": "6m",
        "query.block": "3m",
        "query.cache_mebibytes": 16,
        "query.out_of_order": "30s",
        "query.retention": "1d",
        "query.max_series": max(settings.QuerySettings().max_series, SERIES_PER_GPU * gpus),
        "remediate.driver": "simulated",
        "remediate.mode": mode,
    }
    return loading.load(None, overrides)


async def run(configured: settings.Settings, world: list[str], time: clock.ScaledClock, *, stop: asyncio.Event) -> None:
    """Bind first, so that a taken port costs nothing; then the fleet, then those who watch it."""
    from watchkeeper.cli.hub import serving

    with serving.open_listener(configured) as door:
        async with simulator([*world, "--epoch", repr(time.epoch_seconds)]) as fleet:
            watcher = agent.AgentSettings(
                hub_url=door.local_url,
                spool_directory=Path(configured.hub.data) / "spool",
                cluster=configured.fleet.cluster,
                simulator_url=fleet.url,
                token=door.agent_token,
            )
            await serving.serve(
                serving.with_discovery(configured, f"{fleet.url}/sd"),
                door,
                time=time,
                stop=stop,
                simulator_url=fleet.url,
                beside=(lambda: agent.run(watcher, time, stop), lambda: fleet.outlive(stop)),
                say=greeting(door.url),
            )


def greeting(url: str) -> str:
    """Where it is, and what to type next; another address than the usual one must be named to every command."""
    hub = "" if url == DEFAULT_URL else f" --hub {url}"
    # As it was typed: after `make up` the command lies in .venv/bin, which is on nobody's path.
    program = sys.argv[0] if Path(sys.argv[0]).name == "watchkeeper" else "watchkeeper"
    return f"""Watchkeeper is at {url} with a simulated fleet. Stop with Ctrl-C.
Break something from a second terminal: {program} sim inject xid-79{hub}"""


@dataclass(frozen=True, slots=True)
class SimulatorProcess:
    """The simulated fleet's process and address."""

    child: asyncio.subprocess.Process
    url: str

    async def outlive(self, stop: asyncio.Event) -> None:
        """Wait for `stop`; StartRefused if the fleet ends before that."""
        ended, stopped = asyncio.create_task(self.child.wait()), asyncio.create_task(stop.wait())
        await asyncio.wait({ended, stopped}, return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        stopped.cancel()
        if not stop.is_set():
            raise StartRefused("the simulated fleet has ended by itself; its message is above")


@contextlib.asynccontextmanager
async def simulator(arguments: list[str]) -> AsyncIterator[SimulatorProcess]:
    """The simulator as a process of its own, from its first word until the block ends."""
    line = [sys.executable, "-m", "watchkeeper.cli.main", "sim", "run", "--port", "0", "--announce", *arguments]
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(*line, stdin=pipe, stdout=pipe, start_new_session=True)
    try:
        assert child.stdout is not None
        async with asyncio.timeout(READY_WITHIN_SECONDS):
            url = (await child.stdout.readline()).decode().strip()
        if not url:
            raise StartRefused("the simulated fleet did not start; its message is above")
        yield SimulatorProcess(child, url)
    except TimeoutError as error:
        raise StartRefused(f"the simulated fleet was not ready within {READY_WITHIN_SECONDS:g} s") from error
    finally:
        await _end(child)


async def _end(child: asyncio.subprocess.Process) -> None:
    if child.returncode is not None:
        return
    child.terminate()
    try:
        async with asyncio.timeout(STOP_WITHIN_SECONDS):
            await child.wait()
    except TimeoutError:
        child.kill()
        await child.wait()
