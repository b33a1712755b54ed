"""TrainingMonitor on a real GPU: what it costs a DDP step, and whether the wait for a slow rank is seen.

    python bench/gpu/train_monitor_bench.py [--steps 20] [--turns 200]

`cost`: one rank with NCCL, the same model bare, with one call of `step`, with its phases in `with` blocks, watched, and
watched with its communication, turn by turn; `small` is a model whose step is all host, so that a microsecond more
would show, `large` one whose step is all GPU. `wait`: two ranks on one GPU over Gloo, of which the second is late by
some milliseconds in each step: the first one's GPU waits for so long, and its compute time must not grow by it. Prints
one JSON object.
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
# The bare one twice: what these two differ by is the method's own noise.
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


def _stepping(torch: Any, kind: str, *, width: int, layers: int, rows: int) -> tuple[Callable[[], None], Any]:
    """One training step of a kind, as a user's loop has it, and its monitor."""
    model, optimizer = _model(torch, width, layers)
    x = torch.randn(rows, width, device="cuda")
    monitor = None if kind.startswith("bare") else TrainingMonitor("bench", Exports())
    is_watched = kind in ("watched", "with_communication")
    if monitor is not None and is_watched:
        monitor.watch(model, optimizer)
    if monitor is not None and kind == "with_communication":
        monitor.watch_communication(model)
    forward, backward, stepping = _phases(monitor if kind == "split" else None)

    def step() -> None:
        with forward:
            loss = model(x).square().mean()
        if monitor is not None and is_watched:
            monitor.report(loss=loss)
            monitor.add_samples(samples=rows)
        with backward:
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with stepping:
            optimizer.step()
        optimizer.zero_grad()
        if monitor is not None and not is_watched:
            monitor.step(loss=loss, samples=rows)

    return step, monitor


def _phases(monitor: TrainingMonitor | None) -> tuple[Any, Any, Any]:
    """What stands around forward, backward and optimizer; without a monitor nothing does."""
    if monitor is None:
        return contextlib.nullcontext(), contextlib.nullcontext(), contextlib.nullcontext()
    return monitor.forward(), monitor.backward(), monitor.optimizer()


def cost(steps: int, turns: int) -> dict[str, Any]:
    torch = _join("nccl")
    found: dict[str, Any] = {}
    for size, (width, layers, rows), many in (("small", (64, 2, 8), turns), ("large", (8192, 4, 4096), turns // 20)):
        made = {kind: _stepping(torch, kind, width=width, layers=layers, rows=rows) for kind in KINDS}
        took: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
        for turn in range(many + 1):
            for kind in KINDS if turn % 2 else KINDS[::-1]:
                times = _timed(torch, made[kind][0], steps)
                # The first turn starts things up.
                took[kind] += [times] if turn else []
        found[size] = {kind: _beside(times, took["bare"]) for kind, times in took.items()}
        step, monitor = _stepping(torch, "with_communication", width=width, layers=layers, rows=rows)
        until = time.perf_counter() + 3.0
        while time.perf_counter() < until:
            step()
        found[size]["split_us"] = _split(monitor)
        made.clear()
        torch.cuda.empty_cache()
    torch.distributed.destroy_process_group()
    return found


def _timed(torch: Any, step: Callable[[], None], count: int) -> tuple[float, float]:
    """Microseconds of a step: by the wall clock, and of the processor time of all threads."""
    step()
    torch.cuda.synchronize()
    began, used = time.perf_counter(), time.process_time()
    for _ in range(count):
        step()
    spent = time.process_time() - used
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / count * 1e6, spent / count * 1e6


def _beside(times: list[tuple[float, float]], bare: list[tuple[float, float]]) -> dict[str, float]:
    """The best turn counts, because whatever else the machine does only adds; the middle one says how much it did.

    `paired` is the middle of what it took more than the bare one of the same turn: a slow host is slow for both.
    """
    wall, cpu = (min(one[at] for one in times) for at in (0, 1))
    paired = [[one[at] - other[at] for one, other in zip(times, bare, strict=True)] for at in (0, 1)]
    return {
        "wall_us": round(wall, 1),
        "middle_wall_us": round(statistics.median(one[0] for one in times), 1),
        "more_wall_us": round(wall - min(one[0] for one in bare), 1),
        "more_cpu_us": round(cpu - min(one[1] for one in bare), 1),
        "paired_more_wall_us": round(statistics.median(paired[0]), 1),
        "paired_more_cpu_us": round(statistics.median(paired[1]), 1),
    }


def _split(monitor: TrainingMonitor) -> dict[str, float | None]:
    clock = monitor.clock
    parts = {phase.label: round(clock.totals[phase] / clock.steps * 1e6, 1) for phase in Phase if clock.totals[phase]}
    compute = clock.compute_seconds(time.perf_counter())
    return parts | {
        "step": round(clock.wall_seconds / clock.steps * 1e6, 1),
        "compute": None if compute is None else round(compute * 1e6, 1),
        "gpu_wait": None if clock.gpu_wait is None else round(clock.gpu_wait.seconds * 1e6, 1),
    }


def wait(steps: int) -> dict[str, Any]:
    """What one of two ranks sees; the second is late."""
    torch = _join("gloo")
    step, monitor = _stepping(torch, "with_communication", width=2048, layers=4, rows=4096)
    for _ in range(5 * steps):
        if torch.distributed.get_rank() == 1:
            time.sleep(LATE_SECONDS)
        step()
    torch.cuda.synchronize()
    found = _split(monitor)
    torch.distributed.destroy_process_group()
    return found


def _ranks(part: str, world: int, arguments: list[str]) -> list[Any]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    given = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world), "LOCAL_RANK": "0"}
    command = [sys.executable, __file__, "--rank-of", part, *arguments]
    children = [
        subprocess.Popen(command, env={**os.environ, **given, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(world)
    ]
    said = [child.communicate(timeout=240)[0] for child in children]
    return [json.loads(text.splitlines()[-1]) if text.strip() else "said nothing" for text in said]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--rank-of", choices=["cost", "wait"], help="used by the script itself")
    chosen = parser.parse_args()
    if chosen.rank_of is not None:
        print(json.dumps(cost(chosen.steps, chosen.turns) if chosen.rank_of == "cost" else wait(chosen.steps)))
        return
    passed = ["--steps", str(chosen.steps), "--turns", str(chosen.turns)]
    print(json.dumps({"cost": _ranks("cost", 1, passed), "wait": _ranks("wait", 2, passed)}, indent=1))


if __name__ == "__main__":
    main()
