"""`watchkeeper nodes` and `watchkeeper who` against a hub: both directions, and what disappeared is not forgotten."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest
from click.testing import CliRunner

from tests.web import stories
from tests.web.kept_services import START
from tests.web.running import Site, serving
from tests.web.small_fleet import FleetGpu
from tests.web.small_hub import SmallHub
from watchkeeper.cli.main import main, watchkeeper
from watchkeeper.clusters.inventory import NodeInventory
from watchkeeper.hub import fleet_gpus, fleet_layout, holders
from watchkeeper.kit.own_metrics import Registry
from watchkeeper.model.cluster import ClusterView, ScheduledNode
from watchkeeper.model.fleet import Gpu, Node
from watchkeeper.model.workloads import ScheduledWorkload, Workload, WorkloadKind, WorkloadState
from watchkeeper.scrape.fleet import ScrapedInventory
from watchkeeper.scrape.jobs import ScrapeJob, build_target
from watchkeeper.scrape.target_loop import TargetHealth, TargetState
from watchkeeper.web.fleet import cluster_api

HELD_NODE = "gpu-r01-01"


@dataclass
class Schedulers:
    """Schedulers that say what they are told to."""

    told: list[ClusterView] = field(default_factory=list)
    inventory: NodeInventory = field(
        default_factory=lambda: NodeInventory(None, default_cluster="main", metrics=Registry())
    )

    def views(self) -> list[ClusterView]:
        return self.told


def slurm() -> ClusterView:
    waiting = ScheduledWorkload(
        "main",
        Workload(WorkloadKind.SLURM_JOB, "4711", user="ada"),
        WorkloadState.PENDING,
        gpus=16,
        account="llm",
        queue="gpu",
        reason="AssocGrpGRES",
        requested_at=START.timestamp(),
        labels={"array_job": "4700_3"},
    )
    drained = ScheduledNode(
        "main",
        HELD_NODE,
        "slurm",
        state="drained",
        is_ready=True,
        is_schedulable=False,
        reason="Xid 79",
        unschedulable_by="root",
    )
    return ClusterView("slurm", 1, nodes=(drained,), workloads=(waiting,))


@pytest.fixture
def hub() -> SmallHub:
    return SmallHub(clusters=Schedulers([slurm()]))


@pytest.fixture
def site(hub: SmallHub) -> Iterator[Site]:
    with serving(hub) as running:
        yield running


def run(site: Site, *arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(watchkeeper, [*arguments, "--hub", site.url], standalone_mode=True)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        return 1, str(result.exception)
    return result.exit_code, result.output


def test_the_exit_code_says_whether_all_is_well(site: Site, hub: SmallHub) -> None:
    hub.fleet.fleet_gpus[0] = FleetGpu(HELD_NODE, hub.fleet.fleet_gpus[0].gpu, gone_since_ms=5)
    main(["nodes", "--state", "up", "--hub", site.url])
    with pytest.raises(SystemExit) as left:
        main(["nodes", "--state", "short", "--hub", site.url])
    assert left.value.code == 1


def pod_of(hub: SmallHub, node: str) -> str:
    seen = next(one for one in hub.fleet.fleet_gpus if one.node == node)
    labels = hub.engine._labels(seen)
    return f"{labels['namespace']}/{labels['pod']}"


def test_the_list_shows_what_each_node_has_who_holds_it_and_what_its_scheduler_says(site: Site, hub: SmallHub) -> None:
    hub.fleet.fleet_gpus[0] = FleetGpu(HELD_NODE, hub.fleet.fleet_gpus[0].gpu, gone_since_ms=5)
    code, text = run(site, "nodes")
    line = next(row for row in text.splitlines() if row.startswith(HELD_NODE))
    assert code == 1
    for part in ("short", "drained (slurm)", "7/8", pod_of(hub, HELD_NODE), "7 of 8 GPUs report; Xid 79 (by root)"):
        assert part in line
    assert "4 of 4 nodes: 1 short, 3 up" in text
    assert "Unmapped: leaf of 4" in text


def test_nodes_of_several_clusters_are_listed_with_their_cluster_and_only_their_own_incidents(
    site: Site, hub: SmallHub
) -> None:
    lost = site.call(stories.lose_gpu, hub)
    hub.fleet._nodes.append(Node("west", lost.place.node or "", expected_gpus=8))
    rows = [line for line in run(site, "nodes")[1].splitlines() if f"/{lost.place.node} " in line]
    assert [(row.partition(" ")[0], lost.id in row) for row in rows] == [
        (f"main/{lost.place.node}", True),
        (f"west/{lost.place.node}", False),
    ]


def test_a_job_on_a_node_that_nobody_reads_is_named_by_its_scheduler(site: Site, hub: SmallHub) -> None:
    hub.fleet._nodes.append(Node("main", "n9", expected_gpus=8))
    job = ScheduledWorkload(
        "main", Workload(WorkloadKind.SLURM_JOB, "99", user="ada"), WorkloadState.RUNNING, gpus=2, nodes={"n9": 2}
    )
    hub.clusters.told = [ClusterView("slurm", 1, workloads=(job,))]  # type: ignore[union-attr]
    assert next(one for one in site.ask("/api/nodes").json["nodes"] if one["name"] == "n9")["holders"] == ["99"]
    assert "  runs      99, according to the scheduler; no exporter reports its GPUs" in run(site, "who", "n9")[1]


def test_a_list_may_be_narrowed_to_a_state_of_ours_or_of_the_scheduler(site: Site) -> None:
    assert [node["name"] for node in site.ask("/api/nodes?state=drained").json["nodes"]] == [HELD_NODE]
    assert site.ask("/api/nodes?pool=unmapped").json["nodes"] == []
    assert run(site, "nodes", "--pool", "h20")[1].endswith("unknown pool `h20`; the pools are h200, unmapped")
    code, text = run(site, "nodes", "--state", "banana")
    assert code == 1
    assert "unknown state `banana`; the states are cordoned, drained, draining, gone" in text


def test_json_has_every_fact_of_a_node(site: Site) -> None:
    _, text = run(site, "nodes", "--json", "--state", "drained")
    (node,) = json.loads(text)["nodes"]
    assert (node["gpus_seen"], node["gpus_expected"], node["rack"]) == (8, 8, "r01")
    assert node["scheduler"][0]["by"] == "root"


def test_who_holds_a_gpu_by_index_and_by_the_beginning_of_its_uuid(site: Site, hub: SmallHub) -> None:
    for name in (f"{HELD_NODE}/3", "GPU-r01-01-3"):
        code, text = run(site, "who", name)
        assert code == 0
        assert text.startswith(
            f"GPU 3 on {HELD_NODE} (GPU-r01-01-3, NVIDIA H200)\n  held by   {pod_of(hub, HELD_NODE)}"
        )


def test_what_a_pod_holds_and_the_incidents_on_it(site: Site, hub: SmallHub) -> None:
    incident = stories.lose_gpu(hub)
    pod = pod_of(hub, incident.place.node or "")
    hub.journal.kept[incident.id] = replace(incident, workloads=(pod,))
    answer = site.ask(f"/api/who?name={pod}").json
    (found,) = [one for one in answer["workloads"] if incident.place.node in one["nodes"]]
    assert len(found["gpus"]) >= 7, "the lost one is nobody's any more"
    assert [one["id"] for one in found["incidents"]] == [incident.id]
    assert f"incident  {incident.id} critical" in run(site, "who", pod)[1]


def test_a_node_lists_its_gpus_and_their_holders(site: Site, hub: SmallHub) -> None:
    _, text = run(site, "who", HELD_NODE)
    assert text.splitlines()[1] == "  slurm     drained: Xid 79 (by root)"
    assert text.count(pod_of(hub, HELD_NODE)) == 8


@pytest.mark.parametrize("name", ["4711", "4700_3", "ada", "llm"])
def test_a_job_that_waits_says_why_by_any_of_its_names(site: Site, name: str) -> None:
    _, text = run(site, "who", name)
    assert "4711 (slurm job, pending, user ada, account llm, team llm, queue gpu)" in text
    assert "  reason    AssocGrpGRES\n  requests  16 GPUs" in text


@pytest.mark.parametrize("name", ["nobody", "GPU-", "gpu-r01-01/99", "../etc", "%"])
def test_a_name_that_nothing_answers_to_is_said(site: Site, name: str) -> None:
    code, text = run(site, "who", name)
    assert code == 1
    assert "no GPU, node, pod, job, user or team has the name" in text


def test_samples_that_cannot_be_asked_cost_the_holders_and_not_the_list(site: Site, hub: SmallHub) -> None:
    hub.queries.failing = True
    code, text = run(site, "nodes")
    assert "Holders are unknown" in text
    assert HELD_NODE in text
    assert code == 0, "the nodes themselves are well"


def target(node: Node, health: TargetHealth, error: str | None = None) -> TargetState:
    made = build_target("127.0.0.1:1", {}, ScrapeJob(name="gpu"), node=node, cluster=node.cluster)
    return TargetState(made, health, error=error)  # type: ignore[arg-type]


def states(known: ScrapedInventory, *targets: TargetState) -> dict[str, tuple[str, str]]:
    reporting = frozenset(gpu.gpu.uuid for gpu in known.gpus())
    sources = fleet_gpus.FleetGpuSources(fleet_layout.current_layout(known), reporting, holders.GpuHolders())
    facts = cluster_api.NodeListSources(known, targets, [], fleet_gpus.decide_states(sources), [])
    return {line.name: (line.state.value, line.why) for line in cluster_api.build_node_list(facts)}


def test_silent_never_seen_not_read_and_gone_are_four_different_words() -> None:
    known = ScrapedInventory()
    nodes = {
        name: Node("main", name, expected_gpus=1) for name in ("silent", "never", "unread", "gone", "well", "short")
    }
    known.set_expected_nodes(nodes.values(), 0)
    for name in ("silent", "gone", "well"):
        known.record_page(nodes[name], {f"GPU-{name}": Gpu(f"GPU-{name}", 0)}, at_ms=1, source=name)
    known.set_expected_nodes([node for name, node in nodes.items() if name != "gone"], 60_000)
    found = states(
        known,
        target(nodes["silent"], TargetHealth.DOWN, "connection refused"),
        target(nodes["never"], TargetHealth.DOWN, "no answer within 10 s"),
        target(nodes["well"], TargetHealth.UP),
        target(nodes["short"], TargetHealth.UP),
    )
    assert found == {
        "well": ("up", ""),
        "short": ("never_seen", "scraped, but it has not reported a GPU yet"),
        "silent": ("silent", "connection refused"),
        "never": ("never_seen", "no answer within 10 s"),
        "unread": ("not_read", "expected, but it has no target and no agent"),
        "gone": ("gone", "not in the inventory since 1970-01-01 00:01:00Z"),
    }
