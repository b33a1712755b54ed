"""Nodes that make themselves known: what the hub expects and reads because of them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from watchkeeper.errors import CollectError
from watchkeeper.model.fleet import NodeRegistration
from watchkeeper.scrape import discovery, registrations
from watchkeeper.scrape.registrations import NodeRegistrations

NOW = datetime(2026, 11, 15, tzinfo=UTC)
NODE = NodeRegistration("main", "n1", expected_gpus=8, metrics_port=9400)
EMPTY = discovery.DiscoveredTargets()


def register_all(*nodes: NodeRegistration, peer: str = "10.0.0.7") -> NodeRegistrations:
    accepted = NodeRegistrations()
    for node in nodes:
        accepted.register(node, peer, now=NOW)
    return accepted


def test_a_registered_node_is_expected_and_read_at_the_address_it_called_from() -> None:
    discovered = register_all(NODE, peer="fd00::7").discovered_nodes(EMPTY, now=NOW)
    assert [(node.name, node.expected_gpus) for node in discovered.nodes] == [("n1", 8)]
    assert [target.url for target in discovered.targets] == ["http://[fd00::7]:9400/metrics"]


def test_a_node_that_a_list_already_reads_is_not_read_twice() -> None:
    labels = {"__meta_watchkeeper_cluster": "main", "__meta_watchkeeper_node": "n1"}
    groups = [{"targets": ["n1:9400"], "labels": labels}]
    listed = discovery.read_groups(groups, "list")
    discovered = register_all(NODE).discovered_nodes(listed, now=NOW)
    assert not discovered.targets
    assert discovery.merge_discovered([listed, discovered]).nodes[0].expected_gpus == 8


def test_a_node_whose_page_needs_a_secret_is_expected_and_not_read() -> None:
    discovered = register_all(replace(NODE, metrics_port=None)).discovered_nodes(EMPTY, now=NOW)
    assert (len(discovered.nodes), len(discovered.targets)) == (1, 0)


def test_a_node_that_has_been_silent_for_a_day_is_forgotten() -> None:
    registered = register_all(NODE)
    assert registered.discovered_nodes(EMPTY, now=NOW + timedelta(hours=23)).nodes
    assert not registered.discovered_nodes(EMPTY, now=NOW + timedelta(hours=25)).nodes


def test_one_node_too_many_is_refused_and_those_that_are_known_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registrations, "MAX_NODES", 1)
    registered = register_all(NODE)
    with pytest.raises(CollectError, match="1 nodes are registered, the limit is 1"):
        registered.register(replace(NODE, node="n2"), "10.0.0.8", now=NOW)
    registered.register(NODE, "10.0.0.9", now=NOW)
    assert [target.address for target in registered.discovered_nodes(EMPTY, now=NOW).targets] == ["10.0.0.9:9400"]


@pytest.mark.parametrize(
    "wrong", [{"node": ""}, {"node": "a b"}, {"cluster": "x" * 300}, {"metrics_port": 0}, {"expected_gpus": 1_000}]
)
def test_what_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(CollectError):
        register_all(replace(NODE, **wrong))  # type: ignore[arg-type]
