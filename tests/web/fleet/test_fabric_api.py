"""The fabric over a real socket: links from a sweep or from hosts, with errors, congestion and jobs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.clusters.fabrics import leaf
from tests.support.web.fabric_hub import HOST, CountingHub, host_ports, swept
from tests.web.running import Site, serving
from watchkeeper.web.fleet import fabric_map
from watchkeeper.web.fleet.topology import HealthState


@pytest.fixture
def site() -> Iterator[Site]:
    with serving(CountingHub()) as running:
        yield running


def test_a_fleet_without_a_fabric_has_no_links(site: Site) -> None:
    answer = site.ask("/api/fabric/map").json
    assert (answer["source"], answer["counts"]["links"], answer["rows"]) == (None, 0, [])


def test_ports_of_hosts_are_listed_without_a_sweep(site: Site) -> None:
    host_ports(site.hub, "mlx5_0", "mlx5_1")
    answer = site.ask("/api/fabric/map").json
    assert (answer["source"], answer["spines"]) == ("hosts", [])
    assert [row["name"] for row in answer["rows"]] == ["r01"]
    assert [cell[0] for cell in answer["rows"][0]["cells"]] == ["gpu-r01-01/mlx5_0/1", "gpu-r01-01/mlx5_1/1"]
    # Without counters the number of errors is unknown, not 0.
    assert answer["rows"][0]["cells"][0][4:] == [None, None, None]
    assert answer["counts"]["uncounted"] == 2
    # Three of four nodes say nothing: of them no link is known to be up.
    assert answer["counts"]["mute_nodes"] == 3


def test_a_port_with_many_errors_comes_first_with_its_job(site: Site) -> None:
    host_ports(site.hub, "mlx5_0", "mlx5_1")
    site.hub.count("node_infiniband_symbol_error_total", HOST | {"device": "mlx5_1"}, per_minute=10)
    site.hub.count("node_infiniband_symbol_error_total", HOST | {"device": "mlx5_0"}, per_minute=0)
    site.hub.tell(
        "watchkeeper_gpu_workload_info", HOST | {"UUID": "GPU-r01-01-0", "workload": "llm", "namespace": "a"}, 1
    )
    links = site.ask("/api/fabric/links").json["links"]
    assert [link["device"] for link in links] == ["mlx5_1", "mlx5_0"]
    assert links[0]["errs"]
    assert 550 < links[0]["errors"] < 650
    assert (links[1]["errs"], links[1]["errors"]) == (False, 0)
    assert site.ask("/api/fabric/links?trouble=1").json["total"] == 1
    assert site.ask("/api/fabric/links?of=mlx5_0").json["total"] == 1


def test_utilisation_is_that_of_the_busier_direction(site: Site) -> None:
    host_ports(site.hub, "mlx5_0")
    for way, rate in (("transmitted", 5e9), ("received", 20e9)):
        metric = f"node_infiniband_port_data_{way}_bytes_total"
        site.hub.count(metric, HOST | {"device": "mlx5_0"}, per_minute=60 * rate)
    load = site.ask("/api/fabric/links").json["links"][0]["load"]
    assert load == pytest.approx(0.4, rel=0.05)


def test_a_sweep_makes_rows_of_leaves_with_trunks_first(site: Site) -> None:
    site.call(swept, site.hub)
    answer = site.ask("/api/fabric/map").json
    assert answer["source"] == "sweep"
    assert [spine["name"] for spine in answer["spines"]] == ["spine-0"]
    first = answer["rows"][0]
    assert (first["name"], first["trunks"]) == ("leaf-0", 1)
    assert [cell[0] for cell in first["cells"]] == ["leaf-0/9", "n0/mlx5_0/1", "n2/mlx5_0/1"]


def test_a_missing_trunk_is_down_since_the_sweep_without_it(site: Site) -> None:
    site.call(swept, site.hub, dark=(leaf(1), 9))
    link = site.ask("/api/fabric/links?row=spine-0").json["links"][0]
    assert (link["id"], link["state"], link["why"]) == ("leaf-1/9", "down", "the link was up before and is down")
    assert link["down_since"] is not None
    assert site.ask("/api/fabric/map").json["counts"]["down"] == 1


def test_a_link_has_counters_with_meaning_and_chart_queries(site: Site) -> None:
    host_ports(site.hub, "mlx5_0")
    site.hub.count("node_infiniband_link_downed_total", HOST | {"device": "mlx5_0"}, per_minute=0.1)
    answer = site.ask("/api/fabric/port?id=gpu-r01-01/mlx5_0/1").json
    assert answer["link"]["errs"], "a link that goes down once is one too many"
    downed = next(counter for counter in answer["counters"] if counter["name"] == "LinkDownedCounter")
    assert "went down" in downed["meaning"]
    assert 'Hostname="gpu-r01-01"' in answer["series"]["traffic"]


@pytest.mark.parametrize(
    ("path", "status"),
    [("map?window=9w", 400), ("links?limit=0", 400), ("links?limit=5000", 400), ("port?id=nothing", 404)],
)
def test_invalid_parameters_are_refused(site: Site, path: str, status: int) -> None:
    assert site.ask(f"/api/fabric/{path}").status == status


def test_a_job_crosses_a_leaf_only_if_one_of_its_nodes_has_no_port_there() -> None:
    jobs = {"a": ["far"], "b": ["far", "near"], "c": ["near"]}
    leaves = {"a": {"leaf-1"}, "b": {"leaf-2"}, "c": {"leaf-2"}}
    assert fabric_map.group_jobs_by_leaf(leaves, jobs) == {"leaf-1": ["far"], "leaf-2": ["far"]}
    rails = {node: {"leaf-1", "leaf-2"} for node in "abc"}
    assert fabric_map.group_jobs_by_leaf(rails, jobs) == {}


def test_a_port_that_waits_much_longer_than_its_peers_is_congested() -> None:
    readings = {("n", f"mlx5_{at}", 1): fabric_map.PortReading(wait_per_second=5000.0) for at in range(5)}
    readings["n", "mlx5_4", 1] = fabric_map.PortReading(wait_per_second=100_000.0)
    host_links = {"n": [fabric_map.TopologyLink(f"mlx5_{at}", 1, HealthState.HEALTHY, 400.0) for at in range(6)]}
    views = fabric_map.list_ports(fabric_map.FabricSources(None, host_links, readings, {}, {"n": None}, {}))
    assert [view.is_congested for view in views] == [False, False, False, False, True, False]
    assert views[5].wait_ratio is None
