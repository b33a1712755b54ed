"""Every shipped alert fires in a Prometheus with the rendered files, on its scenario of alert_scenarios.csv.

The live fleet is real programs: agents, a hub with Slurm and a fabric, and a Prometheus that scrapes them as rendered;
all of it breaks while it runs. Holds and windows take hours, so the other fleets are history, run ahead of the clock: a
large one with all scenarios at once on places of their own, and small ones for longer. Prometheus' rule engine
(`promtool test rules`) evaluates the rendered rule files over all of them. A scrape of the live Prometheus, every 2 s,
stands for one of the history, every 30 s.
"""

from __future__ import annotations

import contextlib
import csv
import json
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import servers
from tests.support.every_alert import budget_month, rendered_prometheus, sick_nodes, simulated_history
from watchkeeper.drill.monitored_fleet import SHIPPED_RULES
from watchkeeper.model.labels import METRIC_NAME
from watchkeeper.rules import rulefile, series_read
from watchkeeper.sim.faults import OWNER, SimFault
from watchkeeper.sim.scenario import FaultTarget

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(900)]
# As many in the live fleet as in the large one, so that it has a model server of every kind.
LIVE_GPUS = 256
# Long enough for what compares with earlier samples.
HEALTHY_SECONDS = 20 * 60
RULES = rulefile.load_rules([SHIPPED_RULES])
ALERTS = [rule for rule in RULES.rules if isinstance(rule, rulefile.AlertingRule)]
READ = series_read.of_rules(RULES)
# An alert without any of these is about the whole fleet.
PLACE_LABELS = ("Hostname", "node", "UUID", "rack", "namespace", "pod", "hpc_job", "job_name", "model_name", "instance")
OF_LIVE = f'{{job=~"watchkeeper-.+"}} or {{job="gpu",instance=~"{sick_nodes.WORN}|{sick_nodes.BARE}"}}'


@dataclass(frozen=True, slots=True)
class Row:
    """One alert: `labels` tell rules of one name apart.

    `fleet` is live or one of `FLEETS`. The scenario of a live row is what breaks, and its place is a matcher. Without a
    place it is of the whole fleet or hub, and may have fired before.
    """

    alert: str
    labels: str
    fleet: str
    scenario: str
    place: str

    @property
    def own_labels(self) -> dict[str, str]:
        return dict(pair.split("=") for pair in self.labels.split())

    @property
    def matchers(self) -> str:
        labels = {"alertname": self.alert, "alertstate": "firing", **self.own_labels}
        return ",".join(f'{name}="{value}"' for name, value in labels.items())

    def describes(self, rule: rulefile.AlertingRule) -> bool:
        texts = {name: label.text for name, label in rule.labels.items()}
        return rule.name == self.alert and all(texts.get(name, "") == text for name, text in self.own_labels.items())


with Path(__file__).with_name("alert_scenarios.csv").open() as table:
    ROWS = [Row(**row) for row in csv.DictReader(table)]


@dataclass(frozen=True, slots=True)
class Fleet:
    """A simulated fleet; `names` are the metrics that are read, all without any."""

    gpus: int
    faulty_seconds: int
    scrape_seconds: int = simulated_history.SCRAPE_SECONDS
    names: frozenset[str] = frozenset()

    @property
    def end_seconds(self) -> int:
        return HEALTHY_SECONDS + self.faulty_seconds

    def is_read(self, name: str) -> bool:
        return name in self.names if self.names else is_read(name)


# The large one has an hour's hold, the small one jobs that work for two hours first. Twelve hours are the least that
# counts as a day of the whole fleet, and an hour is its hold.
FLEETS = {
    "large": Fleet(256, 65 * 60),
    "small": Fleet(32, 210 * 60, scrape_seconds=60),
    "day": Fleet(16, 13 * 3600, scrape_seconds=60, names=frozenset({"DCGM_FI_DEV_GPU_UTIL"})),
}


