"""TrainingMonitor on a real GPU: the overhead for a DDP step, and whether it measures the wait for a slow rank.

    python bench/gpu/train_monitor_bench.py [--steps 20] [--turns 200]

`cost`: one NCCL rank with the same model bare, with one call of `step`, with phases in `with` blocks, watched, and
watched with communication, in turn. `small` is a model whose step is bound by the host, so that each microsecond is
visible; the step of `large` is bound by the GPU. `wait`: two ranks on one GPU over Gloo, of which the second is late by
some milliseconds in each step: the GPU of the first one waits, and its compute time must not increase. Prints one JSON
object.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from watchkeeper.instrument.exports import Exports
from watchkeeper.instrument.step_clock import Phase
from watchkeeper.instrument.training import TrainingMonitor

LATE_SECONDS = 0.03
# The bare step twice: their difference is the noise.
KINDS = ("bare", "step", "split", "watched", "with_communication", "bare_again")


def _join(backend: str) -> Any:
    import torch

    torch.cuda.set_device(0)
    torch.distributed.init_process_group(backend)
    return torch


def _model(torch: Any, width: int, layers: int) -> tuple[Any, Any]:
    torch.manual_seed(1)
    parts = [part for _ in range(layers) for part in (torch.nn.Linear(width, width), torch.nn.GELU())]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*parts).cuda(), device_ids=[0])
    return model, torch.optim.SGD(model.parameters(), lr=1e-3)


def _create_step(torch: Any, kind: str, *, width: int, layers: int, rows: int) -> tuple[Callable[[], None], Any]:
    """A training step of this kind, as in a user's loop, and its monitor."""
    model, optimizer = _model(torch, width, layers)
    x = torch.randn(rows, width, device="cuda")
    monitor = None if kind.startswith("bare") else TrainingMonitor("bench", Exports())
    is_watched = kind in ("watched", "with_communication")
    if monitor is not None and is_watched:
        monitor.watch(model, optimizer)
    if monitor is not None and kind == "with_communication":
        monitor.watch_communication(model)
    forward, backward, optimizing = _phases(monitor if kind == "split" else None)

    def step() -> None:
        with forward:
            loss = model(x).square().mean()
        if monitor is not None and is_watched:
            monitor.report(loss=loss)
            monitor.add_samples(samples=rows)
        with backward:
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizing:
            optimizer.step()
        optimizer.zero_grad()
        if monitor is not None and not is_watched:
            monitor.step(loss=loss, samples=rows)

    return step, monitor


def _phases(monitor: TrainingMonitor | None) -> tuple[Any, Any, Any]:
    """Context managers for forward, backward and optimizer; without a monitor they do nothing."""
    if monitor is None:
        return contextlib.nullcontext(), contextlib.nullcontext(), contextlib.nullcontext()
    return monitor.forward(), monitor.backward(), monitor.optimizer()


