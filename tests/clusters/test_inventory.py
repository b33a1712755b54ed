"""One mapping: which source counts for what, what nobody says, and what two say differently."""

from __future__ import annotations

from pathlib import Path

import pytest

from watchkeeper.clusters.inventory import NodeInventory, Owners, missing_facts
from watchkeeper.clusters.inventory_file import read
from watchkeeper.errors import SettingsError
from watchkeeper.kit.own_metrics import Registry
from watchkeeper.model.cluster import ClusterView
from watchkeeper.model.fleet import Gpu, Node
from watchkeeper.model.labels import Labels
from watchkeeper.model.workloads import ScheduledWorkload, Workload, WorkloadKind, WorkloadState
from watchkeeper.scrape import discovery, status_series
from watchkeeper.scrape.fleet import ScrapedInventory, inventory_samples

FILE = """
[[nodes]]
match = ["gpu-r[01-02]-[1-2]"]
rack = "r{1}"
leaf = "leaf-{1}"
expected_gpus = 8

[[nodes]]
match = "gpu-*"
pool = "training"
nvlink = "one"

[[teams]]
team = "llm"
project = "base"
namespaces = ["research", "research-*"]
accounts = ["llm"]

[[teams]]
team = "chat"
users = ["eve"]
labels = { "app.kubernetes.io/part-of" = "chat" }
"""


def inventory(path: Path | None = None, text: str = FILE) -> NodeInventory:
    if path is not None:
        path.write_text(text)
    return NodeInventory(path, default_cluster="main", metrics=Registry())


def found(*nodes: Node) -> discovery.DiscoveredTargets:
    return discovery.DiscoveredTargets(nodes=nodes)


def node(name: str = "gpu-r01-1", cluster: str = "main", **facts: object) -> Node:
    return Node(cluster, name, **facts)  # type: ignore[arg-type]


def test_ranges_place_each_node_by_its_own_numbers_and_patterns_fill_the_rest(tmp_path: Path) -> None:
    nodes = {one.name: one for one in inventory(tmp_path / "i.toml").merge([]).nodes}
    assert sorted(nodes) == ["gpu-r01-1", "gpu-r01-2", "gpu-r02-1", "gpu-r02-2"], "what is written out is expected"
    assert nodes["gpu-r02-1"].domains == {"rack": "r02", "leaf": "leaf-02", "nvlink": "one"}
    assert (nodes["gpu-r02-1"].pool, nodes["gpu-r02-1"].expected_gpus) == ("training", 8)


def test_each_thing_comes_from_the_first_source_that_says_it(tmp_path: Path) -> None:
    lists = found(node("n1", expected_gpus=4, source="list"))
    labels = found(node("n1", pool="blue", expected_gpus=8, domains={"rack": "r9"}, source="kubernetes"))
    slurm = found(node("n1", pool="gpu", domains={"rack": "r9", "leaf": "s1"}, source="slurm"))
    agents = found(node("n1", expected_gpus=2, source="agents"))
    mapping = inventory()
    (merged,) = mapping.merge([lists, labels, slurm, agents], leaves={"n1": "ib-leaf-3"}).nodes
    assert (merged.expected_gpus, merged.pool, dict(merged.domains)) == (4, "blue", {"rack": "r9", "leaf": "s1"})
    assert mapping.problems() == [
        "node n1: expected_gpus is 4 (list) but 8 (kubernetes); 4 is used",
        "node n1: expected_gpus is 4 (list) but 2 (agents); 4 is used",
        "node n1: leaf is s1 (slurm) but ib-leaf-3 (fabric); s1 is used",
    ]


def test_the_fabric_places_a_node_that_nobody_else_does() -> None:
    (merged,) = inventory().merge([found(node("n1"))], leaves={"n1": "leaf-3"}).nodes
    assert merged.domains == {"leaf": "leaf-3"}
    assert missing_facts(merged) == ["pool", "rack", "nvlink", "expected_gpus"]


