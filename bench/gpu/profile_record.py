"""Record workloads with a known bottleneck, one after another.

    python bench/gpu/profile_record.py --seconds 6 --out recording.csv [--only NAME …]

Needs torch and cupy. Writes a labelled recording with all columns of `watchkeeper.probe.profile.columns` in each row,
as in the shared recording, and `truth.json` with the class of each label. `profile_bench` tests the classifier with it.
The workloads are in `profile_workloads`, half of which were used to choose the limits, and in `profile_unseen`,
`profile_third`, `profile_fourth` and `profile_fifth`, each recorded after the limits of its time.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
# The recorder, but with NVML's PCIe counters and energy in each row, which takes 46 ms.
RECORDER = """
from watchkeeper.probe.profile import gpu_reader, recorder_child
recorder_child.SLOW_SECONDS = 0.0
gpu_reader.SLOW += gpu_reader.WITHOUT_GPM
recorder_child.main()
"""
# The time between workloads for allocation, compilation and falling power.
PAUSE_SECONDS = 0.5
Step = Callable[[], None]


class Workload(NamedTuple):
    name: str
    truth: str
    prepare: Callable[[], Step]


WORKLOADS: list[Workload] = []


def workload(truth: str) -> Callable[[Callable[[], Step]], Callable[[], Step]]:
    def add_workload(prepare: Callable[[], Step]) -> Callable[[], Step]:
        WORKLOADS.append(Workload(prepare.__name__, truth, prepare))
        return prepare

    return add_workload


def torch_module() -> Any:
    import torch

    return torch


def repeat(run: Callable[[], Any], count: int) -> Step:
    """Run `count` times, then wait for the GPU."""
    torch = torch_module()

    def step() -> None:
        for _ in range(count):
            run()
        torch.cuda.synchronize()

    return step


def without_gradients(run: Callable[[], Any]) -> Step:
    """Run without gradients, as in inference."""
    torch = torch_module()

    def step() -> None:
        with torch.no_grad():
            run()

    return step


def then_sleep(run: Callable[[], Any], seconds: float) -> Step:
    torch = torch_module()

    def step() -> None:
        run()
        torch.cuda.synchronize()
        time.sleep(seconds)

    return step


def work_for(run: Callable[[], Any], seconds: float) -> None:
    torch = torch_module()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        run()
        torch.cuda.synchronize()


def use_cpu(seconds: float) -> None:
    """Keep a CPU busy, as decoding does."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))


def random_bf16(*shape: int) -> Any:
    """A random tensor in bf16."""
    torch = torch_module()
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def matmul(kind: str, size: int, count: int) -> Step:
    torch = torch_module()
    a = torch.randn(size, size, device="cuda").to(getattr(torch, kind))
    b, out = a.clone(), a.clone()
    return repeat(lambda: torch.matmul(a, b, out=out), count)


def kernel(source: str, name: str, blocks: int, threads: int, rounds: int) -> Step:
    import cupy

    kernel = cupy.RawKernel(source, name)
    buffer = cupy.ones(blocks * threads, dtype=cupy.float64)

    def step() -> None:
        kernel((blocks,), (threads,), (buffer, cupy.int32(rounds)))
        cupy.cuda.get_current_stream().synchronize()

    return step


def linear_model(width: int, layers: int) -> Any:
    torch = torch_module()
    parts = [part for _ in range(layers) for part in (torch.nn.Linear(width, width), torch.nn.GELU())]
    return torch.nn.Sequential(*parts).cuda().bfloat16()


def transformer(width: int, layers: int) -> Any:
    torch = torch_module()
    layer = torch.nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.1, batch_first=True)
    return torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).cuda().bfloat16()


def convolution(channels: int, images: int, side: int) -> Step:
    """A 3×3 convolution in fp16, in the memory format of tensor cores."""
    torch = torch_module()
    layer = torch.nn.Conv2d(channels, channels, 3, padding=1).cuda().half().to(memory_format=torch.channels_last)
    x = torch.randn(images, channels, side, side, device="cuda").half().to(memory_format=torch.channels_last)
    return without_gradients(lambda: layer(x))


def recurrence(cell: Any, x: Any) -> Step:
    def run() -> None:
        state = None
        for _ in range(200):
            state = cell(x, state)

    return repeat(without_gradients(run), 5)


