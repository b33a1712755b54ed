"""Live updates over a real WebSocket: a fault is sent immediately, and a slow viewer does not delay others."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection

from tests.support.running_product import await_that
from tests.support.web.tokens import SECRETS, TOKENS
from tests.web import stories
from tests.web.kept_services import KeptJournal
from tests.web.live_viewer import INTERVAL_SECONDS, PATIENCE_SECONDS, header, viewer
from tests.web.running import Site, serving
from tests.web.small_hub import SmallHub
from watchkeeper.web import live
from watchkeeper.web.auth.auth import Role
from watchkeeper.web.auth.auth_reload import AuthFiles


@pytest.fixture
def site() -> Iterator[Site]:
    with serving(SmallHub(), interval_seconds=INTERVAL_SECONDS) as running:
        yield running


def next_incidents(socket: ClientConnection) -> dict[str, Any]:
    while isinstance(message := socket.recv(PATIENCE_SECONDS), bytes):
        pass
    plain: dict[str, Any] = json.loads(message)
    return plain


def next_frame(socket: ClientConnection) -> dict[str, Any]:
    while isinstance(message := socket.recv(PATIENCE_SECONDS), str):
        pass
    return header(message)


def test_a_viewer_gets_incidents_and_a_frame_immediately(site: Site) -> None:
    with viewer(site) as socket:
        assert next_incidents(socket)["open"] == []
        frame = next_frame(socket)
    assert (frame["colour"], frame["count"], frame["summary"]["ok"]) == ("sm_active", 32, 32)
    assert frame["version"] == site.ask("/api/fleet").json["version"]


def test_a_fault_is_sent_before_the_next_frame_is_due(site: Site) -> None:
    with viewer(site) as socket:
        next_incidents(socket)
        next_frame(socket)
        began = time.monotonic()
        site.call(stories.lose_gpu, site.hub)
        card = next_incidents(socket)["open"][0]
        frame = next_frame(socket)
        took = time.monotonic() - began
    assert card["title"] == "GPU 3 on gpu-r01-02 fell off the bus"
    assert frame["summary"]["down"] == 1
    # It takes some milliseconds; what waited for its turn would have taken most of a minute.
    assert took < INTERVAL_SECONDS / 3


def test_each_viewer_chooses_its_colour(site: Site) -> None:
    with viewer(site) as plain, viewer(site) as hot:
        next_frame(plain)
        hot.send('{"colour": "nonsense"}')
        hot.send("not json")
        hot.send('{"colour": "temperature"}')
        while (frame := next_frame(hot))["colour"] != "temperature":
            pass
        assert frame["count"] == 32


def test_a_fleet_that_grows_gets_another_version(site: Site) -> None:
    with viewer(site) as socket:
        before = next_frame(socket)
        site.call(site.hub.fleet.fleet_gpus.pop)
        site.call(site.hub.changes.send, "fleet")
        after = next_frame(socket)
    assert (before["version"] != after["version"], after["summary"]["silent"]) == (True, 1)


def test_a_failed_query_makes_the_map_unknown(site: Site) -> None:
    site.hub.queries.failing = True
    with viewer(site) as socket:
        assert next_frame(socket)["summary"]["unknown"] == 32


def test_live_updates_continue_after_the_journal_recovers(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "RETRY_SECONDS", 0.05)
    with viewer(site) as socket:
        next_incidents(socket)
        next_frame(socket)
        site.hub.journal.unanswered = 6
        site.call(stories.lose_gpu, site.hub)
        assert next_incidents(socket)["open"][0]["title"] == "GPU 3 on gpu-r01-02 fell off the bus"
        while next_frame(socket)["summary"]["down"] != 1:
            pass


def test_a_viewer_that_connects_during_a_change_keeps_the_newer_list() -> None:
    class Slow(KeptJournal):
        """The first answer comes after the second one."""

        is_first = True

        async def read(self, work: Callable[[], Any], *, is_long: bool = False) -> Any:
            is_first, self.is_first = self.is_first and work.__name__ == "_incidents_message", False
            answer = await super().read(work)
            if is_first:
                stories.lose_gpu(hub)
                await asyncio.wait_for(second.wait(), PATIENCE_SECONDS)
            elif work.__name__ == "_incidents_message":
                second.set()
            return answer

    second = asyncio.Event()
    hub = SmallHub(journal_type=Slow)
    with serving(hub, interval_seconds=INTERVAL_SECONDS) as site, viewer(site) as socket:
        assert len(next_incidents(socket)["open"]) == 1
        site.call(site.hub.changes.send, "incidents")
        assert len(next_incidents(socket)["open"]) == 1


def test_another_sites_page_cannot_connect(site: Site) -> None:
    with pytest.raises(InvalidStatus):
        viewer(site, Origin="http://evil.example")
    with viewer(site, Origin=site.url) as socket:
        assert next_incidents(socket)["open"] == []


def test_a_socket_needs_a_token_if_tokens_are_configured() -> None:
    with serving(SmallHub(), TOKENS) as site:
        for headers in ({}, {"Authorization": f"Bearer {SECRETS[Role.AGENT]}"}):
            with pytest.raises(InvalidStatus):
                viewer(site, **headers)
        with viewer(site, Authorization=f"Bearer {SECRETS[Role.VIEWER]}") as socket:
            assert next_incidents(socket)["kind"] == "incidents"


@pytest.mark.slow
def test_a_viewer_whose_token_is_removed_is_disconnected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "ACCESS_CHECK_SECONDS", 0.05)
    file = tmp_path / "tokens"
    line = f"ann viewer {SECRETS[Role.VIEWER]}\n"
    file.write_text(f"bob admin {SECRETS[Role.ADMIN]}\n{line}")
    auth_files = AuthFiles(tokens_file=file)
    auth_files.load()
    with (
        serving(SmallHub(), auth_files) as site,
        viewer(site, Authorization=f"Bearer {SECRETS[Role.VIEWER]}") as socket,
    ):
        next_incidents(socket)
        file.write_text(file.read_text().replace(line, ""))
        with contextlib.suppress(ConnectionClosed):
            while True:
                socket.recv(30)
        assert (socket.close_code, socket.close_reason) == (1008, "session ended or access revoked")


def test_the_server_stops_quickly_with_open_sockets() -> None:
    # Leaving `serving` fails where the stop is slow, and the viewer leaves after it.
    with contextlib.ExitStack() as later, serving(SmallHub()) as site:
        next_incidents(later.enter_context(viewer(site)))


def test_the_first_viewer_gets_the_frame_drawn_without_viewers() -> None:
    with serving(SmallHub(), interval_seconds=0.05) as site:
        await_that(lambda: 'frames_total{colour="sm_active"} 1' in site.call(site.hub.metrics.render))
        site.hub.queries.failing = True
        assert header(site.ask("/api/picture").body)["summary"]["ok"] == 32
        with viewer(site) as socket:
            assert next_frame(socket)["summary"]["ok"] == 32
            assert next_frame(socket)["summary"]["unknown"] == 32


def test_the_ready_frame_matches_the_inventory_while_the_fleet_grows(site: Site) -> None:
    def is_drawn() -> bool:
        site.call(site.hub.changes.send, "fleet")
        return site.ask("/api/picture").status == 200

    await_that(is_drawn)
    site.call(site.hub.fleet.fleet_gpus.pop)
    picture = header(site.ask("/api/picture").body)["version"]
    assert site.ask("/api/fleet?max_age=120").json["version"] == picture
    assert site.ask("/api/fleet").json["version"] != picture


def test_the_snapshot_of_a_new_frame_is_ready_before_the_frame(site: Site) -> None:
    with viewer(site) as socket:
        next_frame(socket)
        site.call(site.hub.fleet.fleet_gpus.pop)
        site.call(site.hub.changes.send, "fleet")
        after = next_frame(socket)["version"]
        assert site.ask("/api/fleet?max_age=120").json["version"] == after


def test_without_viewers_a_frame_is_drawn_every_minute_or_after_a_change() -> None:
    with serving(SmallHub(), interval_seconds=0.02) as site:
        await_that(lambda: 'frames_total{colour="sm_active"} 1' in site.call(site.hub.metrics.render))
        site.call(site.hub.fleet.fleet_gpus.pop)
        await_that(lambda: 'frames_total{colour="sm_active"} 2' in site.call(site.hub.metrics.render))
        for _ in range(20):
            site.call(site.hub.changes.send, "incidents")
        assert 'frames_total{colour="sm_active"} 2' in site.call(site.hub.metrics.render)
