"""Serve a simulated fleet over HTTP: exporters, kernel logs, a cluster and fault injection.

`serve` binds a loopback port, advances a Simulation with a clock, and answers for all nodes. The product uses the
simulation only through this API. Requests and steps share one event loop, so that every page is one consistent state.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from watchkeeper.errors import ActionRefused, CollectError, StartRefused, WatchkeeperError, WireError
from watchkeeper.kit import clock, logs, memory, wire
from watchkeeper.net import asgi, origins
from watchkeeper.sim.cluster import ActionOutcome
from watchkeeper.sim.faults import SimFault
from watchkeeper.sim.fleet import UnknownName
from watchkeeper.sim.simulation import SimSettings, Simulation

__all__ = ["SimSettings", "SimulatorApi", "open_listener", "run", "serve"]

log = logging.getLogger(__name__)

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
PAGE_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Steps at once when the simulation is behind, so that requests are still answered.
CATCH_UP_STEPS = 20
KEEP_ALIVE_SECONDS = 5.0
STREAM_BATCH = 500
MAX_BODY_BYTES = 64 * 1024


class LocalOnly:
    """Answers only to loopback names, and to no page of another site: a browser must not inject faults for it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        if not origins.is_loopback_host(headers.get("host", "")) or origins.is_from_foreign_page(headers):
            refusal = _error_response(403, "the simulator answers only to programs on this machine, at 127.0.0.1")
            await refusal(scope, receive, send)
        else:
            await self._app(scope, receive, send)


