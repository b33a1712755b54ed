"""Simulated faults in the real pipeline: from a kernel log line, a metric, and a program; and hours without faults."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from watchkeeper.cli.doctor import drill
from watchkeeper.drill import score
from watchkeeper.drill.monitored_fleet import FleetIntervals, MonitoredFleet
from watchkeeper.rules import evaluate
from watchkeeper.sim.simulation import SimSettings, Simulation


@pytest.fixture
def monitored(tmp_path: Path) -> Iterator[MonitoredFleet]:
    monitored_fleet = MonitoredFleet(Simulation(SimSettings(gpus=64, seed=3)), tmp_path, intervals=FleetIntervals())
    yield monitored_fleet
    monitored_fleet.close()


@pytest.mark.slow
def test_a_kernel_log_line_opens_an_incident_with_cause_and_plan_within_two_seconds(monitored: MonitoredFleet) -> None:
    async def story() -> None:
        await monitored.advance(30)
        fault = monitored.simulation.inject("xid-79")
        await monitored.advance(2)
        incident = monitored.incidents()[0]
        assert incident.place == monitored.simulation.fault_place(fault)
        diagnosis, plan = monitored.journal.diagnosis(incident.id), monitored.journal.plan(incident.id)
        assert diagnosis is not None
        assert diagnosis.best is not None
        assert diagnosis.best.cause == "gpu_fell_off_bus"
        assert plan is not None
        assert [receipt.action.kind for receipt in plan.receipts][:3] == ["cordon", "drain", "reboot"]
        # Its job stalls a minute later and gets no separate incident.
        await monitored.advance(score.JOB_INCIDENT_SECONDS)
        (incident,) = score.pages_and_tickets(monitored.incidents())
        assert fault.job is not None
        assert incident.workloads[0] == fault.job.name

    asyncio.run(story())


@pytest.mark.slow
def test_metrics_of_a_program_open_an_incident_of_its_job(monitored: MonitoredFleet) -> None:
    async def story() -> None:
        await monitored.advance(120, with_rules=False)
        fault = monitored.simulation.inject("loss-diverged")
        await monitored.advance(90)
        assert [(str(incident.place.domain), incident.cause) for incident in monitored.incidents()] == [
            (f"job={fault.job.name if fault.job else ''}", "training_diverged")
        ]

    asyncio.run(story())


@pytest.mark.slow
def test_a_job_without_metrics_that_stalls_after_two_hours_opens_one_incident(tmp_path: Path) -> None:
    """The rule needs two hours: a small fleet with long intervals and only the rules that it needs."""
    monitored = MonitoredFleet(
        Simulation(SimSettings(gpus=8, seed=3)), tmp_path, intervals=FleetIntervals(scrape_seconds=60, rule_seconds=60)
    )
    needed = tuple(group for group in monitored.rules.groups if group.name in ("usage-minutes", "jobs", "usage"))
    monitored.rules = replace(monitored.rules, groups=needed)

    async def story() -> None:
        fault = monitored.simulation.inject("job-stalled")
        await monitored.advance(fault.at - monitored.simulation.second)
        assert score.pages_and_tickets(monitored.incidents()) == []
        await monitored.advance(20 * 60)
        (incident,) = score.pages_and_tickets(monitored.incidents())
        assert incident.place == monitored.simulation.fault_place(fault)
        assert (incident.cause, (incident.opened_at.timestamp() - fault.at) // 60) == ("training_stalled", 17)
        diagnosis = monitored.journal.diagnosis(incident.id)
        assert diagnosis is not None
        assert diagnosis.best is not None
        assert diagnosis.best.evidence[0].text == "all 8 GPUs are idle"
        assert [open_incident.id for open_incident in monitored.incidents() if open_incident.is_open] == [incident.id]

    asyncio.run(story())
    monitored.close()


@pytest.mark.slow
def test_the_cause_of_a_rank_without_enough_cpu_is_a_straggler_with_busy_cpus(monitored: MonitoredFleet) -> None:
    async def story() -> None:
        await monitored.advance(180, with_rules=False)
        fault = monitored.simulation.inject("cpu-starved-rank")
        await monitored.advance(240)
        (incident,) = score.pages_and_tickets(monitored.incidents())
        assert incident.place == monitored.simulation.fault_place(fault)
        diagnosis = monitored.journal.diagnosis(incident.id)
        assert diagnosis is not None
        assert diagnosis.best is not None
        assert fault.job is not None
        starved = monitored.simulation.layout.nodes[list(fault.job.pod_names)[-1]].name
        assert diagnosis.best.cause == "nccl_timeout_straggler"
        assert diagnosis.best.evidence[1].text.startswith(f"{starved} keeps 98% of its CPUs busy, the other nodes ")
        assert f"List the processes that use the CPUs of {starved}" in [step.do for step in diagnosis.best.actions]

    asyncio.run(story())


@pytest.mark.slow
def test_no_shipped_rule_fails_and_no_alarm_opens_on_a_healthy_simulated_fleet(monitored: MonitoredFleet) -> None:
    asyncio.run(monitored.advance(600))
    failed = [
        state.last_error
        for state in monitored.pipeline.rule_state.values()
        if state.health is evaluate.RuleHealth.ERROR
    ]
    assert failed == []
    assert score.pages_and_tickets(monitored.incidents()) == []


@pytest.mark.slow
def test_the_command_prints_the_score_and_exits_with_0_if_everything_was_right() -> None:
    arguments = ["--scenario", "xid-48", "--healthy-hours", "0", "--workers", "1", "--json"]
    result = CliRunner().invoke(drill.command, arguments)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == {
        "scenarios": [
            {
                "name": "xid-48",
                "detected": True,
                "seconds_to_detect": 1.0,
                "budget_seconds": 2.0,
                "within_budget": True,
                "place_right": True,
                "severity_right": True,
                "diagnosed": True,
                "told_once": True,
                "cause": "ecc_uncorrectable",
                "named": "ecc_uncorrectable",
            }
        ],
        "false_pages": 0,
        "false_alarms_per_1000_gpu_hours": 0.0,
        "healthy_gpu_hours": 0.0,
        "for_nothing": [],
    }


@pytest.mark.slow
def test_a_rack_without_power_is_one_incident_of_the_rack(tmp_path: Path) -> None:
    monitored = MonitoredFleet(Simulation(SimSettings(gpus=128, seed=3)), tmp_path, intervals=FleetIntervals())

    async def story() -> None:
        await monitored.advance(120, with_rules=False)
        fault = monitored.simulation.inject("rack-power")
        await monitored.advance(180)
        down = [
            incident
            for incident in monitored.incidents()
            if incident.family == "node_down" and incident.part_of is None
        ]
        assert [(incident.place.domain, incident.cause) for incident in down] == [
            (f"rack={fault.node.rack}", "node_down")
        ]

    asyncio.run(story())
    monitored.close()


@pytest.mark.slow
@pytest.mark.parametrize("names", [("fan-failure", "xid-48"), ("ib-symbol-errors", "ecc-storm"), ("xid-63", "xid-31")])
def test_two_faults_of_one_node_are_two_causes_at_two_places(names: tuple[str, str]) -> None:
    assert names in score.PAIRS
    verdicts = asyncio.run(score.run_pair(names))
    assert [verdict.score.name for verdict in verdicts] == [f"{a} beside {b}" for a, b in (names, names[::-1])]
    assert [
        (verdict.score.diagnosed, verdict.score.place_right, verdict.score.severity_right) for verdict in verdicts
    ] == [(True, True, True)] * 2
    assert [page.title for verdict in verdicts for page in verdict.false_pages] == []