@dataclass(frozen=True, slots=True)
class History:
    """The series of a fleet, with its faults by scenario and place."""

    fleet: Fleet
    series: list[tuple[Mapping[str, str], str]]
    faults: dict[tuple[str, str], SimFault]


@dataclass(frozen=True, slots=True)
class Evidence:
    """The live Prometheus with all its series, what changed there, and the histories by fleet."""

    live: rendered_prometheus.RenderedPrometheus
    scraped: list[dict[str, str]]
    changes: list[tuple[Mapping[str, str], str]]
    histories: dict[str, History]

    def live_series(self) -> Iterator[tuple[Mapping[str, str], str]]:
        """What the live hub and agents alone export: healthy at first, then each scrape of the break-down."""
        scrape_seconds = simulated_history.SCRAPE_SECONDS
        of_history = {labels[METRIC_NAME] for labels, _ in self.histories["large"].series}
        healthy, all_scrapes = HEALTHY_SECONDS // scrape_seconds, FLEETS["large"].end_seconds // scrape_seconds
        for labels, values in self.changes:
            is_of_agent = labels.get("instance") in (sick_nodes.WORN, sick_nodes.BARE)
            if is_read(labels[METRIC_NAME]) and (is_of_agent or labels[METRIC_NAME] not in of_history):
                yield labels, simulated_history.stretched(values, before=healthy, total=all_scrapes)


def is_read(name: str) -> bool:
    """Serving programs export some of the names that rules record for other programs."""
    return READ.reads(name) or name in READ.written


def history_of(name: str, folder: Path) -> History:
    fleet = FLEETS[name]
    with contextlib.closing(
        simulated_history.SimulatedHistory(folder, gpus=fleet.gpus, scrape_seconds=fleet.scrape_seconds)
    ) as history:
        history.advance(HEALTHY_SECONDS - history.simulation.second)
        faults = {}
        for scenario, place in sorted({(row.scenario, row.place) for row in ROWS if row.place and row.fleet == name}):
            node, _, gpu = place.partition(":")
            faults[scenario, place] = history.simulation.inject(scenario, node=node, gpu=int(gpu) if gpu else None)
        history.advance(fleet.faulty_seconds)
        return History(fleet, list(history.series(fleet.is_read)), faults)


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory, library: Path) -> Iterator[Evidence]:
    servers.require("promtool")
    with rendered_prometheus.running(tmp_path_factory.mktemp("live"), gpus=LIVE_GPUS, library=library) as live:
        healthy_at, broken_at = live.break_down()
        changes = list(live.series(OF_LIVE, healthy_at, broken_at))
        scraped = [series["metric"] for series in live.query('{__name__!=""}')]
        histories = {name: history_of(name, tmp_path_factory.mktemp(name)) for name in FLEETS}
        yield Evidence(live, scraped, changes, histories)


def test_every_rule_has_one_row_and_every_row_a_rule() -> None:
    described = [[row for row in ROWS if row.describes(rule)] for rule in ALERTS]
    assert [rule.name for rule, found in zip(ALERTS, described, strict=True) if len(found) != 1] == []
    assert [row for row in ROWS if not any(row.describes(rule) for rule in ALERTS)] == []


def test_every_target_is_up_and_no_rule_fails(evidence: Evidence) -> None:
    targets = evidence.live.targets()
    assert {target["scrapePool"] for target in targets} == {"gpu", "watchkeeper-hub", "watchkeeper-series"}
    assert [target["lastError"] for target in targets if target["health"] != "up"] == []
    rules = [rule for group in evidence.live.get("rules")["groups"] for rule in group["rules"]]
    assert len(rules) == len(list(RULES.rules))
    assert [(rule["name"], rule.get("lastError")) for rule in rules if rule["health"] == "err"] == []


