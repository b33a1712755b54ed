"""Slurm through slurmrestd: the calls that 24.11 takes, and everything that a server can say instead.

The answers are cut from those of a real slurmrestd 24.11; that of 22.05, which the machine has, cannot change a node.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import servers
from tests.support.clusters import slurm_cluster
from tests.support.scripted_server import Reply, Scripted, serving
from watchkeeper.config import loading
from watchkeeper.errors import ActionFailed, ActionRefused
from watchkeeper.hub import backends
from watchkeeper.model.actions import Action, ActionId, ActionKind
from watchkeeper.model.fleet import Place
from watchkeeper.model.incidents import IncidentId
from watchkeeper.remediate.drivers.slurm import SlurmDriver
from watchkeeper.remediate.drivers.slurm_rest import SlurmRestClient, SlurmRestDriver

CORDON, DRAIN, UNCORDON, RESTART = ActionKind.CORDON, ActionKind.DRAIN, ActionKind.UNCORDON, ActionKind.RESTART_APP
MARK = "watchkeeper:I-7/1-cordon"
PLACE = Place("main", node="n1")
PATHS: dict[str, Any] = {
    "/slurm/v0.0.40/node/{node_name}": {"get": {}},
    "/slurm/v0.0.42/node/{node_name}": {"get": {}, "post": {}},
}
INTERFACES = Reply(body={"paths": {**PATHS, "/slurm/v0.0.42/nodes/": {"post": {}}}})
DONE = Reply(body={"warnings": [], "errors": []})


def node(*states: str, reason: str = "") -> Reply:
    record = {"name": "n1", "state": list(states), "reason": reason, "reason_set_by_user": "root" if reason else ""}
    return Reply(body={"nodes": [record], "warnings": [], "errors": []})


def failed(error: str, status: int = 500, about: str = "") -> Reply:
    return Reply(status, {"errors": [{"description": about, "error_number": 1, "error": error}], "warnings": []})


def jobs(*job_records: dict[str, Any]) -> Reply:
    return Reply(body={"jobs": list(job_records), "errors": [], "warnings": []})


JOB = {"job_id": 17, "job_state": ["RUNNING"], "user_name": "ada", "nodes": "n[1-2]"}


def action(kind: ActionKind, **arguments: str) -> Action:
    return Action(ActionId(f"1-{kind}"), kind, PLACE, IncidentId("I-7"), "GPU 3 fell off the bus", arguments)


def driver(server: Scripted) -> SlurmRestDriver:
    return SlurmRestDriver(rest=SlurmRestClient(server.url, timeout_seconds=30.0))


def calls(server: Scripted) -> list[str]:
    return [" ".join(request.split(" ", 2)[:2]) for request in server.requests]


def test_a_drain_carries_our_reason_by_the_newest_interface_that_can_change_a_node(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("SLURM_JWT=abc\n")
    with serving(INTERFACES, node("IDLE"), DONE, node("IDLE", "DRAIN", reason=MARK)) as server:
        rest = SlurmRestClient(server.url, tmp_path / "token", "root")
        assert SlurmRestDriver(rest=rest).perform(action(CORDON)).text == f"drained n1 with the reason {MARK}"
        path = "/slurm/v0.0.42/node/n1"
        assert SlurmRestDriver(rest=rest).describe(action(CORDON)).startswith(f"POST {path} ")
        assert calls(server) == ["GET /openapi/v3", f"GET {path}", f"POST {path}", f"GET {path}"]
        assert json.loads(server.bodies[2]) == {"state": ["DRAIN"], "reason": MARK}
        assert (server.header("X-SLURM-USER-TOKEN"), server.header("X-SLURM-USER-NAME")) == ("abc", "root")


def test_only_a_drain_of_ours_is_resumed() -> None:
    ours, theirs = node("IDLE", "DRAIN", reason=MARK), node("IDLE", "DRAIN", reason="disk")
    with serving(INTERFACES, ours, DONE, theirs) as server:
        slurm = driver(server)
        assert slurm.perform(action(UNCORDON)).text == "resumed n1"
        assert json.loads(server.bodies[2]) == {"state": ["RESUME"]}
        with pytest.raises(ActionRefused, match="the drain is not Watchkeeper's"):
            slurm.perform(action(UNCORDON))
        assert [call.partition(" ")[0] for call in calls(server)] == ["GET", "GET", "POST", "GET"]


def test_jobs_of_the_node_are_waited_for_and_asked_for_only_while_it_is_busy() -> None:
    busy, empty = node("MIXED", "DRAIN", reason=MARK), node("IDLE", "DRAIN", reason=MARK)
    elsewhere = {**JOB, "job_id": 18, "nodes": "n3"}
    over = {**JOB, "job_id": 19, "job_state": ["COMPLETED"]}
    with serving(INTERFACES, busy, jobs(JOB, elsewhere, over), empty) as server:
        slurm = driver(server)
        done = slurm.perform(action(DRAIN))
        assert (done.is_complete, done.waits_for) == (False, ("job 17 of ada: running",))
        assert slurm.perform(action(DRAIN)).is_complete
        assert [call for call in calls(server) if call.endswith("/jobs")] == ["GET /slurm/v0.0.42/jobs"]


@pytest.mark.parametrize("refused", [action(RESTART, jobs="17"), action(DRAIN, running_jobs="requeue")])
def test_an_action_without_a_slurmrestd_call_is_refused_with_a_remedy(refused: Action) -> None:
    with serving() as server:
        with pytest.raises(ActionRefused, match=r"no call that requeues.*Install Slurm's commands"):
            driver(server).perform(refused)
        assert calls(server) == []


def test_the_dry_run_shows_the_calls_and_makes_none() -> None:
    slurm = SlurmRestDriver(rest=SlurmRestClient("http://127.0.0.1:1"))
    body = json.dumps({"state": ["DRAIN"], "reason": MARK})
    assert slurm.describe(action(CORDON)) == f"POST /slurm/VERSION/node/n1 {body}"
    assert slurm.describe(action(UNCORDON)).endswith('{"state": ["RESUME"]}, only if its reason names I-7')
    assert slurm.describe(action(DRAIN)) == "GET /slurm/VERSION/jobs, until no job is on n1"
    assert "no call that requeues" in slurm.describe(action(RESTART, jobs="17"))


def test_an_interface_that_cannot_change_a_node_is_refused_with_its_version() -> None:
    old: Any = {"paths": {"/slurm/v0.0.38/node/{node_name}": {"get": {}}}}
    with (
        serving(Reply(body=old)) as server,
        pytest.raises(ActionRefused, match=r"its API versions are v0\.0\.38, it needs v0\.0\.39"),
    ):
        driver(server).perform(action(CORDON))


def test_a_slurmrestd_that_was_upgraded_is_asked_by_its_new_interface() -> None:
    newer = Reply(body={"paths": {"/slurm/v0.0.44/node/{node_name}": {"post": {}}}})
    with serving(INTERFACES, node("IDLE"), Reply(404, {}), newer, node("IDLE")) as server:
        slurm = driver(server)
        assert slurm.observe(PLACE).is_schedulable
        assert slurm.observe(PLACE).is_schedulable
        assert calls(server)[-1] == "GET /slurm/v0.0.44/node/n1"


@pytest.mark.parametrize("answer", [failed("Unable to contact slurm controller (connect failure)"), Reply(cut=True)])
def test_a_controller_or_server_that_is_away_is_waited_for(answer: Reply) -> None:
    with serving(INTERFACES, answer) as server:
        done = driver(server).perform(action(CORDON))
    assert (done.is_complete, done.text) == (False, "cordon is blocked")
    assert done.waits_for


@pytest.mark.parametrize("answer", [failed("Authentication failure", 401), Reply(body=b"<html>a proxy</html>")])
def test_an_error_of_slurmrestd_is_reported_and_the_node_still_exists(answer: Reply) -> None:
    with serving(INTERFACES, answer) as server, pytest.raises(ActionFailed, match=r"Authentication failure|a proxy"):
        driver(server).observe(PLACE)


@pytest.mark.parametrize(
    "answer", [failed("Invalid node name specified"), failed("No error", 200, about="Failure to query node n1")]
)
def test_a_node_that_slurm_does_not_know_does_not_exist(answer: Reply) -> None:
    with serving(INTERFACES, answer) as server:
        assert not driver(server).observe(PLACE).exists


def test_a_halt_blocks_every_call_that_changes_something() -> None:
    with serving(INTERFACES, node("IDLE")) as server:
        stopped = SlurmRestDriver(rest=SlurmRestClient(server.url), is_stopped=lambda: True)
        assert stopped.perform(action(CORDON)).waits_for[0].startswith("n1: repairs are halted")
        assert not any(call.startswith("POST") for call in calls(server))


def test_commands_are_taken_where_the_machine_has_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = '[fleet]\nslurm_rest_url = "http://slurm:6820"\n[remediate]\ndriver = "slurm"\n'
    (tmp_path / "hub.toml").write_text(text)
    bin = tmp_path / "bin"
    bin.mkdir()
    monkeypatch.setenv("PATH", str(bin))
    cluster = backends.build_driver(loading.load(tmp_path / "hub.toml"), None)
    assert isinstance(cluster, SlurmRestDriver)
    assert cluster.rest.url == "http://slurm:6820"
    (bin / "scontrol").write_text("#!/bin/sh\n")
    (bin / "scontrol").chmod(0o755)
    assert type(backends.build_driver(loading.load(tmp_path / "hub.toml"), None)) is SlurmDriver


@pytest.fixture
def old(slurm: slurm_cluster.Cluster) -> Iterator[SlurmRestDriver]:
    """The slurmrestd of this machine, over its socket; it refuses to run as root."""
    program, folder = servers.require("slurmrestd"), slurm.folder / "rest"
    folder.mkdir(exist_ok=True)
    os.chown(folder, 65534, 65534)
    for parent in itertools.takewhile(lambda parent: parent != Path(tempfile.gettempdir()), folder.parents):
        parent.chmod(0o755)
    drop: list[str] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", str(program)]
    path = folder / "s.sock"
    line = [
        *drop,
        "-f",
        str(slurm.folder / "slurm.conf"),
        "-s",
        "openapi/v0.0.38",
        "-a",
        "rest_auth/local",
        f"unix:{path}",
    ]
    daemon = subprocess.Popen(line, env=slurm.environment, stderr=subprocess.DEVNULL)
    try:
        slurm_cluster.until(path.exists, slurm.folder)
        yield SlurmRestDriver(rest=SlurmRestClient(f"unix://{path}", timeout_seconds=20.0))
    finally:
        servers.stop(daemon)


@pytest.mark.servers
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_real_slurmrestd_of_before_23_02_is_refused_and_changes_nothing(old: SlurmRestDriver) -> None:
    with pytest.raises(ActionRefused, match=r"its API versions are .*v0\.0\.38, it needs v0\.0\.39"):
        old.perform(action(CORDON))
