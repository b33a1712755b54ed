"""Panels: the five range queries of a dashboard over two hours, over HTTP, beside Prometheus and VictoriaMetrics.

`ratio` compares with Prometheus and `victoria_ratio` with VictoriaMetrics, as in `rules`. VictoriaMetrics has its own
idea of rate(), so only Prometheus' answers are compared with ours.
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
    asked = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        _peers.filled(fleet, Path(folder), others=(_peers.PROMETHEUS, _peers.VICTORIA)) as peers,
    ):
        for expr in EXPRESSIONS:
            asked[expr] = _peers.compare(
                peers,
                "query_range",
                rounds=options.rounds,
                query=expr,
                start=f"{start:.3f}",
                end=f"{end:.3f}",
                step=str(step),
            )
    return rules.summary(asked, fleet, others=[peer.name for peer in peers[1:]])