def test_the_history_has_the_series_of_the_live_prometheus(evidence: Evidence) -> None:
    """Every kind of series from before the faults: its name, and the names of the labels that Prometheus attached."""
    healthy = HEALTHY_SECONDS // simulated_history.SCRAPE_SECONDS // 2
    begins_early = (
        labels
        for labels, values in evidence.histories["large"].series
        if values[0] != "_" or int(values.split()[0][2:]) < healthy
    )
    live = {_kind(labels) for labels in evidence.scraped}
    assert sorted({str(sorted(_kind(labels))) for labels in begins_early} - {str(sorted(kind)) for kind in live}) == []


def _kind(labels: Mapping[str, str]) -> frozenset[str]:
    # The hub's own series have no job until Prometheus reads them, and their teams come from the hub's inventory.
    of_hub = labels.get("job", "watchkeeper-").startswith("watchkeeper-")
    return frozenset({labels[METRIC_NAME], *labels} - {METRIC_NAME, *(("job", "team") if of_hub else ())})


def test_the_budgets_have_the_series_of_the_live_hub(evidence: Evidence, tmp_path: Path) -> None:
    live = {name for labels in evidence.scraped if (name := labels[METRIC_NAME]).startswith("watchkeeper_accounting")}
    assert {labels[METRIC_NAME] for labels, _ in budget_month.series(tmp_path)} - live == set()


@pytest.mark.parametrize("fleet", FLEETS)
def test_every_alert_fires_at_the_place_of_its_scenario_and_not_before(
    fleet: str, evidence: Evidence, tmp_path: Path
) -> None:
    history = evidence.histories[fleet]
    rows = [row for row in ROWS if row.fleet == fleet]
    series = list(history.series)
    if fleet == "large":
        rows += [row for row in ROWS if row.fleet == "live"]
        series += [*evidence.live_series(), *budget_month.series(tmp_path)]
    test = {
        "interval": f"{history.fleet.scrape_seconds}s",
        "input_series": [{"series": simulated_history.selector(labels), "values": values} for labels, values in series],
        "promql_expr_test": [check for row in rows for check in _expectations(row, history)],
    }
    rule_files = [str(path) for path in sorted((evidence.live.folder / "rules").iterdir())]
    tests = {"rule_files": rule_files, "evaluation_interval": "1m", "tests": [test]}
    (tmp_path / "every_alert.json").write_text(json.dumps(tests))
    command = [servers.require("promtool"), "test", "rules", tmp_path / "every_alert.json"]
    tested = subprocess.run(command, capture_output=True, text=True, check=False)
    assert tested.returncode == 0, (tested.stdout + tested.stderr)[:8000]


def _expectations(row: Row, history: History) -> Iterator[dict[str, Any]]:
    fault = history.faults.get((row.scenario, row.place))
    places = [row.place] if fault is None else list(_places(fault))
    fired = " or ".join(f"max_over_time(ALERTS{{{row.matchers},{place}}}[14h])" for place in places)
    yield {
        "expr": f"group({fired})",
        "eval_time": f"{history.fleet.end_seconds}s",
        "exp_samples": [{"labels": "{}", "value": 1}],
    }
    if row.place:
        yield {"expr": f"group({fired})", "eval_time": f"{HEALTHY_SECONDS - 60}s"}


def _places(fault: SimFault) -> Iterator[str]:
    """Matchers of alerts about the place of a fault, the workload that it strikes, or the whole fleet."""
    yield ",".join(f'{label}=""' for label in PLACE_LABELS)
    if fault.gpu is not None:
        yield f'UUID="{fault.gpu.uuid}"'
    yield f'Hostname="{fault.node.name}",UUID=""'
    if fault.gpu is None:
        yield from (f'{label}="{fault.node.name}"' for label in ("Hostname", "node"))
        yield f'rack="{fault.node.rack}",Hostname=""'
        yield from (f'{label}="{OWNER}"' for label in ("namespace",) if fault.scenario.strikes is FaultTarget.NAMESPACE)
        yield f'pod="{fault.pod}"'
    if fault.job is not None:
        yield from (f'{label}="{fault.job.name}"' for label in ("job_name", "model_name"))
        yield from (f'pod="{pod}"' for pod in fault.job.pod_names.values())
