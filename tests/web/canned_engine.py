"""An engine with a fixed result for every query: a value per GPU, chosen by the metric of the query."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np

from tests.web.small_fleet import FleetGpu, SmallFleet
from watchkeeper.errors import QueryError
from watchkeeper.hub import samples
from watchkeeper.kit import clock
from watchkeeper.model import exemplars
from watchkeeper.model.labels import Labels
from watchkeeper.query import engine
from watchkeeper.store.head import head

T = TypeVar("T")

UNREADABLE = "many-to-many matching is not allowed"
METRICS = {
    "SM_ACTIVE": 0.72,
    "GPU_UTIL": 88.0,
    "POWER_USAGE": 560.0,
    "GPU_TEMP": 61.0,
    "SM_CLOCK": 1755.0,
    "FB_USED": 98_000.0,
    "PCIE_TX": 9e9,
    "NVLINK_TX": 120e9,
    "TENSOR": 0.4,
}


@dataclass
class Readings:
    """What a test says about them: GPUs without samples, GPUs with another pod, and what objectives have recorded."""

    silent: set[str] = field(default_factory=set)
    moved: dict[str, str] = field(default_factory=dict)
    recorded: dict[Labels, float] = field(default_factory=dict)


class CannedEngine:
    """Answers every expression with a steady number per GPU, chosen by the metric it names."""

    local = None

    def __init__(self, inventory: SmallFleet, readings: Readings, time: clock.Clock) -> None:
        self._fleet, self._readings, self._clock = inventory, readings, time
        self.appender = head.Head()

    def instant(self, expr: str, at_ms: int) -> engine.QueryResult:
        if "slo:" in expr:
            kept = self._readings.recorded
            return answer(list(kept), [at_ms], np.array(list(kept.values())))
        if "CLOCKS_EVENT" in expr or ("watchkeeper_gpu_" in expr and "DCGM_" not in expr):
            return answer([], [at_ms], np.zeros((0, 1)))
        rows = [gpu_view for gpu_view in self._fleet.fleet_gpus if gpu_view.gpu.uuid not in self._readings.silent]
        if 'UUID="' in expr:
            rows = [gpu_view for gpu_view in rows if gpu_view.gpu.uuid in expr]
        values = np.array([[self._value(row, expr)] for row in rows])
        return answer([self._labels(row) for row in rows], [at_ms], values)

    def range(self, expr: str, span: engine.QueryRange) -> engine.QueryResult:
        size = next((size for name, size in METRICS.items() if name in expr), 93.0)
        size *= 100 if expr.startswith("100 * ") and size < 1 else 1
        times, opened = span.times, clock.to_ms(self._clock.now() - timedelta(minutes=4))
        wave = size * (1 + 0.02 * np.sin(times / 47_000) + 0.015 * np.sin(times / 11_000))
        if 'UUID="' in expr:
            wave = np.where(times > opened, np.nan, wave)
        present = ~np.isnan(wave)
        frame = engine.Frame([Labels()], times, np.nan_to_num(wave)[None, :], present[None, :])
        return engine.QueryResult(engine.ResultType.MATRIX, frame)

    def series(self, matchers: Sequence[Sequence[engine.Matcher]], start_ms: int, end_ms: int) -> list[Labels]:
        return [
            self._labels(gpu_view).with_labels(__name__="DCGM_FI_DEV_GPU_TEMP")
            for gpu_view in self._fleet.fleet_gpus[:4]
        ]

    def label_names(self, matchers: Sequence[Sequence[engine.Matcher]], start_ms: int, end_ms: int) -> list[str]:
        return sorted({name for labels in self.series(matchers, start_ms, end_ms) for name in labels})

    def label_values(
        self, name: str, matchers: Sequence[Sequence[engine.Matcher]], *, start_ms: int, end_ms: int
    ) -> list[str]:
        return sorted({labels[name] for labels in self.series(matchers, start_ms, end_ms) if name in labels})

    def metadata(self) -> dict[str, tuple[str, str, str]]:
        return {"DCGM_FI_DEV_GPU_TEMP": ("gauge", "GPU temperature", "")}

    def exemplars(
        self, matchers: Sequence[Sequence[engine.Matcher]], start_ms: int, end_ms: int
    ) -> list[tuple[Labels, list[exemplars.Exemplar]]]:
        return []

    def for_rules(self) -> CannedEngine:
        return self

    def close(self) -> None:
        return None

    def limits(self) -> engine.QueryLimits:
        return engine.QueryLimits()

    def _labels(self, gpu_view: FleetGpu) -> Labels:
        named = {"UUID": gpu_view.gpu.uuid, "gpu": str(gpu_view.gpu.index), "Hostname": gpu_view.node}
        job = zlib.crc32(gpu_view.node.encode()) % 16
        if job < 15:
            pod = self._readings.moved.get(gpu_view.gpu.uuid, f"train-{job}")
            named |= {"namespace": ("research", "vision", "speech")[job % 3], "pod": pod}
        return Labels(named)

    def _value(self, gpu_view: FleetGpu, expr: str) -> float:
        size = next((size for name, size in METRICS.items() if name in expr), 1.0)
        spread = zlib.crc32(f"{gpu_view.node}".encode()) % 100 / 100
        own = zlib.crc32(gpu_view.gpu.uuid.encode()) % 100 / 100
        if "SM_ACTIVE" in expr or "TENSOR" in expr:
            share = 0.0 if spread < 0.08 else min(1.0, 0.35 + 0.6 * spread + 0.06 * own)
            return share * (100 if expr.startswith("100 * ") else 1)
        return size * (0.8 + 0.2 * spread + 0.04 * own)


class CannedQueries(samples.Queries):
    """Questions that fail while a test wants them to."""

    failing = False

    async def instant(self, expr: str, at_ms: int | None = None) -> engine.QueryResult:
        if self.failing:
            raise QueryError(UNREADABLE)
        return await super().instant(expr, at_ms)

    async def run_for_user(self, work: Callable[[], T], *, timeout_seconds: float = samples.QUERY_TIMEOUT_SECONDS) -> T:
        if self.failing:
            raise QueryError(UNREADABLE)
        return await super().run_for_user(work, timeout_seconds=timeout_seconds)


def answer(labels: list[Labels], times: list[int], values: Any) -> engine.QueryResult:
    matrix = values.reshape(len(labels), len(times))
    frame = engine.Frame(labels, np.array(times), matrix, np.ones(matrix.shape, dtype=np.bool_))
    return engine.QueryResult(engine.ResultType.VECTOR, frame)
