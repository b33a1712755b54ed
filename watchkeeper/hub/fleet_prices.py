"""The mean price of a GPU-hour of the fleet or of some nodes, from the price book that the cost page uses.

Incidents, jobs and the status of the hub read prices here, so that all pages show the same money.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from watchkeeper.accounting import price_file
from watchkeeper.catalogue import prices
from watchkeeper.errors import PackError
from watchkeeper.hub.services import Services
from watchkeeper.kit.logs import fields

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MeanPrice:
    """`per_gpu_hour` None: the book cannot be read, no GPU reports its model, or a model has no price."""

    per_gpu_hour: float | None
    currency: str


class FleetPrices:
    def __init__(self, hub: Services) -> None:
        self._fleet = hub.fleet
        self._file = price_file.PriceFile.of_settings(hub.runtime.settings.cost)
        self._of_fleet: tuple[int, prices.PriceBook, MeanPrice] | None = None

    def book(self) -> prices.PriceBook:
        """The price book, which may be read from a file; PackError if it is invalid."""
        return self._file.book()

    async def mean_price(self, nodes: Collection[str] = ()) -> MeanPrice:
        """The mean over the GPUs of these nodes, or of the whole fleet if they are empty or have no known GPU."""
        try:
            book = await asyncio.to_thread(self.book)
        except PackError as error:
            log.warning("price book read failed", extra=fields(error=error))
            return MeanPrice(None, "")
        of_nodes = self._mean(book, nodes) if nodes else None
        if of_nodes is not None:
            return of_nodes
        revision = self._fleet.revision
        if self._of_fleet is None or self._of_fleet[:2] != (revision, book):
            mean = self._mean(book, None) or MeanPrice(book.fallback, book.currency)
            self._of_fleet = (revision, book, mean)
        return self._of_fleet[2]

    async def by_model(self) -> dict[tuple[str, str], MeanPrice]:
        """The price of each GPU model and pool of the fleet; without those that have none."""
        try:
            book = await asyncio.to_thread(self.book)
        except PackError:
            return {}
        rates = {key: book.rate(*key) for key in self._count_models(None)}
        return {key: MeanPrice(rate.per_gpu_hour, book.currency) for key, rate in rates.items() if rate is not None}

    def _count_models(self, nodes: Collection[str] | None) -> Counter[tuple[str, str]]:
        """The number of GPUs of each known model and pool, on these nodes or on all."""
        pools = {node.name: node.pool for node in self._fleet.nodes()}
        return Counter(
            (view.gpu.model, pools.get(view.node, ""))
            for view in self._fleet.gpus()
            if view.gpu.model and (nodes is None or view.node in nodes)
        )

    def _mean(self, book: prices.PriceBook, nodes: Collection[str] | None) -> MeanPrice | None:
        """The mean price of the GPUs of these nodes, or of all; None without a GPU of a known model."""
        gpus = self._count_models(nodes)
        if not gpus:
            return None
        rates = [(book.rate(*key), count) for key, count in gpus.items()]
        if any(rate is None for rate, _ in rates):
            return MeanPrice(None, book.currency)
        total = sum(rate.per_gpu_hour * count for rate, count in rates if rate is not None)
        return MeanPrice(round(total / gpus.total(), 4), book.currency)
