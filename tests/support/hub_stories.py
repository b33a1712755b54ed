"""A pipeline over a real engine and journal with one rule, and seconds that pass when a story says so."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from watchkeeper.hub import pipeline
from watchkeeper.kit import clock
from watchkeeper.model import events, labels, samples
from watchkeeper.model import fleet as fleet_model
from watchkeeper.model.incidents import Incident
from watchkeeper.query import embedded
from watchkeeper.rules import rulefile
from watchkeeper.scrape import fleet
from watchkeeper.store.head import head
from watchkeeper.store.journal import journal

NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
NODE = fleet_model.Node("main", "n1")
HOT = """
groups:
- name: heat
  interval: 15s
  rules:
  - alert: Hot
    expr: max by (cluster, Hostname) (DCGM_FI_DEV_GPU_TEMP) > 90
    for: 30s
    labels: {severity: critical, cause: cooling_failure}
"""


def later(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def gpu(index: int) -> fleet_model.Place:
    return fleet_model.Place("main", node="n1", gpu=f"GPU-{index}")


def xid(code: int, place: fleet_model.Place, at: float) -> events.Event:
    return events.Event(f"{code}/{place}/{at}", events.EventKind.XID, code, place, later(at), f"NVRM: Xid: {code}")


class Line:
    """The pipeline; `restart` forgets everything but the journal's file, and samples unless they are kept."""

    def __init__(self, folder: Path, rules: str = HOT) -> None:
        self.folder = folder
        self.start(0, rules)

    def start(self, at: float, rules: str = HOT, *, kept: embedded.EmbeddedEngine | None = None) -> None:
        self.journal = journal.Journal(self.folder / "journal.db")
        self.engine, self.fleet = kept or embedded.EmbeddedEngine(head.Head()), fleet.ScrapedInventory()
        self.rules = rulefile.read_rules({"r.yaml": rules})
        parts = pipeline.dry_run_dependencies(self.engine, self.fleet, journal=self.journal, rules=self.rules)
        self.pipeline = pipeline.Pipeline(parts, now=later(at))

    def restart(self, at: float, rules: str = HOT, *, keeps_samples: bool = False) -> None:
        self.journal.close()
        self.start(at, rules, kept=self.engine if keeps_samples else None)

    def break_journal(self, is_broken: bool = True) -> None:
        """From now on every write fails, as on a full disk."""
        self.journal._connection.execute(f"PRAGMA query_only = {int(is_broken)}")

    def read(self, metric: str, value: float, at: float, *, index: int = 0) -> None:
        """One sample of one GPU, and the page it stood on."""
        at_ms, uuid = clock.to_ms(later(at)), f"GPU-{index}"
        named = labels.Labels({"__name__": metric, "cluster": "main", "Hostname": "n1", "UUID": uuid})
        self.engine.appender.append([samples.Sample(named, at_ms, value)])
        self.fleet.record_page(NODE, {uuid: fleet_model.Gpu(uuid, index=index)}, at_ms=at_ms, source="page")

    def run_rules(self, at: float) -> list[Incident]:
        changed = [alert for group in self.rules.groups for alert in self.pipeline.evaluate(group, later(at))]
        return self.pipeline.ingest_alerts(changed, later(at)) if changed else []

    def recover(self, at: float) -> list[events.Event]:
        """What the hub does every few seconds: ask whether something works again, and take the answer."""
        recoveries = self.pipeline.find_recoveries(self.pipeline.incidents.broken_gpus(), later(at))
        self.pipeline.ingest_events(recoveries, later(at))
        return recoveries

    def open(self) -> list[tuple[str, str]]:
        return [(incident.id, incident.cause) for incident in self.pipeline.incidents.open_incidents()]
