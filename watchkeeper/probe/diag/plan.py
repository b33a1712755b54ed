"""The tests of a run by level, with unit, timeout and options.

`runner` plans the steps of each GPU. Timeouts allow for a slow GPU on a busy node: they end a hang, they do not judge
speed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

LEVELS = (1, 2, 3, 4)
DEFAULT_SECONDS = {3: 180.0, 4: 4 * 3600.0}
MAX_SECONDS = 7 * 24 * 3600.0
# A run of hours repeats the memory test this often.
CYCLE_SECONDS = 600.0
# Importing torch from a cold network disk, and the first CUDA context when the driver has to initialise GPUs.
START_TIMEOUT_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class DiagStep:
    """One request to a worker; an exclusive step runs on only one GPU of the node at a time."""

    test: str
    unit: str
    timeout_seconds: float
    is_exclusive: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)


MEMORY = "memory_patterns"
SHARED_SHARE = 0.5
TERAFLOPS = "TFLOP/s"
GIGABYTES = "GB/s"
# GPUs behind one PCIe switch share its uplink, so PCIe is measured on one GPU at a time.
LEVEL_2 = (
    DiagStep("pcie_to_gpu", GIGABYTES, 60.0, is_exclusive=True),
    DiagStep("pcie_from_gpu", GIGABYTES, 60.0, is_exclusive=True),
    DiagStep("memory_copy", GIGABYTES, 60.0),
    DiagStep(MEMORY, GIGABYTES, 300.0),
    *(DiagStep(f"matmul_{name}", TERAFLOPS, 120.0) for name in ("bf16", "fp16", "fp8", "tf32", "fp32", "fp64")),
)
P2P = DiagStep("p2p", GIGABYTES, 300.0)
UNITS = {step.test: step.unit for step in (*LEVEL_2, P2P)} | {"stress": TERAFLOPS}


def plan_steps(level: int, seconds: float, *, is_shared: bool = False) -> tuple[DiagStep, ...]:
    """The steps for one GPU; `seconds` is the length of full load. On a shared GPU, half of its free memory is."""
    if level < 2:
        return ()
    share = {"share": SHARED_SHARE} if is_shared else {}
    planned = [replace(step, options=share) if step.test == MEMORY else step for step in LEVEL_2]
    remaining_seconds, cycle = seconds if level > 2 else 0.0, 0
    while remaining_seconds > 0:
        load_seconds = remaining_seconds if remaining_seconds < 1.5 * CYCLE_SECONDS else CYCLE_SECONDS
        cycle += 1
        planned.append(DiagStep("stress", TERAFLOPS, load_seconds + 120.0, options={"seconds": load_seconds}))
        planned.append(DiagStep(MEMORY, GIGABYTES, 600.0, options={"rounds": 4, "seed": 100 * cycle, **share}))
        remaining_seconds -= load_seconds
    return tuple(planned)
