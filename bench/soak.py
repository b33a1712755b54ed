"""A simulated day with flat memory: a real hub over a simulated fleet, sped up, with faults, repairs and readers.

Each simulated hour a fault strikes and heals; all the while panels and pages are asked for. Resident memory of the hub
is the kernel's figure at hours 2, 12 and 24: the median of half a minute before, because a block that is being written
takes some MiB for moments. Blocks are kept for 6 hours here, so that what grows with them has its
size by the second look. A machine that is too slow for the speed shows in `turns_missed`, turns of rules that the hub
did not come to in time. `--trace` says on standard error which lines of code hold more at each look than at the one
before; it takes twice the time, and memory of its own.
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
from bench.overload import missed_turns
from tests import servers
from tests.support.running_product import WATCHKEEPER

FAULTS = ("xid-31", "xid-94", "cuda-oom", "fan-failure", "xid-63")
ASKED = (
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
    parser.add_argument("--hours", type=float, default=24.0, help="simulated")
    parser.add_argument("--speed", type=float, default=150.0, help="simulated seconds in a second")
    parser.add_argument("--at", type=float, nargs="+", default=[2.0, 12.0, 24.0], help="hours to look at memory")
    parser.add_argument("--trace", action="store_true", help="say which lines of code hold more at each look")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as kept, world(Path(kept), options) as (simulator, url, pid):
        began, held, asked, hour = time.monotonic(), dict[str, float](), 0, 0
        recent = deque[float](maxlen=round(HALF_MINUTE / PAUSE_SECONDS))
        looks = sorted(at for at in options.at if at <= options.hours)
        while (passed := (time.monotonic() - began) * options.speed / HOUR) < options.hours:
            if passed >= hour + 1:
                hour = int(passed)
                strike(simulator, FAULTS[hour % len(FAULTS)])
            recent.append(resident_mib(pid))
            while looks and passed >= looks[0]:
                held[f"hour {looks.pop(0):g}"] = round(median(recent), 1)
                sys.stderr.write(f"soak: {passed:.1f} of {options.hours:g} h, {held}\n")
                if options.trace:
                    sys.stderr.write(what_grew(Path(kept) / TRACE, pid))
            read(url + ASKED[asked % len(ASKED)])
            asked += 1
            time.sleep(PAUSE_SECONDS)
        held |= {f"hour {at:g}": round(median(recent), 1) for at in looks}
        *_, middle, last = [0.0, *held.values()]
        return {
            "gpus": options.gpus,
            "hours": options.hours,
            "memory_mib": held,
            "growth_since_the_look_before": round(last / middle, 3) if middle else None,
            "incidents": len(read(f"{url}/api/incidents?open=0&limit=1000")["incidents"]),
            "questions": asked,
            "turns_missed": missed_turns(url),
            "core_share": round(cpu_seconds(pid) / (time.monotonic() - began), 2),
        }


@contextlib.contextmanager
def world(folder: Path, options: argparse.Namespace) -> Iterator[tuple[str, str, int]]:
    """The addresses of a simulated fleet and of the hub over it, and the hub's process."""
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


def what_grew(file: Path, pid: int) -> str:
    """What the hub's trace says since the last look."""
    file.unlink(missing_ok=True)
    os.kill(pid, signal.SIGUSR2)
    until = time.monotonic() + TRACE_SECONDS
    while not file.exists():
        if time.monotonic() > until:
            raise RuntimeError(f"the hub did not write its trace within {TRACE_SECONDS:g} s")
        time.sleep(0.1)
    told = json.loads(file.read_text())
    return "\n  ".join([", ".join(f"{name} {told[name]}" for name in told if name != "grown"), *told["grown"]]) + "\n"


def strike(simulator: str, scenario: str) -> None:
    """Let a fault begin wherever it can."""
    request = urllib.request.Request(f"{simulator}/faults", json.dumps({"scenario": scenario}).encode(), method="POST")
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=60):
        pass


def read(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return json.loads(answer.read())
