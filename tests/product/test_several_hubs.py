"""Several hubs on one PostgreSQL, each a process: one works, another goes on, and one that was stopped does nothing."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import servers
from tests.support import postgres_server
from tests.support.running_product import SOON_SECONDS, WATCHKEEPER, await_that
from watchkeeper.store.journal import election
from watchkeeper.store.journal import postgres as journal_servers
from watchkeeper.store.journal.journal import Journal

SPEED = 10
LEASE_SECONDS = 4.0
# A lease, a turn to notice that it is over, and the time to read a small journal on a busy machine.
TAKEOVER_SECONDS = LEASE_SECONDS + LEASE_SECONDS / 5 + 3.0


@dataclass
class OneHub:
    name: str
    url: str
    server: subprocess.Popen[bytes]
    log: Path

    def ask(self, path: str, body: object = None) -> Any:
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, content, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=SOON_SECONDS) as answer:
            return json.loads(answer.read())

    def refusal(self, path: str, body: object = None) -> tuple[int, str]:
        """The status and words of a request that is refused; (200, "") when it is not."""
        try:
            self.ask(path, body)
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except json.JSONDecodeError:
            pass
        return 200, ""

    def leads(self) -> bool:
        try:
            return self.refusal("/-/ready")[0] == 200
        except OSError:
            return False

    def follows(self) -> bool:
        try:
            status, words = self.refusal("/-/ready")
        except OSError:
            return False
        return status == 503 and "follows" in words

    def has_read_everything(self) -> bool:
        result = self.ask("/api/v1/query?query=count(DCGM_FI_DEV_GPU_TEMP)")["data"]["result"]
        return bool(result) and result[0]["value"][1] == "64"


class Fleet:
    """A simulated fleet, a database, and hubs that come and go."""

    def __init__(self, folder: Path, simulator: str, address: str) -> None:
        self.folder, self.simulator, self.address = folder, simulator, address
        self.epoch = time.time()

    @contextlib.contextmanager
    def hub(self, name: str, death: str = "never", *, address: str | None = None) -> Iterator[OneHub]:
        port, log = servers.free_port(), self.folder / f"{name}.log"
        arguments = [self.simulator, str(self.folder / name), str(port), str(SPEED), repr(self.epoch)]
        (self.folder / f"{name}.url").write_text(address or self.address)
        arguments += [str(self.folder / f"{name}.url"), f"{LEASE_SECONDS:g}s", death]
        line = [sys.executable, "-m", "tests.product.one_of_several", *arguments]
        url = f"http://127.0.0.1:{port}"
        with servers.running(line, ready_url=f"{url}/-/healthy", log=log) as server:
            try:
                yield OneHub(name, url, server, log)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(server.pid, signal.SIGCONT)

    def node(self, name: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.simulator}/cluster/nodes/{name}", timeout=SOON_SECONDS) as answer:
            status: dict[str, Any] = json.loads(answer.read())
        return status

    @contextlib.contextmanager
    def journal(self) -> Iterator[Journal]:
        server = journal_servers.PostgresServer(self.address)
        with contextlib.closing(Journal(journal_servers.PostgresConnection(server, 0))) as journal:
            yield journal

    def lead(self) -> election.Lease:
        server = journal_servers.PostgresServer(self.address)
        with contextlib.closing(election.Election(server, "test", url="", lease_seconds=1)) as candidate:
            return candidate.read_lease()

    def calls(self) -> list[str]:
        """What the simulator answered to every call of every hub, the one that was stopped too."""
        return (self.folder / "calls").read_text().splitlines()

    def reboots(self, node: str) -> int:
        return sum(f"rebooting {node}" in text for text in self.calls())


@pytest.fixture
def fleet(tmp_path: Path, postgres: postgres_server.Cluster) -> Iterator[Fleet]:
    port = servers.free_port()
    url = f"http://127.0.0.1:{port}"
    fleet = Fleet(tmp_path, url, postgres.database())
    world = ["--gpus", "64", "--speed", str(SPEED), "--epoch", repr(fleet.epoch), "--port", str(port)]
    with servers.running([*WATCHKEEPER, "sim", "run", *world], ready_url=f"{url}/sd", log=tmp_path / "sim.log"):
        yield fleet


def break_it(hub: OneHub) -> str:
    await_that(hub.has_read_everything)
    return str(hub.ask("/api/sim/faults", {"scenario": "xid-79"})["node"])


def check_that_it_was_repaired_once(fleet: Fleet, hub: OneHub, node: str) -> None:
    await_that(lambda: not hub.ask("/api/incidents")["incidents"], within_seconds=120)
    # The signals of a node that works again may end before its repair has put everything back.
    await_that(lambda: hub.ask("/api/repairs?all=1")["repairs"][0]["state"] == "done", within_seconds=120)
    assert hub.ask("/api/repairs?all=1")["repairs"][0]["node"]["node"] == node
    await_that(lambda: (fleet.node(node)["schedulable"], fleet.node(node)["cordoned_by"]) == (True, None))
    assert fleet.reboots(node) == 1
    with fleet.journal() as journal:
        assert journal.verify() is None


@pytest.mark.alone
@pytest.mark.servers
def test_another_hub_goes_on_with_the_repair_of_a_killed_leader(fleet: Fleet) -> None:
    with fleet.hub("a", "after:drain") as a:
        await_that(a.leads)
        with fleet.hub("b") as b:
            await_that(b.follows)
            await_that(b.has_read_everything)
            node = break_it(a)
            await_that(lambda: a.server.poll() == -signal.SIGKILL)
            killed = time.monotonic()
            await_that(b.leads)
            assert time.monotonic() - killed < TAKEOVER_SECONDS
            check_that_it_was_repaired_once(fleet, b, node)
            assert fleet.lead().epoch == 2


@pytest.mark.servers
def test_a_follower_answers_questions_and_names_the_leader_to_whoever_wants_more(fleet: Fleet) -> None:
    with fleet.hub("a") as a, fleet.hub("b") as b:
        await_that(lambda: a.leads() or b.leads())
        leader, follower = (a, b) if a.leads() else (b, a)
        await_that(follower.follows)
        node = break_it(leader)
        await_that(lambda: bool(leader.ask("/api/incidents")["incidents"]))
        incident = follower.ask("/api/incidents")["incidents"][0]
        assert incident["place"]["node"] == node
        status, words = follower.refusal(f"/api/incidents/{incident['id']}/note", {"text": "seen"})
        assert (status, leader.url in words) == (503, True)
        assert leader.url in follower.refusal("/-/ready")[1]


@contextlib.contextmanager
def stopped_in(fleet: Fleet, kind: str) -> Iterator[str]:
    """Another hub has repaired the node while the leader stood still in a call; now that has woken up and made it."""
    with fleet.hub("a", f"stop:{kind}") as a:
        await_that(a.leads)
        with fleet.hub("b") as b:
            await_that(b.follows)
            await_that(b.has_read_everything)
            node = break_it(a)
            await_that(b.leads, within_seconds=120)
            check_that_it_was_repaired_once(fleet, b, node)
            os.kill(a.server.pid, signal.SIGCONT)
            await_that(a.follows)
            await_that(lambda: any(text.startswith(f"{a.server.pid} ") and kind in text for text in fleet.calls()))
            yield node
            check_that_it_was_repaired_once(fleet, b, node)
            assert (fleet.lead().epoch, b.leads()) == (2, True)


@pytest.mark.servers
@pytest.mark.parametrize("kind", ["drain", "reboot"])
def test_a_leader_that_is_stopped_in_a_call_and_wakes_up_later_changes_nothing(fleet: Fleet, kind: str) -> None:
    with stopped_in(fleet, kind):
        pass


@pytest.mark.servers
@pytest.mark.timeout(400)
def test_a_cordon_that_lands_after_another_hub_has_taken_over_is_taken_off(fleet: Fleet) -> None:
    with stopped_in(fleet, "cordon") as node:
        # Nobody waits for it: the leader looks for late marks every five minutes, which are half a minute here.
        await_that(
            lambda: (fleet.node(node)["schedulable"], fleet.node(node)["cordoned_by"]) == (True, None),
            within_seconds=120,
        )


@pytest.mark.servers
def test_a_hub_outlives_its_server_and_goes_on_when_it_is_back(fleet: Fleet, postgres: postgres_server.Cluster) -> None:
    event = {"id": "main/n1/boot/kmsg/1", "kind": "xid", "code": 31, "place": {"cluster": "main", "node": "n1"}}
    push = [{**event, "at": "2026-11-15T10:00:00Z", "text": "Xid 31"}]
    with fleet.hub("a") as a:
        await_that(a.leads)
        postgres.stop(signal.SIGQUIT)
        try:
            await_that(lambda: not a.leads())
            assert "PostgreSQL database" in a.refusal("/-/ready")[1]
            assert a.refusal("/api/events", push)[0] == 503
        finally:
            postgres.start()
        await_that(a.leads)
        assert a.ask("/api/events", push)["kept"] == 1
        assert fleet.lead().epoch == 2


@pytest.mark.servers
def test_a_server_that_hangs_takes_the_lead_away_and_gives_it_back(
    fleet: Fleet, postgres: postgres_server.Cluster
) -> None:
    with fleet.hub("a") as a:
        await_that(a.leads)
        with postgres.hanging():
            await_that(lambda: not a.leads())
        await_that(a.leads)


@pytest.mark.servers
def test_a_leader_that_is_cut_off_calls_nothing_while_another_goes_on(
    fleet: Fleet, postgres: postgres_server.Cluster
) -> None:
    with contextlib.closing(postgres_server.Line(postgres.port)) as line:
        address = fleet.address.replace(f":{postgres.port}/", f":{line.port}/")
        with fleet.hub("a", address=address) as a:
            await_that(a.leads)
            with fleet.hub("b") as b:
                await_that(b.follows)
                await_that(b.has_read_everything)
                node = break_it(a)
                await_that(lambda: fleet.node(node)["cordoned_by"] is not None)
                line.cut()
                await_that(b.leads)
                before = [text for text in fleet.calls() if text.startswith(f"{a.server.pid} ")]
                check_that_it_was_repaired_once(fleet, b, node)
                line.mend()
                await_that(a.follows)
                assert [text for text in fleet.calls() if text.startswith(f"{a.server.pid} ")] == before