def classify_one_image(name: str) -> Step:
    """A torchvision model in fp16 that classifies a single image."""
    torch = torch_module()
    import torchvision

    model = getattr(torchvision.models, name)().cuda().half().eval()
    x = torch.randn(1, 3, 224, 224, device="cuda").half()
    return without_gradients(lambda: model(x))


def training_on(model: Any, rows: int = 0, width: int = 0) -> Callable[[Any], None]:
    """A function for one training step; with `rows`, a first step has already run."""
    torch = torch_module()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def train(x: Any) -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    if rows:
        train(torch.randn(rows, width, device="cuda").bfloat16())
    return train


def training(model: Any, rows: int, width: int, rounds: int = 3) -> Step:
    torch = torch_module()
    train, x = training_on(model, rows, width), torch.randn(rows, width, device="cuda").bfloat16()
    return repeat(lambda: train(x), rounds)


def autocast_training(model: Any, optimizer: Any, x: Any) -> Step:
    torch = torch_module()

    def run() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return repeat(run, 2)


def hold_memory(size: int) -> Step:
    """Allocate memory without computing."""
    buffer = torch_module().zeros(size, dtype=torch_module().uint8, device="cuda")

    def step() -> None:
        assert buffer.is_cuda
        time.sleep(0.1)

    return step


def capture_graph(run: Callable[[], None]) -> Any:
    torch = torch_module()
    side_stream = torch.cuda.Stream()
    with torch.cuda.stream(side_stream):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


def copies(size: int, *, is_pinned: bool, to_gpu: bool) -> Step:
    torch = torch_module()
    host = torch.ones(size, dtype=torch.uint8, pin_memory=is_pinned)
    gpu = torch.ones(size, dtype=torch.uint8, device="cuda")
    source, target = (host, gpu) if to_gpu else (gpu, host)
    return repeat(lambda: target.copy_(source, non_blocking=is_pinned), 10)


class WorkloadRecorder:
    """The rows of the recorder child, with the name of the workload at their time."""

    def __init__(self, interval: float = 0.15) -> None:
        command = [sys.executable, "-c", RECORDER, str(interval), "0"]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
        self.rows: list[dict[str, Any]] = []
        self._spans: list[tuple[float, float, str]] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            row = json.loads(line).get("row")
            if row is not None:
                self.rows.append({"t": row["t"], **row["values"]})

    def add_span(self, since: float, until: float, name: str) -> None:
        self._spans.append((since, until, name))

    def write(self, path: Path) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait(10)
        names = sorted({name for row in self.rows for name in row} - {"t"})
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["t", "label", *names])
            for row in self.rows:
                writer.writerow([row["t"], self._label_at(row["t"]), *(row.get(name, "") for name in names)])

    def _label_at(self, at: float) -> str:
        # A row covers the time since the previous one.
        return next((name for since, until, name in self._spans if since + 0.15 <= at <= until), "gap")


def run_all(seconds: float, path: Path, only: list[str]) -> dict[str, str]:
    torch = torch_module()
    workload_recorder, truth = WorkloadRecorder(), {}
    for current in WORKLOADS:
        if only and current.name not in only:
            continue
        try:
            step = current.prepare()
            step()
            torch.cuda.synchronize()
            time.sleep(PAUSE_SECONDS / 2)
            since = time.time()
            while time.time() - since < seconds:
                step()
            workload_recorder.add_span(since, time.time(), current.name)
            truth[current.name] = current.truth
        except Exception as error:
            print(f"{current.name}: {type(error).__name__}: {error}"[:300], file=sys.stderr)
        step = None
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        time.sleep(PAUSE_SECONDS / 2)
    workload_recorder.write(path)
    path.with_name(path.stem + ".truth.json").write_text(json.dumps(truth, indent=1))
    return truth


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--out", type=Path, default=Path("recording.csv"))
    parser.add_argument("--only", nargs="*", default=[])
    options = parser.parse_args()
    import bench.gpu.profile_workloads  # noqa: F401

    print(json.dumps(run_all(options.seconds, options.out, options.only)))


if __name__ == "__main__":
    # As a module, so that the workloads and this file share one list.
    from bench.gpu import profile_record

    profile_record.main()