def test_what_nobody_says_is_counted_as_unmapped() -> None:
    metrics = Registry()
    mapping = NodeInventory(None, default_cluster="main", metrics=metrics)
    mapping.merge([found(node("n1", domains={"rack": "r1"}), node("n2"))])
    assert metrics.metrics["watchkeeper_inventory_unmapped_nodes"].get(fact="rack") == 1
    assert metrics.metrics["watchkeeper_inventory_unmapped_nodes"].get(fact="pool") == 2


def test_two_nodes_with_one_name_stay_two_and_are_said() -> None:
    mapping = inventory()
    merged = mapping.merge([found(node("n1", "east", expected_gpus=8), node("n1", "west", expected_gpus=4))])
    assert {(one.cluster, one.expected_gpus) for one in merged.nodes} == {("east", 8), ("west", 4)}
    assert mapping.problems() == ["node n1 is in the clusters east, west: two nodes with one name"]


def test_an_alias_that_means_two_nodes_means_neither() -> None:
    mapping = inventory()
    both = found(node("n1", aliases=frozenset({"vm", "10.0.0.1"})), node("n2", aliases=frozenset({"vm"})))
    merged = {one.name: sorted(one.aliases) for one in mapping.merge([both]).nodes}
    assert merged == {"n1": ["10.0.0.1"], "n2": []}
    assert mapping.problems()[0] == "node n1: the alias vm also matches another node and is not used"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[[nodes]]\nmatch = 'n[1-'", "nodes[1].match: `n[1-` has an unmatched bracket"),
        ("[[nodes]]\nrack = 'r1'", "nodes[1].match: the row matches no node"),
        ("[[nodes]]\nmatch = 'n1'\nracks = 'r1'", "nodes[1]: unknown key `racks`. Use aliases"),
        ("[[nodes]]\nmatch = 'n1'\nexpected_gpus = -1", "nodes[1].expected_gpus: `-1` is not a count from 0 to 1023"),
        ("[[nodes]]\nmatch = 'n1'\nrack = 7", "nodes[1].rack: expected a name"),
        ("[[teams]]\nteam = 'a'", "teams[1]: the team `a` matches no workload"),
        ("[[teams]]\nusers = ['a']", "teams[1].team: the row has no team"),
        ("[[node]]\n", "`node` is not a table of the inventory file"),
        ("nodes = 3", "`nodes` must be a list of tables"),
        ("[[nodes", "is not TOML"),
    ],
)
def test_a_file_that_is_wrong_says_where(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "i.toml"
    path.write_text(text)
    with pytest.raises(SettingsError) as raised:
        read(path)
    assert str(raised.value).startswith(str(path))
    assert problem in str(raised.value)


def test_a_file_that_breaks_while_we_run_leaves_the_last_good_one_in_force(tmp_path: Path) -> None:
    path = tmp_path / "i.toml"
    mapping = inventory(path)
    path.write_text("[[nodes")
    assert len(mapping.merge([]).nodes) == 4
    assert "The 2 node rows and 2 team rows loaded before stay in force" in mapping.problems()[0]
    path.write_text("[[nodes]]\nmatch = 'n[1-3]'\n")
    assert len(mapping.merge([]).nodes) == 3
    assert mapping.problems() == []


def test_a_file_that_was_away_for_a_moment_is_no_problem_any_more(tmp_path: Path) -> None:
    path = tmp_path / "i.toml"
    mapping = inventory(path)
    path.rename(tmp_path / "away")
    mapping.refresh()
    assert "cannot be read: No such file" in mapping.problems()[0]
    (tmp_path / "away").rename(path)
    mapping.refresh()
    assert mapping.problems() == []


def test_a_file_that_is_wrong_from_the_start_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="is not TOML"):
        inventory(tmp_path / "i.toml", "[[nodes")
    with pytest.raises(SettingsError, match="cannot be read"):
        NodeInventory(tmp_path / "absent.toml", default_cluster="main", metrics=Registry())


