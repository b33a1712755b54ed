"""A loss that went wrong carries what its ranks' GPUs did around then: in the diagnosis and in the job's report."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from tests.workloads.boards import NOW, RANK, RANKS, engine, report_inputs, xid
from watchkeeper.cli.fleet import jobs as jobs_command
from watchkeeper.diagnose import evidence
from watchkeeper.diagnose.checks import training
from watchkeeper.drill.monitored_fleet import MonitoredFleet
from watchkeeper.model import alerts, events, fleet, incidents
from watchkeeper.sim.simulation import SimSettings, Simulation
from watchkeeper.workloads import board, report

PLACE = fleet.Place("c", domain="job=pretrain")
GPU = 'cluster="c",Hostname="n1",UUID="GPU-1",gpu="1"'
REASONS = f"DCGM_FI_DEV_CLOCKS_EVENT_REASONS{{{GPU}}}"
CORRECTED = f"DCGM_FI_DEV_ECC_SBE_VOL_TOTAL{{{GPU}}}"


def diverged(
    happened: list[events.Event], *more: dict[str, float], before: dict[str, float] | None = None
) -> list[str]:
    """The evidence about a job of four ranks; `before` is a minute older than everything else."""
    since = NOW - timedelta(minutes=1)
    member = incidents.Member(
        incidents.MemberKind.ALERT,
        "TrainingLossNotFinite",
        PLACE,
        "training_diverged",
        since,
        "loss is NaN",
        alerts.Severity.WARNING,
    )
    incident = incidents.Incident(
        incidents.IncidentId("INC-1"), PLACE, "", alerts.Severity.WARNING, incidents.IncidentState.OPEN, since,
        "training_diverged", "training", (member,),
    )  # fmt: skip
    facts = evidence.gather_facts(
        incident,
        NOW,
        engine=engine(RANKS, {f"training_world_size{{{RANK}}}": 4.0}, *more, before=before or {}),
        events_at=lambda place, *_: [event for event in happened if place.encloses(event.place)],
    )
    finding = training.diverged(facts)
    assert finding is not None
    assert finding.cause == "training_diverged"
    return [item.text for item in finding.evidence]


def test_the_xid_and_the_slowed_clocks_of_its_ranks_are_evidence_and_another_gpu_s_are_not() -> None:
    finding = diverged([xid("GPU-3", 31), xid("GPU-9", 31)], {REASONS: 64.0})
    assert finding.count("Xid 31") == 1
    assert any("throttled, clocks event reasons 0x40" in text for text in finding)


def test_memory_errors_alone_and_clocks_that_were_held_down_for_a_while_are_evidence() -> None:
    finding = diverged([], {REASONS: 0.0, CORRECTED: 40.0}, before={REASONS: 32.0, CORRECTED: 0.0})
    assert any("corrected ECC errors within 11 min" in text for text in finding)
    assert any("throttled, clocks event reasons 0x20" in text for text in finding)
    assert not any(text.startswith("none of") for text in finding)


def test_without_any_the_diagnosis_says_how_many_gpus_were_looked_at_and_what_is_not_exported() -> None:
    both = {REASONS: 0.0, CORRECTED: 7.0}
    assert diverged([], both, before=both)[-1] == (
        "none of the 4 GPUs had Xids, memory errors or throttling within 11 min"
    )
    assert diverged([])[-1] == (
        "none of the 4 GPUs had Xids within 11 min; no exporter reports memory errors or throttling"
    )


@dataclass(frozen=True, slots=True)
class Struck:
    """A simulated job whose loss became NaN, two minutes after something struck its node, or nothing did."""

    watch: MonitoredFleet
    job: str

    def report(self) -> list[str]:
        """What `watchkeeper explain job` prints about it."""
        now = self.watch.simulation.now
        jobs_board = board.make_board(self.watch.engine, now, board.BoardInputs())
        [line] = [line for line in jobs_board.lines if line.name == self.job]
        happened = self.watch.journal.events_at(fleet.Place("sim"), since=now - timedelta(hours=1), until=now)
        plain = report_inputs(jobs_board, line.id, happened)
        return jobs_command.report_lines(report.make_report(self.watch.engine, now, plain))

    def evidence(self) -> list[str]:
        [incident] = [
            incident
            for incident in self.watch.incidents()
            if incident.place.domain == f"job={self.job}" and incident.is_open
        ]
        diagnosis = self.watch.journal.diagnosis(incident.id)
        assert diagnosis is not None
        assert diagnosis.best is not None
        assert diagnosis.best.cause == "training_diverged"
        return [item.text for item in diagnosis.best.evidence]


async def strike(watch: MonitoredFleet, other: str | None) -> str:
    await watch.advance(600, with_rules=False)
    simulation = watch.simulation
    jobs, layout = simulation.machines.jobs, simulation.layout
    node = next(
        node for node in layout.nodes
        if len({int(job) for job in jobs.job_of_gpu[node.rows]}) == 1 and (jobs.kind[node.rows] == 1).all()
    )  # fmt: skip
    if other is not None:
        simulation.inject(other, node=node.name, gpu=5 if other == "ecc-storm" else None)
    await watch.advance(120)
    fault = simulation.inject("loss-diverged", node=node.name)
    await watch.advance(150)
    assert fault.job is not None
    return fault.job.name


@pytest.fixture(params=["ecc-storm", "power-brake", None], ids=str)
def struck(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str | None, Struck]]:
    watch = MonitoredFleet(Simulation(SimSettings(gpus=64, seed=7)), tmp_path)
    yield request.param, Struck(watch, asyncio.run(strike(watch, request.param)))
    watch.close()


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_nan_beside_errors_of_memory_or_braked_clocks_carries_them_and_beside_nothing_says_so(
    struck: tuple[str | None, Struck],
) -> None:
    other, job = struck
    lost = [line for line in job.report() if line.startswith("  loss ")]
    expected = {"ecc-storm": "corrected ECC errors within", "power-brake": "throttled, clocks event reasons 0x"}
    if other is None:
        assert lost
        assert all("no hardware event on its GPUs near that time" in line for line in lost)
        assert any("had Xids, memory errors or throttling within" in text for text in job.evidence())
    else:
        assert any(expected[other] in line for line in lost)
        assert any(expected[other] in text for text in job.evidence())
        assert not any(text.startswith("none of") for text in job.evidence())
