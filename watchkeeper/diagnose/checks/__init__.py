"""One function per cause: `facts -> Finding | None`; None means that no evidence supports the cause.

In: IncidentFacts. Out: a Finding with evidence, next steps and the causes that it rules out. Never here: switches,
timing, logs or guards, which are in `explain.run_checks`; queries to an engine; actions.
"""

from collections.abc import Callable

from watchkeeper.diagnose.checks.gpu_faults import app_illegal_access, ecc_uncorrectable, fell_off_bus, gpu_missing
from watchkeeper.diagnose.checks.pod_placement import waiting_pod
from watchkeeper.diagnose.checks.slowdown import cooling_failure, power_brake, power_cap, thermal_throttle
from watchkeeper.diagnose.checks.straggler_gpu import late_gpu
from watchkeeper.diagnose.checks.training import (
    broken_gpu,
    diverged,
    hung,
    rank_died,
    slow_fabric,
    slow_gpu,
    starved,
    straggler,
)
from watchkeeper.diagnose.checks.unreachable_node import unreachable_node
from watchkeeper.diagnose.checks.workload_faults import gpu_idle_waste, out_of_memory
from watchkeeper.diagnose.evidence import IncidentFacts
from watchkeeper.model.diagnosis import Finding

Check = Callable[[IncidentFacts], Finding | None]
CHECKS: tuple[Check, ...] = (
    fell_off_bus, gpu_missing, ecc_uncorrectable, app_illegal_access, cooling_failure, thermal_throttle,
    power_brake, power_cap, rank_died, hung, straggler, late_gpu, starved, slow_gpu, slow_fabric, broken_gpu, diverged,
    out_of_memory, unreachable_node, waiting_pod, gpu_idle_waste,
)  # fmt: skip
