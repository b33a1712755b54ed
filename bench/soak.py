"""Memory over a simulated day: a real hub over a simulated fleet, faster than real time, with faults and queries.

Each simulated hour has a fault; panels and pages are queried all the time. Resident memory of the hub is measured at
hours 2, 12 and 24, as the median of half a minute, because writing a block takes some MiB for a short time. Blocks are
kept for 6 hours, so that everything that grows with them has its final size at the second measurement. If the machine
is too slow for the speed, `turns_missed` counts missed rule evaluations. `--trace` prints which lines of code allocated
more since the last measurement; it takes twice the time, and memory.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
import urllib.request
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from bench.idle import cpu_seconds, resident_mib
from bench.overload import missed_evaluations
from tests import servers
from tests.support.running_product import WATCHKEEPER

FAULTS = ("xid-31", "xid-94", "cuda-oom", "fan-failure", "xid-63")
PATHS = (
    "/api/v1/query?query=avg%20by%20(Hostname)%20(DCGM_FI_DEV_GPU_TEMP)",
    "/api/incidents?open=0&limit=200",
    "/api/fleet",
    "/api/status",
)
HOUR = 3600.0
PAUSE_SECONDS, HALF_MINUTE = 0.5, 30.0
TRACE, TRACE_SECONDS = "trace.json", 120.0


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gpus", type=int, default=64)
    parser.add_argument("--hours", type=float, default=24.0, help="simulated hours")
    parser.add_argument("--speed", type=float, default=150.0, help="simulated seconds per second")
    parser.add_argument(
        "--at", type=float, nargs="+", default=[2.0, 12.0, 24.0], help="hours at which memory is measured"
    )
    parser.add_argument(
        "--trace", action="store_true", help="print the lines of code that allocated more since the last measurement"
    )


def measure(options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, running_world(Path(folder), options) as (simulator, url, pid):
        started_at, memory_by_hour, request_count, hour = time.monotonic(), dict[str, float](), 0, 0
        recent = deque[float](maxlen=round(HALF_MINUTE / PAUSE_SECONDS))
        hours_to_measure = sorted(at for at in options.at if at <= options.hours)
        while (elapsed_hours := (time.monotonic() - started_at) * options.speed / HOUR) < options.hours:
            if elapsed_hours >= hour + 1:
                hour = int(elapsed_hours)
                inject_fault(simulator, FAULTS[hour % len(FAULTS)])
            recent.append(resident_mib(pid))
            while hours_to_measure and elapsed_hours >= hours_to_measure[0]:
                memory_by_hour[f"hour {hours_to_measure.pop(0):g}"] = round(median(recent), 1)
                sys.stderr.write(f"soak: {elapsed_hours:.1f} of {options.hours:g} h, {memory_by_hour}\n")
                if options.trace:
                    sys.stderr.write(read_growth(Path(folder) / TRACE, pid))
            read_json(url + PATHS[request_count % len(PATHS)])
            request_count += 1
            time.sleep(PAUSE_SECONDS)
        memory_by_hour |= {f"hour {at:g}": round(median(recent), 1) for at in hours_to_measure}
        *_, previous, last = [0.0, *memory_by_hour.values()]
        return {
            "gpus": options.gpus,
            "hours": options.hours,
            "memory_mib": memory_by_hour,
            "growth_since_the_look_before": round(last / previous, 3) if previous else None,
            "incidents": len(read_json(f"{url}/api/incidents?open=0&limit=1000")["incidents"]),
            "questions": request_count,
            "turns_missed": missed_evaluations(url),
            "core_share": round(cpu_seconds(pid) / (time.monotonic() - started_at), 2),
        }


@contextlib.contextmanager
def running_world(folder: Path, options: argparse.Namespace) -> Iterator[tuple[str, str, int]]:
    """Run a simulated fleet and a hub; yields both URLs and the pid of the hub."""
    fleet, port, epoch = servers.free_port(), servers.free_port(), time.time()
    simulator, url = f"http://127.0.0.1:{fleet}", f"http://127.0.0.1:{port}"
    speed = ["--speed", str(options.speed), "--epoch", repr(epoch)]
    line = [*WATCHKEEPER, "sim", "run", "--gpus", str(options.gpus), "--port", str(fleet), *speed]
    hub = [sys.executable, "-m", "bench._soak_hub", simulator, str(folder / "kept"), str(port), speed[1], speed[3]]
    hub += [str(folder / TRACE)] if options.trace else []
    with (
        servers.running(line, ready_url=f"{simulator}/sd", log=folder / "sim.log"),
        servers.running(hub, ready_url=f"{url}/-/ready", log=folder / "hub.log") as server,
    ):
        yield simulator, url, server.pid


def read_growth(file: Path, pid: int) -> str:
    """The growth since the last measurement, from the hub's trace."""
    file.unlink(missing_ok=True)
    os.kill(pid, signal.SIGUSR2)
    deadline = time.monotonic() + TRACE_SECONDS
    while not file.exists():
        if time.monotonic() > deadline:
            raise RuntimeError(f"the hub did not write its trace within {TRACE_SECONDS:g} s")
        time.sleep(0.1)
    report = json.loads(file.read_text())
    return (
        "\n  ".join([", ".join(f"{name} {report[name]}" for name in report if name != "grown"), *report["grown"]])
        + "\n"
    )


def inject_fault(simulator: str, scenario: str) -> None:
    """Inject a fault at a place that the simulator selects."""
    request = urllib.request.Request(f"{simulator}/faults", json.dumps({"scenario": scenario}).encode(), method="POST")
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=60):
        pass


def read_json(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=60) as response:
        return json.loads(response.read())
