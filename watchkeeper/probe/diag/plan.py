"""Which tests a run has: by level, with the unit, the deadline, and what each of them may disturb.

`diag_run` walks the list for each GPU. Deadlines are for a slow GPU on a busy machine: they end a hang, they do not
judge speed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

LEVELS = (1, 2, 3, 4)
USUAL_SECONDS = {3: 180.0, 4: 4 * 3600.0}
LONGEST_SECONDS = 7 * 24 * 3600.0
# A run of hours returns to the memory this often.
CYCLE_SECONDS = 600.0
# Importing torch from a cold network disk, and the first context of a driver that has to wake its GPUs.
START_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class DiagStep:
    """One order to a working child; `is_alone`: no other GPU of the node may do such a step meanwhile."""

    test: str
    unit: str
    limit_seconds: float
    is_alone: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)


MEMORY = "memory_patterns"
SHARED_SHARE = 0.5
TERAFLOPS = "TFLOP/s"
GIGABYTES = "GB/s"
# GPUs behind one PCIe switch share its uplink, so PCIe is measured one GPU after the other.
LEVEL_2 = (
    DiagStep("pcie_to_gpu", GIGABYTES, 60.0, is_alone=True),
    DiagStep("pcie_from_gpu", GIGABYTES, 60.0, is_alone=True),
    DiagStep("memory_copy", GIGABYTES, 60.0),
    DiagStep(MEMORY, GIGABYTES, 300.0),
    *(DiagStep(f"matmul_{name}", TERAFLOPS, 120.0) for name in ("bf16", "fp16", "fp8", "tf32", "fp32", "fp64")),
)
P2P = DiagStep("p2p", GIGABYTES, 300.0)
UNITS = {step.test: step.unit for step in (*LEVEL_2, P2P)} | {"stress": TERAFLOPS}


def steps(level: int, seconds: float, *, is_shared: bool = False) -> tuple[DiagStep, ...]:
    """What a GPU is asked to do at this level, with `seconds` of full load at the levels that have it.

    `is_shared`: somebody else works on it, so the memory test leaves half of what is free to them.
    """
    if level < 2:
        return ()
    share = {"share": SHARED_SHARE} if is_shared else {}
    found = [replace(step, options=share) if step.test == MEMORY else step for step in LEVEL_2]
    left, number = seconds if level > 2 else 0.0, 0
    while left > 0:
        part = left if left < 1.5 * CYCLE_SECONDS else CYCLE_SECONDS
        number += 1
        found.append(DiagStep("stress", TERAFLOPS, part + 120.0, options={"seconds": part}))
        found.append(DiagStep(MEMORY, GIGABYTES, 600.0, options={"rounds": 4, "seed": 100 * number, **share}))
        left -= part
    return tuple(found)
