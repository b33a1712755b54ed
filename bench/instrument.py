"""The overhead of monitors for a training step or a request: the same loop with and without a monitor, in turn.

Meanwhile the page is read ten times a second, far more often than by a scraper. Each turn measures the empty loop and
the monitored one; the best turn of each counts, because other work on the machine only adds time. The CPU time of the
loop's thread is measured too. The limit is 20 µs per step.
"""

from __future__ import annotations

import argparse
import asyncio
import threading
import time
import urllib.request
from collections.abc import Callable
from statistics import median
from typing import Any

from watchkeeper.instrument.exports import Exports
from watchkeeper.instrument.inference import InferenceMonitor
from watchkeeper.instrument.training import TrainingMonitor

READS_PER_SECOND = 10


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--steps", type=int, default=200, help="steps per turn; few, so that some turns are not interrupted"
    )
    parser.add_argument("--turns", type=int, default=200, help="turns of each loop")


def measure(options: argparse.Namespace) -> dict[str, float]:
    monitor = TrainingMonitor("bench", Exports(port=0))
    serving = InferenceMonitor("bench", "1", Exports())
    stop = threading.Event()
    reader = threading.Thread(target=_read_repeatedly, args=(f"http://{monitor.exporter.address}/metrics", stop))
    reader.start()
    loops: dict[str, Callable[[int], None]] = {
        "empty": _empty,
        "step": lambda steps: _steps(monitor, steps),
        "split_step": lambda steps: _split_steps(monitor, steps),
        "empty_request": lambda steps: asyncio.run(_requests(_app, steps)),
        "request": lambda steps: asyncio.run(_requests(serving.asgi(_app), steps)),
    }
    times_by_loop: dict[str, list[tuple[float, float]]] = {name: [] for name in loops}
    try:
        for _ in range(options.turns):
            for name, loop in loops.items():
                times_by_loop[name].append(_measure_microseconds(loop, options.steps))
    finally:
        stop.set()
        reader.join()
        monitor.close()
    wall = {name: min(seconds for seconds, _ in times) for name, times in times_by_loop.items()}
    cpu = {name: median(seconds for _, seconds in times) for name, times in times_by_loop.items()}
    numbers: dict[str, float] = {"steps": options.steps, "turns": options.turns, "limit_us": 20.0}
    numbers["empty_loop_us"] = wall["empty"]
    for name, reference in (("step", "empty"), ("split_step", "empty"), ("request", "empty_request")):
        numbers[f"{name}_us"] = wall[name] - wall[reference]
        numbers[f"{name}_cpu_us"] = cpu[name] - cpu[reference]
    return numbers


def _measure_microseconds(loop: Callable[[int], None], steps: int) -> tuple[float, float]:
    """Microseconds of wall time and of CPU time per step."""
    started_at, cpu_before = time.perf_counter(), time.thread_time()
    loop(steps)
    return (time.perf_counter() - started_at) / steps * 1e6, (time.thread_time() - cpu_before) / steps * 1e6


def _read_repeatedly(url: str, stop: threading.Event) -> None:
    while not stop.wait(1 / READS_PER_SECOND):
        with urllib.request.urlopen(url, timeout=5) as response:
            response.read()


def _empty(steps: int) -> None:
    for _ in range(steps):
        pass


def _steps(monitor: TrainingMonitor, steps: int) -> None:
    for _ in range(steps):
        monitor.step(loss=0.5, grad_norm=1.0, learning_rate=1e-3, samples=8, tokens=4096)


def _split_steps(monitor: TrainingMonitor, steps: int) -> None:
    """A loop with all phases: input, forward, backward, optimizer."""
    for _ in monitor.batches(range(steps)):
        with monitor.forward():
            pass
        with monitor.backward():
            pass
        with monitor.optimizer():
            pass
        monitor.step(loss=0.5, grad_norm=1.0, learning_rate=1e-3, samples=8, tokens=4096)


async def _app(scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG001
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(4):
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _requests(app: Any, steps: int) -> None:
    async def send(message: Any) -> None: ...

    scope = {"type": "http", "path": "/", "headers": []}
    for _ in range(steps):
        await app(scope, None, send)
