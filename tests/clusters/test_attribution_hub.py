"""Holders in the hub: whoever tells them, a GPU and its workload are one series, and it ends with the holding."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.support.loopback import reply
from tests.support.scraped import Kept, with_pages
from watchkeeper.clusters.clusters import Clusters
from watchkeeper.clusters.slurm.slurm_watch import SlurmWatch
from watchkeeper.errors import CollectError
from watchkeeper.hub import fleet_gpus, fleet_layout, holders
from watchkeeper.hub.own_series import HOLDER_EXPR
from watchkeeper.kit.clock import ScaledClock
from watchkeeper.kit.own_metrics import Registry
from watchkeeper.model.fleet import Gpu, Node
from watchkeeper.model.labels import Labels
from watchkeeper.model.samples import Sample
from watchkeeper.query import embedded
from watchkeeper.readers.clusters import slurm_records as records
from watchkeeper.scrape import discovery, status_series
from watchkeeper.scrape.fleet import ScrapedInventory
from watchkeeper.scrape.target_loop import TargetLoop
from watchkeeper.store.head import head
from watchkeeper.web.fleet import frames

GPU = {"cluster": "sim", "Hostname": "n1", "UUID": "GPU-0", "gpu": "0"}
INFO = 'watchkeeper_gpu_workload_info{{gpu="0",UUID="GPU-0",Hostname="n1",workload_kind="slurm_job",workload="{}"}} 1\n'


def test_an_agents_own_series_is_not_stored_but_known_until_the_agent_falls_silent() -> None:
    pages = reply("a 1\n" + INFO.format(7)), reply("a 1\n" + INFO.format(8)), reply("gone", status=500)

    @with_pages(*pages)
    async def story(loop: TargetLoop, sink: Kept, known: ScrapedInventory) -> None:
        seen = []
        for at_ms in (1000, 2000, 3000):
            await loop.scrape(at_ms)
            seen.append([labels["workload"] for labels in known.workload_labels()])
        assert seen == [["7"], ["8"], []]
        assert not any(labels.name == status_series.WORKLOAD_INFO for labels in sink.known)


def series(known: ScrapedInventory, *by_labels: dict[str, str]) -> list[Labels]:
    """What the hub would write for these label sets of exporters."""
    made = status_series.workload_series(Labels({"__name__": "x", **GPU, **labels}) for labels in by_labels)
    return list(Clusters([]).workload_series(known, made, at_ms=0))


def test_a_gpu_whose_agent_says_both_ways_who_holds_it_has_one_series() -> None:
    known = ScrapedInventory()
    told = {**GPU, "workload_kind": "pod", "workload": "llm-0", "namespace": "research", "instance": "n1", "job": "gpu"}
    known.set_workloads("agent", [Labels({"__name__": status_series.WORKLOAD_INFO, **told})])
    (made,) = series(known, {"namespace": "research", "pod": "llm-0"})
    assert (made["workload"], made["team"], "instance" in made) == ("llm-0", "research", False)


def test_a_gpu_that_only_an_exporter_labels_has_the_same_series() -> None:
    (made,) = series(ScrapedInventory(), {"hpc_job": "7"})
    assert (made["workload_kind"], made["workload"], made["team"]) == ("slurm_job", "7", "unmapped")


@dataclass
class Slurm:
    """A Slurm with one node and one job on two of its GPUs."""

    job: records.JobRecord = field(
        default_factory=lambda: records.JobRecord("7", ("RUNNING",), account="llm", gpus=1, gpus_by_node={"n1": (1,)})
    )

    broken: str = ""

    async def nodes(self) -> list[records.NodeRecord]:
        if self.broken:
            raise CollectError(self.broken)
        return [records.NodeRecord("n1", ("IDLE",), gpus=2)]

    async def jobs(self) -> list[records.JobRecord]:
        return [self.job]

    async def leaves(self) -> dict[str, str]:
        return {}

    async def limits(self) -> Iterable[records.AccountLimit]:
        return []


async def hub_of(slurm: Slurm) -> tuple[Clusters, ScrapedInventory]:
    watch = SlurmWatch(slurm, cluster="sim", agent_port=None, time=ScaledClock(), metrics=Registry())  # type: ignore[arg-type]
    await watch.refresh()
    clusters, known = Clusters([watch]), ScrapedInventory()
    known.set_expected_nodes((await clusters.discover(discovery.DiscoveredTargets())).nodes, 0)
    gpus = {f"GPU-{index}": Gpu(f"GPU-{index}", index) for index in (0, 1)}
    known.record_page(Node("sim", "n1"), gpus, at_ms=1, source="exporter")
    return clusters, known


def test_a_job_on_a_node_without_an_agent_is_attributed_by_slurms_own_indexes() -> None:
    clusters, known = asyncio.run(hub_of(Slurm()))
    at_ms = clusters.views()[0].at_ms or 0
    made = clusters.workload_series(known, {}, at_ms=at_ms)
    assert [(labels["UUID"], labels["workload"], labels["team"]) for labels in made] == [("GPU-1", "7", "llm")]
    told = Labels({**GPU, "UUID": "GPU-1", "workload": "stray", "workload_kind": "program"})
    known.set_workloads("agent", [told.with_labels(__name__=status_series.WORKLOAD_INFO)])
    made = clusters.workload_series(known, {}, at_ms=at_ms)
    assert [labels["workload"] for labels in made] == ["stray"], "an agent knows better"


def test_a_slurm_that_has_been_silent_for_five_minutes_names_nobody() -> None:
    slurm = Slurm()
    clusters, known = asyncio.run(hub_of(slurm))
    (watch,) = clusters.schedulers
    at_ms = watch.view().at_ms or 0
    slurm.broken = "slurmctld is away"
    asyncio.run(watch.refresh())  # type: ignore[attr-defined]
    soon, late = at_ms + 299_000, at_ms + 301_000
    assert len(clusters.workload_series(known, {}, at_ms=soon)) == 1
    assert len(clusters.workload_series(known, {}, at_ms=late)) == 0
    names = {sample.labels["__name__"] for sample in clusters.samples({}, soon)}
    assert {"watchkeeper_scheduler_up", "watchkeeper_scheduler_gpus", "watchkeeper_scheduler_node_state"} <= names
    said = {sample.labels["__name__"]: sample.value for sample in clusters.samples({}, late)}
    assert [name for name, value in said.items() if value == value] == ["watchkeeper_scheduler_up"]
    assert said["watchkeeper_scheduler_up"] == 0.0


def test_a_team_is_remembered_after_its_job_has_ended_and_falls_back_to_the_namespace() -> None:
    slurm = Slurm()
    clusters, known = asyncio.run(hub_of(slurm))
    at_ms = clusters.views()[0].at_ms or 0
    assert clusters.team_of("7") == "unmapped", "nobody has seen the job on a GPU yet"
    clusters.workload_series(known, {}, at_ms=at_ms)
    slurm.job = records.JobRecord("7", ("COMPLETED",), account="llm")
    asyncio.run(clusters.schedulers[0].refresh())  # type: ignore[attr-defined]
    assert clusters.workload_series(known, {}, at_ms=at_ms) == {}
    assert (clusters.team_of("7"), clusters.team_of("research/llm-0")) == ("llm", "research")


def test_an_agent_is_read_where_it_says_and_expects_what_slurm_says() -> None:
    async def story() -> discovery.DiscoveredTargets:
        watch = SlurmWatch(Slurm(), cluster="sim", agent_port=9400, time=ScaledClock(), metrics=Registry())  # type: ignore[arg-type]
        await watch.refresh()
        group = {
            "targets": ["10.0.0.9:9999"],
            "labels": {f"{discovery.META}node": "n1", f"{discovery.META}cluster": "sim"},
        }
        agents = discovery.read_groups([group], "agents")
        return await Clusters([watch]).discover(discovery.DiscoveredTargets(), agents)

    found = asyncio.run(story())
    assert [target.address for target in found.targets] == ["10.0.0.9:9999"]
    assert [node.expected_gpus for node in found.nodes] == [2]


def owners(known: ScrapedInventory, labels: Iterable[Labels]) -> dict[int, str]:
    """The owner that the fleet map has for each GPU."""
    held = [holder for one in labels if (holder := holders.holder_from_labels(one)) is not None]
    by_gpu = {holder.uuid: (holder,) for holder in held}
    layout = fleet_layout.current_layout(known)
    sources = fleet_gpus.FleetGpuSources(layout, frozenset(by_gpu), holders.GpuHolders(by_gpu))
    return frames.owners_by_slot(fleet_gpus.decide_states(sources))


def test_the_map_knows_holders_that_only_an_agents_own_series_names() -> None:
    known = ScrapedInventory()
    known.record_page(Node("sim", "n1"), {"GPU-0": Gpu("GPU-0", 0)}, at_ms=1, source="agent")
    told = Labels({**GPU, "workload_kind": "pod", "workload": "llm-0", "namespace": "research"})
    assert owners(known, [told]) == {0: "research"}


def test_slices_whose_pods_only_an_exporter_names_are_held_by_them() -> None:
    """As dcgm-exporter writes it: a divided GPU has no GPU_UTIL, and its pods stand at the series of its slices."""
    engine = embedded.EmbeddedEngine(head.Head())
    slices = ({"GPU_I_ID": "1", "GPU_I_PROFILE": "3g.40gb", "namespace": "lab", "pod": "ada"}, {"GPU_I_ID": "2"})
    pages = [Labels({"__name__": "DCGM_FI_DEV_FB_USED", **GPU, **one}) for one in slices]
    engine.appender.append([Sample(labels, 1_000, 9_000.0) for labels in pages])
    (made,) = status_series.workload_series(engine.instant(HOLDER_EXPR, 1_000).frame.labels)
    assert (made["workload"], made["GPU_I_ID"], made["GPU_I_PROFILE"]) == ("ada", "1", "3g.40gb")
    found = [holders.holder_from_labels(labels) for labels in engine.instant(holders.HOLDER_EXPR, 1_000).frame.labels]
    assert [(one.workload_name, one.mig_instance) for one in found if one is not None] == [("lab/ada", "1")]
    known = ScrapedInventory()
    known.record_page(Node("sim", "n1"), {"GPU-0": Gpu("GPU-0", 0)}, at_ms=1, source="page")
    assert owners(known, engine.instant(holders.HOLDER_EXPR, 1_000).frame.labels) == {0: "lab"}
