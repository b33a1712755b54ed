"""Adds the state of the GPUs to the agent's own log records.

A record whose fields name a GPU gets the state of that GPU, a record about the node gets the state of all GPUs, in the
format of `instrument.log_context`. The states come from the sampler's last snapshot, so a log line causes no driver
call.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from watchkeeper.agent.gpus.gpu_samples import GpuSample, Snapshot
from watchkeeper.instrument import log_context

# Record fields that name a GPU by index, UUID or PCI address, and fields of records about the node.
GPU_FIELDS = ("gpu", "uuid", "pci")
NODE_FIELDS = ("node", "cause", "code")


class GpuContextFilter(logging.Filter):
    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        super().__init__()
        self._snapshot = snapshot

    def filter(self, record: logging.LogRecord) -> bool:
        fields: Mapping[str, Any] = getattr(record, "fields", {})
        gpu_names = [str(fields[name]) for name in GPU_FIELDS if fields.get(name) is not None]
        if gpu_names or any(name in fields for name in NODE_FIELDS):
            gpus = self._snapshot().gpus
            states = [build_state(gpu) for gpu in gpus if not gpu_names or has_any_name(gpu, gpu_names)]
            record.fields = {**fields, "gpu_states": [state.plain() for state in states]}
        return True


@contextmanager
def add_gpu_context(snapshot: Callable[[], Snapshot]) -> Iterator[None]:
    """Add the GPU context to the records of all current handlers while the block runs."""
    context, handlers = GpuContextFilter(snapshot), list(logging.getLogger().handlers)
    for handler in handlers:
        handler.addFilter(context)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(context)


def has_any_name(gpu: GpuSample, names: list[str]) -> bool:
    return any(name in (str(gpu.index), gpu.identity["uuid"], gpu.identity["pci"]) for name in names)


def build_state(gpu: GpuSample) -> log_context.GpuState:
    def read_value(name: str) -> float | None:
        value = gpu.values.get(name)
        return None if value is None or isinstance(value, Mapping) else value

    return log_context.GpuState(
        gpu.index,
        gpu.identity["uuid"],
        temperature_celsius=read_value("DCGM_FI_DEV_GPU_TEMP"),
        utilisation_percent=read_value("DCGM_FI_DEV_GPU_UTIL"),
        power_watts=read_value("DCGM_FI_DEV_POWER_USAGE"),
        memory_used_mib=read_value("DCGM_FI_DEV_FB_USED"),
        sm_clock_mhz=read_value("DCGM_FI_DEV_SM_CLOCK"),
        # None: unknown, because this GPU reports no events.
        xid_count=None if gpu.last_xid is None else sum(gpu.xids.values()),
    )
