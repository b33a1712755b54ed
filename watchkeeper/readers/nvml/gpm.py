"""GPM: the profiling counters that NVML gives on Hopper and later, without a profiler.

A metric is what happened between two samples of the same GPU, or of one MIG slice of it. `Gpm` keeps
the last sample, so each `read` covers the time since the one before; the first read has nothing to say.
The NVML session owns one for each GPU or slice and scales the metrics (percent, MiB/s) to DCGM's units.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any


def is_supported(nvml: Any, gpu: Any) -> bool:
    return bool(nvml.nvmlGpmQueryDeviceSupport(gpu).isSupportedDevice)


class Gpm:
    """The two samples of one GPU; `slice_id` is the GPU instance of a MIG slice."""

    def __init__(self, nvml: Any, gpu: Any, metrics: Sequence[int], *, slice_id: int | None = None) -> None:
        self._nvml = nvml
        self._gpu = gpu
        self._slice_id = slice_id
        self._older = nvml.nvmlGpmSampleAlloc()
        self._newer = nvml.nvmlGpmSampleAlloc()
        self._has_older = False
        self._question = nvml.c_nvmlGpmMetricsGet_t()
        self._question.version = nvml.NVML_GPM_METRICS_GET_VERSION
        self._question.numMetrics = len(metrics)
        for place, metric in enumerate(metrics):
            self._question.metrics[place].metricId = metric

    def read(self) -> Mapping[int, float]:
        """Metric id to value since the last read; a metric this GPU does not have is absent."""
        if self._slice_id is None:
            self._nvml.nvmlGpmSampleGet(self._gpu, self._newer)
        else:
            self._nvml.nvmlGpmMigSampleGet(self._gpu, self._slice_id, self._newer)
        self._older, self._newer = self._newer, self._older
        if not self._has_older:
            self._has_older = True
            return {}
        question = self._question
        # What was newer a moment ago is the end of the span; what it was exchanged with is the beginning.
        question.sample1, question.sample2 = self._newer, self._older
        self._nvml.nvmlGpmMetricsGet(question)
        found = {}
        for metric in question.metrics[: question.numMetrics]:
            if metric.nvmlReturn == self._nvml.NVML_SUCCESS and math.isfinite(metric.value):
                found[metric.metricId] = metric.value
        return found

    def free(self) -> None:
        for sample in (self._older, self._newer):
            self._nvml.nvmlGpmSampleFree(sample)
