"""A sweep of a simulated fabric with the real infiniband-diags: what is there, what breaks, and what comes of it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support.clusters import ibsim
from tests.web.running import serving
from tests.web.small_hub import SmallHub
from watchkeeper.cli.node import fabric as command
from watchkeeper.clusters.fabric import fabric_sweep, fabric_watch
from watchkeeper.config import settings as config
from watchkeeper.errors import CollectError
from watchkeeper.kit import clock
from watchkeeper.model import fabric

pytestmark = pytest.mark.servers
NOW = datetime(2026, 11, 15, 6, 0, tzinfo=UTC)
NOW_MS = clock.to_ms(NOW)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ibsim.Fabric]:
    with ibsim.running(ibsim.Plan(), tmp_path_factory.mktemp("fabric")) as fabric_there:
        yield fabric_there


def look(running: ibsim.Fabric) -> fabric.Fabric:
    return fabric_sweep.sweep(fabric_sweep.SweepSettings(environment=running.environment), at_ms=0)


def look_until(running: ibsim.Fabric, is_so: Callable[[fabric.FabricTopology], bool]) -> fabric.FabricTopology:
    """Sweeps until something is so: a link takes the subnet manager a moment."""
    deadline = time.monotonic() + 60
    while not is_so(layout := fabric.FabricTopology(look(running))):
        assert time.monotonic() < deadline, "the fabric did not become what was waited for"
    return layout


def guid(name: str) -> str:
    return name.split("-")[1]


def test_a_healthy_fabric_is_seen_with_its_leaves_links_and_rates(running: ibsim.Fabric) -> None:
    layout = look_until(running, lambda layout: all(port.is_up for port in layout.fabric.ports))
    assert not layout.fabric.problems
    assert layout.leaf_by_node() == {f"gpu-node-{at}": "leaf-1-0" for at in range(1, 5)}
    rails = [(link.adapter, link.switch, link.switch_port) for link in layout.host_links() if link.node == "gpu-node-3"]
    assert rails == [("mlx5_0", "leaf-1-0", 3), ("mlx5_1", "leaf-1-1", 3)]
    assert {port.gbps for port in layout.fabric.ports} == {200.0}
    assert [layout.is_leaf(switch.guid) for switch in layout.switches()].count(True) == 2
    assert len(list(layout.links())) == 12
    assert all(port.counters is not None for port in layout.fabric.ports)


def test_symbol_errors_of_a_port_are_counted_and_one_at_its_maximum_is_said(running: ibsim.Fabric) -> None:
    leaf = running.plan.leaf_id(0, 0)
    running.say(f'PerformanceSet "{leaf}"[2] PortCounters.SymbolErrorCounter=1234')
    running.say(f'PerformanceSet "{leaf}"[4] PortCounters.SymbolErrorCounter=65535')
    key = guid(leaf), 2
    layout = look_until(running, lambda layout: "SymbolErrorCounter" in (layout.ports[key].counters or {}))
    watch = fabric_watch.FabricWatch(config.FabricSettings(), "main")
    watch.accept_sweep(layout.fabric, NOW)
    errors = {
        labels["port"]: value
        for labels, value in watch.series(NOW_MS).items()
        if labels["__name__"] == "watchkeeper_fabric_port_errors_total"
        and labels["counter"] == "SymbolErrorCounter"
        and labels["switch"] == "leaf-1-0"
        and "Hostname" in labels
    }
    assert errors == {"1": 0.0, "2": 1234.0, "3": 0.0, "4": 65535.0}
    stuck = [labels["port"] for labels in watch.series(NOW_MS) if labels["__name__"].endswith("counter_at_maximum")]
    assert stuck == ["4"]


def test_a_link_that_goes_down_and_comes_back_is_an_event_each_time(running: ibsim.Fabric) -> None:
    leaf = running.plan.leaf_id(0, 1)
    key = guid(leaf), 3
    watch = fabric_watch.FabricWatch(config.FabricSettings(), "main")
    assert watch.accept_sweep(look_until(running, lambda layout: layout.ports[key].is_up).fabric, NOW) == []
    running.say(f'Unlink "{leaf}"[3]')
    (down,) = watch.accept_sweep(look_until(running, lambda layout: not layout.ports[key].is_up).fabric, NOW)
    assert (down.kind, str(down.place)) == ("fabric_down", "main/node=gpu-node-3/port=mlx5_1")
    assert down.text == "leaf-1-1 port 3 to gpu-node-3 mlx5_1 is down: the port is Down/Polling"
    states = {
        labels: value for labels, value in watch.series(NOW_MS).items() if labels["__name__"].endswith("state_id")
    }
    assert [labels["device"] for labels, value in states.items() if value == 1.0] == ["mlx5_1"]
    running.say(f'ReLink "{leaf}"[3]')
    (up,) = watch.accept_sweep(look_until(running, lambda layout: layout.ports[key].is_up).fabric, NOW)
    assert (up.kind, up.place) == ("fabric_up", down.place)


def test_a_switch_that_is_gone_is_one_event_and_not_one_for_each_link(running: ibsim.Fabric) -> None:
    spine = running.plan.spine_id(1)
    watch = fabric_watch.FabricWatch(config.FabricSettings(), "main")
    watch.accept_sweep(look_until(running, lambda layout: guid(spine) in layout.devices).fabric, NOW)
    running.say(f'Unlink "{spine}"')
    gone = watch.accept_sweep(look_until(running, lambda layout: guid(spine) not in layout.devices).fabric, NOW)
    assert [event.text for event in gone] == ["switch spine-2 is no longer in the fabric, nor are its 2 links"]
    assert str(gone[0].place) == "main/domain=switch%3Dspine-2"
    running.say(f'ReLink "{spine}"')
    whole = look_until(running, lambda layout: len(list(layout.links())) == 12)
    assert [event.text for event in watch.accept_sweep(whole.fabric, NOW)] == ["switch spine-2 is up again"]


def test_a_host_without_a_fabric_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "ibnetdiscover").write_text(
        "#!/bin/sh\necho 'ibpanic: [77] main: can not open UMAD port' >&2\nexit 1\n"
    )
    (tmp_path / "ibnetdiscover").chmod(0o755)
    with pytest.raises(CollectError, match=r"ibnetdiscover: ibpanic.*UMAD port.*ibstat"):
        fabric_sweep.sweep(fabric_sweep.SweepSettings(environment={"PATH": str(tmp_path)}), at_ms=0)


def test_a_host_whose_own_link_is_dark_says_so(tmp_path: Path) -> None:
    """Runs a fabric of its own: the others need theirs."""
    with ibsim.running(ibsim.Plan(nodes=1, rails=1), tmp_path) as alone:
        alone.say(f'Unlink "{alone.plan.host_id(0, 0)}"[1]')
        alone.wait("Down")
        with pytest.raises(CollectError, match="is the only device in the sweep"):
            look(alone)


@pytest.mark.alone
@pytest.mark.slow
def test_512_host_ports_are_swept_within_five_seconds(tmp_path: Path) -> None:
    with ibsim.running(ibsim.LARGE, tmp_path) as large:
        found = look(large)
        for _ in range(2):
            # What the neighbours of a busy machine take is not the sweep's.
            found = found if found.seconds < 5.0 else look(large)
    assert (
        sum(
            fabric.FabricTopology(found).devices[port.guid].kind is fabric.FabricDeviceKind.HOST for port in found.ports
        )
        == 512
    )
    assert not found.problems
    assert found.seconds < 5.0


def test_a_hub_that_sweeps_keeps_series_and_leaves_up_to_date(
    running: ibsim.Fabric, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", running.programs(tmp_path))
    watch = fabric_watch.FabricWatch(
        config.FabricSettings(sweep=True, timeout="60s"), "main", state_path=tmp_path / "fabric.json"
    )
    assert asyncio.run(watch.refresh(NOW)) == []
    assert (watch.problem, len(watch.leaf_by_node())) == ("", 4)
    up = {
        labels["switch"]: value for labels, value in watch.series(NOW_MS).items() if "switch_up" in labels["__name__"]
    }
    assert up == {"leaf-1-0": 1.0, "leaf-1-1": 1.0, "spine-1": 1.0, "spine-2": 1.0}
    (tmp_path / "ibnetdiscover").write_text("#!/bin/sh\nexit 1\n")
    assert asyncio.run(watch.refresh(NOW)) == []
    assert watch.problem.startswith("ibnetdiscover: no output")
    assert len(watch.leaf_by_node()) == 4


def test_the_command_prints_trouble_first_and_its_exit_code_says_so(
    running: ibsim.Fabric, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", running.programs(tmp_path))
    spine = running.plan.spine_id(0)
    running.say(f'PerformanceSet "{spine}"[1] PortCounters.LinkDownedCounter=7')
    look_until(running, lambda layout: "LinkDownedCounter" in (layout.ports[guid(spine), 1].counters or {}))
    done = CliRunner().invoke(command.command, ["sweep"])
    lines = done.output.splitlines()
    assert done.exit_code == 1
    assert lines[0].startswith("4 switches, 4 hosts, 12 links; swept in ")
    assert "  spine-1 port 1 to leaf-1-0 port 5: LinkDownedCounter 7" in lines
    assert lines[-1] == "leaf leaf-1-0: 4 nodes, gpu-node-1, gpu-node-2, gpu-node-3, gpu-node-4"
    as_json = json.loads(CliRunner().invoke(command.command, ["sweep", "--json"]).output)
    assert as_json["leaf_of"]["gpu-node-4"] == "leaf-1-0"


def test_the_command_hands_a_sweep_to_a_hub_and_says_when_it_cannot_look(
    running: ibsim.Fabric, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", running.programs(tmp_path))
    hub = SmallHub()
    hub.fabric = fabric_watch.FabricWatch(config.FabricSettings(), "main")
    with serving(hub) as site:
        done = CliRunner().invoke(command.command, ["sweep", "--push", "--hub", site.url])
    assert (done.exit_code, done.output[:8], done.output[-12:]) == (0, "pushed 2", "; 0 changes\n")
    assert len(hub.fabric.leaf_by_node()) == 4
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    done = CliRunner().invoke(command.command, ["sweep"])
    assert done.exit_code == 3
    assert "ibnetdiscover: it is not installed on this host. Install the package infiniband-diags" in done.output
