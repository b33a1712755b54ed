"""The tree of racks, leaves, nodes, GPUs and links: what it says over the API, and how it reads in a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from click.testing import CliRunner

from tests.support.clusters.fabrics import fabric_of, leaf, without_device, without_link
from tests.web import stories
from tests.web.running import Site, serving
from tests.web.small_fleet import FleetGpu
from tests.web.small_hub import SmallHub
from watchkeeper.cli.fleet import topology as command
from watchkeeper.client import answers, reading
from watchkeeper.clusters.fabric import fabric_watch
from watchkeeper.config import settings as config
from watchkeeper.hub import fleet_layout
from watchkeeper.kit import wire
from watchkeeper.model import fleet
from watchkeeper.model.labels import Labels
from watchkeeper.web.fleet import topology

UNMAPPED = "unmapped: leaf of 4, nvlink of 4 nodes. Set them in the inventory file (`fleet.inventory`)"


@pytest.fixture
def site() -> Iterator[Site]:
    hub = SmallHub()
    hub.fabric = fabric_watch.FabricWatch(config.FabricSettings(), "main")
    with serving(hub) as running:
        yield running


def printed(site: Site, *arguments: str) -> str:
    done = CliRunner().invoke(command.command, ["--hub", site.url, *arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_a_healthy_fleet_folds_into_a_line_for_each_rack(site: Site) -> None:
    assert printed(site).splitlines() == [
        "main: 2 racks, 4 nodes, 32 GPUs; all healthy",
        "rack r01 · 2 nodes healthy · 16 GPUs",
        "rack r02 · 2 nodes healthy · 16 GPUs",
        UNMAPPED,
    ]


def test_nodes_without_a_rack_have_a_line_of_their_own_and_what_is_unmapped_is_counted() -> None:
    hub = SmallHub(racks=1)
    hub.fleet._nodes.append(fleet.Node("main", "stray", pool="a", expected_gpus=0))
    with serving(hub) as running:
        answer = running.ask("/api/topology").json
        lines = printed(running).splitlines()
        of_rack = running.ask("/api/topology?rack=r01").json
    assert answer["racks"][-1]["name"] is None
    assert answer["unmapped"]["rack"] == 1
    assert "unmapped: no rack · 1 node healthy · 0 GPUs" in lines
    assert any(line.startswith("unmapped: ") and "rack of 1" in line for line in lines)
    assert of_rack["unmapped"]["rack"] == 0


def test_a_lost_gpu_is_unfolded_with_its_reason_and_the_rest_stays_folded(site: Site) -> None:
    site.call(stories.lose_gpu, site.hub)
    lines = printed(site).splitlines()
    assert lines[0] == "main: 2 racks, 4 nodes, 32 GPUs; 1 node not healthy"
    assert lines[1:4] == [
        "rack r01 · 1 of 2 nodes not healthy",
        "  unmapped: no leaf · 1 of 2 nodes not healthy",
        "    node gpu-r01-02 · critical · 1 of 8 GPUs not healthy",
    ]
    assert lines[4].startswith("      gpu 3 · critical · GPU-r01-02-3 · ")
    assert lines[5:] == ["    1 node healthy", "rack r02 · 2 nodes healthy · 16 GPUs", UNMAPPED]


def test_the_place_of_a_recovering_incident_is_a_warning(site: Site) -> None:
    site.call(stories.lose_gpu, site.hub)
    (incident,) = site.hub.journal.incidents()
    site.hub.journal.kept[incident.id] = replace(incident, recovering_since=incident.opened_at)
    text = printed(site)
    assert "critical" not in text
    assert "warning" in text


def test_one_node_is_shown_with_all_its_parts_and_an_unknown_one_is_said(site: Site) -> None:
    lines = printed(site, "--node", "gpu-r02-01").splitlines()
    assert [line.strip() for line in lines if "gpu " in line] == [
        f"gpu {at} · healthy · GPU-r02-01-{at}" for at in range(8)
    ]
    missing = CliRunner().invoke(command.command, ["--hub", site.url, "--rack", "r9"])
    assert "no node is in rack r9" in str(missing.exception)


def test_a_node_of_which_nobody_knows_a_gpu_is_not_healthy() -> None:
    hub = SmallHub(racks=0)
    hub.fleet._nodes = [fleet.Node("main", "n1"), fleet.Node("main", "login", expected_gpus=0)]
    (rack,) = topology.build_topology(topology.TopologySources(fleet_layout.current_layout(hub.fleet), []))
    login, unread = rack.leaves[0].nodes
    assert (login.state, unread.state) == (topology.HealthState.HEALTHY, topology.HealthState.UNKNOWN)
    assert unread.why == ("no GPU reported, and the expected number is unknown",)


def test_gpus_that_never_reported_are_one_line(site: Site) -> None:
    site.hub.fleet._nodes.append(fleet.Node("main", "n9", expected_gpus=8))
    lines = printed(site).splitlines()
    at = lines.index("    node n9 · missing · 8 GPUs missing")
    assert lines[at + 1] == "      8 gpus · missing · expected, but never reported"


def drawn(racks: Sequence[topology.TopologyRack]) -> list[str]:
    """What the command prints of these racks, as a hub answers them."""
    now = datetime(2026, 11, 1, tzinfo=UTC).isoformat()
    plain = {
        "cluster": "main",
        "now": now,
        "fabric": None,
        "racks": wire.to_plain(racks),
        "switches": [],
        "unmapped": {},
    }
    return list(
        command.plain_lines(command.build_tree(reading.read_answer(answers.Topology, plain), command.TreeDetail()))
    )


def test_ten_thousand_gpus_are_readable() -> None:
    hub = SmallHub(racks=157, per_rack=8)
    stories.lose_gpu(hub)
    facts = topology.TopologySources(fleet_layout.current_layout(hub.fleet), hub.journal.incidents())
    lines = drawn(topology.build_topology(facts))
    assert lines[0].startswith("main: 157 racks, 1,256 nodes, 10,048 GPUs; 1 node not healthy")
    assert len(lines) == 1 + 157 + 4
    assert max(len(line) for line in lines) < 120


def test_a_gpu_that_never_came_and_one_that_went_are_told_apart() -> None:
    hub = SmallHub(racks=1, per_rack=1)
    seen = hub.fleet.fleet_gpus
    hub.fleet.fleet_gpus = [*seen[:6], FleetGpu(seen[6].node, seen[6].gpu, gone_since_ms=1)]
    gone = frozenset({seen[6].gpu.uuid})
    ((rack),) = topology.build_topology(topology.TopologySources(fleet_layout.current_layout(hub.fleet), [], gone=gone))
    states = [gpu.state for gpu in rack.leaves[0].nodes[0].gpus]
    assert states == [*["healthy"] * 6, "gone", "missing"]
    assert rack.state == "gone"


def test_a_node_that_does_not_answer_is_silent_and_not_healthy() -> None:
    hub = SmallHub(racks=1, per_rack=2)
    (rack,) = topology.build_topology(
        topology.TopologySources(fleet_layout.current_layout(hub.fleet), [], silent=frozenset({("main", "gpu-r01-02")}))
    )
    assert [node.state for node in rack.leaves[0].nodes] == ["healthy", "silent"]
    text = "\n".join(drawn([rack]))
    assert "node gpu-r01-02 · silent · 8 GPUs silent" in text
    assert text.count("gpu ") == 0


def test_ports_come_from_what_nodes_say_where_nobody_sweeps_the_fabric() -> None:
    def row(device: str, **more: str) -> Labels:
        return Labels({"instance": "n1:9100", "device": device, "port": "1", **more})

    told = topology.list_host_links(
        [(row("mlx5_10"), 4.0), (row("mlx5_2"), 1.0), (row("mlx5_3", port="x"), 4.0)],
        [(row("mlx5_10"), 50e9)],
        frozenset({"n1"}),
    )
    shown = [(link.device, link.state, link.gbps, link.why) for link in told["n1"]]
    assert shown == [("mlx5_2", "down", None, "port state down"), ("mlx5_10", "healthy", 400.0, "")]


def push(site: Site, found: Any) -> Any:
    return site.ask("/api/fabric", method="POST", body=wire.to_plain(found)).json


def test_a_sweep_of_another_host_shows_links_leaves_and_dark_cables(site: Site) -> None:
    site.hub.fleet._nodes = [fleet.Node("main", f"n{at}", expected_gpus=0, domains={"rack": "r1"}) for at in range(4)]
    assert push(site, fabric_of())["changes"] == 0
    assert push(site, without_link(fabric_of(), (leaf(1), 2)))["changes"] == 1
    assert [event.kind for event in site.hub.journal.taken] == ["fabric_down"]
    lines = printed(site).splitlines()
    assert lines[0].endswith("; 1 node not healthy; fabric by test: 6 links, 1 down")
    assert "  leaf leaf-0 · 2 nodes healthy · 0 GPUs" in lines
    assert "      link mlx5_0/1 · down · leaf-1 port 2 · missing in the newest sweep" in lines
    at = lines.index("leaf switch leaf-1 · warning · 3 links")
    assert lines[at + 1] == "  leaf-1 port 2 to n3 mlx5_0 is down"
    assert lines[-1] == "2 switches healthy"


def test_hosts_of_the_fabric_that_nobody_lists_are_said(site: Site) -> None:
    push(site, fabric_of(6))
    assert printed(site).splitlines()[-1] == "6 hosts of the fabric not in the inventory: n0, n1, n2, n3, …"


def test_a_switch_that_is_gone_is_listed_first(site: Site) -> None:
    push(site, fabric_of())
    push(site, without_device(fabric_of(), leaf(0)))
    switches = site.ask("/api/topology").json["switches"]
    assert [(one["name"], one["state"]) for one in switches] == [
        ("leaf-0", "gone"),
        ("leaf-1", "healthy"),
        ("spine-0", "healthy"),
    ]


@pytest.mark.parametrize("body", [{"at_ms": "x"}, [], {"at_ms": 1, "source": "s", "ports": [{"guid": 1}]}])
def test_a_sweep_that_is_none_is_refused(site: Site, body: Any) -> None:
    answer = site.ask("/api/fabric", method="POST", body=body)
    assert (answer.status, answer.json["error"][:16]) == (400, "the body is not ")


def test_a_hub_that_looks_itself_takes_no_sweep_of_others() -> None:
    hub = SmallHub(fabric=fabric_watch.FabricWatch(config.FabricSettings(sweep=True), "main"))
    with serving(hub) as site:
        assert site.ask("/api/fabric", method="POST", body=wire.to_plain(fabric_of())).status == 409


def test_the_json_has_every_gpu_and_link(site: Site) -> None:
    assert re.search(r'"racks": \[', printed(site, "--json"))
    racks = site.ask("/api/topology?rack=r02").json["racks"]
    assert [node["name"] for rack in racks for leaf in rack["leaves"] for node in leaf["nodes"]] == [
        "gpu-r02-01",
        "gpu-r02-02",
    ]
    assert len(racks[0]["leaves"][0]["nodes"][0]["gpus"]) == 8


def test_an_engine_that_cannot_answer_costs_the_links_only(site: Site) -> None:
    site.hub.queries.failing = True
    assert site.ask("/api/topology").json["racks"][0]["state"] == "healthy"


def test_a_slow_link_is_said_with_its_rate(site: Site) -> None:
    slowed = fabric_of(8)
    ports = [replace(port, lanes=1) if port.key == (leaf(0), 1) else port for port in slowed.ports]
    push(site, replace(slowed, ports=tuple(ports)))
    (slow, *_) = site.ask("/api/topology").json["switches"]
    assert slow["trouble"] == ["leaf-0 port 1 to n0 mlx5_0 is slow: 100 Gb/s (1x NDR)"]


def test_a_sweep_that_is_too_old_leaves_switches_unknown(site: Site) -> None:
    site.hub.fabric.accept_sweep(fabric_of(), site.hub.clock.now() - timedelta(minutes=10))
    answer = site.ask("/api/topology").json
    assert {one["state"] for one in answer["switches"]} == {"unknown"}
    assert "too old" in answer["fabric"]["problem"]
