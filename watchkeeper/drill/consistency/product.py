"""The whole product in one process and in jumping time: simulated fleet, hub, agent, and one open console page.

`runner` injects faults into `simulation`, advances `now`, restarts the hub, and reads the answers of the real server.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
from collections.abc import AsyncIterator, Coroutine, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson
import uvicorn
from websockets.asyncio import client as websocket
from websockets.exceptions import ConnectionClosed

from watchkeeper.agent import agent
from watchkeeper.config import loading
from watchkeeper.drill.consistency.jumping_time import JumpingLoop, LoopClock
from watchkeeper.errors import CollectError
from watchkeeper.hub import hub, runtime, samples
from watchkeeper.net import asgi, http
from watchkeeper.sim import server as sim_server
from watchkeeper.sim.simulation import DEFAULT_EPOCH_SECONDS, SimSettings, Simulation
from watchkeeper.web import app, server
from watchkeeper.web.auth.auth_reload import AuthFiles

LOOPBACK = "127.0.0.1"


class RunningProduct:
    """A hub on a simulated fleet; `restart_hub` keeps its data directory, its port and the fleet."""

    def __init__(self, folder: Path, *, gpus: int, seed: int) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, JumpingLoop)
        self.loop, self.clock = loop, LoopClock(loop, DEFAULT_EPOCH_SECONDS)
        self.simulation = Simulation(SimSettings(gpus=gpus, seed=seed))
        self._sim_socket = sim_server.open_listener(SimSettings(port=0))
        sim_address = f"{LOOPBACK}:{self._sim_socket.getsockname()[1]}"
        self._sim_api = sim_server.SimulatorApi(self.simulation, self.clock, target=sim_address)
        self._sim_url = f"http://{sim_address}"
        self._folder, self.port = folder, 0
        overrides = {"hub.data": str(folder / "hub"), "fleet.cluster": self.simulation.settings.cluster}
        settings = loading.load(None, {**overrides, "remediate.driver": "simulated", "remediate.mode": "ask"})
        self._settings = replace(settings, fleet=replace(settings.fleet, sd_urls=(f"{self._sim_url}/sd",)))
        self._stop, self._stop_hub = asyncio.Event(), asyncio.Event()
        self._tasks: list[asyncio.Task[Any]] = []
        self._hub_tasks: list[asyncio.Task[Any]] = []
        self._closing = contextlib.ExitStack()
        self._connection = http.Connection()
        self.restarts, self._hub_started_at = 0, self.now
        # The newest messages of the open page: the panel of incidents, and the frame of the fleet map.
        self.panel: Mapping[str, Any] = {}
        self.frame: Mapping[str, Any] = {}

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def now(self) -> datetime:
        return self.clock.now()

    @property
    def uptime_seconds(self) -> float:
        return (self.now - self._hub_started_at).total_seconds()

    async def start(self) -> None:
        config = uvicorn.Config(self._sim_api.app(), log_config=None, lifespan="off", ws="none", access_log=False)
        self._sim_server = asgi.AsgiServer(config)
        self._tasks = [
            asyncio.create_task(self._sim_server.serve(sockets=[self._sim_socket])),
            asyncio.create_task(self._sim_api.keep_advancing(self._stop)),
        ]
        await self._start_hub()
        settings = agent.AgentSettings(
            hub_url=self.url,
            spool_directory=self._folder / "spool",
            cluster=self._settings.fleet.cluster,
            simulator_url=self._sim_url,
        )
        self._tasks.append(asyncio.create_task(agent.run(settings, self.clock, self._stop)))

    async def close(self) -> None:
        self._stop.set()
        self._sim_api.close()
        self._sim_server.should_exit = True
        await self._close_hub()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def advance(self, seconds: float) -> None:
        """Let the fleet and the hub run for these seconds of their time."""
        await asyncio.sleep(seconds)

    async def restart_hub(self, *, seconds_down: float) -> None:
        await self._close_hub()
        self.restarts += 1
        await asyncio.sleep(seconds_down)
        await self._start_hub()

    async def _start_hub(self) -> None:
        listener = server.listen(LOOPBACK, self.port)
        self.port, self._stop_hub = listener.getsockname()[1], asyncio.Event()
        self._hub_started_at = self.now
        store = samples.Samples(runtime.Runtime(self._settings, self.clock))
        store.open()
        self._closing.callback(store.close)
        started = hub.Hub(store, simulator_url=self._sim_url)
        started.open()
        application = app.create_app(started.services, AuthFiles())
        loops: list[Coroutine[Any, Any, None]] = [
            server.serve(application, listener, stop=self._stop_hub),
            started.run(self._stop_hub),
            self._view(),
        ]
        self._hub_tasks = [asyncio.create_task(loop) for loop in loops]

    async def _close_hub(self) -> None:
        self._stop_hub.set()
        self._connection.close()
        self.panel, self.frame = {}, {}
        await asyncio.gather(*self._hub_tasks, return_exceptions=True)
        self._closing.close()

    async def _view(self) -> None:
        """An open page: without one, the hub draws a frame only once a minute."""
        while not self._stop_hub.is_set():
            with contextlib.suppress(OSError, ConnectionClosed):
                async with websocket.connect(f"ws://{LOOPBACK}:{self.port}/api/live", ping_interval=None) as viewer:
                    async for message in viewer:
                        if isinstance(message, bytes):
                            self.frame = read_frame(message)
                        elif (content := orjson.loads(message))["kind"] == "incidents":
                            self.panel = content
            await asyncio.sleep(1)

    # Requests

    async def get(self, path: str) -> Any:
        """The JSON of a path, or its text; `{"status": …}` with the error if it was refused."""
        return await self._send(http.HttpRequest(self.url + path))

    async def post(self, path: str, body: Any = None) -> Any:
        headers = {"Content-Type": "application/json", "Origin": self.url}
        request = http.HttpRequest(
            self.url + path, method="POST", headers=headers, body=json.dumps(body or {}).encode()
        )
        return await self._send(request)

    async def _send(self, request: http.HttpRequest) -> Any:
        try:
            response = await self._connection.send(request)
        except CollectError as error:
            return {"ok": False, "status": 0, "error": str(error)}
        try:
            return orjson.loads(response.body) if response.body else {"status": response.status}
        except orjson.JSONDecodeError:
            return response.body.decode(errors="replace")


def read_frame(packed: bytes) -> dict[str, Any]:
    """The header of a frame of the fleet map with `states`, as `web.fleet.frames.pack_frame` writes it."""
    (length,) = struct.unpack_from("<I", packed)
    header: dict[str, Any] = orjson.loads(packed[4 : 4 + length])
    return {**header, "states": list(packed[len(packed) - header["count"] :]) if header["count"] else []}


@contextlib.asynccontextmanager
async def running(folder: Path, *, gpus: int, seed: int) -> AsyncIterator[RunningProduct]:
    product = RunningProduct(folder, gpus=gpus, seed=seed)
    await product.start()
    try:
        yield product
    finally:
        await product.close()
