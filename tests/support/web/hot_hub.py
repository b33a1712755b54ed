"""A hub with a rule, and a GPU that it fires for."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from tests.web.fake_hub import START, FakeHub
from watchkeeper.kit import clock
from watchkeeper.model import alerts
from watchkeeper.model.labels import Labels
from watchkeeper.model.samples import Sample
from watchkeeper.query import embedded
from watchkeeper.rules import rulefile
from watchkeeper.store.head import head

NOW_MS = clock.to_ms(START)
RULES = """
groups:
  - name: heat
    rules:
      - record: gpu:hottest
        expr: max(temperature)
      - alert: GpuHot
        expr: temperature > 85
        for: 2m
        labels: {severity: warning, cause: cooling_failure}
        annotations: {summary: "GPU {{ $labels.gpu }} is hot"}
"""


class HotHub(FakeHub):
    """GPU 0 was hot for ten minutes of the last hour, GPU 1 for one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.clock = clock.ManualClock(START)
        self.engine = embedded.EmbeddedEngine(head.Head(retention_ms=86_400_000))  # type: ignore[assignment]
        for gpu, hot in (("0", range(30, 40)), ("1", range(20, 21))):
            series = Labels({"__name__": "temperature", "gpu": gpu})
            readings = [
                Sample(series, NOW_MS - 60_000 * back, 95.0 if back in hot else 60.0) for back in range(60, -1, -1)
            ]
            self.engine.append(readings)  # type: ignore[arg-type]

    def rule_groups(self) -> list[Any]:
        (group,) = rulefile.read({"heat.yaml": RULES}).groups
        return [(group, {})]

    def alerts(self) -> list[alerts.Alert]:
        return [
            alerts.Alert(Labels({"alertname": "GpuHot", "gpu": str(gpu)}), state, START - timedelta(seconds=gpu), 91.0)
            for gpu in range(300)
            for state in [alerts.AlertState.FIRING if gpu == 299 else alerts.AlertState.PENDING]
        ]
