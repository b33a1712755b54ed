"""A hub that answers from stored samples."""

from __future__ import annotations

from typing import Any

from tests.web.kept_services import NoTargets
from tests.web.small_hub import SmallHub
from watchkeeper.kit import clock
from watchkeeper.model import exemplars
from watchkeeper.model.labels import Labels
from watchkeeper.model.samples import STALE, Sample
from watchkeeper.query import embedded
from watchkeeper.readers.exposition import FamilyMetadata
from watchkeeper.rules import rulefile
from watchkeeper.scrape import jobs, scrape
from watchkeeper.store.head import head

FORM = {"Content-Type": "application/x-www-form-urlencoded"}
RULES = """
groups:
- name: heat
  rules:
  - {alert: Hot, expr: temp > 90, labels: {severity: critical}}
  - {record: 'n:temp:max', expr: max(temp)}
- {name: power, rules: [{alert: Thirsty, expr: watts > 700, labels: {severity: warning}}]}
"""


class StoredTargets(NoTargets):
    """What the agents of these nodes answer."""

    def targets(self) -> list[Any]:
        target = jobs.Target(
            "n1:9400", "http://n1:9400/metrics", Labels({"job": "dcgm"}), "main", job=jobs.ScrapeJob("dcgm")
        )
        return [scrape.TargetState(target, families={"temp": FamilyMetadata("gauge", "Temperature", "celsius")})]

    def dropped_targets(self) -> list[Any]:
        return [jobs.DroppedTarget("dcgm", {"__address__": "n9:9400"})]


class StoredHub(SmallHub):
    """A small hub over a real engine: two nodes with a temperature each, one of them gone."""

    def __post_init__(self) -> None:
        super().__post_init__()
        kept = head.Head()
        self.engine = embedded.EmbeddedEngine(kept)
        self.now_ms = clock.to_ms(self.clock.now()) // 1000 * 1000
        for ago in range(10, 0, -1):
            self.add("temp", self.now_ms - ago * 15_000, 50.0 + ago, node="n1")
        self.add("temp", self.now_ms - 60_000, 70.0, node="n2")
        self.add("temp", self.now_ms - 45_000, STALE, node="n2")
        self.add("watts", self.now_ms - 200_000, 600.0, node="n1")
        kept.metadata.record("temp", "gauge", help="Temperature", unit="celsius")
        work = Labels({"__name__": "work_total", "node": "n1"})
        trace = exemplars.Exemplar(Labels({"trace_id": "ab"}), 2.5, 4500)
        kept.exemplars.add(work, trace)
        self.rules.in_force = [(group, {}) for group in rulefile.read_rules({"heat.yaml": RULES}).groups]
        self.targets = StoredTargets()

    def add(self, name: str, at_ms: int, value: float, **labels: str) -> None:
        self.engine.appender.append([Sample(Labels({"__name__": name, **labels}), at_ms, value)])
