"""A hub with a rule, and a GPU that it fires for."""

from __future__ import annotations

from datetime import timedelta

from tests.support.manual_clock import ManualClock
from tests.web.kept_services import START
from tests.web.small_hub import SmallHub
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


class HotHub(SmallHub):
    """GPU 0 was hot for ten minutes of the last hour, GPU 1 for one."""

    def __post_init__(self) -> None:
        self.clock = ManualClock(START)
        super().__post_init__()
        self.engine = embedded.EmbeddedEngine(head.Head(retention_ms=86_400_000))
        for gpu, hot in (("0", range(30, 40)), ("1", range(20, 21))):
            series = Labels({"__name__": "temperature", "gpu": gpu})
            readings = [
                Sample(series, NOW_MS - 60_000 * back, 95.0 if back in hot else 60.0) for back in range(60, -1, -1)
            ]
            self.engine.appender.append(readings)

        (group,) = rulefile.read_rules({"heat.yaml": RULES}).groups
        self.rules.in_force = [(group, {})]
        self.rules.active = [
            alerts.Alert(Labels({"alertname": "GpuHot", "gpu": str(gpu)}), state, START - timedelta(seconds=gpu), 91.0)
            for gpu in range(300)
            for state in [alerts.AlertState.FIRING if gpu == 299 else alerts.AlertState.PENDING]
        ]
