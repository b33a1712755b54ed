"""Panels: five range queries of a dashboard over two hours, compared with Prometheus and VictoriaMetrics over HTTP.

`ratio` compares with Prometheus and `victoria_ratio` with VictoriaMetrics, as in `rules`. VictoriaMetrics has a
different rate(), so only results of Prometheus are checked for equality.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from bench import _peers, rules, telemetry

EXPRESSIONS = (
    "avg(DCGM_FI_DEV_GPU_UTIL)",
    "sum by (namespace) (DCGM_FI_DEV_POWER_USAGE)",
    'DCGM_FI_DEV_GPU_TEMP{Hostname="gpu-0042"}',
    "quantile(0.99, DCGM_FI_DEV_GPU_TEMP)",
    "sum(rate(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION[5m]))",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    rules.add_options(parser)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    fleet = telemetry.Telemetry(options.gpus, options.slots)
    step = telemetry.INTERVAL_MS // 1000
    end, start = fleet.end_ms / 1000, fleet.end_ms / 1000 - (fleet.slots - 1) * step
    comparisons = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        _peers.running_peers(fleet, Path(folder), others=(_peers.PROMETHEUS, _peers.VICTORIA)) as peers,
    ):
        for expr in EXPRESSIONS:
            comparisons[expr] = _peers.compare(
                peers,
                "query_range",
                rounds=options.rounds,
                query=expr,
                start=f"{start:.3f}",
                end=f"{end:.3f}",
                step=str(step),
            )
    return rules.summary(comparisons, fleet, others=[peer.name for peer in peers[1:]])
