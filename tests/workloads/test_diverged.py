"""The diagnosis of a loss that diverged carries what its ranks' GPUs did."""

from __future__ import annotations

from datetime import timedelta

from tests.workloads.test_board import NOW, RANK, RANKS, engine, xid
from watchkeeper.diagnose import evidence
from watchkeeper.diagnose.checks import training
from watchkeeper.model import alerts, events, fleet, incidents

PLACE = fleet.Place("c", domain="job=pretrain")
THROTTLED = {'DCGM_FI_DEV_CLOCKS_EVENT_REASONS{cluster="c",Hostname="n1",UUID="GPU-1",gpu="1"}': 64.0}


def diverged(happened: list[events.Event], *more: dict[str, float]) -> list[str]:
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
    facts = evidence.gather(
        incident,
        NOW,
        engine=engine(RANKS, {f"training_world_size{{{RANK}}}": 4.0}, *more),
        events_at=lambda place, *_: [one for one in happened if place.encloses(one.place)],
    )
    found = training.diverged(facts)
    assert found is not None
    assert found.cause == "training_diverged"
    return [item.text for item in found.evidence]


def test_the_xid_and_the_slowed_clocks_of_its_ranks_are_evidence_and_another_gpu_s_are_not() -> None:
    said = diverged([xid("GPU-3", 31), xid("GPU-9", 31)], THROTTLED)
    assert said.count("Xid 31") == 1
    assert any("clocks held down, reasons 0x40" in text for text in said)


def test_without_any_the_diagnosis_says_how_many_gpus_were_looked_at() -> None:
    assert diverged([])[-1].startswith("none of the 4 GPUs had an Xid, a memory error or slowed clocks")
