"""Target lists: what they give, and what happens when one breaks."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support.loopback import reply, serve
from watchkeeper.errors import CollectError
from watchkeeper.scrape.discovery import Discovery, read_groups

NOW = datetime(2026, 3, 1, 9, 14, tzinfo=UTC)
GROUP = {
    "targets": ["127.0.0.1:9481"],
    "labels": {
        "__metrics_path__": "/nodes/gpu-r01-01/metrics",
        "__meta_watchkeeper_cluster": "sim",
        "__meta_watchkeeper_node": "gpu-r01-01",
        "__meta_watchkeeper_pool": "h200",
        "__meta_watchkeeper_expected_gpus": "8",
        "__meta_watchkeeper_aliases": "r01-01.example, 10.0.0.7",
        "__meta_watchkeeper_domain_rack": "r01",
        "__meta_watchkeeper_domain_leaf": "leaf-01",
        "team": "research",
    },
}


def read(*groups: Any) -> Any:
    return read_groups(json.dumps(groups).encode(), "here")


def test_a_group_gives_its_target_and_the_expected_node() -> None:
    discovered = read(GROUP)
    (target,), (node,) = discovered.targets, discovered.nodes
    assert target.url == "http://127.0.0.1:9481/nodes/gpu-r01-01/metrics"
    assert dict(target.labels) == {"job": "gpu", "instance": "gpu-r01-01", "cluster": "sim", "team": "research"}
    assert (node.cluster, node.name, node.pool, node.expected_gpus) == ("sim", "gpu-r01-01", "h200", 8)
    assert node.domains == {"rack": "r01", "leaf": "leaf-01"}
    assert node.aliases == {"r01-01.example", "10.0.0.7"}


def test_a_plain_target_is_named_by_its_address_and_expects_nothing() -> None:
    discovered = read({"targets": ["10.0.0.9:9400"], "labels": {"job": "dcgm"}})
    assert dict(discovered.targets[0].labels) == {"job": "dcgm", "instance": "10.0.0.9:9400", "cluster": "main"}
    assert discovered.nodes == ()


def test_two_exporters_on_each_node_of_100_000_gpus_are_not_too_many() -> None:
    addresses = [f"gpu-{node}:{port}" for node in range(12_500) for port in (9400, 9100)]
    assert len(read({"targets": addresses}).targets) == 25_000


def test_a_list_beyond_all_fleets_is_refused_with_both_numbers() -> None:
    with pytest.raises(CollectError, match="here: lists 100001 targets, the limit is 100000"):
        read({"targets": [f"n{number}" for number in range(100_001)]})


def test_a_node_with_two_exporters_is_one_node() -> None:
    second = {"targets": ["127.0.0.1:9100"], "labels": {**GROUP["labels"], "__meta_watchkeeper_expected_gpus": ""}}
    discovered = read(second, GROUP, GROUP)
    assert len(discovered.targets) == 2
    assert [node.expected_gpus for node in discovered.nodes] == [8]


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ("{", "not JSON"),
        ("{}", "expected a list"),
        ('[{"targets": "a"}]', "group 1: expected targets"),
        ('[{"targets": [1]}]', "group 1: expected addresses"),
        ('[{"targets": [], "labels": {"a": 1}}]', "labels must be text"),
        (
            '[{"targets": [], "labels": {"__meta_watchkeeper_node": "a", "__meta_watchkeeper_expected_gpus": "x"}}]',
            "whole number",
        ),
    ],
)
def test_a_list_of_the_wrong_shape_says_which_group(document: str, problem: str) -> None:
    with pytest.raises(CollectError, match=problem):
        read_groups(document.encode(), "here")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('- targets: ["10.0.0.9:9400"]\n  labels: {on: "1"}', "labels must be text"),
        ('- targets: ["10.0.0.9:9400"]\n  labels: {since: 2026-13-45}', "not YAML"),
        ("[" * 100_000, "not YAML"),
    ],
)
def test_yaml_that_reads_as_something_else_breaks_its_own_list_only(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "broken.yml").write_text(text)
    (tmp_path / "good.json").write_text(json.dumps([GROUP]))
    sources = Discovery([str(tmp_path / "broken.yml"), str(tmp_path / "good.json")])
    discovered = asyncio.run(sources.refresh(NOW))
    assert [target.address for target in discovered.targets] == ["127.0.0.1:9481"]
    assert problem in sources.problems()[0]


@pytest.mark.slow
def test_a_large_list_is_read_beside_the_event_loop(tmp_path: Path) -> None:
    lines = [f"- targets: [10.0.{n // 256}.{n % 256}:9400]\n  labels: {{rack: r{n}}}\n" for n in range(10_000)]
    (tmp_path / "many.yml").write_text("".join(lines))

    async def share_of_the_loop() -> float:
        """Of the CPU time that it takes to read the list."""
        own, everybody = time.thread_time(), time.process_time()
        discovered = await Discovery([str(tmp_path / "many.yml")]).refresh(NOW)
        assert len(discovered.targets) == 10_000
        return (time.thread_time() - own) / (time.process_time() - everybody)

    assert asyncio.run(share_of_the_loop()) < 1 / 3


def test_a_file_that_breaks_keeps_the_last_good_list_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "targets.json"
    path.write_text(json.dumps([GROUP]))
    discovery = Discovery([str(path)])
    asyncio.run(discovery.refresh(NOW))
    path.write_text("[{")
    discovered = asyncio.run(discovery.refresh(NOW.replace(hour=10)))
    assert len(discovered.targets) == 1
    (problem,) = discovery.problems()
    assert str(path) in problem
    assert problem.endswith("The 1 targets read at 09:14 UTC stay in force")


def test_an_http_list_is_read_and_an_unreachable_one_knows_nothing() -> None:
    async def story() -> None:
        async with serve(lambda _: reply(json.dumps([GROUP]))) as server:
            discovery = Discovery([f"{server.origin}/sd"])
            assert len((await discovery.refresh(NOW)).nodes) == 1
        away = Discovery([f"{server.origin}/sd"])
        assert (await away.refresh(NOW)).targets == ()
        assert away.problems()[0].endswith("No target of this source was discovered yet")

    asyncio.run(story())
