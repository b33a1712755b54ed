"""`watchkeeper up`: run simulator, hub and agent on this machine, with one URL to open."""

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
from watchkeeper.cli import options, processes
from watchkeeper.client.address import DEFAULT_URL
from watchkeeper.config import loading, settings
from watchkeeper.errors import StartRefused
from watchkeeper.kit import clock, logs, memory
from watchkeeper.model import trust

# Short, so that the demo shows changes quickly.
DEMO_INTERVAL = "5s"
# More than a simulated fleet has, including jobs and pods.
SERIES_PER_GPU = 100
READY_WITHIN_SECONDS = 30.0
SCENARIO_AFTER_SECONDS = 15
STOP_WITHIN_SECONDS = 3.0
MODE_HELP = "Auto-repair: observe and suggest run nothing, ask needs approval, act runs repairs."


@click.command("up")
@options.gpu_count
@click.option("--scenario", "scenarios", multiple=True, metavar="NAME", help="Inject this fault; repeatable.")
@click.option("--host", default="127.0.0.1", help="Address to listen on; beyond loopback it needs --tokens.")
@click.option("--port", type=click.IntRange(0, 65_535), default=9480, help="Port of the console; 0 is any free port.")
@click.option("--data", "directory", metavar="DIR", help="Data directory.  [default: in the user's state directory]")
@click.option("--tokens", metavar="FILE", help="File of access tokens, one `name role token` per line.")
@options.seed
@click.option("--speed", type=click.FloatRange(0.1, 100), default=1.0, help="Simulated seconds per second.")
@click.option("--mode", type=click.Choice([mode.value for mode in trust.Mode]), default="observe", help=MODE_HELP)
@click.option("--verbose", is_flag=True, help="Log at level debug.")
def command(gpus: int, scenarios: tuple[str, ...], seed: int, speed: float, verbose: bool, **hub: Any) -> None:
    """Start a simulated fleet, a hub and the console on this machine.

    Stop with Ctrl-C. While it runs, inject a fault from a second terminal; `watchkeeper sim list` lists the faults:

    \b
    watchkeeper sim inject xid-79
    """
    from watchkeeper.sim import scenario

    logs.configure(level="debug" if verbose else "warning")
    known_scenarios = scenario.load_scenarios()
    for name in scenarios:
        scenario.find_scenario(known_scenarios, name)
    simulator_options = ["--gpus", str(gpus), "--seed", str(seed), "--speed", str(speed)]
    simulator_options += [part for name in scenarios for part in ("--scenario", name)]
    # Faults begin after the fleet was healthy for a while, so that series and holders exist.
    simulator_options += ["--scenario-after", str(round(SCENARIO_AFTER_SECONDS * max(1.0, speed)))]
    configured = demo_settings(**hub, gpus=gpus)
    memory.release_eagerly()
    memory.collect_garbage_rarely()
    time = clock.ScaledClock(speed=speed)
    asyncio.run(processes.run_until_stopped(lambda stop: run(configured, simulator_options, time, stop=stop)))


def demo_settings(
    host: str, port: int, *, directory: str | None, tokens: str | None, mode: str = "observe", gpus: int = 0
) -> settings.Settings:
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    overrides = {
        "hub.host": host,
        "hub.port": port,
        "hub.data": directory or str(Path(state) / "watchkeeper" / f"up-{port}"),
        "hub.tokens": tokens,
        "fleet.cluster": "sim",
        "fleet.scrape_interval": DEMO_INTERVAL,
        "rules.interval": DEMO_INTERVAL,
        # For a laptop: six minutes in memory, enough for rules over five minutes, and one day on disk.
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


async def run(
    configured: settings.Settings, simulator_options: list[str], time: clock.ScaledClock, *, stop: asyncio.Event
) -> None:
    """Take the port first, so that a used port fails at once; then start the fleet, the hub and the agent."""
    from watchkeeper.cli.hub import serving

    with serving.open_listener(configured) as listener:
        async with run_simulator([*simulator_options, "--epoch", repr(time.epoch_seconds)]) as simulator:
            agent_settings = agent.AgentSettings(
                hub_url=listener.local_url,
                spool_directory=Path(configured.hub.data) / "spool",
                cluster=configured.fleet.cluster,
                simulator_url=simulator.url,
                token=listener.agent_token,
            )
            await serving.serve(
                serving.add_discovery_url(configured, f"{simulator.url}/sd"),
                listener,
                time=time,
                stop=stop,
                simulator_url=simulator.url,
                companions=(lambda: agent.run(agent_settings, time, stop), lambda: simulator.wait_for_stop(stop)),
                greeting=format_greeting(listener.url),
            )


def format_greeting(url: str) -> str:
    """The URL and a first command; the command names the hub if it is not at the default URL."""
    hub_option = "" if url == DEFAULT_URL else f" --hub {url}"
    # As it was typed: after `make up` the command is in .venv/bin, which is not on PATH.
    program = sys.argv[0] if Path(sys.argv[0]).name == "watchkeeper" else "watchkeeper"
    return f"""Watchkeeper is running at {url} with a simulated fleet. Stop with Ctrl-C.
Inject a fault from a second terminal: {program} sim inject xid-79{hub_option}"""


@dataclass(frozen=True, slots=True)
class SimulatorProcess:
    child: asyncio.subprocess.Process
    url: str

    async def wait_for_stop(self, stop: asyncio.Event) -> None:
        """Wait for `stop`; raise StartRefused if the simulator exits first."""
        ended, stopped = asyncio.create_task(self.child.wait()), asyncio.create_task(stop.wait())
        await asyncio.wait({ended, stopped}, return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        stopped.cancel()
        if not stop.is_set():
            raise StartRefused("the simulated fleet exited; its error is above")


@contextlib.asynccontextmanager
async def run_simulator(arguments: list[str]) -> AsyncIterator[SimulatorProcess]:
    """Run the simulator as a child process; enter the block when it serves, and stop it at the end."""
    line = [sys.executable, "-m", "watchkeeper.cli.main", "sim", "run", "--port", "0", "--announce", *arguments]
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(*line, stdin=pipe, stdout=pipe, start_new_session=True)
    try:
        assert child.stdout is not None
        async with asyncio.timeout(READY_WITHIN_SECONDS):
            url = (await child.stdout.readline()).decode().strip()
        if not url:
            raise StartRefused("the simulated fleet did not start; its error is above")
        yield SimulatorProcess(child, url)
    except TimeoutError as error:
        raise StartRefused(f"the simulated fleet was not ready within {READY_WITHIN_SECONDS:g} s") from error
    finally:
        await _stop_process(child)


async def _stop_process(child: asyncio.subprocess.Process) -> None:
    if child.returncode is not None:
        return
    child.terminate()
    try:
        async with asyncio.timeout(STOP_WITHIN_SECONDS):
            await child.wait()
    except TimeoutError:
        child.kill()
        await child.wait()
