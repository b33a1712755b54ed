"""The command line: run times of `watchkeeper --help` and of a `query` against a running hub.

Commands run in turn with an empty Python that imports click; the best time of each counts. `*_ratio` is the time of a
command divided by this reference.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests import servers
from tests.support.running_product import WATCHKEEPER

# An empty process with the one library that every command needs.
REFERENCE = [sys.executable, "-c", "import click"]
EXPRESSION = "count by (modelName) (DCGM_FI_DEV_GPU_TEMP)"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gpus", type=int, default=64, help="size of the simulated fleet")
    parser.add_argument("--rounds", type=int, default=15, help="runs of each command; the best time counts")


def measure(options: argparse.Namespace) -> dict[str, float]:
    port = servers.free_port()
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as folder:
        line = [*WATCHKEEPER, "up", "--gpus", str(options.gpus), "--port", str(port), "--data", f"{folder}/kept"]
        with servers.running(line, ready_url=f"{url}/-/ready", log=Path(folder) / "log"):
            seconds_by_command = fastest(
                {
                    "reference": REFERENCE,
                    "help": [*WATCHKEEPER, "--help"],
                    "query": [*WATCHKEEPER, "query", EXPRESSION, "--hub", url],
                    "query_json": [*WATCHKEEPER, "query", EXPRESSION, "--json", "--hub", url],
                },
                rounds=options.rounds,
            )
    numbers = {f"{name}_milliseconds": round(1000 * seconds, 1) for name, seconds in seconds_by_command.items()}
    numbers |= {
        f"{name}_ratio": round(seconds_by_command[name] / seconds_by_command["reference"], 2)
        for name in ("help", "query")
    }
    return numbers | {"load_average": round(os.getloadavg()[0], 2)}


def fastest(commands: dict[str, list[str]], *, rounds: int) -> dict[str, float]:
    """The best wall time of each command, with all commands in turn."""
    best = dict.fromkeys(commands, math.inf)
    for _ in range(rounds):
        for name, line in commands.items():
            started_at = time.perf_counter()
            subprocess.run(line, check=True, stdout=subprocess.DEVNULL)
            best[name] = min(best[name], time.perf_counter() - started_at)
    return best