def test_yaml_says_the_same_as_toml(tmp_path: Path) -> None:
    path = tmp_path / "i.yaml"
    path.write_text("nodes:\n  - match: gpu-r[01-02]-[1-2]\n    rack: r{1}\n    expected_gpus: 8\n")
    assert [row.expected_gpus for row in read(path).nodes] == [8]


@pytest.mark.parametrize(
    ("facts", "team", "project"),
    [
        ({"namespace": "research-7"}, "llm", "base"),
        ({"account": "llm"}, "llm", "base"),
        ({"user": "eve"}, "chat", ""),
        ({"namespace": "x", "labels": {"app.kubernetes.io/part-of": "chat"}}, "chat", ""),
        ({"namespace": "x", "labels": {"watchkeeper.dev/team": "own", "watchkeeper.dev/project": "p"}}, "own", "p"),
        ({"namespace": "serving"}, "serving", ""),
        ({"account": "physics"}, "physics", ""),
        ({"user": "ada"}, "unmapped", ""),
    ],
)
def test_a_workload_belongs_to_the_first_that_claims_it(
    tmp_path: Path, facts: dict[str, object], team: str, project: str
) -> None:
    owner = inventory(tmp_path / "i.toml").owner_of(**facts)  # type: ignore[arg-type]
    assert (owner.team, owner.project) == (team, project)


def test_a_slurm_job_gets_its_team_from_its_account_and_a_job_nobody_knows_is_unmapped(tmp_path: Path) -> None:
    job = ScheduledWorkload("main", Workload(WorkloadKind.SLURM_JOB, "7"), WorkloadState.RUNNING, account="llm")
    gpu = {"__name__": status_series.WORKLOAD_INFO, "cluster": "main", "UUID": "GPU-1", "workload_kind": "slurm_job"}
    series = {Labels({**gpu, "workload": "7"}): 1.0, Labels({**gpu, "workload": "8", "UUID": "GPU-2"}): 1.0}
    named = Owners(inventory(tmp_path / "i.toml")).add_owners(series, [ClusterView("slurm", workloads=(job,))])
    assert [(labels["workload"], labels["team"], labels.get("project", "")) for labels in named] == [
        ("7", "llm", "base"),
        ("8", "unmapped", ""),
    ]


def test_a_job_is_its_pods_teams_unless_two_teams_have_a_job_of_that_name(tmp_path: Path) -> None:
    owners = Owners(inventory(tmp_path / "i.toml"))
    pods = [
        ("research", "llm-70b-worker-0"),
        ("research", "llm-70b-worker-1"),
        ("research", "eval-0"),
        ("art", "eval-0"),
    ]
    info = {"__name__": status_series.WORKLOAD_INFO, "cluster": "main", "workload_kind": "pod"}
    held = [{**info, "namespace": space, "workload": pod, "UUID": f"GPU-{at}"} for at, (space, pod) in enumerate(pods)]
    owners.add_owners({Labels(one): 1.0 for one in held}, [])
    assert [owners.team_of(job) for job in ("llm-70b", "llm", "eval")] == ["llm", "unmapped", "unmapped"]


def test_a_gpu_that_turns_up_on_another_node_is_said_once_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    known, gpu = ScrapedInventory(), Gpu("GPU-1", 0)
    for at, name in enumerate(["n1", "n2", "n1", "n2"]):
        known.record_page(node(name), {"GPU-1": gpu}, at_ms=at, source=name)
    assert [record.message for record in caplog.records] == ["GPU moved"]
    assert (known.recent_moves[0].before, known.recent_moves[0].after) == ("n1", "n2")
    counted = {str(one.labels): one.value for one in inventory_samples(known, 9)}
    assert counted['watchkeeper_fleet_moved_gpus_total{cluster="main"}'] == 3
