"""`watchkeeper act` against a real hub over HTTP: explain, list, approve, reject, stop, log and test."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.remediate.cluster import Machine, TestCluster, Troubles, nodes
from tests.support.opened import opened
from tests.support.running_product import await_that
from watchkeeper.cli.main import watchkeeper
from watchkeeper.client.hub import Client
from watchkeeper.config import settings
from watchkeeper.errors import HubError, SettingsError
from watchkeeper.hub.hub import Hub
from watchkeeper.kit import clock
from watchkeeper.model import events, fleet
from watchkeeper.model.trust import Mode
from watchkeeper.web import server
from watchkeeper.web.app import create_app
from watchkeeper.web.auth.auth import Auth


class Shell:
    """A hub in mode ask with a cluster in memory, and a user at a terminal."""

    def __init__(self, hub: Hub, cluster: TestCluster, port: int, loop: asyncio.AbstractEventLoop) -> None:
        self.hub, self.cluster, self.loop = hub, cluster, loop
        self.url = f"http://127.0.0.1:{port}"
        self.client = Client(self.url)

    def breaks(self, node: str, code: int = 79) -> None:
        place = fleet.Place("main", node=node, gpu=f"GPU-{node}")
        now = datetime.now(UTC)
        event = events.Event(f"main/{node}/b/k/{code}", events.EventKind.XID, code, place, now, f"Xid {code}")
        asyncio.run_coroutine_threadsafe(self.hub.incidents.ingest_events([event]), self.loop).result(60)

    def types(self, *words: str) -> Result:
        return CliRunner().invoke(watchkeeper, ["act", *words, "--hub", self.url], catch_exceptions=False)

    def planned(self, node: str = "n1") -> str:
        self.breaks(node)
        repairs = await_that(lambda: [repair for repair in self.client.repairs().repairs if repair.node.node == node])
        return repairs[0].incident


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    listener, loop, stop = server.listen("127.0.0.1", 0), asyncio.new_event_loop(), asyncio.Event()
    names = [node.name for node in nodes(4)]
    labels = {"__meta_watchkeeper_cluster": "main"}
    groups = [{"targets": [], "labels": {**labels, "__meta_watchkeeper_node": name}} for name in names]
    (tmp_path / "sd.json").write_text(json.dumps(groups))
    chosen = settings.Settings(
        hub=settings.HubSettings(data=str(tmp_path / "kept")),
        fleet=settings.FleetSettings(sd_files=(str(tmp_path / "sd.json"),)),
        remediate=replace(settings.RemediateSettings(), mode=Mode.ASK),
    )
    cluster = TestCluster({name: Machine() for name in names})
    hub = opened(chosen, time=clock.ScaledClock(), driver=cluster)

    async def run() -> None:
        watching = asyncio.create_task(hub.run(stop))
        with contextlib.closing(listener):
            await server.serve(create_app(hub.services, Auth()), listener, stop=stop)
        await watching

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
    thread.start()
    await_that(hub.fleet.fleet.nodes)
    yield Shell(hub, cluster, listener.getsockname()[1], loop)
    loop.call_soon_threadsafe(stop.set)
    thread.join(60)
    loop.close()
    hub.close()


def test_a_plan_is_explained_approved_and_carried_out(shell: Shell) -> None:
    id = shell.planned()
    output = shell.types("explain", id).output
    assert f"{id}  gpu_fell_off_bus: waits for approval" in output
    assert "mode ask, set by remediate.mode; no [[remediate.trust]] entry matches" in output
    assert "; policy cause.gpu_fell_off_bus" in output
    assert "reboot n1   (within 30m)" in output
    assert shell.cluster.calls == []
    assert f"{id}.1 is cordoning" in shell.types("approve", id).output
    await_that(lambda: shell.cluster.calls == ["cordon n1", "drain n1", "reboot n1"])
    assert "approved plan" in shell.types("log").output
    assert "validating" in shell.types("list").output


def test_a_stale_approval_is_refused_with_both_digests(shell: Shell) -> None:
    id = shell.planned()
    with pytest.raises(HubError, match="the approval is for plan abc, but the plan is now"):
        shell.types("approve", id, "--plan", "abc")
    assert shell.types("reject", id, "--why", "it is my test node").output == f"{id}.1 is rejected.\n"
    assert "rejected" in shell.types("list", "--all").output
    assert shell.types("list").output == "No repairs.\n"
    assert f"{id}.2 is planned" in shell.types("again", id).output


def test_who_approves_has_the_incident_and_a_stop_is_shown_until_it_is_resumed(shell: Shell) -> None:
    shell.cluster.troubles = Troubles(slow=1.0)
    id = shell.planned()
    assert shell.types("approve", id).output.endswith(f"{id} is assigned to local.\n")
    assert shell.client.incident(id).incident.assignee == "local"
    await_that(lambda: shell.client.incidents()[0].repair and shell.client.incidents()[0].repair.state == "draining")
    node = next(node for node in shell.client.list_nodes().nodes if node.name == "n1")
    assert node.service is not None
    assert (node.service.text, node.service.incident) == (f"cordoned · repair {id}", id)
    said = shell.types("stop", id, "--why", "let me look").output
    assert said.startswith(f"{id}.1: Stopped by local: let me look. n1 stays cordoned; the step drain has begun")
    assert "draining, stopped" in shell.types("list").output
    shown = CliRunner().invoke(watchkeeper, ["incidents", "--hub", shell.url]).output
    assert "acknowledged (local), stopped by local while draining n1" in shown
    assert shell.types("resume", id).output == f"{id}.1 is draining n1.\n"
    resolved = shell.client.resolve(id, why="it was a test").incident
    assert (resolved.state, resolved.recovering_since is not None) == ("acknowledged", True)
    # Nothing on the machine was changed: the cordon is undone, and then the incident is resolved.
    await_that(lambda: shell.client.incident(id).incident.state == "resolved")
    assert shell.cluster.ours() == []


@pytest.mark.slow
def test_a_halt_is_shown_everywhere_and_blocks_approved_repairs(shell: Shell) -> None:
    id = shell.planned()
    shell.types("stop", "--why", "power work")
    assert shell.types("list").output.startswith("HALTED by local at ")
    shell.types("approve", id)
    assert "would be refused by stop" in shell.types("explain", id).output
    assert shell.cluster.calls == []
    assert shell.types("resume").output == "Repairs resumed.\n"
    await_that(lambda: shell.cluster.ours() == ["n1"])


def test_a_policy_is_tested_on_past_incidents(shell: Shell, tmp_path: Path) -> None:
    id = shell.planned()
    mine = tmp_path / "mine.toml"
    mine.write_text('[cause.gpu_fell_off_bus]\nsteps = [{ action = "inspect", why = "we look first" }]')
    output = shell.types("test", str(mine)).output
    assert id in output
    assert "0 of 1 would start without approval." in output
    assert "inspect" in output
    mine.write_text('[cause.nonsense]\nsteps = [{ action = "explode", why = "" }]')
    with pytest.raises(Exception, match=r"cause.nonsense.steps\[0\].action: expected one of"):
        shell.types("test", str(mine))


def test_a_policy_is_tested_on_an_incident_report(shell: Shell, tmp_path: Path) -> None:
    report, mine = tmp_path / "report.json", tmp_path / "mine.toml"
    report.write_text(json.dumps(shell.client.report(shell.planned())))
    mine.write_text("[limits]\n")
    output = shell.types("test", str(mine), str(report)).output
    assert "cordon → drain → reboot → validate → uncordon" in output
    assert "1 of 1 would start without approval." in output
    report.write_text("[]")
    with pytest.raises(SettingsError, match="is not an incident report"):
        shell.types("test", str(mine), str(report))


def test_an_incident_without_a_repair_says_why(shell: Shell) -> None:
    shell.breaks("n2", 13)
    id = await_that(lambda: [incident.id for incident in shell.client.incidents() if incident.plan])[0]
    assert "the pods or jobs to restart are unknown" in shell.types("explain", id).output
    with pytest.raises(HubError, match="no repair for"):
        shell.types("reject", id, "--why", "x")


def test_the_audit_is_json_with_who_what_and_why(shell: Shell) -> None:
    id = shell.planned()
    shell.types("reject", id, "--why", "no")
    last = shell.client.repair_log()[-1]
    assert (last.actor, last.kind, last.subject) == ("local", "repair", id)
    assert last.body["text"] == "local rejected the repair: no"
    assert shell.hub.current.stages.journal.verify() is None
