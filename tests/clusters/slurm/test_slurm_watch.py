"""The hub's view of Slurm: from a real slurmctld by its commands and by slurmrestd, and when it answers no more."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests import servers
from tests.support.clusters import slurm_cluster
from tests.support.manual_clock import ManualClock
from watchkeeper.clusters.slurm import slurm_reader
from watchkeeper.clusters.slurm.slurm_watch import SlurmWatch, build_view, from_settings
from watchkeeper.config import settings
from watchkeeper.errors import CollectError
from watchkeeper.kit import commands
from watchkeeper.kit.own_metrics import Registry
from watchkeeper.model.cluster import ClusterView
from watchkeeper.model.workloads import WorkloadState
from watchkeeper.readers.clusters import slurm_records as records
from watchkeeper.scrape import discovery

NOW = datetime(2026, 11, 15, 6, 0, tzinfo=UTC)


def watch(asked: slurm_reader.SlurmReader, *, agent_port: int | None = 9400) -> SlurmWatch:
    return SlurmWatch(asked, cluster="main", agent_port=agent_port, time=ManualClock(NOW), metrics=Registry())


@dataclass
class Told:
    """A Slurm that says what it is told to."""

    nodes_: list[records.NodeRecord] = field(default_factory=list)
    jobs_: list[records.JobRecord] = field(default_factory=list)
    broken: str = ""

    async def nodes(self) -> list[records.NodeRecord]:
        if self.broken:
            raise CollectError(self.broken)
        return self.nodes_

    async def jobs(self) -> list[records.JobRecord]:
        return self.jobs_

    async def leaves(self) -> dict[str, str]:
        return {"n1": "leaf1"}

    async def limits(self) -> list[records.AccountLimit]:
        return [records.AccountLimit("llm", 12)]


def node(name: str = "n1", *states: str, **more: object) -> records.NodeRecord:
    made = {"gpus": 8, "address": f"10.0.0.{name[1:]}", "partitions": ("gpu",)} | more
    return records.NodeRecord(name, states or ("IDLE",), **made)  # type: ignore[arg-type]


def test_a_slurmctld_that_falls_silent_leaves_its_last_word_and_the_time_of_it() -> None:
    told = Told([node()])
    slurm = watch(told)
    asyncio.run(slurm.refresh())
    told.broken = "slurm_load_node error: Unable to contact slurm controller"
    asyncio.run(slurm.refresh())
    view = slurm.view()
    assert [one.name for one in view.nodes] == ["n1"]
    assert view.problem.endswith("Unable to contact slurm controller (last good data is from 06:00:00 UTC)")
    assert slurm.problems()[0].startswith("slurm: nodes: ")


def test_a_slurmctld_that_never_answered_is_not_an_empty_cluster() -> None:
    slurm = watch(Told(broken="down"))
    asyncio.run(slurm.refresh())
    assert (slurm.view().at_ms, slurm.view().problem) == (None, "nodes: down (no answer yet)")


def test_nodes_are_expected_with_their_gpus_leaf_and_partition_and_read_at_the_agents_port() -> None:
    slurm = watch(Told([node(), node("n2"), node("login", gpus=None)]))
    asyncio.run(slurm.refresh())
    found = slurm.discover(discovery.DiscoveredTargets())
    assert [(one.name, one.expected_gpus, one.pool, dict(one.domains)) for one in found.nodes] == [
        ("n1", 8, "gpu", {"leaf": "leaf1"}),
        ("n2", 8, "gpu", {}),
    ]
    assert [target.address for target in found.targets] == ["10.0.0.1:9400", "10.0.0.2:9400"]
    assert slurm.discover(found).targets == (), "a list that names a target for the node goes first"


def test_slices_that_slurm_counts_are_no_gpus_that_a_node_should_have() -> None:
    cut = records.read_nodes_text("NodeName=n1 State=IDLE Gres=gpu:h200_1g.18gb:14(S:0-1) Partitions=gpu\n")
    slurm = watch(Told([*cut, node("n2", gres="gpu:h200:8"), node("n3", gpus=4, gres="gpu:1g.24gb:4")]))
    asyncio.run(slurm.refresh())
    assert [(one.name, one.expected_gpus) for one in slurm.discover(discovery.DiscoveredTargets()).nodes] == [
        ("n1", None),
        ("n2", 8),
        ("n3", None),
    ]
    parts = {one.name: (one.gpus, one.gpu_part) for one in slurm.view().nodes}
    assert parts == {"n1": (14, pytest.approx(1 / 7)), "n2": (8, 1.0), "n3": (4, pytest.approx(1 / 7))}


def test_a_name_that_several_nodes_share_is_no_alias_of_any() -> None:
    slurm = watch(Told([node(hostname="vm", address="127.0.0.1"), node("n2", hostname="vm", address="10.0.0.2")]))
    asyncio.run(slurm.refresh())
    assert [sorted(one.aliases) for one in slurm.discover(discovery.DiscoveredTargets()).nodes] == [
        ["127.0.0.1"],
        ["10.0.0.2"],
    ]


def test_waiting_jobs_have_slurms_own_reason_and_quotas_what_is_used_of_them() -> None:
    jobs = [
        records.JobRecord(
            "1", ("RUNNING",), account="llm", gpus=8, nodes=("n1",), gpus_by_node={"n1": tuple(range(8))}
        ),
        records.JobRecord("2", ("PENDING",), account="llm", partition="gpu", reason="AssocGrpGRES", gpus=8),
        records.JobRecord("3", ("COMPLETED",), account="llm", gpus=8),
    ]
    view = build_view([node()], jobs, cluster="main", limits=[records.AccountLimit("llm", 12)])
    assert [(one.workload.name, one.state, one.reason) for one in view.workloads] == [
        ("1", WorkloadState.RUNNING, ""),
        ("2", WorkloadState.PENDING, "AssocGrpGRES"),
    ]
    assert [(quota.owner, quota.limit, quota.used) for quota in view.quotas] == [("llm", 12, 8)]


def put(folder: Path, **programs: str) -> None:
    for name, script in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)


def test_a_slurm_that_is_upgraded_under_our_feet_is_asked_in_the_way_it_understands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    old = "echo scontrol: unrecognized option; exit 1"
    text = "echo NodeName=n1 State=IDLE"
    put(
        tmp_path,
        scontrol=f'case "$*" in *--json*) {old};; esac; {text}',
        sinfo="echo 'sinfo: unrecognized option'; exit 1",
        squeue="exit 1",
    )
    asked = slurm_reader.SlurmCommandReader(commands.CommandRunner(timeout_seconds=5))
    assert [one.state_name for one in asyncio.run(asked.nodes())] == ["idle"]
    new = """echo '{"nodes": [{"name": "n1", "state": ["DOWN"]}]}'"""
    put(tmp_path, scontrol=f'case "$*" in *--json*) {new};; *) exit 1;; esac')
    assert [one.state_name for one in asyncio.run(asked.nodes())] == ["down"]
    put(tmp_path, scontrol="exit 1", sinfo="""echo '{"sinfo": []}'""")
    with pytest.raises(CollectError, match="the answer has no list of nodes"):
        asyncio.run(asked.nodes())


def test_a_slurmctld_that_hangs_costs_one_deadline_and_leaves_what_it_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    put(tmp_path, scontrol="exec sleep 60", sinfo="exec sleep 60", squeue="""echo '{"jobs": []}'""")
    slurm = watch(slurm_reader.SlurmCommandReader(commands.CommandRunner(timeout_seconds=0.3)))
    started = time.monotonic()
    asyncio.run(slurm.refresh())
    assert time.monotonic() - started < 30.0
    assert "no answer within 0.3 s" in slurm.view().problem
    assert slurm.view().at_ms is None


def test_a_machine_without_slurm_says_which_command_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CollectError, match="squeue: No such file"):
        asyncio.run(slurm_reader.SlurmCommandReader().jobs())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[slurm_cluster.Cluster]:
    with slurm_cluster.running(tmp_path_factory.mktemp("slurm"), nodes=3, accounting=True) as started:
        yield started


@pytest.fixture
def asked(cluster: slurm_cluster.Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[slurm_reader.SlurmCommandReader]:
    monkeypatch.setenv("SLURM_CONF", str(cluster.folder / "slurm.conf"))
    yield slurm_reader.SlurmCommandReader()
    cluster.cancel_all()


def view_until(slurm: SlurmWatch, condition: Callable[[ClusterView], bool]) -> ClusterView:
    def look() -> bool:
        asyncio.run(slurm.refresh())
        return condition(slurm.view())

    slurm_cluster.until(look)
    return slurm.view()


@pytest.mark.servers
def test_a_real_slurm_tells_its_nodes_jobs_leaves_and_limits(
    cluster: slurm_cluster.Cluster, asked: slurm_reader.SlurmCommandReader
) -> None:
    running = cluster.submit("--gres=gpu:2", "-w", "n1", "-A", "llm")
    waiting = cluster.submit("--gres=gpu:8", "-N2", "-A", "llm", "-J", "wide")
    slurm = watch(asked)
    view = view_until(slurm, lambda view: any(one.nodes for one in view.workloads))
    jobs = {one.workload.name: one for one in view.workloads}
    assert (dict(jobs[running].nodes), jobs[running].account, jobs[running].owner) == ({"n1": 2}, "llm", "root")
    assert (jobs[waiting].state, jobs[waiting].gpus, jobs[waiting].reason) == (
        WorkloadState.PENDING,
        16,
        "AssocGrpGRES",
    )
    assert [(quota.owner, quota.limit, quota.used) for quota in view.quotas] == [("llm", 12, 2)]
    nodes = {one.name: one for one in slurm.discover(discovery.DiscoveredTargets()).nodes}
    assert [(one.expected_gpus, one.domains["leaf"]) for one in nodes.values()] == [
        (8, "leaf1"),
        (8, "leaf2"),
        (8, "leaf2"),
    ]


@pytest.mark.servers
def test_a_node_that_is_drained_says_who_did_it_and_why(
    cluster: slurm_cluster.Cluster, asked: slurm_reader.SlurmCommandReader
) -> None:
    cluster.ask("scontrol", "update", "nodename=n2", "state=drain", "reason=Xid 79 on GPU 3")
    view = view_until(watch(asked), lambda view: any(not one.is_schedulable for one in view.nodes))
    n2 = next(one for one in view.nodes if one.name == "n2")
    assert (n2.state, n2.reason, n2.unschedulable_by, n2.is_ready) == ("drained", "Xid 79 on GPU 3", "root", True)


@contextlib.contextmanager
def slurmrestd(cluster: slurm_cluster.Cluster, listen: str, *options: str, **more: str) -> Iterator[Path]:
    """slurmrestd for as long as the block lasts; gives the folder that its user may write to."""
    program, folder = servers.require("slurmrestd"), cluster.folder / "rest"
    folder.mkdir(exist_ok=True)
    # It refuses to run as root, so another user must be let in.
    os.chown(folder, 65534, 65534)
    for parent in itertools.takewhile(lambda parent: parent != Path(tempfile.gettempdir()), folder.parents):
        parent.chmod(0o755)
    drop = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    line = [*drop, program, "-f", str(cluster.folder / "slurm.conf"), "-s", "openapi/v0.0.38", *options, listen]
    with (folder.parent / "slurmrestd.out").open("wb") as output:
        daemon = subprocess.Popen(line, env={**cluster.environment, **more}, stderr=output)
    try:
        yield folder
    finally:
        servers.stop(daemon)


@pytest.fixture
def rest(cluster: slurm_cluster.Cluster) -> Iterator[slurm_reader.SlurmRestReader]:
    socket = cluster.folder / "rest" / "s.sock"
    with slurmrestd(cluster, f"unix:{socket}", "-a", "rest_auth/local"):
        slurm_cluster.until(socket.exists, cluster.folder)
        yield slurm_reader.SlurmRestReader(f"unix://{socket}")


@pytest.mark.servers
def test_slurmrestd_lets_in_whoever_brings_a_token_over_http_and_nobody_else(
    cluster: slurm_cluster.Cluster, asked: slurm_reader.SlurmCommandReader, tmp_path: Path
) -> None:
    servers.require("auth_jwt.so")
    address, token = f"127.0.0.1:{servers.free_port()}", tmp_path / "token"
    token.write_text(cluster.ask("scontrol", "token", "username=root", "lifespan=300"))
    rest = slurm_reader.SlurmRestReader(f"http://{address}", token, "root")
    with slurmrestd(cluster, address, "-a", "rest_auth/jwt", SLURM_JWT="daemon"):
        slurm_cluster.until(lambda: answers(rest), cluster.folder)
        slurm_cluster.until(lambda: answers(rest) and asyncio.run(rest.nodes()) == asyncio.run(asked.nodes()))
        good = token.read_text()
        token.write_text("SLURM_JWT=eyJhbGciOiJIUzI1NiJ9.eyJzdW4iOiJyb290In0.c3Rhcg")
        with pytest.raises(CollectError, match=r"answered \d+: .* Check the token in .*/token"):
            asyncio.run(rest.jobs())
        # The file is read each time, so a token that something renews is used at once.
        token.write_text(good)
        assert asyncio.run(rest.nodes())


def answers(rest: slurm_reader.SlurmRestReader) -> bool:
    try:
        return bool(asyncio.run(rest.nodes()))
    except CollectError:
        return False


@pytest.mark.servers
def test_slurmrestd_tells_the_same_as_the_commands(
    cluster: slurm_cluster.Cluster, asked: slurm_reader.SlurmCommandReader, rest: slurm_reader.SlurmRestReader
) -> None:
    cluster.submit("--gres=gpu:2", "-A", "llm")
    view_until(watch(asked), lambda view: any(one.nodes for one in view.workloads))
    # A node that was just resumed answers a moment later, and may do so between the two questions.
    slurm_cluster.until(lambda: answers(rest) and asyncio.run(rest.nodes()) == asyncio.run(asked.nodes()))
    assert [one for one in asyncio.run(rest.jobs()) if one.is_running] == [
        one for one in asyncio.run(asked.jobs()) if one.is_running
    ]


def test_the_settings_choose_commands_slurmrestd_or_nothing() -> None:
    def asked(**chosen: object) -> object:
        fleet = settings.FleetSettings(**chosen)  # type: ignore[arg-type]
        found = from_settings(fleet, time=ManualClock(NOW), metrics=Registry())
        return None if found is None else type(found._reader)

    assert asked() is None
    assert asked(slurm=True) is slurm_reader.SlurmCommandReader
    assert asked(slurm_rest_url="unix:///run/rest.sock") is slurm_reader.SlurmRestReader
    with pytest.raises(ValueError, match="`slurm_rest_url` is not a URL"):
        settings.FleetSettings(slurm_rest_url="slurm:6820")
