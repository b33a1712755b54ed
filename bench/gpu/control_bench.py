"""On a real GPU: the overhead of GPU context for a log line, and whether a pause frees the profiling counters.

`python bench/gpu/control_bench.py` prints one JSON object. The reference for the log line is a filter that calls NVML
for each record, in the same run. ncu reads the counters before our sampler runs, while it reads GPM ten times a second,
and while it is paused.
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


class NaiveFilter(logging.Filter):
    """A log filter that calls NVML for every record."""

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


def measure_filter(filter: logging.Filter) -> dict[str, float]:
    """Microseconds of the filter for one record."""
    record = logging.makeLogRecord({"msg": "step"})
    durations = []
    for _ in range(RECORDS):
        started_ns = time.perf_counter_ns()
        filter.filter(record)
        durations.append((time.perf_counter_ns() - started_ns) / 1000)
        time.sleep(0.0002)
    durations.sort()
    return {"p50_us": round(statistics.median(durations), 2), "p99_us": round(durations[int(0.99 * RECORDS)], 2)}


def log_lines() -> dict[str, Any]:
    context = GpuContext(every_seconds=1)
    deadline = time.monotonic() + 20
    record: Any = logging.makeLogRecord({})
    while context.filter(record) and not record.gpu_states and time.monotonic() < deadline:
        time.sleep(0.05)
    numbers = {"shown": record.gpu_context, "context": measure_filter(context), "naive": measure_filter(NaiveFilter())}
    context.close()
    return numbers


def read_counters_with_ncu() -> str:
    """The output of ncu when it reads the counters of one kernel."""
    program = "import torch; x = torch.ones(1024, device='cuda'); (x + x).sum().item()"
    command = ["ncu", "--set", "full", "-c", "3", sys.executable, "-c", program]
    completed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    output_lines = [" ".join(words.split()) for words in (completed.stdout + completed.stderr).splitlines()]
    relevant_lines = [
        words for words in output_lines if "ERROR" in words or words.startswith(("Executed Ipc", "==PROF== Profiling"))
    ]
    return f"exit {completed.returncode}: {'; '.join(relevant_lines)[:600]}"


def measure_pause() -> dict[str, Any]:
    node = os.uname().nodename
    settings = sampler.SamplerSettings(
        fleet.Place("bench", node=node), node, limits=reader_watch.ReaderLimits(interval_seconds=0.1)
    )
    running_sampler = sampler.Sampler(settings, clock.ScaledClock())
    results = {"before": read_counters_with_ncu()}
    running_sampler.start()
    try:
        _wait_until(lambda: PROFILED in running_sampler.page())
        results["while_sampling"] = read_counters_with_ncu()
        running_sampler.pause_profiling(True)
        _wait_until(lambda: PROFILED not in running_sampler.page())
        results["while_paused"] = read_counters_with_ncu()
        started_at = time.monotonic()
        running_sampler.pause_profiling(False)
        _wait_until(lambda: PROFILED in running_sampler.page())
        results["back_after_seconds"] = f"{time.monotonic() - started_at:.1f}"
    finally:
        running_sampler.stop()
    return results


def _wait_until(condition: Any) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit("the condition did not hold within 30 s")
        time.sleep(0.05)


if __name__ == "__main__":
    print(json.dumps({"log_lines": log_lines(), "pause": measure_pause()}, indent=2))
