"""GPU metrics of a rank that waits in a real NCCL collective, which the rules of `jobs.yaml` call spinning.

    python bench/gpu/hang_bench.py [--channels 0 16 32] [--seconds 12]

Two NCCL ranks run on one GPU with different NCCL_HOSTID, because NCCL refuses two ranks of one host on one GPU. Both
train for some time; then the second rank does not enter an all-reduce that the first has entered, like a rank that has
died. `--channels` is the minimum number of blocks of the collective; with 0, NCCL chooses, 16 or more over NVLink.
Prints the median of each column for each phase as one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
COLUMNS = (
    "gpu_util",
    "power_w",
    "sm_util",
    "sm_occupancy",
    "dram_bw_util",
    "any_tensor_util",
    "pcie_rx_per_sec",
    "sm_clock",
)
# NVML's utilisation is an average over up to a second, and power falls slowly.
SETTLE_SECONDS = 3.0
SIZES = {"waits_small": 256, "waits_large": 2**27}


def run_rank(seconds: float) -> None:
    """Run one of the two ranks; rank 0 reports start and end of each phase."""
    import torch

    torch.cuda.set_device(0)
    torch.distributed.init_process_group("nccl")
    is_first = torch.distributed.get_rank() == 0
    buffers = {phase: torch.ones(size, device="cuda") for phase, size in SIZES.items()}
    _train(torch, 1.0)
    _report_phase(is_first, "trains", begins=True)
    _train(torch, seconds)
    _report_phase(is_first, "trains", begins=False)
    for phase, buffer in buffers.items():
        _report_phase(is_first, phase, begins=True)
        if not is_first:
            time.sleep(seconds)
        torch.distributed.all_reduce(buffer)
        torch.cuda.synchronize()
        _report_phase(is_first, phase, begins=False)
    torch.distributed.destroy_process_group()


def _train(torch: Any, seconds: float) -> None:
    """Matrix products and all-reduces, until one rank reports that the time is over."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    gradients, is_over = torch.ones(2**20, device="cuda"), torch.zeros(1, device="cuda")
    ends = time.monotonic() + seconds
    while not is_over:
        for _ in range(20):
            a @ b
        torch.distributed.all_reduce(gradients)
        is_over.fill_(time.monotonic() > ends)
        torch.distributed.all_reduce(is_over)


def _report_phase(is_first: bool, phase: str, *, begins: bool) -> None:
    if is_first:
        print(json.dumps({"phase": phase, "begins": begins, "t": time.time()}), flush=True)


def record_ranks(channels: int, seconds: float) -> dict[str, Any]:
    """Run both ranks while the recorder of the product records the GPU."""
    recorder = subprocess.Popen(
        [sys.executable, "-m", "watchkeeper.probe.profile.recorder_child", "0.5"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    rows: list[dict[str, Any]] = []
    assert recorder.stdin is not None
    assert recorder.stdout is not None
    output = recorder.stdout
    reader = threading.Thread(target=lambda: rows.extend(json.loads(line) for line in output))
    reader.start()
    try:
        phases = _run_ranks(channels, seconds)
    finally:
        recorder.stdin.close()
        recorder.wait(timeout=30)
        reader.join(timeout=30)
    return {phase: _median_in_phase(rows, begin, end) for phase, (begin, end) in phases.items()}


def _run_ranks(channels: int, seconds: float) -> dict[str, tuple[float, float]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": "2",
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_IB_DISABLE": "1",
        "NCCL_DEBUG": "WARN",
        **({"NCCL_MIN_NCHANNELS": str(channels), "NCCL_MIN_CTAS": str(channels)} if channels else {}),
    }
    command = [sys.executable, __file__, "--rank", "--seconds", str(seconds)]
    children = [
        subprocess.Popen(
            command,
            env={**os.environ, **environment, "RANK": str(number), "NCCL_HOSTID": f"host-{number}"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    outputs = [child.communicate(timeout=60 + 10 * seconds)[0] for child in children]
    phase_events = [json.loads(line) for line in outputs[0].splitlines() if line.startswith('{"phase"')]
    started_at = {mark["phase"]: mark["t"] for mark in phase_events if mark["begins"]}
    return {mark["phase"]: (started_at[mark["phase"]], mark["t"]) for mark in phase_events if not mark["begins"]}


def _median_in_phase(rows: list[dict[str, Any]], begin: float, end: float) -> dict[str, float]:
    """Medians of the rows of a phase, without its first seconds and its last one."""
    rows_read = [message["row"] for message in rows if "row" in message]
    inside = [row for row in rows_read if begin + SETTLE_SECONDS <= row["t"] <= end - 1]
    numbers: dict[str, float] = {"seconds": round(end - begin, 1), "rows": len(inside)}
    for name in COLUMNS:
        values = [row["values"][name] for row in inside if name in row["values"]]
        if values:
            numbers[name] = round(statistics.median(values), 3)
    return numbers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--channels", type=int, nargs="+", default=[0, 16, 32])
    parser.add_argument("--seconds", type=float, default=12.0, help="seconds of each phase")
    parser.add_argument("--rank", action="store_true", help="used by the script itself")
    options = parser.parse_args()
    if options.rank:
        run_rank(options.seconds)
        return
    print(
        json.dumps({str(channels): record_ranks(channels, options.seconds) for channels in options.channels}, indent=1)
    )


if __name__ == "__main__":
    main()
