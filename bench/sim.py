"""The simulator: GPU-seconds per CPU second, with every page rendered each 15 s.

The reference is formatting as many numbers as the pages have, in the same run, so that `page_ratio` is comparable
between machines.
"""

from __future__ import annotations

import argparse
import time

from watchkeeper.sim.simulation import SimSettings, Simulation

SCRAPE_SECONDS = 15


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gpus", type=int, default=10_000, help="size of the fleet")
    parser.add_argument("--seconds", type=int, default=60, help="simulated seconds to run")


def measure(options: argparse.Namespace) -> dict[str, float]:
    cpu_before_start = time.process_time()
    simulation = Simulation(SimSettings(gpus=options.gpus))
    start_cpu = time.process_time() - cpu_before_start
    nodes = [node.name for node in simulation.layout.nodes]
    step_cpu = page_cpu = 0.0
    pages = page_bytes = lines = 0
    for second in range(options.seconds):
        cpu_before = time.process_time()
        simulation.advance(1)
        step_cpu += time.process_time() - cpu_before
        if second % SCRAPE_SECONDS == 0:
            cpu_before = time.process_time()
            for name in nodes:
                page = simulation.node_page(name)
                page_bytes += len(page)
                lines += page.count(b"\n")
            page_cpu += time.process_time() - cpu_before
            pages += len(nodes)
    reference = _format_reference(lines)
    return {
        "gpus": options.gpus,
        "simulated_seconds": options.seconds,
        "start_cpu_seconds": round(start_cpu, 3),
        "step_milliseconds": round(1000 * step_cpu / options.seconds, 3),
        "page_milliseconds": round(1000 * page_cpu / pages, 4),
        "page_kilobytes": round(page_bytes / pages / 1000, 1),
        "page_ratio": round(page_cpu / reference, 2),
        "core_share": round((step_cpu + page_cpu) / options.seconds, 4),
        "gpu_seconds_per_cpu_second": round(options.gpus * options.seconds / (step_cpu + page_cpu)),
    }


def _format_reference(lines: int) -> float:
    """CPU seconds to format this many numbers into lines."""
    numbers = [float(number) for number in range(1000)]
    cpu_before = time.process_time()
    for _ in range(max(1, lines // 1000)):
        "".join([f"metric {number}\n" for number in numbers]).encode()
    return time.process_time() - cpu_before
