"""Rules: 17 rule expressions as instant queries over HTTP, compared with Prometheus.

`ratio` is the geometric mean of the speed relative to Prometheus; `slowest_ratio` is the lowest of them. Expressions
whose result differs from Prometheus' are in `unequal`; then the numbers are invalid.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

from bench import _peers, telemetry

EXPRESSIONS = (
    "DCGM_FI_DEV_GPU_TEMP > 85",
    "DCGM_FI_DEV_XID_ERRORS > 0",
    "avg_over_time(DCGM_FI_DEV_GPU_UTIL[15m]) < 30",
    "max_over_time(DCGM_FI_DEV_GPU_TEMP[5m]) > 85",
    "increase(DCGM_FI_DEV_ECC_DBE_VOL_TOTAL[5m]) > 0",
    "rate(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION[5m]) > 690000",
    "changes(DCGM_FI_DEV_XID_ERRORS[10m]) > 0",
    "deriv(DCGM_FI_DEV_FB_USED[1h]) > 100",
    "predict_linear(DCGM_FI_DEV_FB_USED[30m], 14400) > 81559",
    "quantile_over_time(0.95, DCGM_FI_DEV_POWER_USAGE[1h]) > 700",
    "stddev_over_time(DCGM_FI_PROF_GR_ENGINE_ACTIVE[30m]) > 0.3",
    "DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE) * 100 > 90",
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE < 0.05 and on (UUID) DCGM_FI_DEV_FB_USED > 1000",
    "avg by (Hostname) (DCGM_FI_DEV_GPU_TEMP) > 60",
    "sum by (namespace) (avg_over_time(DCGM_FI_PROF_PIPE_TENSOR_ACTIVE[30m]))",
    "count by (Hostname) (DCGM_FI_DEV_GPU_TEMP) != 8",
    'count({__name__=~"DCGM_FI_.*"})',
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gpus", type=int, default=512, help="size of the fleet; use 10000 for published results")
    parser.add_argument("--slots", type=int, default=480, help="readings of each GPU, 15 s apart")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each query; the best time counts")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    fleet = telemetry.Telemetry(options.gpus, options.slots)
    at = f"{fleet.end_ms / 1000:.3f}"
    with (
        tempfile.TemporaryDirectory() as folder,
        _peers.running_peers(fleet, Path(folder), others=(_peers.PROMETHEUS,)) as peers,
    ):
        comparisons = {
            expr: _peers.compare(peers, "query", rounds=options.rounds, query=expr, time=at) for expr in EXPRESSIONS
        }
    return summary(comparisons, fleet, others=[peer.name for peer in peers[1:]])


def summary(
    comparisons: dict[str, _peers.QueryComparison], fleet: telemetry.Telemetry, *, others: list[str]
) -> dict[str, Any]:
    """The numbers of compared queries, with the comparison with Prometheus as `ratio`."""
    numbers: dict[str, Any] = {"gpus": fleet.gpus, "series": fleet.gpus * len(telemetry.METRICS)}
    for other in others:
        ratios = [comparison.ratio(other) for comparison in comparisons.values()]
        prefix = "" if other == _peers.PROMETHEUS else "victoria_"
        numbers[f"{prefix}ratio"] = round(_peers.geometric_mean(ratios), 2)
        numbers[f"{prefix}slowest_ratio"] = round(min(ratios), 2)
    return numbers | {
        "unequal": [expr for expr, comparison in comparisons.items() if not comparison.is_equal],
        "milliseconds": {expr: comparison.milliseconds for expr, comparison in comparisons.items()},
        "load_average": round(os.getloadavg()[0], 2),
    }