def measure_cost(steps: int, turns: int) -> dict[str, Any]:
    torch = _join("nccl")
    numbers: dict[str, Any] = {}
    for size, (width, layers, rows), turn_count in (
        ("small", (64, 2, 8), turns),
        ("large", (8192, 4, 4096), turns // 20),
    ):
        steps_by_kind = {kind: _create_step(torch, kind, width=width, layers=layers, rows=rows) for kind in KINDS}
        times_by_kind: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
        for turn in range(turn_count + 1):
            for kind in KINDS if turn % 2 else KINDS[::-1]:
                times = _measure_step(torch, steps_by_kind[kind][0], steps)
                # The first turn is a warm-up.
                times_by_kind[kind] += [times] if turn else []
        numbers[size] = {
            kind: _compare_with_bare(times, times_by_kind["bare"]) for kind, times in times_by_kind.items()
        }
        step, monitor = _create_step(torch, "with_communication", width=width, layers=layers, rows=rows)
        until = time.perf_counter() + 3.0
        while time.perf_counter() < until:
            step()
        numbers[size]["split_us"] = _split_microseconds(monitor)
        steps_by_kind.clear()
        torch.cuda.empty_cache()
    torch.distributed.destroy_process_group()
    return numbers


def _measure_step(torch: Any, step: Callable[[], None], count: int) -> tuple[float, float]:
    """Microseconds of wall time and of CPU time of all threads per step."""
    step()
    torch.cuda.synchronize()
    started_at, cpu_before = time.perf_counter(), time.process_time()
    for _ in range(count):
        step()
    cpu_seconds = time.process_time() - cpu_before
    torch.cuda.synchronize()
    return (time.perf_counter() - started_at) / count * 1e6, cpu_seconds / count * 1e6


def _compare_with_bare(times: list[tuple[float, float]], bare: list[tuple[float, float]]) -> dict[str, float]:
    """Compare with the bare step: the best turn counts, because other work on the machine only adds time.

    `paired` is the median difference from the bare step of the same turn: a slow host is slow for both.
    """
    wall, cpu = (min(times_of_turn[at] for times_of_turn in times) for at in (0, 1))
    paired = [
        [watched_turn[at] - bare_turn[at] for watched_turn, bare_turn in zip(times, bare, strict=True)] for at in (0, 1)
    ]
    return {
        "wall_us": round(wall, 1),
        "middle_wall_us": round(statistics.median(times_of_turn[0] for times_of_turn in times), 1),
        "more_wall_us": round(wall - min(times_of_turn[0] for times_of_turn in bare), 1),
        "more_cpu_us": round(cpu - min(times_of_turn[1] for times_of_turn in bare), 1),
        "paired_more_wall_us": round(statistics.median(paired[0]), 1),
        "paired_more_cpu_us": round(statistics.median(paired[1]), 1),
    }


def _split_microseconds(monitor: TrainingMonitor) -> dict[str, float | None]:
    clock = monitor.clock
    parts = {phase.label: round(clock.totals[phase] / clock.steps * 1e6, 1) for phase in Phase if clock.totals[phase]}
    compute = clock.compute_seconds(time.perf_counter())
    return parts | {
        "step": round(clock.wall_seconds / clock.steps * 1e6, 1),
        "compute": None if compute is None else round(compute * 1e6, 1),
        "gpu_wait": None if clock.gpu_wait is None else round(clock.gpu_wait.seconds * 1e6, 1),
    }


def measure_wait(steps: int) -> dict[str, Any]:
    """Measure one of two ranks; the second rank is late."""
    torch = _join("gloo")
    step, monitor = _create_step(torch, "with_communication", width=2048, layers=4, rows=4096)
    for _ in range(5 * steps):
        if torch.distributed.get_rank() == 1:
            time.sleep(LATE_SECONDS)
        step()
    torch.cuda.synchronize()
    numbers = _split_microseconds(monitor)
    torch.distributed.destroy_process_group()
    return numbers


def _ranks(part: str, world: int, arguments: list[str]) -> list[Any]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world), "LOCAL_RANK": "0"}
    command = [sys.executable, __file__, "--rank-of", part, *arguments]
    children = [
        subprocess.Popen(
            command, env={**os.environ, **environment, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True
        )
        for rank in range(world)
    ]
    outputs = [child.communicate(timeout=240)[0] for child in children]
    return [json.loads(text.splitlines()[-1]) if text.strip() else "no output" for text in outputs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--rank-of", choices=["cost", "wait"], help="used by the script itself")
    options = parser.parse_args()
    if options.rank_of is not None:
        print(
            json.dumps(
                measure_cost(options.steps, options.turns) if options.rank_of == "cost" else measure_wait(options.steps)
            )
        )
        return
    arguments = ["--steps", str(options.steps), "--turns", str(options.turns)]
    print(json.dumps({"cost": _ranks("cost", 1, arguments), "wait": _ranks("wait", 2, arguments)}, indent=1))


if __name__ == "__main__":
    main()
