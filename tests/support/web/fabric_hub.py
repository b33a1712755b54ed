"""A hub that counts and sweeps a fabric."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from tests.support.clusters.fabrics import fabric_of, without_link
from tests.support.manual_clock import ManualClock
from tests.web.kept_services import START
from tests.web.small_hub import SmallHub
from watchkeeper.clusters.fabric import fabric_watch
from watchkeeper.config import settings as config
from watchkeeper.kit import clock
from watchkeeper.model.labels import Labels
from watchkeeper.model.samples import Sample
from watchkeeper.query import embedded
from watchkeeper.store.head import head

NOW_MS = clock.to_ms(START)
HOST = {"Hostname": "gpu-r01-01", "port": "1"}


class CountingHub(SmallHub):
    """A hub whose engine holds what a test has put into it."""

    def __post_init__(self) -> None:
        self.clock = ManualClock(START)
        super().__post_init__()
        self.fabric = fabric_watch.FabricWatch(config.FabricSettings(), "main")
        self.engine = embedded.EmbeddedEngine(head.Head(retention_ms=86_400_000))

    def count(self, metric: str, labels: dict[str, str], *, per_minute: float) -> None:
        """An hour of a counter that grows steadily."""
        series = Labels({**labels, "__name__": metric})
        self.engine.appender.append(
            [Sample(series, NOW_MS - 60_000 * back, (60 - back) * per_minute) for back in range(60, -1, -1)]
        )

    def tell(self, metric: str, labels: dict[str, str], value: float) -> None:
        self.engine.appender.append([Sample(Labels({**labels, "__name__": metric}), NOW_MS, value)])


def host_ports(hub: CountingHub, *devices: str) -> None:
    for device in devices:
        hub.tell("node_infiniband_state_id", HOST | {"device": device}, 4.0)
        hub.tell("node_infiniband_rate_bytes_per_second", HOST | {"device": device}, 50e9)


def swept(hub: CountingHub, **changes: Any) -> None:
    hub.fabric.accept_sweep(fabric_of(), START - timedelta(seconds=20))
    if changes.get("dark"):
        hub.fabric.accept_sweep(without_link(fabric_of(), changes["dark"]), START - timedelta(seconds=10))
