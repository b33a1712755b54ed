"""Every shipped alert fires in a Prometheus with the rendered files, or alert_scenarios.csv says why it cannot here.

One half is live: a simulator, a hub in trouble and a Prometheus that scrapes both as rendered. Holds and windows take
hours, so the other half is history: such a fleet, run ahead with all scenarios at once on places of their own, and
evaluated by Prometheus' rule engine (`promtool test rules`) with the rendered rule files. Both halves must have the
same kinds of series.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import json
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import servers
from tests.support import rendered_prometheus, simulated_history
from tests.support.running_product import await_that
from watchkeeper.drill.monitored_fleet import SHIPPED_RULES
from watchkeeper.model.labels import METRIC_NAME
from watchkeeper.query.promql import parser, walk
from watchkeeper.rules import rulefile, series_read
from watchkeeper.sim.faults import OWNER, SimFault
from watchkeeper.sim.scenario import FaultTarget

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(600)]
# As many in the live fleet, so that it has a model server of every kind.
GPUS, LIVE_GPUS = 256, 256
# Long enough for what compares with earlier samples, and for an hour's hold.
HEALTHY_SECONDS, FAULTY_SECONDS = 20 * 60, 65 * 60
END_SECONDS = HEALTHY_SECONDS + FAULTY_SECONDS
RULES = rulefile.load_rules([SHIPPED_RULES])
ALERTS = [rule for rule in RULES.rules if isinstance(rule, rulefile.AlertingRule)]
READ = series_read.of_rules(RULES)
# Scenarios that are no fault of the simulator: the state of the live hub, and that of the whole fleet.
HUB, FLEET = "hub", "fleet"


@dataclass(frozen=True, slots=True)
class Row:
    """`label` tells rules of one name apart; with a `reason` it does not fire, and nobody exports `not_there`."""

    alert: str
    label: str
    scenario: str
    place: str
    reason: str
    not_there: str

    @property
    def matchers(self) -> str:
        name, _, value = self.label.partition("=")
        label = f',{name}="{value}"' if name else ""
        return f'alertname="{self.alert}",alertstate="firing"{label}'

    def describes(self, rule: rulefile.AlertingRule) -> bool:
        name, _, value = self.label.partition("=")
        return rule.name == self.alert and (not name or rule.labels[name].text == value)


with Path(__file__).with_name("alert_scenarios.csv").open() as table:
    ROWS = [Row(**row) for row in csv.DictReader(table)]


@dataclass(frozen=True, slots=True)
class Evidence:
    """The live Prometheus with all its series, and those of the history with the faults by scenario and place."""

    live: rendered_prometheus.RenderedPrometheus
    scraped: list[tuple[dict[str, str], str]]
    history: list[tuple[Mapping[str, str], str]]
    faults: dict[tuple[str, str], SimFault]

    @property
    def names(self) -> set[str]:
        return {labels[METRIC_NAME] for labels, _ in (*self.scraped, *self.history)}

    def input_series(self) -> list[dict[str, str]]:
        """The history, and what the live hub alone exports, as it was all the time."""
        of_history = {labels[METRIC_NAME] for labels, _ in self.history}
        count = END_SECONDS // simulated_history.SCRAPE_SECONDS
        of_hub = [
            (labels, f"{value}x{count}")
            for labels, value in self.scraped
            if labels.get("job", "").startswith("watchkeeper-")
            and labels[METRIC_NAME] not in of_history | {"up"}
            and is_read(labels[METRIC_NAME])
        ]
        series = (*self.history, *of_hub)
        return [{"series": simulated_history.selector(labels), "values": values} for labels, values in series]


def is_read(name: str) -> bool:
    """Serving programs export some of the names that rules record for other programs."""
    return READ.reads(name) or name in READ.written


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evidence]:
    servers.require("promtool")
    with (
        rendered_prometheus.running(tmp_path_factory.mktemp("live"), gpus=LIVE_GPUS) as live,
        contextlib.closing(
            simulated_history.SimulatedHistory(tmp_path_factory.mktemp("history"), gpus=GPUS)
        ) as history,
    ):
        history.advance(HEALTHY_SECONDS - history.simulation.second)
        faults = {}
        for scenario, place in sorted({(row.scenario, row.place) for row in ROWS if row.place}):
            node, _, gpu = place.partition(":")
            faults[scenario, place] = history.simulation.inject(scenario, node=node, gpu=int(gpu) if gpu else None)
        live.break_files()
        history.advance(FAULTY_SECONDS)
        for broken in ("watchkeeper_rules_last_reload_successful == 0", "watchkeeper_notify_routes_broken == 1"):
            await_that(functools.partial(live.query, broken))
        scraped = [(series["metric"], series["value"][1]) for series in live.query('{__name__!=""}')]
        yield Evidence(live, scraped, list(history.series(is_read)), faults)


def test_every_rule_has_one_row_and_every_row_a_rule() -> None:
    described = [[row for row in ROWS if row.describes(rule)] for rule in ALERTS]
    assert [rule.name for rule, found in zip(ALERTS, described, strict=True) if len(found) != 1] == []
    assert [row for row in ROWS if not any(row.describes(rule) for rule in ALERTS)] == []
    assert [row for row in ROWS if bool(row.scenario) == bool(row.reason)] == []


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
        labels for labels, values in evidence.history if values[0] != "_" or int(values.split()[0][2:]) < healthy
    )
    live = {_kind(labels) for labels, _ in evidence.scraped}
    assert sorted({str(sorted(_kind(labels))) for labels in begins_early} - {str(sorted(kind)) for kind in live}) == []


def _kind(labels: Mapping[str, str]) -> frozenset[str]:
    # The hub's own series have no job until Prometheus reads them, and their teams come from the hub's inventory.
    of_hub = labels.get("job", "watchkeeper-").startswith("watchkeeper-")
    return frozenset({labels[METRIC_NAME], *labels} - {METRIC_NAME, *(("job", "team") if of_hub else ())})


def test_every_alert_fires_at_the_place_of_its_scenario_and_not_before(evidence: Evidence, tmp_path: Path) -> None:
    expected = [test for row in ROWS if row.scenario for test in _expectations(row, evidence)]
    group = {"interval": f"{simulated_history.SCRAPE_SECONDS}s", "input_series": evidence.input_series()}
    rule_files = [str(path) for path in sorted((evidence.live.folder / "rules").iterdir())]
    tests = {"rule_files": rule_files, "evaluation_interval": "1m", "tests": [{**group, "promql_expr_test": expected}]}
    (tmp_path / "every_alert.json").write_text(json.dumps(tests))
    command = [servers.require("promtool"), "test", "rules", tmp_path / "every_alert.json"]
    tested = subprocess.run(command, capture_output=True, text=True, check=False)
    assert tested.returncode == 0, (tested.stdout + tested.stderr)[:8000]


def _expectations(row: Row, evidence: Evidence) -> Iterator[dict[str, Any]]:
    fault = evidence.faults.get((row.scenario, row.place))
    places = [f",{matchers}" for matchers in _places(fault)] if fault is not None else [""]
    fired = " or ".join(f"max_over_time(ALERTS{{{row.matchers}{place}}}[2h])" for place in places)
    yield {"expr": f"group({fired})", "eval_time": f"{END_SECONDS}s", "exp_samples": [{"labels": "{}", "value": 1}]}
    if fault is not None:
        yield {"expr": f"group({fired})", "eval_time": f"{HEALTHY_SECONDS - 60}s"}


def _places(fault: SimFault) -> Iterator[str]:
    """Matchers of alerts about the place of a fault, or the workload that it strikes."""
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


@pytest.mark.parametrize("row", [row for row in ROWS if row.reason], ids=lambda row: f"{row.alert}-{row.label}")
def test_an_alert_that_cannot_fire_here_has_its_series_or_says_which_nobody_exports(
    row: Row, evidence: Evidence
) -> None:
    read = {name for rule in ALERTS if row.describes(rule) for name in _scraped_names(rule.expr)}
    assert sorted(read - evidence.names - {"ALERTS"}) == row.not_there.split()


def _scraped_names(expr: str) -> set[str]:
    """The metrics that an expression reads, those of recording rules as what they read."""
    names: set[str] = set()
    waiting, seen = [expr], {expr}
    while waiting:
        for name in walk.metric_names(parser.parse(waiting.pop())) - {""}:
            recorded = {rule.expr for rule in RULES.rules if rule.name == name and rule not in ALERTS}
            names |= set() if recorded else {name}
            waiting += recorded - seen
            seen |= recorded
    return names
