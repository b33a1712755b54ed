"""Changes of the fleet come over the WebSocket: a viewer that applies them has the same as /api/fleet."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.sync.client import ClientConnection

from tests.support.manual_clock import ManualClock
from tests.support.web.fleet_changes import gain_node, lose_node, move_rack
from tests.web.live_viewer import PATIENCE_SECONDS, header, viewer
from tests.web.running import Site, serving
from tests.web.small_hub import SmallHub
from watchkeeper.web import live
from watchkeeper.web.fleet import fleet_snapshot

WHOLE = "/api/fleet?workloads=0"


class Follower:
    """A viewer that applies changes to its edition of the fleet, as the console does."""

    def __init__(self, site: Site, socket: ClientConnection) -> None:
        self.fleet: dict[str, Any] = site.ask(WHOLE).json
        self._site, self._socket = site, socket
        self.say(self.fleet["edition"])

    def say(self, edition: str) -> None:
        self._socket.send(json.dumps({"edition": edition}))

    def news(self) -> dict[str, Any]:
        """The next message about the fleet; it stands before the picture that it belongs to."""
        changes = None
        while changes is None or changes["kind"] != "fleet":
            message = self._socket.recv(PATIENCE_SECONDS)
            changes = json.loads(message) if isinstance(message, str) else None
            self._site.call(self._site.hub.changes.send, "fleet")
        while isinstance(message := self._socket.recv(PATIENCE_SECONDS), str):
            pass
        assert header(message)["version"] == changes.get("version", self.fleet["version"])
        return changes

    def follow(self) -> list[Any]:
        """Take over the next change, and answer with what was sent of nodes."""
        changes = self.news()
        assert (changes.pop("kind"), changes.pop("since")) == ("fleet", self.fleet["edition"])
        parts, before = changes["nodes"], self.fleet["nodes"]
        nodes = [node for part in parts for node in (before[slice(*part)] if isinstance(part, list) else [part])]
        self.fleet = {"ok": True, **changes, "nodes": nodes}
        return list(parts)


def lose_gpu(hub: SmallHub) -> None:
    hub.fleet.fleet_gpus.pop(9)


@pytest.mark.parametrize(
    ("change", "sent"),
    [
        (lose_gpu, [[0, 1], "gpu-r01-02", [2, 4]]),
        (lose_node, [[0, 1], [2, 4]]),
        (gain_node, [[0, 2], "gpu-r01-10", [2, 4]]),
        (move_rack, [[1, 4], "gpu-r01-01"]),
    ],
)
def test_only_changed_nodes_are_sent(change: Callable[[SmallHub], None], sent: list[Any]) -> None:
    with serving(SmallHub(), interval_seconds=60) as site, viewer(site) as socket:
        page = Follower(site, socket)
        site.call(change, site.hub)
        parts = page.follow()
        assert [part if isinstance(part, list) else part["name"] for part in parts] == sent
        assert page.fleet == site.ask(WHOLE).json


def test_a_changed_holder_is_sent_within_a_minute() -> None:
    time = ManualClock(datetime(2026, 1, 31, tzinfo=UTC))
    with serving(SmallHub(clock=time), interval_seconds=60) as site, viewer(site) as socket:
        page = Follower(site, socket)
        version = page.fleet["version"]
        site.hub.readings.moved["GPU-r01-02-3"] = "train-next"
        asyncio.run_coroutine_threadsafe(time.advance(live.MAX_HOLDERS_AGE_SECONDS), site.loop).result(60)
        site.call(site.hub.changes.send, "fleet")
        assert len(page.follow()) == 3
        assert page.fleet["nodes"][1]["gpus"][3]["workload"].endswith("/train-next")
        assert (page.fleet["version"], page.fleet) == (version, site.ask(WHOLE).json)


def test_holders_become_unknown_in_the_changes_too() -> None:
    with serving(SmallHub(), interval_seconds=60) as site, viewer(site) as socket:
        page = Follower(site, socket)
        assert page.fleet["workloads"] == {}
        site.hub.queries.failing = True
        site.call(lose_gpu, site.hub)
        page.follow()
        assert page.fleet["workloads"] is None
        assert {gpu["workload"] for node in page.fleet["nodes"] for gpu in node["gpus"] if gpu} == {None}


@pytest.mark.slow
def test_a_viewer_with_an_unknown_edition_gets_no_nodes() -> None:
    with serving(SmallHub(), interval_seconds=60) as site, viewer(site) as socket:
        page = Follower(site, socket)
        page.say("from before the restart")
        for _ in range(2):
            assert page.news() == {"kind": "fleet", "edition": page.fleet["edition"]}
        page.say(page.fleet["edition"])
        site.call(lose_gpu, site.hub)
        while "since" not in (changes := page.news()):
            pass
        assert changes["since"] == page.fleet["edition"]


@pytest.mark.slow
def test_a_viewer_gets_all_changes_since_its_edition() -> None:
    with serving(SmallHub(), interval_seconds=60) as site, viewer(site) as socket:
        page = Follower(site, socket)
        own = page.fleet
        for change in (lose_gpu, gain_node):
            site.call(change, site.hub)
            page.follow()
        page.fleet = own
        page.say(own["edition"])
        site.call(lose_gpu, site.hub)
        page.follow()
        assert page.fleet == site.ask(WHOLE).json


@pytest.mark.slow
def test_a_viewer_without_an_edition_gets_only_frames() -> None:
    with serving(SmallHub(), interval_seconds=60) as site, viewer(site) as socket:
        kinds = set()
        for _ in range(3):
            site.call(lose_gpu, site.hub)
            site.call(site.hub.changes.send, "fleet")
            while isinstance(message := socket.recv(PATIENCE_SECONDS), str):
                kinds.add(json.loads(message)["kind"])
        assert kinds == {"incidents"}


def test_holders_are_listed_by_uuid_or_in_each_gpu() -> None:
    with serving(SmallHub(), interval_seconds=60) as site:
        long, short = site.ask("/api/fleet").json, site.ask(WHOLE).json
    assert long["workloads"] == {
        gpu["uuid"]: gpu["workload"] for node in short["nodes"] for gpu in node["gpus"] if gpu["workload"]
    }
    assert {**long, "workloads": {}} == short


@given(st.lists(st.sampled_from([b"a", b"b", b"c", b"d", b"e"])), st.lists(st.sampled_from([b"a", b"b", b"c", b"x"])))
def test_ranges_and_changed_nodes_rebuild_the_fleet(before: list[bytes], after: list[bytes]) -> None:
    parts = [
        json.loads(part) if part.startswith(b"[") else [part] for part in fleet_snapshot.changed_nodes(before, after)
    ]
    spread = [before[slice(*part)] if isinstance(part[0], int) else part for part in parts]
    assert [node for part in spread for node in part] == after