class SimulatorApi:
    def __init__(self, simulation: Simulation, sim_clock: clock.ScaledClock, *, target: str) -> None:
        self.simulation = simulation
        self.clock = sim_clock
        self.target = target
        self.is_closing = False
        self._step_done = asyncio.Event()

    def app(self) -> Starlette:
        routes = [
            Route("/sd", self.service_discovery),
            Route("/nodes/{node}/metrics", self.metrics),
            Route("/nodes/{node}/host/metrics", self.metrics),
            Route("/cluster/metrics", self.metrics),
            Route("/workloads/metrics", self.metrics),
            Route("/serving/{model}/metrics", self.metrics),
            Route("/nodes/{node}/inventory", self.inventory),
            Route("/kmsg", self.kernel_stream),
            Route("/cluster/nodes", self.cluster_nodes),
            Route("/cluster/nodes/{node}", self.cluster_node),
            Route("/cluster/nodes/{node}/{verb:str}", self.cluster_action, methods=["POST"]),
            Route("/cluster/nodes/{node}/gpus/{uuid}/{verb:str}", self.gpu_action, methods=["POST"]),
            Route("/scenarios", self.scenarios),
            Route("/faults", self.list_faults),
            Route("/faults", self.inject, methods=["POST"]),
            Route("/faults/{fault}", self.end_fault, methods=["DELETE"]),
            Route("/time", self.time),
            Route("/-/ready", self.ready),
        ]
        application = Starlette(routes=routes, exception_handlers={WatchkeeperError: _exception_response})
        application.add_middleware(LocalOnly)
        return application

    async def keep_advancing(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            behind = int(self.clock.now().timestamp()) - self.simulation.second
            if behind > 0:
                self.simulation.advance(min(behind, CATCH_UP_STEPS))
                self.wake_streams()
                await asyncio.sleep(0)
                continue
            seconds_to_next = self.simulation.second + 1 - self.clock.now().timestamp()
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), max(0.001, seconds_to_next / self.clock.speed))

    def wake_streams(self) -> None:
        self._step_done.set()
        self._step_done = asyncio.Event()

    def close(self) -> None:
        """End the kernel log streams."""
        self.is_closing = True
        self.wake_streams()

    async def service_discovery(self, _: Request) -> Response:
        return JSONResponse(self.simulation.service_discovery(self.target))

    async def metrics(self, request: Request) -> Response:
        return Response(self.simulation.page_at(request.url.path), media_type=PAGE_TYPE)

    async def inventory(self, request: Request) -> Response:
        return JSONResponse(self.simulation.inventory(request.path_params["node"]))

    async def kernel_stream(self, request: Request) -> Response:
        text = request.query_params.get("after", "0")
        if not text.isdigit():
            return _error_response(400, f"after: expected an integer, not {text[:40]!r}")
        return StreamingResponse(self._stream_kernel_log(int(text)), media_type="application/x-ndjson")

    async def _stream_kernel_log(self, seq: int) -> AsyncIterator[bytes]:
        # An empty line shows the reader that it is connected.
        yield b"\n"
        while not self.is_closing:
            records = self.simulation.kernel_records_since(seq, limit=STREAM_BATCH)
            if records:
                seq = records[-1].seq
                lines = (json.dumps(wire.to_plain(record), ensure_ascii=False) + "\n" for record in records)
                yield "".join(lines).encode()
            elif not await self._wait_for_records(seq):
                yield b"\n"

    async def _wait_for_records(self, seq: int) -> bool:
        """Wait for records after `seq`; False after the keep-alive time without any."""
        try:
            async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                while not self.is_closing and self.simulation.machines.kernel.last_seq <= seq:
                    await self._step_done.wait()
        except TimeoutError:
            return False
        return True

    async def cluster_nodes(self, request: Request) -> Response:
        """All nodes, or only the revision if it is the one that the caller has."""
        cluster = self.simulation.cluster
        if request.query_params.get("after") == str(cluster.revision):
            return JSONResponse({"revision": cluster.revision})
        return JSONResponse({"revision": cluster.revision, "nodes": cluster.list_nodes(self.simulation.layout.nodes)})

    async def cluster_node(self, request: Request) -> Response:
        node = self.simulation.layout.node(request.path_params["node"])
        return JSONResponse(wire.to_plain(self.simulation.cluster.view(node)))

    async def cluster_action(self, request: Request) -> Response:
        node = self.simulation.layout.node(request.path_params["node"])
        cluster, body = self.simulation.cluster, await _read_body(request)
        by, percent = _read_mark(body), _read_percent(body)
        verbs = {
            "lower_power": lambda: cluster.lower_power(node, None, percent),
            "cordon": lambda: cluster.cordon(node, by),
            "uncordon": lambda: cluster.uncordon(node, by),
            "drain": lambda: cluster.drain(node, by),
            "reboot": lambda: cluster.reboot(node, by, now=self.simulation.second),
        }
        return _run_verb(request.path_params["verb"], verbs, kind="node")

    async def gpu_action(self, request: Request) -> Response:
        node = self.simulation.layout.node(request.path_params["node"])
        gpu = self.simulation.layout.gpu(node, request.path_params["uuid"])
        cluster, body = self.simulation.cluster, await _read_body(request)
        by, percent = _read_mark(body), _read_percent(body)
        verbs = {
            "lower_power": lambda: cluster.lower_power(node, gpu, percent),
            "reset": lambda: cluster.reset_gpu(node, gpu, by),
            "warn": lambda: cluster.warn_holder(node, gpu, by),
            "reclaim": lambda: cluster.reclaim(node, gpu),
        }
        return _run_verb(request.path_params["verb"], verbs, kind="GPU")

    async def scenarios(self, _: Request) -> Response:
        scenarios = self.simulation.scenarios.values()
        return JSONResponse(
            [{"name": item.name, "title": item.title, "truth": wire.to_plain(item.truth)} for item in scenarios]
        )

    async def list_faults(self, _: Request) -> Response:
        active = self.simulation.faults.active.values()
        return JSONResponse([_fault_as_json(fault, self.simulation) for fault in active])

    async def inject(self, request: Request) -> Response:
        body = await _read_body(request)
        name, node, gpu = body.get("scenario"), body.get("node"), body.get("gpu")
        if not isinstance(name, str):
            return _error_response(400, f"scenario: is missing; use {', '.join(self.simulation.scenarios)}")
        if not (node is None or isinstance(node, str)) or not (gpu is None or type(gpu) is int):
            return _error_response(400, "node must be a name and gpu an integer, or omit both")
        try:
            fault = self.simulation.inject(name, node=node, gpu=gpu)
        except WatchkeeperError as error:
            return _error_response(400, str(error))
        self.wake_streams()
        return JSONResponse(_fault_as_json(fault, self.simulation))

    async def end_fault(self, request: Request) -> Response:
        fault = self.simulation.end_fault(request.path_params["fault"])
        return JSONResponse({"ok": True, **_fault_as_json(fault, self.simulation)})

    async def time(self, _: Request) -> Response:
        now = wire.format_time(self.clock.now())
        return JSONResponse({"now": now, "epoch_seconds": self.clock.epoch_seconds, "speed": self.clock.speed})

    async def ready(self, _: Request) -> Response:
        return PlainTextResponse("ready\n")


