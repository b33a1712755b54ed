"""Repairs inside a hub: the fast path needs no tick, mistakes in settings are refused, the default touches nothing."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.remediate.cluster import Machine, TestCluster, nodes
from tests.remediate.world import NOON
from tests.support.manual_clock import ManualClock
from tests.support.opened import opened
from tests.support.waiting import until_async
from watchkeeper.config import loading, settings
from watchkeeper.errors import SettingsError, StoreError
from watchkeeper.hub.repair_loop import build_limits, build_trust_rules, load_policy
from watchkeeper.kit.clock import to_ms
from watchkeeper.model import events, fleet
from watchkeeper.model.trust import Mode
from watchkeeper.remediate.drivers import node


def after_xid(
    folder: Path, code: int, mode: Mode, *, where: str = "main", patience_seconds: float = 1.0
) -> tuple[TestCluster, list[str]]:
    """What a hub of two clusters whose loops do not run has done after an event, and its timeline."""
    inventory = [*nodes(8), *(replace(node, cluster="other") for node in nodes(8))]
    cluster = TestCluster({node.name: Machine() for node in inventory})

    async def story() -> list[str]:
        chosen = replace(settings.RemediateSettings(), mode=mode, driver=settings.DriverName.SLURM, one_per_domain=())
        hub = opened(
            settings.Settings(settings.HubSettings(data=str(folder)), remediate=chosen),
            time=ManualClock(NOON),
            driver=cluster,
        )
        hub.fleet.fleet.set_expected_nodes(inventory, to_ms(NOON))
        place = fleet.Place(where, node="n1", gpu="GPU-1")
        await hub.incidents.ingest_events([events.Event("e1", events.EventKind.XID, code, place, NOON, f"Xid {code}")])
        for _ in range(round(patience_seconds / 0.01)):
            if cluster.ours():
                break
            await asyncio.sleep(0.01)
        texts = [entry.text for entry in hub.services.journal.timeline("INC-1")]
        hub.close()
        return texts

    return cluster, asyncio.run(story())


def test_an_event_cordons_its_node_without_a_tick_or_a_diagnosis(tmp_path: Path) -> None:
    cluster, texts = after_xid(tmp_path, 79, Mode.ACT, patience_seconds=60.0)
    assert cluster.ours() == ["n1"]
    assert "Cordoning: Approved by policy; no guard refuses" in texts


@pytest.mark.slow
def test_a_node_of_another_cluster_is_not_taken_for_the_one_of_its_name_here(tmp_path: Path) -> None:
    cluster, texts = after_xid(tmp_path, 79, Mode.ACT, where="other")
    assert cluster.calls == []
    refused = "Refused by cluster: n1 is in cluster other, but this hub repairs main (fleet.cluster)"
    assert any(text.startswith(refused) for text in texts), texts


@pytest.mark.slow
@pytest.mark.parametrize(("code", "mode"), [(79, Mode.OBSERVE), (79, Mode.ASK), (13, Mode.ACT)])
def test_nothing_is_touched_unless_the_mode_is_act_and_the_hardware_is_at_fault(
    tmp_path: Path, code: int, mode: Mode
) -> None:
    cluster, _ = after_xid(tmp_path, code, mode)
    assert cluster.calls == []


def test_settings_become_trust_rules_and_limits(tmp_path: Path) -> None:
    (tmp_path / "hub.toml").write_text(
        """
        [remediate]
        mode = "suggest"
        policy = "mine.toml"
        fleet_percent = 5
        quiet_hours = ["22:00-06:00"]
        [[remediate.trust]]
        cause = "gpu_fell_off_bus"
        pool = "prod"
        mode = "act"
        [[remediate.quorum]]
        job_class = "llm"
        pool = "prod"
        gpus = 512
        """
    )
    (tmp_path / "mine.toml").write_text('[cause.gsp_timeout]\nsteps = [{ action = "inspect", why = "look" }]')
    chosen = loading.load(tmp_path / "hub.toml").remediate
    assert build_trust_rules(chosen).decide_mode("gpu_fell_off_bus", "prod").mode is Mode.ACT
    assert (build_limits(chosen).fleet_percent, build_limits(chosen).quorums[0].gpus) == (5, 512)
    assert [step.action for step in load_policy(chosen).steps("gsp_timeout")] == ["inspect"]


def test_idle_gpus_are_reclaimed_only_if_the_settings_allow_it(tmp_path: Path) -> None:
    kinds = [step.action for step in load_policy(settings.RemediateSettings()).steps("gpu_idle_waste")]
    assert kinds == ["notify_owner"]
    chosen = replace(settings.RemediateSettings(), reclaim=True, reclaim_wait="20m", reclaims=3)
    steps = load_policy(chosen).steps("gpu_idle_waste")
    assert [(step.action, step.arguments) for step in steps] == [
        ("notify_owner", {}),
        ("warn_owner", {"wait": "20m"}),
        ("reclaim", {"how": "scale_down"}),
    ]
    assert build_limits(chosen).reclaims == 3
    mine = tmp_path / "mine.toml"
    mine.write_text(
        '[cause.gpu_idle_waste]\nsteps = [{ action = "warn_owner", why = "x" }, { action = "reclaim", why = "x" }]'
    )
    with pytest.raises(SettingsError, match=r"cause\.gpu_idle_waste reclaims GPUs, but reclaiming is off"):
        load_policy(replace(settings.RemediateSettings(), policy=str(mine)))


def test_agents_check_a_node_before_it_is_uncordoned() -> None:
    def checks(cause: str, **chosen_settings: Any) -> tuple[str, ...]:
        chosen = settings.RemediateSettings(driver=settings.DriverName.SLURM, **chosen_settings)
        hub_settings = settings.Settings(hub=settings.HubSettings(order_key_file="hub.key"), remediate=chosen)
        steps = load_policy(chosen, gives_orders=node.uses_node_agents(hub_settings)).steps(cause)
        return next(step.checks for step in steps if step.action == "validate")

    own = ("gpus_present", "conditions_clear", "no_new_xid")
    assert checks("gpu_fell_off_bus") == (*own, "scan", "diag_2", "diag_3")
    assert checks("gpu_fell_off_bus", node_checks=()) == own
    assert checks("fabric_manager_down") == (*own, "scan", "diag_2")
    assert not node.uses_node_agents(
        settings.Settings(remediate=settings.RemediateSettings(driver=settings.DriverName.SLURM))
    )


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("pool_percent = 101", "remediate.pool_percent: 101 is not a percentage from 0 to 100"),
        ('quiet_hours = ["at night"]', "remediate: `at night` is not a time such as 22:00-06:00"),
        ('trust = [{ mode = "always" }]', r"remediate.trust\[0\].mode: expected one of observe"),
    ],
)
def test_a_mistake_in_the_settings_names_its_key(tmp_path: Path, line: str, problem: str) -> None:
    (tmp_path / "hub.toml").write_text(f"[remediate]\n{line}")
    with pytest.raises(SettingsError, match=problem):
        loading.load(tmp_path / "hub.toml")


def test_a_rule_for_an_unknown_cause_is_refused() -> None:
    chosen = replace(settings.RemediateSettings(), trust=(settings.TrustRule(Mode.ACT, cause="gpu_fel_of"),))
    with pytest.raises(SettingsError, match=r"remediate.trust\[0\].cause: unknown cause 'gpu_fel_of'"):
        build_trust_rules(chosen)


def test_an_incident_under_our_own_repair_keeps_its_cause_and_says_so(tmp_path: Path) -> None:
    cluster = TestCluster({node.name: Machine() for node in nodes(8)})

    async def story() -> tuple[bool, bool, list[str]]:
        chosen, time = replace(settings.RemediateSettings(), mode=Mode.ACT), ManualClock(NOON)
        hub = opened(
            settings.Settings(settings.HubSettings(data=str(tmp_path)), remediate=chosen), time=time, driver=cluster
        )
        hub.fleet.fleet.set_expected_nodes(nodes(8), to_ms(NOON))
        place = fleet.Place("main", node="n1", gpu="GPU-1")
        await hub.incidents.ingest_events([events.Event("e1", events.EventKind.XID, 79, place, NOON, "Xid 79")])
        incident = hub.services.journal.incidents()[0]
        hub.current.stages.pipeline.diagnose(incident, NOON)
        before = hub.repairs.keeps_cause(incident)

        async def is_rebooted() -> bool:
            await time.advance(0.5)
            return "reboot n1" in cluster.calls

        await until_async(is_rebooted, interval_seconds=0.01)
        after = [hub.repairs.keeps_cause(incident) for _ in range(2)][-1]
        texts = [entry.text for entry in hub.services.journal.timeline("INC-1")]
        hub.close()
        return before, after, texts

    before, after, texts = asyncio.run(story())
    assert (before, after) == (False, True)
    note = "INC-1.1 is running on n1: new signals of the node do not change the cause, gpu_fell_off_bus"
    assert texts.count(note) == 1


def test_a_plan_from_before_a_start_is_taken_when_the_journal_can_be_written_again(tmp_path: Path) -> None:
    async def story() -> list[str]:
        chosen = replace(settings.RemediateSettings(), mode=Mode.ASK, driver=settings.DriverName.SLURM)
        hub = opened(
            settings.Settings(settings.HubSettings(data=str(tmp_path)), remediate=chosen),
            time=ManualClock(NOON),
            driver=TestCluster({node.name: Machine() for node in nodes(8)}),
        )
        hub.fleet.fleet.set_expected_nodes(nodes(8), to_ms(NOON))
        place = fleet.Place("main", node="n1", gpu="GPU-1")
        await hub.incidents.ingest_events([events.Event("e1", events.EventKind.XID, 79, place, NOON, "Xid 79")])
        hub.current.stages.pipeline.diagnose(hub.services.journal.incidents()[0], NOON)
        hub.current.stages.journal._connection.execute("PRAGMA query_only = 1")
        with pytest.raises(StoreError):
            await hub.repairs._tick()
        hub.current.stages.journal._connection.execute("PRAGMA query_only = 0")
        await hub.repairs._tick()
        repaired = [repair.incident for repair in hub.repairs.repairs.active_repairs()]
        hub.close()
        return repaired

    assert asyncio.run(story()) == ["INC-1"]
