"""On a real GPU: what GPU context costs a log line, and that a pause leaves the profiling counters to other tools.

`python bench/gpu/control_bench.py` prints one JSON object. The reference for the log line is a filter that asks NVML
for each record, as people write it; both are measured in the same run. The counters are asked for with ncu, before our
sampler runs, while it reads GPM ten times a second, and while it is paused.
"""

from __future__ import annotations

import json
import logging
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from watchkeeper.agent.gpus import reader_watch, sampler
from watchkeeper.instrument.log_context import GpuContext
from watchkeeper.kit import clock
from watchkeeper.model import fleet

RECORDS = 5_000
PROFILED = b"DCGM_FI_PROF_SM_ACTIVE{"


class Naive(logging.Filter):
    """Asks the driver for every record."""

    def __init__(self) -> None:
        super().__init__()
        import pynvml

        pynvml.nvmlInit()
        self._nvml = pynvml
        self._gpus = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]

    def filter(self, record: logging.LogRecord) -> bool:
        nvml = self._nvml
        record.gpu_states = [
            {
                "temperature_celsius": nvml.nvmlDeviceGetTemperature(gpu, 0),
                "utilisation_percent": nvml.nvmlDeviceGetUtilizationRates(gpu).gpu,
                "power_watts": nvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
                "memory_used_mib": nvml.nvmlDeviceGetMemoryInfo(gpu).used >> 20,
                "sm_clock_mhz": nvml.nvmlDeviceGetClockInfo(gpu, 1),
            }
            for gpu in self._gpus
        ]
        return True


def cost(filter: logging.Filter) -> dict[str, float]:
    """Microseconds that one record spends in the filter."""
    record = logging.makeLogRecord({"msg": "step"})
    took = []
    for _ in range(RECORDS):
        began = time.perf_counter_ns()
        filter.filter(record)
        took.append((time.perf_counter_ns() - began) / 1000)
        time.sleep(0.0002)
    took.sort()
    return {"p50_us": round(statistics.median(took), 2), "p99_us": round(took[int(0.99 * RECORDS)], 2)}


def log_lines() -> dict[str, Any]:
    context = GpuContext(every_seconds=1)
    until = time.monotonic() + 20
    record: Any = logging.makeLogRecord({})
    while context.filter(record) and not record.gpu_states and time.monotonic() < until:
        time.sleep(0.05)
    found = {"shown": record.gpu_context, "context": cost(context), "naive": cost(Naive())}
    context.close()
    return found


def counters() -> str:
    """What ncu says when it asks for a counter of one kernel now."""
    program = "import torch; x = torch.ones(1024, device='cuda'); (x + x).sum().item()"
    line = ["ncu", "--set", "full", "-c", "3", sys.executable, "-c", program]
    ran = subprocess.run(line, capture_output=True, text=True, check=False, timeout=120)
    said = [" ".join(words.split()) for words in (ran.stdout + ran.stderr).splitlines()]
    telling = [words for words in said if "ERROR" in words or words.startswith(("Executed Ipc", "==PROF== Profiling"))]
    return f"exit {ran.returncode}: {'; '.join(telling)[:600]}"


def pause() -> dict[str, Any]:
    node = os.uname().nodename
    often = sampler.SamplerSettings(
        fleet.Place("bench", node=node), node, limits=reader_watch.ReaderLimits(interval_seconds=0.1)
    )
    reading = sampler.Sampler(often, clock.ScaledClock())
    found = {"before": counters()}
    reading.start()
    try:
        _until(lambda: PROFILED in reading.page())
        found["while_sampling"] = counters()
        reading.pause_profiling(True)
        _until(lambda: PROFILED not in reading.page())
        found["while_paused"] = counters()
        began = time.monotonic()
        reading.pause_profiling(False)
        _until(lambda: PROFILED in reading.page())
        found["back_after_seconds"] = f"{time.monotonic() - began:.1f}"
    finally:
        reading.stop()
    return found


def _until(true: Any) -> None:
    until = time.monotonic() + 30
    while not true():
        if time.monotonic() > until:
            raise SystemExit("it never came true")
        time.sleep(0.05)


if __name__ == "__main__":
    print(json.dumps({"log_lines": log_lines(), "pause": pause()}, indent=2))
