"""Controls the agent of this node: by a file in its state directory, and by work orders that it fetches.

`agent.py` builds one `Control` and runs its loops beside the others: the check for a pause of profiling and, with a
key, the work orders of the hub. Nothing here listens on a port.
"""

from __future__ import annotations

import asyncio
import time as system_time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from watchkeeper.agent import node_facts, profiling, push
from watchkeeper.agent.gpus.gpu_samples import Snapshot
from watchkeeper.errors import CollectError
from watchkeeper.kit import clock, own_metrics

if TYPE_CHECKING:
    from watchkeeper.agent.gpus.sampler import Sampler
    from watchkeeper.agent.orders import order_context, orders

POLL_SECONDS = 1.0
# A round of sixteen GPUs ends within a second or two.
RELEASE_TIMEOUT_SECONDS, RELEASE_POLL_SECONDS = 10.0, 0.05
ORDERS = "orders"


@dataclass(frozen=True, slots=True)
class ControlSettings:
    """`identity` None: without a key, no orders are fetched. `scan_options` are the options of an ordered scan."""

    identity: orders.AgentIdentity | None = None
    logs_gpu_context: bool = False
    scan_options: tuple[str, ...] = ()
    # None: the default tools.
    tools: order_context.NodeTools | None = None
    roots: node_facts.Roots = field(default_factory=node_facts.Roots)


class Control:
    """`sampler` returns the agent's sampler, or None while it reads no GPUs."""

    def __init__(
        self,
        settings: ControlSettings,
        directory: Path,
        sampler: Callable[[], Sampler | None],
        *,
        time: clock.Clock,
        registry: own_metrics.Registry,
    ) -> None:
        self.accepts_orders = settings.identity is not None
        self._settings = settings
        self._sampler = sampler
        self._directory = directory
        self._time = time
        self._pause_file = profiling.PauseFile(directory)
        self._pause_watch = profiling.PauseWatch(self._pause_file, registry)
        self._order_counter = registry.counter(
            "watchkeeper_agent_orders_total", "Work orders that were run or refused, by kind and result"
        )

    async def apply_pause(self) -> None:
        pause = self._pause_watch.update(self._time.now(), system_time.monotonic())
        if (sampler := self._sampler()) is not None:
            sampler.pause_profiling(pause is not None)

    def add_gpu_context_to_logs(self) -> AbstractContextManager[None]:
        if not self._settings.logs_gpu_context:
            return nullcontext()

        def snapshot() -> Snapshot:
            return Snapshot() if (sampler := self._sampler()) is None else sampler.snapshot()

        from watchkeeper.agent import log_context

        return log_context.add_gpu_context(snapshot)

    async def follow_orders(self, hub: push.HubEndpoint) -> None:
        """Fetch and run work orders forever; call it only if `accepts_orders`."""
        # Imported here: a node that accepts no orders saves a MiB.
        from watchkeeper.agent.orders import order_context, order_ledger, orders

        identity = self._settings.identity
        assert identity is not None
        ledger = order_ledger.OrderLedger(self._directory / ORDERS, now=self._time.now())
        context = order_context.OrderContext(
            self._pause_file,
            self._settings.scan_options,
            tools=self._settings.tools or order_context.NodeTools(),
            roots=self._settings.roots,
            gpus_released=lambda: gpus_released(self._sampler()),
        )
        worker = orders.OrderWorker(identity, ledger, context, time=self._time, counter=self._order_counter)
        await orders.follow_orders(hub, worker, time=self._time)


@asynccontextmanager
async def gpus_released(sampler: Sampler | None) -> AsyncIterator[None]:
    """Close the agent's GPUs while the block runs; CollectError if its reader process does not close them in time."""
    if sampler is None:
        yield
        return
    sampler.release_gpus(True)
    try:
        deadline = system_time.monotonic() + RELEASE_TIMEOUT_SECONDS
        while not sampler.has_released_gpus:
            if system_time.monotonic() > deadline:
                timeout = f"{RELEASE_TIMEOUT_SECONDS:g} s"
                raise CollectError(f"the agent's reader process did not close the GPUs within {timeout}")
            await asyncio.sleep(RELEASE_POLL_SECONDS)
        yield
    finally:
        sampler.release_gpus(False)
