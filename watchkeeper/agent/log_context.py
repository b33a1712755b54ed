"""GPU context in the agent's own logs: what the GPUs did when something was said about them.

With `--log-gpu-context`, `agent.control` puts `AgentContext` on the handlers of the log. A record whose fields name a
GPU gets that GPU's state, one about the node gets all of them, in the words of `instrument.gpu_states`; others stay as
they are. The states come from the sampler's last snapshot: a log line asks no driver.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from watchkeeper.agent.gpus.gpu_samples import GpuSample, Snapshot
from watchkeeper.instrument import gpu_states

# Fields of our records that name a GPU, by index, UUID or PCI address, and those that name the node.
GPU_FIELDS = ("gpu", "uuid", "pci")
NODE_FIELDS = ("node", "cause", "code")


class AgentContext(logging.Filter):
    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        super().__init__()
        self._snapshot = snapshot

    def filter(self, record: logging.LogRecord) -> bool:
        named: Mapping[str, Any] = getattr(record, "fields", {})
        about = [str(named[name]) for name in GPU_FIELDS if named.get(name) is not None]
        if about or any(name in named for name in NODE_FIELDS):
            gpus = self._snapshot().gpus
            found = [state_of(gpu) for gpu in gpus if not about or is_named(gpu, about)]
            record.fields = {**named, "gpu_states": [state.plain() for state in found]}
        return True


@contextmanager
def in_logs(snapshot: Callable[[], Snapshot]) -> Iterator[None]:
    """Every handler that is there now gets the context, while the block runs."""
    context, handlers = AgentContext(snapshot), list(logging.getLogger().handlers)
    for handler in handlers:
        handler.addFilter(context)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(context)


def is_named(gpu: GpuSample, names: list[str]) -> bool:
    return any(name in (str(gpu.index), gpu.identity["uuid"], gpu.identity["pci"]) for name in names)


def state_of(gpu: GpuSample) -> gpu_states.GpuState:
    def number(name: str) -> float | None:
        value = gpu.values.get(name)
        return None if value is None or isinstance(value, Mapping) else value

    return gpu_states.GpuState(
        gpu.index,
        gpu.identity["uuid"],
        temperature_celsius=number("DCGM_FI_DEV_GPU_TEMP"),
        utilisation_percent=number("DCGM_FI_DEV_GPU_UTIL"),
        power_watts=number("DCGM_FI_DEV_POWER_USAGE"),
        memory_used_mib=number("DCGM_FI_DEV_FB_USED"),
        sm_clock_mhz=number("DCGM_FI_DEV_SM_CLOCK"),
        # None: this GPU reports no events, so nobody knows.
        xid_count=None if gpu.last_xid is None else sum(gpu.xids.values()),
    )
