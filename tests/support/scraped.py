"""What a scrape of hand-written pages stores."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.support.loopback import Loopback, serve
from watchkeeper.errors import StoreFull
from watchkeeper.model.labels import Labels
from watchkeeper.model.samples import is_stale
from watchkeeper.scrape.fleet import ScrapedInventory
from watchkeeper.scrape.jobs import Target
from watchkeeper.scrape.scrape import ScrapeSettings, TargetLoop
from watchkeeper.store.exemplars import Exemplars
from watchkeeper.store.interfaces import AnySample, Appended
from watchkeeper.store.metadata import Metadata

OWN = {"job": "gpu", "instance": "n1", "cluster": "sim"}


@dataclass
class Kept:
    """An appender that remembers every scrape, and takes no histograms."""

    known: dict[Labels, int] = field(default_factory=dict)
    appends: list[tuple[str, Sequence[int], int, Sequence[float]]] = field(default_factory=list)
    forgotten: set[int] = field(default_factory=set)
    max_series: int = 1000
    asked: int = 0
    metadata: Metadata | None = None
    exemplars: Exemplars | None = None

    def series_id(self, label_set: Labels) -> int:
        self.asked += 1
        if len(self.known) >= self.max_series and label_set not in self.known:
            raise StoreFull(f"{len(self.known)} series, the limit is {self.max_series}")
        return self.known.setdefault(label_set, len(self.known) + len(self.forgotten))

    def append_scrape(self, group_key: Hashable, ids: Sequence[int], at_ms: int, values: Sequence[float]) -> Appended:
        assert len(ids) == len(set(ids)) == len(values)
        self.appends.append((str(group_key), ids, at_ms, values))
        forgotten = len(self.forgotten.intersection(ids))
        return Appended(len(ids) - forgotten, {"forgotten": forgotten} if forgotten else {})

    def append(self, samples: Iterable[AnySample], *, group_key: str | None = None) -> Appended:
        return Appended(0, {"histogram": len(list(samples))})

    def active_series(self, group_key: Hashable, since_ms: int) -> Mapping[int, Labels]:
        return {}

    def sync(self) -> int:
        return 0

    def forget(self, name: str) -> None:
        """Let a series go, as a store does after its retention: its id means nothing from now on."""
        for labels in [labels for labels in self.known if labels.name == name]:
            self.forgotten.add(self.known.pop(labels))

    def told(self, append: int = -1) -> dict[str, float | str]:
        """One append as `metric{labels of the exporter}` to value."""
        names = {number: str(labels.without(*OWN)) for labels, number in self.known.items()}
        _, ids, _, values = self.appends[append]
        pairs = {names[n]: "stale" if is_stale(v) else v for n, v in zip(ids, values, strict=True)}
        return {name: value for name, value in pairs.items() if name != "scrape_duration_seconds"}


Story = Callable[[TargetLoop, Kept, ScrapedInventory], Awaitable[None]]


def with_pages(*pages: bytes, settings: ScrapeSettings | None = None) -> Callable[[Story], None]:
    """Run a story with a target that serves these pages one after another."""
    remaining = list(pages)

    def run(story: Story) -> None:
        async def told() -> None:
            async with serve(lambda _: remaining.pop(0)) as server:
                sink, inventory = Kept(), ScrapedInventory()
                loop = TargetLoop(target(server), settings or ScrapeSettings(), sink=sink, inventory=inventory)
                await story(loop, sink, inventory)
                await loop.close(99_000)

        asyncio.run(told())

    return run


def target(server: Loopback, path: str = "/metrics") -> Target:
    return Target(server.address, server.origin + path, Labels(OWN), "sim", node="n1")
