"""Stand-ins for the child processes of a run: a worker with a given behaviour, and an NVML child with made-up GPUs."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from watchkeeper.probe.diag import child_processes, runner, software_facts

NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
UUID = "GPU-00000000-0000-0000-0000-00000000000"
MODEL = "NVIDIA H200"

# The rates of a healthy H200, slightly below the expected values.
WORKER = r"""
import json, os, sys, time
rates = json.loads(sys.argv[2])
def send(**words):
    print(json.dumps(words), flush=True)
if sys.argv[1] == "no_torch":
    send(type="no_torch", why="torch cannot be imported: No module named 'torch'"); sys.exit()
if sys.argv[1] == "start_failed":
    send(type="start_failed", why="CUDA does not start: error 802"); sys.exit()
send(type="ready", torch="2", gpu="fake")
for line in sys.stdin:
    test = json.loads(line)["test"]
    if sys.argv[1] == "log":
        with open(sys.argv[3], "a") as log:
            log.write(f"{os.environ['CUDA_VISIBLE_DEVICES'][-1]} begins {test}\n")
    if sys.argv[1:2] == ["hang"] and test == sys.argv[3]:
        time.sleep(600)
    if sys.argv[1:2] == ["crash"] and test == sys.argv[3]:
        print("an illegal memory access was encountered", file=sys.stderr); os.abort()
    if sys.argv[1:2] == ["corrupt"] and test == sys.argv[3]:
        send(type="done", test=test, measured=rates[test], problems=["1 of 64 elements are wrong"], facts={}); continue
    if sys.argv[1:2] == ["slow"] and test == sys.argv[3]:
        rates[test] /= 2
    if sys.argv[1] == "log":
        with open(sys.argv[3], "a") as log:
            log.write(f"{os.environ['CUDA_VISIBLE_DEVICES'][-1]} ends {test}\n")
    send(type="progress", test=test, done=0.5)
    send(type="done", test=test, measured=rates.get(test, 400.0), problems=[], facts={"bytes": 8})
"""
NVML = r"""
import json, sys, time
rows = json.loads(sys.argv[1])
later = json.loads(sys.argv[2])
print(json.dumps({"type": "ready", "driver": "580.1", "library": "13.580.1", "count": len(rows)}), flush=True)
for number in range(10_000):
    if number == 2 and later.get("event"):
        print(json.dumps({"type": "event", **later["event"]}), flush=True)
    if number == 2 and later.get("end"):
        sys.exit(7)
    if number == 2 and later.get("silent"):
        time.sleep(600)
    if number >= 2:
        rows = [{**row, "values": {**row["values"], **later.get("values", {})}} for row in rows]
    print(json.dumps({"type": "reading", "gpus": rows}), flush=True)
    time.sleep(0.05)
"""
CUDA = 'print(\'{"type": "cuda", "library": 13000, "code": 0, "name": "CUDA_SUCCESS", "count": 2}\')'
RATES = {
    "pcie_to_gpu": 54.0,
    "pcie_from_gpu": 54.0,
    "memory_copy": 4100.0,
    "memory_patterns": 4100.0,
    "matmul_bf16": 780.0,
    "matmul_fp16": 750.0,
    "matmul_fp8": 1400.0,
    "matmul_tf32": 400.0,
    "matmul_fp32": 50.0,
    "matmul_fp64": 62.0,
    "stress": 660.0,
}
IDLE = {
    "DCGM_FI_DEV_GPU_TEMP": 40,
    "DCGM_FI_DEV_FB_USED": 0,
    "DCGM_FI_DEV_GPU_UTIL": 0,
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": 0,
    "watchkeeper_gpu_slowdown_margin_celsius": 49,
    "watchkeeper_gpu_clocks_event_reason": {"power_cap": 1, "hw_thermal": 0},
}


def row(index: int = 0, *, programs: list[list[int | None]] | None = None, **values: Any) -> dict[str, Any]:
    """One GPU as `nvml_child` writes it."""
    identity = {"uuid": f"{UUID}{index}", "pci": f"00000000:0{index}:00.0", "model": MODEL, "minor": str(index)}
    return {"index": index, "identity": identity, "values": IDLE | values, "programs": programs or []}


def programs(
    folder: Path, rows: list[dict[str, Any]], *worker: str, later: Mapping[str, Any] | None = None
) -> dict[str, child_processes.ChildProgram]:
    """Child programs for DiagOptions: the worker's behaviour, and what the NVML child sends `later`."""
    for name, text in (("worker", WORKER), ("nvml", NVML), ("cuda", CUDA)):
        (folder / f"{name}.py").write_text(text)
    behaviour, *rest = worker or ("healthy",)
    given = (behaviour, json.dumps(RATES), *rest)
    return {
        "work": child_processes.ChildProgram(("-u", str(folder / "worker.py"), *given), sys.executable),
        "nvml": child_processes.ChildProgram(
            ("-u", str(folder / "nvml.py"), json.dumps(rows), json.dumps(later or {}))
        ),
        "cuda": child_processes.ChildProgram((str(folder / "cuda.py"),)),
    }


def options(folder: Path, *worker: str, gpus: int = 1, **changes: Any) -> runner.DiagOptions:
    later, rows = changes.pop("later", None), changes.pop("rows", None) or [row(index) for index in range(gpus)]
    for name in ("nvidiactl", "nvidia-uvm", *(f"nvidia{each['index']}" for each in rows)):
        (folder / name).touch()
    chosen = {
        "engine": runner.TORCH,
        "programs": programs(folder, rows, *worker, later=later),
        "paths": software_facts.SystemPaths(folder, folder),
    }
    return runner.DiagOptions(**(chosen | changes))
