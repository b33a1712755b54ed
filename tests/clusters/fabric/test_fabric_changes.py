"""What changes between two sweeps, what a hub remembers of it, and what it must not conclude."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.clusters.fabrics import SPINE, fabric_of, host, leaf, without_device, without_link
from tests.support.paths import SHARED
from watchkeeper.clusters.fabric import fabric_changes, fabric_sweep, fabric_watch
from watchkeeper.config import settings as config
from watchkeeper.errors import CollectError
from watchkeeper.incidents import signals
from watchkeeper.kit import clock
from watchkeeper.model import events, fabric

NOW = datetime(2026, 11, 15, 6, 0, tzinfo=UTC)
NOW_MS = clock.to_ms(NOW)
RECORDED = SHARED / "corpus/recordings/ibsim"


def watch(kept: Path | None = None) -> fabric_watch.FabricWatch:
    return fabric_watch.FabricWatch(config.FabricSettings(), "main", state_path=kept)


def test_a_link_that_went_down_while_the_hub_was_away_is_said_afterwards(tmp_path: Path) -> None:
    kept = tmp_path / "fabric.json"
    watch(kept).accept_sweep(fabric_of(), NOW)
    after = watch(kept)
    (event,) = after.accept_sweep(without_link(fabric_of(), (leaf(0), 9)), NOW)
    assert str(event.place) == "main/domain=link%3Dleaf-0%2F9"
    assert event.text == "leaf-0 port 9 to spine-0 port 1 is down: the port is Down/Polling"
    assert watch(kept).accept_sweep(without_link(fabric_of(), (leaf(0), 9)), NOW) == []


def test_a_kept_file_that_is_damaged_costs_its_knowledge_only(tmp_path: Path) -> None:
    kept = tmp_path / "fabric.json"
    kept.write_text('{"links": [1')
    again = watch(kept)
    assert again.accept_sweep(fabric_of(), NOW) == []
    assert len(json.loads(kept.read_text())["links"]) == 6


def test_a_sweep_that_is_incomplete_makes_nothing_look_gone() -> None:
    one = watch()
    one.accept_sweep(fabric_of(), NOW)
    torn = replace(without_device(fabric_of(), leaf(1)), problems=("ibnetdiscover: 3 requests were not answered",))
    assert one.accept_sweep(torn, NOW) == []
    assert "3 requests" in one.problem
    ok = {labels["__name__"]: value for labels, value in one.series(NOW_MS).items()}
    assert ok["watchkeeper_fabric_sweep_ok"] == 0.0


def test_a_sweep_that_is_too_old_speaks_no_longer_for_now() -> None:
    one = watch()
    one.accept_sweep(fabric_of(), NOW)
    assert len(one.series(NOW_MS + 180_000)) > 10
    old = one.series(NOW_MS + 180_001)
    assert [(labels["__name__"], value) for labels, value in old.items()] == [("watchkeeper_fabric_sweep_ok", 0.0)]


def test_a_host_that_lost_its_own_link_does_not_claim_that_all_switches_are_gone() -> None:
    one = watch()
    one.accept_sweep(fabric_of(), NOW)
    alone = fabric.Fabric(0, "test", (fabric.FabricDevice(host(0), fabric.FabricDeviceKind.HOST, "n0 mlx5_0", 1),))
    assert one.accept_sweep(alone, NOW) == []
    assert "its host lost its link" in one.problem


def test_a_cable_that_is_plugged_elsewhere_is_no_link_down() -> None:
    one = watch()
    one.accept_sweep(fabric_of(), NOW)
    ports = {port.key: port for port in fabric_of().ports}
    ports[leaf(0), 5] = replace(ports[leaf(0), 1], number=5)
    ports[leaf(0), 1] = fabric.FabricPort(leaf(0), 1, fabric.DOWN, "Polling")
    ports[host(0), 1] = replace(ports[host(0), 1], peer_port=5)
    assert one.accept_sweep(replace(fabric_of(), ports=tuple(ports.values())), NOW) == []
    assert one.leaf_by_node()["n0"] == "leaf-0"


def test_a_dark_first_rail_does_not_move_its_node_to_another_leaf() -> None:
    one = watch()
    one.accept_sweep(fabric_of(), NOW)
    one.accept_sweep(without_link(fabric_of(), (leaf(0), 1)), NOW)
    assert one.leaf_by_node() == {"n0": "leaf-0", "n1": "leaf-1", "n2": "leaf-0", "n3": "leaf-1"}


def test_two_switches_with_one_name_stay_two() -> None:
    layout = fabric.FabricTopology(fabric_of(names=("leaf", "leaf")))
    assert layout.shared_names() == ["leaf"]
    assert layout.leaf_by_node()["n0"] == f"leaf@{leaf(0)}"
    one = watch()
    one.accept_sweep(layout.fabric, NOW)
    (event,) = one.accept_sweep(without_device(layout.fabric, leaf(1)), NOW)
    assert event.fields["switch"] == f"leaf@{leaf(1)}"


def test_an_adapter_without_a_host_name_is_counted_and_not_called_a_node() -> None:
    found = fabric_of(1)
    nameless = fabric.FabricDevice(host(0), fabric.FabricDeviceKind.HOST, "MT4129 ConnectX7   Mellanox Technologies", 1)
    layout = fabric.FabricTopology(replace(found, devices=(*found.devices[:-1], nameless)))
    assert layout.leaf_by_node() == {}
    assert layout.unnamed_hosts() == [nameless]


def test_a_port_below_the_rate_of_its_peers_is_slow_and_two_ports_are_no_majority() -> None:
    def slowed(found: fabric.Fabric) -> fabric.FabricTopology:
        rows = [replace(port, lanes=1) if port.key == (leaf(0), 1) else port for port in found.ports]
        return fabric.FabricTopology(replace(found, ports=tuple(rows)))

    assert slowed(fabric_of(8)).slow_ports == {(leaf(0), 1)}
    assert slowed(fabric_of(2)).slow_ports == frozenset()


@given(st.lists(st.sets(st.sampled_from([(leaf(0), 1), (leaf(1), 1), (leaf(0), 2), (leaf(0), 9), (leaf(1), 9)]))))
def test_every_down_has_its_up_and_nothing_is_said_twice(dark: list[set[fabric.PortKey]]) -> None:
    known, _ = fabric_changes.compare_sweep(fabric_changes.KnownFabric(), fabric.FabricTopology(fabric_of()), 0)
    is_down: dict[object, bool] = {}
    for at, keys in enumerate([*dark, set[fabric.PortKey]()]):
        known, changes = fabric_changes.compare_sweep(
            known, fabric.FabricTopology(without_link(fabric_of(), *keys)), at
        )
        for change in changes:
            assert change.link is not None
            assert is_down.get(change.link.key, False) is change.is_up
            is_down[change.link.key] = not change.is_up
    assert not any(is_down.values())
    assert len(known.links) == 6


def test_what_is_gone_for_a_month_is_forgotten() -> None:
    known, _ = fabric_changes.compare_sweep(fabric_changes.KnownFabric(), fabric.FabricTopology(fabric_of()), 0)
    torn = fabric.FabricTopology(without_device(fabric_of(), SPINE))
    known, changes = fabric_changes.compare_sweep(known, torn, 1)
    assert len(changes) == 1
    known, changes = fabric_changes.compare_sweep(known, torn, 2 + fabric_changes.FORGET_MS)
    assert (changes, [switch.name for switch in known.switches]) == ([], ["leaf-0", "leaf-1"])
    assert len(known.links) == 4


def test_a_dark_link_is_a_degraded_link_of_its_node_until_it_is_back() -> None:
    one = watch()
    one.accept_sweep(fabric_of(), NOW)
    (event,) = one.accept_sweep(without_link(fabric_of(), (leaf(0), 1)), NOW)
    signal = signals.from_event(event)
    assert signal is not None
    assert (signal.cause, signal.place.node) == ("ib_link_degraded", "n0")
    (back,) = one.accept_sweep(fabric_of(), NOW)
    assert signals.from_event(back) is None
    rule = signals.clear_rule(signal.cause, event)
    (condition,) = events.fold_conditions([event], rule, NOW.replace(hour=23)).values()
    assert condition.is_open
    (condition,) = events.fold_conditions(
        [event, replace(back, at=NOW.replace(hour=7))], rule, NOW.replace(hour=23)
    ).values()
    assert not condition.is_open


PROGRAMS = {
    "hangs": ("exec sleep 60", r"ibnetdiscover: no answer within 0.3 s"),
    "prints rubbish": ("head -c 20000 /dev/urandom", "ibnetdiscover: it lists no device"),
    "prints without end": ("exec yes ibwarn", r"ibnetdiscover: (no answer within 0.3 s|the output exceeds the limit)"),
    "trickles": ("while :; do echo x; sleep 0.05; done", r"ibnetdiscover: no answer within 0.3 s"),
    "says nothing": ("exit 0", "ibnetdiscover: it lists no device"),
    "fails": ("echo no port is up; exit 5", "ibnetdiscover: no port is up"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_that_misbehaves_is_given_up_with_a_word(name: str, tmp_path: Path) -> None:
    script, said = PROGRAMS[name]
    (tmp_path / "ibnetdiscover").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "ibnetdiscover").chmod(0o755)
    wanted = fabric_sweep.SweepSettings(0.3, environment={"PATH": f"{tmp_path}:/usr/bin:/bin"})
    with pytest.raises(CollectError, match=said):
        fabric_sweep.sweep(wanted, at_ms=0)


def test_counters_that_cannot_be_had_cost_only_the_counters(tmp_path: Path) -> None:
    if not RECORDED.exists():
        pytest.skip("the recordings are not beside this tree")
    for program, script in {
        "ibnetdiscover": f"cat {RECORDED / 'ibnetdiscover.healthy.txt'}",
        "iblinkinfo": f"cat {RECORDED / 'iblinkinfo_-l.healthy.txt'}",
        "ibqueryerrors": "echo 'ibwarn: [9] mad_rpc_rmpp: no SM'; exit 1",
    }.items():
        (tmp_path / program).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / program).chmod(0o755)
    wanted = fabric_sweep.SweepSettings(5.0, environment={"PATH": f"{tmp_path}:/usr/bin:/bin"})
    found = fabric_sweep.sweep(wanted, at_ms=0)
    assert (found.problems, found.unread) == ((), ("ibqueryerrors: no counters (ibwarn: [9] mad_rpc_rmpp: no SM)",))
    assert {port.counters for port in found.ports} == {None}
    assert len(fabric.FabricTopology(found).leaf_by_node()) == 4