def open_listener(settings: SimSettings) -> socket.socket:
    """Bind the loopback port; port 0 selects a free one."""
    where = f"{settings.host}:{settings.port}"
    if settings.host not in LOOPBACK:
        raise StartRefused(
            "the simulator has no authentication, so it listens only on loopback", where=where, remedy="Use 127.0.0.1"
        )
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        raise StartRefused(
            f"the port cannot be used: {error.strerror}", where=where, remedy="Set another port with --port"
        ) from error
    return listener


async def serve(settings: SimSettings, stop: asyncio.Event, *, listener: socket.socket | None = None) -> None:
    """Serve the simulated fleet until `stop` is set; ends within two seconds."""
    bound_listener = listener or open_listener(settings)
    host, port = bound_listener.getsockname()[:2]
    sim_clock = clock.ScaledClock(speed=settings.speed, epoch_seconds=settings.epoch_seconds)
    simulation = Simulation(replace(settings, epoch_seconds=sim_clock.now().timestamp()))
    api = SimulatorApi(simulation, sim_clock, target=f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    config = uvicorn.Config(
        api.app(), log_level="warning", access_log=False, lifespan="off", ws="none", timeout_graceful_shutdown=1
    )
    server = asgi.AsgiServer(config)
    log.info("simulator ready", extra=logs.fields(gpus=settings.gpus, url=f"http://{api.target}"))
    memory.release_startup_memory()
    async with asyncio.TaskGroup() as group:
        group.create_task(server.serve(sockets=[bound_listener]))
        group.create_task(api.keep_advancing(stop))
        await stop.wait()
        api.close()
        server.should_exit = True


def run(settings: SimSettings) -> None:
    with suppress(KeyboardInterrupt):
        asyncio.run(serve(settings, asyncio.Event()))


def _fault_as_json(fault: SimFault, simulation: Simulation) -> dict[str, Any]:
    return {
        "id": fault.id,
        "scenario": fault.scenario.name,
        "node": fault.node.name,
        "gpu": None if fault.gpu is None else fault.gpu.index,
        "uuid": None if fault.gpu is None else fault.gpu.uuid,
        "place": str(simulation.fault_place(fault)),
        "at": wire.format_time(clock.from_ms(fault.at * 1000)),
        "strikes_in_seconds": max(0, fault.at - simulation.second),
        "truth": wire.to_plain(fault.scenario.truth),
    }


async def _read_body(request: Request) -> dict[str, Any]:
    content = b""
    async for chunk in request.stream():
        content += chunk
        if len(content) > MAX_BODY_BYTES:
            raise WireError((f"the body is longer than {MAX_BODY_BYTES} bytes",))
    return wire.loads(dict[str, Any], content or b"{}")


def _read_mark(body: Mapping[str, Any]) -> str:
    by = body.get("by")
    if not isinstance(by, str) or not by:
        raise WireError(('by: is missing; send the mark of the caller, {"by": "…"}',))
    return by


def _read_percent(body: Mapping[str, Any]) -> float:
    """The power limit that is asked for; `restore`, or nothing, is the default one."""
    try:
        return 100.0 if "restore" in body else float(body.get("percent", 100.0))
    except (TypeError, ValueError) as error:
        raise WireError((f"percent: `{body['percent']}` is not a number",)) from error


def _run_verb(verb: str, verbs: Mapping[str, Callable[[], ActionOutcome]], *, kind: str) -> Response:
    if verb not in verbs:
        return _error_response(404, f"unknown {kind} action `{verb[:40]}`; use {', '.join(verbs)}")
    return JSONResponse({"ok": True, **wire.to_plain(verbs[verb]())})


def _error_response(status: int, error: str) -> JSONResponse:
    return JSONResponse({"ok": False, "error": error, "status": status}, status_code=status)


def _exception_response(_: Request, error: Exception) -> Response:
    statuses = {WireError: 400, UnknownName: 404, ActionRefused: 409, CollectError: 503}
    return _error_response(statuses.get(type(error), 500), str(error))
