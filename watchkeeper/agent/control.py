"""What may be asked of this node's agent, and how: by files in its state directory, and by orders that it fetches.

`agent.py` makes one `Control` and runs its loops beside the others: the watch for a pause of profiling and, with a key,
the work orders of the hub. Nothing here listens.
"""

from __future__ import annotations

import asyncio
import time as system_time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from watchkeeper.agent import node_facts, profiling, push
from watchkeeper.agent.gpus.gpu_samples import Snapshot
from watchkeeper.errors import CollectError
from watchkeeper.kit import clock, own_metrics

if TYPE_CHECKING:
    from watchkeeper.agent.orders import order_context, orders

LOOK_SECONDS = 1.0
# A round of sixteen GPUs ends within a second or two.
REST_SECONDS, REST_LOOK_SECONDS = 10.0, 0.05
ORDERS = "orders"


@dataclass(frozen=True, slots=True)
class ControlSettings:
    """`node` None: no key, so no orders are fetched. `scan_options` is how an ordered scan looks at this node."""

    node: orders.AgentIdentity | None = None
    logs_gpu_context: bool = False
    scan_options: tuple[str, ...] = ()
    # None: those that are usual.
    tools: order_context.NodeTools | None = None
    roots: node_facts.Roots = field(default_factory=node_facts.Roots)


class PausableSampler(Protocol):
    def pause_profiling(self, is_paused: bool) -> None: ...

    def release_gpus(self, is_resting: bool) -> None: ...

    @property
    def has_released_gpus(self) -> bool: ...

    def snapshot(self) -> Snapshot: ...


class Control:
    def __init__(
        self, settings: ControlSettings, directory: Path, *, time: clock.Clock, registry: own_metrics.Registry
    ) -> None:
        self._settings = settings
        self._directory = directory
        self._time = time
        self._pause_file = profiling.PauseFile(directory)
        self._pause = profiling.PauseWatch(self._pause_file, registry)
        self._orders = registry.counter(
            "watchkeeper_agent_orders_total", "Work orders that were done or refused, by kind and result"
        )

    def apply_pause(self, sampler: PausableSampler | None) -> None:
        """Hand on whether profiling is paused now."""
        pause = self._pause.update(self._time.now(), system_time.monotonic())
        if sampler is not None:
            sampler.pause_profiling(pause is not None)

    def gpu_context_in_logs(self, sampler: Callable[[], PausableSampler | None]) -> AbstractContextManager[None]:
        """The GPUs' context in the logs, while the block runs, where it is wanted."""
        if not self._settings.logs_gpu_context:
            return nullcontext()

        def snapshot() -> Snapshot:
            reading = sampler()
            return Snapshot() if reading is None else reading.snapshot()

        from watchkeeper.agent import log_context

        return log_context.in_logs(snapshot)

    @property
    def takes_orders(self) -> bool:
        return self._settings.node is not None

    async def follow_orders(self, hub: push.HubEndpoint, sampler: Callable[[], PausableSampler | None]) -> None:
        """For ever; only where `takes_orders`."""
        # Imported here: a node that takes no orders saves a MiB.
        from watchkeeper.agent.orders import order_context, order_ledger, orders

        assert self._settings.node is not None
        ledger = order_ledger.OrderLedger(self._directory / ORDERS, now=self._time.now())
        bench = order_context.OrderContext(
            self._pause_file,
            self._settings.scan_options,
            tools=self._settings.tools or order_context.NodeTools(),
            roots=self._settings.roots,
            gpus_released=lambda: gpus_released(sampler()),
        )
        desk = orders.OrderWorker(self._settings.node, ledger, bench, time=self._time, counter=self._orders)
        await orders.follow_orders(hub, desk, time=self._time)


@asynccontextmanager
async def gpus_released(sampler: PausableSampler | None) -> AsyncIterator[None]:
    """The agent's own reader has no GPU open while the block runs; CollectError if it does not let go."""
    if sampler is None:
        yield
        return
    sampler.release_gpus(True)
    try:
        until = system_time.monotonic() + REST_SECONDS
        while not sampler.has_released_gpus:
            if system_time.monotonic() > until:
                raise CollectError(f"the agent's own reader has not let go of the GPUs within {REST_SECONDS:g} s")
            await asyncio.sleep(REST_LOOK_SECONDS)
        yield
    finally:
        sampler.release_gpus(False)
