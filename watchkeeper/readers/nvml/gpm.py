"""Read GPM metrics: the profiling counters that NVML provides on Hopper and later, without a profiler.

Each `read` covers the time since the previous read; the first read is empty. The NVML session has one `Gpm` for each
GPU or MIG instance and scales the metrics (percent, MiB/s) to DCGM's units.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any


def is_supported(nvml: Any, gpu: Any) -> bool:
    return bool(nvml.nvmlGpmQueryDeviceSupport(gpu).isSupportedDevice)


class Gpm:
    """The two samples of one GPU; `slice_id` is the GPU instance id of a MIG instance."""

    def __init__(self, nvml: Any, gpu: Any, metrics: Sequence[int], *, slice_id: int | None = None) -> None:
        self._nvml = nvml
        self._gpu = gpu
        self._slice_id = slice_id
        self._older = nvml.nvmlGpmSampleAlloc()
        self._newer = nvml.nvmlGpmSampleAlloc()
        self._has_older = False
        self._request = nvml.c_nvmlGpmMetricsGet_t()
        self._request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        self._request.numMetrics = len(metrics)
        for index, metric in enumerate(metrics):
            self._request.metrics[index].metricId = metric

    def read(self) -> Mapping[int, float]:
        """Metric id to value since the last read; a metric that this GPU does not have is absent."""
        if self._slice_id is None:
            self._nvml.nvmlGpmSampleGet(self._gpu, self._newer)
        else:
            self._nvml.nvmlGpmMigSampleGet(self._gpu, self._slice_id, self._newer)
        self._older, self._newer = self._newer, self._older
        if not self._has_older:
            self._has_older = True
            return {}
        request = self._request
        # After the exchange, `_older` is the sample just taken, the end of the interval, and `_newer` is its start.
        request.sample1, request.sample2 = self._newer, self._older
        self._nvml.nvmlGpmMetricsGet(request)
        metrics = request.metrics[: request.numMetrics]
        read = (metric for metric in metrics if metric.nvmlReturn == self._nvml.NVML_SUCCESS)
        return {metric.metricId: metric.value for metric in read if math.isfinite(metric.value)}

    def free(self) -> None:
        for sample in (self._older, self._newer):
            self._nvml.nvmlGpmSampleFree(sample)
