"""A hub that answers from stored samples."""

from __future__ import annotations

from typing import Any

from tests.web.fake_hub import FakeHub
from watchkeeper.kit import clock
from watchkeeper.model import exemplars
from watchkeeper.model.labels import Labels
from watchkeeper.model.samples import STALE, Sample
from watchkeeper.query import embedded
from watchkeeper.readers.exposition import Family
from watchkeeper.rules import rulefile
from watchkeeper.scrape import discovery, jobs, scrape
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


class StoredHub(FakeHub):
    """The fake hub over a real engine: two nodes with a temperature each, one of them gone."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.engine = embedded.EmbeddedEngine(head.Head())  # type: ignore[assignment]
        self.now_ms = clock.to_ms(self.clock.now()) // 1000 * 1000
        for ago in range(10, 0, -1):
            self.add("temp", self.now_ms - ago * 15_000, 50.0 + ago, node="n1")
        self.add("temp", self.now_ms - 60_000, 70.0, node="n2")
        self.add("temp", self.now_ms - 45_000, STALE, node="n2")
        self.add("watts", self.now_ms - 200_000, 600.0, node="n1")
        self.engine.note_metadata("temp", "gauge", help="Temperature", unit="celsius")  # type: ignore[attr-defined]
        work = Labels({"__name__": "work_total", "node": "n1"})
        trace = exemplars.Exemplar(Labels({"trace_id": "ab"}), 2.5, 4500)
        self.engine.note_exemplar(work, trace)  # type: ignore[attr-defined]
        self.groups = rulefile.read({"heat.yaml": RULES}).groups

    def add(self, name: str, at_ms: int, value: float, **labels: str) -> None:
        self.engine.append([Sample(Labels({"__name__": name, **labels}), at_ms, value)])  # type: ignore[arg-type]

    def rule_groups(self) -> list[Any]:
        return [(group, {}) for group in self.groups]

    def targets(self) -> list[Any]:
        target = jobs.Target("n1:9400", "http://n1:9400/metrics", Labels({"job": "dcgm"}), "main", job=jobs.Job("dcgm"))
        return [scrape.TargetState(target, families={"temp": Family("gauge", "Temperature", "celsius")})]

    def dropped_targets(self) -> list[Any]:
        return [discovery.Dropped("dcgm", {"__address__": "n9:9400"})]
